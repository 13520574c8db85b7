"""What made a run: resolved config, code version, packages, device, seed, time."""

import importlib.metadata
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from diversed.records.schema import RUN_COLUMNS

_PACKAGES = (
    "diversed",
    "torch",
    "transformers",
    "lightning",
    "hydra-core",
    "omegaconf",
    "datasets",
    "numpy",
    "pandas",
)


def build_manifest(
    run: Mapping[str, Any],
    config: Mapping[str, Any],
    pair: Mapping[str, Any],
    device: torch.device,
    status: str,
    results: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    head_run: Mapping[str, Any] | None = None,
    head: str | None = None,
) -> dict[str, Any]:
    """Return the manifest of a run.

    Args:
        run: Values of `schema.RUN_COLUMNS`, all of them.
        config: The resolved config.
        pair: Names, revisions and sizes of the two models.
        device: Where the models were.
        status: "running", "finished" or "failed".
        results: Summary numbers, once there are any.
        data: Where the task's rows came from and how they were posed.
        head_run: Columns of the run that trained the head, if it is another one and at hand.
        head: Fingerprint of the weights of the head that was evaluated.

    Raises:
        ValueError: A run column is missing or unknown.
    """
    if run.keys() != RUN_COLUMNS.keys():
        raise ValueError(f"run columns differ: {sorted(run.keys() ^ RUN_COLUMNS.keys())}")
    return {
        "run": dict(run),
        "status": status,
        "results": dict(results or {}),
        "config": dict(config),
        "pair": dict(pair),
        "data": dict(data or {}),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "git": git_state(),
        "versions": _versions(),
        "python": platform.python_version(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "num_threads": torch.get_num_threads(),
        "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "head_run": None if head_run is None else dict(head_run),
        "head": head,
    }


def git_state() -> dict[str, Any]:
    """Return commit and cleanliness of the checkout that this code runs from; nulls outside one."""
    git = shutil.which("git")
    folder = Path(__file__).parent
    if git is None:
        return {"sha": None, "is_dirty": None}

    def ask(*arguments: str) -> str | None:
        answer = subprocess.run(  # noqa: S603 - fixed arguments, no shell
            [git, "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
        return answer.stdout.strip() if answer.returncode == 0 else None

    changes = ask("status", "--porcelain")
    return {"sha": ask("rev-parse", "HEAD"), "is_dirty": None if changes is None else bool(changes)}


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions
