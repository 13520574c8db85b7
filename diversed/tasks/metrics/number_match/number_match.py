"""Number match for `evaluate`: `diversed.tasks.metrics.load_metric("number_match")`."""

from collections.abc import Sequence

import evaluate

from diversed.tasks.metrics.info import text_metric_info
from diversed.tasks.metrics.number_scores import number_match
from diversed.tasks.metrics.references import as_reference_lists


class NumberMatch(evaluate.Metric):
    """Share of predictions that state the number of a reference; references are texts or lists."""

    def _info(self) -> evaluate.MetricInfo:
        return text_metric_info(
            description="Exact match of the number that a solution states as its answer.",
            citation="Cobbe et al. (2021): Training Verifiers to Solve Math Word Problems.",
        )

    def _compute(
        self, predictions: Sequence[str], references: Sequence[str | Sequence[str]]
    ) -> dict[str, float]:
        if not predictions:
            raise ValueError("number match: there are no predictions")
        matches = [
            number_match(prediction, row)
            for prediction, row in zip(predictions, as_reference_lists(references), strict=True)
        ]
        return {"number_match": sum(matches) / len(matches)}
