"""Prompts -> sampled completions, rewards, and what the head's gradient needs of each token."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diversed.core.verifiers import DiversedVerifier
from diversed.generation import SpeculativeDecoder, row_key
from diversed.models.head import EnsembleHead
from diversed.objective.acceptance import TokenScalars
from diversed.prompting import fit_prompt
from diversed.tasks.base import Example, Score, Task, score_completions

logger = logging.getLogger(__name__)


class ScoringError(RuntimeError):
    """No completion could be scored; the message says what failed first."""


@dataclass(frozen=True)
class Rollout:
    """S = P K sampled completions of at most T tokens, E tokens in all.

    P counts the prompts whose K completions were all scored; it may be 0. The others are left out
    whole: the advantage of a completion compares it with its prompt's other ones.

    Attributes:
        scalars: p, q, TV and mask, [S, T].
        row: Completion of each token, [E].
        position: Place of each token in its completion, [E].
        draft_hidden: h_q, [E, D_q].
        target_hidden: h_p, [E, D_p].
        features: Of the distributions, [E, 5].
        rewards: R, [S].
        num_drafted: Drafted tokens, of completions without a score too.
        num_judged: Of these, how many were accepted or rejected.
        num_accepted: Of these, how many were accepted.
        num_score_errors: Completions that could not be scored.
        score_error: What failed first; None where nothing did.
        num_cut_prompts: Prompts that were cut to fit the models' context.
    """

    scalars: TokenScalars
    row: Tensor
    position: Tensor
    draft_hidden: Tensor
    target_hidden: Tensor
    features: Tensor
    rewards: Tensor
    num_drafted: int
    num_judged: int
    num_accepted: int
    num_score_errors: int
    score_error: str | None
    num_cut_prompts: int

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

    Raises:
        PromptError: A prompt cannot be decoded.
    """
    settings = replace(decoder.settings, keep_head_inputs=True)
    recording = SpeculativeDecoder(decoder.pair, decoder.verifier, settings, decoder.stop_strings)
    fitted = [fit_prompt(recording, task, example) for example in examples]
    prompts = [fit.prompt for fit in fitted for _ in range(samples_per_prompt)]
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
    scores = score_completions(task, generation.texts, owners)
    errors = [score.error for score in scores if score.error is not None]
    is_kept = _is_in_scored_group(scores, samples_per_prompt)
    if errors:
        logger.warning(
            "rollout %d: %d completions cannot be scored (%s); left out %d of %d prompts",
            step + 1,
            len(errors),
            errors[0],
            is_kept.count(False) // samples_per_prompt,
            len(examples),
        )
    device = trace.row.device
    keep = torch.tensor(is_kept, device=device)
    new_row = keep.cumsum(0) - 1
    emitted = trace.is_emitted
    of_kept = keep[trace.row[emitted]]  # [E of all prompts]
    row, position = new_row[trace.row[emitted][of_kept]], trace.position[emitted][of_kept]
    shape = (int(keep.sum()), int(position.max()) + 1 if position.numel() else 0)

    def padded(values: Tensor) -> Tensor:
        return values.new_zeros(shape).index_put((row, position), values[emitted][of_kept])

    rewards = [score.value for score, kept in zip(scores, is_kept, strict=True) if kept]
    counts = generation.result.counts
    return Rollout(
        scalars=TokenScalars(
            target_prob=padded(trace.target_prob),
            draft_prob=padded(trace.draft_prob),
            tv_distance=padded(trace.tv_distance),
            mask=padded(torch.ones_like(trace.row)).bool(),
        ),
        row=row,
        position=position,
        draft_hidden=trace.draft_hidden[of_kept].float(),
        target_hidden=trace.target_hidden[of_kept].float(),
        features=trace.features[of_kept],
        rewards=torch.tensor(rewards, dtype=torch.float32, device=device),
        num_drafted=int(counts.drafted.sum()),
        num_judged=int(counts.judged.sum()),
        num_accepted=int(counts.accepted.sum()),
        num_score_errors=len(errors),
        score_error=errors[0] if errors else None,
        num_cut_prompts=sum(fit.is_cut for fit in fitted),
    )


def _is_in_scored_group(scores: Sequence[Score], group_size: int) -> list[bool]:
    """Return, per completion, whether it and all others of its prompt have a score."""
    groups = [scores[start : start + group_size] for start in range(0, len(scores), group_size)]
    is_scored = [all(score.error is None for score in group) for group in groups]
    return [scored for scored in is_scored for _ in range(group_size)]
