"""What the tasks over news articles and their summaries share."""

import importlib.metadata
import logging
from collections.abc import Sequence
from typing import Any, ClassVar

from diversed.tasks.base import Example, TaskDataError
from diversed.tasks.loaded import LoadedTask
from diversed.tasks.loading import ROW_COLUMN
from diversed.tasks.metrics.rouge_scores import RougeScores

logger = logging.getLogger(__name__)


class SummaryTask(LoadedTask):
    """ROUGE-2 F-measure against the row's own summary; ROUGE-1, 2, L and Lsum over a corpus.

    An article that is too long for the models is cut from its end by whoever knows their tokens;
    the instruction and the worked examples stay whole.

    Attributes:
        text_column: Column of the article.
        summary_column: Column of the summary.
    """

    quality_name = "ROUGE-2"
    max_new_tokens = 128
    text_column: ClassVar[str]
    summary_column: ClassVar[str]

    def __init__(
        self, *, use_stemmer: bool = True, newlines: str = "sentences", **options: Any
    ) -> None:
        """Set how summaries are compared.

        Args:
            use_stemmer: Whether words are compared by their Porter stems.
            newlines: What ROUGE-Lsum takes as sentences: "sentences" splits predictions and
                references; "keep" takes lines as they are, so that a text in one line is one.
            options: Where rows come from and how they are posed; see `LoadedTask`.

        Raises:
            ValueError: A setting is out of range, or there is nothing at `path`.
        """
        super().__init__(**options)
        self._rouge = RougeScores(use_stemmer=use_stemmer, newlines=newlines)
        self._reward = RougeScores(["rouge2"], use_stemmer=use_stemmer, newlines=newlines)
        logger.info(
            "%s: ROUGE with %s",
            self.name,
            ", ".join(f"{key}={value}" for key, value in self._rouge.settings.items()),
        )

    def example(self, row: Example, split: str) -> Example:
        """Return `id`, article and summary of a row."""
        example = {"id": f"{self.name}/{split}/{row[ROW_COLUMN]}"}
        for column in (self.text_column, self.summary_column):
            if not isinstance(row[column], str):
                kind = type(row[column]).__name__
                raise TaskDataError(
                    f"{self.name}: row {row[ROW_COLUMN] + 1} ({split}) has a {kind} in the column "
                    f"{column}; it must be a text"
                )
            example[column] = row[column]
        return example

    def posed_text(self, example: Example) -> str:
        """Return the article, without white space around it."""
        article: str = example[self.text_column]
        return article.strip()

    def reference(self, example: Example) -> str:
        """Return the row's own summary."""
        summary: str = example[self.summary_column]
        return summary

    def score(self, text: str, example: Example) -> float:
        """Return the ROUGE-2 F-measure; 0.0 for a blank text, or one of a single word."""
        return self._reward.score(text, [self.reference(example)])["rouge2"]

    def corpus_metrics(self, texts: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
        """Return mean `rouge1`, `rouge2`, `rougeL` and `rougeLsum`, in [0, 1]."""
        if not texts:
            return {}
        return self._rouge.means(texts, [[self.reference(example)] for example in examples])

    def provenance(self) -> dict[str, Any]:
        """Return what `LoadedTask` returns, and ROUGE's settings and version."""
        version = importlib.metadata.version("rouge_score")
        return super().provenance() | {"rouge": {**self._rouge.settings, "rouge_score": version}}
