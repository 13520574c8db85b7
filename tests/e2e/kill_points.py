"""Runs a script of this repository up to a chosen moment, at which its process is killed.

    python tests/e2e/kill_points.py POINT SCRIPT [argument ...]

A point is one of

    call:MODULE:FUNCTION:N   when a module calls a function of its namespace for the N-th time
    half:NAME:N              when half of a file (or of a folder's first file) is written, the N-th
                             time, and its name is not yet that of the file
    named:NAME:N             when a file has got its name, the N-th time
    away:NAME:N              when a folder was moved away and its successor is not yet in its place

The kill is SIGKILL: no handler runs, nothing is flushed.
"""

import functools
import importlib
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Countdown:
    """Kills this process when it is called for the N-th time."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, last_act: Callable[[], Any] = lambda: None) -> None:
        self.left -= 1
        if self.left == 0:
            last_act()
            os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str) -> None:
    """Prepare for a point."""
    kind, *names, number = point.split(":")
    countdown = Countdown(int(number))
    {"call": on_call, "half": on_half, "named": on_named, "away": on_away}[kind](countdown, *names)


def on_call(countdown: Countdown, module_name: str, function_name: str) -> None:
    module = importlib.import_module(module_name)
    original = getattr(module, function_name)

    @functools.wraps(original)
    def counted(*args: Any, **options: Any) -> Any:
        countdown()
        return original(*args, **options)

    setattr(module, function_name, counted)


def on_half(countdown: Countdown, name: str) -> None:
    store = importlib.import_module("diversed.records.store")
    original = store._flush

    def flush(path: Path) -> None:
        if f".{name}.partial" in (path.name, path.parent.name) and path.is_file():
            countdown(lambda: os.truncate(path, path.stat().st_size // 2))
        original(path)

    store._flush = flush


def on_named(countdown: Countdown, name: str) -> None:
    after_move(countdown, "replace", lambda _, moved: moved.name == name)


def on_away(countdown: Countdown, name: str) -> None:
    after_move(countdown, "rename", lambda path, _: path.name == name)


def after_move(countdown: Countdown, method: str, is_meant: Callable[[Path, Path], bool]) -> None:
    original = getattr(Path, method)

    def move(path: Path, target: Any) -> Path:
        moved: Path = original(path, target)
        if is_meant(path, moved):
            countdown()
        return moved

    setattr(Path, method, move)


if __name__ == "__main__":
    _, chosen, script, *arguments = sys.argv
    sys.path.insert(0, str(Path(script).parent))
    arm(chosen)
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")
