"""A small training run with logger=wandb, offline: W&B has what the run's own folder has."""

import csv
import json
import math

import pytest
from composed import SMALL_TRAINING, composed
from wandb_file import offline_folders, read_offline_run

from diversed import app
from diversed.records.schema import ROW_COLUMNS, TRACE_COLUMNS
from diversed.records.store import read_manifest, read_records, read_trace

TINY_TRAINING = (
    *SMALL_TRAINING,
    "decoding.max_new_tokens=24",
    "evaluation.num_prompts=3",
    "evaluation.batch_size=2",
    "logger=wandb",
    "logger.num_samples=2",
)


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """Return the folder of a finished run, and what W&B keeps of it."""
    folder = tmp_path_factory.mktemp("runs") / "tracked"
    patch = pytest.MonkeyPatch()
    patch.setenv("WANDB_MODE", "offline")
    patch.setenv("WANDB_SILENT", "true")
    patch.delenv("WANDB_DATA_DIR", raising=False)
    app.train(composed("train", *TINY_TRAINING), folder)
    patch.undo()
    (kept,) = offline_folders(folder)
    return folder, kept, read_offline_run(kept)


def test_config_code_and_versions_are_those_of_the_manifest(tracked):
    folder, _, run = tracked
    manifest = read_manifest(folder)
    for key, value in manifest["config"].items():
        assert run.config[key] == value
    for name in ("run", "git", "versions", "pair", "device"):
        assert run.config[name] == manifest[name]
    assert run.name == manifest["run"]["run_name"]
    assert run.config["versions"]["torch"]
    assert run.exit_code == 0


def test_curves_are_those_of_the_file(tracked):
    folder, _, run = tracked
    with (folder / "metrics" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2"]
    for name in rows[0].keys() - {"step"}:
        curve = {int(row["step"]): float(row[name]) for row in rows if row[name]}
        if name.startswith("test/"):  # W&B has them as its last step
            assert run.summary[name] == curve[2]
        else:
            assert run.curve(name) == curve
    assert {"train/acceptance_rate", "val/quality", "val/acceptance"} < rows[0].keys()


def test_the_summary_is_that_of_the_records(tracked):
    folder, _, run = tracked
    results = read_manifest(folder)["results"]
    for name, value in results.items():
        if name != "validation":
            assert run.summary[f"test/{name}"] == value
    records = read_records(folder)
    assert run.summary["test/quality"] == records["quality"].mean()


def table(kept, run, name):
    content = json.loads((kept / "files" / run.summary[name]["path"]).read_text())
    return [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]


def test_samples_are_shown_with_every_token_of_theirs(tracked):
    folder, kept, run = tracked
    samples, tokens = (table(kept, run, f"test/{name}") for name in ("samples", "trace"))
    records = read_records(folder)
    assert len(samples) == 2 < len(records)
    for row, (_, record) in zip(samples, records.iterrows(), strict=False):
        assert row.keys() == ROW_COLUMNS.keys()
        assert [row[n] for n in ("prompt", "text", "quality")] == list(
            record[["prompt", "text", "quality"]]
        )
    trace = read_trace(folder)
    trace = trace[trace["prompt_id"].isin([row["prompt_id"] for row in samples])]
    assert len(tokens) == len(trace)
    for row, wanted in zip(tokens, trace.to_dict("records"), strict=True):
        assert row.keys() == TRACE_COLUMNS.keys()
        assert row["token"] == wanted["token"]
        assert row["status"] == wanted["status"]
        if not math.isnan(wanted["target_weight"]):
            assert row["target_weight"] == pytest.approx(wanted["target_weight"], rel=1e-6)


def test_the_best_head_is_that_of_the_folder(tracked):
    folder, _, run = tracked
    heads = [(names, paths) for _, kind, names, paths in run.artifacts if kind == "model"]
    assert len(heads) == 2
    (best, *_) = [paths for names, paths in reversed(heads) if "best" in names]
    assert {path.name for path in best} >= {"config.json", "model.safetensors"}
    for path in best:
        assert path.read_bytes() == (folder / "head" / path.name).read_bytes()
