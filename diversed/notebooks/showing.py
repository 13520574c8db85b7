"""Draw one figure or table in a notebook cell, keep it as files, or say which records it needs."""

import base64
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from diversed.figures.checks import MissingRecords
from diversed.figures.style import FILE_FORMATS, save_figure
from diversed.figures.tables import to_latex, to_markdown

OUT_VARIABLE = "FIGURES_OUT"
METADATA_KEY = "diversed"
FIGURE, TABLE, SKIPPED = "figure", "table", "skipped"
_TABLE_WRITERS: dict[str, Callable[[pd.DataFrame], str]] = {
    "md": to_markdown,
    "tex": to_latex,
    "csv": lambda table: table.to_csv(index=False),
}
_SCREEN_DPI = 100


@dataclass(frozen=True)
class Shown:
    """What a cell shows: Jupyter asks for its pictures and texts.

    Attributes:
        name: Stem of the files.
        kind: "figure", "table" or "skipped".
        reason: Which records a skipped one needs; "" for the others.
        files: What was written.
        bundle: Media type -> content.
    """

    name: str
    kind: str
    reason: str = ""
    files: tuple[Path, ...] = ()
    bundle: dict[str, Any] = field(default_factory=dict)

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        told = {"name": self.name, "kind": self.kind, "reason": self.reason}
        return self.bundle, {METADATA_KEY: told | {"files": [path.name for path in self.files]}}


def show(
    name: str, draw: Callable[..., Figure | pd.DataFrame], *arguments: Any, **settings: Any
) -> Shown:
    """Draw a figure or table; where its records are missing, say so instead.

    With the environment's FIGURES_OUT set, it is written there as `<name>.png`, `.svg` and `.pdf`,
    or `<name>.md`, `.tex` and `.csv`; files of that name from other records go.

    Args:
        name: Stem of the files.
        draw: A function of `diversed.figures`.
        arguments: What it takes.
        settings: The same by name.

    Returns:
        What Jupyter shows of the last line of a cell. Errors other than `MissingRecords` are not
        caught.
    """
    folder = os.environ.get(OUT_VARIABLE)
    stem = Path(folder) / name if folder else None
    if stem is not None:
        for suffix in (*FILE_FORMATS, *_TABLE_WRITERS):
            stem.with_name(f"{name}.{suffix}").unlink(missing_ok=True)
    try:
        drawn = draw(*arguments, **settings)
    except MissingRecords as missing:
        text = f"skipped {name}: {missing}"
        return Shown(name, SKIPPED, reason=str(missing), bundle={"text/plain": text})
    if isinstance(drawn, pd.DataFrame):
        files = () if stem is None else _write_table(drawn, stem)
        bundle = {"text/plain": to_markdown(drawn), "text/html": drawn.to_html(index=False)}
        return Shown(name, TABLE, files=files, bundle=bundle)
    files = () if stem is None else tuple(save_figure(drawn, stem, FILE_FORMATS))
    return Shown(name, FIGURE, files=files, bundle={"image/png": _png(drawn), "text/plain": name})


def _png(figure: Figure) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_SCREEN_DPI)
    return base64.b64encode(buffer.getvalue()).decode()


def _write_table(table: pd.DataFrame, stem: Path) -> tuple[Path, ...]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = []
    for suffix, write in _TABLE_WRITERS.items():
        path = stem.with_name(f"{stem.name}.{suffix}")
        path.write_text(write(table))
        paths.append(path)
    return tuple(paths)
