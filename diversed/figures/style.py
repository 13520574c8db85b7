"""How figures look and are laid out: colours, markers, panels, reading order, files.

Nothing here draws to a screen or changes matplotlib's global settings.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diversed.figures.checks import require_columns
from diversed.figures.labels import SETTING_COLUMNS, label, run_label

# Okabe and Ito's palette, safe for the colour-blind, and a grey.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#777777"
# Tol's muted palette, for controls.
INDIGO, WINE, OLIVE, TEAL, FOREST = "#332288", "#882255", "#999933", "#44AA99", "#117733"
ROSE, SLATE, MAGENTA = "#CC6677", "#555555", "#AA4499"

PANEL_COLUMNS = ("model", "data", "temperature", "draft_length")
"""Runs that differ in one of these stand in panels of their own: they are not to be compared."""

FILE_FORMATS = ("png", "svg", "pdf")
MAX_COLUMNS = 3


@dataclass(frozen=True)
class Style:
    """How a method is drawn; no two share a marker or a hatch, so that grey prints can be read."""

    marker: str
    color: str
    size: float = 6.0
    face: str | None = None  # the marker's filling, if it is not `color`
    hatch: str = ""


STYLES: Mapping[str, Style] = {
    "autoregressive": Style("p", GREY, 8.0),
    "static": Style("o", BLUE, 5.0, hatch="..."),
    "lossless": Style("D", BLACK, 9.5, face="none", hatch="////"),
    "lenient": Style("s", ORANGE, hatch="---"),
    "cascade": Style("^", GREEN, hatch="xxx"),
    "typical": Style("v", PURPLE, hatch="ooo"),
    "fuzzy": Style("P", SKY, 7.0, hatch="+++"),
    "margin": Style("X", GREY, 7.0, hatch="|||"),
    "token_rule": Style("d", INDIGO, 7.0, hatch="\\\\"),
    "features_head": Style("x", MAGENTA, 9.0, hatch="O."),
    "constant_head": Style("<", WINE, 7.0, hatch="//"),
    "prompt_head": Style("h", FOREST, 8.0, face="none", hatch="o"),
    "position_head": Style(">", OLIVE, 7.0, face="none", hatch="x"),
    "shuffled_head": Style("H", TEAL, 8.0, face="none", hatch="."),
    "coin": Style("|", SLATE, 9.0, hatch="-"),
    "diversed_mlp": Style("8", ROSE, 9.0, face="none", hatch="**"),
    "diversed": Style("*", VERMILION, 14.0, face="#FBE3D3"),
}
_FIRST = ("autoregressive", "lossless", "static")
_LAST = "diversed"


@dataclass(frozen=True, eq=False)
class Panel:
    """Runs that belong together: what sets them apart from the other panels, and their rows."""

    title: str
    rows: pd.DataFrame


def panels(table: pd.DataFrame) -> list[Panel]:
    """Return the rows of a table by pair, data, temperature and draft length.

    Plain decoding has no draft length: it stands in every panel of its pair, data and temperature,
    or in one of its own if there is no other. Titles name what differs between panels.

    Args:
        table: Columns `PANEL_COLUMNS`, and at least one row.

    Raises:
        ValueError: Columns are missing.
    """
    require_columns(table, PANEL_COLUMNS)
    outer, inner = list(PANEL_COLUMNS[:-1]), PANEL_COLUMNS[-1]
    found: list[tuple[dict[str, Any], pd.DataFrame]] = []
    for key, rows in table.groupby(outer, sort=False, dropna=False):
        lengths = rows[inner].dropna().unique()
        shared = dict(zip(outer, key, strict=True))
        found += [
            (shared | {inner: length}, rows[rows[inner].isna() | (rows[inner] == length)])
            for length in sorted(lengths)
        ] or [(shared, rows)]
    keys = pd.DataFrame([key for key, _ in found], columns=list(PANEL_COLUMNS))
    told = [column for column in PANEL_COLUMNS if keys[column].nunique() > 1]
    return [Panel(_title(key, told), rows) for key, rows in found]


def panel_figure(
    number: int,
    size: tuple[float, float],
    *,
    shares_x: bool = False,
    shares_y: bool = False,
    max_columns: int = MAX_COLUMNS,
    heights: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Return a figure of so many panels, and their axes.

    Args:
        number: Panels.
        size: Width and height of one panel, inches.
        shares_x: Whether all panels have the same x axis.
        shares_y: The same for y.
        max_columns: Panels in a row, at most.
        heights: Height of each panel, where they differ; a row is as high as its highest.
    """
    num_columns = min(number, max_columns)
    starts = range(0, number, num_columns)
    wanted = heights or [size[1]] * number
    rows = [max(wanted[start : start + num_columns]) for start in starts]
    figure = Figure(figsize=(size[0] * num_columns, sum(rows)), layout="constrained")
    grid = figure.subplots(
        len(rows),
        num_columns,
        squeeze=False,
        sharex=shares_x,
        sharey=shares_y,
        height_ratios=rows,
    )
    axes = list(grid.ravel())
    for spare in axes[number:]:
        spare.remove()
    for place, each in enumerate(axes[:number]):
        each.spines[["top", "right"]].set_visible(False)
        if place + num_columns >= number:  # nothing below it
            each.tick_params(labelbottom=True)
    return figure, axes[:number]


def figure_legend(figure: Figure, axes: Sequence[Axes], num_columns: int = 3) -> None:
    """Put one legend above all panels: what any of them has a label for, each once."""
    handles: dict[str, Any] = {}
    for each in axes:
        for handle, name in zip(*each.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside upper center",
        ncols=num_columns,
        frameon=False,
    )


def reading_order(row: Mapping[Any, Any]) -> tuple[float, ...]:
    """Return a sort key: plain, lossless, static by falling w, others, DIVERSED by rising λ, dial.

    Rows that tie keep their order.
    """
    method = row["method"]
    rank = _FIRST.index(method) if method in _FIRST else len(_FIRST) + (method == _LAST)
    within: list[Any] = {
        "static": [-row["target_weight"]],
        _LAST: [row["acceptance_weight"], row["dial"]],
    }.get(method, [0.0])
    return rank, *(math.inf if pd.isna(value) else value for value in within)


def in_reading_order(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a table as they are read, with an index of their own."""
    rows = table.to_dict("records")
    order = sorted(range(len(rows)), key=lambda i: reading_order(rows[i]))
    return table.iloc[order].reset_index(drop=True)


def row_labels(table: pd.DataFrame) -> list[str]:
    """Return method and setting of each row; those that read the same tell their seed or name."""
    rows = table.to_dict("records")
    names = [run_label(row) for row in rows]
    with_seed = [
        f"{name}, {label('seed')} {row['seed']}" for name, row in zip(names, rows, strict=True)
    ]
    return [
        name
        if names.count(name) == 1
        else longer
        if with_seed.count(longer) == 1
        else f"{name} ({row['run_name']})"
        for name, longer, row in zip(names, with_seed, rows, strict=True)
    ]


def by_setting(rows: pd.DataFrame) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """Return the rows of each method and setting, all seeds together, in reading order.

    Args:
        rows: Rows of any number of runs. Columns: `method` and `SETTING_COLUMNS`.

    Returns:
        What the rows of a setting share, and the rows.
    """
    columns = ["method", *SETTING_COLUMNS]
    pools: dict[str, tuple[dict[str, Any], list[pd.DataFrame]]] = {}
    for key, own in rows.groupby(columns, sort=False, dropna=False):
        shared: dict[str, Any] = dict(zip(columns, key, strict=True))
        pools.setdefault(run_label(shared), (shared, []))[1].append(own)
    return [
        (shared, pd.concat(parts))
        for shared, parts in sorted(pools.values(), key=lambda pool: reading_order(pool[0]))
    ]


def shade(color: str, lightness: float) -> tuple[float, float, float]:
    """Return a colour mixed with white; `lightness` 0 leaves it, 1 is white."""
    return tuple(np.asarray(mpl.colors.to_rgb(color)) * (1 - lightness) + lightness)


def save_figure(figure: Figure, stem: Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Write `figure` as `<stem>.<format>` in each format, and return the paths.

    Bitmaps have 160 dpi. The same figure gives the same bytes: the files carry neither date nor
    random ids.

    Args:
        figure: What is written.
        stem: Path without the suffix; missing folders are made.
        formats: Some of `FILE_FORMATS`.

    Raises:
        ValueError: A format is unknown.
    """
    unknown = sorted(set(formats) - set(FILE_FORMATS))
    if unknown:
        message = f"formats={unknown}: must be among {', '.join(FILE_FORMATS)}"
        raise ValueError(message)
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{suffix}") for suffix in formats]
    undated: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with mpl.rc_context({"svg.hashsalt": stem.name}):
        for suffix, path in zip(formats, paths, strict=True):
            figure.savefig(path, dpi=160, metadata=undated.get(suffix))
    return paths


def _title(key: Mapping[str, Any], told: Sequence[str]) -> str:
    parts = []
    for column in told:
        value = key.get(column)
        if column in ("model", "data"):
            parts.append(str(value))
        elif value is not None and pd.notna(value):
            parts.append(f"{label(column)} = {value:g}")
    return ", ".join(parts)
