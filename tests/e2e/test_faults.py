"""Faults that are not the code's: one clear line, an exit code, and a folder that says what was."""

import shutil
import subprocess
from pathlib import Path

import pytest
from composed import SMALL_TRAINING
from script_processes import PYTHON, run_script

from diversed.records.folders import read_state

pytestmark = pytest.mark.e2e

PATIENCE_S = 900
TRAINING = (*SMALL_TRAINING, "decoding.max_new_tokens=32", "objective.save_every=1")
MOUNTED = """
set -e
{mount}
exec "$@"
"""


def run(folder: Path, *arguments: str, mount: str | None = None) -> tuple[int, str]:
    """Run train.py; return its exit code and its last line on stderr.

    Args:
        folder: Working directory.
        arguments: Of the script.
        mount: Shell commands before it, in a file system of their own.
    """
    launcher = PYTHON
    if mount is not None:
        launcher = ("unshare", "-rm", "sh", "-c", MOUNTED.format(mount=mount), "sh", *PYTHON)
    done = run_script(
        *(folder, "train.py", *TRAINING, *arguments), launcher=launcher, patience_s=PATIENCE_S
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr.splitlines()[-1] if done.stderr else ""


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def can_mount() -> bool:
    """Return whether a test may mount file systems that no other process sees."""
    unshare = shutil.which("unshare")
    probe = ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]  # noqa: S108 - not shared
    return unshare is not None and subprocess.run(probe, capture_output=True).returncode == 0


mounts = pytest.mark.skipif(not can_mount(), reason="needs namespaces of its own to mount in")


def test_a_head_that_is_no_number_any_more_ends_in_one_line(tmp_path: Path) -> None:
    code, line = run(tmp_path, "optimizer.lr=inf")
    assert code == 1
    assert line.startswith("rollout 1: the head's ")
    assert "prompts: arithmetic/train/0/" in line
    assert line.endswith("; there is no checkpoint yet")
    (folder,) = (tmp_path / "outputs" / "train").iterdir()
    state = read_state(folder)
    assert (state.status, state.error) == ("failed", line)
    assert (folder / "train.log").is_file()


@mounts
@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "code", "words"),
    [
        ("4k", 2, ["the output folder: No space left on device", "hydra.run.dir"]),
        ("24k", 1, ["manifest.json cannot be written: No space left", "there is no checkpoint"]),
        ("48k", 1, ["cannot be written: No space left on device", "the last good checkpoint"]),
    ],
)
def test_a_full_disk_ends_in_one_line(
    tmp_path: Path, size: str, code: int, words: list[str]
) -> None:
    (tmp_path / "disk").mkdir()
    mount = f"mount -t tmpfs -o size={size} tmpfs disk"
    found, line = run(tmp_path, "hydra.run.dir=disk/run", mount=mount)
    assert found == code
    assert all(word in line for word in words), line


@mounts
@pytest.mark.slow
def test_a_run_on_a_disk_that_cannot_be_written_any_more_ends_in_one_line(tmp_path: Path) -> None:
    code, _ = run(tmp_path, "optimizer.lr=inf", "hydra.run.dir=disk/run")
    assert code == 1
    before = contents(tmp_path / "disk")
    mount = "mount --bind disk disk; mount -o remount,bind,ro disk"
    code, line = run(tmp_path, "optimizer.lr=inf", "resume=disk/run", mount=mount)
    assert code == 2
    assert line == f"{tmp_path / 'disk' / 'run' / '.lock'}: Read-only file system"
    assert contents(tmp_path / "disk") == before
    assert not list(tmp_path.glob("outputs/train/*"))
