"""Training curves: the numbers drawn."""

import numpy as np
import pandas as pd
import pytest

from diversed.figures.checks import MissingRecords
from diversed.figures.labels import LABELS
from diversed.figures.training import plot_training


def curves(name, weight, shift=0.0):
    nan = np.nan
    train = {
        "part": "train",
        "rollout": [0, 1, 2],
        "reward": np.array([0.5, 0.6, 0.7]) + shift,
        "expected_acceptance": [0.7, 0.8, 0.9],
        "objective": [1.5, 1.7, 1.9],
        "mean_target_weight": [0.9, 0.7, 0.6],
        "w_below_0.05_frac": [0.0, 0.1, 0.2],
        "w_above_0.95_frac": [0.1, 0.3, 0.5],
        "quality": nan,
    }
    validation = {
        "part": "validation",
        "rollout": [1, 2],
        "quality": [0.65, 0.6],
        "expected_acceptance": [0.78, 0.88],
        "objective": [1.8, 1.75],
    }
    shared = {"run_name": name, "method": "diversed", "acceptance_weight": weight, "dial": 0.0}
    shared |= {"target_weight": nan, "setting": "dial=0.0", "best_rollout": 1, "model": "tiny"}
    shared |= {"data": "arithmetic", "temperature": 1.0, "draft_length": 5}
    parts = [pd.DataFrame(part).assign(**shared) for part in (train, validation)]
    return pd.concat(parts, ignore_index=True)


def drawn(axes):
    """Return the lines with points, legend entries left out."""
    return [line.get_xydata().tolist() for line in axes.lines if len(line.get_xdata())]


def test_rollouts_validations_and_the_kept_head_are_drawn():
    figure = plot_training(curves("a", 1.5))
    reward, acceptance, objective, weight = figure.axes
    assert drawn(reward) == [
        [[0, 0.5], [1, 0.6], [2, 0.7]],
        [[1, 0.65], [2, 0.6]],
        [[1, 0.65]],
    ]
    assert drawn(acceptance)[1] == [[1, 0.78], [2, 0.88]]
    assert drawn(objective)[2] == [[1, 1.8]]
    assert drawn(weight)[0] == [[0, 0.9], [1, 0.7], [2, 0.6]]
    assert reward.get_ylabel() == LABELS["reward"]
    assert {axes.get_xlabel() for axes in figure.axes} == {LABELS["rollout"]}


def test_a_single_run_shows_the_shares_of_extreme_weights():
    weight = plot_training(curves("a", 1.5)).axes[-1]
    assert drawn(weight)[1:] == [
        [[0, 0.1], [1, 0.3], [2, 0.5]],
        [[0, 0.0], [1, 0.1], [2, 0.2]],
    ]
    several = plot_training(pd.concat([curves("a", 1.5), curves("b", 3.0)])).axes[-1]
    assert len(drawn(several)) == 2


def test_seeds_of_one_setting_share_a_look_and_a_legend_entry():
    tables = [curves("a", 1.5), curves("b", 1.5, 0.1), curves("c", 0.5)]
    figure = plot_training(pd.concat(tables, ignore_index=True))
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["λ = 0.5", "λ = 1.5", "training rollouts", "validation (filled: kept)"]
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
    colors = [line.get_color() for line in lines]
    assert colors[1] == colors[2] != colors[0]


def test_without_curves_it_says_what_to_run():
    table = curves("a", 1.5)
    with pytest.raises(MissingRecords, match="needs a training run with its curves"):
        plot_training(table.iloc[:0])
    with pytest.raises(ValueError, match=r"lacks the columns reward, best_rollout$"):
        plot_training(table.drop(columns=["reward", "best_rollout"]))
