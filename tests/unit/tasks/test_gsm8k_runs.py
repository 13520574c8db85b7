"""The jobs on GSM8K's files with the embedded pair: records, manifest, no row in two splits."""

import json
import logging
import shutil

import pytest
from composed import SMALL_DATA, composed
from machine_needs import SAMPLE_DATA, needs_sample_data

from diversed import app
from diversed.config import InputError
from diversed.records.store import read_manifest, read_records
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.tasks.gsm8k import Gsm8kTask

TRAINING = (
    "decoding.max_new_tokens=32",
    "objective.num_rollouts=1",
    "objective.prompts_per_step=2",
    "objective.samples_per_prompt=2",
    "logger=none",
    "trainer.enable_progress_bar=false",
)


def problem(index):
    return {
        "question": f"Ada has {index} pens. Ada buys 2 more pens. How many pens are there?",
        "answer": f"Ada has {index} + 2 = <<{index}+2={index + 2}>>{index + 2} pens.\n"
        f"#### {index + 2}",
    }


def write(path, first, number):
    path.parent.mkdir(exist_ok=True)
    rows = [problem(index) for index in range(first, first + number)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def folder(tmp_path):
    """Return a folder as the data set's own repository has it: no validation file."""
    write(tmp_path / "gsm8k" / "train.jsonl", 100, 40)
    write(tmp_path / "gsm8k" / "test.jsonl", 0, 12)
    return tmp_path / "gsm8k"


def evaluate(run, *overrides):
    cfg = composed("eval", "model=tiny", "data=gsm8k", *overrides)
    return app.evaluate(cfg, run)


def test_an_evaluation_writes_records_and_where_the_rows_came_from(folder, tmp_path, caplog):
    run = tmp_path / "run"
    with caplog.at_level(logging.WARNING):
        numbers = evaluate(run, f"data.path={folder}", "data.limit=5")
    assert numbers["num_prompts"] == 5
    assert numbers["num_errors"] == numbers["num_cut_prompts"] == 0
    records = read_records(run)
    assert records["prompt"].str.endswith("How many pens are there?\nAnswer:").all()
    assert records["max_new_tokens"].eq(128).all()
    assert "completions get 128 tokens, not the task's 512: the models' context is 256" in (
        caplog.text
    )
    for _, row in records.iterrows():
        index = int(row["prompt_id"].removeprefix("gsm8k/test/"))
        assert row["reference"] == str(index + 2)
        assert row["quality"] == Gsm8kTask().score(row["text"], {"answer": row["reference"]})
    data = read_manifest(run)["data"]
    assert (data["prompt"], data["num_shots"]) == ("plain", 0)
    assert data["num_rows"] == {"test": {"used": 5, "available": 12}}
    assert data["sha256"].keys() == {"train.jsonl", "test.jsonl"}
    assert data["path"] == str(folder)


def test_prompts_that_do_not_fit_are_rows_with_an_error(folder, tmp_path, caplog):
    long = problem(0) | {"question": "Ada has 3 pens. " * 60}
    with (folder / "test.jsonl").open("a") as file:
        file.write(json.dumps(long) + "\n")
    numbers = evaluate(tmp_path / "run", f"data.path={folder}", "decoding.max_new_tokens=8")
    assert (numbers["num_errors"], numbers["num_prompts"]) == (1, 13)
    records = read_records(tmp_path / "run")
    (error,) = records["error"].dropna()
    assert "with a prompt of" in error


def test_all_rows_of_the_split_are_evaluated_unless_fewer_are_asked_for(folder, tmp_path):
    short = (f"data.path={folder}", "decoding.max_new_tokens=2")
    assert evaluate(tmp_path / "all", *short)["num_prompts"] == 12
    assert evaluate(tmp_path / "four", *short, "evaluation.num_prompts=4")["num_prompts"] == 4
    with pytest.raises(InputError, match=r"evaluation\.num_prompts=13: .* at most the 12"):
        evaluate(tmp_path / "more", *short, "evaluation.num_prompts=13")


def test_arithmetic_keeps_its_400_test_problems():
    task = ArithmeticTask(**{name: composed("eval").data[name] for name in ("num_test", "seed")})
    rows = task.examples("test")
    assert len(rows) == 400
    assert rows["id"][:] == ArithmeticTask(num_test=450).examples("test")["id"][:400]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("data.path=/no/such", "data.path=/no/such: there is no such file or folder"),
        ("data.prompt=chat", "the tokenizer has no chat template"),
        ("data.prompt=base", "data.prompt='base': must be one of chat, plain"),
        ("data.num_shots=5", "data.num_shots=5: must lie between 0 and the 4"),
        ("data.num_shots=4", "with a prompt of"),
        ("data.limit=0", "data.limit=0: must be at least 1"),
        ("evaluation.split=dev", "split='dev': must be one of train"),
        ("data.path=null", "give data.path="),
    ],
)
def test_bad_settings_are_one_line_and_write_nothing(folder, tmp_path, overrides, message):
    run = tmp_path / "run"
    with pytest.raises(InputError) as caught:
        evaluate(run, f"data.path={folder}", *overrides.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not run.exists()


def test_a_folder_without_validation_file_trains_on_carved_rows(folder, tmp_path):
    cfg = composed("train", "model=tiny", "data=gsm8k", f"data.path={folder}", *TRAINING)
    app.train(cfg, tmp_path / "run")
    manifest = read_manifest(tmp_path / "run")
    sizes = {split: rows["used"] for split, rows in manifest["data"]["num_rows"].items()}
    assert sizes == {"train": 36, "validation": 4, "test": 12}
    assert len(manifest["results"]["validation"]) == 1


def test_a_head_is_tested_on_the_part_of_its_file_that_it_never_saw(tmp_path):
    file = write(tmp_path / "sums.jsonl", 0, 40)
    source = f"data.path={file}"
    cfg = composed("train", "model=tiny", "data=gsm8k", source, *TRAINING)
    app.train(cfg, tmp_path / "trained")
    data = read_manifest(tmp_path / "trained")["data"]
    assert data["split_file"] is True
    assert {split: rows["used"] for split, rows in data["num_rows"].items()} == {
        "train": 32,
        "validation": 4,
        "test": 4,
    }
    short = (source, "decoding.max_new_tokens=4")
    head = ("verifier=diversed", f"verifier.checkpoint={tmp_path / 'trained'}")
    numbers = evaluate(tmp_path / "later", *short, *head)
    assert numbers["num_prompts"] == 4
    seen, later = (set(read_records(tmp_path / name)["prompt_id"]) for name in ("trained", "later"))
    assert seen == later
    (tmp_path / "alone").mkdir()
    copy = shutil.copy(file, tmp_path / "alone" / "copy.jsonl")
    for path in (copy, tmp_path / "alone"):  # it used to go by the path alone
        moved = (f"data.path={path}", *short[1:], *head)
        assert evaluate(tmp_path / "moved", *moved)["num_prompts"] == 4
    with pytest.raises(InputError, match=r"data\.seed=1: the head was trained on the part"):
        evaluate(tmp_path / "leak", *short, *head, "data.seed=1")
    assert evaluate(tmp_path / "other", *short)["num_prompts"] == 40  # no head, no leak


def test_validation_takes_what_there_is_where_no_number_is_asked_for(tmp_path, monkeypatch):
    asked = []
    examples = app.training.first_examples

    def remember(task, split, number, key):
        asked.append((split, number))
        return examples(task, split, number, key)

    assert app.training.NUM_VALIDATION_PROMPTS == 192
    monkeypatch.setattr(app.training, "NUM_VALIDATION_PROMPTS", 5)
    monkeypatch.setattr(app.training, "first_examples", remember)
    for number in (3, 6):
        sizes = ("evaluation.num_prompts=1", *SMALL_DATA, f"data.num_validation={number}")
        app.train(composed("train", *sizes, *TRAINING), tmp_path / str(number))
    assert [number for split, number in asked if split == "validation"] == [3, 5]


class TellingTask(ArithmeticTask):
    """Has a metric of the whole corpus."""

    def corpus_metrics(self, texts, examples):
        return {"num_characters": float(sum(map(len, texts)))}


def test_corpus_metrics_are_results_and_stand_in_the_log(tmp_path, caplog):
    cfg = composed("eval", *SMALL_DATA, "evaluation.num_prompts=3", "decoding.max_new_tokens=8")
    cfg.data._target_ = f"{__name__}.TellingTask"
    with caplog.at_level(logging.INFO):
        numbers = app.evaluate(cfg, tmp_path)
    wanted = read_records(tmp_path)["text"].str.len().sum()
    assert numbers["num_characters"] == wanted > 0
    assert read_manifest(tmp_path)["results"]["num_characters"] == wanted
    assert f"num_characters {wanted:.3f}" in caplog.text


@needs_sample_data
@pytest.mark.parametrize("name", ["gsm8k", "gsm8k/test.jsonl"])
def test_the_real_samples_are_evaluated(tmp_path, name):
    path = SAMPLE_DATA / name
    numbers = evaluate(tmp_path, f"data.path={path}", "data.limit=8")
    assert numbers["num_prompts"] == 8
    assert numbers["num_errors"] < 8
    assert len(read_records(tmp_path)) == 8
