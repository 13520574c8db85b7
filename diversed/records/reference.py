"""The schema as tables; `python -m diversed.records.reference` prints those of docs/records.md."""

import sys
from collections.abc import Mapping

from diversed.records.schema import (
    MANIFEST_KEYS,
    ROW_COLUMNS,
    RUN_COLUMNS,
    SCHEMA_VERSION,
    TRACE_COLUMNS,
)

_TABLES: Mapping[str, Mapping[str, str]] = {
    "A row of the records": ROW_COLUMNS,
    "A run": RUN_COLUMNS,
    "A token of the trace": TRACE_COLUMNS,
    "A manifest": MANIFEST_KEYS,
}


def reference() -> str:
    """Return one Markdown table per kind of entry.

    >>> reference().splitlines()[0] == f"Schema version {SCHEMA_VERSION}."
    True
    """
    parts = [f"Schema version {SCHEMA_VERSION}.\n"]
    for title, columns in _TABLES.items():
        lines = [f"| `{name}` | {meaning} |\n" for name, meaning in columns.items()]
        parts.append(f"\n### {title}\n\n| name | meaning |\n| --- | --- |\n{''.join(lines)}")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(reference())
