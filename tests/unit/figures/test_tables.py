"""Run rows as tables for reading: order, format, and nothing lost."""

import numpy as np
import pandas as pd
import pytest

from diversed.figures.labels import label
from diversed.figures.tables import results_table, to_markdown

READING_ORDER = ["ar", "sd", "w0.9", "w0.5", "w0", "cascade", "lenient", "λ0.5", "λ2"]


@pytest.fixture
def table():
    """Nine runs out of order."""
    nan = np.nan
    rows = [
        ("diversed", "λ2", nan, 2.0),
        ("static", "w0.5", 0.5, nan),
        ("cascade", "cascade", nan, nan),
        ("static", "w0.9", 0.9, nan),
        ("lossless", "sd", nan, nan),
        ("diversed", "λ0.5", nan, 0.5),
        ("lenient", "lenient", nan, nan),
        ("static", "w0", 0.0, nan),
        ("autoregressive", "ar", nan, nan),
    ]
    columns = ["method", "run_name", "target_weight", "acceptance_weight"]
    table = pd.DataFrame(rows, columns=columns).assign(
        quality=0.9123,
        quality_low=0.89,
        quality_high=0.93,
        expected_acceptance=[*np.linspace(0.7, 0.9, 8), nan],
        expected_acceptance_low=[*np.linspace(0.69, 0.89, 8), nan],
        expected_acceptance_high=[*np.linspace(0.71, 0.91, 8), nan],
        acceptance_rate=0.61,
        token_acceptance_rate=0.82,
        block_efficiency=3.456,
        tokens_per_second=101.26,
        mean_num_tokens=57.04,
        num_truncated=[0, 0, 0, 3, 0, 0, 0, 0, 0],
        num_errors=[1, 0, 0, 0, 0, 0, 0, 0, nan],
        num_prompts=1000,
    )
    return table


def cell(display, run, column):
    return display.loc[display["run"] == run, label(column)].item()


def test_runs_stand_in_reading_order(table):
    assert results_table(table)["run"].tolist() == READING_ORDER
    reverse = results_table(table.iloc[::-1])["run"].tolist()
    assert reverse == [*READING_ORDER[:5], "lenient", "cascade", *READING_ORDER[7:]]  # ties keep


def test_static_run_without_a_weight_comes_last_of_them_and_disturbs_nobody(table):
    table.loc[3, "target_weight"] = np.nan
    assert results_table(table)["run"].tolist()[2:5] == ["w0.5", "w0", "w0.9"]


def test_cells_read_as_numbers_with_their_intervals(table):
    display = results_table(table)
    assert cell(display, "λ2", "quality") == "0.912 [0.890, 0.930]"
    assert cell(display, "λ2", "expected_acceptance") == "0.700 [0.690, 0.710]"
    assert cell(display, "λ2", "acceptance_rate") == "0.610"
    assert cell(display, "λ2", "token_acceptance_rate") == "0.820"
    assert cell(display, "λ2", "block_efficiency") == "3.46"
    assert cell(display, "λ2", "tokens_per_second") == "101.3"
    assert cell(display, "λ2", "mean_num_tokens") == "57.0"
    assert cell(display, "λ2", "num_errors") == "1"
    assert cell(display, "w0.9", "num_truncated") == "3"
    assert cell(display, "w0.9", "num_prompts") == "1000"


def test_settings_show_their_symbols(table):
    settings = results_table(table).set_index("run")["setting"]
    assert settings[["w0.5", "w0", "λ2", "sd"]].tolist() == ["w = 0.5", "w = 0", "λ = 2", "–"]


def test_missing_values_and_bounds_show_as_such(table):
    table["quality_high"] = np.nan
    display = results_table(table)
    assert cell(display, "ar", "expected_acceptance") == "–"
    assert cell(display, "ar", "num_errors") == "–"
    assert cell(display, "w0", "quality") == "0.912"


def test_intervals_of_further_columns_are_shown_where_given(table):
    table = table.assign(tokens_per_second_low=99.0, tokens_per_second_high=103.0)
    assert cell(results_table(table), "w0", "tokens_per_second") == "101.3 [99.0, 103.0]"


def test_every_cell_is_a_string_and_the_input_is_unchanged(table):
    before = table.copy()
    display = results_table(table)
    assert display.shape == (9, 13)
    assert all(isinstance(value, str) for value in display.to_numpy().ravel())
    pd.testing.assert_frame_equal(table, before)


def test_missing_columns_are_named(table):
    with pytest.raises(ValueError, match=r"lacks the columns run_name, num_errors$"):
        results_table(table.drop(columns=["num_errors", "run_name"]))


def test_unknown_method_is_refused(table):
    table.loc[2, "method"] = "spec_cascade"
    with pytest.raises(ValueError, match="unknown method 'spec_cascade'"):
        results_table(table)


def test_markdown_has_a_head_a_rule_and_one_line_per_row():
    display = pd.DataFrame({"run": ["a", "b|c"], "w": ["1", "–"]}, index=[7, 7])
    assert to_markdown(display) == "| run | w |\n| --- | --- |\n| a | 1 |\n| b\\|c | – |\n"
