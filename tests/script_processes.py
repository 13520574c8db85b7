"""Scripts in processes of their own, as users run them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from composed import ROOT

PATIENCE_S = 240
PYTHON = (sys.executable,)


def _environment(variables: dict[str, str]) -> dict[str, str]:
    """Return the tests' environment with further variables, and without Hydra's tracebacks."""
    kept = {key: value for key, value in os.environ.items() if key != "HYDRA_FULL_ERROR"}
    return kept | variables


def start_script(
    folder: Path, script: str, *arguments: str, **variables: str
) -> subprocess.Popen[str]:
    """Start a script of this repository, or one of an absolute path, in a folder."""
    return subprocess.Popen(
        [*PYTHON, str(ROOT / script), *arguments],
        cwd=folder,
        env=_environment(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_script(
    folder: Path,
    script: str,
    *arguments: str,
    launcher: Sequence[str] = PYTHON,
    patience_s: float = PATIENCE_S,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run a script of this repository, or one of an absolute path, in a folder, to its end.

    Args:
        folder: Working directory.
        script: Path below the root of the repository.
        arguments: Of the script.
        launcher: Words that stand before the script.
        patience_s: Seconds after which the process is killed.
        variables: Added to the environment.
    """
    return subprocess.run(
        [*launcher, str(ROOT / script), *arguments],
        cwd=folder,
        env=_environment(variables),
        capture_output=True,
        text=True,
        timeout=patience_s,
        check=False,
    )


def wait_for(process: subprocess.Popen[str], is_there: Callable[[], object]) -> None:
    """Wait until something is there, which the process makes while it runs."""
    until = time.monotonic() + PATIENCE_S
    while not is_there():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)
