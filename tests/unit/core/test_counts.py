"""Counts and rates of a trace that was written by hand."""

import math

import pytest
import torch

from diversed.core.counts import (
    acceptance_rate,
    acceptance_rate_at,
    block_efficiency,
    count_trace,
    mean_accepted,
    token_acceptance_rate,
)
from diversed.core.types import Status, Trace

A, R, U = Status.ACCEPTED, Status.REJECTED, Status.UNJUDGED
REC, BONUS = Status.RECOVERED, Status.BONUS
NAN = math.nan

# (row, block, block position, status, q); N = 3
ENTRIES = [
    # row 0: a block accepted whole with the verifier's bonus, then one rejected at once
    (0, 0, 0, A, 0.5), (0, 0, 1, A, 0.5), (0, 0, 2, A, 0.5), (0, 0, 3, BONUS, 0.5),
    (0, 1, 0, R, 0.5), (0, 1, 1, U, 0.5), (0, 1, 2, U, 0.5), (0, 1, 0, REC, 0.5),
    # row 1: one accepted, one rejected, one unjudged, then two accepted up to the cap
    (1, 0, 0, A, 0.5), (1, 0, 1, R, 0.5), (1, 0, 2, U, 0.5), (1, 0, 1, REC, 0.5),
    (1, 1, 0, A, 0.5), (1, 1, 1, A, 0.5),
    # row 2: plain decoding
    (2, 0, 0, BONUS, NAN), (2, 1, 0, BONUS, NAN), (2, 2, 0, BONUS, NAN),
]  # fmt: skip


def make_trace(entries):
    row, block, column, status, draft_prob = (
        torch.tensor(values) for values in zip(*entries, strict=True)
    )
    some = torch.zeros(len(entries))
    return Trace(
        row=row,
        block=block,
        position=torch.zeros_like(row),
        block_position=column,
        token_id=torch.zeros_like(row),
        status=status,
        target_prob=some,
        draft_prob=draft_prob,
        tv_distance=some,
        target_weight=some,
        accept_prob=some,
        expected_acceptance=some,
        draft_hidden=None,
        target_hidden=None,
        features=None,
    )


@pytest.mark.parametrize("order", ["as decoded", "by row backwards"])
def test_hand_made_trace_has_the_counts_that_one_reads_off(order):
    entries = ENTRIES if order == "as decoded" else ENTRIES[::-1]
    counts = count_trace(make_trace(entries), batch_size=4, draft_length=3)
    assert counts.drafted.tolist() == [6, 5, 0, 0]
    assert counts.judged.tolist() == [4, 4, 0, 0]
    assert counts.accepted.tolist() == [3, 3, 0, 0]
    assert counts.recovered.tolist() == [1, 1, 0, 0]
    assert counts.bonus.tolist() == [1, 0, 3, 0]
    assert counts.emitted.tolist() == [5, 4, 3, 0]
    assert counts.blocks.tolist() == [2, 2, 3, 0]
    assert counts.draft_calls.tolist() == [7, 5, 0, 0]  # the verifier's bonus needs one
    assert counts.drafted_at.tolist() == [[2, 2, 2], [2, 2, 1], [0, 0, 0], [0, 0, 0]]
    assert counts.judged_at.tolist() == [[2, 1, 1], [2, 2, 0], [0, 0, 0], [0, 0, 0]]
    assert counts.accepted_at.tolist() == [[1, 1, 1], [2, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert all(tensor.dtype == torch.long for tensor in vars(counts).values())


def test_rates_are_ratios_of_sums():
    counts = count_trace(make_trace(ENTRIES), batch_size=3, draft_length=3)
    assert acceptance_rate(counts) == 6 / 11
    assert token_acceptance_rate(counts) == 6 / 8
    assert block_efficiency(counts) == 12 / 7
    assert mean_accepted(counts) == 6 / 7
    assert acceptance_rate_at(counts) == [3 / 4, 2 / 3, 1.0]


def test_target_bonus_needs_no_draft_call_and_plain_decoding_has_no_rate():
    counts = count_trace(make_trace([(0, 0, 0, BONUS, NAN)]), batch_size=1, draft_length=2)
    assert counts.draft_calls.tolist() == [0]
    assert math.isnan(acceptance_rate(counts))
    assert math.isnan(token_acceptance_rate(counts))
    assert all(map(math.isnan, acceptance_rate_at(counts)))
    assert block_efficiency(counts) == 1


def test_emitted_entries_are_accepted_recovered_and_bonus():
    trace = make_trace(ENTRIES)
    wanted = [status in (A, REC, BONUS) for _, _, _, status, _ in ENTRIES]
    assert trace.is_emitted.tolist() == wanted
