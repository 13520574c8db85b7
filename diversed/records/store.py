"""Write and read a run's folder: manifest.json, records.jsonl, trace.parquet.

Files appear whole or not at all: each is written beside its place, flushed to disk and renamed.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from diversed.records.schema import ROW_COLUMNS, RUN_COLUMNS, SCHEMA_VERSION, TRACE_COLUMNS

MANIFEST_FILE = "manifest.json"
RECORDS_FILE = "records.jsonl"
TRACE_FILE = "trace.parquet"


class RecordsError(ValueError):
    """A run's folder cannot be read or written as records."""


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then put it in the place of `path` in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    write(partial)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small JSON file; NaN becomes null, other unknown types their text."""
    text = json.dumps(_without_nan(content), indent=2, default=str, allow_nan=False)
    replace_file(path, lambda partial: partial.write_text(text + "\n"))


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a run's manifest; it carries the schema version."""
    write_json(folder / MANIFEST_FILE, {"schema_version": SCHEMA_VERSION, **manifest})


def write_records(folder: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a run's rows.

    Args:
        folder: The run's folder.
        rows: One mapping per (prompt, sample) with exactly the columns of the schema.

    Raises:
        RecordsError: A row lacks a column or has an unknown one.
    """
    lines = []
    for row in rows:
        if row.keys() != ROW_COLUMNS.keys():
            unknown = sorted(row.keys() - ROW_COLUMNS.keys())
            missing = sorted(ROW_COLUMNS.keys() - row.keys())
            raise RecordsError(f"a record has unknown columns {unknown}, lacks columns {missing}")
        lines.append(json.dumps(row, allow_nan=False) + "\n")
    text = "".join(lines)
    replace_file(folder / RECORDS_FILE, lambda partial: partial.write_text(text))


def write_trace(folder: Path, trace: pd.DataFrame) -> None:
    """Write a run's per-token trace; RecordsError unless it has exactly the schema's columns."""
    if set(trace.columns) != set(TRACE_COLUMNS):
        raise RecordsError(f"a trace has columns {sorted(trace.columns)}")
    replace_file(folder / TRACE_FILE, lambda partial: trace.to_parquet(partial, index=False))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a run's manifest; RecordsError where there is none or its version is unknown."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise RecordsError(f"{folder} has no {MANIFEST_FILE}: it is not the folder of a run")
    manifest: dict[str, Any] = json.loads(path.read_text())
    version = manifest.get("schema_version")
    if version != SCHEMA_VERSION:
        raise RecordsError(f"{path} has schema version {version}, this code reads {SCHEMA_VERSION}")
    return manifest


def read_records(folder: Path) -> pd.DataFrame:
    """Return a run's rows with the run's own columns joined to each.

    Args:
        folder: A run's folder.

    Returns:
        Columns `RUN_COLUMNS` and `ROW_COLUMNS`.

    Raises:
        RecordsError: There are no records, or they do not follow the schema.
    """
    run = read_manifest(folder)["run"]
    path = folder / RECORDS_FILE
    if not path.is_file():
        raise RecordsError(f"{folder} has no {RECORDS_FILE}: its evaluation did not finish")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    table = pd.DataFrame(rows, columns=list(ROW_COLUMNS))
    for row in rows:
        if row.keys() != ROW_COLUMNS.keys():
            raise RecordsError(f"{path} does not follow schema version {SCHEMA_VERSION}")
    for position, column in enumerate(RUN_COLUMNS):
        table.insert(position, column, run[column])
    return table


def read_trace(folder: Path) -> pd.DataFrame:
    """Return a run's per-token trace; RecordsError where there is none."""
    read_manifest(folder)
    path = folder / TRACE_FILE
    if not path.is_file():
        raise RecordsError(
            f"{folder} has no {TRACE_FILE}: run it with evaluation.writes_trace=true"
        )
    return pd.read_parquet(path)


def read_runs(folder: Path) -> pd.DataFrame:
    """Return the records of every run below a folder in one table, in order of their paths."""
    folders = sorted(path.parent for path in folder.rglob(RECORDS_FILE))
    if not folders:
        raise RecordsError(
            f"{folder}: no {RECORDS_FILE} below it; run `make demo` or eval.py first"
        )
    return pd.concat([read_records(run) for run in folders], ignore_index=True)
