"""Sampled completions against their enumerated law, and faults that the same test must see.

One test is one chi-square over whole sequences of `NUM_TOKENS` tokens from one prompt, `NUM_ROWS`
rows in one batch. Null: the rows follow the enumerated law. Cells of expected count below 5 are
merged; a sequence of probability 0 fails at once. False-alarm probability 1e-6 per test, fixed
seeds.
"""

import functools
import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm
from table_lm import PLAIN, TableLM, left_pad

from diversed.core import kernel, loop
from diversed.core.kernel import Judgement, MixtureVerifier
from diversed.core.loop import (
    DecodeSettings,
    _BatchDecoder,
    autoregressive_decode,
    speculative_decode,
)
from diversed.core.probs import Sampling
from diversed.core.types import Status
from diversed.core.verifiers import (
    DiversedVerifier,
    LosslessVerifier,
    StaticVerifier,
)

pytestmark = pytest.mark.statistical

FALSE_ALARM = 1e-6
NUM_ROWS = 5000
NUM_TOKENS = 4
VOCAB_SIZE = 4
PROMPT = [2, 1]
TARGET = TableLM(VOCAB_SIZE, 0)
DRAFT = TableLM(VOCAB_SIZE, 1)
_HEAD_WEIGHTS = torch.randn(2, VOCAB_SIZE**2, generator=torch.Generator().manual_seed(2)) * 1.5


@functools.cache
def next_law(model, before, last, sampling):
    return model.probs([before, last], sampling)


def table_head(draft_hidden, target_hidden, features):
    """Give every context a weight of its own: the hidden states are one-hot."""
    return draft_hidden @ _HEAD_WEIGHTS[0] + target_hidden @ _HEAD_WEIGHTS[1]


@dataclass(frozen=True)
class Case:
    """A rule, block length, transforms and ends, and the law that they give."""

    rule: str
    draft_length: int = 3
    sampling: Sampling = PLAIN
    bonus: str = "verifier"
    eos_ids: tuple[int, ...] = ()

    def __str__(self):
        sampling = self.sampling
        parts = (self.rule, f"N{self.draft_length}", f"T{sampling.temperature}")
        return "-".join([*parts, f"k{sampling.top_k}", f"p{sampling.top_p}", self.bonus])

    def verifier(self):
        if self.rule == "lossless":
            return LosslessVerifier(self.bonus)
        if self.rule == "diversed":
            return DiversedVerifier(table_head, bonus=self.bonus)
        return StaticVerifier(float(self.rule.removeprefix("static")), self.bonus)

    def settings(self, seed=0):
        return DecodeSettings(
            max_new_tokens=NUM_TOKENS,
            draft_length=self.draft_length,
            sampling=self.sampling,
            eos_ids=self.eos_ids,
            seed=seed,
        )

    def laws(self, generated):
        """Return p, q and nu after the prompt and `generated`, in float64."""
        tokens = PROMPT + list(generated)
        p, q = (next_law(model, *tokens[-2:], self.sampling) for model in (TARGET, DRAFT))
        if self.rule == "lossless":
            w = 1.0
        elif self.rule == "diversed":
            logit = float(_HEAD_WEIGHTS[:, TARGET.context(tokens)].double().sum())
            w = 1 / (1 + np.exp(-logit))
        else:
            w = float(self.rule.removeprefix("static"))
        return p, q, w * p + (1 - w) * q


def is_over(case, generated):
    return len(generated) == NUM_TOKENS or bool(generated and generated[-1] in case.eos_ids)


def product_law(case, next_law):
    """Return sequence -> probability where each token follows `next_law(generated)`."""
    law, open_sequences = {}, {(): 1.0}
    while open_sequences:
        grown = {}
        for generated, mass in open_sequences.items():
            for token, prob in enumerate(next_law(generated)):
                ended = is_over(case, (*generated, token))
                (law if ended else grown)[(*generated, token)] = mass * prob
        open_sequences = grown
    return law


def block_law(case, bonus_law):
    """Return sequence -> probability under blocks that end with a token from `bonus_law`.

    A state is what was generated and how many drafted tokens the block still has. A drafted token
    is emitted with min(q, nu); its place is taken by a recovered one with (nu - q)+, which ends the
    block; behind the last drafted token follows the bonus token.
    """
    law = {}

    def add(generated, num_left, mass):
        if mass == 0:
            return
        if is_over(case, generated):
            law[generated] = law.get(generated, 0) + mass
            return
        if num_left is None:
            num_left = min(case.draft_length, NUM_TOKENS - len(generated) - 1)
        _, q, nu = case.laws(generated)
        for token in range(VOCAB_SIZE):
            grown = (*generated, token)
            if num_left == 0:
                add(grown, None, mass * bonus_law(generated)[token])
            else:
                add(grown, num_left - 1, mass * min(q[token], nu[token]))
                add(grown, None, mass * max(nu[token] - q[token], 0))

    add((), None, 1.0)
    return law


def enumerated_law(case):
    if case.bonus == "verifier":
        return product_law(case, lambda generated: case.laws(generated)[2])
    return block_law(case, lambda generated: case.laws(generated)[0])


def p_value(sequences, law):
    """Return the chi-square tail probability of sequences under a law; 0 for impossible ones."""
    seen = dict.fromkeys(law, 0)
    for sequence in sequences:
        if law.get(sequence, 0) == 0:
            return 0.0
        seen[sequence] += 1
    keys = list(law)
    expected = np.array([law[key] for key in keys]) * len(sequences)
    counts = np.array([seen[key] for key in keys], dtype=float)
    order = np.argsort(expected)
    expected, counts = expected[order], counts[order]
    num_merged = max(int((expected < 5).sum()), int(np.searchsorted(expected.cumsum(), 5)) + 1)
    expected = np.append(expected[num_merged:], expected[:num_merged].sum())
    counts = np.append(counts[num_merged:], counts[:num_merged].sum())
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), expected.size - 1))


def sample(case, num_rows=NUM_ROWS, seed=0):
    ids, mask = left_pad([PROMPT] * num_rows)
    return speculative_decode(
        TARGET, DRAFT, case.verifier(), ids, mask, torch.arange(num_rows), case.settings(seed)
    )


def sequences(result):
    return [tuple(ids.tolist()) for ids in result.token_ids]


@functools.cache
def shipped_p_value(case):
    return p_value(sequences(sample(case)), enumerated_law(case))


# --- the law --------------------------------------------------------------------------------------

RULES = ("lossless", "static0.3", "static0.7", "diversed")
LENGTHS = (1, 3, 5)
TEMPERATURES = (0.5, 1.0, 2.0)
FILTERS = ({"top_k": 3}, {"top_p": 0.8}, {})
BONUS_MODES = ("verifier", "target")
CASES = [
    Case(
        rule,
        LENGTHS[j],
        Sampling(TEMPERATURES[(i + j) % 3], **FILTERS[(2 * i + j) % 3]),
        BONUS_MODES[(i + j) % 2],
    )
    for i, rule in enumerate(RULES)
    for j in range(3)
]
END_CASES = [
    Case("static0.3", 3, Sampling(), bonus, eos_ids=(1, 3)) for bonus in ("verifier", "target")
]


def test_cases_cover_every_pair_of_settings():
    def factors(case):
        kept = {key: getattr(case.sampling, key) for key in ("top_k", "top_p")}
        return (
            case.rule,
            case.draft_length,
            case.sampling.temperature,
            next(f for f in FILTERS if all(kept[k] == f.get(k, getattr(PLAIN, k)) for k in kept)),
            case.bonus,
        )

    levels = (RULES, LENGTHS, TEMPERATURES, FILTERS, BONUS_MODES)
    for one, other in itertools.combinations(range(5), 2):
        for pair in itertools.product(levels[one], levels[other]):
            assert any((f[one], f[other]) == pair for f in map(factors, CASES)), pair


@pytest.mark.parametrize("case", [*CASES[::4], END_CASES[0]], ids=str)
def test_enumeration_by_blocks_with_bonus_from_nu_is_the_product_of_nu(case):
    """The two enumerations check each other; no sampling."""
    by_token = enumerated_law(replace(case, bonus="verifier"))
    by_block = block_law(case, lambda generated: case.laws(generated)[2])
    assert sum(by_token.values()) == pytest.approx(1, abs=1e-12)
    for sequence, prob in by_token.items():
        assert by_block.get(sequence, 0) == pytest.approx(prob, abs=1e-13)
    of_target = block_law(case, lambda generated: case.laws(generated)[0])
    assert sum(of_target.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("case", CASES + END_CASES, ids=str)
def test_completions_follow_the_enumerated_law(case):
    """Null: the enumerated law; n = 5000; chi-square, false alarm 1e-6; seed 0."""
    assert shipped_p_value(case) > FALSE_ALARM


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.5, top_k=3), Sampling(2.0, top_p=0.8)], ids=str
)
@pytest.mark.parametrize("eos_ids", [(), (1, 3)])
def test_plain_decoding_follows_the_targets_law(sampling, eos_ids):
    """Null: product of p_t; n = 5000; chi-square, false alarm 1e-6; seed 0."""
    case = Case("lossless", sampling=sampling, eos_ids=eos_ids)
    ids, mask = left_pad([PROMPT] * NUM_ROWS)
    result = autoregressive_decode(TARGET, ids, mask, torch.arange(NUM_ROWS), case.settings())
    assert p_value(sequences(result), enumerated_law(case)) > FALSE_ALARM


@pytest.mark.parametrize("bonus", BONUS_MODES)
def test_law_holds_where_rows_with_other_prompts_share_the_batch(bonus):
    """Null: the enumerated law of one prompt; n = 5000; chi-square, false alarm 1e-6; seed 1.

    Every second row has a prompt of one token, which fails at once in the first block now and then.
    """
    case = Case("static0.3", 3, bonus=bonus)
    ids, mask = left_pad([PROMPT, [0]] * NUM_ROWS)
    keys = torch.arange(2 * NUM_ROWS)
    result = speculative_decode(TARGET, DRAFT, case.verifier(), ids, mask, keys, case.settings(1))
    assert p_value(sequences(result)[::2], enumerated_law(case)) > FALSE_ALARM


# --- faults in the shipped functions --------------------------------------------------------------


def mix_logits(monkeypatch):
    """Judge against softmax(w log p + (1 - w) log q), everywhere and consistently."""

    def mixed(view, weight):
        weight = weight.unsqueeze(-1)
        log_nu = weight * view.target_probs.log() + (1 - weight) * view.draft_probs.log()
        return log_nu.softmax(-1)

    def judge(self, view, draft_ids, tv):
        weight = self.target_weight(view)
        ratio = (mixed(view, weight) / view.draft_probs).gather(-1, draft_ids.unsqueeze(-1))
        return Judgement(ratio.squeeze(-1).clamp(max=1), 1 - weight * tv, weight)

    def recovered(self, view):
        return (mixed(view, self.target_weight(view)) - view.draft_probs).clamp(min=0)

    def bonus(self, view, target_weight):
        return mixed(view, self.target_weight(view))

    monkeypatch.setattr(MixtureVerifier, "judge", judge)
    monkeypatch.setattr(MixtureVerifier, "recovered_weights", recovered)
    monkeypatch.setattr(MixtureVerifier, "bonus_weights", bonus)


def skip_residual(monkeypatch):
    """Draw the recovered token from p."""
    monkeypatch.setattr(kernel, "residual", lambda target_probs, draft_probs: target_probs)


def transform_one_side(monkeypatch, is_draft):
    """Leave the other model's logits at temperature 1 without top-k."""
    shipped = loop.logits_to_probs

    def one_sided(logits, sampling):
        # the draft is read one column at a time, the target with the last token and the block
        return shipped(logits, sampling if (logits.shape[1] == 1) == is_draft else Sampling())

    monkeypatch.setattr(loop, "logits_to_probs", one_sided)


def bonus_from(monkeypatch, model):
    """Draw the verifier's bonus token from one model alone."""
    monkeypatch.setattr(
        MixtureVerifier, "bonus_weights", lambda self, view, weight: getattr(view, model)
    )


def bonus_of_nu_in_target_mode(monkeypatch):
    """Draw the target's bonus token from nu, drafting one token less all the same."""
    monkeypatch.setattr(
        _BatchDecoder, "_draft_block", drafting_one_less(_BatchDecoder._draft_block)
    )
    monkeypatch.setattr(_BatchDecoder, "_judges_bonus", property(lambda self: True))


def drafting_one_less(shipped):
    def draft_block(self):
        settings = self.settings
        self.settings = replace(settings, max_new_tokens=settings.max_new_tokens - 1)
        drafted = shipped(self)
        self.settings = settings
        return drafted

    return draft_block


def shorten_draft_cache(monkeypatch):
    """Drop one token too many from the draft's cache after a block without a bonus token."""
    shipped = _BatchDecoder._emit

    def emit(self, drafted, num_accepted, next_ids, has_next, needs_last):
        retain = self.draft.retain
        if not needs_last:
            self.draft.retain = lambda rows, num_drop: retain(rows, num_drop + 1)
        shipped(self, drafted, num_accepted, next_ids, has_next, needs_last)
        vars(self.draft).pop("retain", None)

    monkeypatch.setattr(_BatchDecoder, "_emit", emit)


def accept_too_often(monkeypatch):
    """Compare with q where nu belongs: accept with min(1, p / q) + 0.1."""
    shipped = loop.stochastic_accepts
    monkeypatch.setattr(
        loop, "stochastic_accepts", lambda probs, uniforms: shipped(probs + 0.1, uniforms)
    )


def swap_weight(monkeypatch):
    """Put w on the draft."""
    shipped = StaticVerifier.target_weight
    monkeypatch.setattr(StaticVerifier, "target_weight", lambda self, view: 1 - shipped(self, view))


def repeat_noise(monkeypatch):
    """Draw the same numbers at every position."""
    shipped = loop.noise.stream_keys

    def stream_keys(seed, row_keys, positions, purpose):
        return shipped(seed, row_keys, positions * 0, purpose)

    monkeypatch.setattr(loop.noise, "stream_keys", stream_keys)


COOL = Sampling(0.5, top_k=3)
MUTANTS = {
    "logits mixed": (mix_logits, (), Case("static0.3")),
    "logits mixed, head": (mix_logits, (), Case("diversed", 1)),
    "residual skipped": (skip_residual, (), Case("lossless")),
    "residual skipped, static": (skip_residual, (), Case("static0.7", 5)),
    "only the draft transformed": (transform_one_side, (True,), Case("lossless", 3, COOL)),
    "only the target transformed": (transform_one_side, (False,), Case("static0.3", 3, COOL)),
    "bonus from p": (bonus_from, ("target_probs",), Case("static0.3", 1)),
    "bonus from q": (bonus_from, ("draft_probs",), Case("lossless", 1)),
    "bonus from nu": (bonus_of_nu_in_target_mode, (), Case("static0.3", 1, bonus="target")),
    "draft cache short": (shorten_draft_cache, (), Case("static0.3", 5)),
    "accepted too often": (accept_too_often, (), Case("lossless")),
    "w on the draft": (swap_weight, (), Case("static0.3")),
    "noise repeated": (repeat_noise, (), Case("lossless")),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_fault_in_a_shipped_function_is_rejected(monkeypatch, name):
    """The same chi-square as above, n = 5000, seed 0: accepted as shipped, rejected with the fault.

    "draft cache short" is what the loop did at first: after a block without a bonus token the draft
    kept one token less than it had read.
    """
    inject, arguments, case = MUTANTS[name]
    assert shipped_p_value(case) > FALSE_ALARM
    inject(monkeypatch, *arguments)
    assert p_value(sequences(sample(case)), enumerated_law(case)) < FALSE_ALARM


@pytest.mark.parametrize("rule", ["static0.3", "diversed"])
def test_the_two_bonus_modes_have_different_laws(rule):
    """n = 5000, seed 0: the sample of each mode is rejected under the law of the other."""
    modes = [Case(rule, 1, bonus=bonus) for bonus in BONUS_MODES]
    for case, other in itertools.permutations(modes):
        assert p_value(sequences(sample(case)), enumerated_law(other)) < FALSE_ALARM


# --- acceptance -----------------------------------------------------------------------------------


def acceptance_p_value(result, column):
    """Return the two-sided p-value of sum(accepted - `column`) over judged positions.

    Given the past a judged token is accepted with the stated probability, so each row's sum has
    mean 0; rows are independent, and the variance is estimated between them.
    """
    trace = result.trace
    is_judged = (trace.status == Status.ACCEPTED) | (trace.status == Status.REJECTED)
    gap = (trace.status == Status.ACCEPTED).double() - getattr(trace, column).double()
    by_row = torch.zeros(len(result.token_ids), dtype=torch.float64)
    by_row.index_add_(0, trace.row[is_judged], gap[is_judged])
    z = float(by_row.sum() / by_row.square().sum().sqrt())
    return 2 * norm.sf(abs(z))


@pytest.mark.parametrize("case", [c for c in CASES if c.rule != "static0.7"], ids=str)
def test_counted_acceptance_agrees_with_the_trace(case):
    """Null: accepted with the stated probability; n = 4000 rows as clusters; z, seed 3.

    False alarm 1e-6 each for the mean of `expected_acceptance` and of `accept_prob`.
    """
    result = sample(case, num_rows=4000, seed=3)
    for column in ("expected_acceptance", "accept_prob"):
        assert acceptance_p_value(result, column) > FALSE_ALARM, column
    judged, accepted = int(result.counts.judged.sum()), int(result.counts.accepted.sum())
    assert 0.3 * judged < accepted < judged


def test_acceptance_that_differs_from_the_record_is_told_apart(monkeypatch):
    """n = 4000 rows, seed 3: acceptance 0.05 below the recorded one is rejected by the z-test."""
    shipped = loop.stochastic_accepts
    monkeypatch.setattr(
        loop, "stochastic_accepts", lambda probs, uniforms: shipped(probs - 0.05, uniforms)
    )
    result = sample(Case("static0.3", 3), 4000, 3)
    for column in ("expected_acceptance", "accept_prob"):
        assert acceptance_p_value(result, column) < FALSE_ALARM, column


def test_expected_acceptance_without_w_is_told_apart(monkeypatch):
    """n = 4000 rows, seed 3: 1 - TV instead of 1 - w TV is rejected by the same z-test."""
    monkeypatch.setattr(kernel, "expected_acceptance", lambda tv, target_weight: 1 - tv)
    result = sample(Case("static0.7", 3), 4000, 3)
    assert acceptance_p_value(result, "expected_acceptance") < FALSE_ALARM
