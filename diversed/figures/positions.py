"""Acceptance by position in the block, as counted and as predicted."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diversed.figures.checks import require_columns, require_rows
from diversed.figures.labels import SETTING_COLUMNS, label, method_name, setting_text
from diversed.figures.style import (
    GREY,
    MAX_COLUMNS,
    PANEL_COLUMNS,
    STYLES,
    by_setting,
    figure_legend,
    panel_figure,
    panels,
    shade,
)
from diversed.theory.accepted_length import iid_survival, judged_acceptance
from diversed.theory.blocks import (
    DraftedBlocks,
    SurvivalEstimate,
    count_survival,
    drafted_blocks,
    estimate_survival,
)
from diversed.theory.bootstrap import FloatArray

_TRACE_COLUMNS = (
    *("prompt_id", "sample", "block", "block_position", "status", "accept_prob"),
    *("run_name", "method", *SETTING_COLUMNS, *PANEL_COLUMNS),
)
_NORMAL_95 = 1.96
_NAME_GAP = 0.055  # of the height of an axis, between two names
_MAX_IID_SERIES = 2  # more dotted lines than this hide what they are compared with


def _iid_survival(estimate: SurvivalEstimate) -> FloatArray:
    acceptance = judged_acceptance(estimate.survival)
    return iid_survival(acceptance, len(estimate.survival))


def _iid_acceptance(estimate: SurvivalEstimate) -> FloatArray:
    return np.full(len(estimate.survival), judged_acceptance(estimate.survival))


@dataclass(frozen=True)
class _Kind:
    """One way to look at positions: an attribute of `SurvivalEstimate`, and its i.i.d. value."""

    column: str
    independent: Callable[[SurvivalEstimate], FloatArray]
    iid_label: str
    starts_at_zero: bool


_SURVIVAL = _Kind("survival", _iid_survival, "if independent: a^k", starts_at_zero=True)
_AT_POSITION = _Kind("acceptance_at", _iid_acceptance, "if independent: a", starts_at_zero=False)


def plot_survival(traces: pd.DataFrame) -> Figure:
    """Draw how probably a block accepts k tokens or more, as counted and as predicted.

    Points are counted frequencies with 95 % intervals, clustered by prompt; lines are the
    Rao-Blackwellised prediction from the acceptance probabilities of all drafted tokens
    (`theory.blocks`), which assumes no independence. Dotted lines, where there is room for them,
    are a^k with the acceptance a per judged token, as if tokens were independent. Blocks count as
    they were decoded, those that an end cut short too. Seeds of one setting are pooled.

    Args:
        traces: Entries of any number of runs. Columns of `records.schema.TRACE_COLUMNS`, and of the
            run `run_name`, `method`, `target_weight`, `acceptance_weight`, `dial` and
            `PANEL_COLUMNS`. Plain decoding drafts nothing and is not drawn.

    Raises:
        MissingRecords: There is no trace of a run with a draft.
        ValueError: Columns are missing, a method is unknown, or entries are not those of blocks.
    """
    return _plot_positions(traces, _SURVIVAL)


def plot_position_acceptance(traces: pd.DataFrame) -> Figure:
    """Draw the acceptance of the k-th drafted token where it is judged: all before it passed.

    If tokens were independent and alike this would be flat, at the dotted line. Points, lines,
    arguments and errors as in `plot_survival`.
    """
    return _plot_positions(traces, _AT_POSITION)


@dataclass(frozen=True, eq=False)
class _Series:
    """Blocks of one setting, and how they are drawn."""

    name: str
    method: str
    counted: SurvivalEstimate
    predicted: SurvivalEstimate


def _plot_positions(traces: pd.DataFrame, kind: _Kind) -> Figure:
    require_columns(traces, _TRACE_COLUMNS)
    drafting = traces[traces["method"] != "autoregressive"]
    require_rows(
        drafting, "traces of runs with a draft: python eval.py evaluation.writes_trace=true"
    )
    groups = [
        (" · ".join(filter(None, [method_name(method), panel.title])), list(series))
        for panel in panels(drafting)
        for method, series in groupby(_series(panel.rows), key=lambda each: each.method)
    ]
    figure, grid = panel_figure(len(groups), (3.9, 3.5), shares_y=True)
    for place, (axes, (title, series)) in enumerate(zip(grid, groups, strict=True)):
        axes.set_title(title, fontsize=10)
        axes.set_xlabel(label("block_position"))
        if place % MAX_COLUMNS == 0:
            axes.set_ylabel(label(kind.column))
        axes.set_xticks(range(1, len(series[0].predicted.survival) + 1))
        for index, each in enumerate(series):
            color = _series_color(each.method, index, len(series))
            _draw_series(axes, each, kind, color, draws_iid=len(series) <= _MAX_IID_SERIES)
    floor, ceiling = grid[0].get_ylim()
    for axes, (_, series) in zip(grid, groups, strict=True):
        axes.set_ylim(0 if kind.starts_at_zero else floor, max(ceiling, 1.02))
        _name_series(axes, series, kind.column)
    figure_legend(figure, grid)
    return figure


def _series(rows: pd.DataFrame) -> list[_Series]:
    """Return one series for each method and setting, in reading order."""
    found = []
    for shared, own in by_setting(rows):
        blocks = _blocks(own)
        found.append(
            _Series(
                name=setting_text(shared).replace(" = ", "="),
                method=shared["method"],
                counted=count_survival(blocks),
                predicted=estimate_survival(blocks),
            )
        )
    return found


def _blocks(rows: pd.DataFrame) -> DraftedBlocks:
    completion = pd.factorize(pd.MultiIndex.from_frame(rows[["run_name", "sample"]]))[0]
    try:
        return drafted_blocks(
            prompt=rows["prompt_id"].to_numpy(),
            sample=completion,
            block=rows["block"].to_numpy(),
            block_position=rows["block_position"].to_numpy(),
            is_accepted=rows["status"].to_numpy() == "accepted",
            accept_prob=rows["accept_prob"].to_numpy(float),
            draft_length=int(rows["draft_length"].iloc[0]),
        )
    except ValueError as error:
        message = f"{', '.join(map(str, rows['run_name'].unique()))}: {error}"
        raise ValueError(message) from error


def _draw_series(axes: Axes, series: _Series, kind: _Kind, color: Any, *, draws_iid: bool) -> None:
    counted, predicted = (
        getattr(series.counted, kind.column),
        getattr(series.predicted, kind.column),
    )
    positions = np.arange(1, len(counted) + 1)
    half = _NORMAL_95 * getattr(series.counted, f"{kind.column}_se")
    if draws_iid:
        iid = kind.independent(series.predicted)
        axes.plot(positions, iid, color=GREY, linestyle=":", linewidth=1.4, label=kind.iid_label)
    axes.vlines(positions, counted - half, counted + half, color=color, linewidth=1.2)
    axes.plot(
        positions, predicted, color=color, linewidth=1.3, label="predicted (Rao-Blackwellised)"
    )
    axes.plot(
        positions,
        counted,
        linestyle="none",
        marker=STYLES[series.method].marker,
        markersize=6,
        color=color,
        markerfacecolor="white",
        label="counted",
        zorder=3,
    )


def _name_series(axes: Axes, series: Sequence[_Series], column: str) -> None:
    """Write each setting at the right end of its line, far enough from the others to be read."""
    ends = []
    for index, each in enumerate(series):
        values = getattr(each.predicted, column)
        known = np.flatnonzero(~np.isnan(values))
        if each.name and known.size:
            color = _series_color(each.method, index, len(series))
            ends.append((float(values[known[-1]]), each.name, color))
    number = len(series[0].predicted.survival)
    widest = max((len(name) for _, name, _ in ends), default=0)
    axes.set_xlim(0.6, number + 0.35 + 0.028 * number * widest)
    floor, ceiling = axes.get_ylim()
    heights = spread([height for height, _, _ in ends], _NAME_GAP * (ceiling - floor))
    for height, (_, name, color) in zip(heights, ends, strict=True):
        axes.text(number + 0.25, height, name, color=color, fontsize=8, va="center")


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Return heights moved as little as it takes for neighbours to lie a gap apart.

    >>> spread([0.5, 0.1, 0.5], 0.2)
    [0.4, 0.1, 0.6]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    clusters: list[list[int]] = []
    for i in order:
        clusters.append([i])
        while len(clusters) > 1 and _overlap(heights, clusters[-2], clusters[-1], gap):
            last = clusters.pop()
            clusters[-1] += last
    moved = list(heights)
    for cluster in clusters:
        for i, height in zip(cluster, _stacked(heights, cluster, gap), strict=True):
            moved[i] = round(height, 9)
    return moved


def _stacked(heights: Sequence[float], cluster: Sequence[int], gap: float) -> list[float]:
    """Return the heights of a cluster, a gap apart, around their mean."""
    middle = float(np.mean([heights[i] for i in cluster]))
    return [middle + gap * (i - (len(cluster) - 1) / 2) for i in range(len(cluster))]


def _overlap(
    heights: Sequence[float], below: Sequence[int], above: Sequence[int], gap: float
) -> bool:
    top, bottom = _stacked(heights, below, gap)[-1], _stacked(heights, above, gap)[0]
    return bool(bottom - top < gap - 1e-9)


def _series_color(method: str, index: int, number: int) -> Any:
    return shade(STYLES[method].color, 0.5 * index / max(number - 1, 1))
