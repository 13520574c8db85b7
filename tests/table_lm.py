"""A language model that is a table: next-token logits by the last two tokens."""

import numpy as np
import torch
from torch import Tensor

from diversed.core.probs import Sampling
from diversed.core.types import StepOutput

PLAIN = Sampling()


class TableLM:
    """Fake `LanguageModel` of V tokens whose law can be enumerated.

    Its hidden state is the one-hot encoding of the last two tokens, so a linear head can give every
    context a weight of its own.
    """

    def __init__(
        self, vocab_size: int, seed: int, scale: float = 1.5, table: Tensor | None = None
    ) -> None:
        self.vocab_size = vocab_size
        if table is None:
            generator = torch.Generator().manual_seed(seed)
            table = torch.randn(vocab_size**2, vocab_size, generator=generator) * scale
        self.table = table

    def context(self, tokens: list[int]) -> int:
        before, last = ([0, *tokens])[-2:]
        return before * self.vocab_size + last

    def probs(self, tokens: list[int], sampling: Sampling = PLAIN) -> np.ndarray:
        """Return the next-token law after `tokens`, float64, without the functions under test."""
        return transformed(self.table[self.context(tokens)].double().numpy(), sampling)

    def start(self, prompt_ids: Tensor, prompt_mask: Tensor) -> None:
        width = prompt_ids.shape[1]
        self.history = torch.zeros(prompt_ids.shape[0], width + 64, dtype=torch.long)
        self.lengths = prompt_mask.sum(1)  # a 0 stands in front of every prompt, its end is unread
        source = torch.arange(width - 1) + (width - self.lengths).unsqueeze(1)
        prefix = prompt_ids.gather(1, source.clamp(max=width - 1))
        is_read = torch.arange(width - 1) < (self.lengths - 1).unsqueeze(1)
        self.history[:, 1:width] = torch.where(is_read, prefix, 0)

    def step(self, input_ids: Tensor) -> StepOutput:
        rows = torch.arange(input_ids.shape[0])
        contexts = []
        for column in range(input_ids.shape[1]):
            before = self.history[rows, self.lengths - 1]
            self.history[rows, self.lengths] = input_ids[:, column]
            self.lengths = self.lengths + 1
            contexts.append(before * self.vocab_size + input_ids[:, column])
        context = torch.stack(contexts, dim=1)
        hidden = torch.nn.functional.one_hot(context, self.vocab_size**2).float()
        return StepOutput(logits=self.table[context], hidden=hidden)

    def retain(self, rows: Tensor, num_drop: Tensor) -> None:
        self.history = self.history[rows]
        self.lengths = self.lengths[rows] - num_drop
        assert bool((self.lengths >= 1).all())


def transformed(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """Return what `sampling` makes of one row of logits; temperature 0 stands for plain softmax."""
    if not sampling.is_greedy:
        logits = logits / sampling.temperature
    probs = np.exp(logits - logits.max())
    if sampling.is_greedy:
        return probs / probs.sum()
    if 0 < sampling.top_k < probs.size:
        probs[probs < np.sort(probs)[-sampling.top_k]] = 0
    probs /= probs.sum()
    order = np.argsort(-probs)
    mass_above = np.cumsum(probs[order]) - probs[order]
    probs[order[mass_above >= sampling.top_p]] = 0
    return probs / probs.sum()


def left_pad(prompts: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return prompts as left-padded ids and their mask."""
    width = max(map(len, prompts))
    ids = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    mask = [[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts]
    return torch.tensor(ids), torch.tensor(mask)
