"""Two sets of records of the same prompts: what was accepted, and by how much the two differ."""

import numpy as np
import pandas as pd

from diversed.evaluation.summary import summarise
from diversed.theory.bootstrap import FloatArray, Interval, bootstrap_statistics

RATES = ("acceptance_rate", "token_acceptance_rate", "expected_acceptance", "block_efficiency")


def compare_acceptance(before: pd.DataFrame, after: pd.DataFrame) -> dict[str, float]:
    """Return acceptance before and after, each with a 95 % interval over prompts.

    Args:
        before: Records of one run, with its columns.
        after: Records of another run on the same prompts.

    Returns:
        `<rate>_before` and `<rate>_after` for each of `RATES`, and `acceptance_rate_change` (paired
        by prompt); each also with `_low` and `_high`. NaN where no row is without an error.
    """
    numbers = {}
    for when, records in (("before", before), ("after", after)):
        row = summarise(records).iloc[0]
        for name in RATES:
            for bound in ("", "_low", "_high"):
                numbers[f"{name}_{when}{bound}"] = float(row[f"{name}{bound}"])
    name = "acceptance_rate_change"
    if before["error"].isna().any() and after["error"].isna().any():
        change = rate_difference(before, after)
        return numbers | {
            name: change.estimate,
            f"{name}_low": change.low,
            f"{name}_high": change.high,
        }
    return numbers | dict.fromkeys((name, f"{name}_low", f"{name}_high"), np.nan)


def rate_difference(
    first: pd.DataFrame,
    second: pd.DataFrame,
    numerator: str = "num_accepted",
    denominator: str = "num_drafted",
    *,
    seed: int = 0,
    num_resamples: int = 2000,
) -> Interval:
    """Return the second rate minus the first, each a ratio of sums, over the prompts of both.

    Args:
        first: Records, one row per prompt and sample. Rows with an error do not count.
        second: The same of other runs.
        numerator: Column of counts.
        denominator: Column of counts; where it sums to 0 the difference is undefined.
        seed: Seed of the bootstrap over prompts.
        num_resamples: Resamples of the bootstrap.

    Raises:
        ValueError: The two have no prompt in common.
    """
    sums = [
        table[table["error"].isna()].groupby("prompt_id")[[numerator, denominator]].sum()
        for table in (first, second)
    ]
    shared = sums[0].index.intersection(sums[1].index)
    if shared.empty:
        raise ValueError("the records have no prompt in common")
    parts = [table.loc[shared].to_numpy(float) for table in sums]

    def difference(counts: FloatArray) -> FloatArray:
        rates = []
        for part in parts:
            above, below = (counts @ part).T
            rates.append(above / np.where(below > 0, below, np.nan))
        return np.asarray(rates[1] - rates[0])[:, None]

    (interval,) = bootstrap_statistics(difference, len(shared), num_resamples, 0.95, seed)
    return interval
