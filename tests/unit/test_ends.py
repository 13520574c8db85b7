"""Where completions end, on transformers models: nothing behind an end is kept or counted."""

import copy
import itertools
from dataclasses import replace
from functools import cache

import pytest
import torch
from table_lm import left_pad
from tiny_models import END_ID, VOCAB_SIZE, build, perturbed, random_prompts

from diversed.core.loop import DecodeSettings, speculative_decode
from diversed.core.probs import Sampling
from diversed.core.types import Status
from diversed.core.verifiers import LosslessVerifier, StaticVerifier
from diversed.generation import SpeculativeDecoder
from diversed.models.hf import HFLanguageModel

FAMILIES = ("llama", "gemma3", "gpt2")
GREEDY, PLAIN = Sampling(temperature=0), Sampling()
LENGTHS = (1, 9, 17, 1, 3)
DRAFTED = (Status.ACCEPTED, Status.REJECTED, Status.UNJUDGED)
TOTALS = ("drafted", "judged", "accepted", "recovered", "bonus", "blocks")


@cache
def models_of(family):
    target = build(family)
    return tuple(HFLanguageModel(model, VOCAB_SIZE) for model in (target, perturbed(target, 0.06)))


def decode(family, prompts, keys=None, bonus="verifier", pad_id=0, **settings):
    ids, mask = left_pad(prompts)
    keys = torch.arange(len(prompts)) if keys is None else torch.tensor(keys)
    return speculative_decode(
        *models_of(family),
        LosslessVerifier(bonus),
        ids.masked_fill(~mask, pad_id),
        mask,
        keys,
        DecodeSettings(**settings),
    )


def lists(result):
    return [ids.tolist() for ids in result.token_ids]


def entries(result, row):
    """Return a row's (block, position, token, status), in order of decoding."""
    trace = result.trace
    columns = (trace.block, trace.position, trace.token_id, trace.status)
    return list(zip(*(column[trace.row == row].tolist() for column in columns), strict=True))


def totals(of_row):
    """Return the counts that a row's trace entries add up to."""
    statuses = [status for _, _, _, status in of_row]
    number = {status: statuses.count(status) for status in Status}
    judged = number[Status.ACCEPTED] + number[Status.REJECTED]
    return {
        "drafted": judged + number[Status.UNJUDGED],
        "judged": judged,
        "accepted": number[Status.ACCEPTED],
        "recovered": number[Status.RECOVERED],
        "bonus": number[Status.BONUS],
        "blocks": len({block for block, _, _, _ in of_row}),
    }


def check_counts(result):
    """Assert that counts, trace and ids tell the same story."""
    for row, ids in enumerate(lists(result)):
        of_row = entries(result, row)
        counts = {name: int(getattr(result.counts, name)[row]) for name in TOTALS}
        assert counts == totals(of_row)
        emitted = [e for e in of_row if e[3] not in (Status.REJECTED, Status.UNJUDGED)]
        assert [(position, token) for _, position, token, _ in emitted] == list(enumerate(ids))


def inner_ends(of_row):
    """Return indices of accepted tokens, new to the row, that another accepted one follows."""
    found, seen = [], set()
    for index, (one, after) in enumerate(itertools.pairwise(of_row)):
        both = one[3] == after[3] == Status.ACCEPTED and one[0] == after[0]
        if both and one[2] not in seen:
            found.append(index)
        seen.add(one[2])  # rejected ones too: as an end they would cut their block
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bonus", ["verifier", "target"])
@pytest.mark.parametrize("draft_length", [3, 7])
def test_end_inside_an_accepted_block_cuts_the_block_there(family, bonus, draft_length):
    prompts = random_prompts(LENGTHS * 2)
    settings = {"bonus": bonus, "draft_length": draft_length, "max_new_tokens": 20}
    free = decode(family, prompts, **settings)
    num_tried = 0
    for row, prompt in enumerate(prompts):
        of_row = entries(free, row)
        for index in inner_ends(of_row)[:1]:
            num_tried += 1
            kept = of_row[: index + 1]
            end_id, last = kept[-1][2], kept[-1][1]
            ended = decode(family, [prompt], [row], eos_ids=(end_id,), **settings)
            assert lists(ended) == [lists(free)[row][: last + 1]]
            assert ended.end_reasons == ["eos"]
            assert entries(ended, 0) == kept
            check_counts(ended)
    assert num_tried >= 6


@pytest.mark.parametrize(("family", "bonus"), [("llama", "verifier"), ("gemma3", "target")])
@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft_length", [1, 3, 7])
def test_several_end_ids_and_every_cap(family, bonus, sampling, draft_length):
    prompts, end_ids = random_prompts(LENGTHS, seed=1), (END_ID, *range(5, 25, 4))
    settings = {"bonus": bonus, "draft_length": draft_length, "sampling": sampling}
    reasons = set()
    for cap in (1, 2, 5, 8):
        free = decode(family, prompts, max_new_tokens=cap, **settings)
        assert [len(ids) for ids in lists(free)] == [cap] * len(prompts)
        check_counts(free)
        ended = decode(family, prompts, max_new_tokens=cap, eos_ids=end_ids, **settings)
        check_counts(ended)
        for ids, whole, reason in zip(lists(ended), lists(free), ended.end_reasons, strict=True):
            ends = [index for index, token in enumerate(whole) if token in end_ids]
            assert ids == (whole[: ends[0] + 1] if ends else whole)
            assert reason == ("eos" if ends else "length")
            reasons.add(reason)
    assert reasons == {"eos", "length"}


@pytest.mark.parametrize("family", FAMILIES)
def test_pad_id_that_is_an_end_id_ends_nothing(family):
    """Neither as padding nor inside a prompt is the id an end."""
    prompts = random_prompts(LENGTHS)
    prompts[1][4] = prompts[2][-1] = END_ID
    settings = {"draft_length": 3, "max_new_tokens": 10, "eos_ids": (END_ID,)}
    plain = decode(family, prompts, **settings)
    padded = decode(family, prompts, pad_id=END_ID, **settings)
    assert lists(padded) == lists(plain)
    assert max(map(len, lists(plain))) == 10
    for row, prompt in enumerate(prompts):
        assert lists(decode(family, [prompt], [row], **settings)) == lists(plain)[row : row + 1]


def test_short_prompts_beside_long_ones_read_no_padding():
    prompts = random_prompts([1, 17, 1, 1])
    settings = {"draft_length": 7, "max_new_tokens": 6}
    together = decode("gemma3", prompts, **settings)
    for row, prompt in enumerate(prompts):
        assert lists(decode("gemma3", [prompt], [row], **settings)) == [lists(together)[row]]


# --- stop strings, on the embedded pair -----------------------------------------------------------

PROMPTS = [
    "Ada has 3 pens. Ada buys 4 more pens. How many pens are there?\n",
    "Ben keeps 12 toys.\n",
    "There are 7 cups.",
]
NUM_NEW = 16


def complete(pair, stop_strings=(), prompts=PROMPTS, **settings):
    settings = {"max_new_tokens": NUM_NEW} | settings
    decoder = SpeculativeDecoder(
        pair, StaticVerifier(0.7), DecodeSettings(**settings), stop_strings
    )
    return decoder.generate(prompts)


def wanted_of(pair, ids, stop_strings):
    """Return ids up to the token that completes a stop string, the text before it, the reason."""
    decoded = [
        pair.tokenizer.decode(ids[:end], skip_special_tokens=True) for end in range(len(ids) + 1)
    ]
    for end, text in enumerate(decoded):
        places = [text.find(stop) for stop in stop_strings if stop in text]
        if places:
            return ids[:end], text[: min(places)], "stop"
    return ids, decoded[-1], "eos" if ids[-1] in pair.eos_ids else "length"


def spanning(pair, ids, first, num_tokens):
    """Return a string from inside token `first` to inside the token `num_tokens` later."""
    decoder = pair.tokenizer.decode
    before, inside = decoder(ids[:first]), decoder(ids[: first + num_tokens])
    whole = decoder(ids[: first + num_tokens + 1])
    return whole[len(before) + 1 : len(inside) + 1]


@pytest.mark.parametrize("draft_length", [1, 3, 7])
@pytest.mark.parametrize("sampling", [GREEDY, PLAIN], ids=["greedy", "sampled"])
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_stop_string_that_spans_tokens_ends_at_the_token_that_completes_it(
    pair, draft_length, sampling, num_tokens
):
    settings = {"draft_length": draft_length, "sampling": sampling}
    free = complete(pair, **settings)
    num_stopped = 0
    for first in (0, 4, 9):
        stop = spanning(pair, lists(free.result)[0], first, num_tokens)
        ended = complete(pair, [stop], **settings)
        wanted = [wanted_of(pair, ids, [stop]) for ids in lists(free.result)]
        assert lists(ended.result) == [ids for ids, _, _ in wanted]
        assert ended.texts == [text for _, text, _ in wanted]
        assert ended.result.end_reasons == [reason for _, _, reason in wanted]
        assert not any(stop in text for text in ended.texts)
        check_counts(ended.result)
        num_stopped += ended.result.end_reasons.count("stop")
    assert num_stopped >= 3


@pytest.mark.parametrize("cap", [1, 2, 5, 8])
@pytest.mark.parametrize("draft_length", [1, 3, 7])
def test_several_stop_strings_and_every_cap(pair, cap, draft_length):
    stops = [" ", "pens.", "has 4"]
    settings = {"max_new_tokens": cap, "draft_length": draft_length}
    free, ended = complete(pair, **settings), complete(pair, stops, **settings)
    wanted = [wanted_of(pair, ids, stops) for ids in lists(free.result)]
    assert lists(ended.result) == [ids for ids, _, _ in wanted]
    assert ended.texts == [text for _, text, _ in wanted]
    check_counts(ended.result)


def test_pad_token_that_is_the_end_token_changes_no_text(pair):
    tokenizer = copy.deepcopy(pair.tokenizer)
    tokenizer.pad_token = tokenizer.eos_token
    same = replace(pair, tokenizer=tokenizer)
    assert tokenizer.pad_token_id in same.eos_ids
    assert complete(same).texts == complete(pair).texts
    assert "eos" in complete(same, max_new_tokens=60).result.end_reasons
