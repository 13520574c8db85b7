"""Heads that are denied some context: what each reads, and that nothing else changes."""

import math
from dataclasses import replace

import pytest
import torch

from diversed import DecodeSettings, LosslessVerifier, SpeculativeDecoder, diversed_generate
from diversed.controls.reading import HiddenBank, hidden_bank, read_as
from diversed.core.types import StepOutput
from diversed.generation import head_verifier
from diversed.models.checkpoint import load_head, new_head, save_head
from diversed.models.head import HEAD_READS
from diversed.tasks.arithmetic import ArithmeticTask

CONTROLS = tuple(name for name in HEAD_READS if name not in ("hidden", "features"))
PROMPTS = [
    "Ada has 3 pens. How many pens are there?\n",
    "Ben keeps 5 toys. Ben buys 4 more toys. How many toys are there?\n",
    "Ada has 3 pens. Ada buys 2 more pens. How many pens are there?\n",
]
WIDTH = 6


class CountingModel:
    """A `LanguageModel` whose hidden state counts what it has been fed, from 1."""

    model, vocab_size = None, 9

    def start(self, prompt_ids, prompt_mask):
        self.fed = 0

    def step(self, input_ids):
        counts = self.fed + 1 + torch.arange(input_ids.numel()).view(input_ids.shape)
        self.fed += input_ids.numel()
        hidden = counts.unsqueeze(-1).expand(-1, -1, WIDTH).float()
        return StepOutput(logits=hidden[..., :1].expand(-1, -1, 9), hidden=hidden)

    def retain(self, rows, num_drop):
        pass


def controlled(pair, reads, bank=None):
    """Return a control's target and draft over two counting models."""
    bare = replace(pair, target=CountingModel(), draft=CountingModel())
    read = read_as(reads, bare, lambda: bank)
    return read.target, read.draft


def states(model, prompts, *steps):
    """Start with left-padded prompts (0 pads) and return the hidden states of each step.

    A step is the ids to feed, or (rows, num_drop) to retain.
    """
    prompts = torch.tensor(prompts)
    model.start(prompts, prompts > 0)
    seen = []
    for step in steps:
        if isinstance(step, tuple):
            model.retain(*map(torch.tensor, step))
        else:
            seen.append(model.step(torch.tensor(step)).hidden)
    return seen


def wave(position):
    return [
        turn(position / 10_000 ** (2 * pair / WIDTH))
        for pair in range(WIDTH // 2)
        for turn in (math.sin, math.cos)
    ]


def test_a_constant_reads_zeros_and_leaves_the_logits(pair):
    target, _ = controlled(pair, "constant")
    target.start(torch.tensor([[1, 2]]), torch.ones(1, 2, dtype=torch.bool))
    out = target.step(torch.tensor([[3, 4]]))
    assert out.hidden.shape == (1, 2, WIDTH)
    assert not out.hidden.any()
    assert out.logits[0, :, 0].tolist() == [1, 2]


def test_a_position_counts_from_the_prompts_last_token_and_goes_back_with_the_row(pair):
    target, _ = controlled(pair, "position")
    prompts = [[1, 2, 3], [0, 1, 2], [0, 0, 1]]
    first, second = states(target, prompts, [[3] * 4] * 3, ([0, 2], [3, 1]), [[5, 6]] * 2)
    assert torch.allclose(first[1], torch.tensor([wave(n) for n in range(4)]))
    assert torch.equal(first, first[:1].expand_as(first))
    assert torch.allclose(second[0], torch.tensor([wave(1), wave(2)]))
    assert torch.allclose(second[1], torch.tensor([wave(3), wave(4)]))


def test_a_prompts_own_states_stay_with_the_row(pair):
    target, _ = controlled(pair, "prompt")
    first, second = states(target, [[1, 2], [3, 4]], [[2, 5, 6], [4, 7, 8]], ([1], [2]), [[9, 9]])
    assert first[..., 0].tolist() == [[1, 1, 1], [4, 4, 4]]
    assert second[..., 0].tolist() == [[4, 4]]
    assert states(target, [[1, 2]], [[2, 5]])[0][..., 0].tolist() == [[1, 1]]


class TestShuffled:
    BANK = HiddenBank(
        target=torch.arange(500.0).unsqueeze(1).expand(-1, WIDTH),
        draft=-torch.arange(500.0).unsqueeze(1).expand(-1, WIDTH),
    )

    def entries(self, pair, prompts, *steps, role=0):
        model = controlled(pair, "shuffled", self.BANK)[role]
        return [hidden[..., 0].long() for hidden in states(model, prompts, *steps)]

    def test_target_and_draft_read_the_same_entry(self, pair):
        (of_target,) = self.entries(pair, [[1, 2]], [[2, 3, 4]])
        of_draft = self.entries(pair, [[1, 2]], [[2]], [[7]], [[8]], role=1)
        assert of_target[0].tolist() == [-int(entry) for entry in of_draft]
        assert len(set(of_target[0].tolist())) == 3

    def test_an_entry_depends_on_prompt_and_position_alone(self, pair):
        alone, again = self.entries(pair, [[1, 2]], [[2, 3, 4]], ([0], [2]), [[8, 8]])
        assert torch.equal(again, alone[:, 1:])
        (batch,) = self.entries(pair, [[0, 0, 1, 2], [5, 6, 1, 2]], [[2, 3, 4]] * 2)
        assert torch.equal(batch[:1], alone)
        assert not (batch[1] == alone[0]).any()

    def test_rows_that_leave_take_their_prompt_along(self, pair):
        (alone,) = self.entries(pair, [[3, 4]], [[4, 1, 1]])
        first, second = self.entries(pair, [[1, 2], [3, 4]], [[2], [4]], ([1], [0]), [[1, 1]])
        assert torch.equal(torch.cat([first[1:], second], dim=1), alone)

    def test_entries_spread_over_the_bank(self, pair):
        prompts = [[1 + n // 8, 1 + n % 8] for n in range(64)]
        (found,) = self.entries(pair, prompts, [[1] * 100] * 64)
        counts = torch.bincount(found.flatten(), minlength=500).double()
        expected = 6400 / 500
        # chi-squared of 499 degrees of freedom: mean 499, spread 32
        assert float(((counts - expected) ** 2 / expected).sum()) < 499 + 6 * 32


def test_the_bank_holds_what_a_head_reads(pair):
    task = ArithmeticTask(num_train=3, num_validation=1, num_test=1)
    settings = DecodeSettings(max_new_tokens=12)
    bank = hidden_bank(pair, task, settings)
    decoder = SpeculativeDecoder(
        pair, LosslessVerifier(), replace(settings, keep_head_inputs=True), task.stop_strings
    )
    prompts = [task.prompt(example) for example in task.examples("train")]
    trace = decoder.generate(prompts).result.trace
    assert torch.equal(bank.target, trace.target_hidden)
    assert torch.equal(bank.draft, trace.draft_hidden)
    assert len(bank.target) == len(bank.draft) == int(trace.is_emitted.sum())


def control_decoder(pair, reads, seed=0):
    """Return a decoder whose head gives every input a say."""
    task = ArithmeticTask(num_train=4, num_validation=1, num_test=1)
    settings = DecodeSettings(max_new_tokens=24, keep_head_inputs=True, seed=seed)
    head = new_head(pair, reads=reads)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
    read = read_as(reads, pair, lambda: hidden_bank(pair, task, settings))
    return SpeculativeDecoder(read, head_verifier(head), settings)


@pytest.mark.parametrize("reads", HEAD_READS)
def test_a_row_does_not_depend_on_its_batch(pair, reads):
    decoder = control_decoder(pair, reads)
    batch = decoder.generate(PROMPTS).result
    for number, prompt in enumerate(PROMPTS):
        alone = decoder.generate([prompt], [number]).result
        assert torch.equal(alone.token_ids[0], batch.token_ids[number])
        own = batch.trace.target_weight[batch.trace.row == number]
        assert torch.allclose(alone.trace.target_weight, own, atol=1e-4, equal_nan=True)


def rounded(weights):
    return weights.round(decimals=4).unique()


@pytest.mark.parametrize("reads", ["constant", "prompt"])
def test_a_head_without_the_tokens_context_gives_one_weight(pair, reads):
    trace = control_decoder(pair, reads).generate(PROMPTS).result.trace
    weights = [rounded(trace.target_weight[trace.row == row]) for row in range(len(PROMPTS))]
    assert [len(own) for own in weights] == [1, 1, 1]
    assert len(torch.cat(weights).unique()) == (1 if reads == "constant" else 3)


def test_a_position_gives_all_rows_the_same_weights(pair):
    trace = control_decoder(pair, "position").generate(PROMPTS).result.trace
    by_position = [rounded(trace.target_weight[trace.position == n]) for n in range(8)]
    assert [len(weights) for weights in by_position] == [1] * 8
    assert len(torch.cat(by_position).unique()) == 8


@pytest.mark.parametrize("reads", CONTROLS)
def test_a_control_goes_by_its_own_name_and_needs_its_own_pair(pair, reads, tmp_path):
    verifier = head_verifier(new_head(pair, reads=reads))
    assert verifier.name == f"{reads}_head"
    with pytest.raises(ValueError, match=f"head.reads='{reads}': this pair hands on 'hidden'"):
        SpeculativeDecoder(pair, verifier)
    read = read_as(reads, pair, lambda: HiddenBank(torch.zeros(1, 128), torch.zeros(1, 64)))
    plain = head_verifier(new_head(pair))
    with pytest.raises(ValueError, match=r"head\.reads='hidden'"):
        SpeculativeDecoder(read, plain)
    save_head(verifier.head, tmp_path)
    assert load_head(str(tmp_path), pair).reads == reads


def test_a_head_on_features_needs_no_pair_of_its_own(pair, tmp_path):
    head = new_head(pair, reads="features")
    verifier = head_verifier(head)
    assert (verifier.name, verifier.uses_features) == ("features_head", True)
    assert read_as("features", pair, lambda: None) is pair
    save_head(head, tmp_path)
    loaded = load_head(str(tmp_path), pair)
    assert (loaded.reads, loaded.uses_features) == ("features", True)
    assert SpeculativeDecoder(pair, head_verifier(loaded)).generate(PROMPTS[:1]).texts


def test_transformers_door_refuses_a_control(pair):
    verifier = head_verifier(new_head(pair, reads="position"))
    inputs = pair.tokenizer(PROMPTS[:1], return_tensors="pt")

    def generate(*arguments, **options):
        return diversed_generate(*arguments, draft=pair.draft.model, verifier=verifier, **options)

    with pytest.raises(ValueError, match=r"head\.reads='position'"):
        pair.target.model.generate(**inputs, custom_generate=generate, max_new_tokens=4)


def test_an_unknown_reading_is_refused_by_name(pair):
    with pytest.raises(ValueError, match=r"head\.reads='all': must be one of hidden, features"):
        new_head(pair, reads="all")
    with pytest.raises(ValueError, match=r"head\.reads='all': must be one of hidden, features"):
        read_as("all", pair, lambda: None)
