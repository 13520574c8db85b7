"""What a run's folder holds: a finished run, one that failed, is at work or was killed, or none.

One process at a time works in a folder; its lock falls with the process, however that ends. So a
manifest that says "running" in a folder that nobody holds is that of a killed run, and what looks
at it next writes that down.
"""

import fcntl
import logging
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
STOPPED, KILLED, BROKEN, EMPTY = "stopped", "killed", "broken", "not started"

KILLED_ERROR = "the process ended without a word"
ROW_CHOICE = ("evaluation.num_prompts", "evaluation.samples_per_prompt")
"""Keys of a config that say which rows an evaluation has, and nothing of what is in them."""

_PATIENCE_S = 1.0  # a look at a folder holds it for an instant

_held: set[Path] = set()


class FolderHeldError(Exception):
    """Another process is at work in a folder."""


@dataclass(frozen=True)
class FolderState:
    """What a folder holds.

    Attributes:
        status: "finished"; "failed", with the error; "running" (without a lock to look at: or
            killed); "stopped" by the user; "killed", which is begun and at work no more; "broken",
            a manifest that cannot be read; or "not started".
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
    if manifest is None:
        return FolderState(EMPTY)
    if status == RUNNING and (folder / LOCK_FILE).is_file():
        return FolderState(KILLED, manifest, KILLED_ERROR)
    return FolderState(str(status), manifest, manifest.get("error"))


@contextmanager
def claimed(folder: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold a folder for this process, which may claim it again while it does.

    Where the file system has no locks, nothing is held and a warning says so. A folder in which
    nothing was written is left as it was found.

    Args:
        folder: Made if it is missing.
        waits: Whether to wait while another process holds it.

    Raises:
        FolderHeldError: Another process holds it, and this one does not wait.
    """
    place = folder.resolve()
    if place in _held:
        yield
        return
    is_new = not place.exists()
    place.mkdir(parents=True, exist_ok=True)
    path = place / LOCK_FILE
    descriptor = _lock(path, waits)
    _held.add(place)
    try:
        yield
    finally:
        _held.discard(place)
        if place.is_dir() and list(place.iterdir()) == [path]:
            path.unlink()
            if is_new:
                place.rmdir()
        os.close(descriptor)  # the lock falls with it


def _lock(path: Path, waits: bool) -> int:
    """Return the descriptor of a file that this process has locked, or of one with no lock."""
    patience = time.monotonic() + _PATIENCE_S
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_ours = _try_lock(descriptor)
        except OSError as error:
            logger.warning("%s cannot be locked (%s): start no second process", path, error)
            return descriptor
        if is_ours and _is_same_file(descriptor, path):
            return descriptor
        os.close(descriptor)  # held by another, or removed by the one that held it
        if time.monotonic() > patience:
            if not waits:
                raise FolderHeldError(f"{path.parent}: another process is at work in it")
            logger.info("waiting for the process that is at work in %s", path.parent)
            patience = math.inf
        time.sleep(0.05)


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _is_claimed(folder: Path) -> bool:
    """Return whether a process is at work in a folder, or may be: there are no locks to tell."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _try_lock(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def mark_killed(folders: Iterable[Path]) -> list[Path]:
    """Write into the manifests of killed runs that they were killed.

    Args:
        folders: Folders of runs, and others.

    Returns:
        Those that were marked.
    """
    marked = []
    for folder in folders:
        if read_state(folder).status != KILLED:
            continue
        with suppress(FolderHeldError, RecordsError, OSError), claimed(folder, waits=False):
            manifest = read_manifest(folder)
            if manifest["status"] == RUNNING:  # nobody has begun to go on with it
                write_manifest(folder, {**manifest, "status": KILLED, "error": KILLED_ERROR})
                marked.append(folder)
    return marked


def mark_failed(folder: Path, error: str) -> None:
    """Record why a run failed: in `error.txt`, and in the manifest of one that is not finished."""
    try:
        replace_file(folder / ERROR_FILE, lambda partial: partial.write_text(f"{error}\n"))
        _mark(folder, FAILED, error)
    except OSError as fault:  # the disk is full, say
        logger.warning("the failure could not be recorded: %s", fault)


def mark_stopped(folder: Path) -> None:
    """Record in the manifest of a run that is not finished that the user stopped it."""
    _mark(folder, STOPPED, None)


def _mark(folder: Path, status: str, error: str | None) -> None:
    if not (folder / MANIFEST_FILE).is_file():
        return
    with suppress(RecordsError):
        manifest = read_manifest(folder)
        if manifest["status"] != FINISHED:
            write_manifest(folder, {**manifest, "status": status, "error": error})


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
