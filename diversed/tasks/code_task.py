"""A task whose completions are programs: right are those that pass their tests.

Subclasses say which program a completion makes, and what its tests are.
"""

import logging
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from diversed.tasks.base import Example, Score
from diversed.tasks.execution import CodeJudge, Program
from diversed.tasks.loaded import LoadedTask
from diversed.tasks.metrics.estimators import pass_at_k
from diversed.tasks.sandbox import Limits

logger = logging.getLogger(__name__)

PASS_AT = (1, 5, 10, 100)
"""Values of k of pass@k; those up to the number of samples per prompt are reported."""


class CodeTask(LoadedTask):
    """What the tasks of written programs share: the judge, scores of 0 or 1, and pass@k."""

    quality_name = "pass@1"

    def __init__(
        self,
        *,
        allow_code_execution: bool = False,
        timeout_s: float = 10.0,
        memory_mb: int = 1024,
        num_processes: int = 16,
        max_workers: int | None = None,
        **loading: Any,
    ) -> None:
        """Set how programs are run and where rows come from.

        Args:
            allow_code_execution: Whether programs that a model has written may be run at all.
            timeout_s: Wall time of a program with all its tests, in seconds.
            memory_mb: Address space of each of its processes, in MiB.
            num_processes: Its processes and threads at a time; two are the judge's.
            max_workers: Programs at a time; None for one per CPU.
            loading: See `LoadedTask`.

        Raises:
            PermissionError: Code execution is not allowed.
            SandboxUnavailableError: This machine cannot isolate programs.
            ValueError: A setting is out of range.
        """
        self._judge = CodeJudge(
            allow_code_execution=allow_code_execution,
            limits=Limits(timeout_s=timeout_s, memory_mb=memory_mb, num_processes=num_processes),
            max_workers=max_workers,
        )
        super().__init__(**loading)

    @abstractmethod
    def program(self, text: str, example: Example) -> Program:
        """Return the program that a completion makes, with its tests; accepts any text."""

    def score(self, text: str, example: Example) -> float:
        """Return 1.0 where the program passes all its tests, else 0.0.

        Args:
            text: A completion.
            example: Its example.

        Raises:
            RuntimeError: The program could not be judged.
        """
        (score,) = self.score_batch([text], [example])
        if score.value is None:
            raise RuntimeError(score.error)
        return score.value

    def score_batch(self, texts: Sequence[str], examples: Sequence[Example]) -> list[Score]:
        """Return 1.0 or 0.0 for each completion, or an error where the sandbox failed."""
        pairs = zip(texts, examples, strict=True)
        verdicts = self._judge.judge([self.program(text, example) for text, example in pairs])
        counts = Counter(verdict.reason for verdict in verdicts)
        logger.debug("programs: %s", ", ".join(f"{n} {reason}" for reason, n in counts.items()))
        return [
            Score(None, verdict.detail)
            if verdict.reason == "error"
            else Score(float(verdict.reason == "passed"))
            for verdict in verdicts
        ]

    def corpus_metrics(self, texts: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
        """Return the mean of pass@k over the prompts, for each k that all have samples for."""
        values = defaultdict(list)
        for example, score in zip(examples, self.score_batch(texts, examples), strict=True):
            if score.value is not None:
                values[example["id"]].append(score.value)
        most = min(map(len, values.values()), default=0)
        return {
            f"pass@{k}": sum(
                pass_at_k(num_samples=len(own), num_correct=int(sum(own)), k=k)
                for own in values.values()
            )
            / len(values)
            for k in PASS_AT
            if k <= most
        }

    def provenance(self) -> dict[str, Any]:
        """Return where the rows came from, how they are posed and how programs are run."""
        return super().provenance() | self._judge.describe()
