"""The jobs behind the scripts, in process, on the embedded pair."""

import json
import math
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from composed import SMALL_DATA, SMALL_EVALUATION, SMALL_TRAINING, composed
from omegaconf import OmegaConf
from safetensors.torch import load_file, save_file

from diversed import app
from diversed.app.lifecycle import working_folder
from diversed.app.setup import SHARED_KEYS
from diversed.config import InputError, Interrupted
from diversed.generation import PromptError
from diversed.models.head import EnsembleHead
from diversed.models.loading import TINY_FOLDER, load_tiny_pair
from diversed.records.schema import ROW_COLUMNS, TRACE_COLUMNS
from diversed.records.store import read_manifest, read_records, read_trace, write_manifest
from diversed.training.callbacks import HeadKeeper

ALONE = SimpleNamespace(is_global_zero=True)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return a run's records without their times."""
    rows = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for row in rows:
        del row["seconds"]
    return rows


def resolved(cfg) -> Any:
    return json.loads(json.dumps(OmegaConf.to_container(cfg, resolve=True)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished training run."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    app.train(composed("train", *SMALL_TRAINING), folder)
    return folder


BAD_EVALUATIONS = {
    "verifier=static verifier.weight=1.5": "verifier.weight=1.5: must lie in [0, 1]",
    "verifier=static verifier.weight=-0.1": "verifier.weight=-0.1: must lie in [0, 1]",
    "verifier=static verifier.weight=nan": "verifier.weight=nan: must lie in [0, 1]",
    "verifier=static": "verifier.weight has no value",
    "verifier=static verifier.weight=half": "verifier.weight='half': must be a number",
    "verifier=lossless verifier.bonus=draft": "verifier.bonus='draft': must be one of verifier",
    "verifier=diversed": "verifier.checkpoint has no value",
    "verifier=diversed verifier.checkpoint=/no/such/folder": "verifier.checkpoint=/no/such/folder",
    "verifier=diversed verifier.checkpoint=no/run": "verifier.checkpoint=no/run",
    "verifier=diversed verifier.checkpoint=/": "verifier.checkpoint=/: the folder has no",
    "model.target.path=/no/such": "model.target.path=/no/such: the folder does not exist",
    "model.draft.path=/": "model.draft.path=/: the folder has no config.json",
    "model.dtype=float8": "model.dtype='float8': must be one of float32",
    "decoding.max_new_tokens=1000": "decoding.max_new_tokens=1000",
    "decoding.max_new_tokens=0": "decoding.max_new_tokens=0: must be at least 1",
    "decoding.draft_length=0": "decoding.draft_length=0: must be at least 1",
    "decoding.temperature=-1": "decoding.temperature=-1.0: must be finite and >= 0",
    "decoding.temperature=inf": "decoding.temperature=inf: must be finite and >= 0",
    "decoding.top_p=0": "decoding.top_p=0.0: must lie in (0, 1]",
    "decoding.top_k=-1": "decoding.top_k=-1: must be >= 0",
    "evaluation.num_prompts=0": "evaluation.num_prompts=0: must be at least 1",
    "evaluation.num_prompts=17": "evaluation.num_prompts=17: must be at least 1 and at most the 16",
    "evaluation.samples_per_prompt=0": "evaluation.samples_per_prompt=0: must be at least 1",
    "evaluation.batch_size=0": "evaluation.batch_size=0: must be at least 1",
    "evaluation.split=dev": "split='dev': must be one of train, validation, test",
    "data.num_test=0": "data.num_test=0: must be at least 1",
    "seed=abc": "seed=abc: must be an integer",
    "seed=null": "seed=None: must be an integer",
}

BAD_TRAININGS = {
    "lambda=-1": "lambda=-1: must be a finite number >= 0",
    "lambda=nan": "lambda=nan: must be a finite number >= 0",
    "lambda=inf": "lambda=inf: must be a finite number >= 0",
    "lambda=abc": "lambda=abc: must be a finite number >= 0",
    "lambda=null": "lambda=None: must be a finite number >= 0",
    "lambda=true": "lambda=True: must be a finite number >= 0",
    "decoding.temperature=0": "decoding.temperature=0: training samples completions; set it above",
    "decoding.max_new_tokens=1000": "decoding.max_new_tokens=1000",
    "verifier.bonus=target": "verifier.bonus=target: training needs",
    "verifier=static": "verifier: train.py trains the head of verifier=diversed",
    "verifier=static verifier.weight=0.5": "verifier: train.py trains the head of",
    "verifier.checkpoint=/no/such": "verifier.checkpoint=/no/such",
    "objective.samples_per_prompt=1": "objective.samples_per_prompt=1: objective.advantage=rloo",
    "objective.advantage=best": "objective.advantage='best': must be one of rloo",
    "objective.acceptance_reduction=max": "objective.acceptance_reduction='max': must be one of",
    "objective.clip_ratio=0": "objective.clip_ratio=0.0: must be above 0",
    "objective.num_rollouts=0": "objective.num_rollouts=0: must be at least 1",
    "objective.prompts_per_step=17": "objective.prompts_per_step=17: must be at least 1",
    "objective.updates_per_rollout=0": "objective.updates_per_rollout=0: must be at least 1",
    "objective.save_every=0": "objective.save_every=0: must be at least 1",
    "objective.num_validation_prompts=0": "objective.num_validation_prompts=0: must be at least 1",
    "objective.num_validation_prompts=9": "objective.num_validation_prompts=9: must be at least 1",
    "optimizer.lr=-1": "optimizer, scheduler: Invalid learning rate: -1",
    "head.kind=big": "head.kind='big': must be one of linear, mlp",
    "head.initial_weight=1": "head.initial_weight=1: must lie in (0, 1)",
    "trainer.accelerator=quantum": "quantum",
    "resume=/no/such": "resume=/no/such: no run there; give auto or the folder of a run",
    "resume=7": "resume=7: no run there",
}


@pytest.mark.parametrize(("overrides", "message"), BAD_EVALUATIONS.items())
def test_bad_evaluations_say_so_and_write_nothing(
    tmp_path: Path, overrides: str, message: str
) -> None:
    cfg = composed("eval", *SMALL_EVALUATION, *overrides.split())
    with pytest.raises(InputError) as caught:
        app.evaluate(cfg, tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("overrides", "message"), BAD_TRAININGS.items())
def test_bad_trainings_say_so_and_write_nothing(
    tmp_path: Path, overrides: str, message: str
) -> None:
    cfg = composed("train", *SMALL_TRAINING, *overrides.split())
    with pytest.raises(InputError) as caught:
        app.train(cfg, tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_prompt_that_is_too_long_names_both_lengths(tmp_path: Path) -> None:
    cfg = composed("eval", *SMALL_EVALUATION, "decoding.max_new_tokens=1000")
    with pytest.raises(InputError, match=r"a prompt of \d+ tokens .* context of 10\d\d.* is 256$"):
        app.evaluate(cfg, tmp_path)


@pytest.mark.parametrize("prompts", [[""], ["Ada has 3 pens.\n", ""], []])
def test_an_empty_prompt_is_refused(prompts: list[str]) -> None:
    decoder = app.build_decoder(composed("eval", *SMALL_EVALUATION))
    with pytest.raises(PromptError, match="prompt"):
        decoder.generate(prompts)


@pytest.mark.parametrize(("before", "after"), [(None, "1"), ("0", "0")])
def test_on_a_cpu_query_heads_share_keys_unless_the_user_says_no(
    monkeypatch: pytest.MonkeyPatch, before: str | None, after: str
) -> None:
    monkeypatch.setenv(SHARED_KEYS, "to be put back")
    monkeypatch.delenv(SHARED_KEYS)
    if before is not None:
        monkeypatch.setenv(SHARED_KEYS, before)
    app.build_decoder(composed("eval", *SMALL_EVALUATION))
    assert os.environ[SHARED_KEYS] == after


def test_a_head_of_another_pair_names_both_pairs(tmp_path: Path) -> None:
    sizes = {role: part["hidden_size"] for role, part in load_tiny_pair().description.items()}
    pair = {
        role: {"name": f"other/{role}", "revision": "v7", "hidden_size": size}
        for role, size in sizes.items()
    }
    head = EnsembleHead(draft_size=sizes["draft"], target_size=sizes["target"], pair=pair)
    head.save_pretrained(tmp_path / "head")
    cfg = composed(
        "eval", "verifier=diversed", f"verifier.checkpoint={tmp_path}", *SMALL_EVALUATION
    )
    with pytest.raises(InputError) as caught:
        app.evaluate(cfg, tmp_path / "run")
    message = str(caught.value)
    assert f"verifier.checkpoint={tmp_path}" in message
    assert "other/target@v7 / other/draft@v7" in message
    assert "diversed/tiny-target / diversed/tiny-draft" in message
    assert not (tmp_path / "run").exists()


def test_a_draft_with_another_tokenizer_is_refused(tmp_path: Path) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(TINY_FOLDER / "draft", draft)
    tokenizer = json.loads((draft / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab[" apples"], vocab[" books"] = vocab[" books"], vocab[" apples"]
    (draft / "tokenizer.json").write_text(json.dumps(tokenizer))
    cfg = composed(
        "eval", *SMALL_EVALUATION, f"model.draft.path={draft}", "model.draft.name=other/draft"
    )
    with pytest.raises(InputError) as caught:
        app.evaluate(cfg, tmp_path / "run")
    assert "model.draft=other/draft and model.target=diversed/tiny-target have" in str(caught.value)
    assert "different tokenizers (2 tokens differ" in str(caught.value)


def test_an_evaluation_writes_manifest_records_and_trace(tmp_path: Path) -> None:
    cfg = composed("eval", "verifier=static", "verifier.weight=0.8", *SMALL_EVALUATION)
    numbers = app.evaluate(cfg, tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest["status"] == "finished"
    assert manifest["config"] == resolved(cfg)
    assert manifest["results"] == numbers
    assert manifest["run"]["run_name"] == "tiny-arithmetic-static-w0.8-seed0"
    assert manifest["run"]["target_weight"] == 0.8
    assert manifest["pair"]["draft"]["name"] == "diversed/tiny-draft"
    rows = rows_of(tmp_path)
    assert len(rows) == 8
    assert len({row["prompt_id"] for row in rows}) == 8
    assert rows[0].keys() | {"seconds"} == ROW_COLUMNS.keys()
    assert numbers["num_prompts"] == 8
    assert numbers["quality"] == sum(row["quality"] for row in rows) / 8
    trace = read_trace(tmp_path)
    assert set(trace.columns) == set(TRACE_COLUMNS)
    emitted = trace[trace["status"].isin(["accepted", "recovered", "bonus"])]
    assert len(emitted) == sum(row["num_tokens"] for row in rows)
    assert [path.name for path in tmp_path.glob(".*")] == [".lock"]  # no partial file


def test_a_name_and_no_trace_can_be_asked_for(tmp_path: Path) -> None:
    overrides = ("name=mine", "evaluation.writes_trace=false", "evaluation.num_prompts=2")
    app.evaluate(composed("eval", *SMALL_EVALUATION, *overrides), tmp_path)
    assert set(read_records(tmp_path)["run_name"]) == {"mine"}
    assert not (tmp_path / "trace.parquet").exists()


def test_a_training_writes_head_checkpoint_metrics_and_records(trained: Path) -> None:
    manifest = read_manifest(trained)
    assert manifest["status"] == "finished"
    assert manifest["config"] == resolved(composed("train", *SMALL_TRAINING))
    assert manifest["run"]["method"] == "diversed"
    assert manifest["run"]["acceptance_weight"] == 1.5
    validation = manifest["results"]["validation"]
    assert [entry["rollout"] for entry in validation] == [1, 2]
    best = max(validation, key=lambda entry: entry["objective"])
    assert manifest["results"]["best_rollout"] == best["rollout"]
    for entry in validation:
        wanted = entry["quality"] + 1.5 * entry["acceptance"]
        assert math.isclose(entry["objective"], wanted, rel_tol=1e-9)
    assert len(rows_of(trained)) == 4
    head = json.loads((trained / "head" / "config.json").read_text())
    assert head["pair"] == manifest["pair"]
    curve = pd.read_csv(trained / "metrics" / "metrics.csv")
    assert curve["train/acceptance"].between(0, 1).sum() == 2
    assert curve["val/objective"].notna().sum() == 2
    assert app.training.read_checkpoint_step(trained / "checkpoint.ckpt") == 2


def test_training_moves_every_parameter_of_the_head(trained: Path) -> None:
    state = torch.load(trained / "checkpoint.ckpt", weights_only=True)["state_dict"]
    weight, bias = state["head.layers.0.weight"], state["head.layers.0.bias"]
    assert (weight != 0).float().mean() > 0.9  # starts at zero
    assert abs(bias.item() - math.log(9)) > 1e-4
    assert not [name for name in state if not name.startswith("head.")]  # the pair is not in it


def test_a_trained_head_gives_the_same_records_through_its_checkpoint(
    trained: Path, tmp_path: Path
) -> None:
    overrides = ("verifier=diversed", f"verifier.checkpoint={trained}", "evaluation.num_prompts=4")
    app.evaluate(composed("eval", *SMALL_EVALUATION, *overrides), tmp_path)
    assert rows_of(tmp_path) == rows_of(trained)
    manifest, own = read_manifest(tmp_path), read_manifest(trained)
    assert manifest["run"] == manifest["head_run"] == own["run"]
    assert own["head_run"] is None


def test_a_head_meets_another_draft_with_a_warning_and_then_learns_with_it(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its config named the draft by its name alone, which a fine-tuned one may keep."""
    draft = tmp_path / "draft"
    shutil.copytree(TINY_FOLDER / "draft", draft)
    weights = load_file(draft / "model.safetensors")
    name = next(iter(weights))
    save_file(weights | {name: weights[name] * 1.01}, draft / "model.safetensors", {"format": "pt"})
    overrides = (*SMALL_TRAINING, f"verifier.checkpoint={trained}", f"model.draft.path={draft}")
    app.train(composed("train", *overrides), tmp_path / "again")
    assert "this head was trained with other weights of diversed/tiny-draft" in caplog.text
    before, after = (read_manifest(run)["pair"] for run in (trained, tmp_path / "again"))
    assert before["target"] == after["target"]
    assert before["draft"]["fingerprint"] != after["draft"]["fingerprint"]
    head = json.loads((tmp_path / "again" / "head" / "config.json").read_text())
    assert head["pair"] == after


def test_a_dial_changes_the_records(trained: Path, tmp_path: Path) -> None:
    overrides = ("verifier=diversed", f"verifier.checkpoint={trained}", "evaluation.num_prompts=4")
    cfg = composed("eval", *SMALL_EVALUATION, *overrides, "verifier.dial=-4")
    app.evaluate(cfg, tmp_path)
    assert read_manifest(tmp_path)["run"]["run_name"].endswith("-lambda1.5-dial-4-seed0")
    weights = [row["mean_target_weight"] for row in rows_of(tmp_path)]
    assert max(weights) < min(row["mean_target_weight"] for row in rows_of(trained))


def interrupt_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C at the end of one rollout."""
    original = HeadKeeper.on_train_batch_end

    def pressing(self, trainer, pl_module, *args, **options) -> None:
        if pl_module.rollout_step == step:
            signal.raise_signal(signal.SIGINT)
        original(self, trainer, pl_module, *args, **options)

    monkeypatch.setattr(HeadKeeper, "on_train_batch_end", pressing)


@pytest.mark.parametrize("resume", ["auto", "folder"])
def test_a_resumed_run_ends_like_the_unbroken_one(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: str
) -> None:
    broken, later = tmp_path / "broken", tmp_path / "later"
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        interrupt_after(1, patch)
        with pytest.raises(Interrupted, match="stopped after 1 of 2 rollouts") as caught:
            app.train(composed("train", *SMALL_TRAINING), broken)
    assert f"resume={broken}" in str(caught.value)
    assert signal.getsignal(signal.SIGINT) is handler
    assert read_manifest(broken)["status"] == "stopped"
    assert not (broken / "records.jsonl").exists()
    later.mkdir()
    (later / "train.log").write_text("")
    choice = "auto" if resume == "auto" else str(broken)
    app.train(composed("train", *SMALL_TRAINING, f"resume={choice}"), later)
    assert not later.exists()
    assert read_manifest(broken)["status"] == "finished"
    head = load_file(broken / "head" / "model.safetensors")
    wanted = load_file(trained / "head" / "model.safetensors")
    assert head.keys() == wanted.keys()
    assert all(torch.equal(head[name], wanted[name]) for name in wanted)
    assert rows_of(broken) == rows_of(trained)
    results, wanted_results = (read_manifest(run)["results"] for run in (broken, trained))
    assert results["validation"] == wanted_results["validation"]
    assert results["best_rollout"] == wanted_results["best_rollout"]


def test_resuming_a_finished_run_evaluates_it_again(trained: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    (copy / "records.jsonl").unlink()
    app.train(composed("train", *SMALL_TRAINING, f"resume={copy}"), tmp_path / "other")
    assert rows_of(copy) == rows_of(trained)
    state, wanted = (load_file(run / "head" / "model.safetensors") for run in (copy, trained))
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)


def test_resuming_with_another_config_names_the_keys(trained: Path, tmp_path: Path) -> None:
    changes = ("lambda=2", "decoding.temperature=0.9", f"resume={trained}")
    before = (trained / "manifest.json").read_bytes()
    with pytest.raises(InputError) as caught:
        app.train(composed("train", *SMALL_TRAINING, *changes), tmp_path / "other")
    message = str(caught.value)
    assert "another config (decoding.temperature, lambda, objective.acceptance_weight)" in message
    assert (trained / "manifest.json").read_bytes() == before


def test_resuming_into_a_folder_keeps_what_is_in_it(trained: Path, tmp_path: Path) -> None:
    """A run resumed through a link to its folder used to be deleted first."""
    copy, link = tmp_path / "copy", tmp_path / "link"
    shutil.copytree(trained, copy)
    link.symlink_to(copy)
    app.train(composed("train", *SMALL_TRAINING, f"resume={link}"), link)
    assert rows_of(copy) == rows_of(trained)


@pytest.mark.parametrize(
    ("status", "overrides", "is_taken"),
    [("running", (), True), ("finished", (), False), ("running", ("lambda=3",), False)],
)
def test_auto_takes_up_unfinished_runs_of_the_same_config_only(
    tmp_path: Path, status: str, overrides: tuple[str, ...], is_taken: bool
) -> None:
    found = resolved(composed("train", *SMALL_DATA, *overrides))
    write_manifest(tmp_path / "old", {"status": status, "config": found})
    cfg = composed("train", *SMALL_DATA, "resume=auto")
    own = tmp_path / "own"
    with working_folder(cfg, own, ALONE) as folder:
        assert folder == (tmp_path / "old" if is_taken else own)


def test_auto_starts_afresh_where_there_is_no_run(tmp_path: Path) -> None:
    cfg = composed("train", *SMALL_DATA, "resume=auto")
    with working_folder(cfg, tmp_path / "own", ALONE) as folder:
        assert folder == tmp_path / "own"


def test_auto_passes_over_a_run_of_another_schema_version(tmp_path: Path) -> None:
    """Such a neighbour used to end the job."""
    alien = tmp_path / "old"
    alien.mkdir()
    (alien / "manifest.json").write_text('{"schema_version": 0}')
    own = tmp_path / "new"
    app.train(composed("train", *SMALL_TRAINING, "resume=auto"), own)
    assert len(rows_of(own)) == 4
    assert [path.name for path in alien.iterdir()] == ["manifest.json"]


def test_a_stop_in_the_evaluation_keeps_the_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It used to end in a stack trace."""
    evaluate_task = app.evaluation.evaluate_task

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(app.evaluation, "evaluate_task", stop)
    with pytest.raises(Interrupted, match=r"finished rows are saved; go on with: .*resume="):
        app.train(composed("train", *SMALL_TRAINING), tmp_path)
    assert (tmp_path / "head" / "config.json").is_file()
    assert not (tmp_path / "records.jsonl").exists()
    monkeypatch.setattr(app.evaluation, "evaluate_task", evaluate_task)
    app.train(composed("train", *SMALL_TRAINING, f"resume={tmp_path}"), tmp_path)
    assert len(rows_of(tmp_path)) == 4
