"""A verifier's verdict on the columns of a block, or on the one behind it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from diversed.core.kernel import Judgement, ModelView, Verifier
from diversed.core.probs import Sampling, tv_distance


@dataclass(frozen=True)
class Verdict:
    """What is known about the n columns of a block after judging them.

    Attributes:
        judgement: Acceptance and w, each [A, n].
        tv: TV(q, p), [A, n].
        passes: At temperature 0, which drafted tokens pass, bool [A, n]; else None.
        next_ids: At temperature 0, what replaces a token that fails, or in the column behind the
            block the verifier's own token, int64 [A, n], -1 where unknown; else None.
    """

    judgement: Judgement
    tv: Tensor
    passes: Tensor | None = None
    next_ids: Tensor | None = None


def judge_columns(
    verifier: Verifier, view: ModelView, draft_ids: Tensor, sampling: Sampling
) -> Verdict:
    """Judge drafted ids [A, n]; at temperature 0 a token passes or fails with certainty."""
    tv = tv_distance(view.draft_probs, view.target_probs)
    if not sampling.is_greedy:
        return Verdict(verifier.judge(view, draft_ids, tv), tv)
    greedy = verifier.judge_greedy(view, draft_ids)
    accept_probs = greedy.passes.to(tv.dtype)
    judgement = Judgement(accept_probs, accept_probs, greedy.target_weight)
    return Verdict(judgement, tv, greedy.passes, greedy.recovered_ids)


def judge_bonus(verifier: Verifier, view: ModelView, sampling: Sampling) -> Verdict:
    """Judge the column behind a block [A, 1] for the verifier's bonus token.

    At temperature 0 that token is the draft's best one if it passes, else what replaces it.
    """
    draft_ids = view.draft_logits.argmax(-1)
    verdict = judge_columns(verifier, view, draft_ids, sampling)
    if verdict.passes is None or verdict.next_ids is None:
        return verdict
    next_ids = torch.where(verdict.passes, draft_ids, verdict.next_ids)
    return Verdict(verdict.judgement, verdict.tv, verdict.passes, next_ids)
