"""What `evaluate` is told of our metrics of texts."""

import datasets
import evaluate


def text_metric_info(description: str, citation: str) -> evaluate.MetricInfo:
    """Return the description of a metric that takes texts, and one or several references of each.

    Args:
        description: What it measures, and by which library.
        citation: Its source.
    """
    text = datasets.Value("string")
    return evaluate.MetricInfo(
        description=description,
        citation=citation,
        inputs_description="predictions: texts; references: texts, or lists of texts.",
        features=[
            datasets.Features({"predictions": text, "references": text}),
            datasets.Features({"predictions": text, "references": datasets.List(text)}),
        ],
    )
