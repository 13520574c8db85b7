"""What a run claims, what it goes on with, and what its manifest and trackers say of its end."""

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from composed import SMALL_TRAINING, composed
from hydra.types import RunMode
from lightning.pytorch.loggers.logger import Logger
from omegaconf import OmegaConf

from diversed import app, config
from diversed.app import lifecycle
from diversed.app.lifecycle import working_folder
from diversed.config import InputError, Interrupted, RunError, run_job
from diversed.records import store
from diversed.records.folders import claimed, read_state
from diversed.records.store import read_manifest, read_records, write_manifest
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.tracking.loggers import RunLoggers
from diversed.training import module
from diversed.training.callbacks import read_checkpoint_step

ALONE = SimpleNamespace(is_global_zero=True)
TINY_TRAINING = (
    *SMALL_TRAINING,
    "decoding.max_new_tokens=12",
    "evaluation.num_prompts=2",
    "objective.num_validation_prompts=2",
    "objective.validate_every=3",
    "objective.save_every=1",
    "objective.num_rollouts=3",
)


class Listener(Logger):
    """A logger that remembers."""

    name = "listener"
    version = 0

    def __init__(self):
        super().__init__()
        self.params = {}
        self.rows = []

    def log_hyperparams(self, params, *args, **kwargs):
        self.params = params

    def log_metrics(self, metrics, step=None):
        self.rows.append((step, metrics))


class ListeningLoggers(RunLoggers):
    """Loggers that remember how the run ended."""

    def __init__(self):
        super().__init__(Listener())
        self.listener = self.loggers[0]
        self.exit_codes = []

    def finish(self, exit_code):
        self.exit_codes.append(exit_code)
        super().finish(exit_code)


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> ListeningLoggers:
    """Return the loggers that every run in the test gets."""
    made = ListeningLoggers()
    monkeypatch.setattr(lifecycle, "_open_loggers", lambda *_: made)
    return made


def train(folder: Path, *overrides: str) -> dict[str, float]:
    return app.train(composed("train", *TINY_TRAINING, *overrides), folder)


def fail_at_rollout(monkeypatch: pytest.MonkeyPatch, number: int, spoil: Any) -> None:
    """Let a rollout's loss go through `spoil`."""
    real, calls = module.sample_rollout, []

    def sample_rollout(*args: Any) -> Any:
        calls.append(args)
        rollout = real(*args)
        if len(calls) == number:
            spoil(rollout)
        return rollout

    monkeypatch.setattr(module, "sample_rollout", sample_rollout)


def test_numbers_that_are_not_finite_end_the_run_in_one_line_and_it_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: ListeningLoggers
) -> None:
    """The manifest used to say that it was running."""
    with monkeypatch.context() as patch:
        fail_at_rollout(patch, 2, lambda rollout: rollout.rewards.fill_(torch.nan))
        with pytest.raises(RunError) as caught:
            train(tmp_path)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("rollout 2: loss nan with gradient norm nan; prompts: arithmetic/train/")
    checkpoint = tmp_path / "checkpoint.ckpt"
    assert text.endswith(f"; the last good checkpoint, after rollout 1, is {checkpoint}")
    assert read_checkpoint_step(checkpoint) == 1
    state = read_state(tmp_path)
    assert (state.status, state.error) == ("failed", text)
    assert read_manifest(tmp_path)["error"] == text
    assert tracker.exit_codes == [1]
    train(tmp_path, f"resume={tmp_path}")
    manifest = read_manifest(tmp_path)
    assert (manifest["status"], "error" in manifest) == ("finished", False)
    assert not (tmp_path / "error.txt").exists()


def test_a_scorer_that_always_fails_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def score(*_: Any) -> float:
        raise RuntimeError("no sandbox")

    monkeypatch.setattr(ArithmeticTask, "score", score)
    message = r"^rollout 1: none of the 2 prompts .*no sandbox\); there is no checkpoint yet$"
    with pytest.raises(RunError, match=message):
        train(tmp_path)
    assert read_manifest(tmp_path)["status"] == "failed"


def fill_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the disk be full when a file's content should reach it for the second time."""
    real, calls = store._flush, []

    def flush(path: Path) -> None:
        if path.name == f".{name}.partial":
            calls.append(path)
            if len(calls) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path)

    monkeypatch.setattr(store, "_flush", flush)


def test_a_disk_that_fills_up_ends_the_run_in_one_line_and_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: ListeningLoggers
) -> None:
    fill_disk(monkeypatch, "checkpoint.ckpt")
    checkpoint = tmp_path / "checkpoint.ckpt"
    with pytest.raises(RunError) as caught:
        train(tmp_path)
    assert str(caught.value) == (
        f"{checkpoint} cannot be written: No space left on device; the last good checkpoint, "
        f"after rollout 1, is {checkpoint}"
    )
    assert read_checkpoint_step(checkpoint) == 1
    assert not list(tmp_path.glob(".*.partial"))
    assert tracker.exit_codes == [1]


def test_a_disk_too_full_to_record_the_failure_gives_the_same_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cfg = composed("eval", "evaluation.num_prompts=2", "decoding.max_new_tokens=4")
    real = store._flush

    def flush(path: Path) -> None:
        if (tmp_path / "trace.parquet").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path)

    monkeypatch.setattr(store, "_flush", flush)
    with pytest.raises(RunError, match=r"/trace\.parquet cannot be written: No space left on dev"):
        app.evaluate(cfg, tmp_path)
    assert "the failure could not be recorded" in caplog.text
    assert read_state(tmp_path).status == "killed"  # as far as anybody can tell


def test_a_fault_of_the_code_is_recorded_and_keeps_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: ListeningLoggers
) -> None:
    def evaluate_task(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(app.evaluation, "evaluate_task", evaluate_task)
    with pytest.raises(ZeroDivisionError):
        app.evaluate(composed("eval"), tmp_path)
    state = read_state(tmp_path)
    assert (state.status, state.error) == ("failed", "ZeroDivisionError: by zero")
    assert tracker.exit_codes == [1]


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Interrupted("go on"), SystemExit(1)])
def test_a_stop_by_the_user_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: ListeningLoggers, stop: BaseException
) -> None:
    def evaluate_task(*_: Any, **__: Any) -> None:
        raise stop

    monkeypatch.setattr(app.evaluation, "evaluate_task", evaluate_task)
    wanted = Interrupted if isinstance(stop, KeyboardInterrupt) else type(stop)
    with pytest.raises(wanted):
        app.evaluate(composed("eval"), tmp_path)
    assert read_state(tmp_path).status == "stopped"
    assert tracker.exit_codes == [130]


def test_trackers_get_the_manifests_config_and_the_numbers_of_the_records(
    tmp_path: Path, tracker: ListeningLoggers
) -> None:
    numbers = train(tmp_path)
    manifest = read_manifest(tmp_path)
    assert tracker.exit_codes == [0]
    params = tracker.listener.params
    config_of = {key: params[key] for key in manifest["config"]}
    assert json.loads(json.dumps(config_of)) == manifest["config"]
    for name in ("run", "git", "versions", "pair", "device"):
        assert json.loads(json.dumps(params[name])) == manifest[name]
    step, closing = tracker.listener.rows[-1]
    assert step == 3
    results = {name: value for name, value in manifest["results"].items() if name != "validation"}
    assert closing == {f"test/{name}": value for name, value in results.items()}
    assert numbers.items() <= results.items()
    records = read_records(tmp_path)
    assert closing["test/quality"] == records["quality"].mean()
    judged = records["num_accepted"].sum() / records["num_judged"].sum()
    assert closing["test/token_acceptance_rate"] == judged


def test_an_evaluation_logs_the_same_names(tmp_path: Path, tracker: ListeningLoggers) -> None:
    cfg = composed("eval", "evaluation.num_prompts=2", "decoding.max_new_tokens=4")
    numbers = app.evaluate(cfg, tmp_path)
    assert tracker.listener.rows == [
        (0, {f"test/{name}": value for name, value in numbers.items()})
    ]
    assert tracker.listener.params["run"] == read_manifest(tmp_path)["run"]
    assert tracker.exit_codes == [0]


def unfinished(folder: Path, cfg: Any, status: str = "running") -> Path:
    found = json.loads(json.dumps(OmegaConf.to_container(cfg, resolve=True)))
    write_manifest(folder, {"status": status, "config": found})
    return folder


@pytest.fixture
def auto() -> Any:
    return composed("train", "resume=auto")


@pytest.mark.parametrize("status", ["running", "killed", "stopped", "failed"])
def test_auto_takes_up_whatever_is_not_finished(tmp_path: Path, auto: Any, status: str) -> None:
    old = unfinished(tmp_path / "old", auto, status)
    with working_folder(auto, tmp_path / "new", ALONE) as folder:
        assert folder == old
        assert read_state(old).status == "running"  # held
    assert not (tmp_path / "new").exists()


def test_auto_takes_the_newest(tmp_path: Path, auto: Any) -> None:
    for name in ("2026-01-02", "2026-01-03", "2026-01-01"):
        unfinished(tmp_path / name, auto)
    with working_folder(auto, tmp_path / "new", ALONE) as folder:
        assert folder.name == "2026-01-03"


def test_auto_leaves_a_run_that_another_process_is_at_work_in(
    tmp_path: Path, auto: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes used to train in one folder."""
    monkeypatch.setattr("diversed.records.folders._PATIENCE_S", 0.1)
    old = unfinished(tmp_path / "old", auto)
    with claimed(old):
        monkeypatch.setattr("diversed.records.folders._held", set())  # as another process has it
        with working_folder(auto, tmp_path / "new", ALONE) as folder:
            assert folder == tmp_path / "new"
        with (
            pytest.raises(InputError, match=rf"resume={old}: another process is at work in it"),
            working_folder(composed("train", f"resume={old}"), tmp_path / "new", ALONE),
        ):
            pass


def test_auto_looks_again_once_it_holds_the_folder(
    tmp_path: Path, auto: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that another process finished in the meantime would have been run again."""
    old = unfinished(tmp_path / "old", auto)
    real = lifecycle.claimed

    def claim_late(folder: Path, **options: Any) -> Any:
        if folder == old:
            unfinished(old, auto, "finished")
        return real(folder, **options)

    monkeypatch.setattr(lifecycle, "claimed", claim_late)
    with working_folder(auto, tmp_path / "new", ALONE) as folder:
        assert folder == tmp_path / "new"


def test_a_point_of_a_multirun_takes_up_its_own_run_of_an_earlier_one(
    tmp_path: Path, auto: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    hydra = SimpleNamespace(mode=RunMode.MULTIRUN, sweep=SimpleNamespace(subdir="a/1"))
    holder = SimpleNamespace(initialized=lambda: True, get=lambda: hydra)
    monkeypatch.setattr(lifecycle, "HydraConfig", holder)
    old = unfinished(tmp_path / "first" / "a" / "1", auto)
    unfinished(tmp_path / "second" / "a" / "0", auto)  # another point
    own = tmp_path / "third" / "a" / "1"
    with working_folder(auto, own, ALONE) as folder:
        assert folder == old
    unfinished(old, auto, "finished")
    with working_folder(auto, own, ALONE) as folder:
        assert folder == own
    assert (
        f"no unfinished run of this config in the folders a/1 of the multiruns in {tmp_path}"
        in (caplog.text)
    )


def test_other_processes_of_a_job_hold_nothing(tmp_path: Path) -> None:
    other = SimpleNamespace(is_global_zero=False)
    with working_folder(composed("train", "resume=auto"), tmp_path / "run", other) as folder:
        assert folder == tmp_path / "run"
    assert list(tmp_path.iterdir()) == []


def test_the_next_command_marks_what_was_killed_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, own = tmp_path / "killed", tmp_path / "own"
    with claimed(killed):
        write_manifest(killed, {"status": "running"})
    own.mkdir()
    state = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(own)), mode=RunMode.RUN)
    monkeypatch.setattr(config.HydraConfig, "get", lambda: state)
    assert run_job(lambda cfg, folder: folder, OmegaConf.create({})) == own
    assert read_manifest(killed)["status"] == "killed"


def test_a_run_that_cannot_go_on_keeps_its_folder_and_has_an_exit_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def job(cfg: Any, folder: Path) -> None:
        write_manifest(folder, {"status": "failed"})
        raise RunError("rollout 3: loss nan")

    state = SimpleNamespace(runtime=SimpleNamespace(output_dir=str(tmp_path)), mode=RunMode.RUN)
    monkeypatch.setattr(config.HydraConfig, "get", lambda: state)
    monkeypatch.setattr(config, "_WANTS_TRACE", False)
    with pytest.raises(SystemExit) as stop:
        run_job(job, OmegaConf.create({}))
    assert stop.value.code == 1
    assert capsys.readouterr().err == "rollout 3: loss nan\n"
    assert (tmp_path / "manifest.json").is_file()
