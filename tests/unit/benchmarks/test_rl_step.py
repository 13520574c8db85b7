"""The benchmark of a training step: both steps do the same job, and what is measured is right."""

import gc
from functools import partial

import numpy as np
import pytest
import rl_step
import torch
from composed import SMALL_DATA
from lightning import Trainer
from textbook import mixture_scalars, read_again, sample_completions
from torch import Tensor

from diversed.core.loop import DecodeSettings
from diversed.core.probs import Sampling
from diversed.generation import SpeculativeDecoder, head_verifier, row_key
from diversed.models.checkpoint import new_head
from diversed.objective.acceptance import ObjectiveSettings, mixture_log_probs
from diversed.prompting import fit_prompt
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.training.data import PromptDataModule
from diversed.training.module import DiversedModule
from diversed.training.rollout import sample_rollout

NUM_PROMPTS, NUM_SAMPLES, STEP = 3, 2, 4
SMALL = (*SMALL_DATA, "decoding.max_new_tokens=12", "--batch=2", "--samples=2", "--repeats=2")


class LetterTask(ArithmeticTask):
    """Completions are paid for their vowels; some meet a stop string."""

    stop_strings = ("Later",)

    def score(self, text, example):
        return sum(letter in "aeiou" for letter in text) / max(len(text), 1)


TASK = LetterTask(num_train=8, num_validation=1, num_test=1)


def training_of(pair, **objective):
    """Return a training with a head that reads everything and has random weights."""
    head = new_head(pair, kind="mlp", width=8, uses_features=True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    settings = DecodeSettings(
        max_new_tokens=60, draft_length=4, sampling=Sampling(0.9, top_k=40, top_p=0.95), seed=2
    )
    return rl_step.Training(
        SpeculativeDecoder(pair, head_verifier(head), settings, TASK.stop_strings),
        head,
        TASK,
        ObjectiveSettings(acceptance_weight=1.5, **objective),
        NUM_SAMPLES,
    )


@pytest.fixture(scope="module")
def training(pair):
    return training_of(pair)


@pytest.fixture(scope="module")
def sampled(training):
    """Return a rollout, and the ids of its prompts and completions, in its order."""
    examples = list(TASK.examples("train"))[:NUM_PROMPTS]
    decoder = training.decoder
    rollout = sample_rollout(decoder, TASK, examples, NUM_SAMPLES, STEP)
    owners = [(example, sample) for example in examples for sample in range(NUM_SAMPLES)]
    prompts = [fit_prompt(decoder, TASK, example).prompt for example, _ in owners]
    keys = [row_key("train", STEP, example["id"], sample) for example, sample in owners]
    result = decoder.generate(prompts, keys).result
    completions = [ids.tolist() for ids in result.token_ids]
    assert len(set(map(len, completions))) > 1, "rows of one length test no padding"
    assert len({len(decoder.encode_prompt(prompt)) for prompt in prompts}) > 1
    assert set(result.end_reasons) == {"eos", "stop", "length"}
    return rollout, [decoder.encode_prompt(prompt) for prompt in prompts], completions


def gradient_of(training):
    return torch.cat([parameter.grad.flatten() for parameter in training.head.parameters()])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_both_steps_give_the_head_one_gradient_on_the_same_tokens(pair, sampled, reduction):
    rollout, prompts, completions = sampled
    training = training_of(pair, acceptance_reduction=reduction)
    rl_step.our_update(training, rollout)
    ours = gradient_of(training)
    training = training_of(pair, acceptance_reduction=reduction)
    seen = read_again(training.decoder, training.head, prompts, completions)
    rl_step.textbook_update(training, seen, rollout.rewards)
    assert rollout.rewards.unique().numel() > 1
    assert bool((ours != 0).all())
    scale = float(ours.abs().max())
    torch.testing.assert_close(gradient_of(training), ours, rtol=1e-4, atol=1e-5 * scale)


def test_the_textbook_samples_the_law_of_our_trace(training, sampled):
    rollout, prompts, completions = sampled
    found = torch.zeros_like(rollout.scalars.target_prob)
    position = 0

    def draw(probs: Tensor) -> Tensor:
        nonlocal position
        rows = [row for row, ids in enumerate(completions) if len(ids) > position]
        token_ids = torch.tensor([completions[row][position] for row in rows])
        torch.testing.assert_close(probs.sum(1), torch.ones(len(rows)))
        found[rows, position] = probs.gather(1, token_ids[:, None])[:, 0].log()
        position += 1
        return token_ids

    assert sample_completions(training.decoder, training.head, prompts, draw) == completions
    wanted = mixture_log_probs(rollout.scalars, rollout.target_weight(training.head)).detach()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)


def test_the_second_pass_reads_what_the_decoder_kept(training, sampled):
    rollout, prompts, completions = sampled
    seen = read_again(training.decoder, training.head, prompts, completions)
    assert torch.equal(seen.mask, rollout.scalars.mask)
    assert seen.token_ids.tolist() == [token_id for ids in completions for token_id in ids]
    order = (rollout.row * seen.mask.shape[1] + rollout.position).argsort()
    for name in ("target_hidden", "draft_hidden", "features"):
        got, wanted = getattr(seen.reading, name), getattr(rollout, name)[order]
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-3, msg=name)
    weight = rollout.target_weight(training.head)
    tv = mixture_scalars(training.head, seen).tv_distance
    torch.testing.assert_close(tv, weight * rollout.scalars.tv_distance, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
def test_our_step_is_that_of_the_lightning_module(pair):
    training = training_of(pair)
    module = DiversedModule(
        training.head,
        training.decoder,
        TASK,
        training.objective,
        samples_per_prompt=NUM_SAMPLES,
        updates_per_rollout=1,
        grad_clip=1e9,
        optimizer=partial(torch.optim.SGD, lr=1.0),
        scheduler=partial(torch.optim.lr_scheduler.ConstantLR, factor=1.0),
    )
    data = PromptDataModule(
        TASK, prompts_per_step=NUM_PROMPTS, num_rollouts=1, seed=0, start=lambda: 0
    )
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    before = training_of(pair)
    trainer.fit(module, data)
    seconds = rl_step.Seconds(pair.device)
    num_tokens = rl_step.our_step(before, data.batches.batch(0), 0, seconds)
    assert num_tokens > 0
    assert list(seconds.phases) == ["sampling", "loss and backward"]
    moved = torch.cat(
        [
            (old - new).flatten()
            for old, new in zip(before.head.parameters(), training.head.parameters(), strict=True)
        ]
    )
    torch.testing.assert_close(gradient_of(before), moved, rtol=1e-4, atol=1e-6)


def test_the_textbook_step_holds_three_laws_of_every_token_and_leaves_a_gradient(pair):
    training = training_of(pair)
    examples = list(TASK.examples("train"))[:NUM_PROMPTS]
    memory = rl_step.TensorMemory()
    num_tokens = rl_step.textbook_step(training, examples, STEP, memory)
    assert NUM_PROMPTS * NUM_SAMPLES <= num_tokens <= NUM_PROMPTS * NUM_SAMPLES * 60
    assert list(memory.phases) == list(rl_step.PHASES)
    law_bytes = num_tokens * pair.target.vocab_size * 4
    assert memory.phases["second pass"] >= 2 * law_bytes
    assert memory.phases["loss and backward"] >= 3 * law_bytes
    assert bool((gradient_of(training) != 0).all())


KILOBYTE = 1024


def kilobyte():
    return torch.ones(KILOBYTE // 4)


@pytest.mark.parametrize(
    ("work", "wanted"),
    [
        (lambda: [kilobyte() for _ in range(5)], 5),
        (lambda: [kilobyte().sum() for _ in range(5)] and None, 1),
        (lambda: kilobyte().add_(1).view(2, -1)[0].mul_(2).t(), 1),
        (lambda: kilobyte().requires_grad_().exp().exp().exp(), 4),  # autograd keeps them
        (lambda: kilobyte().exp().exp().exp(), 2),
    ],
    ids=["all kept", "freed", "views", "kept for backward", "one after the other"],
)
def test_memory_is_the_peak_of_living_tensors(work, wanted):
    memory = rl_step.TensorMemory()
    memory("first", work)
    assert memory.phases["first"] // KILOBYTE == wanted


def test_memory_of_a_phase_counts_what_older_phases_left_but_not_what_was_there_before():
    memory = rl_step.TensorMemory()
    before = kilobyte()
    kept = memory("first", lambda: before.view(4, -1).add(1))
    memory("second", lambda: (kept.exp(), before.mul_(2)))
    gc.collect()
    memory("third", lambda: kept.add_(before.view(4, -1)))
    assert memory.phases == {"first": KILOBYTE, "second": 2 * KILOBYTE, "third": KILOBYTE}


def test_steps_take_turns_on_the_same_prompts(training, monkeypatch):
    taken = []

    def step(name, training, examples, number, measure):
        measure("sampling", lambda: kilobyte() if name == "ours" else (kilobyte(), kilobyte()))
        taken.append((name, number, type(measure).__name__, [one["id"] for one in examples]))
        return 7

    monkeypatch.setattr(rl_step, "STEPS", {name: partial(step, name) for name in rl_step.STEPS})
    data = PromptDataModule(TASK, prompts_per_step=2, num_rollouts=1, seed=0, start=lambda: 0)
    num_bytes, seconds = rl_step.compare(training, data.batches, num_repeats=3)
    a, b = "ours", "textbook"
    assert [name for name, *_ in taken] == [a, b, a, b, b, a, a, b]
    assert [number for _, number, *_ in taken] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert [kind for *_, kind, _ in taken] == ["TensorMemory"] * 2 + ["Seconds"] * 6
    for _, number, _, ids in taken:
        assert ids == [one["id"] for one in data.batches.batch(number)]
    assert list(seconds["step"]) == [a, b, b, a, a, b]
    assert list(num_bytes["sampling"]) == list(num_bytes["total"]) == [KILOBYTE, 2 * KILOBYTE]
    assert (num_bytes[["second pass", "loss and backward"]] == 0).all(axis=None)


def test_median_ratio_is_of_pairs_and_its_interval_of_repetitions():
    ratio = rl_step.median_ratio(np.array([2.0, 9.0, 8.0]), np.array([1.0, 3.0, 1.0]))
    assert (ratio.estimate, ratio.low, ratio.high) == (3.0, 2.0, 8.0)


def test_the_command_reports_both_steps(capsys):
    rl_step.main(["model=tiny", "data=arithmetic", *SMALL])
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.startswith(("| ours", "| textbook"))]
    assert len(rows) == 2 + 2 * 2 + 2
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    for name, tokens, *numbers in cells:
        assert 4 <= int(tokens) <= 48
        sampling, second_pass, update, total = map(float, numbers)
        assert (second_pass > 0) == (name == "textbook")
        assert min(sampling, update, total) > 0
    assert "2 prompts x 2 completions of at most 12 tokens" in out
    assert "textbook / ours: seconds " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--repeats=0"], "--repeats=0: must be at least 1"),
        (["--samples=0"], "--samples=0: must be at least 1"),
        (["--samples=1"], "objective.samples_per_prompt=1: objective.advantage=rloo"),
        (["--batch=0"], "objective.prompts_per_step=0: must be at least 1"),
        (["decoding.temperature=0"], "decoding.temperature=0"),
        (["verifier=lossless"], "verifier: train.py trains the head of verifier=diversed"),
        (["head.reads=constant"], "head.reads=constant: the textbook's step reads hidden states"),
        (["model=nothing"], "Could not find 'model/nothing'"),
        (["decoding.n=3"], "Could not override 'decoding.n'"),
    ],
)
def test_bad_input_ends_in_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        rl_step.main([*SMALL_DATA, *arguments])
    assert stop.value.code == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
    assert message in line
