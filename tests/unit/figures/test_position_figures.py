"""Acceptance by position, from four blocks worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from diversed.figures.checks import MissingRecords
from diversed.figures.labels import LABELS
from diversed.figures.positions import plot_position_acceptance, plot_survival, spread

# The running products of the four blocks' acceptances.
PRODUCTS = np.array([[0.9, 0.72, 0.36], [0.7, 0.28, 0.28], [0.6, 0.3, 0.15], [1.0, 0.5, 0.1]])
COUNTED = [3 / 4, 2 / 4, 1 / 4]


def axes_of(figure, method):
    (found,) = (axes for axes in figure.axes if axes.get_title() == method)
    return found


def line(axes, name):
    (found,) = (line for line in axes.lines if line.get_label() == name)
    return found.get_xydata()


def test_counted_and_predicted_survival_are_those_of_the_blocks(traces):
    axes = axes_of(plot_survival(traces), "lossless")
    assert line(axes, "counted").T.tolist() == [[1, 2, 3], COUNTED]
    predicted = line(axes, "predicted (Rao-Blackwellised)")
    assert predicted[:, 1] == pytest.approx(PRODUCTS.mean(0))
    assert axes.get_ylabel() == LABELS["survival"]
    assert axes.get_ylim()[0] == 0


def test_intervals_are_clustered_by_prompt(traces):
    """Two prompts with two blocks each; of T >= 1 the one has 2 of 2, the other 1 of 2."""
    axes = axes_of(plot_survival(traces), "lossless")
    first = axes.collections[0].get_segments()[0]
    error = np.sqrt(2 * ((2 - 0.75 * 2) ** 2 + (1 - 0.75 * 2) ** 2)) / 4
    assert np.ptp(first[:, 1]) == pytest.approx(2 * 1.96 * error)


def test_the_independent_curve_is_a_power_of_the_judged_acceptance(traces):
    axes = axes_of(plot_survival(traces), "lossless")
    survival = PRODUCTS.mean(0)
    acceptance = survival.sum() / (1 + survival[:-1].sum())
    assert line(axes, "if independent: a^k")[:, 1] == pytest.approx(acceptance ** np.arange(1, 4))
    flat = line(axes_of(plot_position_acceptance(traces), "lossless"), "if independent: a")
    assert flat[:, 1] == pytest.approx([acceptance] * 3)


def test_acceptance_where_judged_is_the_ratio_of_survivals(traces):
    axes = axes_of(plot_position_acceptance(traces), "lossless")
    assert line(axes, "counted")[:, 1] == pytest.approx([3 / 4, 2 / 3, 1 / 2])
    survival = PRODUCTS.mean(0)
    expected = survival / np.array([1, *survival[:-1]])
    assert line(axes, "predicted (Rao-Blackwellised)")[:, 1] == pytest.approx(expected)


def test_seeds_are_pooled_and_settings_named(traces):
    figure = plot_survival(traces)
    axes = axes_of(figure, "DIVERSED")
    assert [text.get_text() for text in axes.texts] == ["λ=1.5"]
    assert line(axes, "counted")[:, 1].tolist() == COUNTED
    assert len(figure.axes) == 2


def test_many_settings_have_no_independent_curves_and_names_apart(traces):
    lossless = traces[traces["method"] == "lossless"]
    static = [
        lossless.assign(method="static", target_weight=weight, run_name=f"static{weight}")
        for weight in (0.8, 0.5, 0.2)
    ]
    (axes,) = plot_survival(pd.concat(static)).axes
    assert [text.get_text() for text in axes.texts] == ["w=0.8", "w=0.5", "w=0.2"]
    heights = sorted(text.get_position()[1] for text in axes.texts)
    assert np.diff(heights) == pytest.approx([0.055 * np.ptp(axes.get_ylim())] * 2)
    assert not [line for line in axes.lines if line.get_linestyle() == ":"]


def test_draft_lengths_have_panels_and_plain_decoding_is_left_out(traces):
    shorter = traces[traces["block_position"] < 2].assign(draft_length=2.0)
    plain = traces.iloc[:4].assign(method="autoregressive", draft_length=np.nan)
    figure = plot_survival(pd.concat([traces, shorter, plain]))
    assert [axes.get_title() for axes in figure.axes] == [
        "lossless · N = 2",
        "DIVERSED · N = 2",
        "lossless · N = 3",
        "DIVERSED · N = 3",
    ]
    with pytest.raises(MissingRecords, match="needs traces of runs with a draft"):
        plot_survival(plain)


def test_broken_traces_and_missing_columns_are_named(traces):
    with pytest.raises(ValueError, match=r"^lossless-0: two drafted tokens stand at one position"):
        plot_survival(traces.assign(block=0))
    with pytest.raises(ValueError, match=r"lacks the columns accept_prob, draft_length$"):
        plot_survival(traces.drop(columns=["accept_prob", "draft_length"]))


def test_heights_are_spread_no_more_than_needed():
    assert spread([], 1.0) == []
    assert spread([3.0, 1.0], 1.0) == [3.0, 1.0]
    assert spread([0.0, 0.1, 0.2, 5.0], 0.5) == [-0.4, 0.1, 0.6, 5.0]
    moved = spread(np.linspace(0.3, 0.4, 9).tolist(), 0.055)
    assert np.diff(moved) == pytest.approx([0.055] * 8)
    assert np.mean(moved) == pytest.approx(0.35)
