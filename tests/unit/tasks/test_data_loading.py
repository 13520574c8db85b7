"""Rows of splits from local files: what is found, refused, carved, divided and drawn."""

import gzip
import json
import logging
import os
from pathlib import Path

import pytest
from datasets import Dataset

from diversed.tasks.base import SPLITS, TaskDataError
from diversed.tasks.loading import ROW_COLUMN, DataSource, SplitLoader

SOURCE = DataSource(
    hub_id="someone/sums",
    config_name="main",
    columns=("question", "answer"),
    splits={"train": "train", "test": "test"},
    key=("question",),
)
ONLY_TEST = DataSource(
    hub_id="someone/exam",
    config_name=None,
    columns=("question",),
    splits={"test": "test"},
    hint="train on data=sums",
)


def rows_of(number, first=0):
    return [
        {"question": f"How much is {index} + 1?", "answer": f"#### {index + 1}"}
        for index in range(first, first + number)
    ]


def write(path, rows):
    """Write rows as the suffix of the path says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        Dataset.from_list(rows).to_parquet(str(path))
        return path
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    text = lines if name.endswith(".jsonl") else json.dumps(rows, indent=1)
    content = text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def load(path, split="test", source=SOURCE, **options):
    return SplitLoader(source, path=str(path), **options).rows(split)


def questions(rows):
    return list(rows["question"])


@pytest.mark.parametrize(
    "name", ["test.jsonl", "test.json", "test.parquet", "test.jsonl.gz", "test.json.gz"]
)
@pytest.mark.parametrize("is_folder", [True, False])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, name, is_folder):
    path = write(tmp_path / name, rows_of(5))
    rows = load(tmp_path if is_folder else path)
    assert [{name: row[name] for name in SOURCE.columns} for row in rows] == rows_of(5)
    assert list(rows[ROW_COLUMN]) == [0, 1, 2, 3, 4]


def test_lines_in_a_json_file_and_a_list_in_a_jsonl_file_are_read(tmp_path):
    lines = "\n".join(json.dumps(row) for row in rows_of(3))
    (tmp_path / "test.json").write_text(lines + "\n\n")
    (tmp_path / "train.jsonl").write_text(json.dumps(rows_of(20)))
    assert questions(load(tmp_path)) == questions(Dataset.from_list(rows_of(3)))
    assert len(load(tmp_path, "train")) == 18


def test_texts_come_back_exactly(tmp_path):
    """Line separators inside strings used to be taken for ends of lines, dates for times."""
    texts = ["a\u2028b\u0085c", "2024-01-02 03:04:05", 'tab\tquote" naïve \u00bd', "", " x "]
    rows = [{"question": text, "answer": "1"} for text in texts]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows)
    (tmp_path / "test.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode())
    assert questions(load(tmp_path)) == texts


@pytest.mark.parametrize("name", ["validation.jsonl", "val.json", "valid_1.parquet", "dev-x.jsonl"])
def test_validation_files_have_many_names(tmp_path, name):
    write(tmp_path / name, rows_of(3))
    write(tmp_path / "train_first10.jsonl", rows_of(10, 100))
    assert len(load(tmp_path, "validation")) == 3
    assert len(load(tmp_path, "train")) == 10  # nothing is carved where there is a file


@pytest.mark.parametrize("name", ["tests.jsonl", "testing.json", "my_test.jsonl", "contest.jsonl"])
def test_names_that_only_look_like_a_split_are_none(tmp_path, name):
    write(tmp_path / name, rows_of(3))
    write(tmp_path / "other.jsonl", rows_of(3))
    with pytest.raises(TaskDataError, match=r"no train, validation or test file \(found .*other"):
        load(tmp_path)


def test_hidden_files_and_files_of_other_kinds_are_passed_over(tmp_path):
    write(tmp_path / ".test.jsonl", rows_of(1))
    (tmp_path / "test.md").write_text("no rows")
    (tmp_path / "test").mkdir()
    write(tmp_path / "test_a.jsonl", rows_of(4))
    assert len(load(tmp_path)) == 4


def test_the_only_data_file_of_a_folder_stands_for_itself(tmp_path):
    write(tmp_path / "sums.jsonl", rows_of(4))
    (tmp_path / "README.md").write_text("sums")
    assert questions(load(tmp_path)) == questions(load(tmp_path / "sums.jsonl"))


def test_two_files_for_one_split_are_named(tmp_path):
    write(tmp_path / "test_a.jsonl", rows_of(1))
    write(tmp_path / "test_b.jsonl", rows_of(1))
    with pytest.raises(TaskDataError, match=r"test_a\.jsonl and test_b\.jsonl both claim .* test"):
        load(tmp_path)


def test_shards_belong_together_and_must_be_complete(tmp_path):
    write(tmp_path / "test-00000-of-00002.parquet", rows_of(3))
    with pytest.raises(TaskDataError, match="1 of 2 files of the split test"):
        load(tmp_path)
    write(tmp_path / "test-00001-of-00002.parquet", rows_of(2, 3))
    rows = load(tmp_path)
    assert questions(rows) == questions(Dataset.from_list(rows_of(5)))
    assert list(rows[ROW_COLUMN]) == [0, 1, 2, 3, 4]


BAD_FILES = {
    "empty": ("test.jsonl", b"", r"test\.jsonl: the file has no rows"),
    "blank": ("test.jsonl", b"\n \n", "the file has no rows"),
    "empty list": ("test.json", b"[]", "the file has no rows"),
    "broken line": (
        "test.jsonl",
        b'{"question": "a", "answer": "1"}\n{"question": "b", "ans\n',
        r"test\.jsonl: no valid JSON in line 2 \(",
    ),
    "broken list": ("test.json", b'[\n{"question": "a"},\n}]', "no valid JSON in line 3"),
    "no object": ("test.jsonl", b'{"question": "a", "answer": "1"}\n7\n', "line 2 is a int, not"),
    "no object in a list": ("test.json", b'[["question"]]', "item 1 is a list, not an object"),
    "not UTF-8": ("test.jsonl", b'{"question": "\xff"}', "not UTF-8"),
    "no gzip": ("test.jsonl.gz", b"plain text", r"test\.jsonl\.gz: the file cannot be read"),
    "cut gzip": ("test.jsonl.gz", gzip.compress(b"a" * 9999)[:-9], "the file cannot be read"),
    "no parquet": ("test.parquet", b"plain text", r"test\.parquet: this is no Parquet file"),
    "missing columns": (
        "test.jsonl",
        b'{"document": "a", "summary": "b"}',
        "there is no column question, answer; the columns are document, summary",
    ),
    "missing column": ("test.jsonl", b'{"question": "a"}', "there is no column answer; the"),
    "gap": (
        "test.jsonl",
        b'{"question": "a", "answer": "1"}\n{"question": "b"}\n',
        "row 2 has no value in the column answer",
    ),
    "null": (
        "test.jsonl",
        b'{"question": null, "answer": "1"}\n',
        "row 1 has no value in the column question",
    ),
    "mixed types": (
        "test.jsonl",
        b'{"question": "a", "answer": "1"}\n{"question": "b", "answer": {"c": 1}}\n',
        "the column answer mixes types",
    ),
}


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_say_what_is_wrong_with_them(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskDataError, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_columns_that_nobody_needs_may_mix_types(tmp_path, caplog):
    rows = [row | {"note": note} for row, note in zip(rows_of(2), [1, {"a": 2}], strict=True)]
    write(tmp_path / "test.jsonl", rows)
    with caplog.at_level(logging.WARNING):
        assert set(load(tmp_path).column_names) == {"question", "answer", ROW_COLUMN}
    assert "left out the column note" in caplog.text


def test_a_gap_in_a_parquet_file_is_named_too(tmp_path):
    rows = [{"question": "a", "answer": "1"}, {"question": "b", "answer": None}]
    Dataset.from_list(rows).to_parquet(str(tmp_path / "test.parquet"))
    with pytest.raises(TaskDataError, match="row 2 has no value in the column answer"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "there is no such file or folder"),
        ("test.csv", r"unknown kind of file; give one of \.jsonl, "),
        ("", "the folder has no train, validation or test file; name its"),
    ],
)
def test_bad_paths_are_refused_before_anything_is_read(tmp_path, name, message):
    if name.endswith("csv"):
        (tmp_path / name).write_text("question,answer")
    with pytest.raises(TaskDataError, match=message) as caught:
        SplitLoader(SOURCE, path=str(tmp_path / name))
    assert f"data.path={tmp_path / name}" in str(caught.value)


@pytest.mark.parametrize(
    ("names", "split", "message"),
    [
        (["train.jsonl"], "test", r"there is no test split \(found: train\); add a test file"),
        (["test.jsonl"], "train", r"there is no train split \(found: test\)"),
        (["test.jsonl", "val.jsonl"], "train", r"found: validation, test"),
        (["test.jsonl"], "validation", "there is no validation split"),
    ],
)
def test_missing_split_files_are_named(tmp_path, names, split, message):
    for name in names:
        write(tmp_path / name, rows_of(20))
    with pytest.raises(TaskDataError, match=message):
        load(tmp_path, split)


def test_an_unknown_split_is_refused(tmp_path):
    write(tmp_path / "test.jsonl", rows_of(2))
    with pytest.raises(ValueError, match="split='dev'"):
        load(tmp_path, "dev")


@pytest.mark.parametrize("name", ["limit", "num_carved_validation"])
def test_numbers_below_1_are_refused_by_name(tmp_path, name):
    with pytest.raises(ValueError, match=rf"data\.{name}=0"):
        SplitLoader(SOURCE, path=str(tmp_path), **{name: 0})


def test_validation_rows_are_carved_from_the_training_file(tmp_path):
    write(tmp_path / "train.jsonl", rows_of(100))
    loader = SplitLoader(SOURCE, path=str(tmp_path), num_carved_validation=7)
    train, validation = loader.rows("train"), loader.rows("validation")
    assert (len(train), len(validation)) == (93, 7)
    assert set(questions(train)) | set(questions(validation)) == {
        row["question"] for row in rows_of(100)
    }
    assert not set(questions(train)) & set(questions(validation))
    assert list(validation[ROW_COLUMN]) == sorted(validation[ROW_COLUMN])
    again = SplitLoader(SOURCE, path=str(tmp_path), num_carved_validation=7)
    assert questions(again.rows("validation")) == questions(validation)
    other = SplitLoader(SOURCE, path=str(tmp_path), num_carved_validation=7, seed=1)
    assert questions(other.rows("validation")) != questions(validation)


def test_carving_leaves_nine_tenths_for_training(tmp_path):
    write(tmp_path / "train.jsonl", rows_of(40))
    assert (len(load(tmp_path, "validation")), len(load(tmp_path, "train"))) == (4, 36)


def test_all_of_a_file_is_the_test_split(tmp_path):
    path = write(tmp_path / "sums.jsonl", rows_of(30))
    assert len(load(path)) == 30
    for split in ("train", "validation"):
        with pytest.raises(TaskDataError, match=r"set data\.split_file=true to divide it by seed"):
            load(path, split)


def test_a_file_is_divided_for_a_job_that_trains(tmp_path):
    path = write(tmp_path / "sums.jsonl", rows_of(50))
    loader = SplitLoader(SOURCE, path=str(path))
    assert len(loader.rows("test")) == 50
    loader.settle(is_training=True)
    parts = {split: questions(loader.rows(split)) for split in SPLITS}
    assert {split: len(part) for split, part in parts.items()} == {
        "train": 40,
        "validation": 5,
        "test": 5,
    }
    assert len(set().union(*parts.values())) == 50
    asked = SplitLoader(SOURCE, path=str(path), split_file=True)
    assert {split: questions(asked.rows(split)) for split in SPLITS} == parts
    other = SplitLoader(SOURCE, path=str(path), split_file=True, seed=3)
    assert questions(other.rows("test")) != parts["test"]


def test_what_was_asked_for_is_not_settled_otherwise(tmp_path):
    path = write(tmp_path / "sums.jsonl", rows_of(50))
    loader = SplitLoader(SOURCE, path=str(path), split_file=False)
    loader.settle(is_training=True)
    with pytest.raises(TaskDataError, match=r"data\.split_file=true"):
        loader.rows("train")


@pytest.mark.parametrize("name", ["sums.jsonl", "train.jsonl"])
def test_equal_questions_are_never_divided(tmp_path, name):
    rows = [{"question": f"q{index % 12}", "answer": f"#### {index}"} for index in range(60)]
    path = write(tmp_path / name, rows)
    asked = {"split_file": True, "path": str(path)} if name == "sums.jsonl" else {}
    loader = SplitLoader(SOURCE, **({"path": str(tmp_path)} | asked))
    splits = SPLITS if asked else ("train", "validation")
    parts = [set(questions(loader.rows(split))) for split in splits]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 12
    assert sum(len(loader.rows(split)) for split in splits) == 60


@pytest.mark.parametrize("number", [1, 2])
def test_too_few_rows_cannot_be_divided(tmp_path, number):
    path = write(tmp_path / "sums.jsonl", rows_of(number) * 9)
    with pytest.raises(TaskDataError, match=f"{number} different rows are too few"):
        load(path, "test", split_file=True)


def test_rows_that_name_their_split_are_divided_by_it(tmp_path):
    def split_of(row):
        return {"1": "train", "2": "test"}.get(row["answer"][-1])

    source = DataSource(
        hub_id="someone/sums",
        config_name=None,
        columns=SOURCE.columns,
        splits={split: split for split in SPLITS},
        split_of=split_of,
    )
    path = write(tmp_path / "sums.jsonl", rows_of(30))
    assert list(load(path, "test", source)[ROW_COLUMN]) == [1, 11, 21]
    assert list(load(path, "train", source)[ROW_COLUMN]) == [0, 10, 20]
    with pytest.raises(TaskDataError, match="there are no validation rows"):
        load(path, "validation", source)


@pytest.mark.parametrize("split", ["train", "validation"])
@pytest.mark.parametrize("has_path", [True, False])
def test_a_data_set_of_tests_alone_refuses_training_with_a_hint(tmp_path, split, has_path):
    path = str(write(tmp_path / "exam.jsonl", rows_of(30)))
    loader = SplitLoader(ONLY_TEST, path=path if has_path else None, split_file=True)
    with pytest.raises(
        TaskDataError, match="someone/exam has only a test split; train on data=sums"
    ):
        loader.rows(split)


def test_a_data_set_of_tests_alone_is_never_divided(tmp_path):
    path = write(tmp_path / "exam.jsonl", rows_of(30))
    assert len(load(path, "test", ONLY_TEST, split_file=True)) == 30


def test_a_limit_draws_the_same_rows_for_the_same_seed(tmp_path):
    path = write(tmp_path / "test.jsonl", rows_of(100))
    eight = load(path, limit=8)
    assert len(eight) == 8
    assert list(eight[ROW_COLUMN]) == sorted(eight[ROW_COLUMN])
    assert list(eight[ROW_COLUMN]) != list(range(8))
    assert questions(load(path, limit=8)) == questions(eight)
    assert questions(load(path, limit=8, seed=1)) != questions(eight)
    assert set(questions(eight)) < set(questions(load(path, limit=20)))
    assert len(load(path, limit=1000)) == 100


def test_a_limit_changes_no_split(tmp_path):
    write(tmp_path / "train.jsonl", rows_of(100))
    whole, limited = (
        {split: set(questions(load(tmp_path, split, limit=limit))) for split in SPLITS[:2]}
        for limit in (None, 5)
    )
    for split in SPLITS[:2]:
        assert limited[split] < whole[split]
        assert len(limited[split]) == 5


def test_sizes_are_logged(tmp_path, caplog):
    path = write(tmp_path / "test.jsonl", rows_of(30))
    with caplog.at_level(logging.INFO):
        load(path, limit=4)
    assert f"data.path={path}: 4 of 30 test rows" in caplog.text


def test_provenance_names_files_digests_and_sizes(tmp_path):
    path = write(tmp_path / "test.jsonl", rows_of(30))
    loader = SplitLoader(SOURCE, path=str(tmp_path), limit=4, seed=2)
    loader.rows("test")
    found = loader.provenance()
    (digest,) = found["sha256"].values()
    assert found["sha256"] == {"test.jsonl": digest}
    path.write_bytes(path.read_bytes() + b"\n")
    assert SplitLoader(SOURCE, path=str(tmp_path)).provenance()["sha256"] != found["sha256"]
    assert found["num_rows"] == {"test": {"used": 4, "available": 30}}
    assert (found["path"], found["limit"], found["seed"]) == (str(tmp_path.resolve()), 4, 2)
    assert found["revision"] is found["commit"] is found["split_file"] is None
    assert found["hub_id"] == "someone/sums"


def test_no_copy_of_a_file_is_left_behind(tmp_path, monkeypatch):
    for name in ("test.parquet", "train.jsonl"):
        write(tmp_path / "data" / name, rows_of(30))
    scratch, work = tmp_path / "scratch", tmp_path / "work"
    for folder in (scratch, work):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    monkeypatch.chdir(work)
    rows = load(tmp_path / "data")
    load(tmp_path / "data", "train")
    assert list(scratch.iterdir()) == list(work.iterdir()) == []
    assert sorted(os.listdir(tmp_path / "data")) == ["test.parquet", "train.jsonl"]
    assert questions(rows) == questions(Dataset.from_list(rows_of(30)))  # they are in memory


def test_no_hub_and_no_cache_say_how_to_give_a_path():
    with pytest.raises(TaskDataError, match=r"give data\.path=") as caught:
        SplitLoader(SOURCE).rows("test")
    assert "someone/sums main at revision main cannot be loaded" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_paths_may_start_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "test.jsonl", rows_of(3))
    assert len(load(Path("~/test.jsonl"))) == 3
