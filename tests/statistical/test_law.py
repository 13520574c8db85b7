"""Sampled completions of every rule against their enumerated law.

One test is a chi-square over whole completions of `NUM_TOKENS` tokens from one prompt and their
numbers of blocks, `NUM_ROWS` rows in one batch (see `laws.p_value`). Null: the rows follow the
enumerated law, made from a second statement of each rule. A completion of probability 0 fails at
once. False-alarm probability 1e-6 per test, fixed seeds. test_law_mutants.py shows what it sees.
"""

import functools
import itertools
from dataclasses import replace

import pytest
import torch
from laws import (
    BONUS_MODES,
    DRAFT,
    DRAFT_LENGTHS,
    END_IDS,
    FALSE_ALARM,
    FILTERS,
    GRID,
    NUM_ROWS,
    PROMPT,
    TARGET,
    TEMPERATURES,
    VARIANTS,
    Case,
    block_law,
    enumerated_law,
    of_texts,
    outcomes,
    p_value,
    product_law,
    sample,
    summary,
    text_p_value,
    tree,
)
from table_lm import left_pad

from diversed.core.loop import autoregressive_decode, speculative_decode
from diversed.core.probs import Sampling
from diversed.core.verifiers import VERIFIERS

pytestmark = pytest.mark.statistical

CASES = [
    Case(
        variant,
        DRAFT_LENGTHS[j],
        Sampling(TEMPERATURES[(i + j) % 3], **FILTERS[(2 * i + j) % 3]),
        BONUS_MODES[(i + j) % 2],
    )
    for i, variant in enumerate(VARIANTS)
    for j in range(3)
]
END_CASES = [
    Case(variant, 3, Sampling(), bonus, eos_ids=END_IDS)
    for variant in ("static0.3", "lenient-scaled", "token_v3", "fuzzy-kl")
    for bonus in BONUS_MODES
]
WHOLE_GRID = [
    Case(variant, draft_length, sampling, bonus)
    for variant, draft_length, sampling, bonus in itertools.product(
        VARIANTS, DRAFT_LENGTHS, GRID, BONUS_MODES
    )
]

cached_summary = functools.cache(summary)


# --- what is tested -------------------------------------------------------------------------------


def test_every_rule_and_every_setting_that_is_a_choice_has_a_variant():
    names = {name for name, _ in VARIANTS.values()}
    assert names | {"autoregressive"} == set(VERIFIERS)
    for key, choices in {
        "rule": {"chow", "diff", "opt", "token_v1", "token_v2", "token_v3"},
        "divergence": {"js", "kl", "tv"},
    }.items():
        assert {chosen[key] for _, chosen in VARIANTS.values() if key in chosen} == choices


def test_cases_cover_every_pair_of_settings():
    def factors(case):
        sampling = case.sampling
        kept = next(f for f in FILTERS if Sampling(sampling.temperature, **f) == sampling)
        return case.variant, case.draft_length, sampling.temperature, kept, case.bonus

    levels = (VARIANTS, DRAFT_LENGTHS, TEMPERATURES, FILTERS, BONUS_MODES)
    seen = list(map(factors, CASES))
    for one, other in itertools.combinations(range(5), 2):
        for pair in itertools.product(levels[one], levels[other]):
            assert any((f[one], f[other]) == pair for f in seen), pair


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("eos_ids", [(), END_IDS])
def test_enumeration_by_blocks_is_the_product_of_emitted_laws(variant, eos_ids):
    """With the verifier's bonus token block boundaries leave no trace; no sampling."""
    for draft_length, sampling in zip(DRAFT_LENGTHS, GRID[::4], strict=True):
        case = Case(variant, draft_length, sampling, "verifier", eos_ids)
        by_block = of_texts(enumerated_law(case))
        by_token = of_texts(product_law(tree(case), eos_ids))
        assert sum(by_token.values()) == pytest.approx(1, abs=1e-12)
        for text in by_token.keys() | by_block.keys():
            assert by_block.get(text, 0) == pytest.approx(by_token.get(text, 0), abs=1e-13)
        with_target = replace(case, bonus="target")
        of_target = block_law(tree(with_target), draft_length, "target", eos_ids)
        assert sum(of_target.values()) == pytest.approx(1, abs=1e-12)


# --- the law --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES + END_CASES, ids=str)
def test_completions_follow_the_enumerated_law(case):
    """Null: the enumerated law; n = 4000; chi-square, false alarm 1e-6; seed 0."""
    assert cached_summary(case).law > FALSE_ALARM
    assert 0.05 < cached_summary(case).token_acceptance_rate < 0.95  # both answers are tried


@pytest.mark.parametrize("case", CASES, ids=str)
def test_counted_acceptance_agrees_with_the_trace(case):
    """Null: accepted with the stated probability; n = 4000 rows as clusters; z, seed 0.

    False alarm 1e-6 each for the mean of `expected_acceptance` and of `accept_prob`.
    """
    for column, value in cached_summary(case).acceptance.items():
        assert value > FALSE_ALARM, column


@pytest.mark.slow
@pytest.mark.parametrize("case", WHOLE_GRID, ids=str)
def test_completions_follow_the_enumerated_law_on_the_whole_grid(case):
    """Both tests above; n = 4000; false alarm 1e-6 each; seed 1."""
    found = summary(case, seed=1)
    assert found.law > FALSE_ALARM
    assert min(found.acceptance.values()) > FALSE_ALARM
    assert 0.05 < found.token_acceptance_rate < 0.95


@pytest.mark.parametrize("sampling", GRID, ids=str)
@pytest.mark.parametrize("eos_ids", [(), END_IDS])
def test_plain_decoding_follows_the_targets_law(sampling, eos_ids):
    """Null: product of p_t; n = 4000; chi-square, false alarm 1e-6; seed 0."""
    case = Case("lossless", 3, sampling, "target", eos_ids)
    ids, mask = left_pad([PROMPT] * NUM_ROWS)
    result = autoregressive_decode(TARGET, ids, mask, torch.arange(NUM_ROWS), case.settings())
    law = of_texts(product_law(tree(case), eos_ids, next_law="bonus"))
    assert text_p_value([text for text, _ in outcomes(result)], law) > FALSE_ALARM


@pytest.mark.parametrize("variant", ["static0.3", "lenient", "opt", "typical"])
@pytest.mark.parametrize("bonus", BONUS_MODES)
def test_law_holds_where_rows_with_other_prompts_share_the_batch(variant, bonus):
    """Null: the enumerated law of one prompt; n = 4000; chi-square, false alarm 1e-6; seed 1.

    Every second row has a prompt of one token, which fails at once in the first block now and then.
    """
    case = Case(variant, 3, bonus=bonus)
    ids, mask = left_pad([PROMPT, [0]] * NUM_ROWS)
    keys = torch.arange(2 * NUM_ROWS)
    result = speculative_decode(TARGET, DRAFT, case.verifier(), ids, mask, keys, case.settings(1))
    assert p_value(outcomes(result)[::2], enumerated_law(case)) > FALSE_ALARM


# --- the laws are different -----------------------------------------------------------------------

APART = ((3, Sampling(), "target"), (5, Sampling(2.0, top_k=3), "target"))


@functools.cache
def drawn_apart(variant):
    """Return samples and laws of a variant under each of `APART`."""
    cases = [Case(variant, *rest) for rest in APART]
    return [outcomes(sample(case)) for case in cases], [enumerated_law(case) for case in cases]


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_rule_passes_for_another(variant):
    """n = 4000, seed 0: under one of two settings at least, each other rule's law is rejected."""
    samples, _ = drawn_apart(variant)
    for other in VARIANTS:
        _, laws = drawn_apart(other)
        worst = min(p_value(rows, law) for rows, law in zip(samples, laws, strict=True))
        assert (worst > FALSE_ALARM) == (other == variant), other


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "lossless"])
def test_the_two_bonus_modes_of_a_lossy_rule_have_different_laws(variant):
    """n = 2000, seed 0: the completions of each mode are rejected under the law of the other."""
    modes = [Case(variant, 1, bonus=bonus) for bonus in BONUS_MODES]
    for case, other in itertools.permutations(modes):
        texts = [text for text, _ in outcomes(sample(case, num_rows=2000))]
        assert text_p_value(texts, of_texts(enumerated_law(other))) < FALSE_ALARM


def test_the_two_bonus_modes_of_the_lossless_rule_have_one_law():
    """Null: product of p_t; n = 4000; chi-square, false alarm 1e-6; seed 0."""
    for bonus in BONUS_MODES:
        case = Case("lossless", 1, bonus=bonus)
        law = of_texts(product_law(tree(case), next_law="bonus"))
        assert text_p_value([text for text, _ in outcomes(sample(case))], law) > FALSE_ALARM
