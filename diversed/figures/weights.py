"""What a learnt verifier does with its weight w: how it is spread, on which tokens, where p != q.

All figures are about emitted tokens (accepted, recovered and bonus), as the objective's A is.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diversed.figures.checks import require_columns, require_rows
from diversed.figures.labels import SETTING_COLUMNS, label, run_label
from diversed.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PANEL_COLUMNS,
    PURPLE,
    SKY,
    VERMILION,
    by_setting,
    panel_figure,
    panels,
    shade,
)
from diversed.figures.token_classes import TOKEN_CLASSES, token_class
from diversed.records.schema import EMITTED

CODE_DATA = ("humaneval", "mbpp")
"""Data whose texts are programs."""

_COLUMNS = ("status", "target_weight_at", "method", *SETTING_COLUMNS, *PANEL_COLUMNS)
_NEEDS = (
    "the trace of a learnt verifier: python train.py, or python eval.py verifier=diversed "
    "verifier.checkpoint=..."
)
_NUM_BINS = 20
_LINES = (
    *((VERMILION, "-"), (BLUE, "--"), (BLACK, ":"), (GREEN, "-.")),
    *((ORANGE, (0, (5, 1))), (PURPLE, (0, (1, 1))), (SKY, (0, (3, 1, 1, 1)))),
)


def plot_weight_distribution(traces: pd.DataFrame) -> Figure:
    """Draw how w is spread over emitted tokens, a line for each setting of the verifier.

    A head that has learnt nothing gives a spike. The legend tells the mean.

    Args:
        traces: Entries of any number of runs. Columns `status`, `target_weight_at` (w at the
            position), and of the run `method`, `target_weight`, `acceptance_weight`, `dial` and
            `PANEL_COLUMNS`. Entries without w are of runs that have none, and not drawn.

    Raises:
        MissingRecords: No emitted token has a w.
        ValueError: Columns are missing, or a method is unknown.
    """
    emitted = _emitted(traces, ())
    found = panels(emitted)
    figure, grid = panel_figure(len(found), (5.6, 3.8), shares_x=True)
    edges = np.linspace(0, 1, _NUM_BINS + 1)
    for axes, panel in zip(grid, found, strict=True):
        for index, (shared, own) in enumerate(by_setting(panel.rows)):
            weights = own["target_weight_at"].to_numpy(float)
            color, dashes = _LINES[index % len(_LINES)]
            share = np.histogram(weights, edges)[0] / len(weights)
            axes.stairs(
                share,
                edges,
                color=color,
                linestyle=dashes,
                linewidth=1.8,
                fill=False,
                label=f"{run_label(shared)} (mean {weights.mean():.2f})",
            )
        axes.set_title(panel.title, fontsize=10)
        axes.set_xlim(0, 1)
        axes.set_xlabel(label("target_weight_at"))
        axes.set_ylabel(label("emitted_frac"))
        axes.legend(frameon=False, fontsize=8)
    return figure


def plot_weight_by_class(traces: pd.DataFrame, *, code_data: Sequence[str] = CODE_DATA) -> Figure:
    """Draw w by class of token: middle half, median and mean, and how many tokens there are.

    Args:
        traces: As for `plot_weight_distribution`, with `token` (its text).
        code_data: Names of the data whose texts are programs; see `token_classes.token_class`.

    Raises:
        MissingRecords: No emitted token has a w.
        ValueError: Columns are missing, or a method is unknown.
    """
    groups = _groups(_emitted(traces, ("token",)))
    figure, grid = panel_figure(len(groups), (5.6, 3.2), shares_x=True)
    for axes, (title, rows) in zip(grid, groups, strict=True):
        is_code = rows["data"].isin(list(code_data)).iloc[0]
        classes = {text: token_class(text, is_code=is_code) for text in rows["token"].unique()}
        by_class = rows["target_weight_at"].groupby(rows["token"].map(classes))
        shown = [name for name in TOKEN_CLASSES if name in by_class.groups]
        for place, name in enumerate(reversed(shown)):
            _draw_class(axes, place, by_class.get_group(name).to_numpy(float))
        sizes = [len(by_class.groups[name]) for name in reversed(shown)]
        names = [
            f"{name}\n{size / len(rows):.0%} of tokens"
            for name, size in zip(reversed(shown), sizes, strict=True)
        ]
        axes.set_yticks(range(len(shown)), names, fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.set_xlabel(label("target_weight_at"))
        axes.set_title(title, fontsize=10)
    handles, texts = grid[0].get_legend_handles_labels()
    unique = dict(zip(texts, handles, strict=True))
    figure.legend(
        unique.values(), unique.keys(), loc="outside upper center", ncols=3, frameon=False
    )
    return figure


def plot_weight_tv(traces: pd.DataFrame) -> Figure:
    """Draw w against TV(q, p): which disagreements the verifier forgives.

    Cells are darker the more emitted tokens they hold (a logarithmic scale); the line is the mean w
    at that TV. Upper right: the models disagree and the target is obeyed; lower right: they
    disagree and the draft may pass.

    Args:
        traces: As for `plot_weight_distribution`, with `tv_distance`.

    Raises:
        MissingRecords: No emitted token has a w.
        ValueError: Columns are missing, or a method is unknown.
    """
    groups = _groups(_emitted(traces, ("tv_distance",)))
    figure, grid = panel_figure(len(groups), (5.2, 4.2), shares_x=True, shares_y=True)
    for axes, (title, rows) in zip(grid, groups, strict=True):
        tv = rows["tv_distance"].to_numpy(float)
        weights = rows["target_weight_at"].to_numpy(float)
        edges = np.linspace(0, 1, _NUM_BINS + 1)
        counts = np.histogram2d(tv, weights, bins=[edges, edges])[0]
        mesh = axes.pcolormesh(
            edges, edges, np.ma.masked_equal(counts.T, 0), cmap="Blues", norm="log"
        )
        figure.colorbar(mesh, ax=axes, label=label("num_emitted"))
        place = np.clip(np.digitize(tv, edges) - 1, 0, _NUM_BINS - 1)
        number = np.bincount(place, minlength=_NUM_BINS)
        total = np.bincount(place, weights, minlength=_NUM_BINS)
        filled = number > 0
        axes.plot(
            (edges[:-1] + edges[1:])[filled] / 2,
            total[filled] / number[filled],
            color=BLACK,
            linewidth=1.0,
            marker=".",
            label="mean w",
        )
        axes.legend(frameon=True, fontsize=8, loc="best")
        axes.set_xlabel(label("tv_distance"))
        axes.set_ylabel(label("target_weight_at"))
        axes.set_title(title, fontsize=10)
    return figure


def _emitted(traces: pd.DataFrame, more: tuple[str, ...]) -> pd.DataFrame:
    """Return the emitted tokens that have a w."""
    require_columns(traces, (*_COLUMNS, *more))
    has_weight = traces["status"].isin(list(EMITTED)) & traces["target_weight_at"].notna()
    rows = traces[has_weight]
    require_rows(rows, _NEEDS)
    return rows


def _groups(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of every panel and setting, with a title."""
    return [
        (" · ".join(filter(None, [run_label(shared), panel.title])), own)
        for panel in panels(rows)
        for shared, own in by_setting(panel.rows)
    ]


def _draw_class(axes: Axes, place: int, weights: Any) -> None:
    low, middle, high = np.quantile(weights, [0.25, 0.5, 0.75])
    axes.barh(
        place,
        high - low,
        left=low,
        height=0.5,
        facecolor=shade(BLUE, 0.65),
        edgecolor=BLUE,
        linewidth=0.8,
        label="middle half",
    )
    axes.vlines(middle, place - 0.25, place + 0.25, color=BLUE, linewidth=2.2, label="median")
    axes.plot(
        weights.mean(),
        place,
        linestyle="none",
        marker="D",
        markersize=6,
        color=BLACK,
        markerfacecolor="white",
        label="mean",
    )
