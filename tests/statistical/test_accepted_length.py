"""Enumerated, estimated and counted accepted tokens of a block, on table models and the tiny pair.

One joint test is four: the counted first blocks against the enumerated law of T (chi-square); the
counted frequencies of T >= k over all blocks against enumeration; the Rao-Blackwellised estimates
of the same; and counts against estimates (all z, rows as clusters). All blocks means also those
that ends and the room made shorter than N. Null: tokens pass as enumerated and as recorded;
`NUM_ROWS` rows; false-alarm probability 1e-6 for the four together; seed 0.
"""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from laws import (
    END_IDS,
    FALSE_ALARM,
    NUM_ROWS,
    NUM_TOKENS,
    PROMPT,
    TARGET,
    VARIANTS,
    VOCAB_SIZE,
    Case,
    position,
    sample,
    tree,
)
from restated_rules import answer, emitted
from scipy.stats import chi2, norm
from table_lm import TableLM, left_pad

from diversed.core import loop
from diversed.core.counts import acceptance_rate_at, mean_accepted
from diversed.core.loop import DecodeSettings, speculative_decode
from diversed.core.probs import Sampling
from diversed.core.types import Status
from diversed.core.verifiers import LosslessVerifier, StaticVerifier
from diversed.generation import SpeculativeDecoder, head_verifier
from diversed.models.head import EnsembleHead
from diversed.models.loading import load_tiny_pair
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.theory import accepted_length
from diversed.theory.accepted_length import (
    accepted_length_law,
    expected_accepted_length,
    iid_accepted_length,
    survival_of_law,
    survival_of_rule,
)
from diversed.theory.blocks import (
    agreement_z,
    count_survival,
    drafted_blocks,
    estimate_survival,
    trace_blocks,
)

pytestmark = pytest.mark.statistical

WITHOUT_LAW = ("typical", "fuzzy-js", "fuzzy-kl", "fuzzy-tv", "margin")
CASES = [
    Case("lossless"),
    Case("static0.3", 5, bonus="target"),
    Case("static0.7", 5, Sampling(2.0, top_p=0.85)),
    Case("diversed", eos_ids=END_IDS),
    Case("lenient", 1, Sampling(0.5), "target"),
    Case("token_v1", 5, eos_ids=END_IDS),
    Case("typical", 3, bonus="target"),
    Case("fuzzy-js", 5),
]


# --- enumeration ----------------------------------------------------------------------------------


def rule_tables(case):
    """Return context -> q, context -> acceptance of each token, context -> pi."""
    name, settings = VARIANTS[case.variant]

    @functools.cache
    def at(context):
        here = position(context, case.sampling)
        accepts, left = answer(name, here, **settings)
        return here.q, np.where(here.q > 0, accepts, 1), emitted(here.q, accepts, left)

    def table(index):
        return lambda tokens: at(TARGET.context(list(tokens)))[index]

    return table(0), table(1), table(2)


def enumerated_survival(case, generated, length):
    draft_law, accepts, _ = rule_tables(case)
    start = [*PROMPT, *generated]
    return survival_of_rule(draft_law, accepts, length, start=start, end_ids=case.eos_ids)


def blocks_by_start(case):
    """Yield (mass that survives k tokens, k = 1..n) of the blocks that start after t tokens.

    The mass of the block starts is the other output; both come from the rule's own equations,
    passed forward from block to block.
    """
    levels = tree(case)
    spare = 0 if case.bonus == "verifier" else 1
    starts = [np.zeros(VOCAB_SIZE**t) for t in range(NUM_TOKENS + 1)]
    starts[0][0] = 1
    for t in range(NUM_TOKENS):
        alive, survived = starts[t], []
        length = min(case.draft_length, NUM_TOKENS - t - spare)
        for j in range(length):
            step = levels[t + j]
            starts[t + j + 1] += going_on(case, alive[:, None] * step.recovered)
            passed = alive[:, None] * step.accepted
            survived.append(passed.sum())
            alive = going_on(case, passed)
        if t + length < NUM_TOKENS:
            starts[t + length + 1] += going_on(case, alive[:, None] * levels[t + length].bonus)
        yield starts[t], survived


def going_on(case, mass):
    """Return the mass [S * V] of sequences after one more token, without those that ended."""
    is_end = np.isin(np.arange(VOCAB_SIZE), case.eos_ids)
    return np.where(is_end, 0, mass).ravel()


@functools.cache
def enumerated(case):
    """Return P(T >= k), k = 1..N, over all blocks of a completion: expected blocks of either kind.

    The blocks' starts and their mass come from `blocks_by_start`, their survival from the functions
    under test.
    """
    spare = 0 if case.bonus == "verifier" else 1
    total, num_blocks = np.zeros(case.draft_length), 0.0
    for t, (masses, _) in enumerate(blocks_by_start(case)):
        num_blocks += masses.sum()
        length = min(case.draft_length, NUM_TOKENS - t - spare)
        for code in np.flatnonzero(masses) if length else ():
            generated = [int(d) for d in np.base_repr(code, VOCAB_SIZE).zfill(t)] if t else []
            total[:length] += masses[code] * enumerated_survival(case, generated, length)
    return total / num_blocks


@pytest.mark.parametrize("case", CASES, ids=str)
def test_enumeration_from_every_block_start_is_what_passes_forward(case):
    """No sampling: sums over drafts from each start against one pass over the whole tree."""
    total, num_blocks = np.zeros(case.draft_length), 0.0
    for masses, survived in blocks_by_start(case):
        num_blocks += masses.sum()
        total[: len(survived)] += survived
    np.testing.assert_allclose(enumerated(case), total / num_blocks, rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
def test_rule_with_a_law_accepts_with_min_q_pi(variant):
    """Enumeration by pi and by acceptance agree where the rule runs towards pi, not elsewhere."""
    draft_law, accepts, verify_law = rule_tables(Case(variant))
    by_law = survival_of_law(draft_law, verify_law, 3, start=PROMPT)
    by_rule = survival_of_rule(draft_law, accepts, 3, start=PROMPT)
    assert (by_rule <= by_law + 1e-12).all()
    if variant not in WITHOUT_LAW:
        np.testing.assert_allclose(by_rule, by_law, rtol=0, atol=1e-12)


# --- enumeration, estimate and counts -------------------------------------------------------------


def chi_square(counts, law):
    """Return the tail probability of counts of T; cells of expected count below 10 are merged."""
    if counts[law == 0].any():
        return 0.0
    expected = law * counts.sum()
    is_small = expected < 10
    seen = np.append(counts[~is_small], counts[is_small].sum())
    expected = np.append(expected[~is_small], expected[is_small].sum())
    seen, expected = seen[expected > 0], expected[expected > 0]
    return float(chi2.sf(((seen - expected) ** 2 / expected).sum(), max(expected.size - 1, 1)))


def z_test(estimate, exact):
    """Return the p-value of P(T >= k), k = 1..N, and E[T], with Bonferroni over the N + 1."""
    found = np.append(estimate.survival, estimate.mean)
    errors = np.append(estimate.survival_se, estimate.mean_se)
    gap = np.abs(found - np.append(exact, exact.sum()))
    z = np.divide(gap, errors, out=np.where(gap < 1e-6, 0.0, np.inf), where=errors > 1e-9)
    return min(1.0, found.size * float(2 * norm.sf(z.max())))


def joint_p_value(case, trace, exact=None):
    """Return the smallest of the four p-values times four."""
    exact = enumerated(case) if exact is None else exact
    blocks = trace_blocks([trace], case.draft_length)
    is_first = (trace.block == 0) & (trace.status == Status.ACCEPTED)
    first = torch.bincount(trace.row[is_first], minlength=NUM_ROWS).numpy()
    length = min(case.draft_length, NUM_TOKENS - (case.bonus == "target"))
    law = accepted_length_law(enumerated_survival(case, [], length))
    p_values = [
        chi_square(np.bincount(first, minlength=length + 1), law),
        z_test(count_survival(blocks), exact),
        z_test(estimate_survival(blocks), exact),
        float(2 * norm.sf(abs(agreement_z(blocks)))),
    ]
    return 4 * min(p_values)


@functools.cache
def shipped_trace(case):
    return sample(case).trace


@pytest.mark.parametrize("case", CASES, ids=str)
def test_enumeration_estimate_and_counts_agree(case):
    """Null, sample size and false-alarm probability: see the module."""
    assert joint_p_value(case, shipped_trace(case)) > FALSE_ALARM


@pytest.mark.parametrize("case", CASES, ids=str)
def test_counts_of_blocks_are_the_counts_of_the_run(case):
    result = sample(case, num_rows=300)
    blocks = trace_blocks([result.trace], case.draft_length)
    count = count_survival(blocks)
    assert count.num_blocks == int(result.counts.blocks.sum())
    assert count.num_prompts == 300
    assert count.mean == pytest.approx(mean_accepted(result.counts), abs=1e-12)
    expected = acceptance_rate_at(result.counts)
    np.testing.assert_allclose(count.acceptance_at, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", CASES[:5], ids=str)  # the others leave little to chance
def test_estimate_is_less_noisy_than_the_count(case):
    blocks = trace_blocks([shipped_trace(case)], case.draft_length)
    estimate, count = estimate_survival(blocks), count_survival(blocks)
    assert estimate.mean_se < 0.95 * count.mean_se


def accept_less(monkeypatch, by=0.05):
    """Let tokens pass less often than recorded."""
    shipped = loop.stochastic_accepts
    monkeypatch.setattr(
        loop, "stochastic_accepts", lambda probs, uniforms: shipped(probs - by, uniforms)
    )


def overstate_acceptance(monkeypatch):
    """Enumerate with a slightly higher acceptance of every token."""
    shipped = accepted_length._checked_accepts
    monkeypatch.setattr(
        accepted_length, "_checked_accepts", lambda *arguments: shipped(*arguments) ** 0.8
    )


@pytest.mark.parametrize("fault", [accept_less, overstate_acceptance])
@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_fault_in_a_shipped_function_is_rejected(monkeypatch, fault, case):
    """The same joint test, accepted as shipped."""
    exact = enumerated(case)
    fault(monkeypatch)
    if fault is overstate_acceptance:
        exact = enumerated.__wrapped__(case)
    assert joint_p_value(case, sample(case).trace, exact) < FALSE_ALARM


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_trace_without_its_unjudged_tokens_is_rejected(case):
    """The estimate needs every drafted token: without those behind a rejection it is too low."""
    trace = shipped_trace(case)
    is_unjudged = trace.status == Status.UNJUDGED
    accept_prob = trace.accept_prob.masked_fill(is_unjudged, torch.nan)
    assert joint_p_value(case, replace(trace, accept_prob=accept_prob)) < FALSE_ALARM


def test_ends_matter_to_the_enumeration():
    case = CASES[3]
    endless = replace(case, eos_ids=())
    assert joint_p_value(case, shipped_trace(case), enumerated(endless)) < FALSE_ALARM


# --- where i.i.d. fails ---------------------------------------------------------------------------


def passage_pair():
    """Return q and p that agree in easy passages (tokens 0 and 1) and hardly in hard ones (2, 3).

    The prompt [3, 0] is no part of either: both models choose a passage with probability 1/2.
    """
    laws = {model: np.zeros((16, 4)) for model in ("draft", "target")}
    for context in range(16):
        is_easy = context % 4 < 2
        laws["draft"][context] = [0.5, 0.5, 0, 0] if is_easy else [0, 0, 0.9, 0.1]
        laws["target"][context] = [0.5, 0.5, 0, 0] if is_easy else [0, 0, 0.1, 0.9]
    laws["draft"][12] = [0.25, 0.25, 0.45, 0.05]
    laws["target"][12] = [0.25, 0.25, 0.05, 0.45]
    return {name: TableLM(4, 0, table=torch.tensor(law).log()) for name, law in laws.items()}


def first_blocks(trace, draft_length):
    """Return every row's first block."""
    is_first = trace.block == 0
    columns = {
        name: getattr(trace, name)[is_first].numpy()
        for name in ("row", "block", "block_position", "status", "accept_prob")
    }
    return drafted_blocks(
        prompt=columns["row"],
        sample=np.zeros_like(columns["row"]),
        block=columns["block"],
        block_position=columns["block_position"],
        is_accepted=columns["status"] == Status.ACCEPTED,
        accept_prob=columns["accept_prob"],
        draft_length=draft_length,
    )


def test_iid_is_off_by_more_than_a_tenth_where_enumeration_and_estimate_are_right():
    """First blocks of 4000 rows, N = 5, z-tests with false alarm 1e-6 each, seed 0.

    The i.i.d. formula is given the counted rate per judged token.
    """
    models = passage_pair()
    ids, mask = left_pad([[3, 0]] * 4000)
    rows = torch.arange(4000)
    settings = DecodeSettings(max_new_tokens=6, draft_length=5)
    result = speculative_decode(
        models["target"], models["draft"], LosslessVerifier(), ids, mask, rows, settings
    )
    exact = survival_of_law(models["draft"].probs, models["target"].probs, 5, start=[3, 0])
    blocks = first_blocks(result.trace, 5)
    count = count_survival(blocks)
    assert z_test(estimate_survival(blocks), exact) > FALSE_ALARM
    assert z_test(count, exact) > FALSE_ALARM
    num_judged = (blocks.num_accepted + (blocks.num_accepted < blocks.num_drafted)).sum()
    iid = iid_accepted_length(blocks.num_accepted.sum() / num_judged, 5)
    assert iid > 1.1 * expected_accepted_length(exact)
    assert iid > count.mean + 5 * count.mean_se


# --- the tiny pair --------------------------------------------------------------------------------

NUM_PROMPTS = 96


def random_head(pair):
    """Return a head whose weight varies from token to token."""
    sizes = [pair.description[role]["hidden_size"] for role in ("draft", "target")]
    head = EnsembleHead(*sizes, initial_weight=0.5)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return head


TINY_RULES = {
    "lossless": lambda pair: LosslessVerifier(),
    "static0.5": lambda pair: StaticVerifier(0.5),
    "diversed": lambda pair: head_verifier(random_head(pair)),
}


@functools.cache
def tiny_pair():
    return load_tiny_pair()


def tiny_trace(rule):
    task = ArithmeticTask()
    prompts = [task.prompt(each) for each in task.examples("test").select(range(NUM_PROMPTS))]
    settings = DecodeSettings(max_new_tokens=task.max_new_tokens)
    verifier = TINY_RULES[rule](tiny_pair())
    decoder = SpeculativeDecoder(tiny_pair(), verifier, settings, task.stop_strings)
    return decoder.generate(prompts).result.trace


@pytest.mark.parametrize("rule", TINY_RULES)
def test_estimate_agrees_with_the_counts_on_the_tiny_pair(monkeypatch, rule):
    """Null: tokens pass as recorded; 96 prompts as clusters; z, false alarm 1e-6, seed 0.

    Beside it the same test with a mutant: tokens pass with 0.1 less than recorded.
    """

    def p_value():
        trace = tiny_trace(rule)
        if rule == "diversed":
            weight = trace.target_weight[~trace.target_weight.isnan()]
            assert float(weight.std()) > 0.1
        blocks = trace_blocks([trace], 5)
        assert np.unique(blocks.prompt).size == NUM_PROMPTS
        return float(2 * norm.sf(abs(agreement_z(blocks))))

    assert p_value() > FALSE_ALARM
    accept_less(monkeypatch, by=0.1)
    assert p_value() < FALSE_ALARM
