"""What a control's head reads in the place of the hidden states.

A head that is denied some of its context shows how much that context is worth. The models stay as
they are; only the hidden states that they hand on are replaced, in training and in decoding alike:
`constant` by zeros (one w for everything), `prompt` by those at the prompt's last token (one w for
a completion), `position` by an encoding of the token's index, `shuffled` by those of a random
context.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diversed.core import noise
from diversed.core.loop import DecodeSettings
from diversed.core.types import StepOutput
from diversed.core.verifiers import LosslessVerifier
from diversed.generation import SpeculativeDecoder
from diversed.models.head import HEAD_READS
from diversed.models.loading import LoadedModel, ModelPair
from diversed.prompting import fit_prompt
from diversed.tasks.base import Task

NUM_BANK_PROMPTS = 32
_LONGEST_WAVE = 10_000.0


class _ControlledModel(ABC):
    """A language model whose hidden states are replaced; its logits are its own.

    A position counts from the prompt's last token, which is read at position 0.
    """

    def __init__(self, inner: LoadedModel) -> None:
        self.inner = inner
        self.model = inner.model
        self.vocab_size = inner.vocab_size

    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        """See `LanguageModel.start`."""
        self.inner.start(prompt_ids, prompt_mask)
        self._position = prompt_ids.new_zeros(len(prompt_ids), 1)

    def step(self, input_ids: Tensor) -> StepOutput:
        """See `LanguageModel.step`."""
        out = self.inner.step(input_ids)
        num_new = input_ids.shape[1]
        positions = self._position + torch.arange(num_new, device=input_ids.device)
        self._position = self._position + num_new
        return replace(out, hidden=self._seen(out.hidden, positions))

    def retain(self, rows: Tensor, num_drop: Tensor) -> None:
        """See `LanguageModel.retain`."""
        self.inner.retain(rows, num_drop)
        self._position = self._position[rows] - num_drop.unsqueeze(1)

    @abstractmethod
    def _seen(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return what the head reads for hidden states [B, n, D] at positions [B, n]."""


class _ConstantModel(_ControlledModel):
    def _seen(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return torch.zeros_like(hidden)


class _PositionModel(_ControlledModel):
    """Sine and cosine of the position at D / 2 wavelengths.

    Source: Vaswani et al. 2017 (arXiv:1706.03762), section 3.5. No difference.
    """

    def _seen(self, hidden: Tensor, positions: Tensor) -> Tensor:
        width = hidden.shape[-1]
        exponents = torch.arange(0, width, 2, device=hidden.device) / width
        angles = positions.unsqueeze(-1) * _LONGEST_WAVE**-exponents
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)
        return waves[..., :width].to(hidden.dtype)


class _PromptModel(_ControlledModel):
    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        super().start(prompt_ids, prompt_mask)
        self._of_prompt: Tensor | None = None

    def retain(self, rows: Tensor, num_drop: Tensor) -> None:
        super().retain(rows, num_drop)
        if self._of_prompt is not None:
            self._of_prompt = self._of_prompt[rows]

    def _seen(self, hidden: Tensor, positions: Tensor) -> Tensor:
        if self._of_prompt is None:
            self._of_prompt = hidden[:, :1]
        return self._of_prompt.expand_as(hidden)


class _ShuffledModel(_ControlledModel):
    """Hidden states out of a bank, by a hash of prompt and position: target and draft agree."""

    def __init__(self, inner: LoadedModel, bank: Tensor) -> None:
        super().__init__(inner)
        self._bank = bank

    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        super().start(prompt_ids, prompt_mask)
        from_end = torch.arange(prompt_ids.shape[1], device=prompt_ids.device).flip(0)
        hashes = noise.stream_keys(0, prompt_ids, from_end, noise.Purpose.DRAFT)
        self._prompt_hash = (hashes * prompt_mask).sum(1, keepdim=True)

    def retain(self, rows: Tensor, num_drop: Tensor) -> None:
        super().retain(rows, num_drop)
        self._prompt_hash = self._prompt_hash[rows]

    def _seen(self, hidden: Tensor, positions: Tensor) -> Tensor:
        hashes = noise.stream_keys(0, self._prompt_hash, positions, noise.Purpose.NEXT)
        return self._bank[hashes % len(self._bank)].to(hidden.dtype)


@dataclass(frozen=True)
class HiddenBank:
    """Hidden states of both models at M tokens of real completions.

    Attributes:
        target: [M, D_p].
        draft: [M, D_q], at the same tokens.
    """

    target: Tensor
    draft: Tensor


def hidden_bank(pair: ModelPair, task: Task, settings: DecodeSettings) -> HiddenBank:
    """Return the states that a head reads while the first training prompts are completed.

    Args:
        pair: The models; they verify losslessly.
        task: Its first `NUM_BANK_PROMPTS` training examples are completed.
        settings: Of the completions.
    """
    settings = replace(settings, keep_head_inputs=True)
    decoder = SpeculativeDecoder(pair, LosslessVerifier(), settings, task.stop_strings)
    examples = task.examples("train")
    examples = examples.select(range(min(NUM_BANK_PROMPTS, len(examples))))
    prompts = [fit_prompt(decoder, task, example).prompt for example in examples]
    trace = decoder.generate(prompts, show_progress=False).result.trace
    if trace.target_hidden is None or trace.draft_hidden is None:
        raise RuntimeError("the trace holds no hidden states")
    return HiddenBank(trace.target_hidden, trace.draft_hidden)


def read_as(reads: str, pair: ModelPair, make_bank: Callable[[], HiddenBank]) -> ModelPair:
    """Return the pair as a head that reads so sees it.

    Args:
        reads: One of `models.head.HEAD_READS`.
        pair: The models.
        make_bank: Called for "shuffled" alone.

    Raises:
        ValueError: `reads` is unknown.
    """
    if reads in ("hidden", "features"):
        return pair
    if reads == "shuffled":
        bank = make_bank()
        target: LoadedModel = _ShuffledModel(pair.target, bank.target)
        draft: LoadedModel = _ShuffledModel(pair.draft, bank.draft)
    elif reads in _CONTROLS:
        target, draft = (_CONTROLS[reads](model) for model in (pair.target, pair.draft))
    else:
        raise ValueError(f"head.reads={reads!r}: must be one of {', '.join(HEAD_READS)}")
    return replace(pair, target=target, draft=draft, reads=reads)


_CONTROLS: dict[str, Callable[[LoadedModel], LoadedModel]] = {
    "constant": _ConstantModel,
    "prompt": _PromptModel,
    "position": _PositionModel,
}
