"""Tables for reading: one row per run in, strings out. Reads no file and drops no row."""

import math
from typing import Any

import pandas as pd

from diversed.figures.labels import label, method_name, require_columns

MISSING = "–"
_FORMATS = {
    "quality": "{:.3f}",
    "expected_acceptance": "{:.3f}",
    "acceptance_rate": "{:.3f}",
    "token_acceptance_rate": "{:.3f}",
    "block_efficiency": "{:.2f}",
    "tokens_per_second": "{:.1f}",
    "mean_num_tokens": "{:.1f}",
    "num_truncated": "{:.0f}",
    "num_errors": "{:.0f}",
    "num_prompts": "{:.0f}",
}
_SETTINGS = ("target_weight", "acceptance_weight")
_REQUIRED = (
    "method",
    "run_name",
    *_SETTINGS,
    "quality_low",
    "quality_high",
    "expected_acceptance_low",
    "expected_acceptance_high",
    *_FORMATS,
)
_FIRST = ("autoregressive", "lossless", "static")
_LAST = "diversed"


def results_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return run rows as a table of strings, in reading order.

    The order is plain decoding, lossless, static by falling w, the other methods, DIVERSED by
    rising λ; rows that tie keep theirs. A number whose bounds are given (`<column>_low` and
    `<column>_high`) reads "0.912 [0.890, 0.930]", and "–" stands for NaN.

    Args:
        table: One row per run. Columns: `method`, `run_name`, `target_weight` (w of a static run),
            `acceptance_weight` (λ of a head), `quality` and `expected_acceptance` with their
            `_low` and `_high`, `acceptance_rate`, `token_acceptance_rate`, `block_efficiency`,
            `tokens_per_second`, `mean_num_tokens`, `num_truncated`, `num_errors`, `num_prompts`.
            A value that does not apply to a run is NaN.

    Raises:
        ValueError: Columns are missing, or a method is unknown.
    """
    require_columns(table, _REQUIRED)
    rows = table.to_dict("records")
    rows.sort(key=_reading_order)
    columns = {
        label("run_name"): [row["run_name"] for row in rows],
        label("method"): [method_name(row["method"]) for row in rows],
        "setting": [_setting(row) for row in rows],
    }
    for column in _FORMATS:
        columns[label(column)] = [_number(row, column) for row in rows]
    return pd.DataFrame(columns, dtype=str)


def to_markdown(display: pd.DataFrame) -> str:
    """Return a table of strings as a Markdown pipe table, without the index."""
    lines = [list(display.columns), ["---"] * len(display.columns), *display.values.tolist()]
    cells = [[str(cell).replace("|", r"\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _reading_order(row: dict[Any, Any]) -> tuple[int, float]:
    method = row["method"]
    rank = _FIRST.index(method) if method in _FIRST else len(_FIRST) + (method == _LAST)
    within = {"static": -row["target_weight"], _LAST: row["acceptance_weight"]}.get(method, 0.0)
    return rank, math.inf if pd.isna(within) else within


def _setting(row: dict[Any, Any]) -> str:
    parts = [f"{label(name)} = {row[name]:g}" for name in _SETTINGS if pd.notna(row[name])]
    return ", ".join(parts) or MISSING


def _number(row: dict[Any, Any], column: str) -> str:
    if pd.isna(row[column]):
        return MISSING
    text = _FORMATS[column].format(row[column])
    bounds = [row.get(f"{column}_low"), row.get(f"{column}_high")]
    if any(pd.isna(bound) for bound in bounds):
        return text
    low, high = (_FORMATS[column].format(bound) for bound in bounds)
    return f"{text} [{low}, {high}]"
