"""Copy finished runs as the small records that are committed and shared.

    python -m diversed.publish outputs/evidence analysis/records/tiny

Every finished run below the first folder gets a folder of the same place below the second one:
manifest, records as Parquet without texts, the head if it has one, training curves. Prompts and
completions are left out (`prompt`, `text`, `answer`, `reference` are null), numbers are single
precision, absolute paths of this machine are cut to their last part, checkpoints stay where they
are, and so do traces unless `--traces` is given. Runs that did not finish are named.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from diversed.config import EXIT_BAD_INPUT, InputError
from diversed.records.folders import FINISHED, read_state
from diversed.records.schema import ROW_COLUMNS
from diversed.records.store import (
    MANIFEST_FILE,
    PARQUET_FILE,
    TRACE_FILE,
    head_run,
    read_manifest,
    read_records,
    read_trace,
    replace_file,
    replace_folder,
    write_manifest,
)

TEXTS = ("prompt", "text", "answer", "reference")
KEPT_FOLDERS = ("head", "metrics")

_FOLDERS_OF_A_PATH = re.compile(r"(?<![\w.:/~*-])/(?:[^/=,\s\[\]]+/)*(?=[\w.])")
"""What stands before the last part of an absolute path, in any text; addresses are left alone."""


def main() -> None:
    """Publish the runs that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="searched for runs, at any depth")
    parser.add_argument("target", type=Path, help="folder of the small records")
    parser.add_argument("--traces", action="store_true", help="copy the traces, too")
    arguments = parser.parse_args()
    try:
        num_published = publish(arguments.source, arguments.target, copies_traces=arguments.traces)
    except (InputError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_BAD_INPUT)
    print(f"{num_published} runs in {arguments.target}")  # noqa: T201 - what the command says


def publish(source: Path, target: Path, *, copies_traces: bool = False) -> int:
    """Copy the finished runs below a folder, and return how many they are.

    Args:
        source: Searched for runs, at any depth.
        target: Gets a folder for each.
        copies_traces: Whether the traces of those that have one come along.

    Raises:
        InputError: There is no run, or one did not finish.
    """
    folders = sorted(path.parent for path in source.rglob(MANIFEST_FILE))
    unfinished = [folder for folder in folders if read_state(folder).status != FINISHED]
    if not folders or unfinished:
        what = f"{unfinished[0]} has not finished" if unfinished else f"no run below {source}"
        raise InputError(f"{what}: finish the runs first")
    for folder in folders:
        place = target / folder.relative_to(source)
        replace_folder(place, partial(_write, folder, copies_traces))
    return len(folders)


def _write(folder: Path, copies_trace: bool, new: Path) -> None:
    """Write the small records of one run into an empty folder."""
    manifest = read_manifest(folder)
    if not manifest.get("head_run"):  # the cut path of a checkpoint no longer tells
        manifest["head_run"] = head_run(manifest.get("config", {}))
    write_manifest(new, without_paths(manifest))
    table = small_records(folder)
    replace_file(
        new / PARQUET_FILE, lambda path: table.to_parquet(path, index=False, compression="zstd")
    )
    if copies_trace and (folder / TRACE_FILE).is_file():
        trace = _in_single_precision(read_trace(folder))
        replace_file(
            new / TRACE_FILE,
            lambda path: trace.to_parquet(path, index=False, compression="zstd"),
        )
    for name in KEPT_FOLDERS:
        if (folder / name).is_dir():
            shutil.copytree(folder / name, new / name)


def without_paths(content: Any) -> Any:
    """Return what a manifest holds with absolute paths cut to their last part.

    >>> without_paths({"command": ["eval.py", "data.path=/home/me/mbpp.jsonl"], "n": 3})
    {'command': ['eval.py', 'data.path=mbpp.jsonl'], 'n': 3}
    """
    if isinstance(content, Mapping):
        return {name: without_paths(value) for name, value in content.items()}
    if isinstance(content, list):
        return [without_paths(value) for value in content]
    return _FOLDERS_OF_A_PATH.sub("", content) if isinstance(content, str) else content


def small_records(folder: Path) -> pd.DataFrame:
    """Return a run's rows without texts, with numbers in single precision."""
    table = read_records(folder)[list(ROW_COLUMNS)]
    return _in_single_precision(table.assign(**dict.fromkeys(TEXTS)))


def _in_single_precision(table: pd.DataFrame) -> pd.DataFrame:
    reals = table.select_dtypes("float").columns
    return table.astype(dict.fromkeys(reals, np.float32))


if __name__ == "__main__":
    main()
