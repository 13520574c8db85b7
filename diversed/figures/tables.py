"""Tables for reading: one row per run in, strings out. Reads no file and drops no row."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from diversed.figures.checks import require_columns
from diversed.figures.labels import SETTING_COLUMNS, label, method_name, setting_text
from diversed.figures.style import PANEL_COLUMNS, in_reading_order

MISSING = "–"
FORMATS = {
    "quality": "{:.3f}",
    "expected_acceptance": "{:.3f}",
    "acceptance_rate": "{:.3f}",
    "token_acceptance_rate": "{:.3f}",
    "block_efficiency": "{:.2f}",
    "mean_accepted": "{:.2f}",
    "bias": "{:.3f}",
    "relative_time": "{:.2f}",
    "tokens_per_second": "{:.1f}",
    "mean_num_tokens": "{:.1f}",
    "num_truncated": "{:.0f}",
    "num_errors": "{:.0f}",
    "num_prompts": "{:.0f}",
    "temperature": "{:g}",
    "draft_length": "{:g}",
}
_RESULTS = (
    *("quality", "expected_acceptance", "acceptance_rate", "token_acceptance_rate"),
    *("block_efficiency", "bias", "tokens_per_second", "mean_num_tokens"),
    *("num_truncated", "num_errors", "num_prompts"),
)
_MAIN = (
    *("expected_acceptance", "acceptance_rate", "quality", "bias", "relative_time"),
    *("num_truncated", "num_errors", "num_prompts"),
)
_LATEX = {
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
    **{"λ": r"$\lambda$", "τ": r"$\tau$", "ν": r"$\nu$", "α": r"$\alpha$", "θ": r"$\theta$"},
    **{"ℓ": r"$\ell$", "×": r"$\times$", "·": r"$\cdot$", "−": "$-$", "–": "--", "≥": r"$\geq$"},
}


def results_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return run rows as a table of strings with all their numbers, in reading order.

    The order is plain decoding, lossless, static by falling w, the other methods, DIVERSED by
    rising λ, within each pair, data, temperature and draft length; rows that tie keep theirs. A
    number whose bounds are given (`<column>_low` and `<column>_high`) reads "0.912 [0.890, 0.930]",
    and "–" stands for NaN.

    Args:
        table: One row per run. Columns: `method`, `run_name`, `target_weight` (w of a static run),
            `acceptance_weight` and `dial` (of a head), `setting` (of other rules, as text),
            `quality` and `expected_acceptance` with their `_low` and `_high`, `acceptance_rate`,
            `token_acceptance_rate`,
            `block_efficiency`, `bias`, `tokens_per_second`, `mean_num_tokens`, `num_truncated`,
            `num_errors`, `num_prompts`. A value that does not apply to a run is NaN. Where there
            are `PANEL_COLUMNS`, those that differ between runs are shown.

    Raises:
        ValueError: Columns are missing, or a method is unknown.
    """
    bounds = [f"{name}_{end}" for name in _RESULTS[:2] for end in ("low", "high")]
    require_columns(table, ("method", "run_name", *SETTING_COLUMNS, *_RESULTS, *bounds))
    ordered = by_panel(table)
    columns = {label("run_name"): ordered["run_name"].tolist(), **identity(ordered)}
    columns |= {label(name): cells(ordered, name) for name in _RESULTS}
    return pd.DataFrame(columns, dtype=str)


def main_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return the paper's main table: acceptance, quality and time of each method, pair and data.

    Args:
        table: As for `results_table`, with `PANEL_COLUMNS` and `relative_time` (seconds per token
            over those of plain decoding, NaN where it is not known).

    Raises:
        ValueError: Columns are missing, or a method is unknown.
    """
    require_columns(table, ("method", "run_name", *SETTING_COLUMNS, *PANEL_COLUMNS, *_MAIN))
    ordered = by_panel(table)
    shown = {label(name): ordered[name].tolist() for name in ("model", "data")}
    columns = shown | identity(ordered) | {label(name): cells(ordered, name) for name in _MAIN}
    return pd.DataFrame(columns, dtype=str)


def by_panel(table: pd.DataFrame, *, but: str | None = None) -> pd.DataFrame:
    """Return rows in reading order within each pair, data, temperature and draft length.

    Panels stand in the order in which they appear; plain decoding, which has no draft length,
    stands before those with one.

    Args:
        table: One row per run.
        but: One of `PANEL_COLUMNS` that is not looked at.
    """
    ordered = in_reading_order(table)
    present = [column for column in PANEL_COLUMNS if column in table and column != but]
    if not present:
        return ordered
    ranks = pd.DataFrame(
        {
            column: ordered[column].map(_ranks(table[column], is_number=column == "draft_length"))
            for column in present
        }
    ).fillna(-1)
    return ordered.loc[ranks.sort_values(present, kind="stable").index].reset_index(drop=True)


def identity(rows: pd.DataFrame, *, also: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the columns that say what a row is: what differs between panels, method, setting.

    Args:
        rows: One row per run.
        also: Further columns to show.
    """
    told = [
        column
        for column in PANEL_COLUMNS
        if column in rows and rows[column].nunique() > 1 and column not in also
    ]
    columns = {label(column): cells(rows, column) for column in (*told, *also)}
    records = rows.to_dict("records")
    columns[label("method")] = [method_name(row["method"]) for row in records]
    columns["setting"] = [setting_text(row) or MISSING for row in records]
    return columns


def cells(rows: pd.DataFrame, column: str) -> list[str]:
    """Return a column as text, with bounds where they are given."""
    return [number_text(row, column) for row in rows.to_dict("records")]


def number_text(row: Mapping[Any, Any], column: str) -> str:
    """Return a row's number with its bounds, such as "0.912 [0.890, 0.930]", or its text."""
    value = row[column]
    if pd.isna(value):
        return MISSING
    if column not in FORMATS:
        return str(value)
    text = FORMATS[column].format(value)
    bounds = [row.get(f"{column}_low"), row.get(f"{column}_high")]
    if any(pd.isna(bound) for bound in bounds):
        return text
    low, high = (FORMATS[column].format(bound) for bound in bounds)
    return f"{text} [{low}, {high}]"


def to_markdown(display: pd.DataFrame) -> str:
    """Return a table of strings as a Markdown pipe table, without the index."""
    lines = [list(display.columns), ["---"] * len(display.columns), *display.values.tolist()]
    text = [[str(cell).replace("|", r"\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in text)


def to_latex(display: pd.DataFrame) -> str:
    r"""Return a table of strings as a LaTeX tabular with booktabs rules, without the index.

    Signs that LaTeX would read as commands are escaped, Greek letters are set in math mode.
    """
    lines = [" & ".join(map(_latex, map(str, row))) + r" \\" for row in display.values.tolist()]
    head = " & ".join(map(_latex, map(str, display.columns))) + r" \\"
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{'l' * len(display.columns)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _latex(text: str) -> str:
    return re.sub("|".join(map(re.escape, _LATEX)), lambda found: _LATEX[found[0]], text)


def _ranks(values: pd.Series, *, is_number: bool) -> dict[Any, int]:
    """Return the place of each value: by size for numbers, else by first appearance."""
    unique = list(values.dropna().unique())
    return {value: rank for rank, value in enumerate(sorted(unique) if is_number else unique)}
