"""The records below a folder, or the runs of a W&B project, as the tables that figures take.

Nothing is chosen here: every finished run is in the tables. What records lack is an empty table
with its columns, so that a figure can say which records it needs.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diversed.evaluation.summary import (
    FRONT_SETTINGS,
    distances_over_heads,
    static_front_band,
    summarise,
)
from diversed.figures.style import PANEL_COLUMNS
from diversed.notebooks.prices import price_table
from diversed.notebooks.runs import (
    EXTRA_RUN_COLUMNS,
    TRAINING_COLUMNS,
    find_runs,
    training_curves,
)
from diversed.notebooks.times import TIME_COLUMNS, relative_times
from diversed.records.folders import FINISHED
from diversed.records.schema import HEADS, ROW_COLUMNS, RUN_COLUMNS, TRACE_COLUMNS
from diversed.records.store import TRACE_FILE, read_records, read_trace

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
ANALYSIS = ROOT / "analysis"
RECORDS_VARIABLE = "RECORDS"
DEFAULT_RECORDS = ROOT / "outputs" / "demo"
WANDB_PREFIX = "wandb:"
PAPER_FILE = ANALYSIS / "paper_numbers.csv"
SPEEDS_FILE = "speeds.csv"

_RENAMED = {"target_weight": "target_weight_at"}  # of a trace: a run has one, too
_STATIC = ("static", "lossless")
_NUMBERS = ("target_weight", "acceptance_weight", "dial", "draft_length", "temperature")
_SPEED_COLUMNS = ("run_name", "prompt", "num_tokens", "seconds")


def open_records(source: str | Path | None = None) -> "RecordSet":
    """Return the runs below a folder, or of a W&B project.

    Args:
        source: A folder, or "wandb:entity/project"; None: the environment's RECORDS, or the demo's
            folder. W&B has the runs' summary numbers, no records: what is drawn from single
            prompts or tokens is not there.

    Raises:
        RecordsError: There are no records below the folder.
    """
    given = str(source or os.environ.get(RECORDS_VARIABLE) or DEFAULT_RECORDS)
    if given.startswith(WANDB_PREFIX):
        return TrackedRuns(given.removeprefix(WANDB_PREFIX))
    return RecordSet(Path(given))


class RecordSet:
    """The finished runs below a folder, read table by table when first asked for."""

    def __init__(self, folder: Path) -> None:
        """Find the runs.

        Args:
            folder: Searched at any depth.

        Raises:
            RecordsError: There are no records below it.
        """
        self.folder = folder
        self._runs = find_runs(folder)

    @cached_property
    def records(self) -> pd.DataFrame:
        """Columns `RUN_COLUMNS`, `EXTRA_RUN_COLUMNS` and `ROW_COLUMNS`, a row per answer."""
        parts = [read_records(run.folder).assign(**run.columns) for run in self._runs]
        return _concat(parts, [*RUN_COLUMNS, *EXTRA_RUN_COLUMNS, *ROW_COLUMNS])

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per run: `evaluation.summary.summarise`, `EXTRA_RUN_COLUMNS` and its time.

        `relative_time` with `_low` and `_high` is seconds per token over those of plain decoding
        with the same settings on the same device, at batch 1 where the runs were timed so.
        """
        extra = self.records[["run_name", *EXTRA_RUN_COLUMNS]].drop_duplicates("run_name")
        table = summarise(self.records).merge(extra, on="run_name")
        return table.merge(relative_times(table, self.records, self.speeds), on="run_name")

    @cached_property
    def traces(self) -> pd.DataFrame:
        """A row per token of every run that has a trace.

        Columns `TRACE_COLUMNS`, of which `target_weight` is called `target_weight_at`, and those of
        the run.
        """
        parts = []
        for run in self._runs:
            if (run.folder / TRACE_FILE).is_file():
                trace = read_trace(run.folder).rename(columns=_RENAMED)
                parts.append(trace.assign(**run.columns))
        columns = [_RENAMED.get(name, name) for name in TRACE_COLUMNS]
        return _concat(parts, [*columns, *RUN_COLUMNS, *EXTRA_RUN_COLUMNS])

    @cached_property
    def prices(self) -> pd.DataFrame:
        """What acceptance costs by class of context; see `notebooks.prices.price_table`."""
        return price_table(self.traces, self.records)

    @cached_property
    def training(self) -> pd.DataFrame:
        """Training curves: a row per run, part ("train", "validation") and rollout.

        The acceptance of validations is left out where the objective's is a sum.
        """
        parts = [part for run in self._runs for part in training_curves(run)]
        columns = ["part", "rollout", *TRAINING_COLUMNS, "quality", "best_rollout"]
        columns += [*RUN_COLUMNS, *EXTRA_RUN_COLUMNS]
        return _concat(parts, columns).reindex(columns=columns)

    @cached_property
    def speeds(self) -> pd.DataFrame:
        """Times at batch 1, run against run: run_name, prompt, num_tokens, seconds."""
        parts = [pd.read_csv(path) for path in sorted(self.folder.rglob(SPEEDS_FILE))]
        return _concat(parts, list(_SPEED_COLUMNS))

    @cached_property
    def bands(self) -> pd.DataFrame:
        """Confidence bands of the static hulls, for every set of settings with two static runs."""
        columns = [*PANEL_COLUMNS, "expected_acceptance", "quality_low", "quality_high"]
        return _concat(self._by_front(_STATIC, 2, static_front_band), columns)

    @cached_property
    def distances(self) -> pd.DataFrame:
        """How far heads lie above the static front; see `evaluation.summary.distances_over_heads`.

        Columns `PANEL_COLUMNS` beside; settings without a head or a static run have no row.
        """
        parts = self._by_front(HEADS, 1, distances_over_heads)
        lines = ("hull", "curve")
        names = [f"{what}_above_{line}" for line in lines for what in ("quality", "acceptance")]
        ends = ("", "_low", "_high", "_undefined_frac")
        columns = [f"{name}{end}" for name in names for end in ends]
        bounds = [f"acceptance_above_{line}_bound" for line in lines]
        heads = ["method", "train_data", "acceptance_weight", "dial", "num_heads"]
        return _concat(parts, [*PANEL_COLUMNS, *heads, *columns, *bounds])

    @property
    def paper(self) -> pd.DataFrame:
        """The paper's published numbers, from `analysis/paper_numbers.csv`."""
        return pd.read_csv(PAPER_FILE)

    def _by_front(
        self,
        methods: Sequence[str],
        number: int,
        measure: Callable[[pd.DataFrame], pd.DataFrame],
    ) -> Iterator[pd.DataFrame]:
        """Yield what is measured wherever so many runs of some methods share a static front."""
        drafting = self.records[self.records["draft_length"].notna()]
        for key, rows in drafting.groupby(list(FRONT_SETTINGS), dropna=False, sort=False):
            has_static = rows["method"].isin(list(_STATIC)).any()
            own = rows.loc[rows["method"].isin(list(methods)), "run_name"]
            if not has_static or own.nunique() < number:
                continue
            setting = dict(zip(FRONT_SETTINGS, key, strict=True))
            try:
                table = measure(rows)
            except ValueError as error:
                told = ", ".join(f"{name}={setting[name]}" for name in PANEL_COLUMNS)
                logger.warning("no front of %s: %s", told, error)
                continue
            shared: dict[str, Any] = {column: setting[column] for column in PANEL_COLUMNS}
            yield table.assign(**shared)


class TrackedRuns(RecordSet):
    """The runs of a W&B project: their summary numbers alone."""

    def __init__(self, project: str) -> None:
        """Remember where to look.

        Args:
            project: "entity/project".
        """
        self.folder = Path()
        self._runs = []
        self._project = project

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per finished run; numbers that W&B has not are NaN, and there are no times."""
        from diversed.collect import runs_table, wandb_rows  # brings Hydra, which folders need not

        table = runs_table(wandb_rows(self._project))
        missing = [*EXTRA_RUN_COLUMNS, *TIME_COLUMNS, *_summary_columns()]
        blank = dict.fromkeys([name for name in missing if name not in table], np.nan)
        finished = table[table["status"] == FINISHED].assign(**blank)
        return finished.astype(dict.fromkeys(_NUMBERS, float))

    @cached_property
    def speeds(self) -> pd.DataFrame:
        """No times."""
        return _concat([], list(_SPEED_COLUMNS))


def _summary_columns() -> list[str]:
    """Return the columns of a summary, from one of a single blank record."""
    blank: dict[str, Any] = dict.fromkeys([*RUN_COLUMNS, *ROW_COLUMNS], 0.0)
    blank |= {"run_name": "", "error": "none of this is a number"}
    return list(summarise(pd.DataFrame([blank]), num_resamples=1).columns)


def _concat(parts: Iterable[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    """Return tables as one; without any, an empty one with its columns."""
    found = list(parts)
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=columns)
