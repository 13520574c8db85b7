"""Verification rules: what makes a drafted token pass, and what replaces it otherwise.

A rule sees both models' distributions of a block at once (`ModelView`) and answers three
questions: how probable is it that each drafted token passes, what is a rejected token replaced
from, and what follows a block that passed whole. Sampling, counting and caches are the loop's.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from diversed.core.checks import check_unit_interval
from diversed.core.probs import (
    distribution_features,
    expected_acceptance,
    mix,
    mixture_accept_probs,
    residual,
)

logger = logging.getLogger(__name__)

BONUS_SOURCES = ("verifier", "target")


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
    """

    target_probs: Tensor
    draft_probs: Tensor
    target_logits: Tensor
    draft_logits: Tensor
    target_hidden: Tensor
    draft_hidden: Tensor

    def columns(self, start: int, stop: int) -> "ModelView":
        """Return the positions from `start` to `stop` of every row."""
        return ModelView(*(tensor[:, start:stop] for tensor in self._tensors()))

    def at(self, columns: Tensor) -> "ModelView":
        """Return one position of each row (int64 [B]) as a view with n = 1."""
        rows = torch.arange(columns.numel(), device=columns.device)
        return ModelView(*(tensor[rows, columns].unsqueeze(1) for tensor in self._tensors()))

    def _tensors(self) -> tuple[Tensor, ...]:
        return (
            self.target_probs,
            self.draft_probs,
            self.target_logits,
            self.draft_logits,
            self.target_hidden,
            self.draft_hidden,
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


class Verifier(Protocol):
    """A verification rule.

    Attributes:
        name: The method's one name.
        is_lossy: Whether the output law may differ from the target's.
        bonus: "verifier" or "target": what the bonus token is drawn from.
    """

    name: str
    is_lossy: bool
    bonus: str

    def judge(self, view: ModelView, draft_ids: Tensor, tv: Tensor) -> Judgement:
        """Return the verdict on drafted tokens [B, n]; tv is TV(q, p) at the same positions."""
        ...

    def recovered_weights(self, view: ModelView) -> Tensor:
        """Return unnormalised weights [B, n, V] that a rejected token is replaced from."""
        ...

    def bonus_weights(self, view: ModelView, target_weight: Tensor | None) -> Tensor:
        """Return weights [B, n, V] of the token after a block that passed whole.

        `target_weight` is what `judge` gave for the same view, [B, n] or None.
        """
        ...

    def judge_greedy(self, view: ModelView) -> tuple[Tensor, Tensor | None]:
        """Return the token [B, n] that passes at temperature 0, and w [B, n] or None."""
        ...


class AutoregressiveVerifier:
    """Plain decoding with the target alone: a name for records, as nothing is drafted or judged.

    Lossless. At temperature 0 the argmax of the target's logits.
    """

    name = "autoregressive"
    is_lossy = False
    bonus = "target"


class MixtureVerifier(ABC):
    """Verification against nu = w p + (1 - w) q, with a w per position from `target_weight`.

    Every judged position emits a token that follows nu exactly: an accepted one with min(q, nu),
    a recovered one with the residual norm((nu - q)+) = norm((p - q)+). With `bonus="verifier"` the
    bonus token follows nu too, and the whole completion follows the product of the nu_t.

    At temperature 0 the token that passes is the argmax of nu made from the temperature-1
    distributions; for w = 1 and w = 0 of the logits themselves, which rounding cannot tie.

    Source: DIVERSED (arXiv:2604.07622); with w = 1 Leviathan et al. 2023 (arXiv:2211.17192).
    """

    name: str
    is_lossy = True

    def __init__(self, bonus: str = "verifier") -> None:
        """Set where the bonus token comes from; ValueError for anything but the two sources."""
        if bonus not in BONUS_SOURCES:
            raise ValueError(f"verifier.bonus={bonus!r}: must be one of {', '.join(BONUS_SOURCES)}")
        self.bonus = bonus

    @abstractmethod
    def target_weight(self, view: ModelView) -> Tensor:
        """Return w at every position of a view, [B, n], in [0, 1]."""

    def judge(self, view: ModelView, draft_ids: Tensor, tv: Tensor) -> Judgement:
        """Accept with min(1, nu(x) / q(x)); see `Verifier.judge`."""
        weight = self.target_weight(view)
        index = draft_ids.unsqueeze(-1)
        target_token_probs = view.target_probs.gather(-1, index).squeeze(-1)
        draft_token_probs = view.draft_probs.gather(-1, index).squeeze(-1)
        return Judgement(
            accept_probs=mixture_accept_probs(target_token_probs, draft_token_probs, weight),
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

    def judge_greedy(self, view: ModelView) -> tuple[Tensor, Tensor | None]:
        """Return argmax nu and w; see `Verifier.judge_greedy`."""
        weight = self.target_weight(view)
        passing = mix(view.target_probs, view.draft_probs, weight).argmax(-1)
        passing = torch.where(weight == 1, view.target_logits.argmax(-1), passing)
        passing = torch.where(weight == 0, view.draft_logits.argmax(-1), passing)
        return passing, weight


class StaticVerifier(MixtureVerifier):
    """One fixed weight for every token (the paper's static ensemble). Lossy for w < 1."""

    name = "static"

    def __init__(self, weight: float, bonus: str = "verifier") -> None:
        """Set the target's weight.

        Args:
            weight: w in [0, 1]; 1 is exact, 0 trusts the draft.
            bonus: "verifier" (the completion follows nu throughout) or "target" (as published).

        Raises:
            ValueError: A value is out of range.
        """
        super().__init__(bonus)
        check_unit_interval("verifier.weight", weight)
        self.weight = weight
        _warn_lossy(self.name)

    def target_weight(self, view: ModelView) -> Tensor:
        """Return the constant w, [B, n]."""
        return torch.full_like(view.target_probs[..., 0], self.weight)


class LosslessVerifier(MixtureVerifier):
    """Exact speculative decoding: w = 1, the output follows the target's law."""

    name = "lossless"
    is_lossy = False

    def target_weight(self, view: ModelView) -> Tensor:
        """Return ones, [B, n]."""
        return torch.ones_like(view.target_probs[..., 0])


HeadFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(h_q [..., D_q], h_p [..., D_p], features [..., 5] or None) -> logit of w [...]."""


class DiversedVerifier(MixtureVerifier):
    """A weight per token from the ensemble head, shifted by a dial. Lossy."""

    name = "diversed"

    def __init__(
        self,
        head: HeadFunction,
        *,
        uses_features: bool = False,
        dial: float = 0.0,
        bonus: str = "verifier",
    ) -> None:
        """Wrap a head.

        Args:
            head: Maps hidden states (and features) to the logit of w.
            uses_features: Whether the head reads `probs.distribution_features`.
            dial: Added to the logit of w: above 0 trusts the target more, below 0 the draft.
            bonus: As in `StaticVerifier`.

        Raises:
            ValueError: `bonus` is unknown or `dial` is NaN.
        """
        super().__init__(bonus)
        if dial != dial:
            raise ValueError(f"verifier.dial={dial}: must be a number")
        self.head = head
        self.uses_features = uses_features
        self.dial = dial
        _warn_lossy(self.name)

    def target_weight(self, view: ModelView) -> Tensor:
        """Return sigmoid(logit + dial), [B, n]."""
        features = None
        if self.uses_features:
            features = distribution_features(view.target_probs, view.draft_probs)
        logit = self.head(view.draft_hidden, view.target_hidden, features)
        return torch.sigmoid(logit + self.dial)


_warned: set[str] = set()


def _warn_lossy(name: str) -> None:
    """Warn once per method that its output may differ from the target's."""
    if name not in _warned:
        _warned.add(name)
        logger.warning("verifier %s is lossy: no guarantee on quality", name)
