"""Puzzles of the `reasoning-gym` library: generated without end, scored by the library itself.

The library is an extra: `pip install 'diversed[tasks]'`. A generator's rows are drawn in one
stream, and the split of a row is a hash of its question: no question and no seed is in two
splits, whatever the sizes, and train, validation and test share nothing even across seeds.
"""

import copy
import dataclasses
import difflib
import hashlib
import importlib.metadata
import logging
import re
from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from diversed.core.checks import check_at_least_one
from diversed.tasks.base import SPLITS, Example, Prompt, Task, TaskDataError, check_split
from diversed.tasks.prompts import PromptBuilder, PromptTemplate, Shot
from diversed.tasks.source_scan import evaluating_calls

logger = logging.getLogger(__name__)

CHUNK = 500
"""Rows per data set of the library, its own default. Row i of one is drawn with its seed + i."""
MAX_IDLE_ROWS = 2000
"""A generator is exhausted when so many rows bring no new question of a split."""
STREAM = 1_000_000
"""Seeds that belong to one `data.seed`, and so the most rows that can be drawn."""
MAX_SEED = 2**32 // STREAM
"""numpy, which some generators use, takes no seed above 2**32."""
NUM_SHOTS = 4
OPEN_TAG, CLOSE_TAG = "<answer>", "</answer>"

_HUGE_EXPONENT = re.compile(r"[eE][-+]?[0-9]{5}")

TEMPLATE = PromptTemplate(
    instruction=(
        "Solve the problem. Reason as briefly as you can, then write the final answer, and nothing "
        f"else, between {OPEN_TAG} and {CLOSE_TAG}."
    ),
    text_label="Problem",
    answer_label="Solution",
    is_multiline=True,
)


class ReasoningGymTask(Task):
    """One generator of the library, with the library's own score of an answer, clipped to [0, 1].

    Partial credit is the generator's: `gsm_symbolic` gives 0.01 for any wrong number.
    """

    max_new_tokens = 512
    quality_name = "score"

    def __init__(
        self,
        name: str,
        *,
        num_train: int = 3200,
        num_validation: int = 400,
        num_test: int = 400,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        prompt: str | None = None,
        num_shots: int | None = None,
    ) -> None:
        """Set the generator and the sizes of the splits.

        Args:
            name: Of a generator of the library, such as "gsm_symbolic".
            num_train: Number of training rows.
            num_validation: Number of validation rows.
            num_test: Number of test rows.
            seed: Seeds the rows; runs that are compared must share it.
            options: The generator's own settings, such as `{"max_terms": 3}`.
            prompt: See `PromptBuilder`, as `num_shots`.
            num_shots: Worked examples in a prompt; they are training rows, answers alone.

        Raises:
            ValueError: A size or the seed is out of range.
            TaskDataError: The library is not installed, has no such generator or option, or would
                run a completion as code in order to score it.
        """
        self._sizes = {"train": num_train, "validation": num_validation, "test": num_test}
        for split, size in self._sizes.items():
            check_at_least_one(f"data.num_{split}", size)
        if not 0 <= seed < MAX_SEED:
            raise ValueError(f"data.seed={seed}: must be at least 0 and below {MAX_SEED}")
        self._generator = name
        self._options = dict(options or {})
        self._first_seed = seed * STREAM
        self._chunks: dict[int, Any] = {}
        self._entries: dict[int, Any] = {}
        self._rows: dict[str, list[Example]] = {split: [] for split in SPLITS}
        self._questions: set[str] = set()
        self._num_drawn = 0
        _check_generator(name)
        self._chunk(self._first_seed // CHUNK)  # says now what is wrong with the options
        self.name = f"reasoning_gym_{name}"
        self._prompts = PromptBuilder(TEMPLATE, self._shots(), prompt=prompt, num_shots=num_shots)
        self.stop_strings = self._prompts.stop_strings

    def settle(
        self, *, has_chat_template: bool, context_length: int, is_training: bool = False
    ) -> None:
        """Choose style and shots of the prompts by the models."""
        self._prompts.settle(has_chat_template=has_chat_template, context_length=context_length)
        self.stop_strings = self._prompts.stop_strings

    def examples(self, split: str) -> Dataset:
        """Return rows with `id`, `seed`, `question` and `answer` (None where there are many).

        Raises:
            TaskDataError: The generator has too few different questions.
            ValueError: Unknown split.
        """
        check_split(split)
        size = self._sizes[split]
        self._draw(split, size)
        if len(self._rows[split]) < size:
            raise TaskDataError(
                f"data.num_{split}={size}: {self._generator} has only {len(self._rows[split])} "
                f"different {split} questions in {self._num_drawn} rows; ask for fewer, or make it "
                "richer with data.options"
            )
        logger.info("%s: %d %s rows", self.name, size, split)
        return Dataset.from_list(self._rows[split][:size])

    def prompt(self, example: Example) -> Prompt:
        """Return what poses the question."""
        return self._prompts.build(example["question"])

    def reference_completion(self, example: Example) -> str | None:
        """Return the right answer in its tag, or None where there are many."""
        answer = example["answer"]
        return None if answer is None else self._prompts.completion(_tagged(answer))

    def extract(self, text: str) -> str | None:
        """Return what stands in the last answer tag, closed or not; None without a tag.

        Source: `extract_answer` of the library, which needs the closing tag too.
        """
        _, tag, rest = text.rpartition(OPEN_TAG)
        return (rest.partition(CLOSE_TAG)[0].strip() or None) if tag else None

    def score(self, text: str, example: Example) -> float:
        """Return the library's score of the stated answer; 0.0 where there is none.

        Some of the library's scorers raise an error for an answer that they cannot read. It counts
        as a wrong answer if the same scorer accepts the right one; otherwise the scorer is at
        fault, and the error is raised.
        """
        answer = self.extract(text)
        if answer is None or _HUGE_EXPONENT.search(answer):  # int("1e99999999") would take hours
            return 0.0
        generator = self._chunk(example["seed"] // CHUNK)
        entry = self._entry(example["seed"])
        try:
            value = generator.score_answer(answer, entry)
        except Exception:
            right = entry["answer"]
            if not isinstance(right, str) or generator.score_answer(right, entry) != 1:
                raise
            return 0.0
        return min(max(float(value), 0.0), 1.0)

    def provenance(self) -> dict[str, Any]:
        """Return the library's version, the generator, its options and the sizes drawn."""
        return {
            "library": f"reasoning-gym {importlib.metadata.version('reasoning-gym')}",
            "generator": self._generator,
            "options": self._options,
            "seed": self._first_seed // STREAM,
            "num_rows": self._sizes,
            **self._prompts.describe(),
        }

    def _chunk(self, number: int) -> Any:
        """Return the library's data set of the seeds from `number * CHUNK`, made once."""
        if number not in self._chunks:
            self._chunks[number] = _make(self._generator, self._options, number * CHUNK)
        return self._chunks[number]

    def _entry(self, seed: int) -> Any:
        """Return a row as the library made it: a copy, for a scorer may do with it what it likes.

        Rows are kept here, because Arrow cannot hold every object of the library.
        """
        if seed not in self._entries:
            number, row = divmod(seed, CHUNK)
            self._entries[seed] = self._chunk(number)[row]
        return copy.deepcopy(self._entries[seed])

    def _draw(self, split: str, size: int) -> None:
        """Draw rows, each for the split of its question, until one split has so many.

        It ends early where the generator brings nothing new.
        """
        num_idle_rows = 0
        while len(self._rows[split]) < size and num_idle_rows < MAX_IDLE_ROWS:
            if self._num_drawn == STREAM:
                return
            seed = self._first_seed + self._num_drawn
            entry = self._entry(seed)
            content = " ".join(entry["question"].split()).casefold()
            own_split = _split_of(content)
            if content not in self._questions:
                example = {
                    "id": f"{self.name}/{own_split}/{seed}",
                    "seed": seed,
                    "question": entry["question"],
                    "answer": entry["answer"],
                }
                self._rows[own_split].append(example)
                num_idle_rows = 0 if own_split == split else num_idle_rows + 1
            else:
                num_idle_rows += 1
            self._questions.add(content)
            self._num_drawn += 1

    def _shots(self) -> list[Shot]:
        """Return the first training rows as worked examples, if they have one right answer."""
        self._draw("train", NUM_SHOTS)
        return [
            Shot(row["question"], _tagged(row["answer"]))
            for row in self._rows["train"][:NUM_SHOTS]
            if isinstance(row["answer"], str)
        ]


def _tagged(answer: str) -> str:
    return f"{OPEN_TAG}{answer}{CLOSE_TAG}"


def _split_of(content: str) -> str:
    """Return the one split that a question belongs to (80 / 10 / 10 by hash)."""
    bucket = int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "big") % 10
    return {0: "test", 1: "validation"}.get(bucket, "train")


def _registry() -> Mapping[str, tuple[type, type]]:
    """Return the library's generators: name -> (class, class of its options)."""
    try:
        import reasoning_gym.factory as factory  # type: ignore[import-untyped] # an extra
    except ImportError as error:
        raise TaskDataError(
            "data=reasoning_gym needs the library reasoning-gym: pip install 'diversed[tasks]'"
        ) from error
    registry: Mapping[str, tuple[type, type]] = factory.DATASETS
    return registry


def _check_generator(name: str) -> None:
    """Raise TaskDataError where there is no such generator, or its scorer would run completions."""
    registry = _registry()
    if name not in registry:
        near = difflib.get_close_matches(name, registry, n=5, cutoff=0.6)
        hint = (
            f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(sorted(registry))}"
        )
        raise TaskDataError(f"data.name={name}: reasoning-gym has no such generator; {hint}")
    calls = evaluating_calls(registry[name][0], "score_answer")
    if calls:
        raise TaskDataError(
            f"data.name={name}: the library would run completions as Python code to score them "
            f"({', '.join(sorted(calls))}), which is not done here; take another generator"
        )


def _make(name: str, options: Mapping[str, Any], seed: int) -> Any:
    make, make_options = _registry()[name]
    known = {field.name for field in dataclasses.fields(make_options)} - {"seed", "size"}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise TaskDataError(
            f"data.options.{unknown[0]}: {name} has no such option; it has "
            f"{', '.join(sorted(known)) or 'none'}"
        )
    try:
        return make(make_options(**options, seed=seed, size=CHUNK))
    except (AssertionError, TypeError, ValueError) as error:
        given = ", ".join(f"{key}={value}" for key, value in options.items()) or "none"
        raise TaskDataError(f"data.name={name} with data.options {given}: {error}") from error
