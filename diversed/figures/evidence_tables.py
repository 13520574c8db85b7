"""Tables of the evidence: where groups of runs lie, and by how much heads beat their controls."""

from collections.abc import Sequence

import pandas as pd

from diversed.figures.checks import require_columns, require_rows
from diversed.figures.labels import label, method_name
from diversed.figures.tables import MISSING

_ENDS = ("", "_low", "_high")
_GROUP_NUMBERS = ("quality", "expected_acceptance", "quality_above_hull", "objective_above_static")
_CONTROL_NUMBERS = ("objective_gain", "quality_above_hull")


def group_table(measured: pd.DataFrame) -> pd.DataFrame:
    """Return each group's place and its distance above the static front, as strings.

    Args:
        measured: Columns of `evaluation.evidence.measure_groups`, and `study`.

    Raises:
        MissingRecords: There is no row.
        ValueError: Columns are missing.
    """
    require_columns(measured, ["study"])
    _check(measured, _GROUP_NUMBERS, "make front")
    return pd.DataFrame(
        {
            "study": measured["study"],
            **_identity(measured),
            "quality": _texts(measured, "quality"),
            "acceptance A": _texts(measured, "expected_acceptance"),
            "quality above the hull, at equal A": _texts(measured, "quality_above_hull", "+"),
            "J above the best static w": _texts(measured, "objective_above_static", "+"),
        },
        dtype=str,
    )


def control_table(controls: pd.DataFrame) -> pd.DataFrame:
    """Return how far heads lie above each control, as strings.

    Args:
        controls: Columns of `evaluation.evidence.measure_against`.

    Raises:
        MissingRecords: There is no row.
        ValueError: Columns are missing.
    """
    _check(controls, _CONTROL_NUMBERS, "make evidence")
    return pd.DataFrame(
        {
            **_identity(controls),
            "J above the control": _texts(controls, "objective_gain", "+"),
            "quality above the hull with the control, at equal A": _texts(
                controls, "quality_above_hull", "+"
            ),
        },
        dtype=str,
    )


def rival_table(rivals: pd.DataFrame) -> pd.DataFrame:
    """Return how far heads lie in J above the best setting of each family of rules, as strings.

    Args:
        rivals: Columns of `evaluation.evidence.measure_against_best`, and the heads' `study` and
            `group`.

    Raises:
        MissingRecords: There is no row.
        ValueError: Columns are missing.
    """
    numbers = [f"objective_gain{end}" for end in _ENDS]
    require_columns(rivals, ("study", "group", "family", "best", "acceptance_weight", *numbers))
    require_rows(rivals, "make evidence")
    return pd.DataFrame(
        {
            "study": rivals["study"],
            "group": rivals["group"],
            label("acceptance_weight"): [f"{weight:g}" for weight in rivals["acceptance_weight"]],
            "rules": [method_name(name) for name in rivals["family"]],
            "their best": rivals["best"],
            "J above it": _texts(rivals, "objective_gain", "+"),
        },
        dtype=str,
    )


def _check(table: pd.DataFrame, numbers: Sequence[str], needs: str) -> None:
    columns = [f"{name}{end}" for name in numbers for end in _ENDS]
    require_columns(table, ("group", "acceptance_weight", "num_heads", *columns))
    require_rows(table, needs)


def _identity(table: pd.DataFrame) -> dict[str, list[str]]:
    weights = table["acceptance_weight"]
    return {
        "group": table["group"].tolist(),
        label("acceptance_weight"): [MISSING if pd.isna(w) else f"{w:g}" for w in weights],
        "runs": [f"{number:g}" for number in table["num_heads"]],
    }


def _texts(table: pd.DataFrame, name: str, sign: str = "") -> list[str]:
    """Return "0.912 [0.890, 0.930]" for each row; what is not known is a dash."""
    rows = table[[f"{name}{end}" for end in _ENDS]].to_numpy(float)
    return [
        MISSING
        if pd.isna(value)
        else f"{value:{sign}.3f}"
        + ("" if pd.isna(low) else f" [{low:{sign}.3f}, {high:{sign}.3f}]")
        for value, low, high in rows
    ]
