"""Fine-tuning the draft: the loss, what it moves, what it does to acceptance, LoRA."""

import copy
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from small_finetune import TASK, decoder_of, few, fit, prompts_of

from diversed.evaluation.runner import evaluate_task
from diversed.models.loading import ModelSource, load_pair, load_tiny_pair, make_pair
from diversed.training import completions as completions_module
from diversed.training.completions import Completion, make_batch, sampled_completions
from diversed.training.finetune import BestDraft, FinetuneModule, completion_loss
from diversed.training.module import NonFiniteError
from diversed.training.trainable import LoraAdapter, TrainableDraft

NUM_RISEN = 41


@pytest.fixture
def pair():
    return load_tiny_pair()


@pytest.fixture(scope="module")
def outputs():
    """What the target makes of training and validation prompts."""
    decoder = decoder_of(load_tiny_pair())
    return {
        split: sampled_completions(decoder, prompts_of(decoder, split, number), 1, 64)
        for split, number in (("train", 64), ("validation", 48))
    }


def test_the_loss_is_that_of_transformers(pair):
    batch = make_batch(few())
    model = pair.draft.model
    labels = torch.where(batch.loss_mask, batch.ids, -100)
    inputs = {"input_ids": batch.ids, "attention_mask": batch.attention_mask.long()}
    expected = model(**inputs, labels=labels)
    total, number = completion_loss(expected.logits, batch)
    assert number == int((labels != -100).sum())
    torch.testing.assert_close(total / number, expected.loss, rtol=1e-6, atol=1e-6)


def test_padding_changes_no_loss(pair):
    rows = few()
    model = pair.draft.model

    def losses(batch):
        logits = model(input_ids=batch.ids, attention_mask=batch.attention_mask.long()).logits
        return completion_loss(logits, batch)[0]

    assert len({len(row.prompt_ids) + len(row.completion_ids) for row in rows}) > 1
    alone = sum(losses(make_batch([row])) for row in rows)
    torch.testing.assert_close(losses(make_batch(rows)), alone, rtol=1e-5, atol=1e-5)


def test_only_places_before_completion_tokens_have_a_gradient(generator):
    batch = make_batch([Completion("a", [5, 6], [7]), Completion("b", [8], [9, 10, 11])])
    logits = torch.randn(2, 4, 12, generator=generator, requires_grad=True)
    completion_loss(logits, batch)[0].backward()
    moved = logits.grad.abs().sum(-1) > 0
    assert moved.tolist() == [[False, True, False, False], [True, True, True, False]]


def test_every_weight_of_the_draft_moves_and_none_of_the_target(pair, outputs):
    before = copy.deepcopy(pair)
    fit(TrainableDraft(pair.draft.model), outputs["train"][:16], outputs["validation"][:2])
    for role, moves in (("draft", True), ("target", False)):
        old = dict(getattr(before, role).model.named_parameters())
        for name, weights in getattr(pair, role).model.named_parameters():
            assert torch.equal(weights, old[name]) is not moves, (role, name)
    assert not any(weights.requires_grad for weights in pair.target.model.parameters())


def acceptance(pair):
    """Return the mean of sum min(p, q) over each validation prompt's tokens."""
    rows = evaluate_task(decoder_of(pair), TASK, list(TASK.examples("validation"))).rows
    return torch.tensor([row["expected_acceptance"] for row in rows])


def learn(outputs):
    """Fine-tune the embedded draft; return losses, and on how many prompts acceptance rose."""
    pair = load_tiny_pair()
    before = acceptance(pair)
    trainable = TrainableDraft(pair.draft.model)
    _, keeper = fit(trainable, outputs["train"], outputs["validation"], num_epochs=3)
    trainable.frozen()
    losses = [entry["loss"] for entry in keeper.history]
    return losses, int((acceptance(pair) > before).sum())


@pytest.mark.statistical
def test_it_learns_what_the_target_writes(outputs):
    """Sign test over prompts, each decoded before and after with the same random numbers.

    Null: acceptance rises on a prompt with probability 1/2 at most. n = 48; at least 41 rise with
    probability 3.1e-7.
    """
    losses, num_risen = learn(outputs)
    assert losses[-1] < losses[0] - 0.1
    assert num_risen >= NUM_RISEN


@pytest.mark.statistical
def test_a_draft_that_learns_the_prompts_does_not_pass(outputs, monkeypatch):
    def of_prompts(rows):
        batch = make_batch(rows)
        return batch._replace(loss_mask=batch.attention_mask & ~batch.loss_mask)

    monkeypatch.setattr(completions_module, "make_batch", of_prompts)
    losses, num_risen = learn(outputs)
    assert losses[-1] < losses[0] - 0.1  # it learns something else
    assert num_risen < NUM_RISEN


def test_lora_is_the_draft_itself_at_first_and_a_plain_folder_at_the_end(pair, outputs, tmp_path):
    batch = make_batch(outputs["train"][:4])
    inputs = {"input_ids": batch.ids, "attention_mask": batch.attention_mask.long()}
    plain = pair.draft.model(**inputs).logits
    names = dict(pair.draft.model.named_parameters()).keys()
    torch.manual_seed(0)
    trainable = TrainableDraft(pair.draft.model, LoraAdapter(rank=4, alpha=8))
    torch.testing.assert_close(trainable.model(**inputs).logits, plain)
    module, keeper = fit(trainable, outputs["train"][:32], outputs["validation"][:8], lr=0.02)
    assert keeper.best_step == 2
    assert all("lora_" in name for name in module.trained_parameters())
    trained = trainable.model(**inputs).logits
    draft = trainable.frozen()
    assert dict(draft.named_parameters()).keys() == names
    assert not any(weights.requires_grad for weights in draft.parameters())
    torch.testing.assert_close(draft(**inputs).logits, trained, rtol=1e-4, atol=1e-4)
    assert (trained - plain).abs().max() > 0.1
    draft.save_pretrained(tmp_path)
    pair.tokenizer.save_pretrained(tmp_path)
    loaded = load_pair(
        ModelSource("target", path="builtin:target"), ModelSource("draft", path=str(tmp_path))
    )
    assert torch.equal(loaded.draft.model(**inputs).logits, draft(**inputs).logits)


@pytest.mark.parametrize("adapter", [None, LoraAdapter(rank=2, alpha=4)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_short_weights_are_trained_in_full_precision(adapter, dtype):
    sources = [ModelSource(role, path=f"builtin:{role}") for role in ("target", "draft")]
    draft = load_pair(*sources, dtype=dtype).draft.model
    before = {name: weights.clone() for name, weights in draft.named_parameters()}
    buffers = {name: value.dtype for name, value in draft.named_buffers()}
    trainable = TrainableDraft(draft, adapter)
    trained = [one for one in trainable.model.parameters() if one.requires_grad]
    assert trained
    assert {one.dtype for one in trained} == {torch.float32}
    after = trainable.frozen()
    assert {name: value.dtype for name, value in after.named_buffers()} == buffers
    for name, weights in after.named_parameters():
        assert weights.dtype == getattr(torch, dtype)
        assert torch.equal(weights, before[name])  # nothing was learnt


def test_a_step_that_bf16_cannot_hold_is_not_lost(outputs):
    sources = [ModelSource(role, path=f"builtin:{role}") for role in ("target", "draft")]
    draft = load_pair(*sources, dtype="bfloat16").draft.model
    trainable = TrainableDraft(draft)
    weights = draft.model.layers[0].mlp.down_proj.weight
    before = weights.detach().clone()
    rows = outputs["train"][:16], outputs["validation"][:2]
    fit(trainable, *rows, lr=1e-6, precision="bf16-mixed")
    change = (weights - before).abs()
    assert 0 < change.max() < 1e-5
    assert (weights.bfloat16() != before.bfloat16()).double().mean() < 0.01


def test_the_learning_rate_rises_then_falls_to_nothing(pair):
    model = pair.draft.model.requires_grad_(True)
    module = FinetuneModule(
        model,
        num_steps=20,
        warmup_frac=0.25,
        grad_clip=1.0,
        optimizer=partial(torch.optim.SGD, lr=2.0),
    )
    parts = module.configure_optimizers()
    rates = []
    for _ in range(21):
        rates.append(parts["optimizer"].param_groups[0]["lr"])
        parts["optimizer"].step()
        parts["lr_scheduler"]["scheduler"].step()
    assert rates[:6] == pytest.approx([2 * n / 6 for n in range(1, 7)])
    assert rates[5:] == pytest.approx([1 + math.cos(math.pi * n / 15) for n in range(16)])


class Keeping:
    """A logger that keeps what it is told."""

    def __init__(self):
        self.logged = []

    def log_metrics(self, numbers, step):
        self.logged.append((step, dict(numbers)))

    def save(self):
        pass


def test_the_lowest_loss_is_kept_and_each_step_is_logged_once(pair):
    module = FinetuneModule(
        TrainableDraft(pair.draft.model).model,
        num_steps=3,
        warmup_frac=0.0,
        grad_clip=1.0,
        optimizer=torch.optim.SGD,
    )
    weights = next(iter(module.trained_parameters().values()))
    keeper, log = BestDraft(), Keeping()
    trainer = SimpleNamespace(global_step=0, loggers=[log], should_stop=False)
    for step, loss in enumerate([2.0, 1.0, 3.0]):
        trainer.global_step = step
        with torch.no_grad():
            weights.fill_(step)
        if step:
            module.step_metrics = {"train/loss": float(step)}
            keeper.on_train_batch_end(trainer, module)
        module.validation_loss = loss
        keeper.on_validation_end(trainer, module)
    keeper.on_fit_end(trainer, module)
    assert (keeper.best_step, keeper.best_loss) == (1, 1.0)
    keeper.load_best(module)
    assert set(weights.unique().tolist()) == {1.0}
    assert [entry["loss"] for entry in keeper.history] == [2.0, 1.0, 3.0]
    assert log.logged == [
        (0, {"val/loss": 2.0}),
        (1, {"train/loss": 1.0, "val/loss": 1.0}),
        (2, {"train/loss": 2.0, "val/loss": 3.0}),
    ]


def test_numbers_that_are_not_finite_stop_the_run_and_name_the_prompts(pair):
    rows = few(2)
    trainable = TrainableDraft(pair.draft.model)
    with torch.no_grad():
        pair.draft.model.get_input_embeddings().weight[rows[0].completion_ids[0]] = math.nan
    with pytest.raises(NonFiniteError, match=r"after step 0: validation loss nan"):
        fit(trainable, rows, rows)
    trainable = TrainableDraft(load_tiny_pair().draft.model)
    with pytest.raises(
        NonFiniteError, match=rf"(loss|norm) (nan|inf).*{rows[0].example_id}.*optimizer.lr"
    ):
        fit(trainable, rows, rows, num_epochs=30, lr=1e30)


def test_make_pair_takes_what_was_trained(pair):
    trainable = TrainableDraft(pair.draft.model)
    sources = (ModelSource("t"), ModelSource("d", path="somewhere"))
    new = make_pair(
        pair.target.model, trainable.frozen(), pair.tokenizer, pair.target.vocab_size, *sources
    )
    prompts = [TASK.prompt(example) for example in TASK.examples("validation").select(range(2))]
    assert decoder_of(new).generate(prompts).texts == decoder_of(pair).generate(prompts).texts
