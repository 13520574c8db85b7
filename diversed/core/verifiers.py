"""The verification rules by name; each docstring states rule, source and guarantee.

Notation: p and q are the target's and the draft's next-token distributions after temperature,
top-k and top-p; x is the drafted token; pi is the law of the emitted token.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from diversed.core.checks import check_number, check_unit_interval
from diversed.core.kernel import (
    LawVerifier,
    MixtureVerifier,
    ModelView,
    PointwiseVerifier,
    Verifier,
    accept_ratio,
)
from diversed.core.probs import distribution_features, residual, tv_distance


class AutoregressiveVerifier:
    """Plain decoding with the target alone: a name for records, as nothing is drafted or judged.

    Lossless. At temperature 0 the argmax of the target's logits.
    """

    name = "autoregressive"
    is_lossy = False
    bonus = "target"

    def __init__(self) -> None:
        """Take no setting."""
        self.settings: Mapping[str, float | str] = {}


class LosslessVerifier(MixtureVerifier):
    """Exact speculative decoding: accept min(1, p / q), residual norm((p - q)+).

    Lossless: the output follows the target's law; at temperature 0 it is the target's greedy text.

    Source: Leviathan et al. 2023 (arXiv:2211.17192); Chen et al. 2023 (arXiv:2302.01318).
    """

    name = "lossless"
    is_lossy = False

    def __init__(self, bonus: str = "verifier") -> None:
        """Set where the bonus token comes from; both sources give the same law."""
        super().__init__(bonus, {})

    def target_weight(self, view: ModelView) -> Tensor:
        """Return ones, [B, n]."""
        return torch.ones_like(view.target_probs[..., 0])


class StaticVerifier(MixtureVerifier):
    """One fixed weight for every token: pi = nu = w p + (1 - w) q.

    Lossy for w < 1. At temperature 0 the argmax of nu made from the temperature-1 distributions.

    Source: the static ensemble of DIVERSED (arXiv:2604.07622).
    """

    name = "static"

    def __init__(self, weight: float, bonus: str = "verifier") -> None:
        """Set the target's weight.

        Args:
            weight: w in [0, 1]; 1 is exact, 0 trusts the draft.
            bonus: "verifier" (the completion follows nu throughout) or "target" (as published).

        Raises:
            ValueError: A value is out of range.
        """
        check_unit_interval("verifier.weight", weight)
        super().__init__(bonus, {"weight": weight})
        self.weight = weight

    def target_weight(self, view: ModelView) -> Tensor:
        """Return the constant w, [B, n]."""
        return torch.full_like(view.target_probs[..., 0], self.weight)


HeadFunction = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""(h_q [..., D_q], h_p [..., D_p], features [..., 5] or None) -> logit of w [...]."""


class DiversedVerifier(MixtureVerifier):
    """A weight per token from the ensemble head: pi = nu_t = w_t p_t + (1 - w_t) q_t.

    Lossy. At temperature 0 the argmax of nu_t made from the temperature-1 distributions.

    Source: DIVERSED (arXiv:2604.07622); the dial is ours.
    """

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
            ValueError: `bonus` is unknown, or `dial` is no number.
        """
        check_number("verifier.dial", dial)
        if dial != dial:
            raise ValueError(f"verifier.dial={dial}: must be a number")
        super().__init__(bonus, {"dial": dial} if dial else {})
        self.head = head
        self.uses_features = uses_features
        self.dial = dial

    def target_weight(self, view: ModelView) -> Tensor:
        """Return sigmoid(logit + dial), [B, n]."""
        features = None
        if self.uses_features:
            features = distribution_features(view.target_probs, view.draft_probs)
        logit = self.head(view.draft_hidden, view.target_hidden, features)
        return torch.sigmoid(logit + self.dial)


RESIDUALS = ("target", "scaled")


class LenientVerifier(PointwiseVerifier):
    """Lossy speculative decoding: accept min(1, p / (l q)), with a lenience l in (0, 1].

    A rejected token is replaced from norm((p - q)+), or with `residual="scaled"` from
    norm((p - l q)+). Lossy for l < 1; l = 1 is the lossless rule. The law is
    pi = min(q, p / l) + (1 - sum min(q, p / l)) r with r the residual.

    At temperature 0 a token passes if p(x) >= l max p, with p at temperature 1.

    Source: Leviathan et al. 2023 (arXiv:2211.17192), appendix A.5.
    """

    name = "lenient"

    def __init__(self, lenience: float, residual: str = "target", bonus: str = "target") -> None:
        """Set the lenience.

        Args:
            lenience: l in (0, 1]; smaller accepts more.
            residual: "target" for norm((p - q)+), "scaled" for norm((p - l q)+).
            bonus: "target" (as published) or "verifier" (drawn from pi).

        Raises:
            ValueError: A value is out of range.
        """
        check_number("verifier.lenience", lenience)
        if not 0 < lenience <= 1:
            raise ValueError(f"verifier.lenience={lenience}: must lie in (0, 1]")
        if residual not in RESIDUALS:
            raise ValueError(f"verifier.residual={residual!r}: must be one of target, scaled")
        super().__init__(bonus, {"lenience": lenience, "residual": residual})
        self.lenience = lenience
        self.residual = residual

    def accept_table(self, view: ModelView) -> Tensor:
        """Return min(1, p / (l q))."""
        return accept_ratio(view.target_probs / self.lenience, view.draft_probs)

    def recovered_weights(self, view: ModelView) -> Tensor:
        """Return (p - q)+ or (p - l q)+."""
        scale = self.lenience if self.residual == "scaled" else 1.0
        return residual(view.target_probs, scale * view.draft_probs)

    def passes_greedily(self, view: ModelView, draft_ids: Tensor) -> Tensor:
        """Return p(x) >= l max p."""
        token_probs = view.target_probs.gather(-1, draft_ids.unsqueeze(-1)).squeeze(-1)
        return token_probs >= self.lenience * view.target_probs.amax(-1)


_WHOLE_RULES = ("chow", "diff", "opt")
_TOKEN_RULES = ("token_v1", "token_v2", "token_v3")
CASCADE_RULES = (*_WHOLE_RULES, *_TOKEN_RULES)


class CascadeVerifier(LawVerifier):
    """SpecCascade: verification towards the law of a cascade of the two models.

    With qu, pu the distributions before temperature, D = TV(p, q) and a threshold a:

    - chow keeps the draft (pi = q, else p) where max qu >= 1 - a;
    - diff where max qu >= max pu - a;
    - opt where max qu >= max pu - a D;
    - token_v1, token_v2 and token_v3 keep single tokens: pi = q 1[S] + p (1 - q(S)), with S the
      tokens of qu(v) >= max pu - a, of pu(v) >= max pu - a, of pu(v) >= (1 - a) max pu.

    Lossy. token_v2 and token_v3 are so at a = 0 too: S then holds the target's best token. With the
    token rules a larger `a` may lower the acceptance, and p = q is no fixed point: both follow from
    the published pi.

    At temperature 0 the draft's token passes where the draft is kept, or where it is in S.

    Source: Narasimhan et al., "Faster Cascades via Speculative Decoding" (arXiv:2405.19261).
    """

    name = "cascade"

    def __init__(self, rule: str, alpha: float, bonus: str = "target") -> None:
        """Set the deferral rule.

        Args:
            rule: One of `CASCADE_RULES`.
            alpha: The threshold a, in [0, 1]; in [-1, 1] for diff, opt, token_v1 and token_v2,
                where a negative one asks more of the draft than of the target.
            bonus: "target" (as published) or "verifier" (drawn from pi).

        Raises:
            ValueError: A value is out of range.
        """
        if rule not in CASCADE_RULES:
            raise ValueError(f"verifier.rule={rule!r}: must be one of {', '.join(CASCADE_RULES)}")
        check_number("verifier.alpha", alpha)
        low = 0 if rule in ("chow", "token_v3") else -1
        if not low <= alpha <= 1:
            raise ValueError(f"verifier.alpha={alpha}: rule {rule} takes one in [{low}, 1]")
        super().__init__(bonus, {"rule": rule, "alpha": alpha})
        self.rule = rule
        self.alpha = alpha

    def law(self, view: ModelView) -> Tensor:
        """Return pi, [B, n, V]."""
        if self.rule in _WHOLE_RULES:
            return torch.where(self._keeps(view), view.draft_probs, view.target_probs)
        left = view.draft_probs.masked_fill(self._keeps(view), 0)  # its sum: 1 - q(S), uncancelled
        return view.draft_probs - left + view.target_probs * left.sum(-1, keepdim=True)

    def passes_greedily(self, view: ModelView, draft_ids: Tensor) -> Tensor:
        """Return whether the draft is kept, or its token is in S."""
        keeps = self._keeps(view).expand(*draft_ids.shape, -1)
        index = draft_ids.unsqueeze(-1) if self.rule in _TOKEN_RULES else draft_ids[..., None] * 0
        return keeps.gather(-1, index).squeeze(-1)

    def _keeps(self, view: ModelView) -> Tensor:
        """Return where the draft is kept: bool [B, n, 1], or the set S, [B, n, V]."""
        draft, target = view.plain_draft_probs, view.plain_target_probs
        best_draft, best_target = draft.amax(-1, keepdim=True), target.amax(-1, keepdim=True)
        if self.rule == "chow":
            return best_draft >= 1 - self.alpha
        if self.rule == "diff":
            return best_draft >= best_target - self.alpha
        if self.rule == "opt":
            distance = tv_distance(view.target_probs, view.draft_probs).unsqueeze(-1)
            return best_draft >= best_target - self.alpha * distance
        if self.rule == "token_v1":
            return draft >= best_target - self.alpha
        if self.rule == "token_v2":
            return target >= best_target - self.alpha
        return target >= (1 - self.alpha) * best_target


class TypicalVerifier(PointwiseVerifier):
    """Typical acceptance: accept iff p(x) > min(threshold, alpha exp(-H(p))), else a sample of p.

    Lossy. At temperature 0 it is greedy decoding, as published: only the target's best token
    passes.

    Source: Cai et al. 2024, Medusa (arXiv:2401.10774). There the candidates come from extra heads
    and are not sampled; here x ~ q.
    """

    name = "typical"

    def __init__(self, threshold: float = 0.09, alpha: float = 0.3, bonus: str = "target") -> None:
        """Set the criterion.

        Args:
            threshold: Absolute bound on p(x), in [0, 1].
            alpha: Factor of exp(-entropy of p), at least 0.
            bonus: "target" (as published) or "verifier" (drawn from pi).

        Raises:
            ValueError: A value is out of range.
        """
        check_unit_interval("verifier.threshold", threshold)
        check_number("verifier.alpha", alpha)
        if not 0 <= alpha < math.inf:
            raise ValueError(f"verifier.alpha={alpha}: must be finite and >= 0")
        super().__init__(bonus, {"threshold": threshold, "alpha": alpha})
        self.threshold = threshold
        self.alpha = alpha

    def accept_table(self, view: ModelView) -> Tensor:
        """Return 1 for typical tokens, 0 for the others."""
        entropy = torch.special.entr(view.target_probs).sum(-1, keepdim=True)
        bound = (self.alpha * (-entropy).exp()).clamp(max=self.threshold)
        table: Tensor = (view.target_probs > bound).to(view.target_probs.dtype)
        return table

    def recovered_weights(self, view: ModelView) -> Tensor:
        """Return p."""
        return view.target_probs

    def passes_greedily(self, view: ModelView, draft_ids: Tensor) -> Tensor:
        """Return nothing beyond the target's best token, which always passes."""
        return torch.zeros_like(draft_ids, dtype=torch.bool)


def _kl(first: Tensor, second: Tensor) -> Tensor:
    """Return KL(first || second) in nats, [...]; infinite where second misses mass of first."""
    terms: Tensor = torch.special.xlogy(first, first) - torch.special.xlogy(first, second)
    return terms.sum(-1).clamp(min=0)


def _js(first: Tensor, second: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence in nats, [...], at most log 2."""
    middle = (first + second) / 2
    return (_kl(first, middle) + _kl(second, middle)) / 2


DIVERGENCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "js": _js,
    "kl": _kl,
    "tv": tv_distance,
}


class FuzzyVerifier(PointwiseVerifier):
    """Fuzzy speculative decoding: accept iff div(p, q) <= threshold, else a sample of p.

    The token itself has no say. Lossy. At temperature 0 the same test on the temperature-1
    distributions; the target's best token passes too.

    Source: Holsman et al. 2025 (arXiv:2502.20704).
    """

    name = "fuzzy"

    def __init__(self, threshold: float, divergence: str = "js", bonus: str = "target") -> None:
        """Set the criterion.

        Args:
            threshold: Largest divergence that is accepted, at least 0 (nats for js and kl).
            divergence: "js", "kl" (of p from q) or "tv".
            bonus: "target" (as published) or "verifier" (drawn from pi).

        Raises:
            ValueError: A value is out of range.
        """
        if divergence not in DIVERGENCES:
            raise ValueError(
                f"verifier.divergence={divergence!r}: must be one of {', '.join(DIVERGENCES)}"
            )
        check_number("verifier.threshold", threshold)
        if not threshold >= 0:
            raise ValueError(f"verifier.threshold={threshold}: must be at least 0")
        super().__init__(bonus, {"threshold": threshold, "divergence": divergence})
        self.threshold = threshold
        self.divergence = divergence

    def _is_near(self, view: ModelView) -> Tensor:
        distance: Tensor = DIVERGENCES[self.divergence](view.target_probs, view.draft_probs)
        is_near: Tensor = distance <= self.threshold
        return is_near

    def accept_table(self, view: ModelView) -> Tensor:
        """Return 1 for every token where the models are near, 0 elsewhere."""
        near = self._is_near(view).to(view.target_probs.dtype)
        return near.unsqueeze(-1).expand_as(view.target_probs)

    def recovered_weights(self, view: ModelView) -> Tensor:
        """Return p."""
        return view.target_probs

    def passes_greedily(self, view: ModelView, draft_ids: Tensor) -> Tensor:
        """Return where the models are near."""
        return self._is_near(view)


class MarginVerifier(PointwiseVerifier):
    """The lossless rule, but a close race of the target's two best tokens lets either of them pass.

    With v1, v2 the two most probable tokens of the target before temperature: where
    p(v2) >= theta p(v1), a drafted v1 or v2 passes for certain; every other token is judged by
    min(1, p / q) with residual norm((p - q)+). Lossy.

    At temperature 0 the target's best token passes, and the second one in a close race.

    Source: after Song et al. 2026, MARS (arXiv:2601.15498), which lets the runner-up pass where the
    target is undecided. Two things are ours: the margin is a ratio of probabilities (the paper
    reads it off the logits, whose ratio depends on their offset), and tokens behind the runner-up
    keep the lossless test. So numbers of this rule are not numbers of theirs.
    """

    name = "margin"

    def __init__(self, theta: float, bonus: str = "target") -> None:
        """Set the margin.

        Args:
            theta: Least ratio of second to best probability that counts as close, in [0, 1].
            bonus: "target" or "verifier" (drawn from pi).

        Raises:
            ValueError: A value is out of range.
        """
        check_unit_interval("verifier.theta", theta)
        super().__init__(bonus, {"theta": theta})
        self.theta = theta

    def _top_two(self, view: ModelView) -> tuple[Tensor, Tensor]:
        """Return the ids of the two best tokens, [B, n, 2], and where they are close, [B, n]."""
        top = view.plain_target_probs.topk(2, dim=-1)
        return top.indices, top.values[..., 1] >= self.theta * top.values[..., 0]

    def accept_table(self, view: ModelView) -> Tensor:
        """Return min(1, p / q), and 1 for two close best tokens."""
        ids, is_close = self._top_two(view)
        table = accept_ratio(view.target_probs, view.draft_probs)
        passing = torch.where(is_close.unsqueeze(-1), 1.0, table.gather(-1, ids))
        return table.scatter(-1, ids, passing)

    def recovered_weights(self, view: ModelView) -> Tensor:
        """Return (p - q)+."""
        return residual(view.target_probs, view.draft_probs)

    def passes_greedily(self, view: ModelView, draft_ids: Tensor) -> Tensor:
        """Return whether the token is the second of a close race."""
        ids, is_close = self._top_two(view)
        return is_close & (draft_ids == ids[..., 1])


VERIFIERS: dict[str, Callable[..., Verifier | AutoregressiveVerifier]] = {
    rule.name: rule
    for rule in (
        AutoregressiveVerifier,
        LosslessVerifier,
        LenientVerifier,
        StaticVerifier,
        CascadeVerifier,
        DiversedVerifier,
        TypicalVerifier,
        FuzzyVerifier,
        MarginVerifier,
    )
}
"""Every rule by its one name; `diversed` takes a head."""


def make_verifier(name: str, **settings: object) -> Verifier | AutoregressiveVerifier:
    """Return a rule by name.

    Args:
        name: One of `VERIFIERS`.
        settings: As in the rule's constructor.

    Raises:
        ValueError: The name or a setting is unknown, or a value is out of range.
    """
    if name not in VERIFIERS:
        raise ValueError(f"verifier={name!r}: must be one of {', '.join(VERIFIERS)}")
    try:
        return VERIFIERS[name](**settings)
    except TypeError as error:
        raise ValueError(f"verifier={name}: {error}") from error
