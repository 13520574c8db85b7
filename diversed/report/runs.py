"""The runs of a report: where they lie, what a reader calls them, which stand side by side."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from diversed.evaluation.summary import summarise
from diversed.figures.labels import LABELS, METHOD_NAMES
from diversed.records.store import (
    RECORDS_FORMATS,
    TRACE_FILE,
    RecordsError,
    read_manifest,
    read_records,
    read_trace,
)
from diversed.theory.bootstrap import bootstrap_mean

_SETTINGS = ("target_weight", "acceptance_weight", "dial")
_FIRST_IN_CHOICE = ("diversed", "lossless", "static")
_LAST_IN_CHOICE = "autoregressive"
_READING_ORDER = ("autoregressive", "lossless", "static", None, "diversed")
_PLACE_OF_OTHERS = _READING_ORDER.index(None)


@dataclass(frozen=True, eq=False)
class Run:
    """One run.

    Attributes:
        name: Its `run_name`, unique within the report.
        label: Its method and setting, such as "static, w = 0.5"; unique within the report.
        method: Name of its verifier.
        folder: Where it lies.
        manifest: What made it.
        records: Its rows, as `records.store.read_records` gives them.
        summary: Its row of `evaluation.summary.summarise`, and the interval of `mean_target_weight`
            over prompts.
    """

    name: str
    label: str
    method: str
    folder: Path
    manifest: Mapping[str, Any]
    records: pd.DataFrame
    summary: Mapping[str, Any]

    @property
    def has_trace(self) -> bool:
        """Whether its tokens were recorded."""
        return (self.folder / TRACE_FILE).is_file()

    def read_trace(self) -> pd.DataFrame:
        """Return its tokens, with the columns of `records.schema.TRACE_COLUMNS`."""
        return read_trace(self.folder)


def load_runs(folders: Iterable[Path]) -> list[Run]:
    """Return every finished run in or below some folders, once each.

    Args:
        folders: Folders of runs, or folders that hold such folders at any depth.

    Returns:
        In the order of the folders; the runs of one folder in reading order: plain decoding,
        lossless, static by falling w, other methods, DIVERSED by rising lambda.

    Raises:
        RecordsError: A folder holds no run, or two runs share a name.
    """
    found: list[tuple[Path, pd.DataFrame, dict[str, Any]]] = []
    by_name: dict[str, Path] = {}
    for folder in folders:
        names = RECORDS_FORMATS.values()
        below = sorted({path.parent for name in names for path in folder.rglob(name)})
        if not below:
            raise RecordsError(
                f"{folder}: no {' and no '.join(names)} in it or below; run eval.py first"
            )
        inside = []
        for run in below:
            records = read_records(run)
            if records.empty:
                raise RecordsError(f"{run}: its records have no rows")
            summary = _summary(records)
            other = by_name.setdefault(summary["run_name"], run)
            if other.resolve() != run.resolve():
                raise RecordsError(
                    f"run {summary['run_name']} lies in {other} and in {run}: give one of them, "
                    "or evaluate again with name=... to tell them apart"
                )
            if other is run:
                inside.append((run, records, summary))
        found += sorted(inside, key=lambda entry: _reading_order(entry[2]))
    labels = _labels([summary for _, _, summary in found])
    return [
        Run(
            name=summary["run_name"],
            label=label,
            method=summary["method"],
            folder=folder,
            manifest=read_manifest(folder),
            records=records,
            summary=summary,
        )
        for (folder, records, summary), label in zip(found, labels, strict=True)
    ]


def choose_runs(runs: Sequence[Run], num_runs: int) -> list[Run]:
    """Return the runs whose texts stand side by side, in the order of `runs`.

    Where there are too many: one run of each method before a second of any, DIVERSED, lossless and
    static first, plain decoding last. Of the static runs the one whose acceptance A is nearest to
    that of the first DIVERSED run comes first: at equal acceptance the texts say most. Runs without
    a trace come after all others.

    Args:
        runs: All runs.
        num_runs: Most runs to return, at least 1.
    """
    heads = [run for run in runs if run.method == "diversed"]
    aim = heads[0].summary["expected_acceptance"] if heads else float("nan")

    def distance(run: Run) -> float:
        gap = abs(run.summary["expected_acceptance"] - aim)
        return 0.0 if run.method != "static" or pd.isna(gap) else float(gap)

    ranked = sorted(runs, key=lambda run: (not run.has_trace, distance(run)))
    seen: Counter[str] = Counter()
    keys: dict[str, tuple[bool, int, int]] = {}
    for run in ranked:
        keys[run.name] = (not run.has_trace, seen[run.method], _priority(run.method))
        seen[run.method] += 1
    chosen = {run.name for run in sorted(ranked, key=lambda run: keys[run.name])[:num_runs]}
    return [run for run in runs if run.name in chosen]


def _reading_order(summary: Mapping[str, Any]) -> tuple[int, float]:
    method = summary["method"]
    rank = _READING_ORDER.index(method) if method in _READING_ORDER else _PLACE_OF_OTHERS
    within = {"static": -summary["target_weight"], "diversed": summary["acceptance_weight"]}
    value = within.get(method, 0.0)
    return rank, float("inf") if pd.isna(value) else value


def _priority(method: str) -> int:
    if method in _FIRST_IN_CHOICE:
        return _FIRST_IN_CHOICE.index(method)
    return len(_FIRST_IN_CHOICE) + (method == _LAST_IN_CHOICE)


def _summary(table: pd.DataFrame) -> dict[str, Any]:
    """Return the run's row of the summary, with the bounds of the mean w."""
    (row,) = summarise(table).to_dict("records")
    summary: dict[str, Any] = {str(name): value for name, value in row.items()}
    weights = table.assign(weight=table["mean_target_weight"].astype(float))
    by_prompt = weights.groupby("prompt_id", sort=False)["weight"].mean().dropna()
    if len(by_prompt):
        interval = bootstrap_mean(by_prompt.to_numpy(float), seed=0)
        summary["mean_target_weight_low"] = interval.low
        summary["mean_target_weight_high"] = interval.high
    return summary


def _labels(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return names for reading; runs that method and setting do not tell apart add their own."""
    labels = []
    for summary in summaries:
        values = {column: summary[column] for column in _SETTINGS if pd.notna(summary[column])}
        if values.get("dial") == 0:
            del values["dial"]
        parts = [f"{LABELS.get(column, column)} = {value:g}" for column, value in values.items()]
        if not parts and summary["setting"]:
            parts = [summary["setting"]]
        labels.append(", ".join([METHOD_NAMES.get(summary["method"], summary["method"]), *parts]))
    number = Counter(labels)
    return [
        f"{label} ({summary['run_name']})" if number[label] > 1 else label
        for label, summary in zip(labels, summaries, strict=True)
    ]
