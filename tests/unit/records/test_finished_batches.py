"""Finished batches on disk: whole, of this evaluation, or not there."""

import math

import pandas as pd
import pytest

from diversed.records.parts import PARTS_FOLDER, read_parts, remove_parts, write_part
from diversed.records.schema import ROW_COLUMNS, TRACE_COLUMNS
from diversed.records.store import RecordsError

ORIGIN = {"config": {"seed": 3, "resume": None, "verifier": {"weight": 0.1}}, "head": "c0ffee"}
ROWS = [
    dict.fromkeys(ROW_COLUMNS) | {"prompt_id": "a", "sample": 0, "bias": 0.1 + 0.2, "text": "ä\n"},
    dict.fromkeys(ROW_COLUMNS) | {"prompt_id": "a", "sample": 1, "num_tokens": 7},
]


@pytest.fixture
def trace():
    numbers = {name: [0.1, math.nan] for name in TRACE_COLUMNS}
    table = pd.DataFrame(numbers | {"prompt_id": ["a", "a"], "sample": [0, 1]})
    return table.astype({"target_prob": "float32"})


def test_parts_come_back_as_they_were_in_the_order_of_their_names(tmp_path, trace):
    write_part(tmp_path, "0002", ROWS[1:], trace[1:], ORIGIN)
    write_part(tmp_path, "0001", ROWS[:1], trace[:1], ORIGIN)
    parts = read_parts(tmp_path, ORIGIN)
    assert [rows for rows, _ in parts] == [ROWS[:1], ROWS[1:]]
    pd.testing.assert_frame_equal(
        pd.concat([part for _, part in parts], ignore_index=True), trace, check_exact=True
    )


def test_a_part_counts_once_its_rows_are_there(tmp_path, trace):
    write_part(tmp_path, "0001", ROWS, trace, ORIGIN)
    (tmp_path / PARTS_FOLDER / "0001.json").rename(tmp_path / PARTS_FOLDER / ".0001.json.partial")
    assert read_parts(tmp_path, ORIGIN) == []
    write_part(tmp_path, "0001", ROWS, trace, ORIGIN)
    assert len(read_parts(tmp_path, ORIGIN)) == 1


def test_a_part_of_another_origin_is_refused_by_its_keys(tmp_path, trace):
    write_part(tmp_path, "0001", ROWS, trace, ORIGIN)
    other = {"config": {"seed": 3, "resume": "auto", "verifier": {"weight": 0.2}}, "head": "c0de"}
    message = r"/parts/0001\.json was decoded with another config\.verifier\.weight, head; remove "
    with pytest.raises(RecordsError, match=message):
        read_parts(tmp_path, other)
    resumed = ORIGIN | {"config": ORIGIN["config"] | {"resume": "auto"}}
    assert len(read_parts(tmp_path, resumed)) == 1


def test_parts_are_removed_all_together(tmp_path, trace):
    write_part(tmp_path, "0001", ROWS, trace, ORIGIN)
    remove_parts(tmp_path)
    remove_parts(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert read_parts(tmp_path, ORIGIN) == []
