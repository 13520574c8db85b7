"""Judging a block from left to right."""

import pytest
import torch

from diversed.core.types import Status
from diversed.core.verify import draft_status, stochastic_accepts, verify_block

A, R, U = Status.ACCEPTED, Status.REJECTED, Status.UNJUDGED


@pytest.mark.parametrize(
    ("passes", "num_drafted", "num_accepted", "status"),
    [
        ([1, 1, 1], 3, 3, [A, A, A]),
        ([0, 1, 1], 3, 0, [R, U, U]),
        ([1, 0, 1], 3, 1, [A, R, U]),
        ([1, 1, 0], 3, 2, [A, A, R]),
        ([0, 0, 0], 3, 0, [R, U, U]),
        ([1, 1, 1], 2, 2, [A, A, -1]),  # a shorter draft in a wider batch
        ([1, 1, 0], 2, 2, [A, A, -1]),
        ([0, 1, 1], 1, 0, [R, -1, -1]),
        ([1, 1, 1], 0, 0, [-1, -1, -1]),
    ],
)
def test_block_is_accepted_up_to_the_first_failure(passes, num_drafted, num_accepted, status):
    got = verify_block(torch.tensor([passes]).bool(), torch.tensor([num_drafted]))
    assert got.tolist() == [num_accepted]
    shape = torch.ones(3, dtype=torch.long)
    got = draft_status(torch.arange(3), num_accepted * shape, num_drafted * shape)
    assert got.tolist() == status


def test_rows_are_judged_on_their_own(generator):
    passes = torch.rand(64, 5, generator=generator) < 0.7
    num_drafted = torch.randint(0, 6, (64,), generator=generator)
    together = verify_block(passes, num_drafted)
    for row in range(64):
        alone = verify_block(passes[row : row + 1], num_drafted[row : row + 1])
        assert torch.equal(alone[0], together[row])


def test_block_without_a_draft_accepts_nothing():
    got = verify_block(torch.zeros(2, 0, dtype=torch.bool), torch.zeros(2, dtype=torch.long))
    assert got.tolist() == [0, 0]


def test_row_counts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"num_draft_tokens has shape \(3,\), expected \(2,\)"):
        verify_block(torch.ones(2, 4, dtype=torch.bool), torch.zeros(3, dtype=torch.long))


def test_probability_one_always_passes_and_zero_never():
    nearly_one, nearly_zero = 1 - 2.0**-24, 2.0**-54
    uniforms = torch.tensor([[nearly_one, nearly_zero, 0.5, 0.5]])
    accept_probs = torch.tensor([[1.0, 0.0, 0.5001, 0.4999]])
    assert stochastic_accepts(accept_probs, uniforms).tolist() == [[True, False, True, False]]


def test_uniforms_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"accept_probs has shape \(1, 2\), uniforms has \(1, 3\)"):
        stochastic_accepts(torch.ones(1, 2), torch.ones(1, 3))
