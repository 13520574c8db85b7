"""GSM8K: grade-school word problems whose answer is one number.

Source: Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems"; its answers end in
`#### N`. Differences: see `stated_number`.
"""

import re
from fractions import Fraction

from diversed.tasks.base import Example, TaskDataError
from diversed.tasks.loaded import LoadedTask
from diversed.tasks.loading import ROW_COLUMN, DataSource
from diversed.tasks.numbers import find_numbers, first_number, last_number, number_text
from diversed.tasks.prompts import PromptTemplate, Shot

MARKER = "####"
MAX_BOXED = 200
"""Characters within which a box must close, else it ends there."""

NUM_BOXES = 20
"""How many boxes are looked into, from the last one on."""

_NEXT_QUESTION = re.compile(r"(?<=\S)\s*\bQuestion:")
_HEADING = re.compile(r"[^A-Za-z0-9]*(?:step|part|case)\b", re.IGNORECASE)
_CALCULATION = re.compile(r"<<[^<>]*>>")
_BOXED = re.compile(r"\\(?:boxed|fbox)\s*")

SHOTS = (
    Shot(
        "A baker fills 6 trays with 12 rolls each and sells 50 rolls before noon. How many rolls "
        "are left?",
        "The baker makes 6 * 12 = 72 rolls.\nAfter the sale 72 - 50 = 22 rolls are left.\n#### 22",
    ),
    Shot(
        "Mira saves $15 every week. A bicycle costs $240, and her aunt pays a quarter of it. For "
        "how many weeks must Mira save?",
        "Her aunt pays 240 / 4 = $60.\nMira must pay 240 - 60 = $180 herself.\n"
        "That takes 180 / 15 = 12 weeks.\n#### 12",
    ),
    Shot(
        "A train has 8 carriages with 45 seats each. On a Monday, 70% of the seats are taken. How "
        "many seats are free?",
        "The train has 8 * 45 = 360 seats.\nThe share of free seats is 100 - 70 = 30%.\n"
        "So 360 * 0.3 = 108 seats are free.\n#### 108",
    ),
    Shot(
        "Jonas is three times as old as his sister. In 6 years their ages add up to 40. How old "
        "is Jonas now?",
        "Their ages now add up to 40 - 2 * 6 = 28.\nJonas and his sister are 3 + 1 = 4 parts of "
        "that.\nHis sister is 28 / 4 = 7, so Jonas is 3 * 7 = 21.\n#### 21",
    ),
)


class Gsm8kTask(LoadedTask):
    """Exact match of the final number, as fractions.

    The data set has no validation split: validation rows are carved from its training rows.
    """

    name = "gsm8k"
    quality_name = "accuracy"
    max_new_tokens = 512
    source = DataSource(
        hub_id="openai/gsm8k",
        config_name="main",
        columns=("question", "answer"),
        splits={"train": "train", "test": "test"},
        key=("question",),
    )
    template = PromptTemplate(
        instruction=(
            "Solve the problem step by step. End with a line that holds only #### and the final "
            "number, like this: #### 42"
        ),
        text_label="Question",
        answer_label="Answer",
    )
    shots = SHOTS

    def example(self, row: Example, split: str) -> Example:
        """Return `id`, `question`, the worked `solution` and the number `answer`."""
        place = f"gsm8k: row {row[ROW_COLUMN] + 1} ({split})"
        for column in self.source.columns:
            if not isinstance(row[column], str):
                kind = type(row[column]).__name__
                raise TaskDataError(f"{place} has a {kind} in the column {column}, not a text")
        answer = _marked_number(row["answer"])
        if answer is None:
            raise TaskDataError(f"{place} has no number after {MARKER} in the column answer")
        return {
            "id": f"gsm8k/{split}/{row[ROW_COLUMN]}",
            "question": row["question"],
            "solution": row["answer"],
            "answer": number_text(answer),
        }

    def posed_text(self, example: Example) -> str:
        """Return the question."""
        question: str = example["question"]
        return question

    def reference_completion(self, example: Example) -> str | None:
        """Return the worked solution without the marks for a calculator, such as `<<6*2=12>>`."""
        solution = _CALCULATION.sub("", example["solution"])
        return super().reference_completion({**example, "solution": solution})

    def extract(self, text: str) -> str | None:
        """Return the stated number in one spelling, or None where there is none."""
        number = stated_number(text)
        return None if number is None else number_text(number)

    def score(self, text: str, example: Example) -> float:
        """Return 1.0 where the stated number equals the answer exactly, else 0.0."""
        number = stated_number(text)
        return float(number is not None and number == first_number(example["answer"]))


def stated_number(text: str) -> Fraction | None:
    r"""Return the number that a solution states as its answer; None where it has no number.

    It is the number after the last `####` that has one, else the one in the last `\boxed{}`, else
    the last number of the text. A next "Question:" that the model asks itself ends the text. Of an
    equation in such a place the right-hand side counts.

    Args:
        text: Any text.

    Returns:
        The value.

    Source: the answer format of GSM8K. Its own evaluation takes the first `####` and compares
    strings without commas; here a model may also leave out the marker, or write `18.00`. `####`
    before "Step 2", a heading in Markdown, is no marker.
    """
    following = _NEXT_QUESTION.search(text)
    own = text[: following.start()] if following else text
    for candidate in (_marked_number(own), _boxed_number(own), last_number(own)):
        if candidate is not None:
            return candidate
    return None


def _marked_number(text: str) -> Fraction | None:
    for part in reversed(text.split(MARKER)[1:]):
        line = part.strip().partition("\n")[0]
        if not _HEADING.match(line):
            number = _right_hand_side(line)
            if number is not None:
                return number
    return None


def _boxed_number(text: str) -> Fraction | None:
    for match in list(_BOXED.finditer(text))[: -NUM_BOXES - 1 : -1]:
        number = _right_hand_side(_braced(text[match.end() : match.end() + MAX_BOXED]))
        if number is not None:
            return number
    return None


def _braced(text: str) -> str:
    """Return what stands between an opening brace and its closing one, or the first word."""
    if not text.startswith("{"):
        return text.split(maxsplit=1)[0] if text.strip() else ""
    depth = 0
    for index, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[1:index]
    return text[1:].partition("\n")[0]


def _right_hand_side(text: str) -> Fraction | None:
    """Return the first number after the last `=` that one follows, or of the text."""
    for part in reversed(text.split("=")):
        number = next(find_numbers(part), None)
        if number is not None:
            return number
    return None
