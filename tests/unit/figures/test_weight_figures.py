"""What is drawn of w, and the classes of tokens."""

import numpy as np
import pandas as pd
import pytest

from diversed.figures.checks import MissingRecords
from diversed.figures.labels import LABELS
from diversed.figures.token_classes import TOKEN_CLASSES, token_class
from diversed.figures.weights import (
    plot_weight_by_class,
    plot_weight_distribution,
    plot_weight_tv,
)

PLOTS = [plot_weight_distribution, plot_weight_by_class, plot_weight_tv]


@pytest.fixture
def learnt(traces):
    """Tokens of two heads; the i-th token of a block has w 0.97, 1.0, 0.1 or 0.5."""
    return traces[traces["method"] == "diversed"]


def emitted(learnt):
    return learnt[learnt["status"].isin(["accepted", "recovered", "bonus"])]


def test_shares_of_w_are_those_of_emitted_tokens(learnt):
    axes = plot_weight_distribution(learnt).axes[0]
    (steps,) = axes.patches
    values, edges, _ = steps.get_data()
    assert values.sum() == pytest.approx(1)
    share = emitted(learnt)["target_weight_at"].value_counts(normalize=True)
    by_edge = dict(zip(np.round(edges[:-1], 9).tolist(), values, strict=True))
    assert by_edge[0.95] == pytest.approx(share[0.97] + share[1.0])  # the last bin holds 1
    assert by_edge[0.5] == pytest.approx(share[0.5])
    mean = emitted(learnt)["target_weight_at"].mean()
    (name,) = (text.get_text() for text in axes.get_legend().get_texts())
    assert name == f"DIVERSED, λ = 1.5 (mean {mean:.2f})"


def test_settings_have_lines_of_their_own(learnt):
    other = learnt.assign(dial=2.0, target_weight_at=0.3)
    axes = plot_weight_distribution(pd.concat([other, learnt])).axes[0]
    names = [text.get_text().split(" (")[0] for text in axes.get_legend().get_texts()]
    assert names == ["DIVERSED, λ = 1.5", "DIVERSED, λ = 1.5, dial = 2"]
    looks = {(steps.get_edgecolor(), steps.get_linestyle()) for steps in axes.patches}
    assert len(looks) == 2


def test_classes_show_their_quartiles_and_mean(learnt):
    learnt = learnt.assign(target_weight_at=np.where(learnt["token"].eq("4"), 0.25, 0.5))
    axes = plot_weight_by_class(learnt).axes[0]
    names = [text.get_text().split("\n")[0] for text in axes.get_yticklabels()]
    assert names == ["punctuation", "word", "operator", "digit"]  # from below
    means = [line.get_xydata()[0].tolist() for line in axes.lines]
    assert means[-1] == [0.25, 3.0]
    assert means[0] == [0.5, 0.0]
    shares = [text.get_text().split("\n")[1] for text in axes.get_yticklabels()]
    counts = emitted(learnt)["token"].value_counts(normalize=True)
    assert shares[-1] == f"{counts['4']:.0%} of tokens"


def test_boxes_span_the_middle_half(learnt):
    rows = emitted(learnt)
    spread = rows[rows["token"].eq("4")].assign(target_weight_at=[0.0, 0.0, 1.0, 1.0])
    (box,) = plot_weight_by_class(spread).axes[0].patches
    assert (box.get_x(), box.get_width()) == (0.0, 1.0)


def test_cells_count_tokens_and_the_line_is_their_mean(learnt):
    figure = plot_weight_tv(learnt)
    axes = figure.axes[0]
    (mesh,) = axes.collections
    assert mesh.get_array().sum() == len(emitted(learnt))
    (mean,) = axes.lines
    at = dict(np.round(mean.get_xydata(), 9).tolist())
    assert at == {0.125: 0.97, 0.325: 1.0, 0.525: 0.1, 0.725: 0.5}
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        LABELS["tv_distance"],
        LABELS["target_weight_at"],
    )


@pytest.mark.parametrize("plot", PLOTS)
def test_without_a_learnt_verifier_it_says_what_to_run(traces, plot):
    rejected = traces[traces["status"] == "rejected"]
    for nothing in (traces.iloc[:0], traces.assign(target_weight_at=np.nan), rejected):
        with pytest.raises(MissingRecords, match="needs the trace of a learnt verifier"):
            plot(nothing)


@pytest.mark.parametrize("plot", PLOTS)
def test_missing_columns_are_named(learnt, plot):
    with pytest.raises(ValueError, match=r"lacks the columns status, dial$"):
        plot(learnt.drop(columns=["status", "dial"]))


@pytest.mark.parametrize("plot", PLOTS)
def test_input_stays_as_it_is(learnt, plot):
    before = learnt.copy()
    plot(learnt)
    pd.testing.assert_frame_equal(learnt, before)


def test_programs_are_read_as_such(learnt):
    program = learnt.assign(data="mbpp", token=learnt["token"].replace({" so": " return"}))
    names = [
        text.get_text().split("\n")[0]
        for text in plot_weight_by_class(program).axes[0].get_yticklabels()
    ]
    assert names == ["code keyword", "punctuation", "word", "digit"]


@pytest.mark.parametrize(
    ("text", "in_prose", "in_code"),
    [
        ("12", "digit", "digit"),
        (" 3.5", "digit", "digit"),
        ("$7", "digit", "digit"),
        (" times", "operator", "word"),
        ("x", "operator", "word"),
        (" for", "word", "code keyword"),
        ("x1", "word", "word"),
        ("**", "operator", "operator"),
        ("):", "punctuation", "punctuation"),
        ("####", "punctuation", "punctuation"),
        ("\n\n", "space, end", "space, end"),
        ("", "space, end", "space, end"),
        ("<|im_end|>", "space, end", "space, end"),
        ("<=", "operator", "operator"),
        ("<>", "operator", "operator"),
        ("é", "word", "word"),
    ],
)
def test_a_token_has_one_class(text, in_prose, in_code):
    assert token_class(text, is_code=False) == in_prose
    assert token_class(text, is_code=True) == in_code
    assert {in_prose, in_code} <= set(TOKEN_CLASSES)
