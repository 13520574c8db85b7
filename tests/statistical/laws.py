"""The law of whole completions by enumeration, for every rule, and the test of samples against it.

Completions of `NUM_TOKENS` tokens over `VOCAB_SIZE` tokens; after t tokens there are V**t
sequences, numbered in base V, so what may follow all of them is an array [V**t, V].
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from restated_rules import Position, answer, emitted
from scipy.stats import chi2, norm
from table_lm import PLAIN, TableLM, left_pad

from diversed.core.counts import token_acceptance_rate
from diversed.core.loop import DecodeSettings, speculative_decode
from diversed.core.probs import Sampling
from diversed.core.types import DecodeResult, Status
from diversed.core.verifiers import DiversedVerifier, make_verifier

FALSE_ALARM = 1e-6
NUM_ROWS = 4000
NUM_TOKENS = 6
VOCAB_SIZE = 4
PROMPT = [2, 1]
END_IDS = (1, 2)
BONUS_MODES = ("verifier", "target")
MIN_EXPECTED = 10  # of a chi-square cell

Text = tuple[int, ...]
Law = dict[tuple[Text, int], float]
"""(completion, blocks it took) -> probability."""


def _draft_table(target: TableLM) -> torch.Tensor:
    """Return logits near the target's in some contexts and far in others, sharper or flatter."""
    generator = torch.Generator().manual_seed(10)
    num_contexts = target.table.shape[0]
    noise = torch.randn(target.table.shape, generator=generator)
    distance = torch.linspace(0.1, 4, num_contexts)[_shuffled(num_contexts, generator)]
    sharpness = torch.linspace(0.2, 0.8, num_contexts)[_shuffled(num_contexts, generator)]
    return (target.table + noise * distance.unsqueeze(1)) * sharpness.unsqueeze(1)


def _shuffled(size: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(size, generator=generator)


TARGET = TableLM(VOCAB_SIZE, 0)
DRAFT = TableLM(VOCAB_SIZE, 1, table=_draft_table(TARGET))
HEAD_WEIGHTS = torch.randn(2, VOCAB_SIZE**2, generator=torch.Generator().manual_seed(2)) * 1.5


def table_head(draft_hidden, target_hidden, features):
    """Give every context a weight of its own: the hidden states are one-hot."""
    return draft_hidden @ HEAD_WEIGHTS[0] + target_hidden @ HEAD_WEIGHTS[1]


def head_weight(context: int) -> float:
    return float(1 / (1 + np.exp(-HEAD_WEIGHTS[:, context].double().sum().item())))


VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "lossless": ("lossless", {}),
    "static0.3": ("static", {"weight": 0.3}),
    "static0.7": ("static", {"weight": 0.7}),
    "diversed": ("diversed", {}),
    "lenient": ("lenient", {"lenience": 0.5}),
    "lenient-scaled": ("lenient", {"lenience": 0.5, "residual": "scaled"}),
    "chow": ("cascade", {"rule": "chow", "alpha": 0.4}),
    "diff": ("cascade", {"rule": "diff", "alpha": 0.1}),
    "opt": ("cascade", {"rule": "opt", "alpha": 0.4}),
    "token_v1": ("cascade", {"rule": "token_v1", "alpha": 0.2}),
    "token_v2": ("cascade", {"rule": "token_v2", "alpha": 0.3}),
    "token_v3": ("cascade", {"rule": "token_v3", "alpha": 0.7}),
    "typical": ("typical", {"threshold": 0.3, "alpha": 0.9}),
    "fuzzy-js": ("fuzzy", {"threshold": 0.1, "divergence": "js"}),
    "fuzzy-kl": ("fuzzy", {"threshold": 0.6, "divergence": "kl"}),
    "fuzzy-tv": ("fuzzy", {"threshold": 0.3, "divergence": "tv"}),
    "margin": ("margin", {"theta": 0.2}),
}
"""Rules with settings that pass some tokens and fail others under all transforms of `GRID`."""

TEMPERATURES = (0.5, 1.0, 2.0)
FILTERS = ({"top_k": 3}, {"top_p": 0.85}, {})
GRID = tuple(Sampling(t, **kept) for t in TEMPERATURES for kept in FILTERS)
DRAFT_LENGTHS = (1, 3, 5)


@dataclass(frozen=True)
class Case:
    """A rule, block length, transforms and ends."""

    variant: str
    draft_length: int = 3
    sampling: Sampling = PLAIN
    bonus: str = "verifier"
    eos_ids: tuple[int, ...] = ()

    def __str__(self):
        sampling = self.sampling
        parts = (self.variant, f"N{self.draft_length}", f"T{sampling.temperature:g}")
        filters = (f"k{sampling.top_k}", f"p{sampling.top_p:g}")
        return "-".join([*parts, *filters, self.bonus, *map(str, self.eos_ids)])

    def verifier(self):
        name, settings = VARIANTS[self.variant]
        if name == "diversed":
            return DiversedVerifier(table_head, bonus=self.bonus)
        return make_verifier(name, bonus=self.bonus, **settings)

    def settings(self, seed=0):
        return DecodeSettings(
            max_new_tokens=NUM_TOKENS,
            draft_length=self.draft_length,
            sampling=self.sampling,
            eos_ids=self.eos_ids,
            seed=seed,
        )


# --- what may follow ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """What may follow each of a set of sequences, [S, V].

    Attributes:
        accepted: Probability that a token is drafted and passes.
        recovered: That it takes the place of one that failed.
        bonus: That it follows a block that passed whole.
    """

    accepted: np.ndarray
    recovered: np.ndarray
    bonus: np.ndarray

    @property
    def emitted(self) -> np.ndarray:
        return self.accepted + self.recovered

    def at(self, index: np.ndarray) -> "Steps":
        return Steps(self.accepted[index], self.recovered[index], self.bonus[index])


def steps(name: str, settings: dict, bonus: str, positions: Iterable[Position]) -> Steps:
    """Return the steps of a rule at some positions."""
    accepted, recovered, bonuses = [], [], []
    for at in positions:
        accepts, left = answer(name, at, **settings)
        passed = np.where(at.q > 0, at.q * np.where(at.q > 0, accepts, 0), 0)
        accepted.append(passed)
        recovered.append((1 - passed.sum()) * left)
        bonuses.append(at.p if bonus == "target" else emitted(at.q, accepts, left))
    return Steps(*map(np.array, (accepted, recovered, bonuses)))


def position(context: int, sampling: Sampling) -> Position:
    before, last = divmod(context, VOCAB_SIZE)
    pairs = [
        [model.probs([before, last], s) for model in (TARGET, DRAFT)] for s in (sampling, PLAIN)
    ]
    return Position(*pairs[0], *pairs[1], weight=head_weight(context))


@functools.cache
def _table_steps(variant: str, sampling: Sampling, bonus: str) -> Steps:
    positions = [position(context, sampling) for context in range(VOCAB_SIZE**2)]
    return steps(*VARIANTS[variant], bonus, positions)


def tree(case: Case) -> list[Steps]:
    """Return what may follow the prompt and every sequence of 0, 1, ... tokens."""
    of_context = _table_steps(case.variant, case.sampling, case.bonus)
    contexts = np.array([PROMPT[-2] * VOCAB_SIZE + PROMPT[-1]])
    levels = []
    for _ in range(NUM_TOKENS):
        levels.append(of_context.at(contexts))
        last = (contexts % VOCAB_SIZE)[:, None]
        contexts = (last * VOCAB_SIZE + np.arange(VOCAB_SIZE)).ravel()
    return levels


# --- laws -----------------------------------------------------------------------------------------


class _Ended:
    """Collects the completions that end at a level of the tree, and stops them from growing."""

    def __init__(self, num_tokens: int, vocab_size: int, eos_ids: tuple[int, ...]) -> None:
        self.law: Law = {}
        self.num_tokens, self.vocab_size, self.eos_ids = num_tokens, vocab_size, eos_ids

    def take(self, level: int, num_blocks: int, mass: np.ndarray) -> np.ndarray:
        """Move the mass [V**level] of ended sequences into the law; return what goes on."""
        is_over = np.isin(np.arange(mass.size) % self.vocab_size, self.eos_ids)
        is_over |= level == self.num_tokens
        codes = np.flatnonzero(is_over & (mass > 0))
        digits = np.stack(np.unravel_index(codes, (self.vocab_size,) * level), axis=1)
        for text, prob in zip(map(tuple, digits.tolist()), mass[codes].tolist(), strict=True):
            self.law[text, num_blocks] = self.law.get((text, num_blocks), 0.0) + prob
        return np.where(is_over, 0, mass)


def block_law(
    levels: list[Steps], draft_length: int, bonus: str, eos_ids: tuple[int, ...] = ()
) -> Law:
    """Return the law of completions and their numbers of blocks.

    A state is how many drafted tokens the block still has (None: a new block begins) and how many
    blocks there were. A block drafts `draft_length` tokens or as many as there is room for, with
    the target's bonus token as many as leave room for that.
    """
    num_tokens, spare = len(levels), 0 if bonus == "verifier" else 1
    ended = _Ended(num_tokens, levels[0].bonus.shape[1], eos_ids)
    states: dict[tuple[int | None, int], np.ndarray] = {(None, 0): np.ones(1)}
    for t, level in enumerate(levels):
        grown: dict[tuple[int | None, int], np.ndarray] = defaultdict(lambda: np.zeros(1))
        for (num_left, num_blocks), mass in states.items():
            blocks, left = num_blocks, num_left
            if left is None:
                blocks, left = blocks + 1, min(draft_length, num_tokens - t - spare)
            mass = mass[:, None]
            if left == 0:
                grown[None, blocks] = grown[None, blocks] + (mass * level.bonus).ravel()
            else:
                grown[left - 1, blocks] = grown[left - 1, blocks] + (mass * level.accepted).ravel()
                grown[None, blocks] = grown[None, blocks] + (mass * level.recovered).ravel()
        states = {
            (left, blocks): ended.take(t + 1, blocks, mass)
            for (left, blocks), mass in grown.items()
        }
    return ended.law


def product_law(
    levels: list[Steps], eos_ids: tuple[int, ...] = (), next_law: str = "emitted"
) -> Law:
    """Return the law in which each token follows `next_law` of its level; one block a token."""
    ended = _Ended(len(levels), levels[0].bonus.shape[1], eos_ids)
    mass = np.ones(1)
    for t, level in enumerate(levels):
        mass = ended.take(t + 1, 0, (mass[:, None] * getattr(level, next_law)).ravel())
    return ended.law


def of_texts(law: Law) -> dict[Text, float]:
    texts: dict[Text, float] = defaultdict(float)
    for (text, _), prob in law.items():
        texts[text] += prob
    return dict(texts)


def enumerated_law(case: Case) -> Law:
    return block_law(tree(case), case.draft_length, case.bonus, case.eos_ids)


# --- samples --------------------------------------------------------------------------------------


def sample(case: Case, num_rows: int = NUM_ROWS, seed: int = 0) -> DecodeResult:
    ids, mask = left_pad([PROMPT] * num_rows)
    return speculative_decode(
        TARGET, DRAFT, case.verifier(), ids, mask, torch.arange(num_rows), case.settings(seed)
    )


def outcomes(result: DecodeResult) -> list[tuple[Text, int]]:
    """Return each row's completion and number of blocks."""
    texts = [tuple(ids.tolist()) for ids in result.token_ids]
    return list(zip(texts, result.counts.blocks.tolist(), strict=True))


def _chi_square(counts: Counter, law: dict, order: Callable) -> float:
    """Return the tail probability of the counts, with neighbours in an order merged into cells."""
    keys = sorted(law, key=order)
    num_samples = counts.total()
    cells: list[list[float]] = [[0.0, 0.0]]
    for key in keys:
        if cells[-1][1] >= MIN_EXPECTED:
            cells.append([0.0, 0.0])
        cells[-1][0] += counts[key]
        cells[-1][1] += law[key] * num_samples
    if len(cells) > 1 and cells[-1][1] < MIN_EXPECTED:
        seen, expected = cells.pop()
        cells[-1][0] += seen
        cells[-1][1] += expected
    seen, expected = np.array(cells).T
    return float(chi2.sf(((seen - expected) ** 2 / expected).sum(), len(cells) - 1))


def p_value(samples: Iterable[tuple[Text, int]], law: Law) -> float:
    """Return the probability, under a law, of samples that fit it as badly; 0 for impossible ones.

    Three chi-square tests (Bonferroni) over cells that merge neighbours: completions in the order
    of their beginnings, of their ends, and together with the number of blocks.
    """
    counts = Counter(samples)
    if any(law.get(key, 0) == 0 for key in counts):
        return 0.0
    texts, text_counts = of_texts(law), Counter()
    for (text, _), count in counts.items():
        text_counts[text] += count
    by_end = _chi_square(text_counts, texts, lambda text: text[::-1])
    by_beginning = _chi_square(text_counts, texts, lambda text: text)
    by_blocks = _chi_square(counts, law, lambda key: (key[1], key[0]))
    return min(1.0, 3 * min(by_beginning, by_end, by_blocks))


def text_p_value(samples: Iterable[Text], law: dict[Text, float]) -> float:
    """Return the same for completions alone."""
    return p_value([(text, 0) for text in samples], {(text, 0): p for text, p in law.items()})


def acceptance_p_value(result: DecodeResult, column: str) -> float:
    """Return the two-sided p-value of sum(accepted - `column`) over judged positions.

    Given the past a judged token is accepted with the stated probability, so each row's sum has
    mean 0; rows are independent, and the variance is estimated between them. Differences of
    rounding are none: a rule without chance in it accepts exactly what it states.
    """
    trace = result.trace
    is_judged = (trace.status == Status.ACCEPTED) | (trace.status == Status.REJECTED)
    gap = (trace.status == Status.ACCEPTED).double() - getattr(trace, column).double()
    by_row = torch.zeros(len(result.token_ids), dtype=torch.float64)
    by_row.index_add_(0, trace.row[is_judged], torch.where(gap.abs() < 1e-6, 0, gap)[is_judged])
    spread = float(by_row.square().sum().sqrt())
    return 1.0 if spread == 0 else float(2 * norm.sf(abs(float(by_row.sum())) / spread))


@dataclass(frozen=True)
class Summary:
    """What a case's sample says: p-values, and accepted / judged."""

    law: float
    acceptance: dict[str, float]
    token_acceptance_rate: float


def summary(case: Case, num_rows: int = NUM_ROWS, seed: int = 0) -> Summary:
    result = sample(case, num_rows, seed)
    columns = ("accept_prob", "expected_acceptance")
    return Summary(
        p_value(outcomes(result), enumerated_law(case)),
        {column: acceptance_p_value(result, column) for column in columns},
        token_acceptance_rate(result.counts),
    )
