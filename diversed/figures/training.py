"""Training curves of heads."""

import textwrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from diversed.figures.checks import require_columns, require_rows
from diversed.figures.labels import SETTING_COLUMNS, label, setting_text
from diversed.figures.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PANEL_COLUMNS,
    PURPLE,
    SKY,
    VERMILION,
    by_setting,
    figure_legend,
    panel_figure,
    panels,
)

_SHOWN = (
    ("reward", "quality"),
    ("expected_acceptance", "expected_acceptance"),
    ("objective", "objective"),
    ("mean_target_weight", None),
)
_COLUMNS = (
    *("run_name", "part", "rollout", "reward", "quality", "expected_acceptance", "objective"),
    *("mean_target_weight", "w_below_0.05_frac", "w_above_0.95_frac", "best_rollout"),
    *("method", *SETTING_COLUMNS, *PANEL_COLUMNS),
)
_LOOKS = (
    *((VERMILION, "o"), (BLUE, "s"), (GREEN, "^"), (BLACK, "D")),
    *((ORANGE, "v"), (PURPLE, "P"), (SKY, "X")),
)


def plot_training(training: pd.DataFrame) -> Figure:
    """Draw reward, acceptance, objective and w over the rollouts of each run.

    Thin lines are the training rollouts, sampled by the head of that many rollouts; markers are
    validations, the filled one is the head that was kept. Runs of one setting (seeds) share colour
    and marker. With a single run the shares of w near 0 and near 1 are shown, too.

    Args:
        training: One row per run, part ("train" or "validation") and `rollout`, sorted by rollout:
            `run_name`, `part`, `rollout` (rollouts done), `expected_acceptance`, `objective`; of
            training `reward`, `mean_target_weight`, `w_below_0.05_frac`, `w_above_0.95_frac`; of
            validations `quality`; and of the run `best_rollout`, `method`, `SETTING_COLUMNS` and
            `PANEL_COLUMNS`. What does not apply is NaN.

    Raises:
        MissingRecords: There is no row.
        ValueError: Columns are missing.
    """
    require_columns(training, _COLUMNS)
    require_rows(training, "a training run with its curves: python train.py logger=csv")
    figure, grid = panel_figure(len(_SHOWN), (4.8, 3.1), max_columns=2)
    groups = [
        (", ".join(filter(None, [setting_text(shared), panel.title])), rows)
        for panel in panels(training)
        for shared, rows in by_setting(panel.rows)
    ]
    is_single = training["run_name"].nunique() == 1
    for axes, (of_training, of_validation) in zip(grid, _SHOWN, strict=True):
        axes.set_xlabel(label("rollout"))
        axes.set_ylabel(textwrap.fill(label(of_training), 22))
        for index, (name, rows) in enumerate(groups):
            color, marker = _LOOKS[index % len(_LOOKS)]
            for _, run in rows.groupby("run_name", sort=False):
                _draw_run(axes, run, of_training, of_validation, color, marker)
            axes.plot([], [], color=color, marker=marker, label=name)
        if of_validation is None and is_single:
            _draw_extremes(axes, training)
    grid[0].plot([], [], color=GREY, linewidth=1.0, label="training rollouts")
    grid[0].plot(
        [],
        [],
        color=GREY,
        linestyle="--",
        marker="o",
        markerfacecolor="white",
        label="validation (filled: kept)",
    )
    figure_legend(figure, grid)
    return figure


def _draw_run(
    axes: Axes,
    run: pd.DataFrame,
    of_training: str,
    of_validation: str | None,
    color: str,
    marker: str,
) -> None:
    train, validation = (run[run["part"] == part] for part in ("train", "validation"))
    axes.plot(train["rollout"], train[of_training], color=color, linewidth=1.0)
    if of_validation is None:
        return
    axes.plot(
        validation["rollout"],
        validation[of_validation],
        color=color,
        linestyle="--",
        linewidth=0.8,
        marker=marker,
        markersize=6,
        markerfacecolor="white",
    )
    kept = validation[validation["rollout"] == validation["best_rollout"]]
    axes.plot(
        kept["rollout"],
        kept[of_validation],
        linestyle="none",
        marker=marker,
        markersize=6,
        color=color,
    )


def _draw_extremes(axes: Axes, rows: pd.DataFrame) -> None:
    train = rows[rows["part"] == "train"]
    for column, color, dashes in (
        ("w_above_0.95_frac", BLUE, "--"),
        ("w_below_0.05_frac", GREEN, ":"),
    ):
        axes.plot(
            train["rollout"],
            train[column],
            color=color,
            linestyle=dashes,
            linewidth=1.3,
            label=label(column),
        )
    axes.set_ylabel(f"{label('mean_target_weight')}, shares")
    axes.set_ylim(-0.02, 1.02)
