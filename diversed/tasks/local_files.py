"""Files of rows: JSON Lines, JSON and Parquet, plain or gzipped, as data sets.

Knows nothing of tasks beyond the columns that must be there.
"""

import gzip
import hashlib
import json
import logging
import re
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, concatenate_datasets
from datasets.exceptions import DatasetsError

from diversed.tasks.base import TaskDataError

logger = logging.getLogger(__name__)

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")
SPLIT_STEMS: Mapping[str, tuple[str, ...]] = {
    "train": ("train",),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
"""Split -> how the names of its files begin."""

_SHARD = re.compile(r"-\d+-of-(\d+)$")


def find_split_files(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split that a folder has.

    A file belongs to a split if its name without suffix is one of `SPLIT_STEMS`, or one of them
    followed by `_`, `-` or `.`: `test.jsonl`, `train_first2000.jsonl`, `val-00000-of-00001.parquet`
    (shards of one file belong together).

    Args:
        folder: An existing folder; folders in it are not searched.

    Raises:
        TaskDataError: Two files claim one split, or shards are missing.
    """
    found: dict[str, list[Path]] = {}
    for path in data_files(folder):
        for split, stems in SPLIT_STEMS.items():
            if any(re.match(rf"{stem}([_.-]|$)", _stem(path).lower()) for stem in stems):
                found.setdefault(split, []).append(path)
    for split, paths in found.items():
        if len({_SHARD.sub("", _stem(path)) + (_suffix(path) or "") for path in paths}) > 1:
            names = " and ".join(path.name for path in paths)
            raise TaskDataError(
                f"data.path={folder}: {names} both claim the split {split}; leave one of them "
                "there, or give one file as data.path"
            )
        shard = _SHARD.search(_stem(paths[0]))
        if shard is not None and len(paths) != int(shard[1]):
            raise TaskDataError(
                f"data.path={folder}: {len(paths)} of {int(shard[1])} files of the split {split} "
                "are there"
            )
    return found


def data_files(folder: Path) -> list[Path]:
    """Return the files of a folder that have a known suffix, by name."""
    paths = sorted(folder.iterdir())
    return [
        path
        for path in paths
        if path.is_file() and not path.name.startswith(".") and _suffix(path) is not None
    ]


def check_suffix(path: Path) -> None:
    """Raise TaskDataError, naming the known suffixes, for a file of another kind."""
    if _suffix(path) is None:
        raise TaskDataError(
            f"data.path={path}: unknown kind of file; give one of {', '.join(SUFFIXES)}"
        )


def read_files(paths: Sequence[Path], columns: Sequence[str]) -> Dataset:
    """Return the rows of one file, or of the shards of one, in memory.

    Args:
        paths: Files with known suffixes.
        columns: Columns that must be there, without gaps.

    Raises:
        TaskDataError: A file cannot be read, has no rows, or lacks a column or a value of one.
    """
    parts = []
    for path in paths:
        rows = _read_parquet(path) if _suffix(path) == ".parquet" else _read_json(path, columns)
        if not len(rows):
            raise TaskDataError(f"{path}: the file has no rows")
        check_columns(rows, columns, str(path))
        parts.append(rows)
    return parts[0] if len(parts) == 1 else concatenate_datasets(parts)


def check_columns(rows: Dataset, columns: Sequence[str], origin: str) -> None:
    """Raise TaskDataError, naming columns missing and found, or the first row without a value."""
    missing = [column for column in columns if column not in rows.column_names]
    if missing:
        found = ", ".join(rows.column_names)
        raise TaskDataError(
            f"{origin}: there is no column {', '.join(missing)}; the columns are {found}"
        )
    for column in columns:
        if rows.data.column(column).null_count:
            number = next(index for index, value in enumerate(rows[column]) if value is None)
            raise TaskDataError(f"{origin}: row {number + 1} has no value in the column {column}")


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _suffix(path: Path) -> str | None:
    """Return the suffix of a data file, `.gz` included; None for other files."""
    fitting = [suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)]
    return max(fitting, key=len) if fitting else None


def _stem(path: Path) -> str:
    return path.name[: -len(_suffix(path) or "")]


def _read_parquet(path: Path) -> Dataset:
    with tempfile.TemporaryDirectory() as cache:  # rows stay in memory; no copy is left behind
        try:
            return Dataset.from_parquet(str(path), cache_dir=cache, keep_in_memory=True)
        except (OSError, ValueError, DatasetsError) as error:
            cause = error.__cause__ or error
            raise TaskDataError(
                f"{path}: this is no Parquet file ({_first_line(cause)})"
            ) from error


def _read_json(path: Path, columns: Sequence[str]) -> Dataset:
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rb") as file:
            text = file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TaskDataError(f"{path}: the text is not UTF-8 (byte {error.start})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise TaskDataError(f"{path}: the file cannot be read ({_first_line(error)})") from error
    is_list = text.lstrip().startswith("[")
    return _from_rows(
        _parse_list(path, text) if is_list else _parse_lines(path, text), path, columns
    )


def _parse_list(path: Path, text: str) -> list[dict[str, Any]]:
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        raise TaskDataError(
            f"{path}: no valid JSON in line {error.lineno} ({error.msg})"
        ) from error
    return [_as_row(item, f"{path}: item {number}") for number, item in enumerate(items, start=1)]


def _parse_lines(path: Path, text: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines would cut inside strings
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise TaskDataError(
                f"{path}: no valid JSON in line {number} ({error.msg}); rows are one object a "
                "line, or one list of objects"
            ) from error
        rows.append(_as_row(item, f"{path}: line {number}"))
    return rows


def _as_row(item: Any, place: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise TaskDataError(f"{place} is a {type(item).__name__}, not an object of columns")
    return item


def _from_rows(rows: Sequence[Mapping[str, Any]], path: Path, needed: Iterable[str]) -> Dataset:
    """Return rows as a data set; columns of mixed types that no one needs are left out."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: [row.get(name) for row in rows] for name in names}
    try:
        return Dataset.from_dict(columns)
    except (ValueError, TypeError, OverflowError):  # which column was it?
        kept = {}
        for name, values in columns.items():
            try:
                Dataset.from_dict({name: values})
            except (ValueError, TypeError, OverflowError) as error:
                if name in needed:
                    raise TaskDataError(
                        f"{path}: the column {name} mixes types ({_first_line(error)})"
                    ) from error
                logger.warning("%s: left out the column %s, which mixes types", path, name)
            else:
                kept[name] = values
        return Dataset.from_dict(kept)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
