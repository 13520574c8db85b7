"""Records as JSONL or as Parquet: the same table comes back."""

import json

import pandas as pd
import pytest

from diversed.records.schema import ROW_COLUMNS, RUN_COLUMNS
from diversed.records.store import RecordsError, read_records, read_runs, write_json, write_manifest
from diversed.records.store import write_records as write

RUN = dict.fromkeys(RUN_COLUMNS) | {"run_name": "one", "seed": 3}
NONE = dict.fromkeys(ROW_COLUMNS)
GOOD = NONE | {
    **{"prompt_id": "a", "sample": 0, "text": "x\ny – z", "quality": 0.5, "num_tokens": 7},
    **{"is_truncated": True, "is_prompt_cut": False, "mean_target_weight": 0.25},
}
FAILED = NONE | {"prompt_id": "b", "sample": 0, "error": "too long", "is_prompt_cut": True}


@pytest.mark.parametrize("rows", [[GOOD], [GOOD, FAILED], [FAILED], []])
def test_both_formats_give_the_same_table(tmp_path, rows):
    tables = []
    for form in ("jsonl", "parquet"):
        write_manifest(tmp_path / form, {"run": RUN})
        write(tmp_path / form, rows, form)
        assert [path.name for path in tmp_path.glob(f"{form}/records.*")] == [f"records.{form}"]
        tables.append(read_records(tmp_path / form))
    pd.testing.assert_frame_equal(*tables, check_dtype=bool(rows))
    assert len(tables[0]) == len(rows)


def test_runs_of_both_formats_are_read_together(tmp_path):
    for form in ("parquet", "jsonl"):
        write_manifest(tmp_path / form, {"run": RUN | {"run_name": form}})
        write(tmp_path / form, [GOOD], form)
    assert read_runs(tmp_path)["run_name"].tolist() == ["jsonl", "parquet"]


@pytest.mark.parametrize(("first", "second"), [("jsonl", "parquet"), ("parquet", "jsonl")])
def test_writing_again_in_the_other_format_leaves_one_file(tmp_path, first, second):
    write_manifest(tmp_path, {"run": RUN})
    write(tmp_path, [FAILED], first)
    write(tmp_path, [GOOD], second)
    assert read_records(tmp_path)["prompt_id"].tolist() == ["a"]


def test_two_files_of_records_are_refused(tmp_path):
    write_manifest(tmp_path, {"run": RUN})
    write(tmp_path, [GOOD], "parquet")
    (tmp_path / "records.jsonl").write_text(json.dumps(GOOD) + "\n")
    with pytest.raises(RecordsError, match="two files of records"):
        read_records(tmp_path)


def test_an_unknown_format_is_refused_by_name(tmp_path):
    with pytest.raises(RecordsError, match=r"records_format='xml': must be one of jsonl, parquet"):
        write(tmp_path, [GOOD], "xml")


def test_parquet_that_does_not_follow_the_schema_is_refused(tmp_path):
    write_manifest(tmp_path, {"run": RUN})
    pd.DataFrame([GOOD | {"colour": "red"}]).to_parquet(tmp_path / "records.parquet")
    with pytest.raises(RecordsError, match="does not follow schema version"):
        read_records(tmp_path)


def test_parquet_of_an_older_version_gets_what_it_lacks(tmp_path):
    run = {name: value for name, value in RUN.items() if name != "setting"}
    write_json(tmp_path / "manifest.json", {"schema_version": 1, "run": run})
    pd.DataFrame([GOOD]).drop(columns="is_prompt_cut").to_parquet(tmp_path / "records.parquet")
    assert read_records(tmp_path)["is_prompt_cut"].tolist() == [False]


@pytest.mark.parametrize("line", ["{", "5", '"text"', '{"prompt_id": 1}', "\x00"])
def test_a_broken_line_is_refused(tmp_path, line):
    write_manifest(tmp_path, {"run": RUN})
    (tmp_path / "records.jsonl").write_text(f"{json.dumps(GOOD)}\n{line}\n")
    with pytest.raises(RecordsError, match=r"records\.jsonl (is broken|does not follow)"):
        read_records(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "", "\x00"])
def test_a_broken_manifest_is_refused(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RecordsError, match=r"manifest\.json (is no JSON|holds no mapping)"):
        read_records(tmp_path)
