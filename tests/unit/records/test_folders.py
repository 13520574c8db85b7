"""Who is at work in a run's folder, and what becomes of a run whose process is gone."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

import pytest

from diversed.records import folders
from diversed.records.folders import (
    KILLED_ERROR,
    LOCK_FILE,
    FolderHeldError,
    claimed,
    mark_failed,
    mark_killed,
    mark_stopped,
    read_state,
)
from diversed.records.store import read_manifest, write_manifest

HOLD = """
import sys, time
from pathlib import Path
from diversed.records.folders import claimed
from diversed.records.store import write_manifest
folder = Path(sys.argv[1])
with claimed(folder):
    write_manifest(folder, {"status": "running", "config": {}})
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def run_at_work(folder: Path):
    """Start a process that runs in a folder until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def kill(process) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_killed_run_is_found_and_marked(tmp_path):
    """Its manifest used to say that it was running, for ever."""
    folder = tmp_path / "run"
    with run_at_work(folder) as process:
        assert read_state(folder).status == "running"
        assert mark_killed([folder]) == []
        kill(process)
    assert read_state(folder).status == "killed"
    assert read_manifest(folder)["status"] == "running"
    assert mark_killed([tmp_path, folder]) == [folder]
    manifest = read_manifest(folder)
    assert (manifest["status"], manifest["error"]) == ("killed", KILLED_ERROR)
    state = read_state(folder)
    assert (state.status, state.error) == ("killed", KILLED_ERROR)
    assert mark_killed([folder]) == []


def test_a_run_that_another_process_is_at_work_in_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_PATIENCE_S", 0.1)
    with run_at_work(tmp_path):
        with (
            pytest.raises(FolderHeldError, match="another process is at work in it"),
            claimed(tmp_path, waits=False),
        ):
            pass
        assert read_manifest(tmp_path)["status"] == "running"


def test_who_waits_gets_the_folder_in_the_end(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(folders, "_PATIENCE_S", 0.05)
    caplog.set_level("INFO")
    with run_at_work(tmp_path) as process:
        Timer(0.5, process.kill).start()
        assert process.poll() is None
        with claimed(tmp_path):
            assert process.wait() == -signal.SIGKILL
    assert f"waiting for the process that is at work in {tmp_path}" in caplog.text


def test_a_process_may_claim_what_it_holds(tmp_path):
    """It used to wait for itself."""
    write_manifest(tmp_path, {"status": "running"})
    with claimed(tmp_path):
        with claimed(tmp_path / ".." / tmp_path.name):
            pass
        assert read_state(tmp_path).status == "running"
    assert read_state(tmp_path).status == "killed"


def test_a_claim_alone_leaves_nothing_behind(tmp_path):
    for folder in (tmp_path / "new", tmp_path):
        with claimed(folder):
            assert (folder / LOCK_FILE).is_file()
    assert list(tmp_path.iterdir()) == []
    with claimed(tmp_path / "new"):
        (tmp_path / "new" / "file").touch()
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"file", LOCK_FILE}


def test_a_lock_whose_file_is_gone_is_no_lock(tmp_path, monkeypatch):
    """Two processes could each hold a lock, one of them of a removed file."""
    real = folders._try_lock
    calls = []

    def lock_late(descriptor):
        if not calls:
            (tmp_path / LOCK_FILE).unlink()  # between open and lock, by the one that held it
        calls.append(descriptor)
        return real(descriptor)

    monkeypatch.setattr(folders, "_try_lock", lock_late)
    with claimed(tmp_path):
        monkeypatch.setattr(folders, "_try_lock", real)
        with (tmp_path / LOCK_FILE).open() as file:
            assert not real(file.fileno())
    assert len(calls) == 2


def test_a_file_system_without_locks_is_never_thought_idle(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError("no locks here")

    monkeypatch.setattr(folders.fcntl, "flock", refuse)
    with claimed(tmp_path):
        write_manifest(tmp_path, {"status": "running"})
    assert "start no second process" in caplog.text
    assert read_state(tmp_path).status == "running"
    assert mark_killed([tmp_path]) == []


def test_a_run_from_before_there_were_locks_is_left_alone(tmp_path):
    write_manifest(tmp_path, {"status": "running"})
    assert read_state(tmp_path).status == "running"
    assert mark_killed([tmp_path]) == []


@pytest.mark.parametrize("status", ["finished", "failed", "stopped", "killed"])
def test_only_running_runs_can_be_killed(tmp_path, status):
    with claimed(tmp_path):
        write_manifest(tmp_path, {"status": status})
    assert read_state(tmp_path).status == status
    assert mark_killed([tmp_path]) == []
    assert read_manifest(tmp_path)["status"] == status


def test_what_cannot_be_read_is_no_killed_run(tmp_path):
    (tmp_path / "manifest.json").write_text("{")
    assert read_state(tmp_path).status == "broken"
    assert mark_killed([tmp_path, tmp_path / "no"]) == []


def test_a_stop_and_a_failure_stand_in_the_manifest(tmp_path):
    write_manifest(tmp_path, {"status": "running", "config": {"a": 1}})
    mark_stopped(tmp_path)
    assert read_state(tmp_path).status == "stopped"
    mark_failed(tmp_path, "lambda: no")
    manifest = read_manifest(tmp_path)
    assert (manifest["status"], manifest["error"]) == ("failed", "lambda: no")
    assert manifest["config"] == {"a": 1}
    assert (tmp_path / "error.txt").read_text() == "lambda: no\n"


def test_a_finished_run_stays_finished(tmp_path):
    write_manifest(tmp_path, {"status": "finished"})
    mark_stopped(tmp_path)
    mark_failed(tmp_path, "late")
    assert json.loads((tmp_path / "manifest.json").read_text())["status"] == "finished"


def test_a_failure_that_cannot_be_recorded_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    mark_failed(tmp_path / "file", "no")
    assert "the failure could not be recorded" in caplog.text
