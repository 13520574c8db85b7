"""Records on disk: what is written comes back, whole or not at all."""

import json
import math

import pandas as pd
import pytest

from diversed.records.schema import (
    ADDED_ROW_COLUMNS,
    ADDED_RUN_COLUMNS,
    ROW_COLUMNS,
    RUN_COLUMNS,
    SCHEMA_VERSION,
    TRACE_COLUMNS,
)
from diversed.records.store import (
    MANIFEST_FILE,
    RECORDS_FILE,
    RecordsError,
    read_manifest,
    read_records,
    read_runs,
    read_trace,
    replace_file,
    write_json,
    write_manifest,
    write_records,
    write_trace,
)

RUN = dict.fromkeys(RUN_COLUMNS) | {"run_name": "one", "method": "static", "target_weight": 0.5}


def record(prompt_id, **changes):
    known = {"prompt_id": prompt_id, "sample": 0, "quality": 1.0, "text": "a\nb – c"}
    return dict.fromkeys(ROW_COLUMNS) | known | changes


def write_run(folder, rows, run=RUN):
    write_manifest(folder, {"run": run})
    write_records(folder, rows)


def test_records_come_back_with_the_columns_of_their_run(tmp_path):
    rows = [record("b"), record("a", error="too long", quality=None)]
    write_run(tmp_path, rows)
    table = read_records(tmp_path)
    assert list(table.columns) == [*RUN_COLUMNS, *ROW_COLUMNS]
    assert table["prompt_id"].tolist() == ["b", "a"]
    assert table["text"].tolist() == ["a\nb – c"] * 2
    assert table["target_weight"].tolist() == [0.5, 0.5]
    assert table["error"].isna().tolist() == [True, False]
    assert table["quality"].isna().tolist() == [False, True]


def test_manifest_comes_back_with_the_schema_version(tmp_path):
    write_manifest(tmp_path, {"run": RUN, "results": {"quality": math.nan, "n": [1.5, math.inf]}})
    manifest = read_manifest(tmp_path)
    assert manifest["schema_version"] == SCHEMA_VERSION
    assert manifest["run"] == RUN
    assert manifest["results"] == {"quality": None, "n": [1.5, None]}


def test_trace_comes_back(tmp_path):
    trace = pd.DataFrame({name: [0.25, math.nan] for name in TRACE_COLUMNS})
    trace["token"] = [" pens", "\n"]
    write_manifest(tmp_path, {"run": RUN})
    write_trace(tmp_path, trace)
    pd.testing.assert_frame_equal(read_trace(tmp_path), trace)


@pytest.mark.parametrize("change", ["unknown", "missing"])
def test_record_that_does_not_follow_the_schema_is_refused(tmp_path, change):
    row = record("a")
    if change == "unknown":
        row["colour"] = "red"
    else:
        del row["num_tokens"]
    name = {
        "unknown": r"unknown columns \['colour'\]",
        "missing": r"lacks columns \['num_tokens'\]",
    }
    with pytest.raises(RecordsError, match=name[change]):
        write_records(tmp_path, [record("b"), row])
    assert not (tmp_path / RECORDS_FILE).exists()


@pytest.mark.parametrize("change", ["unknown", "missing"])
def test_file_that_does_not_follow_the_schema_is_refused(tmp_path, change):
    write_run(tmp_path, [record("a")])
    row = record("b")
    if change == "unknown":
        row["colour"] = "red"
    else:
        del row["num_tokens"]
    with (tmp_path / RECORDS_FILE).open("a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(RecordsError, match="does not follow schema version"):
        read_records(tmp_path)


@pytest.mark.parametrize("change", ["unknown", "missing"])
def test_trace_that_does_not_follow_the_schema_is_refused(tmp_path, change):
    trace = pd.DataFrame({name: [0] for name in TRACE_COLUMNS})
    changed = trace.assign(colour=0) if change == "unknown" else trace.drop(columns="status")
    with pytest.raises(RecordsError, match="a trace has columns"):
        write_trace(tmp_path, changed)


VERSION_1_COLUMNS = [name for name in ROW_COLUMNS if name != "is_prompt_cut"]


def write_version_1(folder, rows):
    run = {name: value for name, value in RUN.items() if name not in ADDED_RUN_COLUMNS[2]}
    write_json(folder / MANIFEST_FILE, {"schema_version": 1, "run": run})
    lines = [json.dumps({name: row[name] for name in VERSION_1_COLUMNS}) + "\n" for row in rows]
    (folder / RECORDS_FILE).write_text("".join(lines))


def test_records_of_version_1_are_read_with_prompts_uncut(tmp_path):
    write_version_1(tmp_path, [record("a"), record("b")])
    table = read_records(tmp_path)
    assert list(table.columns) == [*RUN_COLUMNS, *ROW_COLUMNS]
    assert table["is_prompt_cut"].tolist() == [False, False]
    assert table["prompt_id"].tolist() == ["a", "b"]
    assert table["setting"].tolist() == ["", ""]


def test_records_of_two_versions_make_one_table(tmp_path):
    (tmp_path / "old").mkdir()
    write_version_1(tmp_path / "old", [record("a")])
    write_run(tmp_path / "new", [record("b", is_prompt_cut=True)])
    assert read_runs(tmp_path)["is_prompt_cut"].tolist() == [True, False]


@pytest.mark.parametrize("version", [1, 2])
def test_columns_of_another_version_than_the_manifests_are_refused(tmp_path, version):
    write_version_1(tmp_path, [record("a")])
    if version == 1:
        write_records(tmp_path, [record("a", is_prompt_cut=True)])
    else:
        write_json(tmp_path / MANIFEST_FILE, {"schema_version": 2, "run": RUN})
    with pytest.raises(RecordsError, match=f"does not follow schema version {version}"):
        read_records(tmp_path)


def test_every_later_version_says_what_it_added():
    assert list(ADDED_ROW_COLUMNS) == list(ADDED_RUN_COLUMNS) == list(range(2, SCHEMA_VERSION + 1))
    assert set().union(*ADDED_RUN_COLUMNS.values()) <= RUN_COLUMNS.keys()
    assert set().union(*ADDED_ROW_COLUMNS.values()) <= ROW_COLUMNS.keys()


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, None, "1", True, 1.0])
def test_unknown_schema_version_is_refused(tmp_path, version):
    write_run(tmp_path, [record("a")])
    write_json(tmp_path / MANIFEST_FILE, {"schema_version": version, "run": RUN})
    with pytest.raises(RecordsError, match=rf"schema version {version}, this code reads 1 to"):
        read_records(tmp_path)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(RecordsError, match="not the folder of a run"):
        read_manifest(tmp_path)
    write_manifest(tmp_path, {"run": RUN})
    with pytest.raises(RecordsError, match="did not finish"):
        read_records(tmp_path)
    with pytest.raises(RecordsError, match=r"evaluation\.writes_trace=true"):
        read_trace(tmp_path)
    with pytest.raises(RecordsError, match="no run's records below it"):
        read_runs(tmp_path)


def test_runs_below_a_folder_are_read_in_order_of_their_paths(tmp_path):
    for name in ("z", "a", "m/deep"):
        write_run(tmp_path / name, [record("1"), record("2")], RUN | {"run_name": name})
    write_manifest(tmp_path / "unfinished", {"run": RUN})
    table = read_runs(tmp_path)
    assert table["run_name"].tolist() == ["a", "a", "m/deep", "m/deep", "z", "z"]
    assert table.index.tolist() == list(range(6))


def test_nan_in_a_record_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_records(tmp_path, [record("a", quality=math.nan)])


def test_failing_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail_halfway(partial):
        partial.write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        replace_file(path, fail_halfway)
    assert path.read_text() == "old"
    replace_file(path, lambda partial: partial.write_text("new"))
    assert path.read_text() == "new"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_failing_record_leaves_the_old_records(tmp_path):
    write_run(tmp_path, [record("old")])
    with pytest.raises(RecordsError):
        write_records(tmp_path, [record("new"), {"prompt_id": "bad"}])
    assert read_records(tmp_path)["prompt_id"].tolist() == ["old"]
