"""Sweeps as users run them: by this package, by W&B's own agent, killed and begun again."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from composed import ROOT, SMALL_DATA, SMALL_TRAINING
from script_processes import PATIENCE_S, wait_for
from wandb_stand_in import ENTITY, PROJECT, SWEEP, StandIn

from diversed.evaluation.summary import summarise
from diversed.records.store import read_manifest, read_records, read_runs

pytestmark = pytest.mark.e2e

SMALL = (*SMALL_DATA, "evaluation.num_prompts=4", "decoding.max_new_tokens=32")
FRONT = str(ROOT / "sweeps" / "static_front.yaml")
LAMBDAS = str(ROOT / "sweeps" / "diversed_lambda.yaml")
SHORT = tuple(word for word in SMALL_TRAINING if not word.startswith("decoding.max_new_tokens"))
TINY_TRAINING = (*SHORT, "decoding.max_new_tokens=12")
HIDDEN = ("WANDB_MODE", "WANDB_API_KEY", "HYDRA_FULL_ERROR")


def start(folder: Path, *command: str, **variables: str) -> subprocess.Popen[str]:
    """Start a command in a process group of its own."""
    environment = {key: value for key, value in os.environ.items() if key not in HIDDEN}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    )


def run(folder: Path, *command: str, **variables: str) -> tuple[int, str]:
    """Return exit code and what was printed."""
    process = start(folder, *command, **variables)
    try:
        out, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate()
        raise
    return process.returncode, out


def sweep(folder: Path, *arguments: str) -> tuple[int, str]:
    return run(folder, sys.executable, "-m", "diversed.sweep", *arguments)


def rows(out: str) -> dict[str, list[str]]:
    """Return the table that closes a sweep: point -> its other cells."""
    lines = [line.split("\t") for line in out.splitlines() if "\t" in line]
    start = next(i for i, line in enumerate(lines) if line[0] == "point")
    return {line[0]: line[1:] for line in lines[start + 1 :]}


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    many = ("objective.num_rollouts=6", "objective.save_every=1", "objective.validate_every=6")
    arguments = (LAMBDAS, "lambda=0.5,-1,1.5", "seed=0", *TINY_TRAINING, *many)
    folder = tmp_path / "outputs" / "sweeps" / "diversed_lambda"
    first, bad, last = (
        folder / f"data-arithmetic_lambda-{weight}_model-tiny_seed-0" for weight in (0.5, -1, 1.5)
    )
    process = start(tmp_path, sys.executable, "-m", "diversed.sweep", *arguments)
    wait_for(process, (last / "checkpoint.ckpt").is_file)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.killpg(process.pid, signal.SIGKILL)
    for child in children:  # the multirun has a group of its own
        os.kill(int(child), signal.SIGKILL)
    process.communicate()
    assert read_manifest(first)["status"] == "finished"
    assert (bad / "error.txt").read_text() == "lambda=-1: must be a finite number >= 0\n"
    assert read_manifest(last)["status"] == "running"
    before = (first / "manifest.json").stat().st_mtime_ns

    code, out = sweep(tmp_path, *arguments, "--status")
    assert code == 1
    assert {name: cells[0] for name, cells in rows(out).items()} == {
        first.name: "finished",
        bad.name: "failed",
        last.name: "killed",
    }
    code, out = sweep(tmp_path, *arguments)
    assert code == 1, out
    assert "2 of 3 points to run" in out
    assert {name: cells[0] for name, cells in rows(out).items()} == {
        first.name: "finished",
        bad.name: "failed",
        last.name: "finished",
    }
    assert "lambda=-1: must be a finite number >= 0" in rows(out)[bad.name][-1]
    assert (first / "manifest.json").stat().st_mtime_ns == before
    assert "lambda=-1,1.5 " in out  # what is finished is not even started
    assert len(read_records(last)) == 4


@pytest.mark.slow
def test_the_joblib_launcher_runs_a_sweep_and_its_records_make_a_front(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="diversed[joblib]")
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    arguments = (FRONT, "verifier.weight=0.0,2.0,1.0", *SMALL, "--output", "front")
    code, out = sweep(tmp_path, *arguments, *launcher)
    assert code == 1, out
    assert [cells[0] for cells in rows(out).values()] == ["finished", "failed", "finished"]
    assert "verifier.weight=2.0: must lie in [0, 1]" in out
    records = read_runs(tmp_path / "front")
    assert set(records["target_weight"]) == {0.0, 1.0}
    assert len(records) == 8
    table = summarise(records)
    assert table["expected_acceptance"].tolist() == [1.0, pytest.approx(0.7, abs=0.25)]


@pytest.mark.slow
def test_an_interrupted_sweep_says_so_and_prints_its_table(tmp_path: Path) -> None:
    many = ("objective.num_rollouts=200", "objective.save_every=1", "objective.validate_every=200")
    arguments = (LAMBDAS, "lambda=0.5", "seed=0,1", *TINY_TRAINING, *many, "--output", "sweep")
    process = start(tmp_path, sys.executable, "-m", "diversed.sweep", *arguments)
    wait_for(process, lambda: any(tmp_path.glob("sweep/*/checkpoint.ckpt")))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, out
    assert "stopping after this rollout" in out
    assert [cells[0] for cells in rows(out).values()] == ["stopped", "not started"]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a folder that has the scripts and the configs, but no results."""
    for name in ("train.py", "eval.py", "conf"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_the_agent_of_wandb_runs_a_sweep(checkout: Path) -> None:
    """`wandb sweep` and `wandb agent`, as released, against a stand-in for the server."""
    content = yaml.safe_load(Path(LAMBDAS).read_text())
    content["parameters"]["lambda"] = {"values": [0.5, 1.5]}
    content["parameters"]["seed"] = {"value": 3}
    for override in TINY_TRAINING:
        key, value = override.split("=")
        content["parameters"][key] = {"value": yaml.safe_load(value)}
    (checkout / "sweep.yaml").write_text(yaml.safe_dump(content))
    with StandIn() as server:
        variables = server.environment | {"HOME": str(checkout)}
        place = ("--entity", ENTITY, "--project", PROJECT)
        code, out = run(checkout, "wandb", "sweep", *place, "sweep.yaml", **variables)
        assert code == 0, out
        assert f"wandb agent {ENTITY}/{PROJECT}/{SWEEP}" in out
        assert server.sweep == content
        agent = ("wandb", "agent", f"{ENTITY}/{PROJECT}/{SWEEP}")
        code, out = run(checkout, *agent, **variables, WANDB_MODE="offline")
    assert code == 0, out
    assert server.unknown == []
    assert [point["lambda"] for point in server.started] == [0.5, 1.5]
    runs = sorted(checkout.glob("outputs/train/*"))
    assert len(runs) == 2, out
    for folder, point in zip(runs, server.started, strict=True):
        manifest = read_manifest(folder)
        assert manifest["status"] == "finished"
        assert manifest["config"]["lambda"] == point["lambda"]
        assert manifest["config"]["seed"] == 3
        assert "logger=wandb" in manifest["command"]
        assert len(read_records(folder)) == 4
        (offline,) = folder.glob("wandb/offline-run-*")
        assert any(offline.glob("*.wandb"))
    assert [run.name.rsplit("-", 1)[-1] for run in checkout.glob("outputs/train/*/wandb/off*")]


def test_runs_of_wandb_and_of_folders_come_in_one_table(tmp_path: Path) -> None:
    node = {
        "name": "abc",
        "displayName": "first",
        "state": "crashed",
        "commit": "f00",
        "config": json.dumps(
            {
                "lambda": {"value": 1.5},
                "run": {"value": {"run_name": "tiny", "seed": 3, "method": "diversed"}},
            }
        ),
        "summaryMetrics": json.dumps({"test/quality": 0.5, "train/loss": 2.0, "_step": 7}),
    }
    bare = {"name": "xyz", "displayName": "second", "state": "running", "config": "{}"}
    broken = tmp_path / "runs" / "broken"
    broken.mkdir(parents=True)
    (broken / "manifest.json").write_text("{")
    command = (sys.executable, "-m", "diversed.collect", "runs", "--out", "all.parquet")
    with StandIn([node, bare]) as server:
        variables = server.environment | {"HOME": str(tmp_path)}
        place = ("--wandb", f"{ENTITY}/{PROJECT}", "--config", "lambda")
        code, out = run(tmp_path, *command, *place, **variables)
        assert code == 0, out
        assert server.unknown == []
        assert "3 runs in all.parquet" in out
        assert "runs/broken: " in out
        wrong = ("--wandb", f"{ENTITY}/other")
        code, out = run(tmp_path, *command, *wrong, **variables)
        assert (code, out.count("\n")) == (2, 1)
        assert out.startswith(f"--wandb {ENTITY}/other: ")
    table = pd.read_parquet(tmp_path / "all.parquet")
    assert table["status"].tolist() == ["broken", "crashed", "running"]
    assert table["source"].tolist() == ["folder", "wandb", "wandb"]
    crashed = table.iloc[1]
    assert (crashed["run_name"], crashed["method"], crashed["seed"]) == ("tiny", "diversed", 3)
    assert (crashed["quality"], crashed["lambda"], crashed["git_sha"]) == (0.5, 1.5, "f00")
    assert (
        crashed["folder"] == f"{server.environment['WANDB_BASE_URL']}/{ENTITY}/{PROJECT}/runs/abc"
    )
    assert "train/loss" not in table.columns
    assert table.iloc[2]["run_name"] == "second"
