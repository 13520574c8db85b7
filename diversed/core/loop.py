"""Speculative decoding of a batch: draft, verify, emit, roll back.

Rows have different prompt lengths, accept different numbers of tokens and end at different times.
A row's completion does not depend on its batch: its random numbers are a function of the seed, its
key and the position (`noise.py`), and columns that another row needed are masked.

One block: the draft proposes up to N tokens, one target call reads them all, the verifier judges
from left to right, and the block ends with a recovered token (drawn at the first rejection) or a
bonus token (all were accepted). A drafted end (end-of-sequence or stop string) closes the row's
draft; nothing behind it is drafted, judged or counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diversed.core import noise
from diversed.core.checks import check_same_shape, check_shape
from diversed.core.counts import count_trace
from diversed.core.kernel import ModelView, Verifier
from diversed.core.lm import LanguageModel
from diversed.core.noise import Purpose
from diversed.core.probs import Sampling, logits_to_probs
from diversed.core.recorder import BlockEntries, Recorder
from diversed.core.types import BlockEmission, DecodeResult, StepOutput
from diversed.core.verdict import Verdict, judge_bonus, judge_columns
from diversed.core.verify import stochastic_accepts, verify_block

EndFinder = Callable[[list[int], int], int | None]
"""(generated ids of one row, first index to look at) -> index of the first token that ends it."""

Listener = Callable[[BlockEmission], None]
"""Told after each block what it emitted."""


@dataclass(frozen=True)
class DecodeSettings:
    """How a batch is decoded.

    Attributes:
        max_new_tokens: Most tokens of a completion, its end token included.
        draft_length: N, tokens drafted per block.
        sampling: Transforms of both models' logits.
        eos_ids: Ids that end a completion.
        seed: Seed of all random numbers.
        keep_head_inputs: Keep hidden states and features of emitted tokens in the trace.
    """

    max_new_tokens: int
    draft_length: int = 5
    sampling: Sampling = field(default_factory=Sampling)
    eos_ids: tuple[int, ...] = ()
    seed: int = 0
    keep_head_inputs: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError, naming the setting, for values out of range."""
        if self.max_new_tokens < 1:
            raise ValueError(f"decoding.max_new_tokens={self.max_new_tokens}: must be at least 1")
        if self.draft_length < 1:
            raise ValueError(f"decoding.draft_length={self.draft_length}: must be at least 1")


class _Draft:
    """A block as the draft proposes it: tokens, and the draft's view of every column."""

    def __init__(self, num_rows: int, num_columns: int, device: torch.device) -> None:
        self.num_columns = num_columns
        self.ids = torch.zeros(num_rows, 0, dtype=torch.long, device=device)  # [A, n]
        self.num_tokens = torch.zeros(num_rows, dtype=torch.long, device=device)  # [A]
        self.has_ended = torch.zeros(num_rows, dtype=torch.bool, device=device)  # [A]
        self.probs = self.logits = self.hidden = torch.zeros(num_rows, 0, 0, device=device)

    def put(self, column: int, out: StepOutput, probs: Tensor) -> None:
        """Store the draft's view [A, 1, ...] of one column."""
        if self.probs.shape[1] == 0:
            self.probs, self.logits, self.hidden = (
                tensor.new_zeros(tensor.shape[0], self.num_columns, tensor.shape[-1])
                for tensor in (probs, out.logits, out.hidden)
            )
        self.probs[:, column] = probs[:, 0]
        self.logits[:, column] = out.logits[:, -1]
        self.hidden[:, column] = out.hidden[:, -1]


@torch.no_grad()
def speculative_decode(
    target: LanguageModel,
    draft: LanguageModel,
    verifier: Verifier,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    row_keys: Tensor,
    settings: DecodeSettings,
    find_end: EndFinder | None = None,
    listener: Listener | None = None,
) -> DecodeResult:
    """Complete a batch of prompts.

    Args:
        target: The model whose quality is wanted.
        draft: The cheap model; must share the target's vocabulary.
        verifier: The verification rule.
        prompt_ids: Left-padded prompts, int64 [B, T], at least one token each.
        prompt_mask: True where a token counts, bool [B, T].
        row_keys: int64 [B]; rows with equal keys draw equal random numbers.
        settings: Lengths, sampling, ends, seed.
        find_end: Finds stop strings in a row's generated ids; None where there are none.
        listener: Told of each block's tokens.

    Returns:
        Completions, counts and the per-token trace.

    Raises:
        ValueError: A shape does not fit, a prompt is empty, the vocabularies differ, or head inputs
            are asked for where the bonus token is the target's.
    """
    if draft is target:
        raise ValueError("draft and target are one object: each needs a cache of its own")
    if draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"draft has a vocabulary of {draft.vocab_size}, target of {target.vocab_size}"
        )
    if settings.keep_head_inputs and verifier.bonus != "verifier":
        raise ValueError(
            f"keep_head_inputs with verifier.bonus={verifier.bonus!r}: the target's bonus tokens "
            "have no hidden state of the draft"
        )
    decoder = _BatchDecoder(target, draft, verifier, settings, find_end, listener)
    return decoder.run(prompt_ids, prompt_mask, row_keys)


@torch.no_grad()
def autoregressive_decode(
    target: LanguageModel,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    row_keys: Tensor,
    settings: DecodeSettings,
    find_end: EndFinder | None = None,
    listener: Listener | None = None,
) -> DecodeResult:
    """Complete a batch with the target alone, one token per call; arguments as above.

    Raises:
        ValueError: As above, or head inputs are asked for, of which plain decoding has none.
    """
    if settings.keep_head_inputs:
        raise ValueError(
            "keep_head_inputs in plain decoding: there are no hidden states of a draft"
        )
    decoder = _BatchDecoder(target, None, None, settings, find_end, listener)
    return decoder.run(prompt_ids, prompt_mask, row_keys)


class _BatchDecoder:
    """State of one batch; rows that ended have left it."""

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel | None,
        verifier: Verifier | None,
        settings: DecodeSettings,
        find_end: EndFinder | None,
        listener: Listener | None,
    ) -> None:
        self.target = target
        self.draft = draft
        self.verifier = verifier
        self.settings = settings
        self.find_end = find_end
        self.listener = listener

    def run(self, prompt_ids: Tensor, prompt_mask: Tensor, row_keys: Tensor) -> DecodeResult:
        """Decode until every row has ended."""
        _check_prompts(prompt_ids, prompt_mask, row_keys)
        device, batch_size = prompt_ids.device, prompt_ids.shape[0]
        settings = self.settings
        self.eos_ids = torch.tensor(settings.eos_ids, dtype=torch.long, device=device)
        self.rows = torch.arange(batch_size, device=device)
        self.row_keys = row_keys
        self.num_emitted = torch.zeros_like(self.rows)
        self.output = self.rows.new_zeros(batch_size, settings.max_new_tokens)
        self.lengths = torch.zeros_like(self.rows)
        self.end_reasons = [""] * batch_size
        self.recorder = Recorder(settings.keep_head_inputs)
        self.draft_input = self.last_ids = prompt_ids[:, -1:]
        self.target.start(prompt_ids, prompt_mask)
        if self.draft is not None:
            self.draft.start(prompt_ids, prompt_mask)
        while self.rows.numel():
            self._decode_block()
        trace = self.recorder.trace()
        return DecodeResult(
            token_ids=[
                row[:length] for row, length in zip(self.output, self.lengths.tolist(), strict=True)
            ],
            end_reasons=self.end_reasons,
            counts=count_trace(trace, batch_size, settings.draft_length),
            trace=trace,
        )

    def _decode_block(self) -> None:
        """Draft, verify and emit one block, then drop rejected tokens and ended rows."""
        drafted = self._draft_block()
        width = drafted.ids.shape[1]
        out = self.target.step(torch.cat([self.last_ids, drafted.ids], dim=1))
        target_probs = logits_to_probs(out.logits, self.settings.sampling)
        view = _view(out, target_probs, drafted, self.settings.sampling)
        verdict, is_accepted = self._judge(view, drafted.ids)
        block = verify_block(is_accepted, drafted.num_tokens)
        num_accepted = block.num_accepted
        is_rejected = num_accepted < drafted.num_tokens
        room = self.settings.max_new_tokens - self.num_emitted
        wants_bonus = ~is_rejected & ~drafted.has_ended & (num_accepted < room)
        needs_last = width > 0 and bool(wants_bonus.any())
        if needs_last and self._judges_bonus:
            verdict = self._judge_bonus(view, drafted, verdict)
        next_ids = self._next_ids(view, out, target_probs, verdict, num_accepted, is_rejected)
        has_next = is_rejected | wants_bonus
        self.recorder.add_block(
            BlockEntries(
                rows=self.rows,
                start=self.num_emitted,
                draft_ids=drafted.ids,
                status=block.status,
                num_accepted=num_accepted,
                next_ids=next_ids,
                has_next=has_next,
                is_recovered=is_rejected,
                judges_bonus=self._judges_bonus,
                view=view,
                target_probs=target_probs,
                judgement=verdict.judgement if verdict else None,
                tv=verdict.tv if verdict else None,
            )
        )
        self._emit(drafted, num_accepted, next_ids, has_next, needs_last)

    @property
    def _judges_bonus(self) -> bool:
        return self.verifier is not None and self.verifier.bonus == "verifier"

    def _draft_block(self) -> _Draft:
        """Let the draft propose up to N tokens per row; a row stops at its room or its end."""
        settings = self.settings
        drafted = _Draft(self.rows.numel(), settings.draft_length + 1, self.rows.device)
        room = self.settings.max_new_tokens - self.num_emitted
        if not self._judges_bonus:
            room = room - 1
        budget = room.clamp(max=settings.draft_length)
        width = int(budget.max())
        if self.draft is None or width == 0:
            return drafted
        arrivals = None
        if not settings.sampling.is_greedy:
            positions = self.num_emitted.unsqueeze(1) + torch.arange(width, device=budget.device)
            keys = self._keys(positions, Purpose.DRAFT)
            arrivals = noise.exponential(keys, self.draft.vocab_size)
        ids: list[Tensor] = []
        fed = self.draft_input
        for column in range(width):
            out = self.draft.step(fed)
            probs = logits_to_probs(out.logits[:, -1:], settings.sampling)
            drafted.put(column, out, probs)
            if arrivals is None:
                fed = out.logits[:, -1].argmax(-1, keepdim=True)
            else:
                fed = noise.race(probs, arrivals[:, column : column + 1])
            ids.append(fed)
            is_open = (column < budget) & ~drafted.has_ended
            drafted.num_tokens += is_open
            drafted.has_ended |= is_open & torch.isin(fed[:, 0], self.eos_ids)
            if bool((drafted.has_ended | (budget <= column + 1)).all()):
                break
        drafted.ids = torch.cat(ids, dim=1)
        if self.find_end is not None:
            num_until_stop = self._num_until_stop(drafted.ids, drafted.num_tokens)
            drafted.has_ended |= num_until_stop > 0
            drafted.num_tokens = torch.where(num_until_stop > 0, num_until_stop, drafted.num_tokens)
        return drafted

    def _judge(self, view: ModelView | None, draft_ids: Tensor) -> tuple[Verdict | None, Tensor]:
        """Return the verdict on the drafted columns and which tokens pass."""
        width = draft_ids.shape[1]
        if view is None or self.verifier is None:
            return None, draft_ids.bool()
        judged = view.columns(0, width)
        verdict = judge_columns(self.verifier, judged, draft_ids, self.settings.sampling)
        is_accepted = verdict.passes
        if is_accepted is None:
            positions = self.num_emitted.unsqueeze(1) + torch.arange(width, device=draft_ids.device)
            uniforms = noise.uniform(self._keys(positions, Purpose.ACCEPT))
            is_accepted = stochastic_accepts(verdict.judgement.accept_probs, uniforms)
        return verdict.with_unknown_column(), is_accepted

    def _judge_bonus(
        self, view: ModelView | None, drafted: _Draft, verdict: Verdict | None
    ) -> Verdict | None:
        """Extend the verdict to the column behind the block.

        The draft reads the block's last token for it, which the next block needs in the draft's
        cache anyway.
        """
        if view is None or verdict is None or self.verifier is None or self.draft is None:
            return verdict
        width = drafted.ids.shape[1]
        out = self.draft.step(drafted.ids[:, -1:])
        drafted.put(width, out, logits_to_probs(out.logits, self.settings.sampling))
        behind = view.columns(width, width + 1)
        return verdict.with_last_column(judge_bonus(self.verifier, behind, self.settings.sampling))

    def _next_ids(
        self,
        view: ModelView | None,
        out: StepOutput,
        target_probs: Tensor,
        verdict: Verdict | None,
        num_accepted: Tensor,
        is_rejected: Tensor,
    ) -> Tensor:
        """Return each row's recovered or bonus token; junk for rows that need none."""
        every_row = torch.arange(num_accepted.numel(), device=num_accepted.device)
        if self.settings.sampling.is_greedy:
            next_ids = out.logits[every_row, num_accepted].argmax(-1)
            if verdict is not None and verdict.next_ids is not None:
                own = verdict.next_ids[every_row, num_accepted]
                by_verifier = is_rejected | self._judges_bonus
                next_ids = torch.where(by_verifier & (own >= 0), own, next_ids)
            return next_ids
        weights = target_probs[every_row, num_accepted]
        if view is not None and verdict is not None and self.verifier is not None:
            at_next = view.at(num_accepted)
            if self._judges_bonus:
                weight = verdict.judgement.target_weight
                if weight is not None:
                    weight = weight[every_row, num_accepted].unsqueeze(1)
                weights = self.verifier.bonus_weights(at_next, weight)[:, 0]
            recovered = self.verifier.recovered_weights(at_next)[:, 0]
            weights = torch.where(is_rejected.unsqueeze(1), recovered, weights)
        keys = self._keys(self.num_emitted + num_accepted, Purpose.NEXT)
        return noise.race(weights, noise.exponential(keys, weights.shape[-1]))

    def _emit(
        self,
        drafted: _Draft,
        num_accepted: Tensor,
        next_ids: Tensor,
        has_next: Tensor,
        needs_last: bool,
    ) -> None:
        """Append the block's tokens, let ended rows leave, and roll both caches back.

        Where some row accepted its whole block (`needs_last`) the draft must have read the block's
        last token: either it has (for the verifier's bonus), or every row reads it next.
        """
        width = drafted.ids.shape[1]
        columns = torch.arange(width + 1, device=self.rows.device)
        tokens = torch.cat([drafted.ids, next_ids.unsqueeze(1)], dim=1)
        is_next = columns == num_accepted.unsqueeze(1)
        tokens = torch.where(is_next, next_ids.unsqueeze(1), tokens)
        num_new = num_accepted + has_next
        row, column = (columns < num_new.unsqueeze(1)).nonzero(as_tuple=True)
        self.output[self.rows[row], self.num_emitted[row] + column] = tokens[row, column]
        self.num_emitted = self.num_emitted + num_new

        last = tokens.gather(1, (num_new - 1).unsqueeze(1))
        is_eos = torch.isin(last[:, 0], self.eos_ids)
        is_stop = torch.zeros_like(is_eos)
        if self.find_end is not None:
            is_stop = (self._num_until_stop(last, torch.ones_like(num_new), 1) > 0) & ~is_eos
        is_done = is_eos | is_stop | (self.num_emitted >= self.settings.max_new_tokens)
        for local in is_done.nonzero()[:, 0].tolist():
            reason = "eos" if is_eos[local] else "stop" if is_stop[local] else "length"
            self.end_reasons[int(self.rows[local])] = reason
        self.lengths[self.rows] = self.num_emitted
        if self.listener is not None:
            new = zip(tokens.tolist(), num_new.tolist(), strict=True)
            new_ids = [ids[:number] for ids, number in new]
            self.listener(BlockEmission(self.rows.tolist(), new_ids, is_done.tolist()))

        kept = (~is_done).nonzero(as_tuple=True)[0]
        if kept.numel():
            num_drop = (width - num_accepted)[kept]
            self.target.retain(kept, num_drop)
            previous = torch.cat([self.last_ids, tokens], dim=1).gather(1, num_new.unsqueeze(1) - 1)
            self.draft_input = self.last_ids = last[kept]
            if self.draft is not None and width > 0:
                self.draft.retain(kept, num_drop if needs_last else num_drop - 1)
                if needs_last and not self._judges_bonus:
                    self.draft_input = torch.cat([previous[kept], self.last_ids], dim=1)
        self.rows = self.rows[kept]
        self.row_keys = self.row_keys[kept]
        self.num_emitted = self.num_emitted[kept]

    def _keys(self, positions: Tensor, purpose: Purpose) -> Tensor:
        row_keys = self.row_keys if positions.dim() == 1 else self.row_keys.unsqueeze(1)
        return noise.stream_keys(self.settings.seed, row_keys, positions, purpose)

    def _num_until_stop(self, ids: Tensor, num_tokens: Tensor, num_written: int = 0) -> Tensor:
        """Return how many of a row's new tokens there are up to the one that completes a stop.

        Args:
            ids: New tokens, [A, n].
            num_tokens: How many of them count, [A].
            num_written: How many of them are in `output` already.

        Returns:
            int64 [A]; 0 where no stop string is completed.
        """
        if self.find_end is None:
            raise RuntimeError("no stop strings were given")
        numbers = []
        for row, emitted, new, count in zip(
            self.rows.tolist(),
            self.num_emitted.tolist(),
            ids.tolist(),
            num_tokens.tolist(),
            strict=True,
        ):
            first = emitted - num_written
            end = self.find_end(self.output[row, :first].tolist() + new[:count], first)
            numbers.append(0 if end is None else end - first + 1)
        return torch.tensor(numbers, dtype=torch.long, device=ids.device)


def _view(
    out: StepOutput, target_probs: Tensor, drafted: _Draft, sampling: Sampling
) -> ModelView | None:
    """Return both models at the drafted columns and the one behind; None without a draft."""
    num_columns = target_probs.shape[1]
    if num_columns == 1:
        return None
    return ModelView(
        target_probs=target_probs,
        draft_probs=drafted.probs[:, :num_columns],
        target_logits=out.logits,
        draft_logits=drafted.logits[:, :num_columns],
        target_hidden=out.hidden,
        draft_hidden=drafted.hidden[:, :num_columns],
        is_plain=sampling.is_plain,
    )


def _check_prompts(prompt_ids: Tensor, prompt_mask: Tensor, row_keys: Tensor) -> None:
    check_same_shape("prompt_ids", prompt_ids, "prompt_mask", prompt_mask)
    check_shape("row_keys", row_keys, (prompt_ids.shape[0],))
    if prompt_ids.shape[0] == 0:
        raise ValueError("prompt_ids holds no row")
    empty = (~prompt_mask.any(1)).nonzero()[:, 0].tolist() if prompt_mask.shape[1] else [0]
    if empty:
        raise ValueError(f"prompt {empty[0]} is empty: a prompt needs at least one token")
    if bool((prompt_mask[:, :-1] & ~prompt_mask[:, 1:]).any()):
        raise ValueError("prompts must be padded on the left")
