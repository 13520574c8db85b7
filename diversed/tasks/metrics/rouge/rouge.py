"""ROUGE as a module of `evaluate`: load it with `diversed.tasks.metrics.load_metric("rouge")`."""

from collections.abc import Sequence

import evaluate

from diversed.tasks.metrics.info import text_metric_info
from diversed.tasks.metrics.references import as_reference_lists
from diversed.tasks.metrics.rouge_scores import ROUGE_TYPES, RougeScores


class Rouge(evaluate.Metric):
    """Mean ROUGE F-measures over a corpus, in [0, 1]; references are texts or lists of texts.

    `compute` takes `rouge_types`, `use_stemmer` and `newlines` as
    `diversed.tasks.metrics.rouge_scores.RougeScores` does.
    """

    def _info(self) -> evaluate.MetricInfo:
        return text_metric_info(
            description="ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum F-measures by rouge_score.",
            citation="Lin (2004): ROUGE: A Package for Automatic Evaluation of Summaries.",
        )

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[str | Sequence[str]],
        rouge_types: Sequence[str] = ROUGE_TYPES,
        use_stemmer: bool = True,
        newlines: str = "sentences",
    ) -> dict[str, float]:
        scores = RougeScores(rouge_types, use_stemmer=use_stemmer, newlines=newlines)
        return scores.means(predictions, as_reference_lists(references))
