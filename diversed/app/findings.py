"""What a pre-flight has found, and the table that shows it."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Column, Table
from rich.text import Text

OK, PROBLEM, UNCHECKED = "ok", "problem", "not checked"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: Its name.
        result: OK, PROBLEM or UNCHECKED.
        detail: What was found, in one line.
    """

    what: str
    result: str
    detail: str


def findings_table(findings: Sequence[Finding]) -> Table:
    """Return findings as people read them."""
    colours = {OK: "green", PROBLEM: "red", UNCHECKED: "yellow"}
    table = Table("looked at", "result", Column("found", overflow="fold"))
    for finding in findings:
        table.add_row(
            finding.what, Text(finding.result, colours[finding.result]), Text(finding.detail)
        )
    return table
