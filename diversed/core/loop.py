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
from diversed.core.checks import check_at_least_one, check_same_shape, check_shape
from diversed.core.counts import count_trace
from diversed.core.ends import EndFinder, Ends
from diversed.core.kernel import ModelView, Verifier
from diversed.core.lm import LanguageModel
from diversed.core.noise import Purpose
from diversed.core.probs import Sampling, logits_to_probs
from diversed.core.recorder import BlockEntries, Recorder
from diversed.core.types import BlockEmission, DecodeResult, StepOutput, Trace
from diversed.core.verdict import Verdict, judge_bonus, judge_columns
from diversed.core.verify import stochastic_accepts, verify_block

Listener = Callable[[BlockEmission], None]
"""Told after each block what it emitted."""

_DRAFT, _ACCEPT, _NEXT = range(3)  # places of the purposes in a block's keys


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
        check_at_least_one("decoding.max_new_tokens", self.max_new_tokens)
        check_at_least_one("decoding.draft_length", self.draft_length)


@dataclass
class _Draft:
    """A block as the draft proposes it: n tokens for each of A rows.

    Attributes:
        ids: Tokens, [A, n]; those behind a row's `num_tokens` are not its own.
        num_tokens: Tokens that each row drafted, [A].
        has_ended: Whether a row's last drafted token ends its completion, [A].
        probs: q at the n columns and the one behind, [A, n + 1, V]; the last is zero until read.
        logits: Raw logits likewise.
        hidden: Hidden states likewise, [A, n + 1, D].
    """

    ids: Tensor
    num_tokens: Tensor
    has_ended: Tensor
    probs: Tensor
    logits: Tensor
    hidden: Tensor

    @property
    def width(self) -> int:
        """Number of drafted columns, n."""
        return self.ids.shape[1]

    def read_last(self, out: StepOutput, probs: Tensor) -> None:
        """Fill the column behind the block."""
        self.probs[:, -1] = probs[:, 0]
        self.logits[:, -1] = out.logits[:, 0]
        self.hidden[:, -1] = out.hidden[:, 0]


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
        self.ends = Ends(
            settings.eos_ids, settings.max_new_tokens, self.find_end, batch_size, device
        )
        self.purposes = torch.tensor(list(Purpose), device=device)
        self.rows = torch.arange(batch_size, device=device)
        self.every_row = self.rows  # of those still open
        num_drafted = 0 if self.draft is None else settings.draft_length
        self.columns = torch.arange(num_drafted + 1, device=device)
        self.row_keys = row_keys
        self.num_emitted = torch.zeros_like(self.rows)
        self.recorder = Recorder(settings.keep_head_inputs)
        self.draft_input = self.last_ids = prompt_ids[:, -1:]
        self.target.start(prompt_ids, prompt_mask)
        if self.draft is not None:
            self.draft.start(prompt_ids, prompt_mask)
        while self.rows.numel():
            self._decode_block()
        trace = self.recorder.trace()
        counts = count_trace(trace, batch_size, settings.draft_length)
        return DecodeResult(
            token_ids=_completions(trace, counts.emitted),
            end_reasons=self.ends.reasons,
            counts=counts,
            trace=trace,
        )

    def _decode_block(self) -> None:
        """Draft, verify and emit one block, then drop rejected tokens and ended rows."""
        room = self.settings.max_new_tokens - self.num_emitted
        keys = self._keys()
        drafted = self._draft_block(room, keys)
        num_rows = self.rows.numel()
        draft_ids = self.rows.new_zeros(num_rows, 0) if drafted is None else drafted.ids
        out = self.target.step(torch.cat([self.last_ids, draft_ids], dim=1))
        target_probs = logits_to_probs(out.logits, self.settings.sampling)
        view = verdict = behind = None
        if drafted is None:
            num_tokens = num_accepted = torch.zeros_like(self.rows)
            has_ended = torch.zeros_like(self.rows, dtype=torch.bool)
        else:
            view = _view(out, target_probs, drafted, self.settings.sampling)
            verdict, is_accepted = self._judge(view, draft_ids, keys)
            num_tokens, has_ended = drafted.num_tokens, drafted.has_ended
            num_accepted = verify_block(is_accepted, num_tokens)
        is_rejected = num_accepted < num_tokens
        wants_bonus = ~(is_rejected | has_ended) & (num_accepted < room)
        needs_last = drafted is not None and bool(wants_bonus.any())
        if needs_last and self._judges_bonus and drafted is not None and view is not None:
            behind = self._judge_last(view, drafted)
        weights_from = _NextSource(view, verdict, behind, out.logits, target_probs)
        next_ids = self._next_ids(weights_from, num_accepted, is_rejected, keys)
        has_next = is_rejected | wants_bonus
        self.recorder.add_block(
            BlockEntries(
                rows=self.rows,
                start=self.num_emitted,
                draft_ids=draft_ids,
                num_draft_tokens=num_tokens,
                num_accepted=num_accepted,
                next_ids=next_ids,
                has_next=has_next,
                is_recovered=is_rejected,
                target_probs=target_probs,
                view=view,
                verdict=verdict,
                behind=behind,
            )
        )
        self._emit(draft_ids, num_accepted, next_ids, has_next, needs_last)

    @property
    def _judges_bonus(self) -> bool:
        return self.verifier is not None and self.verifier.bonus == "verifier"

    def _draft_block(self, room: Tensor, keys: Tensor) -> _Draft | None:
        """Let the draft propose up to N tokens per row; a row stops at its room or its end.

        Returns None where there is no draft, or no row has room for a drafted token.
        """
        sampling = self.settings.sampling
        budget = room.clamp(max=self.settings.draft_length)
        if not self._judges_bonus:
            budget = budget.minimum(room - 1)
        width = int(budget.max())
        if self.draft is None or width == 0:
            return None
        arrivals = None
        if not sampling.is_greedy:
            arrivals = noise.exponential(keys[_DRAFT, :, :width], self.draft.vocab_size)
        ids: list[Tensor] = []
        columns: list[tuple[Tensor, ...]] = []
        has_ended = torch.zeros_like(budget, dtype=torch.bool)
        has_eos = False
        fed = self.draft_input
        for column in range(width):
            out = self.draft.step(fed)
            logits = out.logits[:, -1:]
            probs = logits_to_probs(logits, sampling)
            columns.append((probs, logits, out.hidden[:, -1:]))
            if arrivals is None:
                fed = logits.argmax(-1)
            else:
                fed = noise.race(probs, arrivals[:, column : column + 1])
            ids.append(fed)
            if self.ends.has_eos(fed):
                has_ended |= self.ends.is_eos(fed[:, 0])
                has_eos = True
                if bool((has_ended | (budget <= column + 1)).all()):
                    break
        columns.append(tuple(torch.zeros_like(part) for part in columns[0]))
        probs, logits, hidden = (torch.cat(parts, dim=1) for parts in zip(*columns, strict=True))
        draft_ids = torch.cat(ids, dim=1)
        num_tokens, has_ended = self.ends.cut_draft(self.rows, draft_ids, budget, has_eos)
        return _Draft(draft_ids, num_tokens, has_ended, probs, logits, hidden)

    def _judge(self, view: ModelView, draft_ids: Tensor, keys: Tensor) -> tuple[Verdict, Tensor]:
        """Return the verdict on the drafted columns and which tokens pass."""
        width = draft_ids.shape[1]
        if self.verifier is None:
            raise RuntimeError("plain decoding drafts nothing")
        judged = view.columns(0, width)
        verdict = judge_columns(self.verifier, judged, draft_ids, self.settings.sampling)
        if verdict.passes is not None:
            return verdict, verdict.passes
        uniforms = noise.uniform(keys[_ACCEPT, :, :width])
        return verdict, stochastic_accepts(verdict.judgement.accept_probs, uniforms)

    def _judge_last(self, view: ModelView, drafted: _Draft) -> Verdict:
        """Return the verdict on the column behind the block.

        The draft reads the block's last token for it, which the next block needs in the draft's
        cache anyway.
        """
        if self.verifier is None or self.draft is None:
            raise RuntimeError("plain decoding has no verdict")
        out = self.draft.step(drafted.ids[:, -1:])
        drafted.read_last(out, logits_to_probs(out.logits, self.settings.sampling))
        last = view.columns(drafted.width, drafted.width + 1)
        return judge_bonus(self.verifier, last, self.settings.sampling)

    def _next_ids(
        self, source: "_NextSource", num_accepted: Tensor, is_rejected: Tensor, keys: Tensor
    ) -> Tensor:
        """Return each row's recovered or bonus token; junk for rows that need none."""
        every_row = self.every_row
        view, verdict, behind = source.view, source.verdict, source.behind
        has_rejected = verdict is not None and bool(is_rejected.any())
        if self.settings.sampling.is_greedy:
            next_ids = source.target_logits[every_row, num_accepted].argmax(-1)
            if behind is not None and behind.next_ids is not None:
                next_ids = behind.next_ids[:, 0]
            if has_rejected and verdict is not None and verdict.next_ids is not None:
                column = num_accepted.clamp(max=verdict.next_ids.shape[1] - 1)
                recovered = verdict.next_ids[every_row, column]
                next_ids = torch.where(is_rejected, recovered, next_ids)
            return next_ids
        weights = source.target_probs[every_row, num_accepted]
        if view is not None and self.verifier is not None:
            if behind is not None:
                width = view.target_probs.shape[1]
                last = view.columns(width - 1, width)
                weight = behind.judgement.target_weight
                weights = self.verifier.bonus_weights(last, weight)[:, 0]
            if has_rejected:
                recovered = self.verifier.recovered_weights(view.at(num_accepted))[:, 0]
                weights = torch.where(is_rejected.unsqueeze(1), recovered, weights)
        next_keys = keys[_NEXT, every_row, num_accepted]
        return noise.race(weights, noise.exponential(next_keys, weights.shape[-1]))

    def _emit(
        self,
        draft_ids: Tensor,
        num_accepted: Tensor,
        next_ids: Tensor,
        has_next: Tensor,
        needs_last: bool,
    ) -> None:
        """Append the block's tokens, let ended rows leave, and roll both caches back.

        Where some row accepted its whole block (`needs_last`) the draft must have read the block's
        last token: either it has (for the verifier's bonus), or every row reads it next.
        """
        width = draft_ids.shape[1]
        last_column = num_accepted.unsqueeze(1)
        tokens = torch.cat([draft_ids, next_ids.unsqueeze(1)], dim=1)
        tokens = tokens.scatter(1, last_column, next_ids.unsqueeze(1))
        num_new = num_accepted + has_next
        self.num_emitted = self.num_emitted + num_new
        last = tokens.gather(1, (num_new - 1).unsqueeze(1))
        is_done = self._close_rows(tokens, num_new)

        draft_input = last
        if needs_last and not self._judges_bonus:
            tokens_before = torch.cat([self.last_ids, tokens], dim=1)
            before_last = tokens_before.gather(1, num_new.unsqueeze(1) - 1)
            draft_input = torch.cat([before_last, last], dim=1)
        self.draft_input, self.last_ids = draft_input, last
        num_drop = width - num_accepted
        kept = self.every_row
        if is_done is not None:
            kept = (~is_done).nonzero(as_tuple=True)[0]
            num_drop = num_drop[kept]
            for name in ("rows", "row_keys", "num_emitted", "last_ids", "draft_input"):
                setattr(self, name, getattr(self, name)[kept])
            self.every_row = self.every_row[: kept.numel()]
        if kept.numel() == 0:
            return
        self.target.retain(kept, num_drop)
        if self.draft is not None and width > 0:
            self.draft.retain(kept, num_drop if needs_last else num_drop - 1)

    def _close_rows(self, tokens: Tensor, num_new: Tensor) -> Tensor | None:
        """Return which rows are complete, [A], None if none is; tell the listener of the block."""
        rows = self.rows.tolist()
        new = zip(tokens.tolist(), num_new.tolist(), strict=True)
        new_ids = [ids[:number] for ids, number in new]
        has_ended = self.ends.close_rows(rows, new_ids, self.num_emitted.tolist())
        if self.listener is not None:
            self.listener(BlockEmission(rows, new_ids, has_ended))
        return torch.tensor(has_ended, device=tokens.device) if any(has_ended) else None

    def _keys(self) -> Tensor:
        """Return the keys of a block's random numbers by purpose, row and column, [3, A, N + 1]."""
        positions = self.num_emitted.unsqueeze(1) + self.columns
        purposes = self.purposes[:, None, None]
        return noise.stream_keys(self.settings.seed, self.row_keys[:, None], positions, purposes)


@dataclass(frozen=True)
class _NextSource:
    """What a block's recovered or bonus tokens come from; all of it but the target's may lack."""

    view: ModelView | None
    verdict: Verdict | None
    behind: Verdict | None
    target_logits: Tensor
    target_probs: Tensor


def _completions(trace: Trace, num_tokens: Tensor) -> list[Tensor]:
    """Return the ids of each row's emitted tokens, in order."""
    emitted = trace.is_emitted
    width = int(num_tokens.max())
    ids = num_tokens.new_zeros(num_tokens.numel(), width)
    ids[trace.row[emitted], trace.position[emitted]] = trace.token_id[emitted]
    return [row[:length] for row, length in zip(ids, num_tokens.tolist(), strict=True)]


def _view(out: StepOutput, target_probs: Tensor, drafted: _Draft, sampling: Sampling) -> ModelView:
    """Return both models at the drafted columns and the one behind."""
    return ModelView(
        target_probs=target_probs,
        draft_probs=drafted.probs,
        target_logits=out.logits,
        draft_logits=drafted.logits,
        target_hidden=out.hidden,
        draft_hidden=drafted.hidden,
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
