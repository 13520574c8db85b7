"""Scores of texts against references: pure functions, and the same as modules of `evaluate`.

`evaluate.load(metric_folder(name))` works offline. Rewards call the pure functions directly:
`evaluate` writes its inputs to Arrow files, which is too slow for one completion at a time.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluate import EvaluationModule

METRICS = ("bleu", "number_match", "pass_at_k", "rouge")


def metric_folder(name: str) -> Path:
    """Return the folder that `evaluate.load` takes.

    Args:
        name: One of `METRICS`.

    Returns:
        A folder inside the installed package.

    Raises:
        ValueError: There is no such metric.
    """
    if name not in METRICS:
        raise ValueError(f"metric={name!r}: must be one of {', '.join(METRICS)}")
    return Path(__file__).resolve().parent / name


def load_metric(name: str, **options: Any) -> "EvaluationModule":
    """Return a metric behind the interface of `evaluate`.

    Args:
        name: One of `METRICS`.
        options: Passed to `evaluate.load`, such as `cache_dir`.

    Returns:
        A module whose `compute(predictions=..., references=...)` is documented in its class.

    Raises:
        ValueError: There is no such metric.
    """
    folder = metric_folder(name)
    import evaluate  # takes seconds to import, and rewards do not need it

    module: EvaluationModule = evaluate.load(str(folder), **options)
    return module
