"""The door into transformers: `target.generate(custom_generate=...)`.

transformers prepares inputs, processors and ends, and hands over to the callable; nothing of
transformers is patched. What the request asks for and this decoder cannot do is refused by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer
from transformers.utils import ModelOutput

from diversed.core.kernel import Verifier
from diversed.core.loop import (
    DecodeSettings,
    autoregressive_decode,
    speculative_decode,
)
from diversed.core.probs import Sampling
from diversed.core.types import BlockEmission, DecodeCounts, DecodeResult, Trace
from diversed.core.verifiers import AutoregressiveVerifier
from diversed.generation.stops import stop_finder
from diversed.models.hf import HFLanguageModel

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


@dataclass
class SpeculativeOutput(ModelOutput):
    """What `generate(return_dict_in_generate=True)` returns.

    Attributes:
        sequences: Prompts and completions, padded on the right, int64 [B, T].
        counts: Integer counts per row.
        trace: Per-token trace of all rows.
        end_reasons: "eos", "stop" (a stop string) or "length" per row.
    """

    sequences: Tensor | None = None
    counts: DecodeCounts | None = None
    trace: Trace | None = None
    end_reasons: list[str] | None = None


def diversed_generate(  # the arguments are what transformers passes, and what a partial binds
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    *,
    draft: PreTrainedModel,
    verifier: Verifier | AutoregressiveVerifier,
    draft_length: int = 5,
    tokenizer: PreTrainedTokenizerBase | None = None,
    stop_strings: Sequence[str] = (),
    streamer: BaseStreamer | None = None,
    seed: int | None = None,
    **model_arguments: Any,
) -> Tensor | SpeculativeOutput:
    """Decode speculatively inside `target.generate`.

    Bind what is not transformers' with `functools.partial`:

        generate = partial(diversed_generate, draft=draft, verifier=StaticVerifier(0.8))
        target.generate(**inputs, custom_generate=generate, do_sample=True, top_k=0)

    Temperature, top-k, top-p, lengths, end ids, `num_return_sequences` and
    `return_dict_in_generate` of the request are honoured. transformers samples with top_k=50 unless
    told otherwise; so does this. It passes neither streamer nor tokenizer on to a callable and
    refuses stop_strings there, so they are bound as well.

    Args:
        model: The target, from transformers.
        input_ids: Prompts, padded on the left, int64 [B, T].
        logits_processor: From transformers; temperature, top-k and top-p only.
        stopping_criteria: From transformers; length and end-of-sequence only.
        generation_config: From transformers.
        draft: The cheap model, on the target's device. It must share the target's vocabulary; with
            logits of different widths only ids that both know are drawn.
        verifier: The rule; with `AutoregressiveVerifier` the draft is unused.
        draft_length: N.
        tokenizer: Needed for stop strings.
        stop_strings: Strings that end a completion; they stay in its ids.
        streamer: Fed with the prompt and then each block's tokens; one row only.
        seed: Seed of all random numbers; default: drawn from torch's global generator.
        model_arguments: What transformers prepares for the model; `attention_mask` is read.

    Returns:
        Ids of prompts and completions, padded on the right with the request's pad id, or a
        `SpeculativeOutput`.

    Raises:
        ValueError: The request asks for something that cannot be honoured; the message names it.
    """
    _check_request(generation_config, stopping_criteria, model_arguments)
    if stop_strings and tokenizer is None:
        raise ValueError("stop_strings need tokenizer=... in the partial")
    if streamer is not None and input_ids.shape[0] > 1:
        raise ValueError(f"streamer with {input_ids.shape[0]} rows: it can follow one only")
    prompt_length = input_ids.shape[1]
    mask = model_arguments.get("attention_mask")
    if mask is None:  # transformers drops one that is all ones
        mask = torch.ones_like(input_ids)
    settings = DecodeSettings(
        max_new_tokens=generation_config.max_length - prompt_length,
        draft_length=draft_length,
        sampling=_sampling(generation_config, logits_processor),
        eos_ids=_ids(generation_config.eos_token_id),
        seed=int(torch.randint(2**31, (1,))) if seed is None else seed,
    )
    width = min(_width(model), _width(draft))
    if tokenizer is not None:
        width = min(width, len(tokenizer))
    follower = None
    if streamer is not None:
        streamer.put(input_ids.cpu())

        def follower(emission: BlockEmission) -> None:
            streamer.put(torch.tensor(emission.token_ids[0]))

    row_keys = torch.arange(input_ids.shape[0], device=input_ids.device)
    find_end = stop_finder(tokenizer, stop_strings) if stop_strings and tokenizer else None
    inputs = (input_ids, mask.bool(), row_keys, settings, find_end, follower)
    target = HFLanguageModel(model, width)
    if isinstance(verifier, AutoregressiveVerifier):
        result = autoregressive_decode(target, *inputs)
    else:
        result = speculative_decode(target, HFLanguageModel(draft, width), verifier, *inputs)
    if streamer is not None:
        streamer.end()
    sequences = _sequences(input_ids, result, generation_config)
    if not generation_config.return_dict_in_generate:
        return sequences
    return SpeculativeOutput(sequences, result.counts, result.trace, result.end_reasons)


def _check_request(
    config: GenerationConfig, criteria: StoppingCriteriaList, model_arguments: dict[str, Any]
) -> None:
    """Raise ValueError, naming the setting, for what this decoder cannot do."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(config, name, None)
        if not any(value is allowed or value == allowed for allowed in neutral):
            hint = f"; {_HINTS[name]}" if name in _HINTS else ""
            raise ValueError(f"{name}={value!r}: diversed_generate cannot honour it{hint}")
    known = (MaxLengthCriteria, EosTokenCriteria)
    foreign = [type(one).__name__ for one in criteria if not isinstance(one, known)]
    if foreign:
        raise ValueError(
            f"stopping criterion {foreign[0]}: diversed_generate emits several tokens at a time "
            "and cannot ask it after each"
        )
    cache = model_arguments.get("cache")
    if cache is not None and cache.get_seq_length() > 0:
        raise ValueError("cache: diversed_generate starts from the prompt, not from a filled cache")
    unknown = sorted(
        name
        for name, value in model_arguments.items()
        if name not in _KNOWN_ARGUMENTS and value is not None
    )
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: diversed_generate takes token ids only")


def _sampling(config: GenerationConfig, processors: LogitsProcessorList) -> Sampling:
    """Return the transforms that transformers prepared; ValueError for any other processor."""
    foreign = [type(one).__name__ for one in processors if type(one) not in _WARPERS]
    if foreign:
        raise ValueError(
            f"logits processor {foreign[0]}: diversed_generate honours temperature, top_k and "
            "top_p only"
        )
    if not config.do_sample:
        return Sampling(temperature=0)
    found = {_WARPERS[type(one)]: getattr(one, _WARPERS[type(one)]) for one in processors}
    return Sampling(**found)


def _ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _width(model: PreTrainedModel) -> int:
    width: int = model.get_output_embeddings().weight.shape[0]
    return width


def _sequences(input_ids: Tensor, result: DecodeResult, config: GenerationConfig) -> Tensor:
    pad_id = next(iter((*_ids(config.pad_token_id), *_ids(config.eos_token_id), 0)))
    rows = [
        torch.cat([prompt, ids]) for prompt, ids in zip(input_ids, result.token_ids, strict=True)
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_id)
