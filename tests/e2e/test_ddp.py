"""train.py over two processes on a CPU: the run of one process, but for rounding."""

import os
import socket
from pathlib import Path

import pandas as pd
import pytest
import torch
from composed import SMALL_TRAINING, composed
from safetensors.torch import load_file
from script_processes import PATIENCE_S, PYTHON, run_script, start_script

from diversed import app
from diversed.records.store import read_manifest, read_records, read_trace

pytestmark = pytest.mark.e2e

SETTINGS = (*SMALL_TRAINING, "decoding.max_new_tokens=32", "evaluation.num_prompts=5")
TWO = ("trainer=ddp", "trainer.devices=2")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the folder of the run of one process."""
    folder = tmp_path_factory.mktemp("alone") / "run"
    app.train(composed("train", *SETTINGS), folder)
    return folder


def check_same_run(folder: Path, wanted: Path) -> None:
    """Compare heads, validation, records and trace; everything is written once."""
    manifest, other = read_manifest(folder), read_manifest(wanted)
    assert manifest["status"] == "finished"
    assert manifest["config"]["trainer"]["devices"] == 2
    head, other_head = (load_file(run / "head" / "model.safetensors") for run in (folder, wanted))
    assert head.keys() == other_head.keys()
    for name, value in other_head.items():
        torch.testing.assert_close(head[name], value, atol=1e-5, rtol=1e-4, msg=name)
    assert manifest["results"]["best_rollout"] == other["results"]["best_rollout"]
    for one, another in zip(
        manifest["results"]["validation"], other["results"]["validation"], strict=True
    ):
        assert one == pytest.approx(another, abs=1e-5)
    records, other_records = read_records(folder), read_records(wanted)
    pd.testing.assert_frame_equal(
        records.drop(columns="seconds"), other_records.drop(columns="seconds"), atol=1e-5
    )
    assert len(records) == 5
    assert len(read_trace(folder)) == len(read_trace(wanted))
    files = {path.name for path in folder.iterdir()}
    assert files - {".lock"} == {path.name for path in wanted.iterdir()} - {".lock"} | {
        *(".hydra", "train.log")
    }


def test_two_processes_train_and_evaluate_like_one(alone, tmp_path):
    done = run_script(tmp_path, "train.py", *SETTINGS, *TWO)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("outputs/train/*")
    check_same_run(folder, alone)
    log = (folder / "train.log").read_text()
    assert log.count("best head after rollout") == 1
    assert done.stdout.count("records in ") == 1


@pytest.mark.slow
def test_torchrun_starts_the_same_run(alone, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}")
    done = run_script(tmp_path, "train.py", *SETTINGS, *TWO, launcher=(*PYTHON, *torchrun))
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("outputs/train/*")  # the second process has left none behind
    check_same_run(folder, alone)


@pytest.mark.slow
def test_tasks_of_slurm_share_the_points_of_a_multirun(tmp_path):
    """The first holds each point's folder; the second used to wait for it."""
    variables = {
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NTASKS": "2",
        "SLURM_NTASKS_PER_NODE": "2",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_NODELIST": "127.0.0.1",
        "SLURM_JOB_ID": str(10_000 + os.getpid() % 9_000),
        "SLURM_JOB_NAME": "points",
    }
    points = ("-m", "verifier=static", "verifier.weight=0.5,1.5,0.7", "hydra.sweep.dir=points")
    small = ("evaluation.num_prompts=3", "decoding.max_new_tokens=16", "trainer.accelerator=cpu")
    tasks = [
        start_script(
            *(tmp_path, "eval.py", *points, *small, *TWO),
            **(variables | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank}),
        )
        for rank in ("0", "1")
    ]
    errors = [task.communicate(timeout=PATIENCE_S)[1] for task in tasks]
    assert errors[0].splitlines()[-1] == "verifier.weight=1.5: must lie in [0, 1]", errors
    assert [task.returncode for task in tasks] == [2, 0]
    for name, weight in (("0", 0.5), ("2", 0.7)):
        records = read_records(tmp_path / "points" / name)
        assert len(records) == 3
        assert set(records["target_weight"]) == {weight}
