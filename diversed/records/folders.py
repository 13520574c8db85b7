"""What a run's folder holds: a finished run, one that failed, is at work or was killed, or none.

One process at a time works in a folder; the lock falls with the process, however it ends.
"""

import fcntl
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diversed.records.store import (
    MANIFEST_FILE,
    RecordsError,
    as_written,
    read_manifest,
    replace_file,
    write_manifest,
)

logger = logging.getLogger(__name__)

ERROR_FILE = "error.txt"
LOCK_FILE = ".lock"

FINISHED, FAILED, RUNNING = "finished", "failed", "running"
STOPPED, BROKEN, EMPTY = "stopped", "broken", "not started"


@dataclass(frozen=True)
class FolderState:
    """What a folder holds.

    Attributes:
        status: "finished"; "failed", with the error; "running" (of a job that takes no lock: or
            killed); "stopped", which is begun and at work no more; "broken", a manifest that cannot
            be read; or "not started".
        manifest: The run's manifest, where there is one that can be read.
        error: Why it failed, or why it cannot be read.
    """

    status: str
    manifest: dict[str, Any] | None = None
    error: str | None = None


def read_state(folder: Path) -> FolderState:
    """Return what a folder holds; nothing in it is changed."""
    try:
        manifest = read_manifest(folder) if (folder / MANIFEST_FILE).is_file() else None
    except RecordsError as error:
        return FolderState(BROKEN, error=str(error))
    status = None if manifest is None else manifest.get("status")
    if status == FINISHED:
        return FolderState(FINISHED, manifest)
    if _is_claimed(folder):
        return FolderState(RUNNING, manifest)
    if (folder / ERROR_FILE).is_file():
        return FolderState(FAILED, manifest, (folder / ERROR_FILE).read_text().strip())
    if manifest is not None and status == FAILED:
        return FolderState(FAILED, manifest, manifest.get("error"))
    if manifest is None:
        return FolderState(EMPTY)
    return FolderState(STOPPED if (folder / LOCK_FILE).is_file() else RUNNING, manifest)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold a folder for this process; wait while another one does.

    Where the file system has no locks, nothing is held and a warning says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            if not _try_lock(descriptor):
                logger.info("waiting for the process that is at work in %s", folder)
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            logger.warning("%s cannot be locked (%s): start no second process", folder, error)
        yield
    finally:
        os.close(descriptor)  # the lock falls with it; the file stays


def _is_claimed(folder: Path) -> bool:
    """Return whether a process is at work in a folder."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def mark_failed(folder: Path, error: str) -> None:
    """Record why a run failed: in `error.txt`, and in the manifest of one that is not finished."""
    replace_file(folder / ERROR_FILE, lambda partial: partial.write_text(f"{error}\n"))
    state = read_state(folder)
    if state.manifest is not None and state.status != FINISHED:
        write_manifest(folder, {**state.manifest, "status": FAILED, "error": error})


def differing_keys(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys in which a resolved config differs from that of a manifest.

    Args:
        wanted: The config; its values are compared as a manifest would write them.
        found: The manifest's.

    Returns:
        Sorted keys; `resume`, which changes no result, is none of them.
    """
    return _differing(as_written(wanted), found)


def _differing(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    keys = []
    for key in sorted((wanted.keys() | found.keys()) - {"resume"}):
        ours, theirs = wanted.get(key), found.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            keys += [f"{key}.{inner}" for inner in _differing(ours, theirs)]
        elif ours != theirs:
            keys.append(key)
    return keys
