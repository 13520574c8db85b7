"""Weights & Biases: the mode, and what an offline run holds, read back from its own file."""

import json
from pathlib import Path

import pytest
import wandb
from wandb_file import offline_folders, read_offline_run

from diversed.tracking import wandb_run
from diversed.tracking.loggers import wandb_loggers
from diversed.tracking.wandb_run import WandbTracker, choose_mode, find_run_id

CONFIG = {"lambda": 0.5, "decoding": {"top_k": 0}, "name": None}
MANIFEST = {
    "config": CONFIG,
    "run": {"run_name": "one"},
    "git": {"sha": "abc", "is_dirty": False},
    "versions": {"torch": "2"},
    "pair": {"target": {"name": "big"}},
    "device": "cpu",
}
SAMPLES = [
    {"prompt_id": "a", "text": "yes", "answer": "4", "quality": 1.0},
    {"prompt_id": "b", "text": "no", "answer": None, "quality": 0.5},
]


def write_head(text):
    return lambda folder: (folder / "model.safetensors").write_text(text)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """Return the folder of a run that was killed in its third rollout, and gone on with."""
    folder = tmp_path_factory.mktemp("runs")
    patch = pytest.MonkeyPatch()
    patch.setenv("WANDB_MODE", "offline")
    patch.setenv("WANDB_SILENT", "true")
    patch.delenv("WANDB_DATA_DIR", raising=False)
    first = wandb_loggers(folder, "one", 0, project="trial")
    first.describe(MANIFEST)
    for step in (1, 2, 3):
        for run_logger in first.loggers:
            numbers = {"train/reward": step / 3, "val/objective": (0.5, 0.7, 0.6)[step - 1]}
            run_logger.log_metrics(numbers, step=step)
            run_logger.save()
        first.loggers[1].log_head(write_head(f"head {step}"), step, is_best=step < 3)
    first.finish(1)
    second = wandb_loggers(folder, "one", 2, project="trial", tags=["night"])
    second.describe(MANIFEST)
    for run_logger in second.loggers:
        run_logger.log_metrics({"train/reward": 1.0, "val/objective": 0.6}, step=3)
    second.loggers[1].log_head(write_head("head 3"), 3, is_best=False)
    second.log_evaluation({"quality": 1 / 3}, {"samples": SAMPLES, "trace": []}, step=3)
    second.finish(0)
    patch.undo()
    return folder


def test_a_failed_run_is_marked(run_folder):
    first, second = (read_offline_run(folder) for folder in offline_folders(run_folder))
    assert (first.exit_code, second.exit_code) == (1, 0)


def test_an_offline_run_holds_config_code_and_versions(run_folder):
    for folder in offline_folders(run_folder):
        run = read_offline_run(folder)
        assert run.name == "one"
        config = {key: value for key, value in run.config.items() if key != "_wandb"}
        assert config == CONFIG | {name: MANIFEST[name] for name in MANIFEST if name != "config"}


def test_a_step_is_a_rollout_with_all_its_numbers(run_folder):
    run = read_offline_run(offline_folders(run_folder)[0])
    assert run.curve("train/reward") == {step: step / 3 for step in (1, 2, 3)}
    assert run.curve("val/objective") == {1: 0.5, 2: 0.7, 3: 0.6}
    assert run.curve("trainer/global_step") == {1: 1, 2: 2, 3: 3}


def test_a_run_that_goes_on_is_whole_and_has_the_same_id(run_folder):
    first, second = (read_offline_run(folder) for folder in offline_folders(run_folder))
    assert second.id == first.id == find_run_id(run_folder)
    assert second.curve("train/reward") == {1: 1 / 3, 2: 2 / 3, 3: 1.0}
    assert second.curve("val/objective") == {1: 0.5, 2: 0.7, 3: 0.6}


def test_the_summary_has_the_closing_numbers(run_folder):
    run = read_offline_run(offline_folders(run_folder)[-1])
    assert run.summary["test/quality"] == 1 / 3
    assert run.summary["train/reward"] == 1.0


def test_tables_show_the_samples(run_folder):
    folder = offline_folders(run_folder)[-1]
    run = read_offline_run(folder)
    table = json.loads((folder / "files" / run.summary["test/samples"]["path"]).read_text())
    assert table["columns"] == list(SAMPLES[0])
    assert table["data"] == [list(row.values()) for row in SAMPLES]
    assert run.summary["test/trace"]["nrows"] == 0


def test_heads_are_versions_of_one_artifact(run_folder):
    for folder in offline_folders(run_folder):
        run = read_offline_run(folder)
        heads = [artifact for artifact in run.artifacts if artifact[1] == "model"]
        assert {name for name, *_ in heads} == {f"head-{run.id}"}
        assert [
            (sorted(names), [p.read_text() for p in paths]) for _, _, names, paths in heads
        ] == [
            (["best", "latest"], ["head 1"]),
            (["best", "latest"], ["head 2"]),
            (["latest"], ["head 3"]),
        ]


def test_all_that_an_upload_needs_is_in_the_folder(run_folder):
    """Files of artifacts used to lie in the user's home only."""
    for folder in offline_folders(run_folder):
        for _, _, _, paths in read_offline_run(folder).artifacts:
            assert paths
            assert all(path.is_relative_to(run_folder) and path.is_file() for path in paths)


def test_a_folder_without_a_run_has_no_id(tmp_path):
    assert find_run_id(tmp_path) is None


def test_the_last_run_of_a_folder_counts(tmp_path):
    for name in ("run-20260102_000000-bbb", "offline-run-20260101_000000-aaa", "latest-run"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
        (tmp_path / "wandb" / name / f"run-{name[-3:]}.wandb").touch()
    assert find_run_id(tmp_path) == "bbb"


class ServerRun:
    """A run that a server knows up to a step."""

    starting_step = 3

    def __init__(self):
        self.rows = []

    def log(self, data, step=None, commit=None):
        self.rows.append((step, data["a"], commit))


def test_a_step_that_the_server_has_is_not_logged_again(tmp_path):
    run = ServerRun()
    tracker = WandbTracker(tmp_path, "trial", "one", mode="online", num_samples=0, experiment=run)
    tracker.begin({1: {"a": 1.0}, 2: {"a": 2.0}, 3: {"a": 3.0}})
    tracker.log_metrics({"a": 4.0}, step=4)
    assert run.rows == [(3, 3.0, True), (4, 4.0, True)]


@pytest.mark.parametrize(
    ("asked", "environment", "has_key", "mode"),
    [
        (None, None, True, "online"),
        (None, None, False, "offline"),
        (None, "online", True, "online"),
        (None, "offline", True, "offline"),
        (None, "disabled", True, "disabled"),
        ("offline", "online", True, "offline"),
        ("disabled", None, True, "disabled"),
        ("online", "offline", True, "online"),
    ],
)
def test_the_mode_is_what_was_asked_for_or_what_the_key_allows(
    monkeypatch, asked, environment, has_key, mode
):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if environment is not None:
        monkeypatch.setenv("WANDB_MODE", environment)
    monkeypatch.setattr(wandb_run.wandb, "login", lambda prompt: has_key)
    assert choose_mode(asked) == mode


def test_online_without_a_key_says_what_to_do(monkeypatch):
    monkeypatch.setattr(wandb_run.wandb, "login", lambda prompt: False)
    with pytest.raises(ValueError, match=r"logger\.mode=online: there is no API key; run `wandb"):
        choose_mode("online")


def test_a_mode_of_the_environment_that_is_none_is_named(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "dryrun")
    with pytest.raises(ValueError, match="WANDB_MODE=dryrun: must be one of online, offline"):
        choose_mode(None)


def test_a_server_that_is_not_there_is_one_line(tmp_path, monkeypatch):
    def fail(**_):
        raise wandb.errors.CommError("no\nconnection")

    monkeypatch.setattr(wandb, "init", fail)
    with pytest.raises(ValueError, match=r"logger=wandb: no connection; logger\.mode=offline"):
        wandb_loggers(tmp_path, "one", 0, project="trial", mode="offline")


def test_an_agent_gives_the_id(tmp_path, monkeypatch):
    folder = tmp_path / "wandb" / "run-20260102_000000-bbb"
    folder.mkdir(parents=True)
    (folder / "run-bbb.wandb").touch()
    options = {"mode": "offline", "num_samples": 0}
    assert WandbTracker(Path(tmp_path), "trial", "one", **options).version == "bbb"
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    assert WandbTracker(Path(tmp_path), "trial", "one", **options).version is None
