"""The loggers that `logger=...` makes: the same numbers in each, every step once."""

import csv
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from diversed.tracking import loggers
from diversed.tracking.loggers import csv_loggers, tensorboard_loggers, wandb_loggers

MANIFEST = {
    "config": {"lambda": 0.5, "decoding": {"top_k": 0}},
    "run": {"run_name": "one"},
    "git": {"sha": "abc"},
    "versions": {"torch": "2"},
    "pair": {"target": {"name": "big"}},
    "device": "cpu",
}


def log_run(make, folder, steps, start_step=0):
    """Log a reward per step, then the closing numbers."""
    made = make(folder, "one", start_step)
    made.describe(MANIFEST)
    for step in steps:
        for run_logger in made.loggers:
            run_logger.log_metrics({"train/reward": step / 4}, step=step)
            run_logger.save()
    assert made.num_samples == 0
    made.log_evaluation({"quality": 1 / 3}, {"samples": []}, step=steps[-1])
    made.finish(0)
    made.finish(1)  # too late


def curve(folder: Path, name: str) -> dict[int, float]:
    with (folder / "metrics" / "metrics.csv").open(newline="") as file:
        return {int(row["step"]): float(row[name]) for row in csv.DictReader(file) if row[name]}


def events(folder: Path, name: str) -> dict[int, float]:
    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    found = [(event.step, event.value) for event in accumulator.Scalars(name)]
    assert len(dict(found)) == len(found), "a step stands twice"
    return dict(found)


@pytest.mark.parametrize("make", [csv_loggers, tensorboard_loggers])
def test_every_logger_keeps_the_curves_as_csv(make, tmp_path):
    log_run(make, tmp_path, range(1, 4))
    assert curve(tmp_path, "train/reward") == {1: 0.25, 2: 0.5, 3: 0.75}
    assert curve(tmp_path, "test/quality") == {3: 1 / 3}


def test_tensorboard_has_the_same_numbers(tmp_path):
    log_run(tensorboard_loggers, tmp_path, range(1, 4))
    assert events(tmp_path, "train/reward") == {1: 0.25, 2: 0.5, 3: 0.75}
    assert events(tmp_path, "test/quality") == {3: pytest.approx(1 / 3, rel=1e-6)}  # float32


def test_tensorboard_goes_on_after_the_checkpoint(tmp_path):
    killed = tensorboard_loggers(tmp_path, "one", 0)
    for step in range(1, 6):
        for run_logger in killed.loggers:
            run_logger.log_metrics({"train/reward": -1.0 if step > 3 else step / 4}, step=step)
            run_logger.save()  # and nothing more: no end
    log_run(tensorboard_loggers, tmp_path, range(4, 7), start_step=3)
    assert events(tmp_path, "train/reward") == {step: step / 4 for step in range(1, 7)}
    assert curve(tmp_path, "train/reward") == {step: step / 4 for step in range(1, 7)}


def test_tensorboard_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'diversed\[tensorboard\]'"):
        tensorboard_loggers(tmp_path, "one", 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "on"}, r"logger\.mode=on: must be one of online, offline, disabled"),
        ({"num_samples": -1}, r"logger\.num_samples=-1: must be at least 0"),
    ],
)
def test_settings_of_wandb_out_of_range_are_refused_by_name(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        wandb_loggers(tmp_path, "one", 0, project="trial", **options)
    assert list(tmp_path.iterdir()) == []


def test_disabled_wandb_leaves_the_curves_alone(tmp_path):
    made = wandb_loggers(tmp_path, "one", 0, project="trial", mode="disabled")
    for run_logger in made.loggers:
        run_logger.log_metrics({"train/reward": 0.25}, step=1)
    made.describe(MANIFEST)
    made.loggers[1].log_head(lambda folder: None, 1, is_best=True)
    made.log_evaluation({"quality": 0.5}, {"samples": [{"text": "a"}]}, step=1)
    made.finish(0)
    assert curve(tmp_path, "train/reward") == {1: 0.25}
    assert curve(tmp_path, "test/quality") == {1: 0.5}
    assert [path.name for path in tmp_path.iterdir()] == ["metrics"]
