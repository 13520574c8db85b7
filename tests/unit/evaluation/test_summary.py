"""Summaries of records, by numbers worked out by hand."""

import re

import numpy as np
import pandas as pd
import pytest

from diversed.evaluation.summary import distance_to_static_front, paired, summarise
from diversed.records.schema import ROW_COLUMNS, RUN_COLUMNS
from diversed.records.store import read_records, read_runs, write_manifest, write_records

NUMBERS = {
    "quality": 1.0,
    "num_tokens": 10,
    "num_drafted": 10,
    "num_judged": 8,
    "num_accepted": 6,
    "num_recovered": 2,
    "num_bonus": 2,
    "num_blocks": 4,
    "num_draft_calls": 11,
    "expected_acceptance": 0.8,
    "expected_acceptance_sum": 8.0,
    "bias": 0.1,
    "mean_target_weight": 0.5,
    "seconds": 2.0,
    "is_truncated": False,
    "end_reason": "eos",
}


def run(name, rows, method="static", **columns):
    """Return records of one run; `rows` are (prompt id, changes of NUMBERS)."""
    run_columns = dict.fromkeys(RUN_COLUMNS) | {"run_name": name, "method": method} | columns
    return pd.DataFrame(
        [
            run_columns
            | dict.fromkeys(ROW_COLUMNS)
            | {"sample": 0}
            | NUMBERS
            | {"prompt_id": prompt}
            | row
            for prompt, row in rows
        ]
    )


def failed(prompt):
    return prompt, dict.fromkeys(NUMBERS) | {"error": "too long"}


UNEVEN = [
    ("a", {}),
    (
        "b",
        {
            "num_tokens": 90,
            "num_drafted": 90,
            "num_judged": 50,
            "num_accepted": 14,
            "num_blocks": 76,
        },
    ),
]


def only(table):
    assert len(table) == 1
    return table.iloc[0]


def test_rates_are_ratios_of_sums():
    row = only(summarise(run("one", UNEVEN), num_resamples=50))
    assert row["acceptance_rate"] == pytest.approx(20 / 100)  # the mean of ratios is 0.378
    assert row["token_acceptance_rate"] == pytest.approx(20 / 58)
    assert row["block_efficiency"] == pytest.approx(100 / 80)
    assert row["tokens_per_second"] == pytest.approx(100 / 4)
    assert row["mean_num_tokens"] == pytest.approx(50)
    for name in ("acceptance_rate", "token_acceptance_rate", "block_efficiency", "mean_num_tokens"):
        assert row[f"{name}_low"] < row[name] < row[f"{name}_high"]


def test_quality_and_acceptance_are_means_over_prompts():
    rows = [
        ("a", {"quality": 1.0, "expected_acceptance": 0.9}),
        ("a", {"quality": 0.0, "expected_acceptance": 0.7, "sample": 1}),
        ("b", {"quality": 0.0, "expected_acceptance": 0.5}),
    ]
    row = only(summarise(run("one", rows), num_resamples=50))
    assert row["quality"] == pytest.approx(0.25)  # prompts weigh the same, not samples
    assert row["expected_acceptance"] == pytest.approx((0.8 + 0.5) / 2)
    assert row["num_prompts"] == 2


def test_errors_and_truncated_answers_are_counted_and_stand_in_no_mean():
    rows = [("a", {}), ("b", {"is_truncated": True, "quality": 0.0}), failed("c")]
    row = only(summarise(run("one", rows), num_resamples=50))
    assert (row["num_errors"], row["num_truncated"], row["num_prompts"]) == (1, 1, 3)
    assert row["quality"] == pytest.approx(0.5)
    assert row["acceptance_rate"] == pytest.approx(0.6)


def test_cut_prompts_are_counted_once_for_all_samples():
    cut = {"is_prompt_cut": True}
    rows = [("a", cut), ("a", cut | {"sample": 1}), ("b", {"is_prompt_cut": False}), ("c", cut)]
    assert only(summarise(run("one", rows), num_resamples=20))["num_cut_prompts"] == 2


def test_a_run_without_any_score_still_has_a_summary():
    """Nothing but failed rows used to end in a division by zero."""
    unscored = {"quality": None, "error": "scoring failed: no sandbox"}
    row = only(summarise(run("one", [("a", unscored), ("b", unscored)]), num_resamples=20))
    assert (row["num_errors"], row["num_prompts"]) == (2, 2)
    assert np.isnan(row["quality"])
    assert np.isnan(row["tokens_per_second"])


def test_runs_keep_their_order_and_columns():
    table = pd.concat([run("z", UNEVEN, seed=3), run("a", UNEVEN, method="lossless")])
    summary = summarise(table, num_resamples=20)
    assert summary["run_name"].tolist() == ["z", "a"]
    assert summary["seed"].iloc[0] == 3
    assert summary["method"].tolist() == ["static", "lossless"]


def test_intervals_are_a_function_of_the_seed():
    table = run("one", [(str(index), {"quality": index % 3 / 2}) for index in range(20)])
    first, again, other = (summarise(table, seed=seed, num_resamples=50) for seed in (0, 0, 1))
    pd.testing.assert_frame_equal(first, again)
    assert first["quality_low"].iloc[0] != other["quality_low"].iloc[0]


@pytest.mark.parametrize("with_error", [False, True])
def test_run_without_a_draft_has_no_acceptance(tmp_path, with_error):
    """Its columns are all null, as they come back from a file."""
    nulls = dict.fromkeys(("expected_acceptance", "expected_acceptance_sum", "bias"))
    nulls |= {"mean_target_weight": None, "num_drafted": 0, "num_judged": 0, "num_accepted": 0}
    rows = [("a", nulls), ("b", nulls)] + ([failed("c")] if with_error else [])
    table = [
        dict.fromkeys(ROW_COLUMNS) | {"sample": 0} | NUMBERS | {"prompt_id": prompt} | row
        for prompt, row in rows
    ]
    columns = dict.fromkeys(RUN_COLUMNS) | {"run_name": "plain", "method": "autoregressive"}
    write_manifest(tmp_path, {"run": columns})
    write_records(tmp_path, table)
    row = only(summarise(read_records(tmp_path), num_resamples=20))
    for name in ("expected_acceptance", "acceptance_rate", "token_acceptance_rate", "bias"):
        assert np.isnan(row[name]), name
    assert row["quality"] == 1.0
    assert row["num_errors"] == with_error


def point(name, method, acceptance, qualities):
    rows = [
        (prompt, {"expected_acceptance": acceptance, "quality": quality})
        for prompt, quality in zip("abcd", qualities, strict=False)
    ]
    return run(name, rows, method=method)


FRONT = [
    point("lossless", "lossless", 0.6, [1, 1, 1, 1]),
    point("static-0", "static", 1.0, [0, 0, 0, 0]),
    point("static-half", "static", 0.8, [0, 0, 1, 0]),  # below the chord, at 0.5
    point("plain", "autoregressive", 0.0, [1, 1, 1, 1]),
]


def test_distance_is_measured_from_hull_and_curve():
    table = pd.concat([*FRONT, point("head", "diversed", 0.8, [1, 1, 1, 0])])
    distance = distance_to_static_front(table, "head", num_resamples=20)
    assert distance.quality_above_hull.estimate == pytest.approx(0.75 - 0.5)
    assert distance.quality_above_curve.estimate == pytest.approx(0.75 - 0.25)
    assert distance.acceptance_above_hull.estimate == pytest.approx(0.8 - 0.7)


def test_static_run_is_not_part_of_its_own_front():
    distance = distance_to_static_front(pd.concat(FRONT), "static-half", num_resamples=20)
    assert distance.quality_above_curve.estimate == pytest.approx(0.25 - 0.5)


@pytest.mark.parametrize(
    "method",
    [
        point("head", "diversed", 0.8, [1, 1, 1]),  # a prompt is missing
        run("head", [(prompt, {}) for prompt in "abce"], method="diversed"),
        run("head", [*((prompt, {}) for prompt in "abc"), failed("d")], method="diversed"),
    ],
)
def test_runs_on_differing_prompts_are_not_compared(method):
    with pytest.raises(ValueError, match="not scored on the same prompts"):
        distance_to_static_front(pd.concat([*FRONT, method]), "head", num_resamples=20)


def test_static_run_with_an_error_is_not_compared():
    rows = [*((prompt, {}) for prompt in "abc"), failed("d")]
    table = pd.concat([*FRONT, run("static-bad", rows), point("head", "diversed", 0.8, [1] * 4)])
    with pytest.raises(ValueError, match="not scored on the same prompts"):
        distance_to_static_front(table, "head", num_resamples=20)


def test_unknown_run_and_missing_front_are_refused():
    table = pd.concat(FRONT)
    with pytest.raises(ValueError, match="run_name='head'"):
        distance_to_static_front(table, "head")
    with pytest.raises(ValueError, match="no static run"):
        distance_to_static_front(run("head", UNEVEN, method="diversed"), "head")


TWICE = "run_name='one': two runs of the table have this name "


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({}, "(each with prompt a)"),
        ({"split": "validation"}, "(split=test and validation)"),
        ({"target_weight": 0.5}, "(target_weight=None and 0.5)"),
    ],
)
def test_two_runs_of_one_name_are_refused(other, what):
    """They used to be taken for one run with twice the rows."""
    prompts = [("a", {}), ("b", {})] if not other else [("c", {}), ("d", {})]
    table = pd.concat(
        [run("one", UNEVEN, split="test"), run("one", prompts, **{"split": "test"} | other)]
    )
    for measure in (summarise, lambda records: paired(records, run("two", UNEVEN))):
        with pytest.raises(ValueError, match=re.escape(TWICE + what)):
            measure(table)


def test_runs_that_are_read_together_have_names_of_their_own(tmp_path):
    """An evaluation that was done twice, and one of another split."""
    columns = dict.fromkeys(RUN_COLUMNS) | {"run_name": "one", "method": "static"}
    rows = run("one", UNEVEN)[list(ROW_COLUMNS)].astype(object).to_dict("records")
    for folder, split in (("a", "test"), ("b/c", "test"), ("d", "validation")):
        write_manifest(tmp_path / folder, {"run": columns | {"split": split}})
        write_records(tmp_path / folder, rows)
    summary = summarise(read_runs(tmp_path), num_resamples=20)
    assert summary["run_name"].tolist() == ["one (a)", "one (b/c)", "one (d)"]
    assert summary["num_prompts"].tolist() == [2, 2, 2]
    alone = only(summarise(read_records(tmp_path / "a"), num_resamples=20))
    for name in ("quality", "acceptance_rate", "acceptance_rate_low"):
        assert summary[name].tolist() == [alone[name]] * 3
