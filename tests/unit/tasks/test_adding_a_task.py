"""What docs/adding_a_task.md shows is run as it stands there."""

import importlib
import re
import shlex
import sys
from pathlib import Path

import pytest
from composed import ROOT
from script_processes import run_script

from diversed.records.store import read_records
from diversed.tasks.base import SPLITS

DOC = (ROOT / "docs" / "adding_a_task.md").read_text()
BLOCKS = re.findall(r"^([^\n]*)\n\n```(\w*)\n(.*?)^```$", DOC, flags=re.MULTILINE | re.DOTALL)
FILES = {
    before.rpartition("`my_tasks/")[2].removesuffix("`:"): text
    for before, language, text in BLOCKS
    if language
}
COMMANDS = [line for _, language, text in BLOCKS if not language for line in text.splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files of the page, and a data file as it describes."""
    folder = tmp_path_factory.mktemp("doc")
    for name, text in FILES.items():
        path = folder / "my_tasks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    line = re.search(r"lines such as `(\{.*?\})`", DOC)[1]
    (folder / "my_tasks" / "capitals.jsonl").write_text(line + "\n")
    return folder


@pytest.fixture
def task_of(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder / "my_tasks")

    def load(module, name, **options):
        monkeypatch.delitem(sys.modules, module, raising=False)
        return getattr(importlib.import_module(module), name)(**options)

    return load


def test_the_page_has_the_files_that_it_names():
    assert list(FILES) == [
        "chain_sums.py",
        "data/chain_sums.yaml",
        "capitals.py",
        "data/capitals.yaml",
    ]
    assert len(COMMANDS) == 4


def test_paths_on_the_page_exist():
    paths = re.findall(r"`((?:diversed|conf|docs)/[\w/]+\.\w+)`", DOC)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    modules = re.findall(r"`(diversed(?:\.\w+)+)`", DOC)
    assert [name for name in modules if importlib.util.find_spec(name) is None] == []


def test_the_sums_keep_what_the_page_promises(task_of):
    task = task_of("chain_sums", "ChainSumTask")
    rows = {split: list(task.examples(split)) for split in SPLITS}
    questions = [row["question"] for split in SPLITS for row in rows[split]]
    ids = [row["id"] for split in SPLITS for row in rows[split]]
    assert len(set(questions)) == len(questions) == len(set(ids)) == 700
    for row in rows["test"]:
        assert task.score(f" {row['answer']}", row) == 1.0
        assert task.score(str(int(row["answer"]) + 1), row) == 0.0
        assert task.score("", row) == task.score("\ud800?", row) == 0.0


def test_seeds_next_to_each_other_share_rows_as_the_page_says():
    from reasoning_gym import create_dataset

    one, other = (
        [row["question"] for row in create_dataset("chain_sum", seed=seed, size=50)]
        for seed in (0, 1)
    )
    assert one[1:] == other[:-1]


def test_the_capitals_keep_what_the_page_promises(task_of, folder):
    path = folder / "my_tasks" / "capitals.jsonl"
    task = task_of("capitals", "CapitalTask", path=str(path), prompt="plain", num_shots=1)
    (row,) = task.examples("test")
    assert row["id"] == "capitals/test/0"
    assert task.prompt(row).endswith("Country: Kenya\nCapital: Nairobi\n\nCountry: Peru\nCapital:")
    assert [task.score(text, row) for text in (" lima.", "Cusco", "", "\ud800")] == [1, 0, 0, 0]


@pytest.mark.e2e
def test_the_commands_for_evaluation_run_as_they_stand(folder):
    commands = [shlex.split(line) for line in COMMANDS]
    assert commands[0] == ["export", "PYTHONPATH=my_tasks"]
    for command in commands[1:]:
        program, script, *arguments = command
        assert program == "python"
        if script == "train.py":  # minutes; its data is that of the evaluation
            arguments += ["--cfg", "job"]
        done = run_script(folder, script, *arguments, PYTHONPATH="my_tasks")
        assert done.returncode == 0, done.stderr
    runs = sorted((folder / "outputs" / "eval").iterdir())
    records = [read_records(Path(run)) for run in runs]
    assert [len(rows) for rows in records] == [8, 1]
    assert [rows["error"].isna().all() for rows in records] == [True, True]
