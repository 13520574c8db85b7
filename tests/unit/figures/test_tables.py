"""Run rows as tables for reading: order, format, and nothing lost."""

import numpy as np
import pandas as pd
import pytest

from diversed.figures.labels import label
from diversed.figures.tables import by_panel, main_table, results_table, to_latex, to_markdown

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
        dial=nan,
        setting="",
        bias=0.0614,
        relative_time=0.4321,
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
    assert cell(display, "λ2", "bias") == "0.061"
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
    assert display.shape == (9, 14)
    assert all(isinstance(value, str) for value in display.to_numpy().ravel())
    pd.testing.assert_frame_equal(table, before)


def in_panels(table):
    """Return the runs on two data sets, plain decoding without a draft length."""
    is_plain = table["method"] == "autoregressive"
    one = table.assign(model="tiny", data="arithmetic", temperature=1.0)
    one["draft_length"] = np.where(is_plain, np.nan, 5.0)
    return pd.concat([one.assign(data="gsm8k", run_name=one["run_name"] + "*"), one])


def test_the_main_table_has_pair_data_bias_time_and_cut_answers(table):
    display = main_table(in_panels(table))
    assert display[label("data")].tolist() == ["gsm8k"] * 9 + ["arithmetic"] * 9
    assert display[label("method")].tolist()[:3] == ["plain decoding", "lossless", "static"]
    row = display[display["setting"] == "w = 0.9"].iloc[0]
    assert row[label("expected_acceptance")] == "0.786 [0.776, 0.796]"
    assert row[label("bias")] == "0.061"
    assert row[label("relative_time")] == "0.43"
    assert row[label("num_truncated")] == "3"
    assert row[label("quality")] == "0.912 [0.890, 0.930]"
    assert label("temperature") not in display  # all runs have one


def test_what_differs_between_panels_is_shown_once(table):
    both = in_panels(table)
    assert label("data") in results_table(both)
    assert list(main_table(both).columns).count(label("data")) == 1
    lengths = pd.concat([both, both.assign(draft_length=3.0)])
    assert label("draft_length") in main_table(lengths)


def test_panels_stand_together_plain_decoding_first_and_by_draft_length(table):
    both = in_panels(table)
    is_plain = both["method"] == "autoregressive"
    shorter = both[~is_plain].assign(draft_length=3.0)
    ordered = by_panel(pd.concat([both, shorter]))
    own = ordered[ordered["data"] == "arithmetic"]
    assert own["draft_length"].fillna(0).tolist() == [0] + [3] * 8 + [5] * 8
    ignored = by_panel(pd.concat([both, shorter]), but="draft_length")
    assert ignored["run_name"].tolist()[:4] == ["ar*", "sd*", "sd*", "w0.9*"]


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


def test_latex_has_rules_and_escapes_what_it_would_read_as_commands():
    display = pd.DataFrame({"λ & w": ["50% [a_b]", "–"], "P(T ≥ k)": ["1 − w·TV", "\\x"]})
    assert to_latex(display).splitlines() == [
        r"\begin{tabular}{ll}",
        r"\toprule",
        r"$\lambda$ \& w & P(T $\geq$ k) \\",
        r"\midrule",
        r"50\% [a\_b] & 1 $-$ w$\cdot$TV \\",
        r"-- & \textbackslash{}x \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]
