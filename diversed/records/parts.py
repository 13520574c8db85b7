"""Finished batches of an evaluation that is still at work, so that a killed one goes on after them.

A batch is two files below `parts/` of the run's folder, its trace and then its rows: it counts once
its rows are there. They go when the whole records are written.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from diversed.records.folders import differing_keys
from diversed.records.store import RecordsError, as_written, replace_file

PARTS_FOLDER = "parts"

Part = tuple[list[dict[str, Any]], pd.DataFrame]
"""Rows, with columns `schema.ROW_COLUMNS`, and their trace, with columns `schema.TRACE_COLUMNS`."""


def write_part(
    folder: Path,
    name: str,
    rows: Sequence[Mapping[str, Any]],
    trace: pd.DataFrame,
    origin: Mapping[str, Any],
) -> None:
    """Write a batch.

    Args:
        folder: The run's folder.
        name: Of the batch, no other's; parts are read in the order of their names.
        rows: Columns `schema.ROW_COLUMNS`.
        trace: Columns `schema.TRACE_COLUMNS`.
        origin: What the rows follow from: another evaluation may not go on with them.

    Raises:
        WriteError: As `store.replace_file`.
    """
    place = folder / PARTS_FOLDER
    text = json.dumps({"origin": as_written(origin), "rows": list(rows)}, allow_nan=False)
    replace_file(place / f"{name}.parquet", lambda partial: trace.to_parquet(partial, index=False))
    replace_file(place / f"{name}.json", lambda partial: partial.write_text(text))


def read_parts(folder: Path, origin: Mapping[str, Any]) -> list[Part]:
    """Return the batches that an evaluation may go on with.

    Args:
        folder: The run's folder.
        origin: As in `write_part`.

    Raises:
        RecordsError: A batch comes of something else; the message names the keys.
    """
    parts = []
    for path in sorted((folder / PARTS_FOLDER).glob("*.json")):
        part = json.loads(path.read_text())
        differing = differing_keys(origin, part["origin"])
        if differing:
            raise RecordsError(
                f"{path} was decoded with another {', '.join(differing)}; remove {path.parent} to "
                "decode everything anew"
            )
        parts.append((part["rows"], pd.read_parquet(path.with_suffix(".parquet"))))
    return parts


def remove_parts(folder: Path) -> None:
    """Remove all batches of a run's folder."""
    if (folder / PARTS_FOLDER).exists():
        shutil.rmtree(folder / PARTS_FOLDER)
