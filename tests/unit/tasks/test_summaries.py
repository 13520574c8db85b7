"""CNN/DailyMail and XSum: rows, prompts, and scores equal to those of rouge_score."""

import json

import pytest
from altered_texts import altered
from composed import composed
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from machine_needs import SAMPLE_DATA, needs_sample_data
from rouge_score.rouge_scorer import RougeScorer

from diversed.tasks.base import SPLITS, TaskDataError
from diversed.tasks.cnndm import CnnDailyMailTask
from diversed.tasks.metrics.rouge_scores import ROUGE_TYPES, split_sentences
from diversed.tasks.xsum import XSumTask

TASKS = {
    "cnndm": (CnnDailyMailTask, "article", "highlights"),
    "xsum": (XSumTask, "document", "summary"),
}
TEXTS = st.text(st.characters(categories=["L", "N", "P", "S", "Z", "C"]), max_size=80)


def rows(name, split, number):
    """Return rows in the schema of the hub."""
    _, text, summary = TASKS[name]
    return [
        {
            "id": f"{split}-{index:040x}",
            text: f"Story {index} of {split}. Dogs bark at night. Cats sleep \u00fcber all day.\n",
            summary: f"Dogs bark in story {index}. Cats sleep in {split}.",
        }
        for index in range(number)
    ]


def write(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))


@pytest.fixture(params=TASKS)
def folder(request, tmp_path):
    """A folder with a file per split; `folder.task(...)` makes the task that reads it."""
    for split, number in (("train", 6), ("validation", 3), ("test", 4)):
        write(tmp_path / f"{split}.jsonl", rows(request.param, split, number))
    return request.param, tmp_path


def make(folder, **options):
    name, path = folder
    return TASKS[name][0](path=str(path), **options)


def rouge_of(prediction, reference, rouge_type="rouge2", use_stemmer=True):
    score = RougeScorer([rouge_type], use_stemmer=use_stemmer).score(reference, prediction)
    return score[rouge_type].fmeasure


def test_examples_are_the_rows_of_their_split(folder):
    name, _ = folder
    _, text, summary = TASKS[name]
    task = make(folder)
    for split, number in (("train", 6), ("validation", 3), ("test", 4)):
        examples = list(task.examples(split))
        assert [(row[text], row[summary]) for row in examples] == [
            (row[text], row[summary]) for row in rows(name, split, number)
        ]
        assert all(set(row) == {"id", text, summary} for row in examples)


def test_ids_are_unique_and_do_not_depend_on_the_limit(folder):
    task = make(folder)
    every = {split: [row["id"] for row in task.examples(split)] for split in SPLITS}
    ids = [one for own in every.values() for one in own]
    assert len(set(ids)) == 13
    limited = [row["id"] for row in make(folder, limit=2).examples("test")]
    assert len(limited) == 2
    assert set(limited) < set(every["test"])
    assert every["test"][3] == f"{folder[0]}/test/3"


def test_one_file_is_the_test_split(tmp_path):
    path = tmp_path / "articles.json"
    path.write_text(json.dumps(rows("xsum", "test", 5)))
    assert len(XSumTask(path=str(path)).examples("test")) == 5


def test_the_long_column_is_the_article_and_nothing_else(folder):
    name, text, _ = folder[0], *TASKS[folder[0]][1:]
    task = make(folder)
    assert task.long_column == text
    example = task.examples("test")[0]
    for options in ({"prompt": "plain", "num_shots": 0}, {"prompt": "chat"}):
        task = make(folder, **options)
        whole = as_text(task.prompt(example))
        cut = as_text(task.prompt(example | {text: example[text][:7]}))
        assert example[text].strip() in whole
        assert cut == whole.replace(example[text].strip(), example[text][:7])
    assert name == task.name


def as_text(prompt):
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


def test_a_chat_prompt_asks_in_one_turn(folder):
    task = make(folder, prompt="chat")
    prompt = task.prompt(task.examples("test")[0])
    assert [message["role"] for message in prompt] == ["user"]
    assert task.stop_strings == ()
    with_shots = make(folder, prompt="chat", num_shots=2).prompt(task.examples("test")[0])
    assert [message["role"] for message in with_shots] == ["user", "assistant"] * 2 + ["user"]


def test_a_plain_prompt_shows_worked_examples_and_ends_where_the_summary_begins(folder):
    task = make(folder, prompt="plain", num_shots=2)
    example = task.examples("test")[0]
    prompt = task.prompt(example)
    assert prompt.endswith(f"{example[task.text_column].strip()}\nSummary:\n")
    assert prompt.count("Article:") == prompt.count("Summary:") == 3
    assert task.stop_strings == ("\nArticle:",)
    assert "Article:" not in task.shots[0].answer


def test_worked_examples_are_good_summaries(folder):
    task = make(folder)
    for shot in task.shots:
        example = {task.text_column: shot.text, task.summary_column: shot.answer}
        assert task.score(shot.answer, example) == 1.0
        assert len(shot.answer) < 0.6 * len(shot.text)
        assert rouge_of(shot.answer, shot.text, "rouge1") > 0.15
    assert len({shot.text for shot in task.shots}) == len(task.shots) >= 2


def test_extract_trims(folder):
    task = make(folder)
    assert task.extract("\n Dogs bark. \n") == "Dogs bark."
    assert task.extract(" \n") is None


def test_the_score_is_rouge_2_of_the_summary(folder):
    task = make(folder)
    example = task.examples("test")[0]
    reference = task.reference(example)
    assert task.score(reference, example) == 1.0
    for text in altered(reference, task.posed_text(example)).values():
        assert task.score(text, example) == rouge_of(text, reference)
    assert 0 < task.score("Dogs bark loudly", example) < 1
    for blank in ("", " \n", "\u00a0"):
        assert (task.score(blank, example), type(task.score(blank, example))) == (0.0, float)


def test_the_stemmer_is_a_setting(folder):
    example = {"id": "x", **dict.fromkeys(TASKS[folder[0]][1:], "The dog barked")}
    assert make(folder, use_stemmer=True).score("the dogs barking", example) == 1.0
    assert make(folder, use_stemmer=False).score("the dogs barking", example) == 0.0


def test_corpus_metrics_are_means_with_sentences_as_set(folder):
    split, kept = make(folder), make(folder, newlines="keep")
    examples = list(split.examples("test"))
    texts = ["Cats sleep. Dogs bark.", "", *(split.reference(row) for row in examples[2:])]
    metrics = split.corpus_metrics(texts, examples)
    assert list(metrics) == list(ROUGE_TYPES)
    for name in ROUGE_TYPES[:3]:
        right = [
            rouge_of(text, split.reference(row), name)
            for text, row in zip(texts, examples, strict=True)
        ]
        assert metrics[name] == pytest.approx(sum(right) / 4)
    lsum = rouge_of(
        "Cats sleep.\nDogs bark.", split.reference(examples[0]).replace(". ", ".\n"), "rougeLsum"
    )
    assert metrics["rougeLsum"] == pytest.approx((lsum + 2) / 4)
    assert metrics["rougeLsum"] > kept.corpus_metrics(texts, examples)["rougeLsum"]
    assert split.corpus_metrics([], []) == {}


def test_settings_of_rouge_are_logged_and_kept(folder, caplog):
    with caplog.at_level("INFO"):
        task = make(folder, newlines="keep", use_stemmer=False)
    assert f"{folder[0]}: ROUGE with use_stemmer=False, newlines=keep" in caplog.text
    assert task.provenance()["rouge"] == {
        "use_stemmer": False,
        "newlines": "keep",
        "rouge_score": "0.1.2",
    }
    assert task.provenance()["hub_id"] == task.source.hub_id


def test_a_column_that_is_no_text_is_refused_by_row_and_name(folder):
    name, path = folder
    _, _, summary = TASKS[name]
    write(path / "test.jsonl", [row | {summary: 3} for row in rows(name, "test", 2)])
    with pytest.raises(TaskDataError, match=rf"{name}: row 1 \(test\) has a int .*{summary}"):
        make(folder).examples("test")


def test_a_missing_column_is_named(folder):
    name, path = folder
    _, text, summary = TASKS[name]
    write(path / "test.jsonl", [{text: "x", "abstract": "y"}])
    with pytest.raises(TaskDataError, match=rf"no column {summary};.*{text}, abstract"):
        make(folder).examples("test")


def test_the_config_builds_the_task(folder):
    name, path = folder
    cfg = composed("eval", f"data={name}", f"data.path={path}", "data.newlines=keep")
    task = instantiate(cfg.data)
    assert isinstance(task, TASKS[name][0])
    assert task.provenance()["rouge"]["newlines"] == "keep"
    assert len(task.examples("test")) == 4


@given(text=TEXTS, reference=TEXTS)
def test_any_text_scores_between_0_and_1(text, reference):
    example = {"id": "x", "document": "", "summary": reference}
    for score in (
        FILELESS.score(text, example),
        *FILELESS.corpus_metrics([text], [example]).values(),
    ):
        assert type(score) is float
        assert 0.0 <= score <= 1.0


FILELESS = XSumTask()


@needs_sample_data
@pytest.mark.parametrize(
    ("name", "file", "number"),
    [
        ("cnndm", "cnndm/cnn_dailymail_specbench80.jsonl", 80),
        ("xsum", "xsum/xsum_sample.jsonl", 10),
    ],
)
def test_scores_of_real_rows_are_those_of_rouge_score(name, file, number):
    task = TASKS[name][0](path=str(SAMPLE_DATA / file))
    examples = list(task.examples("test"))
    assert len(examples) == number == len({row["id"] for row in examples})
    variants = [altered(task.reference(row), task.posed_text(row)) for row in examples]
    for kind in variants[0]:
        scores = []
        for variant, example in zip(variants, examples, strict=True):
            scores.append(task.score(variant[kind], example))
            assert scores[-1] == rouge_of(variant[kind], task.reference(example))
        if kind in ("reference", "padded", "upper case"):
            assert set(scores) == {1.0}
        elif kind in ("empty", "blank"):
            assert set(scores) == {0.0}
        else:
            assert 0 < sum(scores) < number
    scorer = RougeScorer(list(ROUGE_TYPES), use_stemmer=True)
    for kind in ("first three sentences", "shuffled"):
        texts = [variant[kind] for variant in variants]
        right = [
            scorer.score(split_sentences(task.reference(example)), split_sentences(text))
            for text, example in zip(texts, examples, strict=True)
        ]
        assert task.corpus_metrics(texts, examples) == pytest.approx(
            {key: sum(row[key].fmeasure for row in right) / number for key in ROUGE_TYPES}
        )
