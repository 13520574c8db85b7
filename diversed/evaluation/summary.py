"""Records -> one row of means and rates per run, with intervals over prompts.

Rates over tokens are ratios of sums, never means of ratios. Rows with an error count as errors;
they have no quality, and stand in no mean.
"""

from typing import Any

import numpy as np
import pandas as pd

from diversed.records.schema import RUN_COLUMNS
from diversed.theory.bootstrap import bootstrap_mean, bootstrap_ratio
from diversed.theory.front import FrontDistance, front_distance

_MEANS = ("quality", "expected_acceptance")
_RATIOS = {
    "acceptance_rate": ("num_accepted", "num_drafted"),
    "token_acceptance_rate": ("num_accepted", "num_judged"),
    "block_efficiency": ("num_tokens", "num_blocks"),
}


def summarise(records: pd.DataFrame, *, seed: int = 0, num_resamples: int = 2000) -> pd.DataFrame:
    """Return one row per run.

    Args:
        records: Rows of any number of runs, as `records.store.read_runs` gives them.
        seed: Seed of the bootstrap over prompts.
        num_resamples: Resamples of the bootstrap.

    Returns:
        The run columns, then `<name>`, `<name>_low`, `<name>_high` (95 % interval over prompts) for
        quality, expected_acceptance and the rates, and counts of prompts, tokens, errors, answers
        cut at the cap and prompts cut to fit the context.
    """
    rows = []
    for _, run in records.groupby("run_name", sort=False):
        row: dict[str, Any] = {name: run[name].iloc[0] for name in RUN_COLUMNS}
        good = run[run["error"].isna()]
        for name in _MEANS:
            values = good.groupby("prompt_id", sort=False)[name].mean().dropna().to_numpy(float)
            interval = (
                bootstrap_mean(values, num_resamples=num_resamples, seed=seed)
                if values.size
                else None
            )
            row |= _columns(name, interval)
        sums = good.groupby("prompt_id", sort=False).sum(numeric_only=True)
        for name, (numerator, denominator) in _RATIOS.items():
            below = sums[denominator].to_numpy(float)
            interval = None
            if below.sum() > 0:
                above = sums[numerator].to_numpy(float)
                interval = bootstrap_ratio(above, below, num_resamples=num_resamples, seed=seed)
            row |= _columns(name, interval)
        seconds = float(good["seconds"].sum())
        row |= {
            "tokens_per_second": float(good["num_tokens"].sum()) / seconds if seconds else np.nan,
            "mean_num_tokens": good["num_tokens"].mean(),
            "mean_target_weight": good["mean_target_weight"].astype(float).mean(),
            "bias": good["bias"].astype(float).mean(),
            "num_truncated": int(good["is_truncated"].astype(bool).sum()),
            "num_errors": int(run["error"].notna().sum()),
            "num_prompts": int(run["prompt_id"].nunique()),
            "num_cut_prompts": int(
                run.loc[run["is_prompt_cut"].astype(bool), "prompt_id"].nunique()
            ),
        }
        rows.append(row)
    # A setting that no run has would be a column of None.
    settings = {"target_weight": float, "acceptance_weight": float, "dial": float}
    return pd.DataFrame(rows).astype(settings)


def distance_to_static_front(
    records: pd.DataFrame, run_name: str, *, seed: int = 0, num_resamples: int = 2000
) -> FrontDistance:
    """Return how far a run lies above the front of the static and lossless runs of its table.

    Args:
        records: Records of the run and of the static runs, on the same prompts.
        run_name: The run that is measured.
        seed: Seed of the paired bootstrap over prompts.
        num_resamples: Resamples of the bootstrap.

    Returns:
        Distances in means over prompts of quality and of the objective's A.

    Raises:
        ValueError: There is no such run, no static run, or the runs' prompts differ.
    """
    if run_name not in set(records["run_name"]):
        raise ValueError(f"run_name={run_name!r}: the table has no such run")
    is_static = records["method"].isin(["static", "lossless"]) & (records["run_name"] != run_name)
    static = records[is_static]
    if static.empty:
        raise ValueError("the table has no static run to make a front of")
    acceptance = _by_prompt(static, "expected_acceptance")
    quality = _by_prompt(static, "quality")
    method = records[records["run_name"] == run_name]
    own_acceptance = _by_prompt(method, "expected_acceptance")
    own_quality = _by_prompt(method, "quality")
    has_gap = quality.isna().to_numpy().any() or own_quality.isna().to_numpy().any()
    if set(own_quality.columns) != set(quality.columns) or has_gap:
        raise ValueError(
            f"run {run_name!r} and the static runs were not scored on the same prompts"
        )
    prompts = list(quality.columns)
    return front_distance(
        acceptance[prompts].to_numpy(float),
        quality[prompts].to_numpy(float),
        np.ravel(own_acceptance[prompts].to_numpy(float)),
        np.ravel(own_quality[prompts].to_numpy(float)),
        num_resamples=num_resamples,
        seed=seed,
    )


def _by_prompt(records: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return runs x prompts, the mean over samples."""
    values = records.assign(**{column: records[column].astype(float)})
    return values.pivot_table(
        index="run_name", columns="prompt_id", values=column, aggfunc="mean", dropna=False
    )


def _columns(name: str, interval: Any) -> dict[str, float]:
    if interval is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), np.nan)
    return {
        name: interval.estimate,
        f"{name}_low": interval.low,
        f"{name}_high": interval.high,
    }
