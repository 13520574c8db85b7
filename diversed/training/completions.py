"""What a draft learns from: prompts with completions, as token ids, and their batches.

The completions are the task's own answers or the target's outputs. A prompt has the ids that the
decoder gives it, so that the draft learns at the places where it will be asked.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from lightning import LightningDataModule
from torch import Tensor

from diversed.core.checks import check_at_least_one
from diversed.generation import PromptError, SpeculativeDecoder, row_key
from diversed.prompting import FittedPrompt, fit_prompt, prompt_text
from diversed.tasks.base import Example, Prompt, Task

logger = logging.getLogger(__name__)


class CompletionError(ValueError):
    """There is nothing to learn from; the message says why."""


class FittedExample(NamedTuple):
    """An example and its prompt."""

    example: Example
    fitted: FittedPrompt


class Completion(NamedTuple):
    """A prompt and what follows it, as ids; the end token is the last, unless there was no room."""

    example_id: str
    prompt_ids: list[int]
    completion_ids: list[int]


class CompletionBatch(NamedTuple):
    """B prompts with completions, padded on the right, [B, T].

    Attributes:
        ids: Token ids; 0 where there is padding.
        attention_mask: True where there is no padding.
        loss_mask: True at the tokens of completions.
        example_ids: Of the B examples.
    """

    ids: Tensor
    attention_mask: Tensor
    loss_mask: Tensor
    example_ids: list[str]


def fitted_prompts(
    decoder: SpeculativeDecoder, task: Task, examples: Sequence[Example]
) -> list[FittedExample]:
    """Return the examples whose prompts fit the models' context.

    Args:
        decoder: Knows tokenizer, context and completion length.
        task: Builds the prompts.
        examples: Rows of one split.

    Raises:
        PromptError: None fits; it is that of the first.
        CompletionError: There are no examples.
    """
    fitted: list[FittedExample] = []
    errors: list[PromptError] = []
    for example in examples:
        try:
            fitted.append(FittedExample(example, fit_prompt(decoder, task, example)))
        except PromptError as error:
            errors.append(error)
    if not fitted:
        raise errors[0] if errors else CompletionError("there are no rows to learn from")
    if errors:
        logger.warning("left out %d of %d prompts (%s)", len(errors), len(examples), errors[0])
    num_cut = sum(one.fitted.is_cut for one in fitted)
    if num_cut:
        logger.warning("%d prompts were cut at the end of %s", num_cut, task.long_column)
    return fitted


def reference_completions(
    decoder: SpeculativeDecoder, task: Task, fitted: Sequence[FittedExample]
) -> list[Completion]:
    """Return the task's own answers, each with the end token, cut to `max_new_tokens`.

    Args:
        decoder: Knows tokenizer and completion length.
        task: Has the answers. Examples without one are left out.
        fitted: Examples of one split, as `fitted_prompts` returns them.

    Raises:
        CompletionError: No example has an answer.
    """
    end_ids = _end_ids(decoder, fitted[0].fitted.prompt)
    max_new_tokens = decoder.settings.max_new_tokens
    completions, num_cut = [], 0
    for example, fit in fitted:
        answer = task.reference_completion(example)
        if not answer:
            continue
        prompt_ids = decoder.encode_prompt(fit.prompt)
        ids = _following_ids(decoder, fit.prompt, prompt_ids, answer) + end_ids
        num_cut += len(ids) > max_new_tokens
        completions.append(Completion(example["id"], prompt_ids, ids[:max_new_tokens]))
    if not completions:
        raise CompletionError(
            f"source=references: the rows of {task.name} have no answers to learn from; set "
            "source=target"
        )
    if len(completions) < len(fitted):
        logger.warning("left out %d rows without an answer", len(fitted) - len(completions))
    if num_cut:
        logger.warning(
            "%d of %d answers were cut to decoding.max_new_tokens=%d",
            num_cut,
            len(completions),
            max_new_tokens,
        )
    return completions


def sampled_completions(
    decoder: SpeculativeDecoder,
    fitted: Sequence[FittedExample],
    samples_per_prompt: int,
    batch_size: int,
    progress: Callable[[int], object] | None = None,
) -> list[Completion]:
    """Return what the decoder makes of prompts: with the lossless rule, the target's own outputs.

    Args:
        decoder: Its rule and sampling decide what is learnt.
        fitted: Examples of one split, as `fitted_prompts` returns them.
        samples_per_prompt: Completions of each prompt.
        batch_size: Rows decoded together.
        progress: Told of finished completions.

    Raises:
        ValueError: A number is below 1.
    """
    check_at_least_one("finetune.samples_per_prompt", samples_per_prompt)
    check_at_least_one("evaluation.batch_size", batch_size)
    requests = [(one, sample) for one in fitted for sample in range(samples_per_prompt)]
    completions = []
    for start in range(0, len(requests), batch_size):
        batch = requests[start : start + batch_size]
        prompts = [one.fitted.prompt for one, _ in batch]
        keys = [row_key("finetune", one.example["id"], sample) for one, sample in batch]
        generation = decoder.generate(prompts, keys, show_progress=False)
        completions += [
            Completion(one.example["id"], decoder.encode_prompt(one.fitted.prompt), ids.tolist())
            for (one, _), ids in zip(batch, generation.result.token_ids, strict=True)
        ]
        if progress is not None:
            progress(len(batch))
    return completions


def _following_ids(
    decoder: SpeculativeDecoder, prompt: Prompt, prompt_ids: list[int], text: str
) -> list[int]:
    """Return the ids of a text behind a prompt.

    They are those of both together, unless a token would span the two: the decoder goes on from the
    prompt's own ids.
    """
    tokenizer = decoder.pair.tokenizer
    options = {} if isinstance(prompt, str) else {"add_special_tokens": False}
    together: list[int] = tokenizer(prompt_text(decoder, prompt) + text, **options).input_ids
    if together[: len(prompt_ids)] == prompt_ids:
        return together[len(prompt_ids) :]
    alone: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return alone


def _end_ids(decoder: SpeculativeDecoder, prompt: Prompt) -> list[int]:
    """Return the end token as a list, empty where the models have none.

    Of several it is the one that ends an assistant's turn where the prompt is a conversation, else
    the tokenizer's own.
    """
    tokenizer, known = decoder.pair.tokenizer, decoder.pair.eos_ids
    candidates = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    if not isinstance(prompt, str):
        turns = [*prompt, {"role": "assistant", "content": "Yes."}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, enable_thinking=False)
        candidates = tokenizer(text, add_special_tokens=False).input_ids[::-1] + candidates
    return [token for token in (*candidates, *known) if token in known][:1]


def make_batch(completions: Sequence[Completion]) -> CompletionBatch:
    """Return completions of any lengths as one batch."""
    width = max(len(one.prompt_ids) + len(one.completion_ids) for one in completions)
    ids = torch.zeros(len(completions), width, dtype=torch.long)
    attention_mask = torch.zeros(len(completions), width, dtype=torch.bool)
    loss_mask = torch.zeros(len(completions), width, dtype=torch.bool)
    for row, (_, prompt_ids, completion_ids) in enumerate(completions):
        first, end = len(prompt_ids), len(prompt_ids) + len(completion_ids)
        ids[row, :end] = torch.tensor([*prompt_ids, *completion_ids])
        attention_mask[row, :end] = True
        loss_mask[row, first:end] = True
    return CompletionBatch(ids, attention_mask, loss_mask, [one.example_id for one in completions])


class CompletionBatches:
    """All completions in batches, the last of which may be smaller; a pass per iteration."""

    def __init__(
        self, completions: Sequence[Completion], batch_size: int, seed: int | None = None
    ) -> None:
        """Set the order: that of `completions`, or a new one drawn by `seed` in every pass.

        Raises:
            ValueError: `batch_size` is below 1.
        """
        check_at_least_one("finetune.batch_size", batch_size)
        self._completions = list(completions)
        self._batch_size = batch_size
        self._seed = seed
        self._num_passes = 0

    def __len__(self) -> int:
        return -(-len(self._completions) // self._batch_size)

    def __iter__(self) -> Iterator[CompletionBatch]:
        order = list(range(len(self._completions)))
        if self._seed is not None:
            key = row_key("finetune", "order", self._seed, self._num_passes)
            generator = torch.Generator().manual_seed(key)
            order = torch.randperm(len(order), generator=generator).tolist()
            self._num_passes += 1
        for start in range(0, len(order), self._batch_size):
            chosen = order[start : start + self._batch_size]
            yield make_batch([self._completions[index] for index in chosen])


class CompletionData(LightningDataModule):
    """Completions to learn from, and others to validate on."""

    def __init__(
        self,
        train: Sequence[Completion],
        validation: Sequence[Completion],
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        """Set what is learnt; `seed` draws the order. ValueError where `batch_size` is below 1."""
        super().__init__()
        self._train = CompletionBatches(train, batch_size, seed)
        self._validation = CompletionBatches(validation, batch_size)

    @property
    def num_batches(self) -> int:
        """Training batches of a pass."""
        return len(self._train)

    def train_dataloader(self) -> CompletionBatches:
        """Return the training batches, in a new order in every pass."""
        return self._train

    def val_dataloader(self) -> CompletionBatches:
        """Return the validation batches."""
        return self._validation
