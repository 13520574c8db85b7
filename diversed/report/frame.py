"""What stands around the answers: summary rows, settings, notes and origins, as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from diversed.figures.labels import label
from diversed.report.answers import MISSING, Answer, Comparison
from diversed.report.runs import Run

_FORMATS = {
    "quality": "{:.3f}",
    "expected_acceptance": "{:.3f}",
    "acceptance_rate": "{:.3f}",
    "token_acceptance_rate": "{:.3f}",
    "block_efficiency": "{:.2f}",
    "mean_target_weight": "{:.3f}",
    "num_prompts": "{:.0f}",
    "num_errors": "{:.0f}",
    "num_truncated": "{:.0f}",
}
SETTINGS: Mapping[str, str] = {
    "split": "split",
    "seed": "seed",
    "draft_length": "draft length N =",
    "temperature": "temperature T =",
    "top_k": "top-k",
    "top_p": "top-p",
    "max_new_tokens": "token cap",
    "bonus": "bonus token from the",
}
"""Run column -> the words before its value."""

_OF_DRAFTS = ("draft_length", "bonus")
_SHA_LENGTH = 10


@dataclass(frozen=True)
class Cell:
    """A number as text, and its interval as text where it has one."""

    value: str
    interval: str = ""


@dataclass(frozen=True)
class SummaryRow:
    """One run of the summary: label, name with the settings that it does not share, cells."""

    label: str
    name: str
    detail: str
    cells: list[Cell]


def title(runs: Sequence[Run]) -> str:
    """Return the pairs and tasks of the runs, such as "tiny, arithmetic"."""
    names = [run.summary[column] for column in ("model", "data") for run in runs]
    return ", ".join(dict.fromkeys(map(str, names)))


def shared_settings(runs: Sequence[Run]) -> dict[str, str]:
    """Return the settings that all runs share; those of drafts count where there are drafts."""
    shared = {}
    for column in SETTINGS:
        values = {_value(run, column) for run in runs} - {None}
        if len(values) == 1:
            shared[column] = str(values.pop())
    return shared


def column_names() -> list[str]:
    """Return the headings of the summary's numbers."""
    return [label(column) for column in _FORMATS]


def summary_row(run: Run, shared: Mapping[str, str]) -> SummaryRow:
    """Return a run's line of the summary.

    Args:
        run: The run.
        shared: Settings that stand above the table already.
    """
    own = [
        f"{words} {_value(run, column)}"
        for column, words in SETTINGS.items()
        if column not in shared and _value(run, column) is not None
    ]
    cells = []
    for column, form in _FORMATS.items():
        low, high = (run.summary.get(f"{column}_{end}") for end in ("low", "high"))
        has_interval = pd.notna(low) and pd.notna(high)
        interval = f"[{form.format(low)}, {form.format(high)}]" if has_interval else ""
        cells.append(Cell(_number(form, run.summary[column]), interval))
    return SummaryRow(run.label, run.name, ", ".join(own), cells)


def facts(answer: Answer) -> list[str]:
    """Return what an answer's record says of it, in a few words each."""
    row = answer.row
    number = int(row["num_tokens"])
    parts = [f"{number} token" if number == 1 else f"{number} tokens"]
    if row["num_drafted"]:
        parts.append(f"{row['num_tokens'] / row['num_blocks']:.2f} a block")
    if row["expected_acceptance"] is not None:
        parts.append(f"A {row['expected_acceptance']:.3f}")
    if row["mean_target_weight"] is not None:
        parts.append(f"mean w {row['mean_target_weight']:.3f}")
    if row["answer"] is not None and row["answer"] != row["text"]:
        parts.append(f"answer {row['answer']}")
    if row["is_truncated"]:
        parts.append("cut at token cap")
    return parts


def notes(
    runs: Sequence[Run],
    shown: Sequence[Run],
    prompt_ids: Sequence[str],
    comparisons: Sequence[Comparison],
) -> list[str]:
    """Return what a reader must know: what is left out, failed, or was not recorded."""
    lines = []
    num_shown = len({comparison.prompt_id for comparison in comparisons})
    if num_shown < len(prompt_ids):
        lines.append(
            f"{num_shown} of {len(prompt_ids)} prompts are shown, {len(prompt_ids) - num_shown} "
            "are left out (--num-prompts and --max-kilobytes set how many); the summary counts all."
        )
    for run in shown:
        if not run.has_trace:
            lines.append(
                f"{run.label}: run {run.name} has no trace, so its texts are plain; evaluate with "
                "evaluation.writes_trace=true."
            )
    for run in runs:
        errors = run.records["error"].dropna()
        if len(errors):
            lines.append(
                f"{run.label}: {len(errors)} of {len(run.records)} rows have an error and stand in "
                f"no mean. The first: {errors.iloc[0]}"
            )
        num_cut = run.summary["num_cut_prompts"]
        if num_cut:
            lines.append(f"{run.label}: {num_cut} prompts were cut to fit the models' context.")
    if len({run.summary["num_prompts"] for run in runs}) > 1:
        lines.append("The runs have different numbers of prompts: their means may not compare.")
    return lines


def origin(run: Run) -> str:
    """Return what made a run: its name, code, pair, device and date."""
    manifest = run.manifest
    git, versions = manifest.get("git") or {}, manifest.get("versions") or {}
    code = f"diversed {versions.get('diversed') or MISSING}"
    if git.get("sha"):
        changed = " with uncommitted changes" if git.get("is_dirty") else ""
        code += f" at commit {git['sha'][:_SHA_LENGTH]}{changed}"
    pair = manifest.get("pair") or {}
    models = " and ".join(
        f"{role} {pair[role].get('name')}" for role in ("target", "draft") if role in pair
    )
    parts = [code, models, manifest.get("device"), manifest.get("written_at")]
    return f"{run.name}: " + ", ".join(str(part) for part in parts if part)


def _value(run: Run, column: str) -> Any:
    value = run.summary[column]
    if pd.isna(value) or (run.method == "autoregressive" and column in _OF_DRAFTS):
        return None
    return f"{value:g}" if isinstance(value, float) else value


def _number(form: str, value: Any) -> str:
    return MISSING if pd.isna(value) else form.format(value)
