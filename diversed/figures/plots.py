"""Figures as functions of tables: a DataFrame in, a `Figure` out.

Nothing here reads a file, draws to a screen or changes matplotlib's global settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from diversed.figures.labels import label, method_name, require_columns
from diversed.theory.bootstrap import FloatArray
from diversed.theory.front import concave_hull, interpolated_curve

# Okabe and Ito's palette, safe for the colour-blind, and a grey.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#777777"


@dataclass(frozen=True)
class _Style:
    marker: str
    color: str
    size: float = 6.0
    face: str | None = None  # the marker's filling, if it is not `color`


_STYLES = {
    "static": _Style("o", BLUE, 5.0),
    "lossless": _Style("D", BLACK, 9.5, face="none"),
    "lenient": _Style("s", ORANGE),
    "cascade": _Style("^", GREEN),
    "typical": _Style("v", PURPLE),
    "fuzzy": _Style("P", SKY, 7.0),
    "margin": _Style("X", GREY, 7.0),
    "diversed": _Style("*", VERMILION, 14.0, face="#FBE3D3"),
}
_FRONT_COLUMNS = (
    *("method", "run_name", "target_weight", "acceptance_weight"),
    *("quality", "quality_low", "quality_high"),
    *("expected_acceptance", "expected_acceptance_low", "expected_acceptance_high"),
)
_TO_THE_UPPER_RIGHT = ((1, 1), (1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0), (-1, -1))
_TO_THE_LOWER_LEFT = tuple((-dx, -dy) for dx, dy in _TO_THE_UPPER_RIGHT)
_BOW_TIE = np.array([(-1, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)])


def plot_front(table: pd.DataFrame, *, quality_label: str | None = None) -> Figure:
    """Draw quality against acceptance: static runs, their concave hull, and what lies above it.

    Static points are joined by a line; the dashed hull over them (and over lossless, if no static
    run has w = 1) is what coin flips between static weights reach, so only points outside the
    shaded region show that context matters. Bars are intervals, left out where their bounds are
    NaN. Plain decoding accepts nothing and is a dotted line with its interval as a band.

    Args:
        table: One row per run. Columns: `method`, `run_name`, `target_weight` (w of a static run,
            else NaN), `acceptance_weight` (λ of a head, else NaN), and `quality` and
            `expected_acceptance` with their `_low` and `_high`. Plain decoding has no acceptance.
        quality_label: Label of the quality axis where the task's metric is known.

    Raises:
        ValueError: Columns or all rows are missing, a method is unknown, or a run has no quality or
            (except plain decoding) no acceptance.
    """
    require_columns(table, _FRONT_COLUMNS)
    if table.empty:
        message = "table has no rows"
        raise ValueError(message)
    is_plain = table["method"] == "autoregressive"
    plain, points = table[is_plain], table[~is_plain]
    _require_values(plain, ["quality"])
    _require_values(points, ["quality", "expected_acceptance"])

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(label("expected_acceptance"))
    axes.set_ylabel(quality_label or label("quality"))
    axes.margins(0.09)
    axes.spines[["top", "right"]].set_visible(False)
    _draw_plain(axes, plain)
    for method, rows in points.groupby("method", sort=False, dropna=False):
        _draw_points(axes, str(method), rows)
    _draw_static_front(axes, points)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    _annotate(figure, axes, points)
    return figure


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `figure` as `<stem>.png` (160 dpi) and `<stem>.svg`, and return both paths.

    The same figure gives the same bytes: the files carry neither date nor random ids.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("png", "svg"))
    figure.savefig(png, dpi=160)
    with mpl.rc_context({"svg.hashsalt": stem.name}):
        figure.savefig(svg, metadata={"Date": None})
    return [png, svg]


def _require_values(rows: pd.DataFrame, columns: list[str]) -> None:
    for column in columns:
        runs = rows.loc[rows[column].isna(), "run_name"]
        if len(runs):
            message = f"{column} is NaN in the runs {', '.join(map(str, runs))}"
            raise ValueError(message)


def _draw_plain(axes: Axes, rows: pd.DataFrame) -> None:
    for i, row in enumerate(rows.to_dict("records")):
        name = method_name(row["method"]) if i == 0 else None
        axes.axhline(row["quality"], color=GREY, linestyle=":", linewidth=1.5, label=name)
        if pd.notna(row["quality_low"]) and pd.notna(row["quality_high"]):
            axes.axhspan(
                row["quality_low"], row["quality_high"], color=GREY, alpha=0.15, linewidth=0
            )


def _draw_points(axes: Axes, method: str, rows: pd.DataFrame) -> None:
    name, style = method_name(method), _STYLES[method]
    x, y = rows["expected_acceptance"], rows["quality"]
    bars: dict[str, Any] = {"color": style.color, "linewidth": 1.0, "zorder": 3.5}
    axes.vlines(x, rows["quality_low"], rows["quality_high"], **bars)
    axes.hlines(y, rows["expected_acceptance_low"], rows["expected_acceptance_high"], **bars)
    axes.plot(
        x,
        y,
        linestyle="none",
        marker=style.marker,
        markersize=style.size,
        color=style.color,
        markerfacecolor=style.face or style.color,
        zorder=3,
        label=name,
    )


def _draw_static_front(axes: Axes, points: pd.DataFrame) -> None:
    rows = points[points["method"] == "static"]
    if not (rows["target_weight"] == 1).any():
        rows = pd.concat([rows, points[points["method"] == "lossless"]])
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
    axes.fill_between(hull.acceptance, floor, hull.quality, color=BLUE, alpha=0.08, linewidth=0)
    axes.set_ylim(bottom=floor)


def _annotate(figure: Figure, axes: Axes, points: pd.DataFrame) -> None:
    """Write λ beside heads and w beside static points, each where it covers the least."""
    heads = points[(points["method"] == "diversed") & points["acceptance_weight"].notna()]
    static = points[(points["method"] == "static") & points["target_weight"].notna()]
    figure.draw_without_rendering()  # settles the layout: from here on pixels can be compared
    ink = _ink(figure, axes)
    taken: list[Bbox] = []
    name = f"{method_name('diversed')} " if len(heads) == 1 else ""  # several crowd; see legend
    for rows, symbol, column, directions in (
        (heads, name + label("acceptance_weight"), "acceptance_weight", _TO_THE_UPPER_RIGHT),
        (static, label("target_weight"), "target_weight", _TO_THE_LOWER_LEFT),
    ):
        for row in rows.to_dict("records"):
            note = axes.annotate(
                f"{symbol}={row[column]:g}",
                (row["expected_acceptance"], row["quality"]),
                xytext=(0.0, 0.0),
                textcoords="offset points",
                fontsize=8,
                color=_STYLES[row["method"]].color,
                zorder=4,
            )
            note.set_in_layout(False)
            taken.append(_place(note, directions, ink, taken, axes.bbox))


def _place(
    note: Annotation,
    directions: Sequence[tuple[int, int]],
    ink: FloatArray,
    taken: Sequence[Bbox],
    frame: Bbox,
) -> Bbox:
    """Move `note` to the side of its point where it covers the least, and return its box."""

    def move(distance: float, direction: tuple[int, int]) -> Bbox:
        dx, dy = direction
        reach = distance / np.hypot(dx, dy)
        note.set_position((dx * reach, dy * reach))
        note.set_horizontalalignment(("center", "left", "right")[dx])
        note.set_verticalalignment(("center", "bottom", "top")[dy])
        return note.get_window_extent()

    def covered(spot: tuple[float, tuple[int, int]]) -> float:
        box = move(*spot)
        if not (frame.contains(*box.min) and frame.contains(*box.max)):
            return np.inf
        inside = ((ink > box.min) & (ink < box.max)).all(axis=1)
        return float(inside.sum()) + 1e3 * box.count_overlaps(taken)

    spots = [(distance, direction) for distance in (6.0, 10.0, 15.0) for direction in directions]
    return move(*min(spots, key=covered))


def _ink(figure: Figure, axes: Axes) -> FloatArray:
    """Return pixels on every line, bar and marker, 2 apart, shape [M, 2]."""
    strokes: list[FloatArray] = []
    for line in axes.lines:
        pixels = line.get_transform().transform(line.get_xydata())
        if line.get_linestyle() == "None":
            half = line.get_markersize() * figure.dpi / 72 / 2
            strokes += [pixel + half * _BOW_TIE for pixel in pixels]
        else:
            strokes.append(pixels)
    for bars in axes.collections:
        if isinstance(bars, LineCollection):
            drawn = [bar for bar in bars.get_segments() if len(bar)]  # one without bounds is empty
            strokes += [axes.transData.transform(bar) for bar in drawn]
    return np.vstack([_every_two_pixels(stroke) for stroke in strokes])


def _every_two_pixels(stroke: FloatArray) -> FloatArray:
    lengths = np.hypot(*np.diff(stroke, axis=0).T)
    along = np.concatenate([[0.0], np.cumsum(lengths)])
    stops = np.arange(0.0, along[-1] + 2.0, 2.0)
    return np.column_stack([np.interp(stops, along, stroke[:, i]) for i in (0, 1)])
