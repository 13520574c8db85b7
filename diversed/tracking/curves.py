"""The curves of a run in one CSV file, which is whole at any time."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment

from diversed.records.store import replace_file

CURVES_FOLDER = "metrics"
STEP = "step"


class CurveFile:
    """One row per step; what a step logs at different times is one row too.

    Every save writes the whole file: a few hundred bytes a rollout, against its seconds of work.
    """

    def __init__(self, path: Path, start_step: int) -> None:
        """Take over the rows of a file up to a step, and forget those after it."""
        self.path = path
        self._rows: dict[int, dict[str, Any]] = {}
        self._is_saved = True
        if path.is_file():
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    step = int(row.pop(STEP))
                    if step <= start_step:
                        self._rows[step] = {name: text for name, text in row.items() if text}

    def rows(self) -> dict[int, dict[str, float]]:
        """Return step -> numbers, in order."""
        return {
            step: {name: float(value) for name, value in row.items()}
            for step, row in sorted(self._rows.items())
        }

    def log_metrics(self, metrics: Mapping[str, Any], step: int) -> None:
        """Add numbers to a step."""
        self._rows.setdefault(step, {}).update(
            {name: float(value) for name, value in metrics.items()}
        )
        self._is_saved = False

    def log_hparams(self, params: Mapping[str, Any]) -> None:
        """Leave the config to the manifest."""

    def save(self) -> None:
        """Write the file if there is anything new."""
        if self._is_saved:
            return
        names = dict.fromkeys(name for _, row in sorted(self._rows.items()) for name in row)

        def write(partial: Path) -> None:
            with partial.open("w", newline="") as file:
                writer = csv.DictWriter(file, [STEP, *names])
                writer.writeheader()
                writer.writerows({STEP: step, **row} for step, row in sorted(self._rows.items()))

        replace_file(self.path, write)
        self._is_saved = True


class CurveLogger(CSVLogger):
    """Lightning's CSV logger over a `CurveFile`: `metrics/metrics.csv` in the run's folder."""

    def __init__(self, folder: Path, start_step: int) -> None:
        """Go on with the file in a run's folder after a step."""
        super().__init__(folder, name=CURVES_FOLDER, version="", flush_logs_every_n_steps=1)
        self._start_step = start_step
        self._experiment: CurveFile | None = None

    @property
    @rank_zero_experiment
    def experiment(self) -> CurveFile:
        """The file."""
        if self._experiment is None:
            path = Path(self.log_dir) / "metrics.csv"
            self._experiment = CurveFile(path, self._start_step)
        return self._experiment
