"""What acceptance costs in quality, run by run: the table behind `figures.prices`."""

import pandas as pd

from diversed.evaluation.context_gradients import GRADIENT_COLUMNS, context_gradients, tv_bands
from diversed.figures.token_classes import classes_before
from diversed.figures.weights import CODE_DATA

_KEY = ["prompt_id", "sample"]
_AS_IN_A_TRACE = {"target_weight_at": "target_weight"}


def price_table(traces: pd.DataFrame, records: pd.DataFrame) -> pd.DataFrame:
    """Return `evaluation.context_gradients` of every static run with w inside (0, 1).

    Args:
        traces: Entries of any number of runs, with w called `target_weight_at`.
        records: Their records.

    Returns:
        Columns `run_name`, `sorted_by` ("all", "TV", "token before") and those of
        `context_gradients`; no row for a run without a trace or with
        fewer than two scored completions.

    Raises:
        ValueError: See `context_gradients`.
    """
    is_meant = traces["method"].eq("static") & traces["bonus"].eq("verifier")
    found = traces[is_meant & traces["target_weight"].between(0, 1, inclusive="neither")]
    parts = []
    for name, own in found.groupby("run_name", sort=False):
        scored = records[records["run_name"].eq(name) & records["quality"].notna()]
        if len(scored) < 2:
            continue
        of_run = own.drop(columns="target_weight").rename(columns=_AS_IN_A_TRACE)
        trace = of_run.merge(scored[_KEY], on=_KEY)
        sortings = {
            "all": pd.Series("all tokens", index=trace.index),
            "TV": tv_bands(trace),
            "token before": classes_before(trace, is_code=own["data"].iloc[0] in CODE_DATA),
        }
        parts += [
            context_gradients(trace, scored, contexts).assign(run_name=name, sorted_by=sorting)
            for sorting, contexts in sortings.items()
        ]
    columns = ["run_name", "sorted_by", *GRADIENT_COLUMNS]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)
