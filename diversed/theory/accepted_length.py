"""How many drafted tokens of a block are accepted, exactly and under the i.i.d. assumption.

Symbols: a block drafts x_1..x_N, x_i from q_i = q(. | context, x_<i), and token x_i passes with
probability a_i(x_i); T_N counts the tokens before the first that fails. For a rule with a law pi,
a_i = min(1, pi_i / q_i). Then, without any assumption of independence,

    P(T_N >= k) = sum over x_1..x_k of prod_{i <= k} q_i(x_i) a_i(x_i)
                = sum over x_1..x_k of prod_{i <= k} min(q_i, pi_i)(x_i | x_<i),
    E[T_N] = sum_{k = 1..N} P(T_N >= k).

P(T_N >= k), k = 1..N, is called the survival of the block here; it does not depend on N >= k and
never rises with k. `theory.blocks` estimates it from the trace of a run.

Source: DIVERSED (arXiv:2604.07622), expected accepted length.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from diversed.core.checks import check_at_least_one
from diversed.theory.bootstrap import FloatArray, finite_array

ContextFunction = Callable[[tuple[int, ...]], ArrayLike]
"""Token ids of a context -> one number per token of the vocabulary, shape [V]."""

_ROUNDING = 1e-6  # laws come from fp32 as a rule


def survival_of_law(
    draft_law: ContextFunction,
    verify_law: ContextFunction,
    draft_length: int,
    *,
    start: Sequence[int] = (),
    end_ids: Sequence[int] = (),
) -> FloatArray:
    """Return P(T_N >= k) for a verifier with law pi, by enumeration of all drafts.

    The verifier accepts with min(1, pi / q); the target p enters through pi alone. For rules that
    are told by how probably a token passes (typical, fuzzy) see `survival_of_rule`.

    Args:
        draft_law: Context -> q, shape [V], sums to 1.
        verify_law: Context -> pi, shape [V], sums to 1.
        draft_length: N, at least 1.
        start: Context in which the block starts.
        end_ids: Tokens that close a draft, see `survival_of_rule`.

    Returns:
        P(T_N >= k) for k = 1..N, shape [N], in [0, 1], never rising.

    Raises:
        ValueError: A law has negative entries or does not sum to 1, or the two differ in length.
    """

    def accept_probs(context: tuple[int, ...]) -> FloatArray:
        draft = _checked_law("draft_law", draft_law, context)
        verify = _checked_law("verify_law", verify_law, context)
        if draft.shape != verify.shape:
            raise ValueError(
                f"after {context} draft_law has {draft.size} tokens, verify_law {verify.size}"
            )
        passed = np.minimum(draft, verify)
        return np.divide(passed, draft, out=np.ones_like(draft), where=draft > 0)

    return survival_of_rule(draft_law, accept_probs, draft_length, start=start, end_ids=end_ids)


def survival_of_rule(
    draft_law: ContextFunction,
    accept_probs: ContextFunction,
    draft_length: int,
    *,
    start: Sequence[int] = (),
    end_ids: Sequence[int] = (),
) -> FloatArray:
    """Return P(T_N >= k) for any rule that judges token by token, by enumeration of all drafts.

    The work grows as V^N: for small vocabularies.

    Args:
        draft_law: Context -> q, shape [V], sums to 1.
        accept_probs: Context -> probability that each token passes if it is drafted, shape [V].
        draft_length: N, at least 1; where less room is left, the tokens that are really drafted.
        start: Context in which the block starts.
        end_ids: Tokens that close a draft: nothing is drafted behind them, so a draft that ends
            with its j-th token has T_N <= j. Empty for the T_N of endless text.

    Returns:
        P(T_N >= k) for k = 1..N, shape [N], in [0, 1], never rising.

    Raises:
        ValueError: N is below 1, q is no law, or an acceptance lies outside [0, 1].
    """
    check_at_least_one("draft_length", draft_length)
    ends = frozenset(end_ids)
    survival = np.zeros(draft_length)
    alive = {tuple(start): 1.0}  # drafts of k tokens that passed whole -> probability
    for k in range(draft_length):
        grown: dict[tuple[int, ...], float] = {}
        for context, mass in alive.items():
            law = _checked_law("draft_law", draft_law, context)
            accepts = _checked_accepts(accept_probs, context, law)
            passed = mass * law * accepts
            survival[k] += passed.sum()
            for token in np.flatnonzero(passed).tolist():
                if token not in ends:
                    grown[*context, token] = float(passed[token])
        alive = grown
    return survival


def accepted_length_law(survival: ArrayLike) -> FloatArray:
    """Return P(T_N = 0..N), shape [N + 1], of a survival P(T_N >= 1..N), shape [N]."""
    reached = np.concatenate([[1.0], finite_array("survival", survival, num_dims=1), [0.0]])
    law: FloatArray = reached[:-1] - reached[1:]
    return law


def expected_accepted_length(survival: ArrayLike) -> float:
    """Return E[T_N] = sum_k P(T_N >= k); of the first n entries it is E[T_n]."""
    return float(finite_array("survival", survival, num_dims=1).sum())


def judged_acceptance(survival: ArrayLike) -> float:
    """Return the acceptance per judged token, E[accepted] / E[judged], that a survival implies.

    A block of N drafted tokens judges token k + 1 if the first k passed, so E[judged] =
    sum_{k = 0..N-1} P(T_N >= k). This is the rate that counts give as accepted / judged, and the
    one number a of `iid_accepted_length` when that is fitted to counts.
    """
    reached = finite_array("survival", survival, num_dims=1)
    return float(reached.sum() / (1.0 + reached[:-1].sum()))


def iid_survival(acceptance: float, draft_length: int) -> FloatArray:
    """Return P(T_N >= k) = a^k, k = 1..N, as if tokens passed independently with probability a.

    Args:
        acceptance: a, in [0, 1].
        draft_length: N, at least 1.

    Raises:
        ValueError: An argument is out of range.
    """
    check_at_least_one("draft_length", draft_length)
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance={acceptance}: must lie in [0, 1]")
    return np.power(float(acceptance), np.arange(1, draft_length + 1))


def iid_accepted_length(acceptance: float, draft_length: int) -> float:
    """Return E[T_N] = a (1 - a^N) / (1 - a), as if tokens passed independently; N for a = 1.

    The better known (1 - a^(N + 1)) / (1 - a) is 1 + this: it counts the recovered or bonus token
    that ends the block too.

    Args:
        acceptance: a, in [0, 1].
        draft_length: N, at least 1.

    Raises:
        ValueError: An argument is out of range.

    Source: Leviathan et al. 2023 (arXiv:2211.17192), expected number of generated tokens, less one.
    """
    return float(iid_survival(acceptance, draft_length).sum())


def _checked_law(name: str, law: ContextFunction, context: tuple[int, ...]) -> FloatArray:
    """Return the law of a context; ValueError, naming the context, if it is none."""
    probs = finite_array(f"{name} after {context}", law(context), num_dims=1)
    if (probs < 0).any() or abs(probs.sum() - 1) > _ROUNDING:
        raise ValueError(
            f"{name} after {context} is no distribution: minimum {probs.min()}, sum {probs.sum()}"
        )
    return probs


def _checked_accepts(
    accept_probs: ContextFunction, context: tuple[int, ...], law: FloatArray
) -> FloatArray:
    accepts = finite_array(f"accept_probs after {context}", accept_probs(context), num_dims=1)
    if accepts.shape != law.shape:
        raise ValueError(
            f"after {context} draft_law has {law.size} tokens, accept_probs {accepts.size}"
        )
    if accepts.min() < -_ROUNDING or accepts.max() > 1 + _ROUNDING:
        raise ValueError(
            f"accept_probs after {context} lie in [{accepts.min()}, {accepts.max()}], not [0, 1]"
        )
    return np.clip(accepts, 0.0, 1.0)
