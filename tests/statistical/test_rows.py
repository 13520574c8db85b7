"""Every rule where chance has no say: at temperature 0, and in which batch a row stands."""

import functools

import pytest
import torch
from laws import BONUS_MODES, DRAFT, DRAFT_LENGTHS, TARGET, VARIANTS, VOCAB_SIZE, Case, position
from restated_rules import greedy
from table_lm import left_pad

from diversed.core.loop import DecodeSettings, autoregressive_decode, speculative_decode
from diversed.core.probs import Sampling

GREEDY = Sampling(temperature=0)
NUM_TOKENS = 12
PROMPTS = [
    torch.randint(VOCAB_SIZE, (1 + row % 5,), generator=torch.Generator().manual_seed(row)).tolist()
    for row in range(16)
]


def decode(case, rows, seed=0, keys=None):
    ids, mask = left_pad([PROMPTS[row] for row in rows])
    keys = torch.tensor(rows if keys is None else keys)
    settings = DecodeSettings(NUM_TOKENS, case.draft_length, case.sampling, case.eos_ids, seed)
    return speculative_decode(TARGET, DRAFT, case.verifier(), ids, mask, keys, settings)


def texts(result):
    return [ids.tolist() for ids in result.token_ids]


# --- temperature 0 --------------------------------------------------------------------------------


def replayed(case, prompt):
    """Return what the second statement of the rule emits at temperature 0, and how often it passes
    and fails a drafted token.
    """
    name, settings = VARIANTS[case.variant]
    out, passed, failed = [], 0, 0
    while len(out) < NUM_TOKENS:
        room = NUM_TOKENS - len(out)
        budget = min(case.draft_length, room if case.bonus == "verifier" else room - 1)
        for column in range(budget + 1):
            if len(out) == NUM_TOKENS:
                break
            at = position(TARGET.context(prompt + out), GREEDY)
            if column == budget and case.bonus == "target":
                out.append(int(at.p.argmax()))
                break
            token = int(at.q.argmax())
            passes, instead = greedy(name, at, token, **settings)
            out.append(token if passes else instead)
            if column < budget:
                passed, failed = passed + passes, failed + (not passes)
            if not passes:
                break
    return out, passed, failed


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bonus", BONUS_MODES)
@pytest.mark.parametrize("draft_length", DRAFT_LENGTHS)
def test_temperature_zero_is_the_rule_stated_twice(variant, bonus, draft_length):
    case = Case(variant, draft_length, GREEDY, bonus)
    replays = [replayed(case, prompt) for prompt in PROMPTS]
    result = decode(case, range(len(PROMPTS)))
    assert texts(result) == [out for out, _, _ in replays]
    assert result.counts.accepted.tolist() == [passed for _, passed, _ in replays]
    assert result.counts.recovered.tolist() == [failed for _, _, failed in replays]
    assert 0 < int(result.counts.accepted.sum()) < int(result.counts.judged.sum())


@pytest.mark.parametrize("variant", VARIANTS)
def test_temperature_zero_leaves_nothing_to_seed_or_key(variant):
    case = Case(variant, 3, GREEDY)
    rows = range(len(PROMPTS))
    assert texts(decode(case, rows)) == texts(decode(case, rows, seed=9, keys=list(rows)[::-1]))


@functools.cache
def target_alone():
    ids, mask = left_pad(PROMPTS)
    settings = DecodeSettings(NUM_TOKENS, sampling=GREEDY)
    return texts(autoregressive_decode(TARGET, ids, mask, torch.arange(len(PROMPTS)), settings))


def test_plain_decoding_at_temperature_zero_is_the_targets_argmax():
    for prompt, out in zip(PROMPTS, target_alone(), strict=True):
        for end in range(NUM_TOKENS):
            context = TARGET.context(prompt + out[:end])
            assert out[end] == int(TARGET.table[context].argmax())


@pytest.mark.parametrize("bonus", BONUS_MODES)
@pytest.mark.parametrize("draft_length", DRAFT_LENGTHS)
def test_rules_that_end_in_the_targets_best_token_are_greedy_decoding(bonus, draft_length):
    """Lossless by definition, typical as published; the other variants give other texts."""
    same = {
        variant
        for variant in VARIANTS
        if texts(decode(Case(variant, draft_length, GREEDY, bonus), range(len(PROMPTS))))
        == target_alone()
    }
    assert same == {"lossless", "typical"}


# --- batches --------------------------------------------------------------------------------------

BATCH_SIZES = (1, 3, 5, 7)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("bonus", "draft_length", "sampling"),
    [("verifier", 3, Sampling()), ("target", 5, Sampling(2.0, top_k=3)), ("target", 2, GREEDY)],
    ids=str,
)
def test_row_does_not_depend_on_its_batch(variant, bonus, draft_length, sampling):
    """Sixteen prompts, shuffled and cut into batches of 1, 3, 5 and 7, token for token."""
    case = Case(variant, draft_length, sampling, bonus, eos_ids=(0,))
    together = decode(case, range(len(PROMPTS)), seed=4)
    assert len({len(text) for text in texts(together)}) > 1  # rows leave the batch at times
    order = torch.randperm(len(PROMPTS), generator=torch.Generator().manual_seed(3)).tolist()
    for size in BATCH_SIZES:
        batch, order = order[:size], order[size:]
        apart = decode(case, batch, seed=4)
        assert texts(apart) == [texts(together)[row] for row in batch]
        for count, value in vars(apart.counts).items():
            assert torch.equal(value, getattr(together.counts, count)[batch]), count
    assert order == []
