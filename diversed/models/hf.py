"""The one adapter from a transformers model and its cache to `core.lm.LanguageModel`.

Every row's cache entries stand next to each other, ending at the right edge; what a row lacks is
padding on the left. Rolling back moves rows to the right edge again, so slots and positions differ
by a constant per row: sliding windows that count slots stay right, and rejected entries never pile
up.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from diversed.core.types import StepOutput
from diversed.models.cache import align_cache, joined_cache, new_cache, repeated_cache

_FORGETFUL_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)
"""Cache layers of keys and values alone: what rolls back by choosing slots."""

_ROUNDING = {torch.float32: 0.02, torch.float64: 0.02}
_COARSE_ROUNDING = 0.5
"""Largest difference of two ways to the same logits that may be rounding, in standard deviations
of the logits over the vocabulary; by the model's dtype, and for all shorter or quantised ones."""

_LENGTHS_APART = 32
"""By how many tokens, beside a quarter, prompts that are read in one call may differ in length."""

_LEAST_SAVED = 256
"""Tokens that reading a common beginning once must save to be worth a call of its own."""

_Text = tuple[int, ...]


class UnsupportedModelError(ValueError):
    """The model cannot be decoded speculatively; the message says why."""


def context_length(config: PreTrainedConfig) -> int:
    """Return how many tokens a model can read, prompt and completion together.

    LongRoPE turns to other frequencies when a text outgrows the length before extension: the cache
    would no longer fit, and a row would depend on its batch. So that length is the limit.
    """
    config = config.get_text_config()
    limits = [getattr(config, "max_position_embeddings", None)]
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if parameters.get("rope_type") == "longrope":
            limits.append(parameters.get("original_max_position_embeddings"))
    return min((limit for limit in limits if limit is not None), default=sys.maxsize)


@dataclass(frozen=True)
class _Traits:
    """What is found out once about a model.

    Attributes:
        width: Width of its logits, padding included.
        uses_base: Whether base model and output head give the model's own logits. They do not where
            a model scales or caps its logits; then the whole model is called.
    """

    width: int
    uses_base: bool


_traits: WeakKeyDictionary[PreTrainedModel, _Traits] = WeakKeyDictionary()


class HFLanguageModel:
    """A transformers causal model as the decoding loop sees it.

    The cache holds everything (no sliding layer forgets), so any entry can be dropped again. A text
    that outgrows the model's context is a ValueError. A model is examined when it is wrapped for
    the first time.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        """Wrap a model.

        Args:
            model: In eval mode, with an output head; stays where it is.
            vocab_size: V, number of ids that the tokenizer knows; wider logits are cut.

        Raises:
            UnsupportedModelError: The model is no causal decoder, its cache cannot forget, or its
                logits are narrower than V.
        """
        self.model = model
        self.vocab_size = vocab_size
        self._name = model.config.name_or_path or type(model).__name__
        self._base = model.base_model
        self._output_head = model.get_output_embeddings()
        self._context_length = context_length(model.config)
        if model not in _traits:
            _traits[model] = self._examine()
        self._uses_base = _traits[model].uses_base
        if _traits[model].width < vocab_size:
            raise UnsupportedModelError(
                f"model {self._name} gives {_traits[model].width} logits, but its tokenizer knows "
                f"{vocab_size} ids"
            )

    def _examine(self) -> _Traits:
        """Return the model's traits, or refuse it."""
        config = self.model.config
        if config.is_encoder_decoder:
            raise UnsupportedModelError(
                f"model {self._name} is an encoder-decoder model: speculative decoding here needs "
                "a causal decoder"
            )
        layers = [] if self.model._is_stateful else DynamicCache(config=config).layers
        if not layers or not all(type(layer) in _FORGETFUL_LAYERS for layer in layers):
            raise UnsupportedModelError(self._cannot_forget())
        try:
            return self._probe()
        except (UnsupportedModelError, torch.OutOfMemoryError):
            raise
        except (AttributeError, TypeError, ValueError, LookupError, RuntimeError) as error:
            raise UnsupportedModelError(
                f"model {self._name} cannot be called step by step with a cache "
                f"({type(error).__name__}: {error})"
            ) from error

    @torch.no_grad()
    def _probe(self) -> _Traits:
        """Compare steps of a padded batch that forgets a token with one plain pass."""
        device = self.model.device
        width = self.model.get_input_embeddings().weight.shape[0]
        middle = min(width, self.vocab_size) // 2  # special tokens stand at the ends
        first, second, third, fourth = ((middle + n) % width for n in range(4))
        ids = torch.tensor([[first, second, fourth]], device=device)
        plain = self.model(input_ids=ids, use_cache=False).logits
        self._uses_base = False
        if self._output_head is not None and self._base is not self.model:
            hidden = self._base(input_ids=ids, use_cache=False).last_hidden_state
            self._uses_base = torch.equal(self._output_head(hidden), plain)

        prompts = torch.tensor([[first, first, second], [first, second, third]], device=device)
        mask = torch.tensor([[False, True, True], [True, True, True]], device=device)
        self.start(prompts, mask)
        before = self.step(torch.tensor([[second, third], [third, fourth]], device=device))
        if not self._cache.is_croppable or self.cache_width != 4:
            raise UnsupportedModelError(self._cannot_forget())
        self.retain(torch.arange(2, device=device), torch.tensor([1, 0], device=device))
        after = self.step(torch.tensor([[fourth], [first]], device=device))
        if self._differs(before.logits[0, 0], plain[0, 1]):
            raise UnsupportedModelError(
                f"model {self._name} gives other logits in steps behind padding than in one pass: "
                "it is not causal, counts positions in a way of its own, or keeps more than its "
                "cache"
            )
        if self._differs(after.logits[0, 0], plain[0, 2]):
            raise UnsupportedModelError(self._cannot_forget())
        self._reset(1, device)
        return _Traits(width=plain.shape[-1], uses_base=self._uses_base)

    def _differs(self, got: Tensor, wanted: Tensor) -> bool:
        """Return whether logits [V] differ by more than rounding, on the scale of their spread."""
        tolerance = _ROUNDING.get(self.model.dtype, _COARSE_ROUNDING)
        wanted = wanted[: got.numel()]
        gap = (got.float() - wanted.float()).abs().max()
        return bool(gap > tolerance * wanted.float().std(correction=0))

    def _cannot_forget(self) -> str:
        return (
            f"model {self._name} has a cache that cannot forget rejected tokens (linear attention "
            "or another recurrent state): speculative decoding needs one that can"
        )

    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        """Forget everything and read all but the last token of each prompt.

        Equal prompts are read once, so is what all of them begin with, and prompts of much
        different lengths are read in calls of their own: padding costs as much as tokens do.
        """
        self._reset(prompt_ids.shape[0], prompt_ids.device)
        self._lengths = prompt_mask[:, :-1].sum(1)
        longest = int(self._lengths.max())
        if longest == 0:
            return
        self._check_room(longest)
        self._has_padding = int(self._lengths.min()) < longest
        texts = _texts(prompt_ids[:, :-1], self._lengths)
        distinct = list(dict.fromkeys(texts))
        stem = _stem(distinct)
        stem_cache = self._read([stem], None) if stem else None
        groups = _groups_of_like_length(distinct)
        parts = [self._read([text[len(stem) :] for text in group], stem_cache) for group in groups]
        if len(parts) == 1 and len(distinct) == len(texts) and not self._has_padding:
            self._cache = parts[0]
            return
        order: list[int] = []
        for part, group in zip(parts, groups, strict=True):
            place = {text: number for number, text in enumerate(group)}
            rows = [row for row, text in enumerate(texts) if text in place]
            chosen = torch.tensor([place[texts[row]] for row in rows], device=prompt_ids.device)
            align_cache(part, chosen, self._lengths[rows], longest)
            order += rows
        self._cache = joined_cache(parts, order)

    def _read(self, texts: Sequence[_Text], stem: Cache | None) -> Cache:
        """Return a new cache that has read texts, padded on the right, each behind the stem."""
        width = max(1, max(map(len, texts)))
        ids = [[*text, *[0] * (width - len(text))] for text in texts]
        cache = new_cache() if stem is None else repeated_cache(stem, len(texts))
        self._base(
            input_ids=torch.tensor(ids, device=self.model.device), cache=cache, use_cache=True
        )
        return cache

    def step(self, input_ids: Tensor) -> StepOutput:
        """Read n more tokens of every row; see `LanguageModel.step`."""
        num_new = input_ids.shape[1]
        mask = positions = None
        if self._has_padding:
            width = self.cache_width + num_new
            slots = torch.arange(width, device=input_ids.device)
            first = width - num_new - self._lengths.unsqueeze(1)
            mask = (slots >= first).long()
            positions = self._lengths.unsqueeze(1) + slots[:num_new]
            # A row near the end of the context reads columns that only its companions drafted.
            positions = positions.clamp(max=self._context_length - 1)
        out = self._forward(input_ids, mask, positions)
        self._lengths = self._lengths + num_new
        return out

    def retain(self, rows: Tensor, num_drop: Tensor) -> None:
        """Keep some rows and drop the newest entries of each; see `LanguageModel.retain`."""
        is_same_batch = rows.numel() == self._lengths.numel()
        drops = set(num_drop.tolist())
        self._lengths = self._lengths[rows] - num_drop
        if is_same_batch and len(drops) == 1:
            drop = drops.pop()
            if drop:
                self._cache.crop(-drop)
        else:
            self._choose_slots(rows, num_drop)
        self._check_room(self.cache_width)

    def _choose_slots(self, rows: Tensor, num_drop: Tensor) -> None:
        """Move what is kept of each row to the right edge of a cache as wide as the longest."""
        old_width, new_width = self.cache_width, int(self._lengths.max())
        if new_width == 0:
            self._reset(rows.numel(), rows.device)
            return
        self._has_padding = int(self._lengths.min()) < new_width
        align_cache(self._cache, rows, old_width - num_drop, new_width)

    def _check_room(self, num_read: int) -> None:
        """Raise ValueError unless one more token fits the context of a row that has read most."""
        if num_read >= self._context_length:
            raise ValueError(
                f"model {self._name} has a context of {self._context_length} tokens: prompt and "
                "completion are longer"
            )

    @property
    def cache_width(self) -> int:
        """Number of cache slots per row, padding included."""
        return int(self._cache.get_seq_length())

    def _reset(self, batch_size: int, device: torch.device) -> None:
        self._cache = new_cache()
        self._lengths = torch.zeros(batch_size, dtype=torch.long, device=device)
        self._has_padding = False

    def _forward(
        self, input_ids: Tensor, mask: Tensor | None, positions: Tensor | None
    ) -> StepOutput:
        arguments = {
            "input_ids": input_ids,
            "attention_mask": mask,
            "position_ids": positions,
            "cache": self._cache,
            "use_cache": True,
        }
        if self._uses_base:
            hidden = self._base(**arguments).last_hidden_state
            logits = self._output_head(hidden)
        else:
            hidden, logits = self._call_whole(arguments)
        return StepOutput(logits=logits[..., : self.vocab_size], hidden=hidden)

    def _call_whole(self, arguments: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return what the output head read, and the model's own logits.

        The list of all hidden states may end otherwise than in what the head reads (Gemma 3n).
        """
        if self._output_head is None:
            out = self.model(**arguments, output_hidden_states=True)
            return out.hidden_states[-1], out.logits
        seen: list[Tensor] = []
        hook = self._output_head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            logits = self.model(**arguments).logits
        finally:
            hook.remove()
        return seen[0], logits


def _texts(ids: Tensor, lengths: Tensor) -> list[_Text]:
    """Return the tokens of left-padded [B, T] ids, without what stands in padding."""
    lines = zip(ids.tolist(), lengths.tolist(), strict=True)
    return [tuple(line[len(line) - length :]) for line, length in lines]


def _stem(texts: Sequence[_Text]) -> _Text:
    """Return what different texts begin with, or nothing where that would save too little."""
    first, last = min(texts), max(texts)
    pairs = enumerate(zip(first, last, strict=False))
    length = next((n for n, (a, b) in pairs if a != b), min(len(first), len(last)))
    return first[:length] if length * (len(texts) - 1) >= _LEAST_SAVED else ()


def _groups_of_like_length(texts: Sequence[_Text]) -> list[list[_Text]]:
    """Return texts in groups, the shorter ones first; in a group as they stood."""
    groups: list[list[int]] = []
    shortest = 0
    for place in sorted(range(len(texts)), key=lambda place: len(texts[place])):
        if not groups or len(texts[place]) > shortest + shortest // 4 + _LENGTHS_APART:
            groups.append([])
            shortest = len(texts[place])
        groups[-1].append(place)
    return [[texts[place] for place in sorted(group)] for group in groups]
