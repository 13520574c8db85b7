"""The one adapter from a transformers model and its cache to `core.lm.LanguageModel`.

Every row's cache entries stand next to each other, ending at the right edge; what a row lacks is
padding on the left. Rolling back moves rows to the right edge again, so slots and positions differ
by a constant per row: sliding windows that count slots stay right, and rejected entries never pile
up.
"""

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DummyLayer, DynamicLayer, DynamicSlidingWindowLayer

from diversed.core.types import StepOutput
from diversed.models.cache import new_cache

_FORGETFUL_LAYERS = (DynamicLayer, DynamicSlidingWindowLayer, DummyLayer)
"""Cache layers of keys and values alone: what rolls back by choosing slots."""


class UnsupportedModelError(ValueError):
    """The model cannot be decoded speculatively; the message says why."""


class HFLanguageModel:
    """A transformers causal model as the decoding loop sees it.

    The cache holds everything (no sliding layer forgets), so any entry can be dropped again.
    """

    def __init__(self, model: PreTrainedModel, vocab_size: int) -> None:
        """Wrap a model.

        Args:
            model: In eval mode, with an output head; stays where it is.
            vocab_size: V, number of ids that the tokenizer knows; wider logits are cut.

        Raises:
            UnsupportedModelError: The logits are narrower than V, or the cache cannot forget.
        """
        self.model = model
        self.vocab_size = vocab_size
        self._name = model.config.name_or_path or type(model).__name__
        self._base = model.base_model
        self._output_head = model.get_output_embeddings()
        self._uses_base = self._output_head is not None and self._base is not model
        self._probe()

    @torch.no_grad()
    def _probe(self) -> None:
        """Check the cache and whether base model and output head give the model's own logits.

        They do not where a model scales or caps its logits; then the whole model is called.
        """
        device = self.model.device
        layers = DynamicCache(config=self.model.config).layers
        if not all(type(layer) in _FORGETFUL_LAYERS for layer in layers):
            raise UnsupportedModelError(self._cannot_forget())
        ids = torch.tensor([[0, 1]], device=device)
        self._reset(1, device)
        wanted = self.model(input_ids=ids, cache=self._cache, use_cache=True).logits
        if wanted.shape[-1] < self.vocab_size:
            raise UnsupportedModelError(
                f"model {self._name} gives {wanted.shape[-1]} logits, but its tokenizer knows "
                f"{self.vocab_size} ids"
            )
        if not self._cache.is_croppable or self.cache_width != ids.shape[1]:
            raise UnsupportedModelError(self._cannot_forget())
        if self._uses_base:
            self._reset(1, device)
            got = self._forward(ids, None, None).logits
            wanted = wanted[..., : self.vocab_size]
            self._uses_base = torch.equal(got.float(), wanted.float())
        self._reset(1, device)

    def _cannot_forget(self) -> str:
        return (
            f"model {self._name} has a cache that cannot forget rejected tokens (linear attention "
            "or another recurrent state): speculative decoding needs one that can"
        )

    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        """Forget everything and read all but the last token of each prompt."""
        self._reset(prompt_ids.shape[0], prompt_ids.device)
        prefix_ids, prefix_mask = prompt_ids[:, :-1], prompt_mask[:, :-1]
        if prefix_ids.shape[1] == 0:
            return
        self._lengths = prefix_mask.sum(1)
        self._has_padding = not bool(prefix_mask.all())
        mask = positions = None
        if self._has_padding:
            mask = prefix_mask.long()
            positions = (mask.cumsum(1) - 1).clamp(min=0)
        self._base(
            input_ids=prefix_ids,
            attention_mask=mask,
            position_ids=positions,
            cache=self._cache,
            use_cache=True,
        )

    def step(self, input_ids: Tensor) -> StepOutput:
        """Read n more tokens of every row; see `LanguageModel.step`."""
        num_new = input_ids.shape[1]
        mask = positions = None
        if self._has_padding:
            width = self._cache.get_seq_length() + num_new
            slots = torch.arange(width, device=input_ids.device)
            first = width - num_new - self._lengths.unsqueeze(1)
            mask = (slots >= first).long()
            positions = self._lengths.unsqueeze(1) + slots[:num_new]
        out = self._forward(input_ids, mask, positions)
        self._lengths = self._lengths + num_new
        return out

    def retain(self, rows: Tensor, num_drop: Tensor) -> None:
        """Keep some rows and drop the newest entries of each; see `LanguageModel.retain`."""
        is_same_batch = rows.numel() == self._lengths.numel()
        drops = num_drop.unique().tolist()
        self._lengths = self._lengths[rows] - num_drop
        if is_same_batch and len(drops) == 1:
            if drops[0]:
                self._cache.crop(-drops[0])
            return
        old_width = self._cache.get_seq_length()
        new_width = int(self._lengths.max())
        if new_width == 0:
            self._reset(rows.numel(), rows.device)
            return
        self._has_padding = int(self._lengths.min()) < new_width
        ends = old_width - num_drop.unsqueeze(1)
        slots = (ends - new_width + torch.arange(new_width, device=rows.device)).clamp(min=0)
        for layer in self._cache.layers:
            if layer.is_initialized:
                layer.choose(rows, slots)

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
            out = self.model(**arguments, output_hidden_states=True)
            hidden, logits = out.hidden_states[-1], out.logits
        return StepOutput(logits=logits[..., : self.vocab_size], hidden=hidden)
