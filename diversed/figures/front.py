"""Quality against acceptance and against time: static runs as a front, and what lies above it."""

from collections.abc import Callable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from diversed.figures.annotate import TO_THE_LOWER_LEFT, TO_THE_UPPER_RIGHT, Note, place_notes
from diversed.figures.checks import require_columns, require_rows, require_values
from diversed.figures.labels import SETTING_COLUMNS, label, method_name, setting_text
from diversed.figures.style import (
    BLACK,
    BLUE,
    GREY,
    PANEL_COLUMNS,
    STYLES,
    Panel,
    figure_legend,
    in_reading_order,
    panel_figure,
    panels,
    shade,
)
from diversed.records.schema import HEADS
from diversed.theory.front import concave_hull, interpolated_curve

_POINT_COLUMNS = (
    *PANEL_COLUMNS,
    *("method", "run_name", *SETTING_COLUMNS),
    *("quality", "quality_low", "quality_high"),
)
_ONE_PANEL, _SMALL_PANEL = (6.4, 4.8), (4.6, 3.9)


def plot_front(
    table: pd.DataFrame, *, band: pd.DataFrame | None = None, quality_label: str | None = None
) -> Figure:
    """Draw quality against acceptance: static runs, their concave hull, and what lies above it.

    Static points are joined by a line; the dashed hull over them (and over lossless, if no static
    run has w = 1) is what coin flips between static weights reach, so only points outside the
    shaded region show that context matters. Bars are intervals, left out where their bounds are
    NaN. Plain decoding accepts nothing and is a dotted line with its interval as a band. One panel
    for each pair, data, temperature and draft length.

    Args:
        table: One row per run. Columns: `method`, `run_name`, `target_weight` (w of a static run,
            else NaN), `acceptance_weight` and `dial` (of a head, else NaN), `setting` (of other
            rules, as text), `quality` and `expected_acceptance` with their `_low` and `_high`, and
            `PANEL_COLUMNS`. Plain decoding has no acceptance. With `train_data` (of a head; NaN if
            unknown) points of heads from other data say so.
        band: Confidence band of the hull: `PANEL_COLUMNS`, `expected_acceptance`, `quality_low` and
            `quality_high`, sorted by acceptance.
        quality_label: Label of the quality axis where the task's metric is known.

    Raises:
        MissingRecords: The table has no rows.
        ValueError: Columns are missing, a method is unknown, or a run has no quality or (except
            plain decoding) no acceptance.
    """
    acceptance = "expected_acceptance"
    require_columns(table, (*_POINT_COLUMNS, *_with_bounds(acceptance)))
    require_rows(table, "any evaluation: python eval.py verifier=static verifier.weight=0.8")
    is_plain = table["method"] == "autoregressive"
    require_values(table, ["quality"])
    require_values(table[~is_plain], [acceptance])
    if band is not None:
        require_columns(band, (*PANEL_COLUMNS, acceptance, "quality_low", "quality_high"))

    def draw(axes: Axes, panel: Panel) -> None:
        points = panel.rows[panel.rows["method"] != "autoregressive"]
        _draw_plain_line(axes, panel.rows[panel.rows["method"] == "autoregressive"])
        _draw_methods(axes, points, acceptance)
        if band is not None:
            _draw_band(axes, _of_panel(band, points))
        _draw_hull(axes, points)

    return _draw_panels(table, draw, acceptance, quality_label)


def plot_time_front(table: pd.DataFrame, *, quality_label: str | None = None) -> Figure:
    """Draw quality against wall-clock time per token, relative to plain decoding.

    Up and to the left is better. Static runs are joined in the order of w. Times mix linearly only
    per answer, not per token, so there is no hull here.

    Args:
        table: As for `plot_front`, with `relative_time` (seconds per token over those of plain
            decoding) and its `_low` and `_high` in the place of the acceptance.
        quality_label: Label of the quality axis where the task's metric is known.

    Raises:
        MissingRecords: No run has a time: there is no plain decoding to compare with.
        ValueError: Columns are missing, a method is unknown, or a run has no quality.
    """
    time = "relative_time"
    require_columns(table, (*_POINT_COLUMNS, *_with_bounds(time)))
    is_timed = table[time].notna()
    require_rows(
        table[is_timed],
        "plain decoding on the same pair, data and device as the other runs, to relate their times "
        "to: python eval.py verifier=autoregressive",
    )
    require_values(table, ["quality"])

    def draw(axes: Axes, panel: Panel) -> None:
        timed = panel.rows[panel.rows[time].notna()]
        axes.axvline(1, color=GREY, linestyle=":", linewidth=1.0)
        _draw_methods(axes, timed, time)
        _draw_joined(axes, timed, time)
        note_untimed(axes, len(panel.rows) - len(timed))

    return _draw_panels(table, draw, time, quality_label)


def note_untimed(axes: Axes, number: int) -> None:
    """Say in a corner how many runs have no time and so no point."""
    if number:
        text = f"{number} run{'s' if number > 1 else ''} without a time"
        axes.text(0.01, 0.01, text, transform=axes.transAxes, fontsize=7, color=GREY)


def _with_bounds(column: str) -> tuple[str, str, str]:
    return column, f"{column}_low", f"{column}_high"


def _draw_panels(
    table: pd.DataFrame, draw: Callable[[Axes, Panel], None], x: str, quality_label: str | None
) -> Figure:
    found = panels(table)
    size = _ONE_PANEL if len(found) == 1 else _SMALL_PANEL
    figure, grid = panel_figure(len(found), size)
    for axes, panel in zip(grid, found, strict=True):
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel(label(x))
        axes.set_ylabel(quality_label or label("quality"))
        axes.margins(0.09)
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        draw(axes, panel)
    figure_legend(figure, grid)
    for axes, panel in zip(grid, found, strict=True):
        _annotate(figure, axes, panel.rows, x)
    return figure


def _draw_plain_line(axes: Axes, rows: pd.DataFrame) -> None:
    for row in rows.to_dict("records"):
        name = method_name(row["method"])
        axes.axhline(row["quality"], color=GREY, linestyle=":", linewidth=1.5, label=name)
        if pd.notna(row["quality_low"]) and pd.notna(row["quality_high"]):
            axes.axhspan(
                row["quality_low"], row["quality_high"], color=GREY, alpha=0.15, linewidth=0
            )


def _draw_methods(axes: Axes, points: pd.DataFrame, x: str) -> None:
    for method, rows in in_reading_order(points).groupby("method", sort=False, dropna=False):
        name = method_name(str(method))
        style = STYLES[str(method)]
        bars: dict[str, Any] = {"color": style.color, "linewidth": 1.0, "zorder": 3.5}
        axes.vlines(rows[x], rows["quality_low"], rows["quality_high"], **bars)
        axes.hlines(rows["quality"], rows[f"{x}_low"], rows[f"{x}_high"], **bars)
        axes.plot(
            rows[x],
            rows["quality"],
            linestyle="none",
            marker=style.marker,
            markersize=style.size,
            color=style.color,
            markerfacecolor=style.face or style.color,
            zorder=3.4 - style.size / 50,  # small ones on top
            label=name,
        )


def _static_rows(points: pd.DataFrame) -> pd.DataFrame:
    """Return the static runs, and lossless ones in the place of a missing w = 1."""
    rows = points[points["method"] == "static"]
    if (rows["target_weight"] == 1).any():
        return rows
    lossless = points[points["method"] == "lossless"].assign(target_weight=1.0)
    return pd.concat([rows, lossless]) if len(rows) else lossless


def _draw_joined(axes: Axes, points: pd.DataFrame, x: str) -> None:
    rows = _static_rows(points).sort_values("target_weight")
    if len(rows):
        axes.plot(rows[x], rows["quality"], color=BLUE, linewidth=0.9, label="static, joined")


def _draw_hull(axes: Axes, points: pd.DataFrame) -> None:
    rows = _static_rows(points)
    if rows.empty:
        return
    curve = interpolated_curve(rows["expected_acceptance"], rows["quality"])
    hull = concave_hull(rows["expected_acceptance"], rows["quality"])
    axes.plot(curve.acceptance, curve.quality, color=BLUE, linewidth=0.9, label="static, joined")
    axes.plot(
        hull.acceptance,
        hull.quality,
        color=BLACK,
        linestyle="--",
        linewidth=1.2,
        label="concave hull (coin flips)",
    )
    floor = axes.get_ylim()[0]
    axes.fill_between(
        hull.acceptance, floor, hull.quality, color=shade(BLUE, 0.92), linewidth=0, zorder=0
    )
    axes.set_ylim(bottom=floor)


def _draw_band(axes: Axes, band: pd.DataFrame) -> None:
    if band.empty:
        return
    axes.fill_between(
        band["expected_acceptance"],
        band["quality_low"],
        band["quality_high"],
        color=shade(BLUE, 0.72),
        linewidth=0,
        zorder=0.5,
        label="95 % band of the hull",
    )


def _of_panel(band: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a band that belong to the runs of a panel."""
    if points.empty:
        return band.iloc[:0]
    own = points.iloc[0]
    is_own = pd.Series(True, index=band.index)
    for column in PANEL_COLUMNS:
        is_own &= (band[column] == own[column]) | (band[column].isna() & pd.isna(own[column]))
    return band[is_own]


def _annotate(figure: Figure, axes: Axes, rows: pd.DataFrame, x: str) -> None:
    """Write their settings beside heads and static points."""
    shown = rows[rows[x].notna()]
    heads = shown[shown["method"].isin(HEADS)]
    is_named = len(heads) == 1  # several crowd; see legend
    notes = []
    for method, directions in (
        *((name, TO_THE_UPPER_RIGHT) for name in HEADS),
        ("static", TO_THE_LOWER_LEFT),
    ):
        prefix = f"{method_name(method)} " if is_named and method in HEADS else ""
        for row in shown[shown["method"] == method].to_dict("records"):
            text = setting_text(row).replace(" = ", "=")
            source = row.get("train_data")
            if isinstance(source, str) and source != row["data"]:
                text = f"{text} from {source}".strip()
            if text:
                point = (row[x], row["quality"])
                notes.append(Note(prefix + text, point, STYLES[method].color, directions))
    if notes:
        place_notes(figure, axes, notes)
