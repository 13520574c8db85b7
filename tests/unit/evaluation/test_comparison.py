"""Differences of rates between records of the same prompts."""

import pandas as pd
import pytest

from diversed.evaluation.comparison import compare_acceptance, rate_difference
from diversed.evaluation.summary import summarise
from diversed.records.schema import ROW_COLUMNS, RUN_COLUMNS


def records(accepted, drafted, errors=None):
    number = len(accepted)
    return pd.DataFrame(
        {
            "prompt_id": [f"p{index // 2}" for index in range(number)],
            "sample": [index % 2 for index in range(number)],
            "num_accepted": accepted,
            "num_drafted": drafted,
            "error": errors or [None] * number,
        }
    )


def test_it_is_the_difference_of_ratios_of_sums():
    first = records([1, 2, 3, 4], [10, 10, 10, 20])
    second = records([5, 5, 5, 5], [10, 10, 5, 15])
    interval = rate_difference(first, second)
    assert interval.estimate == pytest.approx(20 / 40 - 10 / 50)
    assert interval.low <= interval.estimate <= interval.high


def test_prompts_are_paired():
    first = records([0, 1, 9, 10, 3, 2], [10] * 6)  # they differ much among each other
    second = first.assign(num_accepted=first["num_accepted"] + 1)
    interval = rate_difference(first, second)
    assert (interval.low, interval.high) == pytest.approx((0.1, 0.1))
    shuffled = second.sample(frac=1, random_state=0)
    assert rate_difference(first, shuffled) == interval


def test_errors_and_prompts_of_one_side_do_not_count():
    first = records([1, 1, 2, 2], [10] * 4)
    second = records([3, 3, 9, 9], [10] * 4, [None, None, "no", "no"])
    assert rate_difference(first, second).estimate == pytest.approx(0.2)
    with pytest.raises(ValueError, match="no prompt in common"):
        rate_difference(first, records([1, 1], [2, 2], ["no", "no"]))


def test_where_nothing_was_drafted_there_is_no_difference():
    interval = rate_difference(records([0, 0], [0, 0]), records([0, 0], [1, 1]))
    assert interval.undefined_frac == 1


def test_other_rates_are_named():
    table = records([1, 1], [2, 2]).assign(num_judged=[4, 4])
    other = table.assign(num_judged=[2, 2])
    difference = rate_difference(table, other, denominator="num_judged")
    assert difference.estimate == pytest.approx(0.25)


def whole(accepted, errors=None):
    """Return records with every column; 10 tokens drafted in each row."""
    table = records(accepted, [10] * len(accepted), errors)
    missing = {name: 1.0 for name in ROW_COLUMNS if name not in table}
    table = table.assign(**missing, **dict.fromkeys(RUN_COLUMNS, 0))
    return table.assign(run_name="run", is_truncated=False, is_prompt_cut=False)


def test_acceptance_before_and_after_is_that_of_the_summaries():
    before, after = whole([1, 2, 3, 4]), whole([5, 5, 9, 9])
    numbers = compare_acceptance(before, after)
    for when, table in (("before", before), ("after", after)):
        row = summarise(table).iloc[0]
        for name in ("acceptance_rate", "block_efficiency"):
            for bound in ("", "_low", "_high"):
                assert numbers[f"{name}_{when}{bound}"] == row[f"{name}{bound}"]
    assert numbers["acceptance_rate_before"] == 0.25
    assert numbers["acceptance_rate_change"] == pytest.approx(0.45)


def test_without_a_good_row_there_is_no_number():
    numbers = compare_acceptance(whole([1, 2]), whole([1, 2], ["no", "no"]))
    assert numbers["acceptance_rate_before"] == 0.15
    assert pd.isna(numbers["acceptance_rate_after"])
    assert pd.isna(numbers["acceptance_rate_change"])
