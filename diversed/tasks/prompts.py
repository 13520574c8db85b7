"""How a task asks: a conversation for instruct models, or worked examples as plain text.

A builder knows neither tokens nor models; `PromptBuilder.settle` is told what it needs of them.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diversed.tasks.base import Message, Prompt

logger = logging.getLogger(__name__)

PROMPT_STYLES = ("chat", "plain")
MIN_SHOT_CONTEXT = 2048
"""Context, in tokens, below which worked examples are left out unless they were asked for."""


@dataclass(frozen=True)
class Shot:
    """One worked example: a text as the task poses it, and a right answer."""

    text: str
    answer: str


@dataclass(frozen=True)
class PromptTemplate:
    """Wording of a task's prompts.

    Attributes:
        instruction: What is asked: the head of every user turn of a conversation, and of a plain
            prompt as a whole. May be empty.
        text_label: Name of the posed text in a plain prompt, such as "Question".
        answer_label: Name of the answer, such as "Answer".
        system: System message of a conversation; None for none, which every template accepts.
        text_first: Whether the instruction follows the text in a user turn.
        is_multiline: Whether posed text and answer stand on lines of their own in a plain prompt.
    """

    instruction: str
    text_label: str
    answer_label: str
    system: str | None = None
    text_first: bool = False
    is_multiline: bool = False


class PromptBuilder:
    """Builds the prompts of one task in one style.

    Attributes:
        style: "chat" or "plain"; what `settle` chooses where it was left open.
        num_shots: Worked examples in front of the posed text.
    """

    def __init__(
        self,
        template: PromptTemplate,
        shots: Sequence[Shot] = (),
        *,
        prompt: str | None = None,
        num_shots: int | None = None,
    ) -> None:
        """Set how to ask.

        Args:
            template: The wording.
            shots: Worked examples, never rows of a test split; the first `num_shots` are used.
            prompt: "chat", "plain" or None: chat where the tokenizer has a template, else plain.
            num_shots: How many worked examples; None: none in a conversation, all of them in a
                plain prompt for models with a context of at least `MIN_SHOT_CONTEXT` tokens.

        Raises:
            ValueError: The style is unknown, or there are not so many shots.
        """
        if prompt is not None and prompt not in PROMPT_STYLES:
            raise ValueError(
                f"data.prompt={prompt!r}: must be one of {', '.join(PROMPT_STYLES)}, or null to go "
                "by the tokenizer"
            )
        if num_shots is not None and not 0 <= num_shots <= len(shots):
            raise ValueError(
                f"data.num_shots={num_shots}: must lie between 0 and the {len(shots)} worked "
                "examples of the task, or be null"
            )
        self._template = template
        self._shots = tuple(shots)
        self._asked_style = prompt
        self._asked_num_shots = num_shots
        self.style = "plain"
        self.num_shots = 0
        self.settle(has_chat_template=False, context_length=MIN_SHOT_CONTEXT)

    def settle(self, *, has_chat_template: bool, context_length: int) -> None:
        """Choose what the settings left open.

        Args:
            has_chat_template: Whether the tokenizer takes conversations.
            context_length: Tokens that the models can attend to.
        """
        self.style = self._asked_style or ("chat" if has_chat_template else "plain")
        has_room = self.style == "plain" and context_length >= MIN_SHOT_CONTEXT
        default = len(self._shots) if has_room else 0
        self.num_shots = default if self._asked_num_shots is None else self._asked_num_shots

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Where an answer to a plain prompt ends: at the label of a next text."""
        return (f"\n{self._template.text_label}:",) if self.style == "plain" else ()

    def build(self, text: str) -> Prompt:
        """Return the prompt that poses a text."""
        shots = self._shots[: self.num_shots]
        return self._plain(text, shots) if self.style == "plain" else self._chat(text, shots)

    def completion(self, answer: str) -> str:
        """Return an answer as the text that follows a prompt which `build` has made."""
        is_inline = self.style == "plain" and not self._template.is_multiline
        return f" {answer}" if is_inline else answer

    def describe(self) -> dict[str, Any]:
        """Return style and number of shots, as settled, for the manifest."""
        return {"prompt": self.style, "num_shots": self.num_shots}

    def _chat(self, text: str, shots: Sequence[Shot]) -> list[Message]:
        messages: list[Message] = []
        if self._template.system is not None:
            messages.append({"role": "system", "content": self._template.system})
        for shot in shots:
            messages.append({"role": "user", "content": self._turn(shot.text)})
            messages.append({"role": "assistant", "content": shot.answer})
        return [*messages, {"role": "user", "content": self._turn(text)}]

    def _turn(self, text: str) -> str:
        parts = [self._template.instruction, text]
        if self._template.text_first:
            parts.reverse()
        return "\n\n".join(part for part in parts if part)

    def _plain(self, text: str, shots: Sequence[Shot]) -> str:
        gap = "\n" if self._template.is_multiline else " "
        blocks = [self._template.instruction] if self._template.instruction else []
        for shot in shots:
            blocks.append(
                f"{self._template.text_label}:{gap}{shot.text}\n"
                f"{self._template.answer_label}:{gap}{shot.answer}"
            )
        # No blank at the end: tokenizers attach it to the word that follows.
        ending = "\n" if self._template.is_multiline else ""
        blocks.append(
            f"{self._template.text_label}:{gap}{text}\n{self._template.answer_label}:{ending}"
        )
        return "\n\n".join(blocks)
