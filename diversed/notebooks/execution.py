"""Execute notebooks without a screen and gather what they drew and what they skipped."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from diversed.notebooks.data import RECORDS_VARIABLE
from diversed.notebooks.showing import METADATA_KEY, OUT_VARIABLE

CELL_TIMEOUT_S = 600
_QUIET = {"MPLBACKEND": "agg", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


class NotebookError(Exception):
    """A notebook did not run to its end; the message names it and the error of its cell."""


@dataclass(frozen=True)
class Outcome:
    """What became of one figure or table.

    Attributes:
        notebook: Stem of the notebook.
        name: Stem of its files.
        kind: "figure", "table" or "skipped".
        reason: Which records a skipped one needs; "" for the others.
    """

    notebook: str
    name: str
    kind: str
    reason: str


def execute_notebook(path: Path, records: str, out: Path) -> list[Outcome]:
    """Execute one notebook on some records; write it, executed, and its figures to a folder.

    Args:
        path: The notebook; the file itself stays as it is.
        records: What its variable RECORDS is to be: a folder (absolute) or "wandb:entity/project".
        out: Folder of the executed notebook and the figures.

    Returns:
        What it showed, in order.

    Raises:
        NotebookError: A cell failed or took too long.
    """
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    given = {RECORDS_VARIABLE: records, OUT_VARIABLE: str(out)}
    out.mkdir(parents=True, exist_ok=True)
    try:
        client.execute(env=os.environ | _QUIET | given)
    except CellExecutionError as error:
        raise NotebookError(f"{path.name}: {error.ename}: {error.evalue}") from error
    except (CellTimeoutError, DeadKernelError) as error:
        raise NotebookError(f"{path.name}: {error}") from error
    finally:
        nbformat.write(notebook, out / path.name)
    return list(_outcomes(path.stem, notebook.cells))


def _outcomes(notebook: str, cells: Sequence[Mapping[str, Any]]) -> Iterator[Outcome]:
    for cell in cells:
        for output in cell.get("outputs", ()):
            told = output.get("metadata", {}).get(METADATA_KEY)
            if told is not None:
                yield Outcome(notebook, told["name"], told["kind"], told["reason"])
