"""How much faster speculative decoding is, from the costs of its steps and the accepted tokens.

Symbols, all costs in units of one target step over one token: c a draft step, v the target pass
over the N + 1 tokens of a block, o all else per block (sampling, judging, cache roll-back, the
interpreter), o_1 all else per token of plain decoding. A block emits its T_N accepted tokens and
one recovered or bonus token, so

    speed-up over plain decoding = (E[T_N] + 1) (1 + o_1) / (N c + v + o),

with N + P(T_N = N) draft steps instead of N where the bonus token is the verifier's: it needs q at
position N + 1. o_1 = 0 compares with a plain decoder that costs nothing but its target steps.

Not modelled: the prompt's prefill, and the last block of a text, which may draft fewer than N
tokens and ends without an extra token if it drafted the end.

Source: Leviathan et al. 2023 (arXiv:2211.17192), walltime improvement, with v = 1, o = o_1 = 0 and
E[T_N] under their i.i.d. assumption; here E[T_N] is free and every cost is measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from diversed.theory.bootstrap import FloatArray, finite_array


@dataclass(frozen=True)
class MeasuredSeconds:
    """Sums over a run without the prefill of its prompts.

    Attributes:
        total: Seconds from the end of the prefill to the end of the text.
        target: Seconds inside target calls.
        num_target: Target calls: blocks, or tokens of plain decoding.
        draft: Seconds inside draft calls.
        num_draft: Draft calls.
    """

    total: float
    target: float
    num_target: float
    draft: float = 0.0
    num_draft: float = 0.0


@dataclass(frozen=True)
class StepCosts:
    """What the parts of a block cost, in units of one target step over one token.

    Attributes:
        draft_step: c.
        target_pass: v, over the N + 1 tokens of a block.
        overhead: o, all else per block.
        plain_overhead: o_1, all else per token of plain decoding; 0: target steps alone.
        unit_seconds: Seconds of the unit; NaN if it was not measured.
    """

    draft_step: float
    target_pass: float
    overhead: float
    plain_overhead: float = 0.0
    unit_seconds: float = float("nan")


def step_costs(plain: MeasuredSeconds, speculative: MeasuredSeconds) -> StepCosts:
    """Turn the seconds of a plain and of a speculative run into costs.

    Args:
        plain: A run of the target alone, one token a call.
        speculative: A run with a draft.

    Raises:
        ValueError: A run made no target call or took no time in them, or the speculative one made
            no draft call.
    """
    for name, run in (("plain", plain), ("speculative", speculative)):
        if not (run.num_target > 0 and run.target > 0):
            raise ValueError(f"{name}: {run.num_target} target calls took {run.target} s")
    if speculative.num_draft <= 0:
        raise ValueError("speculative: it made no draft call")
    unit = plain.target / plain.num_target
    per_block = unit * speculative.num_target
    return StepCosts(
        draft_step=speculative.draft / speculative.num_draft / unit,
        target_pass=speculative.target / per_block,
        overhead=(speculative.total - speculative.target - speculative.draft) / per_block,
        plain_overhead=(plain.total - plain.target) / plain.target,
        unit_seconds=unit,
    )


def draft_steps(draft_length: int, full_acceptance: float, bonus: str) -> float:
    """Return the draft steps of a block.

    Args:
        draft_length: N.
        full_acceptance: P(T_N = N).
        bonus: "verifier" (N + P(T_N = N) steps) or "target" (N steps).

    Raises:
        ValueError: `bonus` is neither.
    """
    if bonus not in ("verifier", "target"):
        raise ValueError(f"bonus={bonus!r}: must be verifier or target")
    return draft_length + (full_acceptance if bonus == "verifier" else 0.0)


def predicted_speedup(mean_accepted: float, num_draft_steps: float, costs: StepCosts) -> float:
    """Return the speed-up over plain decoding, in tokens per second.

    Args:
        mean_accepted: E[T_N].
        num_draft_steps: Draft steps per block, from `draft_steps`.
        costs: What the steps cost.

    Returns:
        (E[T_N] + 1) (1 + o_1) / (steps c + v + o).
    """
    seconds = num_draft_steps * costs.draft_step + costs.target_pass + costs.overhead
    return (mean_accepted + 1) * (1 + costs.plain_overhead) / seconds


def speedups_by_length(
    survival: ArrayLike, costs: StepCosts | Sequence[StepCosts], bonus: str
) -> FloatArray:
    """Return the predicted speed-up for every draft length n up to the one that was decoded with.

    E[T_n] is the sum of the first n entries of the survival. That is exact for blocks that start
    where those of the trace start; a shorter draft ends its blocks elsewhere, and starts are harder
    where more of them follow a rejection. On the embedded pair E[T_2] comes out 6 % low from a
    trace with N = 5 and 9 % low with N = 8: look for the best n near N, then decode with it.

    Args:
        survival: P(T_N >= k), k = 1..N, shape [N], for instance estimated from a trace.
        costs: Costs for every n alike, or one for each n = 1..N (v grows with n on hardware whose
            arithmetic is busy).
        bonus: As in `draft_steps`.

    Returns:
        Speed-ups for n = 1..N, shape [N].

    Raises:
        ValueError: `costs` is a sequence of another length than N, or `bonus` is unknown.
    """
    reached = finite_array("survival", survival, num_dims=1)
    each = [costs] * len(reached) if isinstance(costs, StepCosts) else list(costs)
    if len(each) != len(reached):
        raise ValueError(f"costs has {len(each)} entries, survival {len(reached)}")
    means = reached.cumsum()
    return np.array(
        [
            predicted_speedup(means[n - 1], draft_steps(n, reached[n - 1], bonus), each[n - 1])
            for n in range(1, len(reached) + 1)
        ]
    )


def best_draft_length(
    survival: ArrayLike, costs: StepCosts | Sequence[StepCosts], bonus: str
) -> int:
    """Return the draft length of the highest predicted speed-up, the shortest of equals.

    Arguments and errors as in `speedups_by_length`. N itself as answer means: at least N.
    """
    return int(speedups_by_length(survival, costs, bonus).argmax()) + 1
