"""Blocks of a trace by hand, estimate and count from them, and the clustered standard error."""

import numpy as np
import pytest

from diversed.theory.blocks import (
    DraftedBlocks,
    agreement_z,
    count_survival,
    drafted_blocks,
    estimate_survival,
)

NAN = np.nan
# prompt, sample, block, block_position, is_accepted, accept_prob
ENTRIES = [
    ("a", 0, 0, 0, True, 0.8),
    ("a", 0, 0, 1, False, 0.5),
    ("a", 0, 0, 2, False, 0.9),  # unjudged
    ("a", 0, 0, 1, False, NAN),  # recovered
    ("a", 0, 1, 0, True, 1.0),
    ("a", 0, 1, 1, True, 0.5),  # a drafted end: two tokens of three
    ("a", 1, 0, 0, True, 0.6),  # the room is one token
    ("b", 0, 0, 0, False, 0.1),
    ("b", 0, 0, 1, False, 0.2),
    ("b", 0, 0, 2, False, 0.3),
    ("b", 0, 0, 0, False, NAN),
    ("b", 0, 1, 0, False, NAN),  # a bonus token alone
]
NAMES = ("prompt", "sample", "block", "block_position", "is_accepted", "accept_prob")


def columns(entries):
    return dict(
        zip(NAMES, (np.array(column) for column in zip(*entries, strict=True)), strict=True)
    )


BLOCKS = drafted_blocks(**columns(ENTRIES), draft_length=3)


def test_blocks_of_a_trace_worked_by_hand():
    assert BLOCKS.prompt.tolist() == [0, 0, 0, 1, 1]
    assert BLOCKS.num_drafted.tolist() == [3, 2, 1, 3, 0]
    assert BLOCKS.num_accepted.tolist() == [1, 2, 1, 0, 0]
    expected = [[0.8, 0.4, 0.36], [1, 0.5, 0], [0.6, 0, 0], [0.1, 0.02, 0.006], [0, 0, 0]]
    np.testing.assert_allclose(BLOCKS.products, expected, atol=1e-15)


def test_order_of_the_entries_does_not_matter():
    shuffled = drafted_blocks(**columns(ENTRIES[::-1]), draft_length=3)
    for name in ("prompt", "num_drafted", "num_accepted", "products"):
        np.testing.assert_array_equal(getattr(shuffled, name), getattr(BLOCKS, name))


def test_estimate_is_the_mean_over_blocks_as_decoded():
    estimate = estimate_survival(BLOCKS)
    np.testing.assert_allclose(estimate.survival, [2.5 / 5, 0.92 / 5, 0.366 / 5])
    assert estimate.mean == pytest.approx((2.5 + 0.92 + 0.366) / 5)
    assert (estimate.num_blocks, estimate.num_prompts) == (5, 2)
    # of the second token over the blocks that drafted it, weighted by how probably it is judged
    np.testing.assert_allclose(estimate.acceptance_at, [2.5 / 4, 0.92 / 1.9, 0.366 / 0.42])


def test_count_is_the_frequency_over_blocks_as_decoded():
    count = count_survival(BLOCKS)
    np.testing.assert_allclose(count.survival, [3 / 5, 1 / 5, 0])
    assert count.mean == pytest.approx(4 / 5)
    np.testing.assert_allclose(count.acceptance_at, [3 / 4, 1 / 2, np.nan])  # accepted / judged


def test_full_blocks_are_those_that_drafted_everything():
    full = BLOCKS.full()
    assert full.num_drafted.tolist() == [3, 3]
    np.testing.assert_allclose(estimate_survival(full).survival, [0.45, 0.21, 0.183])
    with pytest.raises(ValueError, match="none of 5 blocks is left"):
        BLOCKS.where(BLOCKS.num_drafted == 7)


def test_position_that_no_block_judged_has_no_acceptance():
    entries = [("a", 0, 0, 0, False, 0.5), ("b", 0, 0, 0, True, 0.5)]
    blocks = drafted_blocks(**columns(entries), draft_length=2)
    assert np.isnan(estimate_survival(blocks).acceptance_at[1])
    assert np.isnan(count_survival(blocks).acceptance_at_se[1])
    assert count_survival(blocks).survival.tolist() == [0.5, 0]


def test_agreement_is_measured_in_clustered_standard_errors():
    gaps = [(1 + 2 + 1) - (1.56 + 1.5 + 0.6), -0.126]  # accepted less expected, per prompt
    assert agreement_z(BLOCKS) == pytest.approx(sum(gaps) / np.hypot(*gaps))
    certain = drafted_blocks(**columns([("a", 0, 0, 0, True, 1.0)]), draft_length=1)
    assert agreement_z(certain) == 0


def test_rounding_of_fp32_is_no_disagreement():
    """Two equal models: every token passes with 1 - 6e-8, which used to add up to a z of 10."""
    entries = [(prompt, 0, 0, 0, True, np.float32(1) - np.float32(6e-8)) for prompt in range(100)]
    assert agreement_z(drafted_blocks(**columns(entries), draft_length=1)) == 0


def random_blocks(generator, num_prompts=60, num_blocks=12):
    """Return blocks whose acceptance is alike within a prompt and differs between prompts."""
    level = generator.beta(2, 2, num_prompts).repeat(num_blocks)
    accept = np.clip(level[:, None] + generator.uniform(-0.1, 0.1, (level.size, 3)), 0, 1)
    passes = generator.random(accept.shape) < accept
    return DraftedBlocks(
        prompt=np.arange(num_prompts).repeat(num_blocks),
        num_drafted=np.full(level.size, 3),
        num_accepted=passes.cumprod(1).sum(1),
        products=accept.cumprod(1),
    )


@pytest.mark.parametrize("measure", [estimate_survival, count_survival])
def test_standard_errors_are_the_spread_over_data_sets(measure):
    """400 data sets, seed 0: a spread is known to 3.5 %, a ratio off by 20 % is over 5 sd away.

    The mutant takes every block as a prompt of its own: 2.5 times too small here.
    """
    generator = np.random.default_rng(0)
    sets = [random_blocks(generator) for _ in range(400)]
    found = [measure(blocks) for blocks in sets]
    unclustered = [
        measure(
            DraftedBlocks(np.arange(720), blocks.num_drafted, blocks.num_accepted, blocks.products)
        )
        for blocks in sets
    ]
    for value, error in (
        ("mean", "mean_se"),
        ("survival", "survival_se"),
        ("acceptance_at", "acceptance_at_se"),
    ):
        spread = np.std([getattr(each, value) for each in found], axis=0)
        stated = np.mean([getattr(each, error) for each in found], axis=0)
        np.testing.assert_allclose(stated, spread, rtol=0.2)
        mutant = np.mean([getattr(each, error) for each in unclustered], axis=0)
        assert (mutant < 0.8 * spread).all()


def test_one_prompt_has_no_standard_error():
    blocks = BLOCKS.where(BLOCKS.prompt == 1)
    estimate = estimate_survival(blocks)
    assert np.isnan(estimate.mean_se)
    assert np.isnan(estimate.survival_se).all()
    assert estimate.num_prompts == 1
    assert estimate.survival[0] == pytest.approx(0.05)


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (ENTRIES + ENTRIES[:3], "two drafted tokens stand at one position"),
        ([*ENTRIES, ("b", 0, 2, 1, False, 0.5)], "drafted tokens of a block do not begin"),
        ([*ENTRIES[:7], ("b", 0, 0, 0, False, 0.5), ("b", 0, 0, 1, True, 0.5)], "accepted tokens"),
        ([("a", 0, 0, 0, True, NAN), *ENTRIES[1:3]], "NaN for an accepted token"),
        ([("a", 0, 0, 0, False, NAN)], "the run drafted nothing"),
        ([("a", 0, 0, 0, False, 1.5)], r"must lie in \[0, 1\], got values in \[1.5, 1.5\]"),
        ([("a", 0, 0, 3, False, 0.5)], "draft_length=3: .* block positions 3 to 3"),
    ],
)
def test_entries_that_are_not_one_run_are_refused(entries, message):
    with pytest.raises(ValueError, match=message):
        drafted_blocks(**columns(entries), draft_length=3)


def test_columns_of_different_length_are_refused():
    uneven = columns(ENTRIES) | {"accept_prob": np.zeros(3)}
    with pytest.raises(ValueError, match=r"share one shape \[E\], got"):
        drafted_blocks(**uneven, draft_length=3)
