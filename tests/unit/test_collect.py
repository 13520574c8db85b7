"""One table of runs: every run has a row, whatever became of it."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from composed import ROOT
from rich.console import Console

from diversed import collect
from diversed.collect import find_runs, run_row, runs_table
from diversed.config import InputError
from diversed.records.folders import claimed, mark_failed
from diversed.records.schema import RUN_COLUMNS
from diversed.records.store import write_json, write_manifest
from diversed.tracking.runs import TrackedRun, TrackerError

RESULTS = {"quality": 0.5, "num_errors": 2, "best_rollout": 7, "validation": [{"rollout": 1}]}


def write_run(folder: Path, status: str = "finished", **changes) -> Path:
    run = dict.fromkeys(RUN_COLUMNS) | {"run_name": folder.name, "seed": 3}
    manifest = {"run": run, "status": status, "results": RESULTS, "git": {"sha": "f00"}}
    config = {"verifier": {"lenience": 0.3, "list": [1]}, "seed": 3}
    write_manifest(folder, manifest | {"config": config, "written_at": "now"} | changes)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Return a folder with one run of every kind below it."""
    write_run(tmp_path / "a" / "finished")
    write_run(tmp_path / "b" / "deep" / "stopped", "stopped")
    mark_failed(write_run(tmp_path / "failed", "running", results={}), "out of memory")
    (tmp_path / "refused" / ".hydra").mkdir(parents=True)
    mark_failed(tmp_path / "refused", "lambda=-1: no")
    with claimed(write_run(tmp_path / "killed", "running", results={})):
        pass
    (tmp_path / "begun" / ".hydra").mkdir(parents=True)
    (tmp_path / "begun" / ".hydra" / "overrides.yaml").write_text("[]")
    write_json(tmp_path / "newer" / "manifest.json", {"schema_version": 10**6})
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "manifest.json").write_text('{"run":')
    (tmp_path / "no_run").mkdir()
    (tmp_path / "no_run" / "notes.txt").write_text("mine")
    return tmp_path


def table_of(*roots: Path) -> pd.DataFrame:
    return runs_table([run_row(folder) for folder in find_runs(roots)])


def test_every_run_has_a_row_with_how_it_ended(folders: Path) -> None:
    table = table_of(folders)
    assert table["status"].to_dict() == dict(
        enumerate(
            ["finished", "stopped", "not started", "failed", "killed", "broken", "failed", "broken"]
        )
    )
    names = [Path(folder).name for folder in table["folder"]]
    assert names == [
        *("finished", "stopped", "begun", "failed", "killed", "newer", "refused", "torn"),
    ]
    errors = dict(zip(names, table["error"], strict=True))
    assert errors["failed"] == "out of memory"
    assert errors["refused"] == "lambda=-1: no"
    assert "schema version 1000000" in errors["newer"]
    assert "is no JSON" in errors["torn"]
    assert pd.isna(errors["finished"])


def test_a_run_at_work_is_running(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "running", results={})
    hold = "import sys\nfrom pathlib import Path\nfrom diversed.records.folders import claimed\n"
    hold += f"with claimed(Path({str(folder)!r})):\n    print(flush=True)\n    sys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert run_row(folder)["status"] == "running"
        process.kill()
    assert run_row(folder)["status"] == "killed"


def test_columns_are_what_the_run_is_then_its_numbers_then_where_it_lies(folders: Path) -> None:
    table = table_of(folders / "a", folders / "killed")
    assert list(table.columns) == [
        *("status", "source", *RUN_COLUMNS, "quality", "num_errors", "best_rollout"),
        *("error", "folder", "written_at", "git_sha"),
    ]
    finished, killed = table.to_dict("records")
    assert (finished["run_name"], finished["seed"], finished["git_sha"]) == ("finished", 3, "f00")
    assert (finished["quality"], finished["num_errors"]) == (0.5, 2)
    assert pd.isna(killed["quality"])
    assert table["num_errors"].dtype == "Int64"  # a gap makes no float of it
    assert table["quality"].dtype == "float64"


def test_numbers_of_an_unfinished_run_are_not_shown(tmp_path: Path) -> None:
    row = run_row(write_run(tmp_path / "old", "killed"))
    assert "quality" not in row


def test_values_of_the_config_can_be_columns(tmp_path: Path) -> None:
    keys = ("verifier.lenience", "verifier.list", "verifier.no", "seed.no")
    row = run_row(write_run(tmp_path / "run"), keys)
    assert [row[key] for key in keys] == [0.3, "[1]", None, None]


def test_a_run_is_found_once(folders: Path) -> None:
    (folders / "link").symlink_to(folders / "a")
    found = find_runs([folders / "a", folders / "a" / "finished", folders / "link"])
    assert found == [folders / "a" / "finished"]


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: there is no such folder"):
        find_runs([tmp_path / "nowhere"])


def test_an_empty_table_has_its_columns() -> None:
    table = runs_table([])
    assert table.empty
    assert {"status", "run_name", "error", "folder"} <= set(table.columns)


def test_runs_of_a_tracker_have_the_same_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    tracked = TrackedRun(
        name="display",
        url="http://there",
        state="crashed",
        config={"run": {"run_name": "own", "seed": 1}, "verifier": {"lenience": 0.3}},
        summary={"test/quality": 0.25, "test/table": {"size": 3}, "train/loss": 1.0},
        created_at="then",
        git_sha=None,
    )
    monkeypatch.setattr("diversed.tracking.runs.read_runs", lambda path: [tracked])
    (row,) = collect.wandb_rows("someone/trial", ["verifier.lenience"])
    assert row == {
        **{"status": "crashed", "source": "wandb", "run_name": "own", "seed": 1},
        **{"verifier.lenience": 0.3, "quality": 0.25},
        **{"folder": "http://there", "written_at": "then", "git_sha": None},
    }


def test_a_tracker_that_cannot_be_read_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> list[TrackedRun]:
        raise TrackerError("no such project")

    monkeypatch.setattr("diversed.tracking.runs.read_runs", refuse)
    with pytest.raises(InputError, match=r"^--wandb a/b: no such project$"):
        collect.wandb_rows("a/b")


@pytest.mark.parametrize("path", ["", "a", "a/b/c", "/b", "a/"])
def test_a_project_needs_an_entity(path: str) -> None:
    with pytest.raises(InputError, match="give entity/project"):
        collect.wandb_rows(path)


def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of the command."""
    monkeypatch.setattr(sys, "argv", ["collect", *arguments])
    code = 0
    try:
        collect.main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".jsonl"])
def test_a_table_is_written_and_broken_manifests_are_named(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    folders: Path,
    tmp_path: Path,
    suffix: str,
) -> None:
    out = tmp_path / "tables" / f"runs{suffix}"
    code, text, err = run(monkeypatch, capsys, str(folders), "--out", str(out))
    assert code == 0
    assert text == f"8 runs in {out}\n"
    assert [line.split(": ")[0] for line in err.splitlines()] == [
        str(folders / "newer"),
        str(folders / "torn"),
    ]
    read = {".csv": pd.read_csv, ".parquet": pd.read_parquet}.get(
        suffix, lambda path: pd.read_json(path, lines=True)
    )
    table = read(out)
    assert table["status"].value_counts()["broken"] == 2
    assert set(table["quality"].dropna()) == {0.5}
    assert os.listdir(out.parent) == [out.name]


def test_without_a_file_the_whole_table_goes_out_as_csv(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folders: Path
) -> None:
    code, text, _ = run(monkeypatch, capsys, str(folders / "a"), "--config", "verifier.lenience")
    assert code == 0
    header, line = text.splitlines()
    row = dict(zip(header.split(","), line.split(","), strict=True))
    assert (row["run_name"], row["verifier.lenience"]) == ("finished", "0.3")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (
            [".", "--out", "x.xls"],
            "x.xls: the name must end in one of .csv, .parquet, .jsonl",
        ),
        ([".", "--wandb", "x"], "--wandb x: give entity/project"),
        ([], "name folders, or --wandb entity/project"),
    ],
)
def test_what_cannot_be_collected_is_said(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text, err = run(monkeypatch, capsys, *arguments)
    assert (code, text) == (2, "")
    assert err.splitlines()[-1].endswith(message)


def test_a_terminal_gets_a_ruled_table_and_a_pipe_a_plain_one() -> None:
    table = pd.DataFrame({"a": [0.123456, None], "b": ["x\ny", "[red]"], "c": [None, None]})
    plain, ruled = io.StringIO(), io.StringIO()
    collect.print_table(table, Console(file=plain))
    assert plain.getvalue() == "a\tb\n0.1235\tx y\n–\t[red]\n"
    collect.print_table(table, Console(file=ruled, force_terminal=True, width=60))
    assert "┃" in ruled.getvalue()
    assert "[red]" in ruled.getvalue()
