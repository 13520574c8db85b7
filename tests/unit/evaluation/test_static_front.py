"""Heads and hulls measured from records, by numbers worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from diversed.evaluation.summary import (
    FRONT_SETTINGS,
    distance_to_static_front,
    distances_over_heads,
    static_front_band,
)
from diversed.theory.bootstrap import resample_counts

SETTINGS = {"model": "tiny", "data": "sums", "split": "test", "draft_length": 5}
SETTINGS |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": 8}


def run(name, method, acceptance, qualities, **columns):
    """Return the records of a run on prompts a, b, c, d."""
    numbers = np.broadcast_to(acceptance, len(qualities))
    nothing = {"acceptance_weight": None, "dial": None}
    rows = [
        {"prompt_id": prompt, "sample": 0, "expected_acceptance": number, "quality": quality}
        for prompt, number, quality in zip("abcd", numbers, qualities, strict=False)
    ]
    shared = SETTINGS | nothing | {"run_name": name, "method": method} | columns
    return pd.DataFrame([shared | row for row in rows])


STATIC = [  # the hull goes from (0.6, 1) to (1, 0)
    run("lossless", "lossless", 0.6, [1, 1, 1, 1]),
    run("static-half", "static", 0.8, [0, 0, 1, 0]),
    run("static-0", "static", 1.0, [0, 0, 0, 0]),
]
PLAIN = run("plain", "autoregressive", 0.0, [1, 1, 1, 1], draft_length=None)


def head(name, acceptance, qualities, weight=1.5, **columns):
    return run(name, "diversed", acceptance, qualities, acceptance_weight=weight, **columns)


def test_heads_of_one_lambda_are_measured_as_their_mean():
    heads = [
        head("one", 0.8, [1, 1, 1, 1], dial=0.0),
        head("two", 0.9, [1, 1, 1, 0], dial=0.0),
        head("third", 0.7, [1, 1, 1, 1], weight=0.5, dial=0.0),
    ]
    table = distances_over_heads(pd.concat([*STATIC, *heads, PLAIN]), num_resamples=50)
    assert table["acceptance_weight"].tolist() == [0.5, 1.5]
    assert table["num_heads"].tolist() == [1, 2]
    single, both = table.to_dict("records")
    assert single["quality_above_hull"] == pytest.approx(1 - 0.75)
    assert both["quality_above_hull"] == pytest.approx(0.875 - 0.375)  # at A = 0.85
    assert both["acceptance_above_hull"] == pytest.approx(0.85 - 0.65)
    assert both["quality_above_curve"] == pytest.approx(0.875 - 0.25 * 0.75)
    assert both["quality_above_hull_low"] < both["quality_above_hull_high"]
    assert both["acceptance_above_hull_bound"] <= both["acceptance_above_hull"]


def test_dials_of_one_head_are_rows_of_their_own():
    heads = [head("as-is", 0.8, [1, 1, 1, 1], dial=0.0), head("up", 0.7, [1, 1, 1, 1], dial=2.0)]
    table = distances_over_heads(pd.concat([*STATIC, *heads]), num_resamples=20)
    assert table["dial"].tolist() == [0.0, 2.0]
    unknown = head("old", 0.8, [1, 1, 1, 1], weight=None)  # its training run is not at hand
    table = distances_over_heads(pd.concat([*STATIC, unknown]), num_resamples=20)
    assert table["num_heads"].tolist() == [1]
    assert table["acceptance_weight"].isna().all()


def test_heads_that_were_trained_on_other_data_are_rows_of_their_own():
    """A head that was brought from another task used to be averaged with the task's own."""
    heads = [
        head("own", 0.8, [1, 1, 1, 1], train_data="here"),
        head("brought", 0.8, [0, 0, 0, 0], train_data="elsewhere"),
        head("unknown", 0.8, [1, 1, 0, 0], train_data=None),
    ]
    table = distances_over_heads(pd.concat([*STATIC, *heads]), num_resamples=20)
    assert table["train_data"].fillna("?").tolist() == ["elsewhere", "here", "?"]
    assert table["num_heads"].tolist() == [1, 1, 1]
    assert table["quality_above_hull"].tolist() == pytest.approx([-0.5, 0.5, 0.0])


def test_heads_that_read_other_things_are_rows_of_their_own_and_controls_are_passed_over():
    heads = [
        head("hidden", 0.8, [1, 1, 1, 1], dial=0.0),
        head("scalars", 0.7, [1, 1, 1, 1], dial=0.0).assign(method="features_head"),
        head("control", 0.7, [0, 0, 0, 0], dial=0.0).assign(method="prompt_head"),
    ]
    table = distances_over_heads(pd.concat([*STATIC, *heads]), num_resamples=20)
    assert table["method"].tolist() == ["diversed", "features_head"]
    assert table["quality_above_hull"].tolist() == pytest.approx([0.5, 0.25])


def test_where_a_head_is_beyond_the_front_the_bound_and_the_share_are_told():
    best = [run("lossless", "lossless", 0.6, [1, 0, 1, 1]), STATIC[2]]
    table = distances_over_heads(
        pd.concat([*best, head("one", 0.9, [1, 1, 1, 1], dial=0.0)]), num_resamples=200
    )
    (row,) = table.to_dict("records")
    assert np.isnan(row["acceptance_above_hull"])
    assert np.isnan(row["acceptance_above_hull_low"])
    assert 0.5 < row["acceptance_above_hull_undefined_frac"] < 1
    assert row["acceptance_above_hull_bound"] == pytest.approx(0.9 - 0.6)


def test_the_interval_over_heads_is_wider_than_over_prompts_alone():
    unlike = [head("one", 0.7, [1, 1, 1, 1], dial=0.0), head("two", 0.9, [0, 0, 1, 1], dial=0.0)]
    (row,) = distances_over_heads(pd.concat([*STATIC, *unlike]), num_resamples=500).to_dict(
        "records"
    )
    mean = head("mean", 0.8, [0.5, 0.5, 1, 1], dial=0.0)
    own = distance_to_static_front(pd.concat([*STATIC, mean]), "mean", num_resamples=500)
    assert row["quality_above_hull"] == pytest.approx(own.quality_above_hull.estimate)
    width = row["quality_above_hull_high"] - row["quality_above_hull_low"]
    assert width > own.quality_above_hull.high - own.quality_above_hull.low


def test_heads_and_a_front_are_needed():
    with pytest.raises(ValueError, match="no run of a head"):
        distances_over_heads(pd.concat(STATIC))
    with pytest.raises(ValueError, match="no static run"):
        distances_over_heads(head("one", 0.8, [1, 1, 1, 1]))


@pytest.mark.parametrize("setting", FRONT_SETTINGS)
def test_runs_of_other_settings_share_no_front(setting):
    """Static runs of another temperature used to be taken for points of the same front."""
    other = STATIC[1].assign(**{setting: 3, "run_name": "other"})
    table = pd.concat([*STATIC, other, head("one", 0.8, [1, 1, 1, 1], dial=0.0)])
    with pytest.raises(ValueError, match=rf"^{setting} differs between runs that are to share"):
        distance_to_static_front(table, "one", num_resamples=20)
    with pytest.raises(ValueError, match=rf"^{setting} differs"):
        distances_over_heads(table, num_resamples=20)
    with pytest.raises(ValueError, match=rf"^{setting} differs"):
        static_front_band(table, num_resamples=20)


def test_the_band_surrounds_the_hull_and_closes_where_nothing_varies():
    static = [
        run("lossless", "lossless", 0.6, [1, 1, 1, 1]),
        run("static-0", "static", 1.0, [0, 1, 0, 1]),
    ]
    band = static_front_band(pd.concat([*static, PLAIN]), num_points=5, num_resamples=400)
    assert band["expected_acceptance"].tolist() == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0])
    hull = np.array([1.0, 0.875, 0.75, 0.625, 0.5])
    assert (band["quality_low"] <= hull).all()
    assert (band["quality_high"] >= hull).all()
    width = (band["quality_high"] - band["quality_low"]).to_numpy()
    assert width[0] == 0  # lossless is right on every prompt
    assert (np.diff(width) > 0).all()
    assert band["quality_low"].iloc[-1] == pytest.approx(0.0)  # all four draws of a or c
    assert band["quality_high"].iloc[-1] == pytest.approx(1.0)


def test_the_band_ends_where_resampled_hulls_no_longer_reach():
    static = [
        run("lossless", "lossless", [0.4, 0.8, 0.4, 0.8], [1, 1, 1, 1]),
        run("static-0", "static", 1.0, [0, 1, 0, 1]),
    ]
    band = static_front_band(pd.concat(static), num_points=9, num_resamples=400)
    assert np.isnan(band["quality_low"].iloc[0])  # half of the hulls begin further right
    assert band["quality_low"].iloc[-1] == pytest.approx(0.0)
    assert band["quality_low"].notna().to_numpy()[-3:].all()


def test_resamples_are_drawn_once_and_cannot_be_changed():
    """Every number of every run used to draw the same resamples again, most of the time it took."""
    counts = resample_counts(4, 10, 0)
    assert resample_counts(4, 10, 0) is counts
    assert (resample_counts(4, 10, 1) != counts).any()
    with pytest.raises(ValueError, match="read-only"):
        counts[0] = 0
