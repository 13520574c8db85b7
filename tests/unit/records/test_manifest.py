"""What a manifest states about a run."""

import json
from importlib.metadata import version

import pytest
import torch

from diversed.records import manifest as manifest_module
from diversed.records.manifest import build_manifest, git_state
from diversed.records.schema import RUN_COLUMNS
from diversed.records.store import read_manifest, write_manifest

RUN = dict.fromkeys(RUN_COLUMNS) | {"run_name": "one", "seed": 3}
PAIR = {"target": {"name": "big"}, "draft": {"name": "small"}}


def build(**changes):
    arguments = {
        "run": RUN,
        "config": {"seed": 3, "decoding": {"top_k": 0}},
        "pair": PAIR,
        "device": torch.device("cpu"),
        "status": "running",
    }
    return build_manifest(**arguments | changes)


def test_manifest_states_all_that_made_the_run(tmp_path):
    write_manifest(tmp_path, build(status="finished", results={"quality": 0.5}))
    manifest = read_manifest(tmp_path)
    assert manifest["run"] == RUN
    assert manifest["config"] == {"seed": 3, "decoding": {"top_k": 0}}
    assert manifest["pair"] == PAIR
    assert manifest["status"] == "finished"
    assert manifest["results"] == {"quality": 0.5}
    assert manifest["device"] == "cpu"
    assert manifest["versions"]["torch"] == version("torch")
    assert manifest["versions"]["transformers"] == version("transformers")
    assert manifest["num_threads"] == torch.get_num_threads()
    assert set(manifest["git"]) == {"sha", "is_dirty"}
    assert manifest["command"]
    assert manifest["written_at"].endswith("+00:00")


def test_results_are_empty_until_there_are_any():
    assert build()["results"] == {}


def test_manifest_states_where_the_rows_came_from():
    assert build(data={"commit": "abc"})["data"] == {"commit": "abc"}
    assert build()["data"] == {}


def test_manifest_is_plain_json():
    manifest = build()
    assert json.loads(json.dumps(manifest)) == manifest


@pytest.mark.parametrize(
    ("run", "name"),
    [
        (RUN | {"colour": "red"}, "colour"),
        ({name: None for name in RUN_COLUMNS if name != "seed"}, "seed"),
    ],
)
def test_run_columns_must_be_those_of_the_schema(run, name):
    with pytest.raises(ValueError, match=name):
        build(run=run)


def test_code_outside_a_checkout_has_no_sha(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest_module, "__file__", str(tmp_path / "manifest.py"))
    assert git_state() == {"sha": None, "is_dirty": None}
