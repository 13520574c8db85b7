"""The file of curves: one row per step, whole at any time, gone on with by a resumed run."""

import csv

import pytest

from diversed.records.store import WriteError
from diversed.tracking import curves
from diversed.tracking.curves import CurveFile, CurveLogger


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics" / "metrics.csv"


def log_rewards(folder, steps, start_step=0):
    run_logger = CurveLogger(folder, start_step)
    for step in steps:
        run_logger.log_metrics({"train/reward": step / 3}, step=step)
        run_logger.save()
    run_logger.finalize("success")


def test_what_a_step_logs_at_different_times_is_one_row(tmp_path, path):
    run_logger = CurveLogger(tmp_path, 0)
    run_logger.log_metrics({"train/reward": 0.1}, step=1)
    run_logger.log_metrics({"val/quality": 1}, step=1)
    run_logger.log_metrics({"train/reward": 1 / 3}, step=2)
    run_logger.finalize("success")
    assert table(path) == [
        {"step": "1", "train/reward": "0.1", "val/quality": "1.0"},
        {"step": "2", "train/reward": repr(1 / 3), "val/quality": ""},
    ]


def test_every_logged_row_is_on_disk_at_once(tmp_path, path):
    run_logger = CurveLogger(tmp_path, 0)
    for step in (1, 2):
        run_logger.log_metrics({"a": step}, step=step)
        assert len(table(path)) == step


def test_a_killed_run_and_its_successor_leave_the_file_of_the_unbroken_run(tmp_path, path):
    """A resumed run used to begin a second file, and to repeat what the first one held."""
    log_rewards(tmp_path / "whole", range(1, 7))
    log_rewards(tmp_path, range(1, 6))
    log_rewards(tmp_path, range(4, 7), start_step=3)
    whole = (tmp_path / "whole" / "metrics" / "metrics.csv").read_bytes()
    assert path.read_bytes() == whole
    assert [row["step"] for row in table(path)] == list("123456")


def test_a_run_without_a_checkpoint_starts_the_file_afresh(tmp_path, path):
    log_rewards(tmp_path, range(1, 4))
    log_rewards(tmp_path, range(1, 3))
    assert [row["step"] for row in table(path)] == ["1", "2"]


def test_the_rows_of_earlier_steps_can_be_read(tmp_path, path):
    log_rewards(tmp_path, range(1, 4))
    assert CurveFile(path, 2).rows() == {1: {"train/reward": 1 / 3}, 2: {"train/reward": 2 / 3}}


def test_nothing_new_writes_nothing(tmp_path, path, monkeypatch):
    log_rewards(tmp_path, range(1, 3))
    run_logger = CurveLogger(tmp_path, 2)

    def refuse(*_):
        raise AssertionError("written")

    monkeypatch.setattr(curves, "replace_file", refuse)
    run_logger.save()
    run_logger.finalize("success")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "metrics").write_text("a file")
    run_logger = CurveLogger(tmp_path, 0)
    with pytest.raises(WriteError, match=r"metrics\.csv cannot be written: .*exists"):
        run_logger.log_metrics({"a": 1.0}, step=1)
