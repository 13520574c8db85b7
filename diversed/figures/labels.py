"""Symbol and unit of every column that a figure or table shows, and the methods' display names.

The only place where the paper's letters meet our column names. The three acceptance rates are
different quantities; each label says which one it is.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pandas as pd

LABELS: Mapping[str, str] = MappingProxyType(
    {
        "acceptance_at": "acceptance of token k, if judged",
        "acceptance_rate": "acceptance rate (accepted / drafted)",
        "acceptance_weight": "λ",
        "alpha": "α",
        "bias": "bias (1 − w)·TV(q, p)",
        "block_efficiency": "block efficiency τ (tokens / target call)",
        "block_position": "position in the block k",
        "data": "data",
        "dial": "dial",
        "draft": "draft",
        "draft_cost_ratio": "cost ratio c (draft step / target step)",
        "draft_length": "N",
        "emitted_frac": "share of emitted tokens",
        "expected_acceptance": "acceptance A = mean of 1 − w·TV",
        "lenience": "ℓ",
        "mean_accepted": "accepted tokens / block",
        "mean_num_tokens": "tokens / answer",
        "mean_target_weight": "mean w",
        "method": "method",
        "model": "pair",
        "num_blocks": "blocks",
        "num_emitted": "emitted tokens",
        "num_errors": "errors",
        "num_heads": "heads",
        "num_prompts": "prompts",
        "num_tokens": "tokens",
        "num_truncated": "cut at token cap",
        "objective": "objective J = R + λ·A",
        "quality": "quality (task score)",
        "relative_time": "time per token (1 = plain decoding)",
        "reward": "reward R",
        "rollout": "rollouts",
        "run_name": "run",
        "seconds": "time (s)",
        "seed": "seed",
        "speedup": "speedup (× plain decoding)",
        "survival": "P(T ≥ k)",
        "target": "target",
        "target_weight": "w",
        "target_weight_at": "w (1: the target decides, 0: the draft)",
        "temperature": "T",
        "theta": "θ",
        "token_acceptance_rate": "acceptance rate (accepted / judged)",
        "token_class": "token class",
        "tokens_per_second": "tokens / s",
        "train_data": "trained on",
        "tv_distance": "TV(q, p)",
        "w_above_0.95_frac": "share of w > 0.95",
        "w_below_0.05_frac": "share of w < 0.05",
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
        "token_rule": "rule by hand",
        "features_head": "head on five scalars",
        "constant_head": "head on nothing",
        "prompt_head": "head on the prompt",
        "position_head": "head on the position",
        "shuffled_head": "head on shuffled states",
        "coin": "coin flip",
        "diversed_mlp": "DIVERSED, mlp head",
        "diversed": "DIVERSED",
    }
)


FINETUNED = "_finetuned"
"""What the name of a pair ends in when its draft was fine-tuned."""

SETTING_COLUMNS = ("target_weight", "acceptance_weight", "dial", "setting")
"""Columns that tell what a run's rule was set to; see `setting_text`."""


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


def setting_text(row: Mapping[Any, Any]) -> str:
    """Return what a run's rule was set to, such as "w = 0.5"; "" where there is nothing to set.

    Args:
        row: `target_weight` (w of a static run), `acceptance_weight` (λ of a head) and `dial`, NaN
            where they do not apply; a dial of 0 goes unsaid. Rules without these tell theirs in
            `setting`, such as "lenience=0.5 residual=target".

    >>> setting_text(
    ...     {"target_weight": None, "acceptance_weight": 1.5, "dial": -2.0, "setting": "dial=-2"}
    ... )
    'λ = 1.5, dial = -2'
    >>> nothing = dict.fromkeys(SETTING_COLUMNS)
    >>> setting_text(nothing | {"setting": "lenience=0.5 residual=target"})
    'ℓ = 0.5, residual = target'
    >>> setting_text(nothing | {"setting": "classes=digit+code keyword threshold=0.5"})
    'classes = digit+code keyword, threshold = 0.5'
    """
    values = {name: row[name] for name in ("target_weight", "acceptance_weight", "dial")}
    parts = [f"{label(name)} = {value:g}" for name, value in values.items() if pd.notna(value)]
    if values["dial"] == 0:
        parts.remove(f"{label('dial')} = 0")
    own = row["setting"]
    if pd.isna(list(values.values())).all() and isinstance(own, str) and own:
        pairs = [part.partition("=") for part in re.split(r" (?=\w+=)", own)]
        parts = [f"{LABELS.get(name, name)} = {value}" for name, _, value in pairs]
    return ", ".join(parts)


def run_label(row: Mapping[Any, Any]) -> str:
    """Return method and setting of a run, such as "static, w = 0.5"; `row` as in `setting_text`."""
    setting = setting_text(row)
    name = method_name(row["method"])
    return f"{name}, {setting}" if setting else name


def _look_up(key: str, names: Mapping[str, str], kind: str) -> str:
    if key not in names:
        message = f"unknown {kind} {key!r}; known: {', '.join(sorted(names))}"
        raise ValueError(message)
    return names[key]
