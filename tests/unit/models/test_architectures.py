"""Speculative decoding of many model families against the same models without a cache.

`ReadingLM` compares every logit that the loop gets from a padded, batched, rolled-back cache with a
plain pass over the row's own tokens; `replay` decodes one row with plain passes alone.
"""

import copy
import itertools
from functools import cache

import pytest
import torch
from forced_verifier import PATTERNS, WEIGHT, ForcedVerifier
from table_lm import left_pad
from tiny_models import END_ID, FAMILIES, VOCAB_SIZE, WINDOW, build, perturbed, random_prompts

from diversed.core import noise
from diversed.core.counts import token_acceptance_rate
from diversed.core.loop import DecodeSettings, speculative_decode
from diversed.core.noise import Purpose
from diversed.core.probs import Sampling, logits_to_probs
from diversed.core.types import Status
from diversed.core.verifiers import LosslessVerifier, StaticVerifier
from diversed.models.hf import HFLanguageModel

LENGTHS = (3, 9, 17)
NOISE = 0.06  # of the draft's weights: it agrees with the target now and then
SEED = 3
TOLERANCE = 1e-4


class ReadingLM(HFLanguageModel):
    """Keeps the tokens of each row, and checks each step against a plain pass over them."""

    num_checked = 0
    worst_gap = 0.0

    def start(self, prompt_ids, prompt_mask):
        super().start(prompt_ids, prompt_mask)
        self.read = [
            ids[mask][:-1].tolist() for ids, mask in zip(prompt_ids, prompt_mask, strict=True)
        ]

    def step(self, input_ids):
        out = super().step(input_ids)
        for row, new in enumerate(input_ids.tolist()):
            self.read[row] += new
            wanted = self.model(torch.tensor([self.read[row]]), use_cache=False).logits[0]
            gap = (out.logits[row] - wanted[-len(new) :]).abs().max()
            self.worst_gap = max(self.worst_gap, float(gap))
            self.num_checked += len(new)
        return out

    def retain(self, rows, num_drop):
        super().retain(rows, num_drop)
        self.read = [
            self.read[row][: len(self.read[row]) - drop]
            for row, drop in zip(rows.tolist(), num_drop.tolist(), strict=True)
        ]


@cache
def pair_of(family):
    """Return target and draft of one family."""
    target = build(family)
    return target, perturbed(target, NOISE)


def decode(models, verifier, prompts, keys=None, wrapper=HFLanguageModel, **settings):
    ids, mask = left_pad(prompts)
    keys = torch.arange(len(prompts)) if keys is None else torch.tensor(keys)
    wrapped = [wrapper(model, VOCAB_SIZE) for model in models]
    settings = DecodeSettings(seed=SEED, **settings)
    return speculative_decode(*wrapped, verifier, ids, mask, keys, settings), wrapped


def lists(result):
    return [ids.tolist() for ids in result.token_ids]


def law(model, tokens):
    """Return the next-token law after `tokens`, [1, V], from one plain pass."""
    logits = model(torch.tensor([tokens]), use_cache=False).logits[:, -1]
    return logits_to_probs(logits, Sampling())


def draw(weights, key, position, purpose):
    keys = noise.stream_keys(SEED, torch.tensor([key]), torch.tensor([position]), purpose)
    return int(noise.race(weights, noise.exponential(keys, VOCAB_SIZE)))


def replay(models, prompt, key, pattern, bonus, draft_length, max_new_tokens, end_ids):
    """Decode one row token by token, without cache, padding or batch."""
    _, draft = models
    out = []
    while len(out) < max_new_tokens and not set(out) & set(end_ids):
        room = max_new_tokens - len(out)
        drafted, after = [], True
        for column in range(min(draft_length, room - (bonus == "target"))):
            q = law(draft, prompt + out + drafted)
            drafted.append(draw(q, key, len(out) + column, Purpose.DRAFT))
            if drafted[-1] in end_ids:
                after = False
                break
        rejected = [c for c, token in enumerate(drafted) if not PATTERNS[pattern](c, token)]
        kept = drafted[: rejected[0]] if rejected else drafted
        out += kept
        if rejected or (after and len(out) < max_new_tokens):
            p, q = (law(model, prompt + out) for model in models)
            weights = (p - q).clamp(min=0)
            if not rejected:
                weights = WEIGHT * p + (1 - WEIGHT) * q if bonus == "verifier" else p
            out.append(draw(weights, key, len(out), Purpose.NEXT))
    return out


# --- the models say something ---------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_differ_and_the_draft_is_right_now_and_then(family):
    prompts = random_prompts(LENGTHS * 10)
    result, _ = decode(
        pair_of(family), LosslessVerifier(), prompts, max_new_tokens=20, draft_length=4
    )
    assert len({tuple(ids) for ids in lists(result)}) >= 20
    assert 0.3 < token_acceptance_rate(result.counts) < 0.8
    again, _ = decode(
        pair_of(family),
        LosslessVerifier(),
        prompts[:1] * 30,
        max_new_tokens=20,
        draft_length=4,
    )
    assert len({tuple(ids) for ids in lists(again)}) >= 20  # one prompt, 30 keys


@pytest.mark.parametrize("family", ["gemma3", "mistral"])
def test_windows_matter_to_the_longer_prompts(family):
    model = build(family)
    wide = copy.deepcopy(model)
    wide.config.sliding_window = 128
    for prompt in random_prompts(LENGTHS):
        same = torch.allclose(law(model, prompt), law(wide, prompt), atol=TOLERANCE)
        assert same == (len(prompt) <= WINDOW)


# --- with and without a cache ---------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("pattern", "bonus"),
    [
        ("all accepted", "verifier"),
        ("all accepted", "target"),
        ("all rejected", "verifier"),
        ("alternating", "target"),
        ("ragged", "verifier"),
        ("ragged", "target"),
    ],
)
def test_cached_batch_equals_decoding_without_a_cache(family, pattern, bonus):
    models, prompts = pair_of(family), random_prompts(LENGTHS, seed=1)
    settings = {"draft_length": 3, "max_new_tokens": 12}
    end_ids = (END_ID, 9)
    result, wrapped = decode(
        models,
        ForcedVerifier(pattern, bonus),
        prompts,
        None,
        ReadingLM,
        eos_ids=end_ids,
        **settings,
    )
    wanted = [
        replay(models, prompt, key, pattern, bonus, end_ids=end_ids, **settings)
        for key, prompt in enumerate(prompts)
    ]
    assert lists(result) == wanted
    for lm in wrapped:
        assert lm.worst_gap < TOLERANCE
        assert lm.num_checked > 20
    statuses = set(result.trace.status.tolist())
    assert (Status.ACCEPTED in statuses) == (pattern != "all rejected")
    assert (Status.RECOVERED in statuses) == (pattern != "all accepted")


@pytest.mark.parametrize("family", FAMILIES)
def test_text_of_a_row_depends_neither_on_order_nor_on_companions(family):
    models, prompts = pair_of(family), random_prompts(LENGTHS, seed=2)
    settings = {"draft_length": 3, "max_new_tokens": 10, "eos_ids": (END_ID, 9)}
    verifier = StaticVerifier(0.6)
    alone = [
        lists(decode(models, verifier, [prompt], [key], **settings)[0])[0]
        for key, prompt in enumerate(prompts)
    ]
    assert len({tuple(ids) for ids in alone}) == len(prompts)
    for size in (2, 3):
        for order in itertools.permutations(range(3), size):
            chosen = [prompts[row] for row in order]
            result, _ = decode(models, verifier, chosen, list(order), **settings)
            assert lists(result) == [alone[row] for row in order]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bonus", ["verifier", "target"])
def test_lossless_at_temperature_zero_equals_generate(family, bonus):
    models, prompts = pair_of(family), random_prompts(LENGTHS, seed=4)
    ids, mask = left_pad(prompts)
    out = models[0].generate(
        ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=20, pad_token_id=0
    )
    result, _ = decode(
        models,
        LosslessVerifier(bonus),
        prompts,
        max_new_tokens=20,
        draft_length=4,
        sampling=Sampling(temperature=0),
        eos_ids=(END_ID,),
    )
    wanted = [row[ids.shape[1] :] for row in out.tolist()]
    wanted = [row[: row.index(END_ID) + 1] if END_ID in row else row for row in wanted]
    assert lists(result) == wanted
    assert max(len(set(row)) for row in wanted) > 5
    assert 0 < token_acceptance_rate(result.counts) < 1
