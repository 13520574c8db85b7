"""The textbook's training step of an ensemble head: what it does beside the loss.

Completions are sampled from nu = w p + (1 - w) q token by token, with both models at every token.
Then both frozen models read prompts and completions once more, and p, q and nu become tensors of
vocabulary size, through which the gradient of w flows. The models are called as transformers has
them, with its own caches; `core.loop` has no part in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, PreTrainedModel

from diversed.core.ends import Ends
from diversed.core.probs import distribution_features, logits_to_probs, mix, tv_distance
from diversed.generation import SpeculativeDecoder
from diversed.generation.stops import stop_finder
from diversed.models.head import EnsembleHead
from diversed.objective.acceptance import TokenScalars

Draw = Callable[[Tensor], Tensor]
"""Laws of the next token [A, V] -> one token of each [A]."""


@dataclass(frozen=True)
class PairReading:
    """What both models say about the next token at E places, all fp32.

    Attributes:
        target_hidden: What the target's output head reads, [E, D_p].
        draft_hidden: The same of the draft, [E, D_q].
        target_probs: p, [E, V].
        draft_probs: q, [E, V].
        features: `probs.distribution_features`, [E, 5]; None for a head that does not read them.
    """

    target_hidden: Tensor
    draft_hidden: Tensor
    target_probs: Tensor
    draft_probs: Tensor
    features: Tensor | None

    def mixture(self, head: EnsembleHead) -> Tensor:
        """Return nu, [E, V], differentiable in the head."""
        logit = head(self.draft_hidden, self.target_hidden, self.features)
        return mix(self.target_probs, self.draft_probs, torch.sigmoid(logit))


@dataclass(frozen=True)
class SecondPass:
    """S completions of at most T tokens, E in all, and both models before each token.

    Attributes:
        mask: Where completions have tokens, bool [S, T].
        token_ids: The tokens, [E].
        reading: Both models.
    """

    mask: Tensor
    token_ids: Tensor
    reading: PairReading


@torch.no_grad()
def sample_completions(
    decoder: SpeculativeDecoder, head: EnsembleHead, prompts: Sequence[list[int]], draw: Draw
) -> list[list[int]]:
    """Complete a batch of prompts from nu, one token at a time; rows that ended leave the batch.

    Args:
        decoder: Has the pair, the sampling transforms and the ends.
        head: Gives w.
        prompts: Ids of each prompt.
        draw: Draws from nu.

    Returns:
        Ids of each completion, its end token included.
    """
    pair, settings = decoder.pair, decoder.settings
    find_end = stop_finder(pair.tokenizer, decoder.stop_strings) if decoder.stop_strings else None
    ends = Ends(settings.eos_ids, settings.max_new_tokens, find_end, len(prompts), pair.device)
    models = [(lm, DynamicCache(config=lm.model.config)) for lm in (pair.target, pair.draft)]
    fed, mask = _padded(prompts, "left", pair.device)
    completions: list[list[int]] = [[] for _ in prompts]
    rows = list(range(len(prompts)))
    while rows:
        positions = _positions(mask)[:, -fed.shape[1] :]
        outputs = []
        for lm, cache in models:
            hidden, logits = _forward(lm.model, 1, fed, mask, positions, cache)
            probs = logits_to_probs(logits[:, 0, : lm.vocab_size], settings.sampling)
            outputs.append((hidden[:, 0].float(), probs))
        token_ids = draw(_reading(head, *outputs).mixture(head))
        new_ids = token_ids.tolist()
        for row, token_id in zip(rows, new_ids, strict=True):
            completions[row].append(token_id)
        has_ended = ends.close_rows(
            rows, [[token_id] for token_id in new_ids], [len(completions[row]) for row in rows]
        )
        if any(has_ended):
            is_open = ~torch.tensor(has_ended, device=pair.device)
            rows = [row for row, ended in zip(rows, has_ended, strict=True) if not ended]
            token_ids, mask = token_ids[is_open], mask[is_open]
            for _, cache in models:
                cache.batch_select_indices(is_open)
        fed = token_ids.unsqueeze(1)
        mask = torch.cat([mask, torch.ones_like(fed, dtype=torch.bool)], dim=1)
    return completions


@torch.no_grad()
def read_again(
    decoder: SpeculativeDecoder,
    head: EnsembleHead,
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
) -> SecondPass:
    """Let both models read prompts and completions in one pass each.

    Args:
        decoder: Has the pair and the sampling transforms.
        head: What will read the result.
        prompts: Ids of each prompt.
        completions: Ids of what follows it.

    Returns:
        Both models at every token of the completions.
    """
    pair = decoder.pair
    prompt_ids, prompt_mask = _padded(prompts, "left", pair.device)
    new_ids, new_mask = _padded(completions, "right", pair.device)
    ids = torch.cat([prompt_ids, new_ids], dim=1)[:, :-1]
    mask = torch.cat([prompt_mask, new_mask], dim=1)[:, :-1]
    outputs = []
    for lm in (pair.target, pair.draft):
        hidden, logits = _forward(lm.model, new_mask.shape[1], ids, mask, _positions(mask))
        probs = logits_to_probs(logits[new_mask][:, : lm.vocab_size], decoder.settings.sampling)
        outputs.append((hidden[new_mask].float(), probs))
    return SecondPass(new_mask, new_ids[new_mask], _reading(head, *outputs))


def mixture_scalars(head: EnsembleHead, seen: SecondPass) -> TokenScalars:
    """Return nu(x_t) and TV(q_t, nu_t), made of whole laws and differentiable in the head.

    They stand in the places of p and of TV(q, p): with w = 1 the loss of these scalars is that of
    the mixture.

    Args:
        head: Gives w.
        seen: Both models at the sampled tokens.
    """
    draft_probs, verify_probs = seen.reading.draft_probs, seen.reading.mixture(head)
    index = seen.token_ids.unsqueeze(1)

    def padded(values: Tensor) -> Tensor:
        return values.new_zeros(seen.mask.shape).masked_scatter(seen.mask, values)

    return TokenScalars(
        target_prob=padded(verify_probs.gather(1, index)),
        draft_prob=padded(draft_probs.gather(1, index)),
        tv_distance=padded(tv_distance(verify_probs, draft_probs)),
        mask=seen.mask,
    )


def _reading(
    head: EnsembleHead, target: tuple[Tensor, Tensor], draft: tuple[Tensor, Tensor]
) -> PairReading:
    """Return hidden states and laws of both models as one."""
    (target_hidden, target_probs), (draft_hidden, draft_probs) = target, draft
    features = distribution_features(target_probs, draft_probs) if head.uses_features else None
    return PairReading(target_hidden, draft_hidden, target_probs, draft_probs, features)


def _forward(
    model: PreTrainedModel,
    num_last: int,
    input_ids: Tensor,
    mask: Tensor,
    positions: Tensor,
    cache: DynamicCache | None = None,
) -> tuple[Tensor, Tensor]:
    """Return hidden states [B, n, D] and logits [B, n, V] of the last n columns."""
    read: list[Tensor] = []
    output_head = model.get_output_embeddings()
    hook = output_head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    try:
        logits = model(
            input_ids=input_ids,
            attention_mask=mask.long(),
            position_ids=positions,
            cache=cache,
            use_cache=cache is not None,
            logits_to_keep=num_last,
        ).logits
    finally:
        hook.remove()
    return read[0], logits


def _padded(rows: Sequence[list[int]], side: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows of ids as one tensor, padded with 0, and where they have tokens."""
    ids = [torch.tensor(row) for row in rows]
    masks = [torch.ones_like(row, dtype=torch.bool) for row in ids]
    padded, mask = (
        pad_sequence(parts, batch_first=True, padding_side=side).to(device)
        for parts in (ids, masks)
    )
    return padded, mask


def _positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)
