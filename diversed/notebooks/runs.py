"""Runs below a folder, and what their manifests tell beside the columns of records."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diversed.records.schema import HEADS
from diversed.records.store import head_run, named_runs, read_manifest

EXTRA_RUN_COLUMNS: Mapping[str, str] = {
    "train_data": "data that the head was trained on, else null",
    "target": "the target: its name, or its folder where one was given",
    "draft": "the same of the draft, if there is one",
    "device": "what the run was decoded on",
}
"""Columns that the manifest adds to those of `records.schema.RUN_COLUMNS`."""

CURVES_FILE = "*/metrics.csv"
"""The metrics file that `logger=csv` writes into a folder of the run."""

TRAINING_COLUMNS = {
    "reward": "train/reward",
    "expected_acceptance": "train/acceptance",
    "objective": "train/objective",
    "mean_target_weight": "train/mean_w",
    "w_below_0.05_frac": "train/w_below_0.05_frac",
    "w_above_0.95_frac": "train/w_above_0.95_frac",
}
"""Column of training curves -> its name in that file."""


@dataclass(frozen=True)
class Run:
    """A run with records.

    Attributes:
        name: Its `run_name`; where several runs share one, with its folder's beside it.
        folder: Where it lies.
        manifest: What made it.
        train_data: Data that its head was trained on; None without a head, or if it is not known.
    """

    name: str
    folder: Path
    manifest: Mapping[str, Any]
    train_data: str | None

    @property
    def columns(self) -> dict[str, Any]:
        """Values of `records.schema.RUN_COLUMNS` and `EXTRA_RUN_COLUMNS`."""
        has_draft = self.manifest["run"]["draft_length"] is not None
        return dict(self.manifest["run"]) | {
            "run_name": self.name,
            "train_data": self.train_data,
            "target": _model(self.manifest, "target"),
            "draft": _model(self.manifest, "draft") if has_draft else None,
            "device": self.manifest.get("device"),
        }


def find_runs(folder: Path) -> list[Run]:
    """Return the runs with records below a folder, in order of their paths.

    Args:
        folder: Searched at any depth.

    Raises:
        RecordsError: There are no records below it.
    """
    runs = named_runs(folder)
    manifests = {found: read_manifest(found) for found in runs.values()}
    return [
        Run(name, found, manifests[found], _train_data(manifests[found], manifests))
        for name, found in runs.items()
    ]


def _model(manifest: Mapping[str, Any], role: str) -> str | None:
    """Return the name of the target or the draft, or the folder that the user gave in its place."""
    path = manifest.get("config", {}).get("model", {}).get(role, {}).get("path")
    if path is not None and not str(path).startswith("builtin:"):
        return str(path)
    name: str | None = manifest.get("pair", {}).get(role, {}).get("name")
    return name


def _train_data(manifest: Mapping[str, Any], folders: Iterable[Path]) -> str | None:
    """Return the data that a run's head was trained on, where its run is at hand."""
    config = manifest.get("config", {})
    if manifest["run"]["method"] not in HEADS:
        return None
    if "objective" in config:  # it trained the head itself
        own: str | None = manifest["run"]["data"]
        return own
    trained = manifest.get("head_run") or head_run(config)
    checkpoint = config.get("verifier", {}).get("checkpoint")
    if trained is None and checkpoint is not None:
        moved = next(_moved(Path(checkpoint).expanduser(), folders), None)
        trained = None if moved is None else read_manifest(moved)["run"]
    return None if trained is None else trained["data"]


def _moved(given: Path, folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the folders whose path ends as `given` does: the records may have been moved."""
    ends = [given.parts[-2:], given.parent.parts[-2:]]
    for folder in folders:
        if folder.resolve().parts[-2:] in ends:
            yield folder


def training_curves(run: Run) -> Iterator[pd.DataFrame]:
    """Yield the curves of a run: rollouts from its metrics file, validations from its manifest."""
    results = run.manifest.get("results", {})
    shared = run.columns | {"best_rollout": results.get("best_rollout", np.nan)}
    for path in sorted(run.folder.glob(CURVES_FILE)):
        curve = pd.read_csv(path)
        if "train/reward" not in curve:
            continue
        curve = curve.dropna(subset=["train/reward"])
        columns = {name: curve[logged] for name, logged in TRAINING_COLUMNS.items()}
        # Step s is the s-th rollout, sampled by the head of the rollout before.
        yield pd.DataFrame(columns).assign(rollout=curve["step"] - 1, part="train", **shared)
    if results.get("validation"):
        validation = pd.DataFrame(results["validation"])
        validation = validation.rename(columns={"acceptance": "expected_acceptance"})
        if run.manifest.get("config", {}).get("objective", {}).get("acceptance_reduction") == "sum":
            validation["expected_acceptance"] = np.nan
        yield validation.assign(part="validation", **shared)
