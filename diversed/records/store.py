"""Write and read a run's folder: manifest.json, records.jsonl or .parquet, trace.parquet.

Files appear whole or not at all: each is written beside its place, flushed to disk and renamed.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from diversed.records.schema import (
    ADDED_ROW_COLUMNS,
    ADDED_RUN_COLUMNS,
    ROW_COLUMNS,
    RUN_COLUMNS,
    SCHEMA_VERSION,
    TRACE_COLUMNS,
)

MANIFEST_FILE = "manifest.json"
RECORDS_FILE = "records.jsonl"
PARQUET_FILE = "records.parquet"
RECORDS_FORMATS = {"jsonl": RECORDS_FILE, "parquet": PARQUET_FILE}
TRACE_FILE = "trace.parquet"


class RecordsError(ValueError):
    """A run's folder cannot be read or written as records."""


class WriteError(OSError):
    """A file cannot be written; the message is one line that names it and says why."""


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file, then put it in the place of `path` in one step.

    Args:
        path: The file.
        write: Called with the temporary file's path. Where it fails, nothing is left of that file,
            and `path` stays as it was.

    Raises:
        WriteError: The disk is full, the folder cannot be written, or another fault of the file
            system.
    """
    partial = path.with_name(f".{path.name}.partial")
    with _writing(path, partial):
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        _flush(partial)
        partial.replace(path)
        _flush(path.parent)


def replace_folder(folder: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary folder, then put it in the place of `folder`.

    A folder that is there already is moved away first: for a moment there is none, and never one
    with files of both.

    Args:
        folder: The folder.
        write: As in `replace_file`, with a new folder.

    Raises:
        WriteError: As in `replace_file`.
    """
    partial, old = (folder.with_name(f".{folder.name}.{word}") for word in ("partial", "old"))
    with _writing(folder, partial):
        _remove(partial)
        partial.mkdir(parents=True)
        write(partial)
        for path in partial.rglob("*"):
            _flush(path)
        _flush(partial)
        _remove(old)
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        _flush(folder.parent)
        _remove(old)


@contextmanager
def _writing(path: Path, partial: Path) -> Iterator[None]:
    """Remove `partial` where the enclosed fails, and name `path` in errors of the file system."""
    try:
        yield
    except BaseException as error:
        with suppress(OSError):
            _remove(partial)
        if not isinstance(error, OSError) or isinstance(error, WriteError):
            raise
        reason = error.strerror or " ".join(str(error).split()) or type(error).__name__
        raise WriteError(f"{path} cannot be written: {reason}") from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small JSON file; NaN becomes null, other unknown types their text."""
    text = _json_text(content)
    replace_file(path, lambda partial: partial.write_text(text + "\n"))


def as_written(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what comes back of a mapping that `write_json` has written."""
    read: dict[str, Any] = json.loads(_json_text(content))
    return read


def _json_text(content: Mapping[str, Any]) -> str:
    return json.dumps(_without_nan(content), indent=2, default=str, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write a run's manifest; it carries the schema version."""
    write_json(folder / MANIFEST_FILE, {"schema_version": SCHEMA_VERSION, **manifest})


def check_records_format(file_format: str) -> None:
    """Raise a RecordsError unless records can be written in a format."""
    if file_format not in RECORDS_FORMATS:
        raise RecordsError(
            f"evaluation.records_format={file_format!r}: must be one of "
            f"{', '.join(RECORDS_FORMATS)}"
        )


def write_records(
    folder: Path, rows: Iterable[Mapping[str, Any]], file_format: str = "jsonl"
) -> None:
    """Write a run's rows; those of an earlier evaluation are replaced, whatever their format.

    Args:
        folder: The run's folder.
        rows: One mapping per (prompt, sample) with exactly the columns of the schema.
        file_format: "jsonl" or "parquet"; `read_records` reads either.

    Raises:
        RecordsError: A row lacks a column or has an unknown one, or the format is unknown.
    """
    check_records_format(file_format)
    rows = list(rows)
    for row in rows:
        if row.keys() != ROW_COLUMNS.keys():
            unknown = sorted(row.keys() - ROW_COLUMNS.keys())
            missing = sorted(ROW_COLUMNS.keys() - row.keys())
            raise RecordsError(f"a record has unknown columns {unknown}, lacks columns {missing}")
    if file_format == "parquet":
        table = pd.DataFrame(rows, columns=list(ROW_COLUMNS), dtype=object)
        _replace_records(folder, file_format, lambda partial: table.to_parquet(partial))
        return
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    _replace_records(folder, file_format, lambda partial: partial.write_text(text))


def _replace_records(folder: Path, file_format: str, write: Callable[[Path], object]) -> None:
    for other in RECORDS_FORMATS.values():
        if other != RECORDS_FORMATS[file_format]:
            (folder / other).unlink(missing_ok=True)
    replace_file(folder / RECORDS_FORMATS[file_format], write)


def write_trace(folder: Path, trace: pd.DataFrame) -> None:
    """Write a run's per-token trace; RecordsError unless it has exactly the schema's columns."""
    if set(trace.columns) != set(TRACE_COLUMNS):
        raise RecordsError(f"a trace has columns {sorted(trace.columns)}")
    replace_file(folder / TRACE_FILE, lambda partial: trace.to_parquet(partial, index=False))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a run's manifest, of any schema version up to this code's.

    Raises:
        RecordsError: There is no manifest, or its version is unknown.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise RecordsError(f"{folder} has no {MANIFEST_FILE}: it is not the folder of a run")
    try:
        manifest = json.loads(path.read_text())
    except ValueError as error:
        raise RecordsError(f"{path} is no JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise RecordsError(f"{path} holds no mapping")
    version = manifest.get("schema_version")
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise RecordsError(
            f"{path} has schema version {version}, this code reads 1 to {SCHEMA_VERSION}"
        )
    return manifest


def run_manifest(place: str | Path | None) -> dict[str, Any] | None:
    """Return the manifest of the run whose folder, or a folder in it, is given.

    Args:
        place: Such as the value of `verifier.checkpoint`.

    Returns:
        None without a place, or where no manifest is there: a hub id, say.

    Raises:
        RecordsError: The manifest is that of something else.
    """
    if place is None:
        return None
    folder = Path(place).expanduser()
    for candidate in (folder, folder.parent):
        if (candidate / MANIFEST_FILE).is_file():
            return read_manifest(candidate)
    return None


def head_run(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the columns of the run that trained the head of a config; None if not at hand.

    Raises:
        RecordsError: See `run_manifest`.
    """
    manifest = run_manifest((config.get("verifier") or {}).get("checkpoint"))
    return None if manifest is None else manifest["run"]


def read_records(folder: Path) -> pd.DataFrame:
    """Return a run's rows with the run's own columns joined to each.

    Args:
        folder: A run's folder. Records of an older schema version get the columns they lack, with
            the values of `schema.ADDED_ROW_COLUMNS`.

    Returns:
        Columns `RUN_COLUMNS` and `ROW_COLUMNS`.

    Raises:
        RecordsError: There are no records, or they do not follow the schema.
    """
    manifest = read_manifest(folder)
    run, version = manifest["run"], manifest["schema_version"]
    path = _records_path(folder)
    added: dict[str, Any] = {}
    for number in range(version + 1, SCHEMA_VERSION + 1):
        added |= ADDED_ROW_COLUMNS[number]
        run = ADDED_RUN_COLUMNS[number] | run
    table = _table(path, ROW_COLUMNS.keys() - added.keys())
    if table is None:
        raise RecordsError(f"{path} does not follow schema version {version}")
    table = table.assign(**added)[list(ROW_COLUMNS)]
    for position, column in enumerate(RUN_COLUMNS):
        table.insert(position, column, run[column])
    return table


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """Return a run's rows as they were given to `write_records`.

    Raises:
        RecordsError: There are no records, or they are broken.
    """
    path = _records_path(folder)
    return pq.read_table(path).to_pylist() if path.name == PARQUET_FILE else _json_rows(path)


def has_records(folder: Path) -> bool:
    """Return whether there are rows in a run's folder, in whatever format."""
    return bool(_records_paths(folder))


def _records_paths(folder: Path) -> list[Path]:
    return [path for name in RECORDS_FORMATS.values() if (path := folder / name).is_file()]


def _records_path(folder: Path) -> Path:
    found = _records_paths(folder)
    if not found:
        raise RecordsError(
            f"{folder} has no {RECORDS_FILE}, no {PARQUET_FILE}: its evaluation did not finish"
        )
    if len(found) > 1:
        raise RecordsError(f"{folder} has two files of records, {RECORDS_FILE} and {PARQUET_FILE}")
    return found[0]


def _json_rows(path: Path) -> list[dict[str, Any]]:
    try:
        return [dict(json.loads(line)) for line in path.read_text().splitlines()]
    except (ValueError, TypeError) as error:
        raise RecordsError(f"{path} is broken: {error}") from error


def _table(path: Path, columns: Set[str]) -> pd.DataFrame | None:
    """Return a file of records; None where it has other columns."""
    if path.name == PARQUET_FILE:
        table = pd.read_parquet(path)
        return table if set(table.columns) == columns else None
    rows = _json_rows(path)
    if any(row.keys() != columns for row in rows):
        return None
    return pd.DataFrame(rows, columns=[name for name in ROW_COLUMNS if name in columns])


def read_trace(folder: Path) -> pd.DataFrame:
    """Return a run's per-token trace; RecordsError where there is none."""
    read_manifest(folder)
    path = folder / TRACE_FILE
    if not path.is_file():
        raise RecordsError(
            f"{folder} has no {TRACE_FILE}: run it with evaluation.writes_trace=true"
        )
    return pd.read_parquet(path)


def named_runs(folder: Path) -> dict[str, Path]:
    """Return the runs with records below a folder, each under a name of its own.

    Args:
        folder: Searched at any depth.

    Returns:
        Name -> folder, in order of paths. Where several runs have one `run_name`, the folder stands
        behind it.

    Raises:
        RecordsError: There are no records below the folder.
    """
    folders = sorted(
        path.parent for name in RECORDS_FORMATS.values() for path in folder.rglob(name)
    )
    if not folders:
        raise RecordsError(f"{folder}: no run's records below it; run `make demo` or eval.py first")
    names = [read_manifest(run)["run"]["run_name"] for run in folders]
    return {
        name if names.count(name) == 1 else f"{name} ({run.relative_to(folder)})": run
        for name, run in zip(names, folders, strict=True)
    }


def read_runs(folder: Path) -> pd.DataFrame:
    """Return the records of every run below a folder, named as in `named_runs`, in one table."""
    tables = [read_records(run).assign(run_name=name) for name, run in named_runs(folder).items()]
    return pd.concat(tables, ignore_index=True)
