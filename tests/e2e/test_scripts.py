"""The scripts as users run them: exit codes, what stands on stderr, what is left on disk."""

import shlex
import signal
from pathlib import Path

import pytest
from composed import SMALL_DATA, SMALL_TRAINING
from script_processes import PATIENCE_S, run_script, start_script, wait_for

from diversed.records.store import read_manifest, read_records

pytestmark = pytest.mark.e2e

SMALL = (*SMALL_DATA, "evaluation.num_prompts=4", "decoding.max_new_tokens=32")


def folders(folder: Path) -> list[str]:
    """Return the run folders below the scripts' output folders."""
    return sorted(str(path) for path in folder.glob("*/*/*"))


def test_a_training_run_ends_well(tmp_path: Path) -> None:
    done = run_script(tmp_path, "train.py", *SMALL_TRAINING, "lambda=0.5", "seed=3")
    assert done.returncode == 0, done.stderr
    (name,) = folders(tmp_path)
    folder = Path(name)
    assert folder.parent == tmp_path / "outputs" / "train"
    assert f"records in {folder}" in done.stdout
    manifest = read_manifest(folder)
    assert manifest["status"] == "finished"
    assert manifest["run"]["run_name"] == "tiny-arithmetic-diversed-lambda0.5-seed3"
    assert len(read_records(folder)) == 4
    files = {path.name for path in folder.iterdir()}
    assert files == {
        *(".hydra", ".lock", "train.log", "manifest.json", "records.jsonl", "trace.parquet"),
        *("checkpoint.ckpt", "head", "metrics"),
    }


def test_ctrl_c_says_how_to_go_on_and_that_works(tmp_path: Path) -> None:
    many = ("objective.num_rollouts=20", "objective.save_every=1", "objective.validate_every=20")
    process = start_script(tmp_path, "train.py", *SMALL_TRAINING, *many)
    wait_for(process, lambda: any(tmp_path.glob("outputs/train/*/checkpoint.ckpt")))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "stopping after this rollout" in out
    advice = err.splitlines()[-1]
    assert advice.startswith("stopped after ")
    (folder,) = folders(tmp_path)
    assert f"resume={folder}" in advice
    interpreter, script, *arguments = shlex.split(advice.split("go on with: ")[1])
    assert interpreter == "python"
    resumed = run_script(tmp_path, script, *arguments)
    assert resumed.returncode == 0, resumed.stderr
    assert folders(tmp_path) == [folder]
    assert read_manifest(Path(folder))["status"] == "finished"
    assert len(read_records(Path(folder))) == 4


def test_bad_input_in_the_job_is_one_line_and_no_folder(tmp_path: Path) -> None:
    done = run_script(tmp_path, "train.py", "lambda=-1")
    assert done.stderr == "lambda=-1: must be a finite number >= 0\n"
    assert done.returncode == 2
    assert folders(tmp_path) == []


def test_an_unknown_key_is_one_line_and_no_folder(tmp_path: Path) -> None:
    done = run_script(tmp_path, "eval.py", "decoding.temprature=1")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "decoding.temprature" in line
    assert line.endswith("did you mean decoding.temperature?")
    assert folders(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    done = run_script(tmp_path, "eval.py", "hydra.run.dir=file/run")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "file/run" in line
    assert "hydra.run.dir" in line
    assert (tmp_path / "file").read_text() == "mine"


def test_a_trace_is_shown_where_it_is_asked_for(tmp_path: Path) -> None:
    done = run_script(tmp_path, "eval.py", "decoding.temprature=1", HYDRA_FULL_ERROR="1")
    assert done.returncode != 0
    assert done.stderr.startswith("Traceback")
    assert "decoding.temprature" in done.stderr


def test_a_bad_point_of_a_multirun_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    points = "verifier.weight=0.5,1.5,1.0"
    done = run_script(tmp_path, "eval.py", "-m", "verifier=static", points, *SMALL)
    assert done.returncode == 2
    assert done.stderr == "verifier.weight=1.5: must lie in [0, 1]\n"
    (sweep,) = tmp_path.glob("multirun/eval/*")
    message = (sweep / "1" / "error.txt").read_text()
    assert message == "verifier.weight=1.5: must lie in [0, 1]\n"
    assert not (sweep / "1" / "records.jsonl").exists()
    for number, weight in (("0", 0.5), ("2", 1.0)):
        records = read_records(sweep / number)
        assert len(records) == 4
        assert set(records["target_weight"]) == {weight}
        assert not (sweep / number / "error.txt").exists()
