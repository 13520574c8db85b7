"""Weights by hand: how much of the head-room is in what any reader of the text would say."""

from collections.abc import Sequence

import torch
from torch import Tensor

from diversed.core.checks import check_unit_interval
from diversed.core.kernel import MixtureVerifier, ModelView
from diversed.figures.token_classes import DIGIT, TOKEN_CLASSES, token_class
from diversed.models.loading import ModelPair


class TokenRuleVerifier(MixtureVerifier):
    """w = 1 where the target expects a token of some classes or is sure of it, another w elsewhere.

    Lossy. A marker of head-room that nobody trained; not a published rule.
    """

    name = "token_rule"

    def __init__(
        self,
        pair: ModelPair,
        classes: Sequence[str] = (DIGIT,),
        threshold: float = 0.5,
        sure: float | None = None,
        elsewhere: float = 0.0,
        is_code: bool = False,
        bonus: str = "verifier",
    ) -> None:
        """Set the rule.

        Args:
            pair: Its tokenizer says what the tokens are.
            classes: Some of `figures.token_classes.TOKEN_CLASSES`.
            threshold: w = 1 where p puts more than this on them, in [0, 1].
            sure: Also w = 1 where max p is at least this; None: never for this reason.
            elsewhere: w everywhere else.
            is_code: Whether the text is a program; see `figures.token_classes.token_class`.
            bonus: As in `StaticVerifier`.

        Raises:
            ValueError: A value is out of range, or a class is unknown.
        """
        check_unit_interval("verifier.threshold", threshold)
        check_unit_interval("verifier.elsewhere", elsewhere)
        if sure is not None:
            check_unit_interval("verifier.sure", sure)
        if unknown := set(classes) - set(TOKEN_CLASSES):
            known = ", ".join(TOKEN_CLASSES)
            raise ValueError(f"verifier.classes holds {min(unknown)!r}: must be some of {known}")
        settings: dict[str, float | str] = {"classes": "+".join(classes), "threshold": threshold}
        settings |= {"elsewhere": elsewhere} | ({} if sure is None else {"sure": sure})
        super().__init__(bonus, settings)
        self.threshold = threshold
        self.sure = sure
        self.elsewhere = elsewhere
        self.is_meant = _of_classes(classes, pair, is_code=is_code).to(pair.device)

    def target_weight(self, view: ModelView) -> Tensor:
        """Return 1 where the rule says so, `elsewhere` at the rest, [B, n]."""
        probs = view.target_probs
        is_trusted = probs[..., self.is_meant].sum(-1) > self.threshold
        if self.sure is not None:
            is_trusted |= probs.amax(-1) >= self.sure
        return torch.where(is_trusted, 1.0, self.elsewhere)


def _of_classes(classes: Sequence[str], pair: ModelPair, *, is_code: bool) -> Tensor:
    """Return which ids are tokens of some classes, bool [V]."""
    texts = pair.tokenizer.batch_decode([[token] for token in range(pair.target.vocab_size)])
    return torch.tensor([token_class(text, is_code=is_code) in classes for text in texts])
