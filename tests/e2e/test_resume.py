"""A run that is killed, at whatever moment, and repeated with resume=auto is the unbroken run."""

import csv
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from composed import ROOT, SMALL_TRAINING, composed
from script_processes import PYTHON, run_script
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb_file import offline_folders, read_offline_run

from diversed import app
from diversed.records.folders import read_state
from diversed.records.store import read_manifest, read_records, read_trace

pytestmark = pytest.mark.e2e

PATIENCE_S = 900
TRAINING = (
    *SMALL_TRAINING,
    "objective.num_rollouts=4",
    "objective.validate_every=2",
    "objective.save_every=1",
    "objective.advantage=running_mean",
    "evaluation.batch_size=2",
    "head=mlp",
)
SPEED = "tokens_per_second"
TIMES = {"train/rollout_seconds", "train/update_seconds", f"train/{SPEED}", f"test/{SPEED}"}

KILLED_CHECKPOINT = "half:checkpoint.ckpt:3"
KILLED_EVALUATION = "call:diversed.evaluation.runner:_rows:4"  # one validation has two batches
SINGLE_POINTS = (
    "call:diversed.training.module:sample_rollout:1",
    "call:diversed.training.module:sample_rollout:4",
    "call:diversed.training.module:objective_loss:5",  # three updates a rollout
    "call:diversed.training.callbacks:evaluate_task:2",
    "half:checkpoint.ckpt:1",
    "named:checkpoint.ckpt:2",
    "half:metrics.csv:2",
    "named:metrics.csv:3",
    "half:head:1",
    "call:diversed.app.training:replace_folder:1",
    "call:diversed.app.evaluation:evaluate_task:1",
    "half:trace.parquet:1",
    "half:records.jsonl:1",
    "named:records.jsonl:1",
    "half:manifest.json:1",
    "half:manifest.json:2",
    "named:manifest.json:1",
)


def run(folder: Path, *arguments: str, point: str | None = None) -> tuple[int, str]:
    """Run train.py in a folder, up to a point if there is one; return exit code and stderr."""
    killer = () if point is None else (str(ROOT / "tests" / "e2e" / "kill_points.py"), point)
    done = run_script(
        *(folder, "train.py", *TRAINING, *arguments),
        launcher=(*PYTHON, *killer),
        patience_s=PATIENCE_S,
    )
    return done.returncode, done.stderr


def run_folders(folder: Path) -> list[Path]:
    return sorted(folder.glob("outputs/train/*"))


def kill_and_resume(folder: Path, *points: str, arguments: tuple[str, ...] = ()) -> Path:
    """Kill a run at one point after the other, then let it end; return its folder."""
    for point in points:
        code, err = run(folder, *arguments, "resume=auto", point=point)
        assert code == -signal.SIGKILL, err
    code, err = run(folder, *arguments, "resume=auto")
    assert code == 0, err
    runs = [path for path in run_folders(folder) if (path / "manifest.json").is_file()]
    (made,) = runs
    return made


def curves(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: text for name, text in row.items() if name not in TIMES} for row in rows]


def state_of(folder: Path) -> dict[str, Any]:
    return torch.load(folder / "checkpoint.ckpt", map_location="cpu", weights_only=True)


def lasting(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return what is the same whenever and by whatever command a run was made."""
    passing = ("command", "written_at", "git")
    kept = {name: value for name, value in manifest.items() if name not in passing}
    results = {name: value for name, value in manifest["results"].items() if name != SPEED}
    return kept | {"config": {**manifest["config"], "resume": None}, "results": results}


def check_same(folder: Path, whole: Path) -> None:
    """Check that two runs came to the same head, records, curves and checkpoint, bit for bit."""
    for name in ("model.safetensors", "config.json"):
        assert (folder / "head" / name).read_bytes() == (whole / "head" / name).read_bytes()
    rows, wanted = (read_records(run).drop(columns="seconds") for run in (folder, whole))
    assert rows.equals(wanted)
    assert read_trace(folder).equals(read_trace(whole))
    assert curves(folder) == curves(whole)
    assert [row["step"] for row in curves(folder)] == ["1", "2", "3", "4"]
    assert lasting(read_manifest(folder)) == lasting(read_manifest(whole))
    states = [state_of(run) for run in (folder, whole)]
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "diversed"):
        assert same(states[0][part], states[1][part]), part
    hidden = {path.name for path in folder.rglob(".*")}
    assert hidden == {".hydra", ".lock"}, "something was left half-done"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=True)
        return len(one) == len(other) and all(same(*pair) for pair in pairs)
    return bool(one == other)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that nothing has broken, made without the script."""
    folder = tmp_path_factory.mktemp("whole")
    app.train(composed("train", *TRAINING), folder)
    return folder


def test_a_run_killed_while_it_saves_and_again_while_it_evaluates_is_the_unbroken_run(
    whole: Path, tmp_path: Path
) -> None:
    made = kill_and_resume(tmp_path, KILLED_CHECKPOINT, KILLED_EVALUATION)
    check_same(made, whole)
    assert read_state(made).status == "finished"
    assert state_of(made)["diversed"]["rollout_step"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("point", SINGLE_POINTS)
def test_a_run_killed_anywhere_is_the_unbroken_run(whole: Path, tmp_path: Path, point: str) -> None:
    check_same(kill_and_resume(tmp_path, point), whole)


@pytest.mark.slow
def test_a_run_killed_again_and_again_is_the_unbroken_run(whole: Path, tmp_path: Path) -> None:
    points = (
        "call:diversed.training.module:sample_rollout:3",
        "half:checkpoint.ckpt:1",
        "half:head:2",
        "named:records.jsonl:1",
        "away:head:1",
        "half:manifest.json:2",
    )
    check_same(kill_and_resume(tmp_path, *points), whole)


KILLED_ROLLOUT = "call:diversed.training.module:sample_rollout:4"


def numbers_of(folder: Path, name: str) -> dict[int, float]:
    return {int(row["step"]): float(row[name]) for row in curves(folder) if row[name]}


@pytest.mark.slow
def test_the_same_command_keeps_one_run_of_wandb(whole: Path, tmp_path: Path) -> None:
    made = kill_and_resume(tmp_path, KILLED_ROLLOUT, arguments=("logger=wandb",))
    first, second = offline_folders(made)
    killed, run_of_all = read_offline_run(first, patience_s=0), read_offline_run(second)
    assert (killed.exit_code, run_of_all.exit_code) == (None, 0)
    assert run_of_all.id in first.name
    for name in ("train/reward", "train/mean_w", "train/grad_norm", "val/objective"):
        assert run_of_all.curve(name) == numbers_of(whole, name)
    results = read_manifest(whole)["results"]
    assert run_of_all.summary["test/quality"] == results["quality"]


@pytest.mark.slow
def test_the_same_command_keeps_one_curve_of_tensorboard(whole: Path, tmp_path: Path) -> None:
    made = kill_and_resume(tmp_path, KILLED_ROLLOUT, arguments=("logger=tensorboard",))
    accumulator = EventAccumulator(str(made / "tensorboard"))
    accumulator.Reload()
    for name in ("train/reward", "train/mean_w", "val/objective"):
        found = [(event.step, event.value) for event in accumulator.Scalars(name)]
        wanted = [(step, pytest.approx(value)) for step, value in numbers_of(whole, name).items()]
        assert found == wanted
