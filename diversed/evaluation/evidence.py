"""Records of a study -> the numbers of its claims: above the hull, above the best rival in J.

A group is what one claim is about: the heads of one lambda, a control, a rule with one setting. Its
runs differ in their seed alone.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from diversed.evaluation.summary import interval_columns, paired, static_records
from diversed.theory.bootstrap import Interval, bootstrap_mean_over_seeds
from diversed.theory.front import front_distance_over_seeds
from diversed.theory.gain import gain_over_best

_SEED = r"-seed\d+\b.*"  # ends the name of a run; what may follow is its folder


def by_seed(records: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return groups of runs that differ in their seed alone, by their name without it."""
    names = records["run_name"].str.replace(_SEED, "", regex=True)
    return {str(name): group for name, group in records.groupby(names, sort=False)}


def measure_groups(
    groups: Mapping[str, pd.DataFrame],
    static: pd.DataFrame,
    acceptance_weight: float | None = None,
    *,
    seed: int = 0,
    num_resamples: int = 2000,
) -> pd.DataFrame:
    """Return where groups of runs lie, and how far above the static front.

    Args:
        groups: Records by group; with an error in a row, its group cannot be measured.
        static: Records of static and lossless runs on the same prompts with the same settings.
        acceptance_weight: lambda of J; None: the one that a group's heads were trained with.
        seed: Seed of the hierarchical bootstrap over runs and prompts.
        num_resamples: Resamples of the bootstrap.

    Returns:
        One row per group: `group`, `acceptance_weight`, `num_heads` (runs), `quality`,
        `expected_acceptance`, `objective` (J = R + lambda A), `quality_above_hull` and
        `objective_above_static` (J less that of the best static run, which is also the best coin
        flip's), each with `_low` and `_high` (95 %); NaN where lambda is not known or the hull does
        not reach.

    Raises:
        ValueError: Prompts or settings differ, or a group mixes lambdas.
    """
    rows = []
    options: dict[str, Any] = {"seed": seed, "num_resamples": num_resamples}
    static = static_records(static)
    for name, records in groups.items():
        weight = _weight(name, records) if acceptance_weight is None else acceptance_weight
        static_x, static_y, own_x, own_y = paired(static, records)
        distance = front_distance_over_seeds(static_x, static_y, own_x, own_y, **options)
        measured: dict[str, Interval | None] = {
            "quality": bootstrap_mean_over_seeds(own_y, **options),
            "expected_acceptance": bootstrap_mean_over_seeds(own_x, **options),
            "quality_above_hull": distance.quality_above_hull,
            "objective": None,
            "objective_above_static": None,
        }
        if not np.isnan(weight):
            own = own_y + weight * own_x
            rivals = list((static_y + weight * static_x)[:, None])
            measured["objective"] = bootstrap_mean_over_seeds(own, **options)
            measured["objective_above_static"] = gain_over_best(own, rivals, **options)
        row = {"group": name, "acceptance_weight": weight, "num_heads": len(own_x)}
        rows.append(row | _flat(measured))
    return pd.DataFrame(rows)


def measure_against(
    own: pd.DataFrame,
    rivals: Mapping[str, pd.DataFrame],
    static: pd.DataFrame,
    acceptance_weight: float,
    *,
    seed: int = 0,
    num_resamples: int = 2000,
) -> pd.DataFrame:
    """Return how far a group of heads lies above each rival group, in J and above its hull.

    Args:
        own: Records of the heads.
        rivals: Records by group, such as a control's.
        static: As in `measure_groups`.
        acceptance_weight: lambda of J.
        seed: As in `measure_groups`.
        num_resamples: As in `measure_groups`.

    Returns:
        One row per rival: `group`, `acceptance_weight`, `num_heads` (of the rival),
        `objective_gain` (own J less the rival's) and `quality_above_hull` (own quality at equal A
        less that of the hull over the static runs and the rival's mean), with `_low` and `_high`.

    Raises:
        ValueError: Prompts or settings differ.
    """
    rows = []
    options: dict[str, Any] = {"seed": seed, "num_resamples": num_resamples}
    static = static_records(static)
    static_x, static_y, own_x, own_y = paired(static, own)
    own_objective = own_y + acceptance_weight * own_x
    for name, records in rivals.items():
        _, _, rival_x, rival_y = paired(static, records)
        distance = front_distance_over_seeds(
            np.vstack([static_x, rival_x.mean(0)]),
            np.vstack([static_y, rival_y.mean(0)]),
            own_x,
            own_y,
            **options,
        )
        gain = gain_over_best(own_objective, [rival_y + acceptance_weight * rival_x], **options)
        row = {"group": name, "acceptance_weight": acceptance_weight, "num_heads": len(rival_x)}
        measured = {"objective_gain": gain, "quality_above_hull": distance.quality_above_hull}
        rows.append(row | _flat(measured))
    return pd.DataFrame(rows)


def measure_against_best(
    own: pd.DataFrame,
    families: Mapping[str, Mapping[str, pd.DataFrame]],
    acceptance_weight: float,
    *,
    seed: int = 0,
    num_resamples: int = 2000,
) -> pd.DataFrame:
    """Return how far a group of heads lies in J above the best setting of each family of rules.

    Args:
        own: Records of the heads.
        families: Records by family and setting; the best setting is chosen anew in every resample.
        acceptance_weight: lambda of J.
        seed: As in `measure_groups`.
        num_resamples: As in `measure_groups`.

    Returns:
        One row per family: `family`, `best` (the setting of highest J), `acceptance_weight`, and
        `objective_gain` with `_low` and `_high` (95 %).

    Raises:
        ValueError: Prompts or settings differ, or a family is empty.
    """
    rows = []
    for family, settings in families.items():
        rivals = {}
        for name, records in settings.items():
            rival_x, rival_y, own_x, own_y = paired(records, own)
            rivals[name] = rival_y + acceptance_weight * rival_x
        gain = gain_over_best(
            own_y + acceptance_weight * own_x,
            list(rivals.values()),
            seed=seed,
            num_resamples=num_resamples,
        )
        best = max(rivals, key=lambda name: float(rivals[name].mean()))
        row = {"family": family, "best": best, "acceptance_weight": acceptance_weight}
        rows.append(row | interval_columns("objective_gain", gain))
    return pd.DataFrame(rows)


def coin_flip(
    first: pd.DataFrame, second: pd.DataFrame, share: float, *, seed: int = 0
) -> pd.DataFrame:
    """Return the records of choosing, prompt by prompt, one of two runs by a coin.

    A completion does not depend on its batch, so these are the records that decoding with the
    chosen rule would have written.

    Args:
        first: Records of one run.
        second: Records of another on the same prompts, with the same seed.
        share: Probability of the second, in [0, 1].
        seed: Seed of the coin.

    Raises:
        ValueError: The prompts differ.
    """
    keys = ["prompt_id", "sample"]
    first, second = (records.sort_values(keys, ignore_index=True) for records in (first, second))
    if not first[keys].equals(second[keys]):
        raise ValueError("the two runs do not have the same prompts")
    prompts = first["prompt_id"].unique()
    is_second = np.random.default_rng(seed).random(len(prompts)) < share
    chosen = first["prompt_id"].isin(prompts[is_second])
    mixed = pd.concat([first[~chosen], second[chosen]], ignore_index=True)
    return mixed.assign(
        run_name=f"coin-{share:g}",
        method="coin",
        target_weight=np.nan,
        setting=f"share={share:g}",
    )


def _weight(name: str, records: pd.DataFrame) -> float:
    weights = records["acceptance_weight"].astype(float).unique()
    if len(weights) != 1:
        raise ValueError(f"group {name!r} mixes heads of lambda {sorted(weights.tolist())}")
    return float(weights[0])


def _flat(measured: Mapping[str, Interval | None]) -> dict[str, float]:
    return {
        column: value
        for name, interval in measured.items()
        for column, value in interval_columns(name, interval).items()
    }
