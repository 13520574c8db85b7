"""Argument checks name the argument and what it held."""

import math

import pytest
import torch

from diversed.core.checks import (
    check_at_least_one,
    check_same_shape,
    check_shape,
    check_unit_interval,
)


def test_shapes_are_compared_size_by_size():
    check_shape("logits", torch.zeros(2, 3, 4), (2, None, 4))
    for wrong in ((2, 3), (2, 3, 5), (2, 3, 4, 1)):
        with pytest.raises(ValueError, match=r"logits has shape \(2, 3, 4\)"):
            check_shape("logits", torch.zeros(2, 3, 4), wrong)


def test_two_shapes_must_agree():
    check_same_shape("p", torch.zeros(2), "q", torch.ones(2))
    with pytest.raises(ValueError, match=r"p has shape \(2,\), q has \(3,\)"):
        check_same_shape("p", torch.zeros(2), "q", torch.ones(3))


def test_counts_below_one_are_refused():
    check_at_least_one("decoding.draft_length", 1)
    with pytest.raises(ValueError, match=r"^decoding\.draft_length=0: must be at least 1$"):
        check_at_least_one("decoding.draft_length", 0)


@pytest.mark.parametrize("value", [-1e-9, 1 + 1e-9, math.nan, math.inf])
def test_values_outside_the_unit_interval_are_refused(value):
    check_unit_interval("verifier.weight", 0.0)
    check_unit_interval("verifier.weight", 1.0)
    with pytest.raises(ValueError, match=r"verifier\.weight="):
        check_unit_interval("verifier.weight", value)
