"""Translation: rows in any pair of languages, and scores equal to those of sacrebleu."""

import json

import pytest
import sacrebleu
from altered_texts import altered
from composed import composed
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from machine_needs import SAMPLE_DATA, needs_sample_data

from diversed.tasks.base import SPLITS, TaskDataError
from diversed.tasks.wmt import LANGUAGES, SENTENCES, WmtTask

TEXTS = st.text(st.characters(categories=["L", "N", "P", "S", "Z", "C"]), max_size=80)
ROW = {
    "translation": {
        "de": "Der Hund schläft heute den ganzen Tag im Garten.",
        "en": "The dog is sleeping in the garden all day today.",
    }
}


@pytest.fixture
def folder(tmp_path):
    for split, number in (("train", 5), ("validation", 2), ("test", 3)):
        items = [
            {"translation": {code: f"{text} {split} {index}" for code, text in pair.items()}}
            for index, pair in enumerate([ROW["translation"]] * number)
        ]
        write(tmp_path / f"{split}.jsonl", items)
    return tmp_path


def write(path, items):
    path.write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items))


def test_examples_are_the_rows_of_their_split(folder):
    task = WmtTask(path=str(folder))
    ids = [row["id"] for split in SPLITS for row in task.examples(split)]
    assert len(set(ids)) == len(ids) == 10
    assert task.examples("test")[1] == {
        "id": "wmt_de_en/test/1",
        "translation": {code: f"{text} test 1" for code, text in ROW["translation"].items()},
    }


def test_a_direction_is_a_task_of_its_own(folder):
    there, back = WmtTask(path=str(folder)), WmtTask(path=str(folder), source="en", target="de")
    assert (there.name, back.name) == ("wmt_de_en", "wmt_en_de")
    row = there.examples("test")[0]
    assert there.posed_text(row) == back.reference(row) == row["translation"]["de"]
    assert there.reference(row) == back.posed_text(row) == row["translation"]["en"]
    assert there.score(row["translation"]["en"], row) == 1.0
    assert back.score(row["translation"]["de"], row) == 1.0
    assert there.score(row["translation"]["de"], row) < 0.2


def test_prompts_name_both_languages(folder):
    row = WmtTask(path=str(folder)).examples("test")[0]
    text = row["translation"]["en"]
    (turn,) = WmtTask(path=str(folder), source="en", target="de", prompt="chat").prompt(row)
    assert turn["content"].endswith(f"\n\n{text}")
    assert "from English into German" in turn["content"]
    task = WmtTask(path=str(folder), source="en", target="de", prompt="plain", num_shots=2)
    prompt = task.prompt(row)
    assert prompt.endswith(f"\n\nEnglish: {text}\nGerman:")
    assert prompt.count("\n\nEnglish: ") == prompt.count("\nGerman:") == 3
    assert task.stop_strings == ("\nEnglish:",)


def test_worked_examples_are_parallel_in_every_language_that_has_them():
    assert {len(sentences) for sentences in SENTENCES.values()} == {3}
    assert SENTENCES.keys() <= LANGUAGES.keys()
    for source in SENTENCES:
        for target in SENTENCES.keys() - {source}:
            shots = WmtTask(source=source, target=target).shots
            assert [shot.text for shot in shots] == list(SENTENCES[source])
            assert [shot.answer for shot in shots] == list(SENTENCES[target])


def test_a_pair_without_worked_examples_asks_without_them():
    example = {"id": "x", "translation": {"fi": "Hei", "xx": "Hi"}}
    task = WmtTask(source="fi", target="xx", prompt="plain")
    assert task.prompt(example).endswith("Finnish: Hei\nthe language xx:")
    with pytest.raises(ValueError, match=r"data\.num_shots=1: must lie between 0 and the 0"):
        WmtTask(source="fi", target="xx", num_shots=1)


@pytest.mark.parametrize(
    ("languages", "config"),
    [
        (("de", "en"), "de-en"),
        (("en", "de"), "de-en"),
        (("en", "cs"), "cs-en"),
        (("en", "ro"), "ro-en"),
        (("fr", "de"), "de-fr"),
    ],
)
def test_the_configuration_on_the_hub_is_the_pair_with_english_last(languages, config):
    source = WmtTask(source=languages[0], target=languages[1]).source
    assert (source.hub_id, source.config_name) == ("wmt/wmt14", config)


def test_data_set_and_configuration_are_settings():
    source = WmtTask(source="fr", target="de", hub_id="wmt/wmt19", config_name="fr-de").source
    assert (source.hub_id, source.config_name) == ("wmt/wmt19", "fr-de")


def test_one_language_for_both_is_refused():
    with pytest.raises(ValueError, match=r"data\.source=de, data\.target=de: must differ"):
        WmtTask(source="de", target="de")


@pytest.mark.parametrize(
    ("translation", "message"),
    [
        ({"de": "a", "ro": "b"}, r"row 1 \(test\).*data\.target=en; found de, ro"),
        ({"en": "a", "ro": "b"}, r"row 1 \(test\).*data\.source=de; found en, ro"),
        ({"de": "a", "en": None}, r"data\.target=en; found de"),
        ({"de": 1, "en": 2}, r"data\.source=de; found none"),
        ("a ||| b", r"row 1 \(test\) has a str in the column translation"),
    ],
)
def test_a_row_without_a_language_is_refused_by_its_name(tmp_path, translation, message):
    write(tmp_path / "test.jsonl", [{"translation": translation}])
    with pytest.raises(TaskDataError, match=message):
        WmtTask(path=str(tmp_path)).examples("test")


def test_a_later_row_without_a_language_is_refused_too(tmp_path):
    write(tmp_path / "test.jsonl", [ROW, {"translation": {"de": "a", "ro": "b"}}])
    with pytest.raises(TaskDataError, match=r"row 2 \(test\).*data\.target=en; found de, ro"):
        WmtTask(path=str(tmp_path)).examples("test")


def test_the_score_is_sentence_bleu_in_hundredths():
    task, example = WmtTask(), ROW | {"id": "x"}
    reference = task.reference(example)
    assert task.score(reference, example) == 1.0
    for text in altered(reference, task.posed_text(example)).values():
        right = sacrebleu.sentence_bleu(text, [reference]).score if text.strip() else 0.0
        assert task.score(text, example) == min(right, 100) / 100
    for blank in ("", " \n"):
        assert (task.score(blank, example), type(task.score(blank, example))) == (0.0, float)


def test_smoothing_and_case_are_settings():
    example = ROW | {"id": "x"}
    text = "The dog sleeps in the shed."
    scores = {name: WmtTask(smoothing=name).score(text, example) for name in ("exp", "floor")}
    assert scores["exp"] != scores["floor"]
    assert WmtTask(smoothing="none").score(text, example) == 0.0
    shouted = WmtTask().reference(example).upper()
    assert WmtTask().score(shouted, example) < 0.2
    assert WmtTask(lowercase=True).score(shouted, example) == 1.0


def test_corpus_metrics_are_bleu_and_chrf_of_the_corpus(folder):
    task = WmtTask(path=str(folder))
    examples = list(task.examples("test"))
    references = [task.reference(row) for row in examples]
    texts = [references[0], "The dog is sleeping.", ""]
    assert task.corpus_metrics(texts, examples) == {
        "bleu": sacrebleu.corpus_bleu(texts, [references]).score,
        "chrf": sacrebleu.corpus_chrf(texts, [references]).score,
    }
    assert task.corpus_metrics([], []) == {}


def test_signatures_are_logged_and_kept(folder, caplog):
    with caplog.at_level("INFO"):
        task = WmtTask(path=str(folder), smoothing="floor")
    signature = (
        f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:floor[0.10]|version:{sacrebleu.__version__}"
    )
    assert f"wmt_de_en: bleu is {signature}" in caplog.text
    assert task.provenance()["sacrebleu"]["bleu"] == signature
    assert "eff:yes" in task.provenance()["sacrebleu"]["sentence_bleu"]


def test_the_config_builds_the_task(folder):
    task = instantiate(
        composed("eval", "data=wmt", f"data.path={folder}", "data.source=en", "data.target=de").data
    )
    assert task.name == "wmt_en_de"
    assert len(task.examples("test")) == 3


TASK = WmtTask()


@given(text=TEXTS, reference=TEXTS)
def test_any_text_scores_between_0_and_1(text, reference):
    example = {"id": "x", "translation": {"de": "", "en": reference}}
    score = TASK.score(text, example)
    assert type(score) is float
    assert 0.0 <= score <= 1.0
    for metric in TASK.corpus_metrics([text], [example]).values():
        assert 0.0 <= metric <= 100.0


@needs_sample_data
@pytest.mark.parametrize(
    ("file", "source", "target", "number"),
    [
        ("wmt14_de_en_specbench80.jsonl", "de", "en", 80),
        ("wmt14_de_en_specbench80.jsonl", "en", "de", 80),
        ("wmt16_en_ro_sample.jsonl", "en", "ro", 10),
        ("wmt_en_ro_train.jsonl", "ro", "en", 11),
        ("wmt_en_ro_val.jsonl", "en", "ro", 16),
        ("wmt_en_ro_test.jsonl", "en", "ro", 20),
    ],
)
def test_scores_of_real_rows_are_those_of_sacrebleu(file, source, target, number):
    task = WmtTask(path=str(SAMPLE_DATA / "wmt" / file), source=source, target=target)
    examples = list(task.examples("test"))
    assert len(examples) == number == len({row["id"] for row in examples})
    references = [task.reference(row) for row in examples]
    variants = [altered(task.reference(row), task.posed_text(row)) for row in examples]
    for kind in variants[0]:
        texts = [variant[kind] for variant in variants]
        for text, reference, example in zip(texts, references, examples, strict=True):
            right = sacrebleu.sentence_bleu(text, [reference]).score
            assert task.score(text, example) == min(right, 100) / 100
    for kind in ("reference", "half", "shuffled", "unicode"):
        texts = [variant[kind] for variant in variants]
        metrics = task.corpus_metrics(texts, examples)
        assert metrics["bleu"] == min(sacrebleu.corpus_bleu(texts, [references]).score, 100)
        assert metrics["chrf"] == sacrebleu.corpus_chrf(texts, [references]).score
        assert (metrics["bleu"] == 100) == (kind == "reference")


@needs_sample_data
def test_the_real_files_of_a_pair_serve_as_a_folder_of_splits(tmp_path):
    for split in ("train", "val", "test"):
        source = SAMPLE_DATA / "wmt" / f"wmt_en_ro_{split}.jsonl"
        (tmp_path / f"{split}.jsonl").write_bytes(source.read_bytes())
    task = WmtTask(path=str(tmp_path), source="en", target="ro")
    assert [len(task.examples(split)) for split in SPLITS] == [11, 16, 20]
