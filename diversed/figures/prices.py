"""What a unit of acceptance costs in quality, by class of context, at one static weight."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from diversed.figures.checks import require_columns, require_rows
from diversed.figures.style import BLUE, GREY, panel_figure

_NEEDS = (
    "a trace of a static weight inside (0, 1): python eval.py verifier=static verifier.weight=0.5"
)
_COLUMNS = (
    *("run_name", "sorted_by", "context", "tv_frac"),
    *("price", "price_low", "price_high"),
)
_LEAST_SHARE = 0.03  # of the disagreement: the price of less is too uncertain to draw


def plot_prices(prices: pd.DataFrame) -> Figure:
    """Draw what acceptance costs in quality by class of context, a panel for each run.

    The line is the price of all tokens, the band its interval. A class whose whisker keeps clear of
    the line is where a weight by context can gain on a fixed one: to the right w should be higher
    than elsewhere, to the left lower. Classes with under 3 % of the disagreement are left out.

    Args:
        prices: `RecordSet.prices` of `diversed.notebooks`.

    Raises:
        MissingRecords: No such run has a trace.
        ValueError: Columns are missing.
    """
    require_columns(prices, _COLUMNS)
    require_rows(prices, _NEEDS)
    runs = [(str(name), rows) for name, rows in prices.groupby("run_name", sort=False)]
    figure, grid = panel_figure(len(runs), (6.4, 4.0))
    for axes, (name, rows) in zip(grid, runs, strict=True):
        shown = rows[rows["tv_frac"] >= _LEAST_SHARE].iloc[::-1]
        places = np.arange(len(shown))
        whole = rows[rows["sorted_by"] == "all"].iloc[0]
        axes.axvspan(whole["price_low"], whole["price_high"], color=GREY, alpha=0.15, linewidth=0)
        axes.axvline(whole["price"], color=GREY, linewidth=1.2)
        axes.axvline(0, color=GREY, linewidth=0.6, linestyle=":")
        axes.hlines(places, shown["price_low"], shown["price_high"], color=BLUE, linewidth=1.4)
        axes.plot(shown["price"], places, linestyle="none", marker="o", color=BLUE, markersize=5)
        texts = [f"{row.context}\n{row.tv_frac:.0%} of TV" for row in shown.itertuples(index=False)]
        axes.set_yticks(places, texts, fontsize=8)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("quality lost per unit of A gained (95 %)")
        axes.set_title(name, fontsize=10)
    return figure
