"""Grade-school word problems in the form of GSM8K, generated: the task of the embedded pair.

A problem is a chain of two to four operations on small numbers, told as a story; a solution works
each operation in one sentence and ends with `#### N`. Few tokens of a solution matter (digits and
operators); most are a matter of style, and two styles may disagree on every one of them without
either being wrong. That is the situation which relaxed verification exploits.

Numbers, operations and wording are drawn separately. A problem's `key` is its numbers and
operations alone; its split is a hash of the key, so no chain of operations is in two splits,
however it is told.
"""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from datasets import Dataset

from diversed.core.checks import check_at_least_one
from diversed.tasks.base import Example, Task, check_split

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "June")
ITEMS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pens", "shells", "stamps", "toys")
CONTAINERS = ("bags", "boxes", "crates", "jars", "packs")
# fmt: off
QUESTION_WORDS = (
    "has", "buys", "finds", "wins", "more", "gives", "sells", "hands", "to", "That", "pile",
    "turns", "into", "times", "as", "many", "brings", "with", "each", "How", "are", "there",
    "the",
)
# fmt: on
MAX_RESULT = 50
"""Largest intermediate result, so that two digits are always enough."""

STYLE_SLOTS: Mapping[str, tuple[str, ...]] = {
    "template": ("story", "compute", "equation"),
    "first": ("First", "Initially", "Firstly", "Originally"),
    "next": ("Then", "Next", "Afterwards", "Later", "Subsequently"),
    "last": ("Finally", "Lastly", "Ultimately", "Eventually"),
    "subject": ("NAME", "they", "someone"),
    "gain": ("gains", "gets", "receives", "obtains", "collects"),
    "lose": ("loses", "drops", "removes", "parts", "yields"),
    "grow": ("multiplies", "scales", "grows", "expands"),
    "pack": ("counts", "unpacks", "opens", "sorts"),
    "so": ("so", "thus", "hence", "therefore"),
    "we": ("we", "you", "one", "people"),
    "compute": ("compute", "calculate", "find", "work", "evaluate"),
    "which": ("which", "that", "this"),
    "plus": ("+", "plus", "and"),
    "minus": ("-", "minus", "less"),
    "times": ("*", "times", "x"),
    "is": ("is", "makes", "gives", "equals", "="),
    "yields": ("comes", "amounts", "leads", "sums"),
    "have": ("has", "owns", "holds", "keeps", "carries"),
    "now": ("now", "altogether", "overall", "together", "here"),
    "close": ("So", "Therefore", "Thus", "Hence", "Consequently"),
    "answer": ("answer", "result", "total", "solution", "number"),
    "final": ("is", "equals", "becomes", "reads"),
    "really": ("indeed", "clearly", "exactly", "simply"),
}
"""Slot -> interchangeable words. A style is one distribution over the words of each slot."""

Style = Mapping[str, tuple[float, ...]]
"""Slot -> probabilities of its words, in the order of `STYLE_SLOTS`."""

UNIFORM_STYLE: Style = {slot: (1 / len(words),) * len(words) for slot, words in STYLE_SLOTS.items()}

_SYMBOL_SLOT = {"+": "plus", "-": "minus", "*": "times"}
SPLIT_PATTERN = r" ?[A-Za-z]+| ?[0-9]|####| ?[^A-Za-z0-9\s]|\s"
"""Pre-tokenisation of problem texts: words and first digits carry their leading space."""


@dataclass(frozen=True)
class Operation:
    """One line of a solution: `left symbol right = result`."""

    kind: str  # "add", "sub", "times", "pack" (a x b on its own) or "put" (adds the packed items)
    left: int
    symbol: str
    right: int
    result: int


@dataclass(frozen=True)
class Problem:
    """A start value and a chain of operations; `answer` is the last result."""

    start: int
    operations: tuple[Operation, ...]

    @property
    def answer(self) -> int:
        """The number that a right solution states."""
        return self.operations[-1].result

    @property
    def key(self) -> str:
        """The problem without its wording, e.g. "12 +3 *2"; equal keys have equal arithmetic."""
        parts = [str(self.start)]
        for operation in self.operations:
            pair = f"{operation.left}x" if operation.kind == "pack" else operation.symbol
            parts.append(f"{pair}{operation.right}")
        return " ".join(parts)

    @property
    def split(self) -> str:
        """The one split that this chain of operations belongs to (80 / 10 / 10 by hash)."""
        bucket = int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:4], "big") % 10
        return {0: "test", 1: "validation"}.get(bucket, "train")


def draw_problem(rng: random.Random) -> Problem:
    """Draw numbers and operations of one problem with two to four lines of solution."""
    value = start = rng.randint(2, 20)
    num_lines = rng.choice((2, 3, 3, 4))
    operations: list[Operation] = []
    while len(operations) < num_lines:
        kind = rng.choice(("add", "sub", "times", "pack"))
        if kind == "add" and value <= MAX_RESULT - 2:
            amount = rng.randint(2, min(18, MAX_RESULT - value))
            operations.append(Operation(kind, value, "+", amount, value + amount))
        elif kind == "sub" and value >= 4:
            amount = rng.randint(2, min(18, value - 1))
            operations.append(Operation(kind, value, "-", amount, value - amount))
        elif kind == "times" and value * 2 <= MAX_RESULT:
            factor = rng.randint(2, min(4, MAX_RESULT // value))
            operations.append(Operation(kind, value, "*", factor, value * factor))
        elif kind == "pack" and len(operations) + 2 <= num_lines and value <= MAX_RESULT - 4:
            count = rng.randint(2, min(5, (MAX_RESULT - value) // 2))
            each = rng.randint(2, min(9, (MAX_RESULT - value) // count))
            packed = count * each
            operations.append(Operation("pack", count, "*", each, packed))
            operations.append(Operation("put", value, "+", packed, value + packed))
        value = operations[-1].result if operations else start
    return Problem(start, tuple(operations))


def tell_question(problem: Problem, rng: random.Random) -> tuple[str, str, str]:
    """Return a story for a problem, and the name and item it is about."""
    name, friend = rng.sample(NAMES, 2)
    item = rng.choice(ITEMS)
    sentences = [f"{name} has {problem.start} {item}."]
    for operation in problem.operations:
        amount = operation.right
        if operation.kind == "add":
            verb = rng.choice(("buys", "finds", "wins"))
            sentences.append(f"{name} {verb} {amount} more {item}.")
        elif operation.kind == "sub":
            verb = rng.choice(("gives", "sells", "hands"))
            sentences.append(f"{name} {verb} {amount} {item} to {friend}.")
        elif operation.kind == "times":
            sentences.append(f"That pile turns into {amount} times as many {item}.")
        elif operation.kind == "pack":
            container = rng.choice(CONTAINERS)
            sentences.append(f"{friend} brings {operation.left} {container} with {amount} each.")
    sentences.append(f"How many {item} are there?")
    return " ".join(sentences), name, item


class _Wording:
    """Draws words of the style slots."""

    def __init__(self, style: Style, rng: random.Random, name: str) -> None:
        self._style, self._rng, self._name = style, rng, name

    def __getitem__(self, slot: str) -> str:
        (word,) = self._rng.choices(STYLE_SLOTS[slot], self._style[slot])
        return self._name if word == "NAME" else word


def tell_solution(problem: Problem, name: str, item: str, style: Style, rng: random.Random) -> str:
    """Return a worked solution in a style, ending with `#### N`."""
    word = _Wording(style, rng, name)
    lines = []
    for index, operation in enumerate(problem.operations):
        is_last = index == len(problem.operations) - 1
        opener = word["first" if index == 0 else "last" if is_last else "next"]
        verb_slot = {"sub": "lose", "times": "grow", "pack": "pack"}.get(operation.kind, "gain")
        sum_text = f"{operation.left} {word[_SYMBOL_SLOT[operation.symbol]]} {operation.right}"
        result = operation.result
        template = word["template"]
        if template == "story":
            story = f"{opener}, {word['subject']} {word[verb_slot]} {item} {word['now']}"
            lines.append(f"{story}, {word['so']} {sum_text} {word['is']} {result}.")
        elif template == "compute":
            plan = f"{opener} {word['we']} {word['compute']} {sum_text}"
            lines.append(f"{plan}, {word['which']} {word['really']} {word['yields']} to {result}.")
        else:
            claim = f"{opener} {word['really']} {sum_text} {word['is']} {result}"
            lines.append(f"{claim}, {word['so']} {word['subject']} {word['have']} {item}.")
    closing = f"{word['close']} the {word['answer']} {word['really']} {word['final']}"
    lines.append(f"{closing} {problem.answer}.")
    return "\n".join([*lines, f"#### {problem.answer}"])


def draw_examples(split: str, seed: int, style: Style = UNIFORM_STYLE) -> Iterator[Example]:
    """Yield examples of one split without end; a function of `split`, `seed` and `style` alone.

    Args:
        split: "train", "validation" or "test".
        seed: Seeds numbers and wording.
        style: Distribution of the words of the worked solution.

    Yields:
        Rows with `id`, `key`, `question`, `solution` and `answer`.
    """
    check_split(split)
    rng = random.Random(f"arithmetic/{split}/{seed}")
    index = 0
    while True:
        problem = draw_problem(rng)
        if problem.split != split:
            continue
        question, name, item = tell_question(problem, rng)
        yield {
            "id": f"arithmetic/{split}/{seed}/{index}",
            "key": problem.key,
            "question": question,
            "solution": tell_solution(problem, name, item, style, rng),
            "answer": str(problem.answer),
        }
        index += 1


class ArithmeticTask(Task):
    """The generated word problems, with exact match of the final number as reward."""

    name = "arithmetic"
    quality_name = "accuracy"
    max_new_tokens = 112

    def __init__(
        self,
        num_train: int = 4096,
        num_validation: int = 512,
        num_test: int = 2048,
        seed: int = 0,
    ) -> None:
        """Set the sizes of the splits.

        Args:
            num_train: Number of training problems.
            num_validation: Number of validation problems.
            num_test: Number of test problems.
            seed: Seeds the problems; runs that are compared must share it.

        Raises:
            ValueError: A size is below 1.
        """
        self._sizes = {"train": num_train, "validation": num_validation, "test": num_test}
        for split, size in self._sizes.items():
            check_at_least_one(f"data.num_{split}", size)
        self._seed = seed

    def examples(self, split: str) -> Dataset:
        """Return a split; keys are unique within it, and no key is in two splits."""
        check_split(split)
        rows: dict[str, Example] = {}
        for example in draw_examples(split, self._seed):
            rows.setdefault(example["key"], example)
            if len(rows) == self._sizes[split]:
                break
        return Dataset.from_list(list(rows.values()))

    def prompt(self, example: Example) -> str:
        """Return the question and the line break after which the solution begins."""
        return f"{example['question']}\n"

    def extract(self, text: str) -> str | None:
        """Return the digits behind the last `####`, or None where the text has no such line."""
        matches = re.findall(r"#### ?([0-9]+)(?![0-9])", text)
        return matches[-1] if matches else None

    def score(self, text: str, example: Example) -> float:
        """Return 1.0 where the stated number is the answer, else 0.0."""
        answer = self.extract(text)
        return float(answer is not None and int(answer) == int(example["answer"]))


def vocabulary() -> list[str]:
    """Return every token that questions and solutions can contain, sorted."""
    opening_slots = ("first", "next", "last", "close")
    opening = {word for slot in opening_slots for word in STYLE_SLOTS[slot]}
    inner_slots = [slot for slot in STYLE_SLOTS if slot not in {"template", *opening_slots}]
    inner = {word for slot in inner_slots for word in STYLE_SLOTS[slot] if word != "NAME"}
    digits = {str(digit) for digit in range(10)}
    tokens = {
        " " + word for word in {*NAMES, *ITEMS, *CONTAINERS, *QUESTION_WORDS} | inner | digits
    }
    tokens |= {*NAMES, *opening, *digits}
    return sorted(tokens | {"####", ".", ",", "?", "\n"})
