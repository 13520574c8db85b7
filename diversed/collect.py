"""One table of runs, from folders and from Weights & Biases.

    python -m diversed.collect outputs multirun [--wandb entity/project] [--out runs.parquet]
    python -m diversed.collect outputs/sweeps/lossy_front --config verifier.lenience verifier.alpha

A row is a run: what it is, how it ended, its summary numbers, where it lies. Runs that failed, were
killed or are at work have rows too, and so have folders whose manifest cannot be read. Without
--out a terminal gets the main columns, anything else the whole table as CSV.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from diversed.config import EXIT_BAD_INPUT, InputError
from diversed.records.folders import (
    BROKEN,
    ERROR_FILE,
    FINISHED,
    LOCK_FILE,
    mark_killed,
    read_state,
)
from diversed.records.schema import RUN_COLUMNS
from diversed.records.store import MANIFEST_FILE, replace_file

LEADING_COLUMNS = ("status", "source")
TRAILING_COLUMNS = ("error", "folder", "written_at", "git_sha")
SHOWN_COLUMNS = (
    *("status", "run_name", "quality", "expected_acceptance", "block_efficiency"),
    *("num_errors", "error", "folder"),
)
WRITERS = {
    ".csv": lambda table, path: table.to_csv(path, index=False),
    ".parquet": lambda table, path: table.to_parquet(path, index=False),
    ".jsonl": lambda table, path: table.to_json(path, orient="records", lines=True),
}
LOGGED_PREFIX = "test/"  # of the summary numbers in a tracker


def main() -> None:
    """Collect the runs that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, help="searched for runs, at any depth")
    parser.add_argument("--wandb", metavar="ENTITY/PROJECT", help="also the runs of a W&B project")
    parser.add_argument("--config", nargs="+", default=[], metavar="KEY", help="add config values")
    parser.add_argument("--out", type=Path, help="a .csv, .parquet or .jsonl file")
    arguments = parser.parse_args()
    if not arguments.folders and arguments.wandb is None:
        parser.error("name folders, or --wandb entity/project")
    try:
        _check_out(arguments.out)
        folders = find_runs(arguments.folders)
        mark_killed(folders)
        rows = [run_row(folder, arguments.config) for folder in folders]
        if arguments.wandb is not None:
            rows += wandb_rows(arguments.wandb, arguments.config)
        table = runs_table(rows)
        _give(table, arguments.out, Console())
    except (InputError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_BAD_INPUT)
    for row in table[table["status"] == BROKEN].to_dict("records"):
        sys.stderr.write(f"{row['folder']}: {row['error']}\n")


def find_runs(folders: Iterable[Path]) -> list[Path]:
    """Return the folders of runs at or below some folders, each once, in order of their paths.

    Raises:
        InputError: A folder does not exist.
    """
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no such folder")
        for name in (MANIFEST_FILE, ERROR_FILE, LOCK_FILE, ".hydra/overrides.yaml"):
            for path in folder.rglob(name):
                run = path.parents[name.count("/")]
                found.setdefault(run.resolve(), run)
    return sorted(found.values())


def run_row(folder: Path, config_keys: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a folder's run is, how it ended, and its summary numbers.

    Args:
        folder: A run's folder.
        config_keys: Dotted keys of the resolved config that become columns of their own.

    Returns:
        The columns of `runs_table`; without a manifest those of the run are missing.
    """
    state = read_state(folder)
    row: dict[str, Any] = {"status": state.status, "source": "folder"}
    manifest = state.manifest
    if manifest is not None:
        row |= manifest.get("run", {}) | _config_columns(manifest.get("config", {}), config_keys)
        if state.status == FINISHED:
            row |= _numbers(manifest.get("results", {}))
        row |= {"written_at": manifest.get("written_at"), "git_sha": _git_sha(manifest)}
    return row | {"error": state.error, "folder": str(folder)}


def wandb_rows(path: str, config_keys: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of a W&B project, with the address of a run in the place of its folder.

    Args:
        path: "entity/project".
        config_keys: As in `run_row`.

    Raises:
        InputError: The project cannot be read; the message says why.
    """
    from diversed.tracking.runs import TrackerError, read_runs

    try:
        runs = read_runs(path)
    except TrackerError as error:
        raise InputError(f"--wandb {path}: {error}") from error
    rows = []
    for run in runs:
        logged = {
            name.removeprefix(LOGGED_PREFIX): value
            for name, value in run.summary.items()
            if name.startswith(LOGGED_PREFIX)
        }
        columns = run.config.get("run")
        known = columns if isinstance(columns, Mapping) else {"run_name": run.name}
        row: dict[str, Any] = {"status": run.state, "source": "wandb"} | dict(known)
        row |= _config_columns(run.config, config_keys) | _numbers(logged)
        rows.append(row | {"folder": run.url, "written_at": run.created_at, "git_sha": run.git_sha})
    return rows


def runs_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as one table: status, run columns, numbers, then error and place.

    A column that a run lacks is empty there; none is dropped.
    """
    ends = {*LEADING_COLUMNS, *RUN_COLUMNS, *TRAILING_COLUMNS}
    numbers = dict.fromkeys(name for row in rows for name in row if name not in ends)
    columns = [*LEADING_COLUMNS, *RUN_COLUMNS, *numbers, *TRAILING_COLUMNS]
    table = pd.DataFrame([dict(row) for row in rows], columns=columns, dtype=object)
    return table.infer_objects().astype(
        {name: "Int64" for name in columns if _is_whole(table[name].dropna().tolist())}
    )


def _is_whole(values: Sequence[Any]) -> bool:
    """Return whether there are values, all of them integers: gaps would make them floats."""
    return bool(values) and all(type(value) is int for value in values)


def print_table(table: pd.DataFrame, console: Console) -> None:
    """Print a table: ruled on a terminal, tab-separated elsewhere. Columns without a value go."""
    shown = table.loc[:, table.notna().any()]
    cells = [[_cell(value) for value in row] for row in shown.itertuples(index=False)]
    if not console.is_terminal:
        lines = [list(shown.columns), *cells]
        console.file.write("".join("\t".join(line) + "\n" for line in lines))
        return
    ruled = Table(*map(str, shown.columns))
    for line in cells:
        ruled.add_row(*line)
    console.print(ruled, markup=False, highlight=False)


def _cell(value: Any) -> str:
    if pd.isna(value):
        return "–"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return " ".join(text.split())


def _check_out(out: Path | None) -> None:
    if out is not None and out.suffix not in WRITERS:
        raise InputError(f"--out {out}: the name must end in one of {', '.join(WRITERS)}")


def _give(table: pd.DataFrame, out: Path | None, console: Console) -> None:
    if out is not None:
        write = WRITERS[out.suffix]
        replace_file(out, lambda partial: write(table, partial))
        console.print(f"{len(table)} runs in {out}", soft_wrap=True, highlight=False, markup=False)
    elif console.is_terminal:
        print_table(table[list(SHOWN_COLUMNS)], console)
    else:
        table.to_csv(console.file, index=False)


def _numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the single numbers among a run's results; a curve over training is none."""
    return {
        str(name): value
        for name, value in results.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _config_columns(config: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    columns = {}
    for key in keys:
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        columns[key] = str(value) if isinstance(value, Mapping | list) else value
    return columns


def _git_sha(manifest: Mapping[str, Any]) -> str | None:
    sha: str | None = manifest.get("git", {}).get("sha")
    return sha


if __name__ == "__main__":
    main()
