"""Prompts -> sampled completions, rewards, and what the head's gradient needs of each token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diversed.core.counts import acceptance_rate, token_acceptance_rate
from diversed.core.verifiers import DiversedVerifier
from diversed.generation import SpeculativeDecoder, row_key
from diversed.models.head import EnsembleHead
from diversed.objective.acceptance import TokenScalars
from diversed.tasks.base import Example, Task


@dataclass(frozen=True)
class Rollout:
    """S = P K sampled completions of at most T tokens, E tokens in all.

    Attributes:
        scalars: p, q, TV and mask, [S, T].
        row: Completion of each token, [E].
        position: Place of each token in its completion, [E].
        draft_hidden: h_q, [E, D_q].
        target_hidden: h_p, [E, D_p].
        features: Of the distributions, [E, 5].
        rewards: R, [S].
        acceptance_rate: Accepted / drafted over the batch.
        token_acceptance_rate: Accepted / judged over the batch.
    """

    scalars: TokenScalars
    row: Tensor
    position: Tensor
    draft_hidden: Tensor
    target_hidden: Tensor
    features: Tensor
    rewards: Tensor
    acceptance_rate: float
    token_acceptance_rate: float

    def target_weight(self, head: EnsembleHead) -> Tensor:
        """Return w of a head at every token, [S, T], differentiable; 1 where the mask is False."""
        features = self.features if head.uses_features else None
        weight = torch.sigmoid(head(self.draft_hidden, self.target_hidden, features))
        return torch.ones_like(self.scalars.target_prob).index_put(
            (self.row, self.position), weight
        )


def check_rollout_decoder(decoder: SpeculativeDecoder) -> None:
    """Raise ValueError where completions would not follow nu or could not differ."""
    if decoder.verifier.bonus != "verifier":
        raise ValueError(
            f"verifier.bonus={decoder.verifier.bonus}: training needs completions that follow nu; "
            "set verifier.bonus=verifier"
        )
    if isinstance(decoder.verifier, DiversedVerifier) and decoder.verifier.dial != 0:
        raise ValueError(
            f"verifier.dial={decoder.verifier.dial}: training needs the head's own w; set "
            "verifier.dial=0 and choose a dial when the head is evaluated"
        )
    if decoder.settings.sampling.is_greedy:
        raise ValueError("decoding.temperature=0: training samples completions; set it above 0")


def sample_rollout(
    decoder: SpeculativeDecoder,
    task: Task,
    examples: Sequence[Example],
    samples_per_prompt: int,
    step: int,
) -> Rollout:
    """Sample and score K completions of each example with the speculative decoder itself.

    Args:
        decoder: Passes `check_rollout_decoder`; its verifier holds the current head.
        task: Builds prompts and scores completions.
        examples: P rows of the training split.
        samples_per_prompt: K.
        step: Number of the rollout; names its random numbers, so a resumed run repeats none.

    Returns:
        Completions of a prompt next to each other, on the pair's device.
    """
    settings = replace(decoder.settings, keep_head_inputs=True)
    recording = SpeculativeDecoder(decoder.pair, decoder.verifier, settings, decoder.stop_strings)
    prompts = [task.prompt(example) for example in examples for _ in range(samples_per_prompt)]
    keys = [
        row_key("train", step, example["id"], sample)
        for example in examples
        for sample in range(samples_per_prompt)
    ]
    generation = recording.generate(prompts, keys)
    trace = generation.result.trace
    if trace.draft_hidden is None or trace.target_hidden is None or trace.features is None:
        raise RuntimeError("the decoder kept no head inputs")
    owners = [example for example in examples for _ in range(samples_per_prompt)]
    rewards = [
        task.score(text, example) for text, example in zip(generation.texts, owners, strict=True)
    ]
    emitted = trace.is_emitted
    row, position = trace.row[emitted], trace.position[emitted]
    shape = (len(prompts), int(position.max()) + 1)

    def padded(values: Tensor) -> Tensor:
        return values.new_zeros(shape).index_put((row, position), values[emitted])

    return Rollout(
        scalars=TokenScalars(
            target_prob=padded(trace.target_prob),
            draft_prob=padded(trace.draft_prob),
            tv_distance=padded(trace.tv_distance),
            mask=padded(torch.ones_like(trace.row)).bool(),
        ),
        row=row,
        position=position,
        draft_hidden=trace.draft_hidden.float(),
        target_hidden=trace.target_hidden.float(),
        features=trace.features,
        rewards=torch.tensor(rewards, dtype=torch.float32, device=row.device),
        acceptance_rate=acceptance_rate(generation.result.counts),
        token_acceptance_rate=token_acceptance_rate(generation.result.counts),
    )
