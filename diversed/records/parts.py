"""Finished batches of an evaluation that is still at work, so that a killed one goes on after them.

A batch is two files below `parts/` of the run's folder, its trace and then its rows: it counts once
its rows are there. They go when the whole records are written; a finished run that is given more
rows gets one part of all that it has.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from diversed.records.folders import ROW_CHOICE, differing_keys
from diversed.records.schema import SCHEMA_VERSION, TRACE_COLUMNS
from diversed.records.store import (
    TRACE_FILE,
    RecordsError,
    as_written,
    has_records,
    read_manifest,
    read_rows,
    read_trace,
    replace_file,
)

PARTS_FOLDER = "parts"
_FINISHED = "finished"
"""Part of all that a finished run has."""

Part = tuple[list[dict[str, Any]], pd.DataFrame]
"""Rows, with columns `schema.ROW_COLUMNS`, and their trace, with columns `schema.TRACE_COLUMNS`."""


def row_origin(
    config: Mapping[str, Any],
    pair: Mapping[str, Any],
    data: Mapping[str, Any],
    head: str | None,
) -> dict[str, Any]:
    """Return what the rows of an evaluation follow from.

    Args:
        config: The resolved config; which rows it asks for is left out.
        pair: The models, with fingerprints of their weights.
        data: Where the task's rows came from.
        head: Fingerprint of the head's weights.
    """
    evaluation = {
        key: value
        for key, value in config["evaluation"].items()
        if f"evaluation.{key}" not in ROW_CHOICE
    }
    config = {**config, "evaluation": evaluation}
    return {"config": config, "pair": pair, "data": data, "head": head}


def reopen(folder: Path) -> None:
    """Make a part of the records of a finished run, so that it can go on to more rows.

    Args:
        folder: The run's folder; its records stay until others replace them. There is no part to
            make where they are gone.

    Raises:
        RecordsError: The records were written by older code.
    """
    if not has_records(folder):
        return
    manifest = read_manifest(folder)
    if manifest["schema_version"] != SCHEMA_VERSION:
        raise RecordsError(
            f"{folder} was written with schema version {manifest['schema_version']}, this code "
            f"goes on with version {SCHEMA_VERSION} alone"
        )
    rows = read_rows(folder)
    has_trace = (folder / TRACE_FILE).is_file()
    trace = read_trace(folder) if has_trace else pd.DataFrame(columns=list(TRACE_COLUMNS))
    origin = row_origin(
        manifest["config"], manifest["pair"], manifest["data"], manifest.get("head")
    )
    write_part(folder, _FINISHED, rows, trace, origin)


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
            advice = (
                "begin a run of its own"
                if path.stem == _FINISHED
                else f"remove {path.parent} to decode everything anew"
            )
            raise RecordsError(f"{path} was decoded with another {', '.join(differing)}; {advice}")
        parts.append((part["rows"], pd.read_parquet(path.with_suffix(".parquet"))))
    return parts


def remove_parts(folder: Path) -> None:
    """Remove all batches of a run's folder."""
    if (folder / PARTS_FOLDER).exists():
        shutil.rmtree(folder / PARTS_FOLDER)
