"""Accepted tokens: per block, and against wall-clock time."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diversed.figures.checks import require_columns, require_rows
from diversed.figures.front import note_untimed
from diversed.figures.labels import SETTING_COLUMNS, label, method_name
from diversed.figures.style import (
    BLACK,
    GREY,
    MAX_COLUMNS,
    PANEL_COLUMNS,
    STYLES,
    figure_legend,
    in_reading_order,
    panel_figure,
    panels,
    row_labels,
    shade,
)


def plot_accepted_per_block(table: pd.DataFrame) -> Figure:
    """Draw the accepted tokens of a verification round, a bar for each run, by pair and data.

    The dotted line is N, the most that a round can accept. Bars carry 95 % intervals where the
    table has them.

    Args:
        table: One row per run. Columns: `method`, `run_name`, `seed`, `target_weight`,
            `acceptance_weight`, `dial`, `PANEL_COLUMNS`, and `mean_accepted` (accepted tokens per
            block) with its `_low` and `_high`.

    Raises:
        MissingRecords: No run accepted anything: none has a draft.
        ValueError: Columns are missing, or a method is unknown.
    """
    mean = "mean_accepted"
    columns = ("method", *SETTING_COLUMNS, *PANEL_COLUMNS, "run_name", "seed", mean)
    require_columns(table, (*columns, f"{mean}_low", f"{mean}_high"))
    require_rows(table[table["draft_length"].notna()], "a run with a draft: python eval.py")
    found = panels(table)
    heights = [1.1 + 0.27 * len(panel.rows) for panel in found]
    figure, grid = panel_figure(len(found), (5.2, 0.0), shares_x=True, heights=heights)
    for place, (axes, panel) in enumerate(zip(grid, found, strict=True)):
        first = place - place % MAX_COLUMNS
        most = max(len(panel.rows) for panel in found[first : first + MAX_COLUMNS])
        rows = in_reading_order(panel.rows)
        _draw_bars(axes, rows, mean)
        axes.set_ylim(len(rows) - most - 0.6, len(rows) - 0.4)  # bars of one width in a row
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlabel(label(mean))
        for length in rows["draft_length"].dropna().unique():
            axes.axvline(length, color=GREY, linestyle=":", linewidth=1.2)
            axes.annotate(
                f"{label('draft_length')} = {length:g}",
                (length, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(4, 0),
                textcoords="offset points",
                va="top",
                fontsize=8,
                color=GREY,
            )
    return figure


def plot_acceptance_time(table: pd.DataFrame) -> Figure:
    """Draw time per token against acceptance, a point for each run, with their correlation.

    r is Pearson's correlation over the runs with a draft: how much of the time acceptance explains.
    What it does not is the cost of the rule, of the bonus token and of the machine.

    Args:
        table: One row per run. Columns: `method`, `run_name`, `SETTING_COLUMNS`, `PANEL_COLUMNS`,
            `acceptance_rate` (accepted / drafted) and `relative_time` (seconds per token over those
            of plain decoding), each with `_low` and `_high`.

    Raises:
        MissingRecords: No run with a draft has a time.
        ValueError: Columns are missing, or a method is unknown.
    """
    x, y = "acceptance_rate", "relative_time"
    bounds = [f"{name}_{end}" for name in (x, y) for end in ("low", "high")]
    require_columns(table, ("method", "run_name", *SETTING_COLUMNS, *PANEL_COLUMNS, x, y, *bounds))
    drafting = table[table["method"] != "autoregressive"]
    require_rows(
        drafting[drafting[y].notna()],
        "runs with a draft, and plain decoding on the same pair, data and device to relate their "
        "times to: python eval.py verifier=autoregressive",
    )
    found = panels(drafting)
    figure, grid = panel_figure(len(found), (5.4, 4.4) if len(found) == 1 else (4.4, 3.8))
    for axes, panel in zip(grid, found, strict=True):
        timed = panel.rows[panel.rows[y].notna()]
        axes.axhline(1, color=GREY, linestyle=":", linewidth=1.5, label="plain decoding")
        _draw_scatter(axes, timed, x, y)
        note_untimed(axes, len(panel.rows) - len(timed))
        axes.set_title(" · ".join(filter(None, [panel.title, _correlation(timed, x, y)])), size=10)
        axes.set_xlabel(label(x))
        axes.set_ylabel(label(y))
        axes.set_ylim(0, 1.1 * np.nanmax([1.0, *timed[y], *timed[f"{y}_high"]]))
    figure_legend(figure, grid, num_columns=4)
    return figure


def _draw_bars(axes: Axes, rows: pd.DataFrame, column: str) -> None:
    places = np.arange(len(rows))[::-1]  # the first on top
    for place, row in zip(places, rows.to_dict("records"), strict=True):
        style = STYLES[row["method"]]
        low, value, high = (row[f"{column}{end}"] for end in ("_low", "", "_high"))
        axes.barh(
            place,
            value,
            height=0.66,
            facecolor=shade(style.color, 0.7),
            edgecolor=shade(style.color, 0.2),
            hatch=style.hatch,
            linewidth=0.8,
        )
        if pd.notna(low) and pd.notna(high):
            axes.hlines(place, low, high, color="white", linewidth=4.0)
            axes.hlines(place, low, high, color=BLACK, linewidth=1.6)
        end = value if pd.isna(high) else high
        axes.annotate(
            f"{value:.2f}",
            (end, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8},
        )
    axes.set_yticks(places, row_labels(rows), fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.12)


def _draw_scatter(axes: Axes, rows: pd.DataFrame, x: str, y: str) -> None:
    for method, own in in_reading_order(rows).groupby("method", sort=False, dropna=False):
        style = STYLES[str(method)]
        axes.plot(
            own[x],
            own[y],
            linestyle="none",
            marker=style.marker,
            markersize=style.size,
            color=style.color,
            markerfacecolor=style.face or style.color,
            label=method_name(str(method)),
            zorder=3,
        )
        axes.vlines(own[x], own[f"{y}_low"], own[f"{y}_high"], color=style.color, linewidth=1.0)
        axes.hlines(own[y], own[f"{x}_low"], own[f"{x}_high"], color=style.color, linewidth=1.0)


def _correlation(rows: pd.DataFrame, x: str, y: str) -> str:
    values = rows[[x, y]].to_numpy(float)
    if len(values) < 3 or (np.ptp(values, axis=0) == 0).any():
        return ""
    coefficient = f"{np.corrcoef(values.T)[0, 1]:.2f}".replace("-", "−")
    return f"r = {coefficient} over {len(values)} runs"
