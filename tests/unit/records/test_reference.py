"""docs/records.md says what the schema says."""

import torch
from composed import ROOT

from diversed.records.manifest import build_manifest
from diversed.records.reference import reference
from diversed.records.schema import MANIFEST_KEYS, ROW_COLUMNS, RUN_COLUMNS, TRACE_COLUMNS

PAGE = (ROOT / "docs" / "records.md").read_text()


def test_the_page_has_the_tables_of_the_schema():
    start, end = "<!-- python -m diversed.records.reference -->\n", "<!-- end -->"
    assert PAGE.split(start)[1].split(end)[0] == reference()


def test_every_column_and_key_is_in_the_tables():
    for columns in (ROW_COLUMNS, RUN_COLUMNS, TRACE_COLUMNS, MANIFEST_KEYS):
        for name, meaning in columns.items():
            assert f"| `{name}` | {meaning} |\n" in reference()
            assert "|" not in meaning


def test_the_keys_of_a_manifest_are_those_that_are_written():
    manifest = build_manifest(dict.fromkeys(RUN_COLUMNS), {}, {}, torch.device("cpu"), "running")
    assert {"schema_version", *manifest} == set(MANIFEST_KEYS)
