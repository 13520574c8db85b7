"""What a request to transformers' `generate` asks for, in this decoder's words.

Reads what transformers hands to a `custom_generate` callable. What cannot be honoured is refused
with a ValueError that names it.
"""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from diversed.core.probs import Sampling
from diversed.models.hf import context_length

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "use_cache": (None, True),
    "cache_implementation": (None, "dynamic"),
    "token_healing": (None, False),
    "output_scores": (None, False),
    "output_logits": (None, False),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "stop_strings": (None,),
    "max_time": (None,),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "assistant_ensemble_weight": (None,),
    "use_mtp": (None, False),
    "speculation_type": (None,),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "constraints": (None,),
    "force_words_ids": (None,),
}
"""Settings that have no part in this decoder, with the values that ask for nothing."""

_HINTS = {
    "stop_strings": "bind stop_strings and tokenizer in the partial",
    "assistant_ensemble_weight": "bind verifier=StaticVerifier(weight)",
}

_KNOWN_ARGUMENTS = {"attention_mask", "position_ids", "cache", "logits_to_keep", "use_cache"}
"""Model arguments of every request; all but the mask the adapter makes itself."""

_WARPERS = {
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
}
"""Processors that `Sampling` does as well, in its order, and their setting."""


def check_config(config: GenerationConfig) -> None:
    """Raise ValueError, naming the setting, for one that this decoder cannot honour."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(config, name, None)
        if not any(value is allowed or value == allowed for allowed in neutral):
            hint = f"; {_HINTS[name]}" if name in _HINTS else ""
            raise ValueError(f"{name}={value!r}: diversed_generate cannot honour it{hint}")


def read_prompts(
    input_ids: Tensor, model_arguments: dict[str, Any], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return left-padded prompts and their mask.

    Args:
        input_ids: From transformers, int64 [B, T].
        model_arguments: What transformers prepared for the model's forward call.
        device: The target's.

    Returns:
        Ids, 0 in padding, and mask, True where a token counts; both [B, T], on the device.

    Raises:
        ValueError: There is other input than token ids, a filled cache, or positions of the
            caller's own.
    """
    unknown = sorted(
        name
        for name, value in model_arguments.items()
        if name not in _KNOWN_ARGUMENTS and value is not None
    )
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: diversed_generate takes token ids only")
    cache = model_arguments.get("cache")
    if cache is not None and cache.get_seq_length() > 0:
        raise ValueError("cache: diversed_generate starts from the prompt, not from a filled cache")
    mask = model_arguments.get("attention_mask")
    if mask is None:  # transformers drops one that is all ones
        mask = torch.ones_like(input_ids)
    mask = mask.bool()
    positions = model_arguments.get("position_ids")
    if positions is not None:
        own = mask.cumsum(1) - 1
        if positions.shape[-1] != own.shape[-1] or bool(((positions != own) & mask).any()):
            raise ValueError("position_ids: diversed_generate counts each row's tokens from 0")
    # What stands in padding is never read, and may be an id that a model has no embedding for.
    return input_ids.masked_fill(~mask, 0).to(device), mask.to(device)


def read_ends(criteria: StoppingCriteriaList) -> tuple[int, tuple[int, ...]]:
    """Return the greatest length, prompt included, and the end ids.

    Raises:
        ValueError: There is any other criterion, or no length.
    """
    lengths: list[int] = []
    eos_ids: list[int] = []
    for one in criteria:
        if type(one) is MaxLengthCriteria:
            lengths.append(one.max_length)
        elif type(one) is EosTokenCriteria:
            eos_ids += one.eos_token_id.tolist()
        else:
            raise ValueError(
                f"stopping criterion {type(one).__name__}: diversed_generate emits several tokens "
                "at a time and cannot ask it after each"
            )
    if not lengths:
        raise ValueError("max_length: diversed_generate needs one, or max_new_tokens")
    return min(lengths), tuple(eos_ids)


def read_sampling(config: GenerationConfig, processors: LogitsProcessorList) -> Sampling:
    """Return the transforms of the logits.

    Raises:
        ValueError: There is a processor that `Sampling` does not do, or not in this order.
    """
    warpers = [one for one in processors if type(one) is not LogitNormalization]  # changes no law
    foreign = [type(one).__name__ for one in warpers if not _is_ours(one)]
    if foreign:
        raise ValueError(
            f"logits processor {foreign[0]}: diversed_generate honours temperature, top_k and "
            "top_p only"
        )
    order = [list(_WARPERS).index(type(one)) for one in warpers]
    if order != sorted(set(order)):
        given = ", ".join(type(one).__name__ for one in warpers)
        raise ValueError(
            f"logits processors {given}: diversed_generate applies temperature, top_k and top_p in "
            "this order, each once"
        )
    if not config.do_sample:
        return Sampling(temperature=0)
    return Sampling(**{_WARPERS[type(one)]: getattr(one, _WARPERS[type(one)]) for one in warpers})


def _is_ours(processor: LogitsProcessor) -> bool:
    return (
        type(processor) in _WARPERS
        and getattr(processor, "filter_value", -math.inf) == -math.inf
        and getattr(processor, "min_tokens_to_keep", 1) == 1
    )


def shared_width(
    target: PreTrainedModel, draft: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> int:
    """Return the number of ids that both models know, and the tokenizer if it is given."""
    widths = [_num_ids(target), _num_ids(draft)]
    if tokenizer is not None:
        widths.append(max(tokenizer.get_vocab().values()) + 1)
    return min(widths)


def _num_ids(model: PreTrainedModel) -> int:
    number: int = model.get_input_embeddings().weight.shape[0]
    head = model.get_output_embeddings()
    return number if head is None else min(number, head.weight.shape[0])


def check_fit(
    prompt_ids: Tensor,
    mask: Tensor,
    max_length: int,
    models: tuple[PreTrainedModel, ...],
    width: int,
) -> None:
    """Raise ValueError for prompts that a model has no embedding or no position for.

    Args:
        prompt_ids: As from `read_prompts`, [B, T].
        mask: Likewise.
        max_length: Greatest length, prompt and its padding included.
        models: Target and draft.
        width: Number of ids that may be used.
    """
    highest = max(prompt_ids.flatten().tolist(), default=0)
    if highest >= width:
        raise ValueError(
            f"input_ids holds {highest}: target, draft and tokenizer share the ids below {width}"
        )
    longest = min(context_length(model.config) for model in models)
    needed = max_length - min((~mask).sum(1).tolist(), default=0)
    if needed > longest:
        raise ValueError(
            f"max_length={max_length}: the longest row needs a context of {needed}, the models' is "
            f"{longest}"
        )
