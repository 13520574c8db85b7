"""Accepted tokens per block and time against acceptance: the numbers drawn."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection

from diversed.figures.acceptance import plot_acceptance_time, plot_accepted_per_block
from diversed.figures.checks import MissingRecords
from diversed.figures.labels import LABELS
from diversed.figures.style import in_reading_order


def test_every_run_has_a_bar_of_its_length_in_reading_order(table):
    axes = plot_accepted_per_block(table).axes[0]
    ordered = in_reading_order(table)
    lengths = [bar.get_width() for bar in axes.patches]
    assert lengths == pytest.approx(ordered["mean_accepted"].tolist())
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names[:3] == ["plain decoding", "lossless", "static, w = 1"]
    assert names[-2:] == ["DIVERSED, λ = 0.5", "DIVERSED, λ = 1.5"]
    heights = [bar.get_y() for bar in axes.patches]
    assert heights == sorted(heights, reverse=True)
    assert axes.get_xlabel() == LABELS["mean_accepted"]


def test_bars_tell_their_numbers_and_the_most_that_there_can_be(table):
    axes = plot_accepted_per_block(table).axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert "1.64" in texts  # 3 * 0.88 - 1
    assert "N = 3" in texts
    assert [line.get_xdata()[0] for line in axes.lines] == [3.0]


def test_intervals_are_drawn_where_they_are_known(table):
    table["mean_accepted_low"] = table["mean_accepted_low"].where(table["method"] == "lossless")
    axes = plot_accepted_per_block(table).axes[0]
    drawn = {
        tuple(np.round(segment[:, 0], 9).tolist())
        for artist in axes.collections
        if isinstance(artist, LineCollection)
        for segment in artist.get_segments()
    }
    assert drawn == {(1.0, 1.3)}  # 3 * 0.7 - 1 - 0.1 and + 0.2


def test_pairs_have_panels_with_bars_of_one_width(table):
    figure = plot_accepted_per_block(pd.concat([table, table.iloc[:4].assign(model="qwen")]))
    assert [axes.get_title() for axes in figure.axes] == ["tiny", "qwen"]
    assert [len(axes.patches) for axes in figure.axes] == [10, 4]
    spans = [np.ptp(axes.get_ylim()) for axes in figure.axes]
    assert spans[0] == pytest.approx(spans[1])


def test_without_a_draft_there_is_nothing_to_accept(table):
    with pytest.raises(MissingRecords, match="needs a run with a draft"):
        plot_accepted_per_block(table.iloc[:1])
    with pytest.raises(ValueError, match=r"lacks the columns seed, mean_accepted$"):
        plot_accepted_per_block(table.drop(columns=["seed", "mean_accepted"]))


def test_time_is_drawn_against_acceptance_with_its_correlation(table):
    figure = plot_acceptance_time(table)
    axes = figure.axes[0]
    (heads,) = (line for line in axes.lines if line.get_label() == "DIVERSED")
    assert np.round(heads.get_xydata(), 9).tolist() == [[0.68, 0.58], [0.75, 0.5]]
    drafting = table[table["method"] != "autoregressive"]
    expected = np.corrcoef(drafting["acceptance_rate"], drafting["relative_time"])[0, 1]
    assert axes.get_title() == f"r = −{-expected:.2f} over 9 runs"
    assert axes.get_ylim()[0] == 0
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        LABELS["acceptance_rate"],
        LABELS["relative_time"],
    )


def test_too_few_or_equal_runs_have_no_correlation(table):
    assert plot_acceptance_time(table.iloc[:3]).axes[0].get_title() == ""
    equal = table.assign(relative_time=0.5)
    assert plot_acceptance_time(equal).axes[0].get_title() == ""


def test_runs_without_a_time_are_counted(table):
    table["relative_time"] = table["relative_time"].where(table["method"] != "static")
    axes = plot_acceptance_time(table).axes[0]
    assert [text.get_text() for text in axes.texts] == ["5 runs without a time"]
    with pytest.raises(MissingRecords, match="needs runs with a draft, and plain decoding"):
        plot_acceptance_time(table.assign(relative_time=np.nan))
    with pytest.raises(ValueError, match=r"lacks the columns acceptance_rate_high$"):
        plot_acceptance_time(table.drop(columns="acceptance_rate_high"))
