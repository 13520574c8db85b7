"""Records -> one row of means and rates per run, with intervals over prompts.

Rates over tokens are ratios of sums, never means of ratios. Rows with an error count as errors;
they have no quality, and stand in no mean.
"""

from typing import Any

import numpy as np
import pandas as pd

from diversed.records.schema import HEADS, RUN_COLUMNS
from diversed.theory.bootstrap import (
    FloatArray,
    Interval,
    bootstrap_mean,
    bootstrap_ratio,
    bootstrap_statistics,
)
from diversed.theory.front import (
    FrontDistance,
    concave_hull,
    front_distance,
    front_distance_over_seeds,
    quality_at,
)

FRONT_SETTINGS = (
    *("model", "data", "split", "draft_length"),
    *("temperature", "top_k", "top_p", "max_new_tokens"),
)
"""What runs must have in common to make a front, or to be measured from it."""

_MEANS = {
    "quality": "quality",
    "expected_acceptance": "expected_acceptance",
    "mean_num_tokens": "num_tokens",
}
_RATIOS = {
    "acceptance_rate": ("num_accepted", "num_drafted"),
    "token_acceptance_rate": ("num_accepted", "num_judged"),
    "block_efficiency": ("num_tokens", "num_blocks"),
    "mean_accepted": ("num_accepted", "num_blocks"),
}


def summarise(records: pd.DataFrame, *, seed: int = 0, num_resamples: int = 2000) -> pd.DataFrame:
    """Return one row per run.

    Args:
        records: Rows of any number of runs, as `records.store.read_runs` gives them.
        seed: Seed of the bootstrap over prompts.
        num_resamples: Resamples of the bootstrap.

    Returns:
        The run columns, then `<name>`, `<name>_low`, `<name>_high` (95 % interval over prompts) for
        quality, expected_acceptance, mean_num_tokens and the rates, and counts of prompts, tokens,
        errors, answers cut at the cap and prompts cut to fit the context. Speeds have no interval:
        rows of a batch share its time.

    Raises:
        ValueError: Two runs have one name.
    """
    _check_names(records)
    rows = []
    for _, run in records.groupby("run_name", sort=False):
        row: dict[str, Any] = {name: run[name].iloc[0] for name in RUN_COLUMNS}
        good = run[run["error"].isna()]
        for name, column in _MEANS.items():
            values = good.groupby("prompt_id", sort=False)[column].mean().dropna().to_numpy(float)
            interval = (
                bootstrap_mean(values, num_resamples=num_resamples, seed=seed)
                if values.size
                else None
            )
            row |= interval_columns(name, interval)
        sums = good.groupby("prompt_id", sort=False).sum(numeric_only=True)
        for name, (numerator, denominator) in _RATIOS.items():
            below = sums[denominator].to_numpy(float)
            interval = None
            if below.sum() > 0:
                above = sums[numerator].to_numpy(float)
                interval = bootstrap_ratio(above, below, num_resamples=num_resamples, seed=seed)
            row |= interval_columns(name, interval)
        seconds = float(good["seconds"].sum())
        row |= {
            "tokens_per_second": float(good["num_tokens"].sum()) / seconds if seconds else np.nan,
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


def _check_names(records: pd.DataFrame) -> None:
    """Raise ValueError where the rows of two runs stand under one name: they are no one run."""
    columns = [column for column in RUN_COLUMNS if column in records]
    for name, run in records.groupby("run_name", sort=False):
        values = {column: run[column].unique() for column in columns}
        told_apart = [
            f"{column}={' and '.join(map(str, found))}"
            for column, found in values.items()
            if len(found) > 1
        ]
        twice = run.loc[run.duplicated(["prompt_id", "sample"]), "prompt_id"]
        if told_apart or not twice.empty:
            what = told_apart[0] if told_apart else f"each with prompt {twice.iloc[0]}"
            raise ValueError(
                f"run_name={name!r}: two runs of the table have this name ({what}); give each a "
                "name of its own, as records.store.read_runs does"
            )


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
        ValueError: There is no such run, no static run, or the runs' prompts or settings differ.
    """
    if run_name not in set(records["run_name"]):
        raise ValueError(f"run_name={run_name!r}: the table has no such run")
    static = static_records(records[records["run_name"] != run_name])
    method = records[records["run_name"] == run_name]
    acceptance, quality, own_acceptance, own_quality = paired(static, method)
    return front_distance(
        acceptance,
        quality,
        np.ravel(own_acceptance),
        np.ravel(own_quality),
        num_resamples=num_resamples,
        seed=seed,
    )


def distances_over_heads(
    records: pd.DataFrame, *, seed: int = 0, num_resamples: int = 2000
) -> pd.DataFrame:
    """Return how far heads lie above the static front, as a mean over those of one kind.

    Args:
        records: Records of heads (`records.schema.HEADS`) and of static runs, all on the same
            prompts with the same settings; other runs are passed over. With a column `train_data`,
            heads that were trained on other data are a kind of their own.
        seed: Seed of the hierarchical bootstrap over heads and prompts.
        num_resamples: Resamples of the bootstrap.

    Returns:
        One row per method, training data, lambda and dial, sorted by them: method, train_data (NaN
        where the records do not tell), acceptance_weight, dial, num_heads; the four distances of
        `theory.front.FrontDistance`, each with `_low` and `_high` (95 %, NaN where there is no
        two-sided interval) and `_undefined_frac`; and `acceptance_above_hull_bound` and
        `acceptance_above_curve_bound`, the one-sided bounds (NaN where there is none). Intervals of
        a single head say nothing about other heads.

    Raises:
        ValueError: There is no head or no static run, or prompts or settings differ.
    """
    heads = records[records["method"].isin(HEADS)]
    if heads.empty:
        raise ValueError("the table has no run of a head to measure")
    static = static_records(records)
    rows = []
    numbers = ["acceptance_weight", "dial"]
    heads = heads.astype(dict.fromkeys(numbers, float))
    if "train_data" not in heads:
        heads = heads.assign(train_data=None)
    kinds = heads.groupby(["method", "train_data", *numbers], dropna=False)
    for (method, data, weight, dial), own in kinds:
        distance = front_distance_over_seeds(
            *paired(static, own), num_resamples=num_resamples, seed=seed
        )
        row = {"method": method, "train_data": data, "acceptance_weight": weight, "dial": dial}
        row["num_heads"] = own["run_name"].nunique()
        for name, value in vars(distance).items():
            if isinstance(value, Interval):
                row |= interval_columns(name, value) | {
                    f"{name}_undefined_frac": value.undefined_frac
                }
            else:
                row[name] = value.low
        rows.append(row)
    return pd.DataFrame(rows)


def static_front_band(
    records: pd.DataFrame, *, num_points: int = 61, seed: int = 0, num_resamples: int = 2000
) -> pd.DataFrame:
    """Return the pointwise 95 % confidence band of the static runs' concave hull.

    A resample draws prompts, the same for all static runs, and draws the hull anew.

    Args:
        records: Records of static and lossless runs on the same prompts with the same settings;
            other runs are passed over.
        num_points: Points of the band between the hull's ends.
        seed: Seed of the bootstrap over prompts.
        num_resamples: Resamples of the bootstrap.

    Returns:
        Columns expected_acceptance, quality_low, quality_high. Bounds are NaN where more than 5 %
        of the resampled hulls do not reach; nothing is extrapolated.

    Raises:
        ValueError: There is no static run, or prompts or settings differ.
    """
    static = static_records(records)
    acceptance, quality, _, _ = paired(static, static)
    num_prompts = acceptance.shape[1]
    means = acceptance.mean(1)
    grid = np.linspace(means.min(), means.max(), num_points)

    def hulls(counts: FloatArray) -> FloatArray:
        xs, ys = (counts @ values.T / num_prompts for values in (acceptance, quality))
        fronts = [concave_hull(x, y) for x, y in zip(xs, ys, strict=True)]
        return np.array([[quality_at(front, x) for x in grid] for front in fronts])

    intervals = bootstrap_statistics(hulls, num_prompts, num_resamples, 0.95, seed)
    return pd.DataFrame(
        {
            "expected_acceptance": grid,
            "quality_low": [interval.low for interval in intervals],
            "quality_high": [interval.high for interval in intervals],
        }
    )


def static_records(records: pd.DataFrame) -> pd.DataFrame:
    """Return the static and lossless runs of a table; ValueError where there is none."""
    static = records[records["method"].isin(["static", "lossless"])]
    if static.empty:
        raise ValueError("the table has no static run to make a front of")
    return static


def paired(
    static: pd.DataFrame, method: pd.DataFrame
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return acceptance and quality of static runs, then of a method's, each [runs, prompts]."""
    for part in (static, method):
        _check_names(part)
    for name in FRONT_SETTINGS:
        values = pd.concat([static[name], method[name]]).dropna().unique()
        if len(values) > 1:
            raise ValueError(
                f"{name} differs between runs that are to share a front: "
                f"{', '.join(sorted(map(str, values)))}"
            )
    tables = [
        _by_prompt(part, column)
        for part in (static, method)
        for column in ("expected_acceptance", "quality")
    ]
    prompts = tables[1].columns
    has_gap = tables[1].isna().to_numpy().any() or tables[3].isna().to_numpy().any()
    if set(tables[3].columns) != set(prompts) or has_gap:
        names = ", ".join(map(repr, method["run_name"].unique()))
        raise ValueError(f"run {names} and the static runs were not scored on the same prompts")
    acceptance, quality, own_acceptance, own_quality = (
        table[prompts].to_numpy(float) for table in tables
    )
    return acceptance, quality, own_acceptance, own_quality


def _by_prompt(records: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return runs x prompts, the mean over samples."""
    values = records.assign(**{column: records[column].astype(float)})
    return values.pivot_table(
        index="run_name", columns="prompt_id", values=column, aggfunc="mean", dropna=False
    )


def interval_columns(name: str, interval: Any) -> dict[str, float]:
    """Return an estimate and its `_low` and `_high` as columns; NaN where there is none."""
    if interval is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"), np.nan)
    return {
        name: interval.estimate,
        f"{name}_low": interval.low,
        f"{name}_high": interval.high,
    }
