"""Execute the notebooks of `analysis/` headless, from a checkout: what `make figures` runs."""

import argparse
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from diversed.notebooks.data import (
    ANALYSIS,
    DEFAULT_RECORDS,
    RECORDS_VARIABLE,
    WANDB_PREFIX,
    open_records,
)
from diversed.notebooks.execution import NotebookError, Outcome, execute_notebook
from diversed.notebooks.showing import FIGURE, SKIPPED, TABLE
from diversed.records.store import RecordsError


def main() -> None:
    """Execute notebooks, and say what was drawn, what was skipped and why."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--records",
        default=os.environ.get(RECORDS_VARIABLE) or str(DEFAULT_RECORDS),
        help="folder of finished runs, or wandb:entity/project (default: RECORDS, or the demo's)",
    )
    parser.add_argument("--out", type=Path, default=ANALYSIS / "out", help="default: analysis/out")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of analysis/")
    arguments = parser.parse_args()
    records = arguments.records
    try:
        if not records.startswith(WANDB_PREFIX):
            records = str(Path(records).resolve())
            open_records(records)  # says what is missing before any kernel starts
        notebooks = arguments.notebooks or _all_notebooks()
        outcomes = execute_all(notebooks, records, arguments.out.resolve(), Console())
    except (RecordsError, NotebookError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    report(outcomes, arguments.out, Console())


def _all_notebooks() -> list[Path]:
    notebooks = sorted(ANALYSIS.glob("*.ipynb"))
    if not notebooks:
        raise NotebookError(f"{ANALYSIS} holds no notebooks: run this from a checkout")
    return notebooks


def execute_all(notebooks: list[Path], records: str, out: Path, console: Console) -> list[Outcome]:
    """Execute notebooks one after the other; arguments as in `execution.execute_notebook`."""
    outcomes = []
    for path in notebooks:
        started = time.perf_counter()
        found = execute_notebook(path, records, out)
        seconds = time.perf_counter() - started
        shown = ", ".join(each.name for each in found if each.kind != SKIPPED) or "nothing"
        _print(console, f"{path.stem}: {shown} ({seconds:.0f} s)")
        outcomes += found
    return outcomes


def report(outcomes: list[Outcome], out: Path, console: Console) -> None:
    """Print how much was drawn, and what was skipped for want of which records."""
    number = {
        kind: sum(each.kind == kind for each in outcomes) for kind in (FIGURE, TABLE, SKIPPED)
    }
    _print(console, f"\n{number[FIGURE]} figures and {number[TABLE]} tables in {out}")
    if number[SKIPPED]:
        _print(console, f"{number[SKIPPED]} skipped:")
    for each in outcomes:
        if each.kind == SKIPPED:
            _print(console, f"  {each.name} ({each.notebook}) {each.reason}")


def _print(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


if __name__ == "__main__":
    main()
