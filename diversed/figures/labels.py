"""Symbol and unit of every column that a figure or table shows, and the methods' display names.

The only place where the paper's letters meet our column names. The three acceptance rates are
different quantities; each label says which one it is.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import pandas as pd

LABELS: Mapping[str, str] = MappingProxyType(
    {
        "acceptance_rate": "acceptance rate (accepted / drafted)",
        "acceptance_weight": "λ",
        "block_efficiency": "block efficiency τ (tokens / target call)",
        "draft_cost_ratio": "cost ratio c (draft step / target step)",
        "draft_length": "N",
        "expected_acceptance": "acceptance A = mean of 1 − w·TV",
        "lenience": "ℓ",
        "mean_accepted": "accepted tokens / block",
        "mean_num_tokens": "tokens / answer",
        "mean_target_weight": "mean w",
        "method": "method",
        "num_errors": "errors",
        "num_prompts": "prompts",
        "num_tokens": "tokens",
        "num_truncated": "cut at token cap",
        "quality": "quality (task score)",
        "run_name": "run",
        "seconds": "time (s)",
        "speedup": "speedup (× plain decoding)",
        "target_weight": "w",
        "temperature": "T",
        "token_acceptance_rate": "acceptance rate (accepted / judged)",
        "tokens_per_second": "tokens / s",
        "tv_distance": "TV(q, p)",
    }
)

METHOD_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "autoregressive": "plain decoding",
        "lossless": "lossless",
        "lenient": "lenient",
        "static": "static",
        "cascade": "SpecCascade",
        "typical": "typical acceptance",
        "fuzzy": "fuzzy",
        "margin": "margin",
        "diversed": "DIVERSED",
    }
)


def label(column: str) -> str:
    """Return the label of `column`.

    Raises:
        ValueError: The column has none; the message lists those that have.

    >>> label("acceptance_weight")
    'λ'
    """
    return _look_up(column, LABELS, "column")


def method_name(method: str) -> str:
    """Return the display name of `method`.

    Raises:
        ValueError: The method is unknown; the message lists the known ones.

    >>> method_name("diversed")
    'DIVERSED'
    """
    return _look_up(method, METHOD_NAMES, "method")


def require_columns(table: pd.DataFrame, columns: Iterable[str]) -> None:
    """Raise a ValueError that names those of `columns` which `table` lacks."""
    missing = [column for column in columns if column not in table.columns]
    if missing:
        message = f"table lacks the columns {', '.join(missing)}"
        raise ValueError(message)


def _look_up(key: str, names: Mapping[str, str], kind: str) -> str:
    if key not in names:
        message = f"unknown {kind} {key!r}; known: {', '.join(sorted(names))}"
        raise ValueError(message)
    return names[key]
