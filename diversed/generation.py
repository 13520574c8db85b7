"""Texts in, texts out: the decoder that evaluation, training and users call."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diversed.core.kernel import Verifier
from diversed.core.loop import (
    DecodeSettings,
    EndFinder,
    autoregressive_decode,
    speculative_decode,
)
from diversed.core.types import DecodeResult
from diversed.core.verifiers import AutoregressiveVerifier, DiversedVerifier
from diversed.models.checkpoint import load_head
from diversed.models.head import EnsembleHead
from diversed.models.loading import ModelPair
from diversed.tasks.base import Prompt


class PromptError(ValueError):
    """A prompt cannot be decoded; the message names it and the limit."""


@dataclass(frozen=True)
class Generation:
    """Completions of a batch of prompts.

    Attributes:
        texts: Completions, without their end token or stop string.
        result: Ids, end reasons, counts and per-token trace.
    """

    texts: list[str]
    result: DecodeResult


def row_key(*parts: object) -> int:
    """Return a 63-bit key of a row's identity, such as a prompt's id and a sample's number."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def head_verifier(
    head: EnsembleHead, dial: float = 0.0, bonus: str = "verifier"
) -> DiversedVerifier:
    """Return the verifier of a head in memory; arguments as in `DiversedVerifier`."""
    return DiversedVerifier(head, uses_features=head.uses_features, dial=dial, bonus=bonus)


def checkpoint_verifier(
    pair: ModelPair, checkpoint: str, dial: float = 0.0, bonus: str = "verifier"
) -> DiversedVerifier:
    """Return the verifier of a saved head; see `load_head` for what `checkpoint` may be."""
    return head_verifier(load_head(checkpoint, pair), dial, bonus)


class SpeculativeDecoder:
    r"""A model pair, a verification rule and decoding settings.

    Example:
        >>> from diversed.core.loop import DecodeSettings
        >>> from diversed.core.verifiers import LosslessVerifier
        >>> from diversed.models.loading import load_tiny_pair
        >>> pair = load_tiny_pair()
        >>> decoder = SpeculativeDecoder(pair, LosslessVerifier(), DecodeSettings(max_new_tokens=8))
        >>> generation = decoder.generate(["Ada has 3 pens. How many pens are there?\n"])
        >>> len(generation.result.token_ids[0])
        8
    """

    def __init__(
        self,
        pair: ModelPair,
        verifier: Verifier | AutoregressiveVerifier,
        settings: DecodeSettings,
        stop_strings: Sequence[str] = (),
    ) -> None:
        """Set up decoding.

        Args:
            pair: Target, draft and tokenizer.
            verifier: The rule.
            settings: Lengths, sampling and seed; end ids are taken from the pair if it has none.
            stop_strings: Strings that end a completion.
        """
        self.pair = pair
        self.verifier = verifier
        self.settings = replace(settings, eos_ids=settings.eos_ids or pair.eos_ids)
        self.stop_strings = tuple(stop_strings)

    def generate(
        self, prompts: Sequence[Prompt], row_keys: Sequence[int] | None = None
    ) -> Generation:
        """Complete prompts in one batch.

        Args:
            prompts: Non-empty texts, or conversations for the tokenizer's chat template.
            row_keys: One per prompt, naming its random numbers; default: the prompt's index.

        Returns:
            Texts, ids, counts and trace.

        Raises:
            PromptError: A prompt is empty, or too long for the models' context.
        """
        prompt_ids, prompt_mask = self._encode(prompts)
        keys = torch.tensor(
            range(len(prompts)) if row_keys is None else list(row_keys), dtype=torch.long
        ).to(self.pair.device)
        find_end = self._end_finder() if self.stop_strings else None
        if isinstance(self.verifier, AutoregressiveVerifier):
            result = autoregressive_decode(
                self.pair.target, prompt_ids, prompt_mask, keys, self.settings, find_end
            )
        else:
            result = speculative_decode(
                self.pair.target,
                self.pair.draft,
                self.verifier,
                prompt_ids,
                prompt_mask,
                keys,
                self.settings,
                find_end,
            )
        return Generation(texts=[self._decode(ids) for ids in result.token_ids], result=result)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Return the ids of one prompt; PromptError if it is empty or too long."""
        ids = self.prompt_ids(prompt)
        needed = len(ids) + self.settings.max_new_tokens
        if needed > self.pair.context_length:
            raise PromptError(
                f"decoding.max_new_tokens={self.settings.max_new_tokens}: with a prompt of "
                f"{len(ids)} tokens it needs a context of {needed}, the models' is "
                f"{self.pair.context_length}"
            )
        return ids

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the ids of one prompt of any length; PromptError if there are none.

        A conversation goes through the tokenizer's chat template, with the turn of the assistant
        opened and, for templates that know it, thinking switched off.
        """
        tokenizer = self.pair.tokenizer
        if not prompt:
            raise PromptError("the prompt is empty: it needs at least one token")
        ids: list[int]
        if isinstance(prompt, str):
            ids = tokenizer(prompt).input_ids
        elif tokenizer.chat_template is None:
            raise PromptError(
                "the tokenizer has no chat template, so the model takes no conversations: set "
                "data.prompt=plain"
            )
        else:
            text = tokenizer.apply_chat_template(
                prompt, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
            ids = tokenizer(text, add_special_tokens=False).input_ids  # the template has them
        if not ids:
            raise PromptError("the prompt is empty: it needs at least one token")
        return ids

    def _encode(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """Return left-padded ids and their mask, on the pair's device."""
        if not prompts:
            raise PromptError("no prompt was given")
        rows = [self.encode_prompt(prompt) for prompt in prompts]
        width = max(map(len, rows))
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        mask = torch.zeros(len(rows), width, dtype=torch.bool)
        for index, row in enumerate(rows):
            ids[index, width - len(row) :] = torch.tensor(row)
            mask[index, width - len(row) :] = True
        return ids.to(self.pair.device), mask.to(self.pair.device)

    def _decode(self, ids: Tensor) -> str:
        text: str = self.pair.tokenizer.decode(ids.tolist(), skip_special_tokens=True)
        cuts = [text.find(stop) for stop in self.stop_strings if stop in text]
        return text[: min(cuts)] if cuts else text

    def _end_finder(self) -> EndFinder:
        """Return a function that finds the token which completes a stop string."""
        tokenizer = self.pair.tokenizer
        # A stop string of n bytes spans at most n tokens, so older tokens need no second look.
        window = max(len(stop.encode()) for stop in self.stop_strings)

        def has_stop(ids: list[int]) -> bool:
            text = tokenizer.decode(ids, skip_special_tokens=True)
            return any(stop in text for stop in self.stop_strings)

        def find_end(ids: list[int], first: int) -> int | None:
            start = max(0, first - window)
            if not has_stop(ids[start:]):
                return None
            return next(
                index for index in range(first, len(ids)) if has_stop(ids[start : index + 1])
            )

        return find_end
