"""The job behind finetune_draft.py, in process, on the embedded pair."""

import json

import pytest
from composed import composed

from diversed import app
from diversed.config import InputError, Interrupted
from diversed.models.loading import TINY_FOLDER
from diversed.records.store import read_manifest, read_records
from diversed.tasks.gsm8k import Gsm8kTask
from diversed.training.finetune import BestDraft

SMALL = (
    *("data.num_train=24", "data.num_validation=8", "decoding.max_new_tokens=64"),
    *("finetune.num_train_prompts=16", "finetune.num_epochs=1", "evaluation.num_prompts=4"),
    *("trainer.accelerator=cpu", "trainer.enable_progress_bar=false"),
)


def run(folder, *overrides):
    return app.finetune_draft(composed("finetune_draft", *SMALL, *overrides), folder)


BAD_INPUT = {
    "source=both": "source=both: must be one of target, references",
    "verifier=static verifier.weight=0.5": "verifier=static: finetune_draft.py takes no other",
    "evaluation.split=test": "evaluation.split=test: weights are chosen on the validation split",
    "evaluation.num_prompts=9": "evaluation.num_prompts=9: must be at least 1 and at most the 8",
    "finetune.num_train_prompts=25": "finetune.num_train_prompts=25: must be at least 1",
    "finetune.num_train_prompts=0": "finetune.num_train_prompts=0: must be at least 1",
    "finetune.samples_per_prompt=0": "finetune.samples_per_prompt=0: must be at least 1",
    "finetune.num_epochs=0": "finetune.num_epochs=0: must be at least 1",
    "finetune.batch_size=0": "finetune.batch_size=0: must be at least 1",
    "finetune.warmup_frac=1.5": "finetune.warmup_frac=1.5: must lie in [0, 1]",
    "finetune.grad_clip=0": "finetune.grad_clip=0.0: must be above 0",
    "adapter=lora adapter.rank=0": "adapter.rank=0: must be at least 1",
    "adapter=lora adapter.dropout=1": "adapter.dropout=1: must lie in [0, 1)",
    "optimizer.lr=-1": "Invalid learning rate: -1",
    "seed=none": "seed=none: must be an integer",
    "decoding.max_new_tokens=1000": "decoding.max_new_tokens=1000",
    "model.draft.path=/no/such": "model.draft.path=/no/such: the folder does not exist",
    "trainer=ddp trainer.devices=2": "trainer.devices=2: finetune_draft.py works on one device",
}


@pytest.mark.parametrize(("overrides", "message"), BAD_INPUT.items())
def test_bad_input_is_one_line_and_writes_nothing(overrides, message, tmp_path):
    with pytest.raises(InputError) as caught:
        run(tmp_path, *overrides.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_without_peft_lora_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("diversed.training.trainable.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'diversed\[lora\]'"):
        run(tmp_path, "adapter=lora")


def test_layers_that_a_model_lacks_are_one_line(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        run(tmp_path, "source=references", "adapter=lora", "adapter.target_modules=[nowhere]")
    assert read_manifest(tmp_path)["status"] == "failed"


def test_a_run_says_what_it_did(tmp_path):
    numbers = run(tmp_path, "source=references", "adapter=lora", "seed=4")
    manifest = read_manifest(tmp_path)
    assert manifest["status"] == "finished"
    assert manifest["run"]["run_name"] == "tiny-arithmetic-finetune-references-lora-seed4"
    assert manifest["run"]["setting"] == "source=references adapter=lora"
    assert manifest["run"]["method"] == "finetune_draft"
    assert manifest["results"].items() >= json.loads(json.dumps(numbers)).items()
    assert [entry["step"] for entry in manifest["results"]["validation"]] == [0, 1]
    assert {path.name for path in tmp_path.iterdir()} >= {"draft", "metrics", "manifest.json"}
    for when in ("before", "after"):
        assert (
            0
            <= numbers[f"acceptance_rate_{when}_low"]
            <= numbers[f"acceptance_rate_{when}"]
            <= numbers[f"acceptance_rate_{when}_high"]
            <= 1
        )
    rates = [numbers[f"acceptance_rate_{when}"] for when in ("before", "after")]
    assert numbers["acceptance_rate_change"] == pytest.approx(rates[1] - rates[0])
    assert numbers["validation_loss_before"] == manifest["results"]["validation"][0]["loss"]


@pytest.mark.parametrize("how", ["model.dtype=float32", "model.dtype=bfloat16 adapter=lora"])
def test_the_folder_holds_the_draft_that_was_measured(how, tmp_path):
    numbers = run(tmp_path / "run", "source=references", "optimizer.lr=0.003", *how.split())
    evaluation = composed(
        *("eval", *SMALL[:3], "evaluation.num_prompts=4", "evaluation.split=validation"),
        *(how.split()[0], f"model.draft.path={tmp_path / 'run' / 'draft'}"),
    )
    measured = app.evaluate(evaluation, tmp_path / "eval")
    assert measured["acceptance_rate"] == numbers["acceptance_rate_after"]
    assert measured["expected_acceptance"] == numbers["expected_acceptance_after"]
    assert numbers["expected_acceptance_after"] != numbers["expected_acceptance_before"]


def test_a_run_is_repeated_bit_for_bit(tmp_path):
    for name in ("a", "b"):
        run(tmp_path / name, "adapter=lora", "adapter.dropout=0.1", "decoding.max_new_tokens=16")
    files = [tmp_path / name / "draft" / "model.safetensors" for name in ("a", "b")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes() != (TINY_FOLDER / "draft" / "model.safetensors").read_bytes()


def test_a_stop_leaves_the_best_draft_until_then(tmp_path, monkeypatch):
    finished = BestDraft.on_train_batch_end

    def stop_after_one(self, *arguments, **options):
        self.request_stop()
        finished(self, *arguments, **options)

    monkeypatch.setattr(BestDraft, "on_train_batch_end", stop_after_one)
    with pytest.raises(Interrupted, match=r"stopped after 1 of 6 steps; the best draft"):
        run(tmp_path, "source=references", "finetune.num_epochs=3", "finetune.batch_size=8")
    assert read_manifest(tmp_path)["status"] == "stopped"
    assert (tmp_path / "draft" / "config.json").is_file()


def test_a_draft_is_tested_on_the_rows_of_a_file_that_it_has_not_seen(tmp_path):
    rows = [
        {"question": f"Ada has {n} pens and 2 pens. How many pens are there?", "answer": "#### 5"}
        for n in range(40)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ("data=gsm8k", f"data.path={path}", "decoding.max_new_tokens=8")
    small = ("finetune.num_train_prompts=16", "finetune.num_epochs=1", *SMALL[-2:])
    app.finetune_draft(
        composed("finetune_draft", *data, *small, "source=references"), tmp_path / "run"
    )
    draft = f"model.draft.path={tmp_path / 'run' / 'draft'}"
    tested = {}
    for name, overrides in (("plain", ()), ("tuned", (draft,))):
        app.evaluate(composed("eval", *data, *overrides), tmp_path / name)
        tested[name] = read_records(tmp_path / name)["prompt"].tolist()
    assert len(tested["plain"]) == 40
    task = Gsm8kTask(path=str(path), split_file=True)
    learnt = [row["question"] for row in task.examples("train")]
    assert tested["tuned"]
    assert not any(question in prompt for prompt in tested["tuned"] for question in learnt)
    with pytest.raises(InputError, match=r"data.seed=1: the draft was trained on the part of"):
        app.evaluate(composed("eval", *data, draft, "data.seed=1"), tmp_path / "other")
