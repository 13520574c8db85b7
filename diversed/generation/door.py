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
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer
from transformers.utils import ModelOutput

from diversed.core.kernel import Verifier
from diversed.core.loop import DecodeSettings, Listener, autoregressive_decode, speculative_decode
from diversed.core.types import BlockEmission, DecodeCounts, DecodeResult, Trace
from diversed.core.verifiers import AutoregressiveVerifier
from diversed.generation.decoder import check_reads
from diversed.generation.request import (
    check_config,
    check_fit,
    read_ends,
    read_prompts,
    read_sampling,
    shared_width,
)
from diversed.generation.stops import stop_finder
from diversed.models.hf import HFLanguageModel


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
    stop_strings: str | Sequence[str] = (),
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
    told otherwise; so does this. A streamer, tokenizer or assistant model given to `generate`
    itself never arrives here: transformers drops them without a word for a callable, so streamer
    and tokenizer are bound as well.

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
        tokenizer: Needed for stop strings; ids that it does not know are never drawn.
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
    check_config(generation_config)
    check_reads(verifier, "hidden")
    stops = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
    _check_bound(model, draft, tokenizer, stops, streamer, len(input_ids))
    prompt_ids, mask = read_prompts(input_ids, model_arguments, model.device)
    max_length, eos_ids = read_ends(stopping_criteria)
    width = shared_width(model, draft, tokenizer)
    check_fit(prompt_ids, mask, max_length, (model, draft), width)
    settings = DecodeSettings(
        max_new_tokens=max_length - prompt_ids.shape[1],
        draft_length=draft_length,
        sampling=read_sampling(generation_config, logits_processor),
        eos_ids=eos_ids,
        seed=int(torch.randint(2**31, (1,))) if seed is None else seed,
    )
    row_keys = torch.arange(len(prompt_ids), device=prompt_ids.device)
    find_end = stop_finder(tokenizer, stops) if stops and tokenizer else None
    inputs = (prompt_ids, mask, row_keys, settings, find_end, _follower(streamer, input_ids))
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


def _check_bound(
    model: PreTrainedModel,
    draft: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    stops: tuple[str, ...],
    streamer: BaseStreamer | None,
    num_rows: int,
) -> None:
    """Raise ValueError, naming the argument, for what is bound and cannot be."""
    if draft.device != model.device:
        raise ValueError(f"draft is on {draft.device}, the target on {model.device}")
    if "" in stops:
        raise ValueError("stop_strings holds an empty string: it would end every completion")
    if stops and tokenizer is None:
        raise ValueError("stop_strings need tokenizer=... in the partial")
    if streamer is not None and num_rows > 1:
        raise ValueError(f"streamer with {num_rows} rows: it can follow one only")


def _follower(streamer: BaseStreamer | None, input_ids: Tensor) -> Listener | None:
    """Show the prompt to the streamer; return what passes each block's tokens on to it."""
    if streamer is None:
        return None
    streamer.put(input_ids.cpu())

    def follow(emission: BlockEmission) -> None:
        streamer.put(torch.tensor(emission.token_ids[0]))

    return follow


def _sequences(input_ids: Tensor, result: DecodeResult, config: GenerationConfig) -> Tensor:
    pad_id = next(iter((*_ids(config.pad_token_id), *_ids(config.eos_token_id), 0)))
    rows = [
        torch.cat([prompt, ids.to(prompt.device)])
        for prompt, ids in zip(input_ids, result.token_ids, strict=True)
    ]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_id)


def _ids(value: int | Sequence[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(map(int, value))
