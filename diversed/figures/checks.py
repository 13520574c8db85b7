"""What a figure or table needs before it can be drawn, and how it says so."""

from collections.abc import Iterable

import pandas as pd


class MissingRecords(ValueError):
    """The columns are there, but no run that the figure is about; the message says which it takes.

    Notebooks name such a figure as skipped. Every other error of a figure is a fault.
    """


def require_columns(table: pd.DataFrame, columns: Iterable[str]) -> None:
    """Raise a ValueError that names those of `columns` which `table` lacks."""
    missing = [column for column in columns if column not in table.columns]
    if missing:
        message = f"table lacks the columns {', '.join(missing)}"
        raise ValueError(message)


def require_rows(table: pd.DataFrame, needs: str) -> None:
    """Raise MissingRecords, saying what is needed, unless `table` has a row."""
    if table.empty:
        message = f"needs {needs}"
        raise MissingRecords(message)


def require_values(table: pd.DataFrame, columns: Iterable[str]) -> None:
    """Raise a ValueError that names the runs in which one of `columns` is NaN."""
    for column in columns:
        runs = table.loc[table[column].isna(), "run_name"]
        if len(runs):
            message = f"{column} is NaN in the runs {', '.join(map(str, runs))}"
            raise ValueError(message)
