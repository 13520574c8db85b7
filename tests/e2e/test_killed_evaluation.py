"""eval.py, killed at whatever moment and repeated with resume=auto, leaves the unbroken records."""

import signal
import subprocess
from pathlib import Path

import pytest
from composed import ROOT, SMALL_EVALUATION, composed
from script_processes import PYTHON, run_script

from diversed import app
from diversed.records.store import read_manifest, read_records, read_trace

pytestmark = pytest.mark.e2e

SMALL = (*SMALL_EVALUATION, "evaluation.batch_size=3", "trainer.accelerator=cpu", "logger=csv")
TWO = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2", "evaluation.batch_size=1")
KILLED_THIRD_BATCH = "call:diversed.evaluation.runner:_rows:3"
FIRST_PART = "0000000-0000"


def run(
    folder: Path, *arguments: str, point: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run eval.py in a folder, up to a point if there is one."""
    killer = () if point is None else (str(ROOT / "tests" / "e2e" / "kill_points.py"), point)
    return run_script(folder, "eval.py", *SMALL, *arguments, launcher=(*PYTHON, *killer))


def kill(folder: Path, *arguments: str, point: str) -> None:
    done = run(folder, *arguments, point=point)
    assert done.returncode == -signal.SIGKILL, done.stderr


def end(folder: Path, *arguments: str, point: str | None = None) -> str:
    done = run(folder, *arguments, point=point)
    assert done.returncode == 0, done.stderr
    return done.stdout


def the_run(folder: Path) -> Path:
    (made,) = folder.glob("outputs/eval/*")
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that nothing has broken, made without the script."""
    folder = tmp_path_factory.mktemp("whole")
    app.evaluate(composed("eval", *SMALL), folder)
    return folder


def check_same(folder: Path, whole: Path) -> None:
    rows, wanted = (read_records(run).drop(columns="seconds") for run in (folder, whole))
    assert rows.equals(wanted)
    assert read_trace(folder).equals(read_trace(whole))
    manifest, other = read_manifest(folder), read_manifest(whole)
    assert manifest["status"] == "finished"
    results = [{**one["results"], "tokens_per_second": 0} for one in (manifest, other)]
    assert results[0] == results[1]
    left = {path.name for path in folder.iterdir()} - {path.name for path in whole.iterdir()}
    assert left == {".hydra", "eval.log"}, "something was left half-done"


def test_a_killed_evaluation_goes_on_after_its_finished_batches(
    whole: Path, tmp_path: Path
) -> None:
    kill(tmp_path, point=KILLED_THIRD_BATCH)
    before = {path.name for path in (the_run(tmp_path) / "parts").glob("*.json")}
    assert before == {f"{FIRST_PART}.json", "0000003-0000.json"}
    kill(tmp_path, "resume=auto", point="call:diversed.app.evaluation:write_records:1")
    end(tmp_path, "resume=auto", point=KILLED_THIRD_BATCH)  # there is none to decode
    check_same(the_run(tmp_path), whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "point",
    [
        f"half:{FIRST_PART}.parquet:1",
        f"named:{FIRST_PART}.parquet:1",
        f"half:{FIRST_PART}.json:1",
        f"named:{FIRST_PART}.json:1",
        "call:diversed.app.evaluation:evaluate_task:1",
        "half:trace.parquet:1",
        "half:records.jsonl:1",
        "named:records.jsonl:1",
        "half:manifest.json:2",
    ],
)
def test_an_evaluation_killed_anywhere_leaves_the_records_of_the_unbroken_one(
    whole: Path, tmp_path: Path, point: str
) -> None:
    kill(tmp_path, point=point)
    end(tmp_path, "resume=auto")
    check_same(the_run(tmp_path), whole)


@pytest.mark.slow
def test_a_point_of_a_multirun_goes_on_in_its_folder(whole: Path, tmp_path: Path) -> None:
    points = ("seed=0,1", "hydra.sweep.dir=points", "--multirun")
    kill(tmp_path, *points, point=KILLED_THIRD_BATCH)
    assert "6 rows were finished before" in end(tmp_path, *points)
    check_same(tmp_path / "points" / "0", whole)
    assert len(read_records(tmp_path / "points" / "1")) == 8


@pytest.mark.slow
def test_two_processes_keep_their_batches_and_go_on_with_them(whole: Path, tmp_path: Path) -> None:
    kill(tmp_path, *TWO, point=KILLED_THIRD_BATCH)
    folder = the_run(tmp_path)
    kept = len(list((folder / "parts").glob("*.json")))
    assert kept >= 2  # of rank 0 alone
    assert f"{kept} rows were finished before" in end(tmp_path, *TWO, "resume=auto")
    assert not (folder / "parts").exists()
    records, wanted = read_records(folder), read_records(whole)
    for column in ("prompt_id", "text", "num_accepted"):
        assert records[column].tolist() == wanted[column].tolist()
    assert len(read_trace(folder)) == len(read_trace(whole))
