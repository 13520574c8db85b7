"""Rows of a task's splits: from the Hugging Face hub, a local folder or one file.

A row is never in two splits. Where validation rows are carved or a file is split, rows of equal
content stay together, and a seed decides, so that the same settings give the same rows.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from diversed.core.checks import check_at_least_one
from diversed.tasks.base import SPLITS, Example, TaskDataError, check_split
from diversed.tasks.hub import HubData
from diversed.tasks.local_files import (
    check_columns,
    check_suffix,
    data_files,
    file_sha256,
    find_split_files,
    read_files,
)

logger = logging.getLogger(__name__)

ROW_COLUMN = "source_row"
"""Column that the loader adds: number of the row in its file or hub split, from 0. It stays the
same whatever `limit` is, and so serves ids."""

NUM_CARVED_VALIDATION = 500
CARVED_SHARE = 0.1
"""Largest share of rows that is carved for validation, or split off a file for each of two."""


@dataclass(frozen=True)
class DataSource:
    """What a task reads.

    Attributes:
        hub_id: Owner and name on the hub.
        config_name: Configuration on the hub; None for the only one.
        columns: Columns that the task reads; they must be there, without gaps.
        splits: Our name of a split -> the hub's. Without "validation", validation rows are carved
            from "train"; without "train", there is no training on this data set at all.
        key: Columns that tell rows apart, such as the question; default: all of `columns`. Rows of
            equal key are never divided between splits.
        split_of: For data sets whose rows say themselves which split they are of (by an id, say):
            row -> its split, or None for none. A local file is then divided by it.
        hint: What to use for training where the data set has no training split.
    """

    hub_id: str
    config_name: str | None
    columns: tuple[str, ...]
    splits: Mapping[str, str]
    key: tuple[str, ...] = ()
    split_of: Callable[[Example], str | None] | None = None
    hint: str = ""


class SplitLoader:
    """Loads the splits of one data set, each once, with the raw columns and `ROW_COLUMN`.

    Where the rows come from:

    - No `path`: the hub, or the cache of `datasets` where the hub cannot be reached.
    - A folder: a file per split (`train.jsonl`, `val.parquet`, `test_2024.json.gz`, ...; see
      `local_files.find_split_files`). Without a validation file, validation rows are carved from
      the training file. A folder with one data file of another name stands for that file.
    - A file: all of it is the test split, and there is no other, unless `split_file` is True. Then
      a seed divides it: a tenth for test, a tenth for validation, the rest for training. A job
      that trains on a file must also test on its tenth of it, so `split_file` belongs to the job:
      left open, `settle` chooses it.
    """

    def __init__(
        self,
        source: DataSource,
        *,
        path: str | None = None,
        revision: str = "main",
        limit: int | None = None,
        seed: int = 0,
        num_carved_validation: int = NUM_CARVED_VALIDATION,
        split_file: bool | None = None,
    ) -> None:
        """Check the settings; nothing is read yet.

        Args:
            source: What the task reads.
            path: Local folder or file; None for the hub.
            revision: Branch, tag or commit on the hub.
            limit: Rows of each split at most, drawn by `seed`; None for all. A larger limit adds
                rows to those of a smaller one.
            seed: Of everything that is drawn here.
            num_carved_validation: Validation rows to carve where the data set has none; at most a
                tenth of the training rows.
            split_file: Whether one file serves for all splits; None: see `settle`.

        Raises:
            TaskDataError: There is nothing at `path`, or nothing of a known kind.
            ValueError: A number is out of range.
        """
        for name, number in (("limit", limit), ("num_carved_validation", num_carved_validation)):
            if number is not None:
                check_at_least_one(f"data.{name}", number)
        self._source = source
        self._path = None if path is None else Path(path).expanduser()
        self._limit = limit
        self._seed = seed
        self._num_carved = num_carved_validation
        self._revision = revision
        self._hub = HubData(source.hub_id, source.config_name, revision)
        self._files = {} if self._path is None else self._find_files(self._path)
        self._file = self._files.pop("", [None])[0]
        self._asked_split_file = split_file
        self.split_file = bool(split_file)
        self._sha256: dict[str, str] = {}
        self._whole: dict[str, Dataset] = {}
        self._rows: dict[str, Dataset] = {}

    def settle(self, *, is_training: bool) -> None:
        """Choose `split_file` where it was left open: True for a job that trains."""
        if self._asked_split_file is None:
            self.split_file = is_training
            self._rows.clear()

    def rows(self, split: str) -> Dataset:
        """Return the rows of "train", "validation" or "test", at most `limit`.

        Raises:
            TaskDataError: The split does not exist here, or its rows cannot be used.
            ValueError: Unknown split.
        """
        check_split(split)
        if split not in self._rows:
            whole = self._split(split)
            if not len(whole):
                raise TaskDataError(f"{self._origin}: there are no {split} rows")
            chosen = whole
            if self._limit is not None and self._limit < len(whole):
                drawn = sorted(_seeded_order(len(whole), f"limit/{split}/{self._seed}"))
                keep = sorted(index for _, index in drawn[: self._limit])
                chosen = whole.select(keep)
            logger.info("%s: %d of %d %s rows", self._origin, len(chosen), len(whole), split)
            self._whole[split] = whole
            self._rows[split] = chosen
        return self._rows[split]

    def provenance(self) -> dict[str, Any]:
        """Return where the rows loaded so far came from, for a manifest."""
        files = [] if self._file is None else [self._file]
        files += [path for paths in self._files.values() for path in paths]
        if not self._sha256:
            self._sha256 = {path.name: file_sha256(path) for path in files}
        is_hub = self._path is None
        return {
            "hub_id": self._source.hub_id,
            "config_name": self._source.config_name,
            "revision": self._revision if is_hub else None,
            "commit": self._hub.commit if is_hub else None,
            "path": None if self._path is None else str(self._path.resolve()),
            "sha256": dict(self._sha256),
            "split_file": self.split_file if self._file is not None else None,
            "seed": self._seed,
            "limit": self._limit,
            "num_rows": {
                split: {"used": len(rows), "available": len(self._whole[split])}
                for split, rows in self._rows.items()
            },
        }

    @property
    def _origin(self) -> str:
        return self._source.hub_id if self._path is None else f"data.path={self._path}"

    @staticmethod
    def _find_files(path: Path) -> dict[str, list[Any]]:
        """Return files by split; the one file that stands for itself under ""."""
        if path.is_file():
            check_suffix(path)
            return {"": [path]}
        if not path.is_dir():
            raise TaskDataError(f"data.path={path}: there is no such file or folder")
        files: dict[str, list[Any]] = dict(find_split_files(path))
        if files:
            return files
        others = data_files(path)
        if len(others) == 1:
            return {"": others}
        found = f" (found {', '.join(item.name for item in others)})" if others else ""
        raise TaskDataError(
            f"data.path={path}: the folder has no train, validation or test file{found}; name its "
            "files like test.jsonl, or give one file"
        )

    def _split(self, split: str) -> Dataset:
        if split != "test" and "train" not in self._source.splits:
            hint = f"; {self._source.hint}" if self._source.hint else ""
            raise TaskDataError(f"{self._source.hub_id} has only a test split{hint}")
        if self._file is not None:
            return self._split_of_file(self._file, split)
        available = self._files if self._path is not None else self._source.splits
        if split in available and not (split == "train" and "validation" not in available):
            return self._read(split)
        if split != "test" and "train" in available:
            return self._carve()[split]
        found = ", ".join(name for name in SPLITS if name in available)
        raise TaskDataError(
            f"{self._origin}: there is no {split} split (found: {found}); add a {split} file, or "
            "give another data.path"
        )

    def _split_of_file(self, file: Path, split: str) -> Dataset:
        rows = self._numbered(read_files([file], self._source.columns))
        split_of = self._source.split_of
        if split_of is not None:
            return rows.select([index for index, row in enumerate(rows) if split_of(row) == split])
        if self.split_file and "train" in self._source.splits:
            counts = {name: max(1, round(len(rows) * CARVED_SHARE)) for name in SPLITS[1:]}
            return self._divide(rows, counts)[split]
        if split == "test":
            return rows
        raise TaskDataError(
            f"data.path={file}: all of one file is the test split; set data.split_file=true to "
            f"divide it by seed, or give a folder with a {split} file"
        )

    def _carve(self) -> dict[str, Dataset]:
        """Return training and validation rows where the data set has only the former."""
        rows = self._read("train")
        most = max(1, int(len(rows) * CARVED_SHARE))
        return self._divide(rows, {"validation": min(self._num_carved, most)})

    def _read(self, split: str) -> Dataset:
        columns = self._source.columns
        if self._path is not None:
            return self._numbered(read_files(self._files[split], columns))
        rows = self._hub.read(self._source.splits[split])
        check_columns(rows, columns, f"{self._source.hub_id}, split {split}")
        return self._numbered(rows)

    @staticmethod
    def _numbered(rows: Dataset) -> Dataset:
        if ROW_COLUMN in rows.column_names:
            rows = rows.remove_columns(ROW_COLUMN)
        numbered: Dataset = rows.add_column(ROW_COLUMN, list(range(len(rows))))
        return numbered

    def _divide(self, rows: Dataset, counts: Mapping[str, int]) -> dict[str, Dataset]:
        """Return parts with at least so many rows each, and the rest as "train"."""
        groups = self._groups(rows)
        num_groups = len(groups)
        parts: dict[str, list[int]] = {name: [] for name in counts}
        for name, count in counts.items():
            while groups and len(parts[name]) < count:
                parts[name] += groups.pop()
        parts["train"] = [index for group in groups for index in group]
        if not all(parts.values()):
            raise TaskDataError(
                f"{self._origin}: {num_groups} different rows are too few to be divided between "
                f"{' and '.join(parts)}"
            )
        return {name: rows.select(sorted(indices)) for name, indices in parts.items()}

    def _groups(self, rows: Dataset) -> list[list[int]]:
        """Return the indices of rows of equal content together, in an order drawn by the seed."""
        names = self._source.key or self._source.columns
        groups: dict[str, list[int]] = {}
        for index, row in enumerate(rows.select_columns(list(names))):
            content = json.dumps([row[name] for name in names], sort_keys=True, default=str)
            groups.setdefault(_digest(f"divide/{self._seed}/{content}"), []).append(index)
        return [groups[digest] for digest in sorted(groups)]


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _seeded_order(number: int, name: str) -> list[tuple[str, int]]:
    """Return (random key, index) pairs; sorting them gives an order drawn by `name`."""
    return [(_digest(f"{name}/{index}"), index) for index in range(number)]
