"""A frozen draft made trainable, whole or through LoRA, and frozen again.

What is trained is fp32, whatever the pair's dtype: updates of a bf16 weight would mostly be rounded
away.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
from torch import nn

from diversed.core.checks import check_at_least_one


@dataclass(frozen=True)
class LoraAdapter:
    """Low-rank updates of linear layers, trained in place of their weights.

    ValueError where a setting is out of range, or `peft` is not installed.

    Attributes:
        rank: Of each update.
        alpha: Updates are scaled by alpha / rank.
        dropout: Of what the updates read, while training.
        target_modules: "all-linear" (all but the output head), or names of layers.

    Source: Hu et al. 2021, "LoRA", in the library `peft`.
    """

    name: ClassVar[str] = "lora"

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    target_modules: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        check_at_least_one("adapter.rank", self.rank)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"adapter.dropout={self.dropout}: must lie in [0, 1)")
        if find_spec("peft") is None:
            raise ValueError("adapter=lora needs the library peft: pip install 'diversed[lora]'")

    def attach(self, model: nn.Module) -> nn.Module:
        """Put updates of zero on a frozen model; they alone require a gradient, and are fp32.

        Raises:
            ValueError: The model has no such layers.
        """
        from peft import LoraConfig, get_peft_model  # an extra, and slow to import

        modules = self.target_modules
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=modules if isinstance(modules, str) else list(modules),
            task_type="CAUSAL_LM",
        )
        with warnings.catch_warnings():  # peft 0.21 reads what transformers 5 has renamed
            warnings.filterwarnings("ignore", ".is_gradient_checkpointing. is deprecated")
            try:
                adapted: nn.Module = get_peft_model(model, config)
            except ValueError as error:
                raise ValueError(f"adapter.target_modules={modules}: {error}") from error
        return adapted


class TrainableDraft:
    """A frozen draft that is made trainable in place, and frozen again.

    Attributes:
        model: What to train.
    """

    def __init__(self, draft: nn.Module, adapter: LoraAdapter | None = None) -> None:
        """Make all of a draft trainable, in fp32, or put an adapter on it.

        Args:
            draft: A transformers model without gradients.
            adapter: What is trained in place of the weights.
        """
        self._dtypes = {name: weights.dtype for name, weights in draft.named_parameters()}
        self._has_adapter = adapter is not None
        if adapter is None or torch.float16 in self._dtypes.values():  # its gradients underflow
            _cast_parameters(draft, {})
        draft.requires_grad_(adapter is None)
        self.model: Any = draft if adapter is None else adapter.attach(draft)
        self.model.train()

    def frozen(self) -> Any:
        """Return the draft with what it has learnt in its own weights, of their old dtypes."""
        draft = self.model
        if self._has_adapter:
            _cast_parameters(draft, {})  # rounds once, after the sum
            draft = draft.merge_and_unload()
        _cast_parameters(draft, self._dtypes)
        return draft.requires_grad_(False).eval()


def _cast_parameters(model: nn.Module, dtypes: Mapping[str, torch.dtype]) -> None:
    """Cast parameters to their dtypes, by default fp32; buffers stay (positions need fp32)."""
    for name, weights in model.named_parameters():
        weights.data = weights.data.to(dtypes.get(name, torch.float32))
