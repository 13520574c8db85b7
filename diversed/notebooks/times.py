"""Wall-clock time of runs relative to plain decoding, from timed runs or from whole batches."""

from typing import Any

import numpy as np
import pandas as pd

from diversed.evaluation.timing import speed_ratio

TIME_COLUMNS = ("relative_time", "relative_time_low", "relative_time_high")
COMPARABLE = (*("model", "data", "split", "temperature", "top_k", "top_p", "batch_size", "device"),)
"""What two runs must share for their times to be compared."""


def relative_times(
    table: pd.DataFrame, records: pd.DataFrame, speeds: pd.DataFrame
) -> pd.DataFrame:
    """Return seconds per token of each run over those of plain decoding.

    Where plain decoding was timed at batch 1, so must the run have been; else both are timed by
    their batches of prompts that they share, which is no speed at batch 1, and has an interval only
    if the batches are single prompts.

    Args:
        table: One row per run: `run_name`, `method` and `COMPARABLE`.
        records: Answers: `run_name`, `prompt_id`, `num_tokens`, `seconds` and `error`.
        speeds: Timed answers: `run_name`, `prompt`, `num_tokens`, `seconds`.

    Returns:
        `run_name` and `TIME_COLUMNS`, a row for each of `table`; NaN where there is no plain
        decoding with the same settings, or no time.
    """
    whole = _batch_times(records)
    rows: list[dict[str, Any]] = []
    for _, runs in table.groupby(list(COMPARABLE), dropna=False, sort=False):
        plain = runs.loc[runs["method"] == "autoregressive", "run_name"]
        baseline = plain.iloc[0] if len(plain) else None
        is_timed = baseline in set(speeds["run_name"])
        times = speeds if is_timed else whole
        has_interval = is_timed or (runs["batch_size"] == 1).all()
        for name in runs["run_name"]:
            values = _relative_time(times, name, baseline)
            if not has_interval:
                values = (values[0], np.nan, np.nan)
            rows.append({"run_name": name} | dict(zip(TIME_COLUMNS, values, strict=True)))
    return pd.DataFrame(rows, columns=["run_name", *TIME_COLUMNS])


def _relative_time(
    times: pd.DataFrame, name: str, baseline: str | None
) -> tuple[float, float, float]:
    """Return the ratio of a run to the baseline with its interval, over the prompts of both."""
    if baseline is None:
        return np.nan, np.nan, np.nan
    own = times[times["run_name"] == name]
    other = times[times["run_name"] == baseline]
    prompts = set(own["prompt"]) & set(other["prompt"])
    if not prompts:
        return np.nan, np.nan, np.nan
    speed = speed_ratio(times[times["prompt"].isin(list(prompts))], name, baseline)
    return 1 / speed.estimate, 1 / speed.high, 1 / speed.low


def _batch_times(records: pd.DataFrame) -> pd.DataFrame:
    """Return tokens and seconds per run and prompt, all samples of a prompt together."""
    good = records[records["seconds"].notna() & (records["num_tokens"].fillna(0) > 0)]
    values = good.astype({"num_tokens": float, "seconds": float})
    sums = values.groupby(["run_name", "prompt_id"], sort=False)[["num_tokens", "seconds"]].sum()
    return sums.reset_index().rename(columns={"prompt_id": "prompt"})
