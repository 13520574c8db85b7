"""What a unit of acceptance costs in reward, by class of context: the head-room of a weight w.

A verifier that trades alike in all contexts has nothing to gain over one fixed weight; where prices
differ, w should be high where acceptance is dear and low where it is cheap. The trace of one run
with weights inside (0, 1) says what the prices are, and how well so many completions tell.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from diversed.evaluation.summary import interval_columns
from diversed.records.schema import EMITTED
from diversed.theory.bootstrap import Interval, bootstrap_mean, bootstrap_ratio

GRADIENT_COLUMNS = (
    *("context", "token_frac", "tv_frac"),
    *(f"quality_gradient{end}" for end in ("", "_low", "_high")),
    *(f"acceptance_gradient{end}" for end in ("", "_low", "_high")),
    *(f"price{end}" for end in ("", "_low", "_high")),
)
"""Columns of `context_gradients`."""

_KEY = ["prompt_id", "sample"]
_NEEDS = ("target_prob", "draft_prob", "tv_distance", "target_weight")


def context_gradients(
    trace: pd.DataFrame,
    records: pd.DataFrame,
    contexts: pd.Series,
    *,
    seed: int = 0,
    num_resamples: int = 2000,
) -> pd.DataFrame:
    """Return how reward and acceptance would move if w rose in one class of contexts.

    With l_t the logit of w_t, the gradients for a shift of l_t at all tokens of a class are

        d E[R] = E[(R - b) S],    d E[A] = E[(A - a) S] - E[sum w (1 - w) TV / T],
        S = sum over the class's tokens of w (1 - w) (p - q) / (w p + (1 - w) q),

    b and a the means of the other completions. Unbiased where the class is known before the token
    is drawn and every token follows w p + (1 - w) q.

    Args:
        trace: Of one run: `records.schema.TRACE_COLUMNS`.
        records: Of the same run: `prompt_id`, `sample`, `quality`, `expected_acceptance`.
        contexts: Class of each entry of `trace`, with its index; see `tv_bands` and
            `figures.token_classes.classes_before`.
        seed: Seed of the bootstrap over prompts.
        num_resamples: Of the bootstrap.

    Returns:
        One row per class, those with most of the disagreement first: `context`, `token_frac`,
        `tv_frac` (its share of the sum of TV), `quality_gradient`, `acceptance_gradient` and
        `price` (quality lost per acceptance gained), each with `_low` and `_high` (95 %); the
        bounds of the price mean little where those of `acceptance_gradient` are near 0.

    Raises:
        ValueError: There are fewer than two completions, one has no score or no trace, or a token
            has no w in (0, 1) or no p, q, TV (bonus tokens of the target).

    Source: the gradient of `objective.acceptance`, by class; REINFORCE, Williams 1992.
    """
    tokens = trace.assign(context=contexts)[trace["status"].isin(list(EMITTED))]
    rows = records.set_index(_KEY)[["quality", "expected_acceptance"]].astype(float)
    _check(tokens, rows)
    num = len(rows)
    centred = (rows - rows.mean()) * num / (num - 1)  # less the mean of the others
    weight = tokens["target_weight"].to_numpy(float)
    p, q = tokens["target_prob"].to_numpy(float), tokens["draft_prob"].to_numpy(float)
    spread = weight * (1 - weight)
    number = tokens.groupby(_KEY)["context"].transform("size")
    tokens = tokens.assign(
        score=spread * (p - q) / (weight * p + (1 - weight) * q),
        direct=-spread * tokens["tv_distance"] / number,
    )
    options = {"seed": seed, "num_resamples": num_resamples}
    found = []
    for name, own in tokens.groupby("context", sort=False):
        sums = own.groupby(_KEY)[["score", "direct"]].sum().reindex(rows.index, fill_value=0.0)
        moved = pd.DataFrame(
            {
                "quality": centred["quality"] * sums["score"],
                "acceptance": centred["expected_acceptance"] * sums["score"] + sums["direct"],
            }
        )
        by_prompt = moved.groupby("prompt_id", sort=False).mean()
        measured: Mapping[str, Interval] = {
            "quality_gradient": bootstrap_mean(by_prompt["quality"], **options),
            "acceptance_gradient": bootstrap_mean(by_prompt["acceptance"], **options),
            "price": bootstrap_ratio(by_prompt["quality"], -by_prompt["acceptance"], **options),
        }
        row = {
            "context": name,
            "token_frac": len(own) / len(tokens),
            "tv_frac": own["tv_distance"].sum() / tokens["tv_distance"].sum(),
        }
        for column, value in measured.items():
            row |= interval_columns(column, value)
        found.append(row)
    return pd.DataFrame(found).sort_values("tv_frac", ascending=False, ignore_index=True)


def _check(tokens: pd.DataFrame, rows: pd.DataFrame) -> None:
    if len(rows) < 2:
        raise ValueError(f"{len(rows)} completion(s): a gradient needs at least 2")
    if rows.isna().any(axis=None):
        raise ValueError("a completion has no score: leave its prompt out of both tables")
    traced = set(tokens.groupby(_KEY).groups)
    if traced != set(rows.index):
        raise ValueError("the trace and the records are of different completions")
    weight = tokens["target_weight"]
    if tokens[list(_NEEDS)].isna().any(axis=None) or not ((weight > 0) & (weight < 1)).all():
        raise ValueError(
            "every emitted token needs p, q, TV and a weight inside (0, 1): use the trace of a "
            "static weight or of a head, with verifier.bonus=verifier"
        )


def tv_bands(trace: pd.DataFrame, edges: Sequence[float] = (0.02, 0.1, 0.25, 0.5)) -> pd.Series:
    """Return a class for each entry of a trace: between which edges TV(q, p) lies.

    >>> tv_bands(pd.DataFrame({"tv_distance": [0.0, 0.3, 1.0]}), (0.1, 0.5)).tolist()
    ['TV up to 0.1', 'TV up to 0.5', 'TV up to 1']
    """
    bounds = np.array([*edges, 1.0])
    places = np.searchsorted(bounds, trace["tv_distance"].clip(upper=1).to_numpy(float))
    return pd.Series([f"TV up to {bounds[place]:g}" for place in places], index=trace.index)
