"""pass@k as a module of `evaluate`: `diversed.tasks.metrics.load_metric("pass_at_k")`."""

from collections.abc import Sequence

import datasets
import evaluate

from diversed.tasks.metrics.estimators import pass_at_k


class PassAtK(evaluate.Metric):
    """Mean pass@k over problems; `predictions` says of each sample of each problem if it passed.

    `compute` takes `k`, a list of sizes, each at most the number of samples of every problem.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="pass@k by the unbiased estimator.",
            citation="Chen et al. (2021): Evaluating Large Language Models Trained on Code.",
            inputs_description="predictions: for each problem, whether each of its samples passed.",
            features=datasets.Features({"predictions": datasets.List(datasets.Value("bool"))}),
        )

    def _compute(
        self, predictions: Sequence[Sequence[bool]], k: Sequence[int] = (1,)
    ) -> dict[str, float]:
        if not predictions:
            raise ValueError("pass@k: there are no predictions")
        return {
            f"pass@{size}": sum(
                pass_at_k(len(passed), sum(map(bool, passed)), size) for passed in predictions
            )
            / len(predictions)
            for size in k
        }
