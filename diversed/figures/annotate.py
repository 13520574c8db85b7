"""Short notes beside points, each where it covers the least of what is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from diversed.theory.bootstrap import FloatArray

TO_THE_UPPER_RIGHT = ((1, 1), (1, 0), (0, 1), (1, -1), (-1, 1), (0, -1), (-1, 0), (-1, -1))
TO_THE_LOWER_LEFT = tuple((-dx, -dy) for dx, dy in TO_THE_UPPER_RIGHT)
_BOW_TIE = np.array([(-1, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)])
_DISTANCES = (6.0, 10.0, 15.0, 22.0)


@dataclass(frozen=True)
class Note:
    """Text that belongs to a point, in data coordinates, and where it would best stand."""

    text: str
    point: tuple[float, float]
    color: str
    directions: Sequence[tuple[int, int]] = TO_THE_UPPER_RIGHT


def place_notes(figure: Figure, axes: Axes, notes: Sequence[Note]) -> None:
    """Write notes into axes whose drawing is complete, the first with the first choice of place."""
    figure.draw_without_rendering()  # settles the layout: from here on pixels can be compared
    ink = _ink(figure, axes)
    taken: list[Bbox] = []
    for note in notes:
        written = axes.annotate(
            note.text,
            note.point,
            xytext=(0.0, 0.0),
            textcoords="offset points",
            fontsize=8,
            color=note.color,
            zorder=4,
        )
        written.set_in_layout(False)
        taken.append(_place(written, note.directions, ink, taken, axes.bbox))


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

    spots = [(distance, direction) for distance in _DISTANCES for direction in directions]
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
