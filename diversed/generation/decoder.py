"""Texts in, texts out: the decoder that evaluation, training and users call."""

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from tqdm.auto import tqdm

from diversed.core.kernel import Verifier
from diversed.core.loop import DecodeSettings, Listener, autoregressive_decode, speculative_decode
from diversed.core.types import BlockEmission, DecodeResult
from diversed.core.verifiers import AutoregressiveVerifier, DiversedVerifier
from diversed.generation.stops import cut_at_stop, stop_finder
from diversed.models.checkpoint import load_head
from diversed.models.head import EnsembleHead
from diversed.models.loading import ModelPair
from diversed.tasks.base import Prompt

DEFAULT_NEW_TOKENS = 128


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
    """Return the verifier of a head in memory; arguments as in `DiversedVerifier`.

    That of a control goes by a name of its own, such as "prompt_head".
    """
    verifier = DiversedVerifier(head, uses_features=head.uses_features, dial=dial, bonus=bonus)
    if head.reads != "hidden":
        verifier.name = f"{head.reads}_head"
    return verifier


def head_reads(verifier: Verifier | AutoregressiveVerifier) -> str:
    """Return which hidden states a verifier needs, one of `models.head.HEAD_READS`.

    A head on the scalar features is content with any: "hidden".
    """
    head = verifier.head if isinstance(verifier, DiversedVerifier) else None
    reads = head.reads if isinstance(head, EnsembleHead) else "hidden"
    return "hidden" if reads == "features" else reads


def check_reads(verifier: Verifier | AutoregressiveVerifier, reads: str) -> None:
    """Raise ValueError unless a verifier's head reads what the models hand it."""
    wanted = head_reads(verifier)
    if wanted != reads:
        raise ValueError(
            f"head.reads={wanted!r}: this pair hands on {reads!r}; a control's head decodes "
            "through train.py and eval.py, or with a pair from diversed.controls.read_as"
        )


def checkpoint_verifier(
    pair: ModelPair, checkpoint: str, dial: float = 0.0, bonus: str = "verifier"
) -> DiversedVerifier:
    """Return the verifier of a saved head; see `load_head` for what `checkpoint` may be."""
    return head_verifier(load_head(checkpoint, pair), dial, bonus)


class SpeculativeDecoder:
    r"""A model pair, a verification rule and decoding settings.

    Example:
        >>> from diversed import DecodeSettings, LosslessVerifier
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
        settings: DecodeSettings | None = None,
        stop_strings: str | Sequence[str] = (),
    ) -> None:
        """Set up decoding.

        Args:
            pair: Target, draft and tokenizer.
            verifier: The rule.
            settings: Lengths, sampling and seed; end ids are taken from the pair if it has none.
                Default: up to `DEFAULT_NEW_TOKENS` tokens, sampled at temperature 1.
            stop_strings: Strings that end a completion; a single one may stand for itself.

        Raises:
            ValueError: A stop string is empty, or the verifier's head reads something else than the
                pair's hidden states.
        """
        stop_strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
        if "" in stop_strings:
            raise ValueError("stop_strings holds an empty string: it would end every completion")
        settings = settings or DecodeSettings(max_new_tokens=DEFAULT_NEW_TOKENS)
        check_reads(verifier, pair.reads)
        self.pair = pair
        self.verifier = verifier
        self.settings = replace(settings, eos_ids=settings.eos_ids or pair.eos_ids)
        self.stop_strings = stop_strings

    def generate(
        self,
        prompts: Sequence[Prompt],
        row_keys: Sequence[int] | None = None,
        *,
        show_progress: bool = True,
    ) -> Generation:
        """Complete prompts in one batch.

        Args:
            prompts: Non-empty texts, or conversations for the tokenizer's chat template.
            row_keys: One per prompt, naming its random numbers; default: the prompt's index.
            show_progress: Show a bar on a terminal when decoding takes longer than two seconds.

        Returns:
            Texts, ids, counts and trace.

        Raises:
            PromptError: A prompt is empty, or too long for the models' context.
        """
        prompt_ids, prompt_mask = self._encode(prompts)
        keys = torch.tensor(
            range(len(prompts)) if row_keys is None else list(row_keys), dtype=torch.long
        ).to(self.pair.device)
        find_end = None
        if self.stop_strings:
            find_end = stop_finder(self.pair.tokenizer, self.stop_strings)
        inputs = (prompt_ids, prompt_mask, keys, self.settings, find_end)
        is_shown = show_progress and sys.stderr.isatty()
        with _rows_bar(len(prompts)) if is_shown else nullcontext() as bar:
            if isinstance(self.verifier, AutoregressiveVerifier):
                result = autoregressive_decode(self.pair.target, *inputs, bar)
            else:
                result = speculative_decode(
                    self.pair.target, self.pair.draft, self.verifier, *inputs, bar
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
        return cut_at_stop(text, self.stop_strings)


@contextmanager
def _rows_bar(num_rows: int) -> Iterator[Listener]:
    """Show how many rows of a batch are complete, once decoding takes longer than two seconds.

    Yields:
        What the decoding loop tells of its blocks.
    """
    with tqdm(total=num_rows, unit="row", delay=2, leave=False) as bar:

        def follow(emission: BlockEmission) -> None:
            bar.update(sum(emission.has_ended))

        yield follow
