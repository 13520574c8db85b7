"""Run a W&B sweep file through Hydra's multirun, without an account.

    python -m diversed.sweep sweeps/static_front.yaml [key=value ...] [--output FOLDER] [--status]
    python -m diversed.sweep sweeps/static_front.yaml model=qwen,llama hydra/launcher=joblib

The file's grid goes to the multirun of the script that it names, with the chosen launcher: basic,
or joblib, submitit_local, submitit_slurm, ray (pip install 'diversed[joblib,slurm,ray]'). A key on
the command line takes the place of the file's. Every point has a folder named after its values: the
same command again skips what is finished and goes on with the rest. A failed point is recorded in
its folder (error.txt) and stops no other; it fails the command.
"""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from rich.console import Console

from diversed.collect import print_table, run_row
from diversed.config import (
    EXIT_BAD_INPUT,
    EXIT_INTERRUPTED,
    InputError,
    held_by_another,
    run_script,
)
from diversed.grid import Grid, Point, read_grid
from diversed.records.folders import FAILED, FINISHED, read_state

PROGRAM_FOLDER = Path(__file__).resolve().parents[1]
CONFIG_FOLDER = PROGRAM_FOLDER / "conf"
EXIT_UNFINISHED = 1
COLUMNS = ("status", "quality", "expected_acceptance", "block_efficiency", "num_errors", "error")


def main() -> None:
    """Run the sweep that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="a W&B sweep file with method: grid")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for the script")
    parser.add_argument("--output", type=Path, help="default: outputs/sweeps/<name of the file>")
    parser.add_argument("--status", action="store_true", help="only show the table")
    arguments = parser.parse_intermixed_args()
    output = arguments.output or Path("outputs/sweeps") / arguments.file.stem
    environment = dict(os.environ)
    try:
        grid = read_grid(arguments.file, arguments.overrides, PROGRAM_FOLDER)
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_BAD_INPUT)
    codes: list[int] = []
    try:
        run_script(
            lambda: codes.append(_sweep(grid, output, environment, is_run=not arguments.status)),
            CONFIG_FOLDER,
            grid.config_name,
        )
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(codes[0])


def _sweep(grid: Grid, output: Path, environment: Mapping[str, str], *, is_run: bool) -> int:
    """Run what is not finished, print the table, and return the exit code."""
    console = Console()
    points = grid.points()
    check_folders(grid, points, output)
    left = [point for point in points if not _is_finished(output / point.name)]
    code = 0
    if left and is_run:
        command = multirun_command(grid, left, output)
        text = f"{len(left)} of {len(points)} points to run: {shlex.join(command)}"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
        code = _run(command, environment)
    table = points_table(points, output)
    print_table(table, console)
    numbers = table["status"].value_counts().to_dict()
    text = ", ".join(f"{number} {status}" for status, number in numbers.items())
    console.print(f"{text}; in {output}", soft_wrap=True, highlight=False, markup=False)
    if code == EXIT_INTERRUPTED:
        return code
    if numbers.get(FINISHED, 0) == len(points):
        return 0
    if not numbers.get(FAILED) and is_run:
        console.print(f"the multirun ended with exit code {code}; the same command goes on")
    return EXIT_UNFINISHED


def check_folders(grid: Grid, points: Sequence[Point], output: Path) -> None:
    """Compose every point, and refuse folders that hold something else.

    Raises:
        InputError: A folder holds a run of another config, or what cannot be read.
    """
    for point, cfg in zip(points, composed(grid, points), strict=True):
        taken = held_by_another(read_state(output / point.name), cfg)
        if taken is not None:
            raise InputError(f"{output / point.name}: {taken}; choose another with --output")


def composed(grid: Grid, points: Sequence[Point]) -> list[DictConfig]:
    """Return the config of every point; Hydra's error where one does not compose."""
    with initialize_config_dir(str(CONFIG_FOLDER), version_base="1.3"):
        return [compose(grid.config_name, overrides=list(point.overrides)) for point in points]


def multirun_command(grid: Grid, left: Sequence[Point], output: Path) -> list[str]:
    """Return the command that runs some points of a grid.

    It names the values that these points have; where that is more than the points themselves, the
    others end at once in the job, which finds them finished.
    """
    wanted = {key: {point.values[key] for point in left} for key in grid.values}
    values = {
        key: [text for text in texts if text in wanted[key]] for key, texts in grid.values.items()
    }
    unnamed = [key for key in values if key not in grid.named]
    dirname = "hydra.job.config.override_dirname"
    return [
        *(sys.executable, str(PROGRAM_FOLDER / grid.program), "--multirun"),
        *(f"{key}={','.join(texts)}" for key, texts in values.items()),
        *grid.launch,
        f"hydra.sweep.dir={quoted(output)}",
        f"hydra.sweep.subdir={'${hydra.job.override_dirname}' if grid.named else left[0].name}",
        "hydra.sweeper.params=null",  # an experiment may bring a grid of its own
        f"{dirname}.item_sep={grid.ITEM_SEPARATOR}",
        f"{dirname}.kv_sep={grid.VALUE_SEPARATOR}",
        f"{dirname}.exclude_keys=[{','.join(key.lstrip('+').split('@')[0] for key in unnamed)}]",
    ]


def quoted(path: Path) -> str:
    """Return a path as a value of Hydra's override grammar."""
    text = str(path)
    if re.fullmatch(r"[\w./-]+", text, re.ASCII):
        return text
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\+)$", r"\1\1", text) + "'"


def points_table(points: Sequence[Point], output: Path) -> pd.DataFrame:
    """Return one row per point: its values, how it stands, its main numbers, its error."""
    rows: list[dict[str, Any]] = []
    for point in points:
        row = run_row(output / point.name)
        rows.append({"point": point.name} | {name: row.get(name) for name in COLUMNS})
    return pd.DataFrame(rows)


def _is_finished(folder: Path) -> bool:
    return read_state(folder).status == FINISHED


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command to its end, hand Ctrl-C and SIGTERM on to it, and return its exit code."""
    process = subprocess.Popen(  # noqa: S603 - our own script, no shell
        command, env=dict(environment), process_group=0
    )
    previous = {
        number: signal.signal(number, lambda given, _: process.send_signal(given))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        return process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    main()
