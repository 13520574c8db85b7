"""Prompts that fit: a task's long column is cut from its end where the models' context asks for it.

Instructions and worked examples are never cut. What cannot be made to fit is an error.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from diversed.generation import SpeculativeDecoder
from diversed.tasks.base import Example, Prompt, Task


@dataclass(frozen=True)
class FittedPrompt:
    """A prompt that leaves room for a completion.

    Attributes:
        prompt: Text or conversation.
        is_cut: Whether the end of the task's long column is missing.
        num_tokens: Its length as the models see it; 0 where it was not encoded.
    """

    prompt: Prompt
    is_cut: bool
    num_tokens: int = 0


def fit_prompt(decoder: SpeculativeDecoder, task: Task, example: Example) -> FittedPrompt:
    """Return the prompt of an example, cut where prompt and completion exceed the context.

    The column `task.long_column` loses words from its end until what is left fits; at least its
    first word stays.

    Args:
        decoder: Knows tokenizer, context and completion length.
        task: Builds the prompt.
        example: One of its examples; it is not changed.

    Returns:
        The prompt with as many words of the long column as fit.

    Raises:
        PromptError: The prompt is empty, or too long although nothing more may be cut.
    """
    prompt = task.prompt(example)
    text = "" if task.long_column is None else str(example[task.long_column])
    ends = [match.end() for match in re.finditer(r"\S+", text)]

    def cut(num_words: int) -> Prompt:
        return task.prompt(example | {str(task.long_column): text[: ends[num_words - 1]]})

    is_cut = bool(ends) and not _fits(decoder, prompt)
    if is_cut:
        # The whole text is known not to fit, so its last end is no candidate.
        num_words = _largest(len(ends) - 1, lambda number: _fits(decoder, cut(number)))
        prompt = cut(max(num_words, 1))
    ids = decoder.encode_prompt(prompt)  # says by how much it is still too long
    return FittedPrompt(prompt, is_cut, len(ids))


def prompt_text(decoder: SpeculativeDecoder, prompt: Prompt) -> str:
    """Return a prompt as the models see it: a conversation as its template renders it.

    The options of the template are those of `SpeculativeDecoder.prompt_ids`.
    """
    if isinstance(prompt, str):
        return prompt
    if decoder.pair.tokenizer.chat_template is None:  # they never will
        return "\n\n".join(message["content"] for message in prompt)
    text: str = decoder.pair.tokenizer.apply_chat_template(
        prompt, tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    return text


def _fits(decoder: SpeculativeDecoder, prompt: Prompt) -> bool:
    needed = len(decoder.prompt_ids(prompt)) + decoder.settings.max_new_tokens
    return needed <= decoder.pair.context_length


def _largest(upper: int, holds: Callable[[int], bool]) -> int:
    """Return the largest number up to `upper` that `holds`, by bisection; 0 where not even 1 does.

    What holds for a number is taken to hold for smaller ones; the number returned was tried.
    """
    low, high = 0, max(upper, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
