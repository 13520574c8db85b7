"""How much memory a pair needs, from the models' configs alone: no weights are loaded.

What is counted: the weights, the key-value caches (they hold every token; no sliding layer
forgets), the distributions over the vocabulary that a block works with, and the widest layer of the
prompt's pass, with fused attention. A draft that trains needs no caches, but gradients, the
optimiser's numbers and what every layer keeps for the backward pass. What is not counted: the
framework's own memory, on a GPU the better part of a gigabyte, and fragmentation.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

VOCAB_TENSORS = 9
"""Tensors [B, N + 1, V] of fp32 that a block holds at once, at most: measured over all rules."""

CACHE_ROOM = 1.25
"""Storage of a cache that has just grown, as a multiple of what is in it (`models.cache`)."""

_HEAD_INPUT_BYTES = 16
"""Of each number that a head reads: in fp32, standardised, joined, and with its gradient."""


_LOSS_BYTES = 12
"""Of each logit, beside itself: in fp32, its log-softmax and its gradient."""

_KEPT_OF_STATE, _KEPT_OF_GATE = 18, 4
"""Copies that a training layer keeps: of its hidden state, in fp32, and of its widest part."""


@dataclass(frozen=True)
class Workload:
    """What is decoded at once.

    Attributes:
        num_rows: B, rows decoded together.
        prompt_length: Tokens of the longest prompt.
        max_new_tokens: Most tokens of a completion.
        draft_length: N; 0 for plain decoding.
        keeps_head_inputs: Whether hidden states are kept, as training does.
    """

    num_rows: int
    prompt_length: int
    max_new_tokens: int
    draft_length: int
    keeps_head_inputs: bool = False

    @property
    def length(self) -> int:
        """Most tokens that a row's cache holds at any time."""
        return self.prompt_length + self.max_new_tokens + self.draft_length


@dataclass(frozen=True)
class PairMemory:
    """Bytes that a pair needs at its peak, by what they are for."""

    target_weights: int
    draft_weights: int
    target_cache: int
    draft_cache: int
    distributions: int
    activations: int
    head_inputs: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that training a draft needs at its peak, by what they are for."""

    weights: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(vars(self).values())


def num_parameters(config: PreTrainedConfig) -> int:
    """Return how many parameters the causal model of a config has, shared ones counted once."""
    number: int = model_without_weights(config, torch.float32).num_parameters()
    return number


def model_without_weights(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """Return the causal model of a config on the meta device."""
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=False
        )
    return model


def cache_bytes_per_token(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Return the bytes of one token's keys and values in all layers.

    2 x layers x key-value heads x size of a head x bytes of a number. An upper bound where layers
    share keys and values or have smaller ones.
    """
    config = config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(config.num_hidden_layers) * int(heads) * int(size) * dtype.itemsize


def pair_memory(
    target: PreTrainedConfig,
    draft: PreTrainedConfig,
    dtype: torch.dtype,
    vocab_size: int,
    workload: Workload,
) -> PairMemory:
    """Return what decoding needs.

    Args:
        target: Config of the target.
        draft: Config of the draft.
        dtype: Of weights and caches.
        vocab_size: V, ids that the tokenizer knows.
        workload: What is decoded at once.

    Returns:
        Bytes, an estimate from above but for the framework's own memory.
    """
    size, rows = dtype.itemsize, workload.num_rows
    slots = int(rows * workload.length * CACHE_ROOM)
    states = sum(config.get_text_config().hidden_size for config in (target, draft))
    kept = rows * workload.max_new_tokens * states if workload.keeps_head_inputs else 0
    return PairMemory(
        target_weights=num_parameters(target) * size,
        draft_weights=num_parameters(draft) * size,
        target_cache=slots * cache_bytes_per_token(target, dtype),
        draft_cache=slots * cache_bytes_per_token(draft, dtype),
        distributions=VOCAB_TENSORS * 4 * rows * (workload.draft_length + 1) * vocab_size,
        activations=rows
        * workload.prompt_length
        * max(_layer_width(target), _layer_width(draft))
        * size,
        head_inputs=kept * _HEAD_INPUT_BYTES,
    )


def _layer_width(config: PreTrainedConfig) -> int:
    """Return how many numbers per token a layer holds at once: residuals, projections, the gate."""
    return 4 * int(config.get_text_config().hidden_size) + 3 * _inner_size(config)


def _inner_size(config: PreTrainedConfig) -> int:
    config = config.get_text_config()
    return int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)


def training_memory(
    model: nn.Module,
    config: PreTrainedConfig,
    make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
    dtype: torch.dtype,
    num_rows: int,
    length: int,
) -> TrainingMemory:
    """Return what training a draft needs, without the target's weights.

    Args:
        model: The draft as it trains, on the meta device: weights that require a gradient get one.
        config: Of the draft.
        make_optimizer: Makes the optimiser, which takes one step on the meta device.
        dtype: That the layers compute in.
        num_rows: B, sequences of a batch.
        length: T, tokens of the longest sequence.

    Returns:
        Bytes; those of weights, gradients and optimiser are exact, those of the activations an
        estimate from above.
    """
    trained = [weights for weights in model.parameters() if weights.requires_grad]
    optimizer = make_optimizer(trained)
    for weights in trained:
        weights.grad = torch.empty_like(weights)
    optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    sizes, inner = config.get_text_config(), _inner_size(config)
    per_layer = _KEPT_OF_STATE * sizes.hidden_size * 4 + _KEPT_OF_GATE * inner * dtype.itemsize
    per_token = sizes.num_hidden_layers * per_layer
    per_token += sizes.vocab_size * (dtype.itemsize + _LOSS_BYTES)
    return TrainingMemory(
        weights=_size(model.parameters()),
        gradients=_size(trained),
        optimizer=_size(value for value in states if isinstance(value, Tensor)),
        activations=num_rows * length * per_token,
    )


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
