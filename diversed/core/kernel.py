"""What a verification rule is, and the arithmetic that all rules share.

A rule sees both models' distributions of a block at once (`ModelView`) and answers three
questions: how probable is it that each drafted token passes, what is a rejected token replaced
from, and what follows a block that passed whole. Sampling, counting and caches are the loop's.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from diversed.core.probs import (
    Sampling,
    expected_acceptance,
    logits_to_probs,
    mix,
    mixture_accept_probs,
    residual,
)

logger = logging.getLogger(__name__)

BONUS_SOURCES = ("verifier", "target")
_PLAIN = Sampling()

_PER_POSITION = (
    "target_probs",
    "draft_probs",
    "target_logits",
    "draft_logits",
    "target_hidden",
    "draft_hidden",
)


@dataclass(frozen=True)
class ModelView:
    """Both models at n positions of B rows.

    Attributes:
        target_probs: p, [B, n, V]; at temperature 0 the temperature-1 distribution.
        draft_probs: q, same shape.
        target_logits: Raw logits that p was made from, [B, n, V].
        draft_logits: Same for q.
        target_hidden: Last hidden states of the target, [B, n, D_p].
        draft_hidden: Last hidden states of the draft, [B, n, D_q].
        is_plain: Whether p and q are the softmax of the raw logits: no temperature, top-k or top-p.
    """

    target_probs: Tensor
    draft_probs: Tensor
    target_logits: Tensor
    draft_logits: Tensor
    target_hidden: Tensor
    draft_hidden: Tensor
    is_plain: bool = False

    @property
    def plain_target_probs(self) -> Tensor:
        """The target's distribution before temperature, top-k and top-p, [B, n, V]."""
        return self.target_probs if self.is_plain else logits_to_probs(self.target_logits, _PLAIN)

    @property
    def plain_draft_probs(self) -> Tensor:
        """The draft's distribution before temperature, top-k and top-p, [B, n, V]."""
        return self.draft_probs if self.is_plain else logits_to_probs(self.draft_logits, _PLAIN)

    def columns(self, start: int, stop: int) -> "ModelView":
        """Return the positions from `start` to `stop` of every row."""
        return replace(self, **{name: getattr(self, name)[:, start:stop] for name in _PER_POSITION})

    def at(self, columns: Tensor) -> "ModelView":
        """Return one position of each row (int64 [B]) as a view with n = 1."""
        rows = torch.arange(columns.numel(), device=columns.device)
        return replace(
            self,
            **{name: getattr(self, name)[rows, columns].unsqueeze(1) for name in _PER_POSITION},
        )


@dataclass(frozen=True)
class Judgement:
    """A rule's verdict on the positions of a view.

    Attributes:
        accept_probs: Probability that each drafted token passes, [B, n].
        expected_acceptance: Probability that a token drawn from q would pass, [B, n].
        target_weight: w, [B, n]; None for rules without one.
    """

    accept_probs: Tensor
    expected_acceptance: Tensor
    target_weight: Tensor | None


@dataclass(frozen=True)
class GreedyJudgement:
    """A rule's verdict at temperature 0.

    Attributes:
        passes: Which drafted tokens pass, bool [B, n].
        recovered_ids: What a token that does not pass is replaced by, int64 [B, n].
        target_weight: w, [B, n]; None for rules without one.
    """

    passes: Tensor
    recovered_ids: Tensor
    target_weight: Tensor | None


class Verifier(Protocol):
    """A verification rule.

    Attributes:
        name: The method's one name.
        is_lossy: Whether the output law may differ from the target's.
        bonus: "verifier" or "target": what the bonus token is drawn from.
        settings: The rule's own settings by name, for records and run names.
    """

    name: str
    is_lossy: bool
    bonus: str
    settings: Mapping[str, float | str]

    def judge(self, view: ModelView, draft_ids: Tensor, tv: Tensor) -> Judgement:
        """Return the verdict on drafted tokens [B, n]; tv is TV(q, p) at the same positions."""
        ...

    def recovered_weights(self, view: ModelView) -> Tensor:
        """Return unnormalised weights [B, n, V] that a rejected token is replaced from."""
        ...

    def bonus_weights(self, view: ModelView, target_weight: Tensor | None) -> Tensor:
        """Return weights [B, n, V] of the token after a block that passed whole.

        `target_weight` is what `judge` gave for the same view, [B, n] or None. Asked for with
        `bonus="verifier"` only.
        """
        ...

    def judge_greedy(self, view: ModelView, draft_ids: Tensor) -> GreedyJudgement:
        """Return the verdict on drafted tokens [B, n] at temperature 0."""
        ...


class _Rule:
    """Name, source of the bonus token and settings of a rule."""

    name: str
    is_lossy = True

    def __init__(self, bonus: str, settings: Mapping[str, float | str]) -> None:
        """Check `bonus` and warn once per rule that it is lossy.

        Raises:
            ValueError: `bonus` is not one of the two sources.
        """
        if bonus not in BONUS_SOURCES:
            raise ValueError(f"verifier.bonus={bonus!r}: must be one of {', '.join(BONUS_SOURCES)}")
        self.bonus = bonus
        self.settings: Mapping[str, float | str] = dict(settings)
        if self.is_lossy and self.name not in _warned:
            _warned.add(self.name)
            logger.warning("verifier %s is lossy: no guarantee on quality", self.name)


class MixtureVerifier(_Rule, ABC):
    """Verification against nu = w p + (1 - w) q, with a w per position from `target_weight`.

    Every judged position emits a token that follows nu exactly: an accepted one with min(q, nu),
    a recovered one with the residual norm((nu - q)+) = norm((p - q)+). With `bonus="verifier"` the
    bonus token follows nu too, and the whole completion follows the product of the nu_t.

    At temperature 0 the token that passes is the argmax of nu made from the temperature-1
    distributions; for w = 1 and w = 0 of the logits themselves, which rounding cannot tie.

    Source: DIVERSED (arXiv:2604.07622); with w = 1 Leviathan et al. 2023 (arXiv:2211.17192).
    """

    @abstractmethod
    def target_weight(self, view: ModelView) -> Tensor:
        """Return w at every position of a view, [B, n], in [0, 1]."""

    def judge(self, view: ModelView, draft_ids: Tensor, tv: Tensor) -> Judgement:
        """Accept with min(1, nu(x) / q(x)); see `Verifier.judge`."""
        weight = self.target_weight(view)
        return Judgement(
            accept_probs=mixture_accept_probs(
                _of_tokens(view.target_probs, draft_ids),
                _of_tokens(view.draft_probs, draft_ids),
                weight,
            ),
            expected_acceptance=expected_acceptance(tv, weight),
            target_weight=weight,
        )

    def recovered_weights(self, view: ModelView) -> Tensor:
        """Return (p - q)+, the same for every w > 0; see `Verifier.recovered_weights`."""
        return residual(view.target_probs, view.draft_probs)

    def bonus_weights(self, view: ModelView, target_weight: Tensor | None) -> Tensor:
        """Return nu; see `Verifier.bonus_weights`."""
        if target_weight is None:
            target_weight = self.target_weight(view)
        return mix(view.target_probs, view.draft_probs, target_weight)

    def judge_greedy(self, view: ModelView, draft_ids: Tensor) -> GreedyJudgement:
        """Pass the argmax of nu; see `Verifier.judge_greedy`."""
        weight = self.target_weight(view)
        best = mix(view.target_probs, view.draft_probs, weight).argmax(-1)
        best = torch.where(weight == 1, view.target_logits.argmax(-1), best)
        best = torch.where(weight == 0, view.draft_logits.argmax(-1), best)
        return GreedyJudgement(draft_ids == best, best, weight)


class PointwiseVerifier(_Rule, ABC):
    """A rule told by two tables: how probably each token passes, and what replaces one that fails.

    With acceptance table a and normalised replacement r, the token emitted at a judged position
    follows pi(x) = q(x) a(x) + (1 - sum q a) r(x); that is what `bonus="verifier"` draws from.

    At temperature 0 the draft's token passes if `passes_greedily`, else the argmax of the target's
    logits takes its place.
    """

    @abstractmethod
    def accept_table(self, view: ModelView) -> Tensor:
        """Return the probability that each token passes if it was drafted, [B, n, V], in [0, 1]."""

    @abstractmethod
    def recovered_weights(self, view: ModelView) -> Tensor:
        """Return what replaces a rejected token; see `Verifier.recovered_weights`."""

    @abstractmethod
    def passes_greedily(self, view: ModelView, draft_ids: Tensor) -> Tensor:
        """Return which drafted tokens pass at temperature 0, bool [B, n]."""

    def judge(self, view: ModelView, draft_ids: Tensor, tv: Tensor) -> Judgement:
        """Look the drafted tokens up in the table; see `Verifier.judge`."""
        table = self.accept_table(view)
        return Judgement(
            accept_probs=_of_tokens(table, draft_ids),
            expected_acceptance=(view.draft_probs * table).sum(-1).clamp(max=1),
            target_weight=None,
        )

    def bonus_weights(self, view: ModelView, target_weight: Tensor | None) -> Tensor:
        """Return pi; see `Verifier.bonus_weights`."""
        passed = view.draft_probs * self.accept_table(view)
        rejected = (1 - passed.sum(-1, keepdim=True)).clamp(min=0)
        weights = self.recovered_weights(view)
        return passed + rejected * weights / weights.sum(-1, keepdim=True)

    def judge_greedy(self, view: ModelView, draft_ids: Tensor) -> GreedyJudgement:
        """See `Verifier.judge_greedy`."""
        best = view.target_logits.argmax(-1)
        passes = self.passes_greedily(view, draft_ids) | (draft_ids == best)
        return GreedyJudgement(passes, best, None)


class LawVerifier(PointwiseVerifier):
    """The lossless rule towards another law pi: accept min(1, pi / q), residual norm((pi - q)+).

    Source: Leviathan et al. 2023 (arXiv:2211.17192) with pi in the place of their p.
    """

    @abstractmethod
    def law(self, view: ModelView) -> Tensor:
        """Return pi at every position, [B, n, V]."""

    def accept_table(self, view: ModelView) -> Tensor:
        """Return min(1, pi / q)."""
        return accept_ratio(self.law(view), view.draft_probs)

    def recovered_weights(self, view: ModelView) -> Tensor:
        """Return (pi - q)+."""
        return residual(self.law(view), view.draft_probs)

    def bonus_weights(self, view: ModelView, target_weight: Tensor | None) -> Tensor:
        """Return pi, without the detour over its parts."""
        return self.law(view)


def accept_ratio(verify_probs: Tensor, draft_probs: Tensor) -> Tensor:
    """Return min(1, pi / q) for every token, [..., V]; 1 where q = 0, as no draft is there.

    A denormal q makes the quotient infinite, which the bound turns into 1.
    """
    ratio = (verify_probs / draft_probs).clamp(max=1)
    return ratio.masked_fill(draft_probs == 0, 1)


def _of_tokens(table: Tensor, ids: Tensor) -> Tensor:
    """Return the entries [B, n] of a table [B, n, V] that belong to the ids [B, n]."""
    return table.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


_warned: set[str] = set()
