"""Tables of one question each, cell by cell."""

import numpy as np
import pandas as pd
import pytest

from diversed.figures.checks import MissingRecords
from diversed.figures.labels import label
from diversed.figures.study_tables import (
    comparison_table,
    distance_table,
    distance_text,
    draft_length_table,
    draft_table,
    temperature_table,
    transfer_table,
)
from diversed.figures.style import PANEL_COLUMNS, STYLES

NAN = float("nan")


def distances(**changes):
    names = [
        f"{what}_above_{line}" for line in ("hull", "curve") for what in ("quality", "acceptance")
    ]
    row = {"model": "tiny", "data": "arithmetic", "temperature": 1.0, "draft_length": 5}
    row |= {"method": "features_head", "train_data": "arithmetic", "acceptance_weight": 1.5}
    row |= {"dial": 0.0, "num_heads": 3}
    for place, name in enumerate(names):
        row |= {name: 0.1 * (place + 1), f"{name}_low": 0.05, f"{name}_high": 0.5}
        row |= {f"{name}_undefined_frac": 0.0}
    bounds = {"acceptance_above_hull_bound": 0.06, "acceptance_above_curve_bound": 0.07}
    return row | bounds | changes


def test_distances_show_both_ways_from_hull_and_curve():
    (row,) = distance_table(pd.DataFrame([distances()])).to_dict("records")
    assert row["method"] == "head on five scalars"
    assert (row["λ"], row["dial"], row["heads"]) == ("1.5", "0", "3")
    cells = [text for name, text in row.items() if "above" in name]
    assert cells == [f"+0.{place}00 [+0.050, +0.500]" for place in (1, 2, 3, 4)]
    assert label("temperature") not in row
    assert label("train_data") not in row


def test_distances_tell_where_heads_were_trained_if_that_differs():
    table = pd.DataFrame([distances(), distances(train_data="mbpp"), distances(train_data=None)])
    assert distance_table(table)[label("train_data")].tolist() == ["arithmetic", "mbpp", "–"]


def test_without_a_two_sided_interval_the_bound_stands_with_its_share():
    unbounded = distances(
        acceptance_above_hull_low=NAN,
        acceptance_above_hull_high=NAN,
        acceptance_above_hull_undefined_frac=0.214,
        quality_above_hull=NAN,
        quality_above_hull_low=NAN,
        quality_above_hull_undefined_frac=1.0,
    )
    display = distance_table(pd.DataFrame([unbounded, distances(temperature=0.5)]))
    above = display["A above the hull, at equal quality"][0]
    assert above == "+0.200, at least +0.060 (beyond the front in 21% of resamples)"
    assert display["quality above the hull, at equal A"][0] == (
        "beyond the front in 100% of resamples"
    )
    assert display[label("temperature")].tolist() == ["1", "0.5"]


def test_a_bound_may_be_all_that_is_known():
    text = distance_text(NAN, NAN, NAN, bound=0.1, undefined_frac=0.6)
    assert text == "at least +0.100 (beyond the front in 60% of resamples)"


def test_distances_need_a_head_and_a_front():
    table = pd.DataFrame([distances()])
    with pytest.raises(MissingRecords, match="needs a head and static runs"):
        distance_table(table.iloc[:0])
    with pytest.raises(ValueError, match=r"lacks the columns num_heads, quality_above_hull_low$"):
        distance_table(table.drop(columns=["num_heads", "quality_above_hull_low"]))


def away(table):
    """Return the runs, and a head on other data with the lossless run beside it."""
    is_shown = table["method"].isin(["lossless", "autoregressive"])
    is_shown |= table["acceptance_weight"] == 1.5
    moved = table[is_shown].assign(data="gsm8k", quality=0.5, quality_low=0.4, quality_high=0.6)
    return pd.concat([table, moved])


def test_transfer_shows_heads_at_home_and_away_beside_lossless(table):
    display = transfer_table(away(table))
    assert list(display.columns[:3]) == [label("model"), label("train_data"), "tested on"]
    shown = display[["method", "setting", label("train_data"), "tested on"]].values.tolist()
    assert shown == [
        ["lossless", "–", "–", "arithmetic"],
        ["DIVERSED", "λ = 0.5", "arithmetic", "arithmetic"],
        ["DIVERSED", "λ = 1.5", "arithmetic", "arithmetic"],
        ["lossless", "–", "–", "gsm8k"],
        ["DIVERSED", "λ = 1.5", "arithmetic", "gsm8k"],
    ]
    assert display[label("quality")].tolist()[-1] == "0.500 [0.400, 0.600]"
    assert display[label("acceptance_rate")].tolist()[-1] == "0.750 [0.740, 0.770]"


def test_a_static_run_of_weight_1_is_lossless_in_the_table_of_transfer(table):
    moved = away(table)
    moved.loc[moved["method"] == "lossless", ["method", "target_weight"]] = ["static", 1.0]
    shown = transfer_table(moved)[["method", "setting", "tested on"]].values.tolist()
    assert ["static", "w = 1", "arithmetic"] in shown
    assert ["static", "w = 1", "gsm8k"] in shown
    assert not [row for row in shown if row[0] == "static" and row[1] != "w = 1"]


def test_heads_on_scalars_are_heads_and_controls_are_not(table):
    moved = away(table)
    is_head = moved["method"] == "diversed"
    kinds = {name: moved.assign(method=moved["method"].mask(is_head, name)) for name in STYLES}
    shown = transfer_table(kinds["features_head"])
    assert shown["method"].tolist().count("head on five scalars") == 3
    with pytest.raises(MissingRecords, match="needs a head"):
        transfer_table(kinds["prompt_head"])


def test_transfer_needs_a_head_away_from_home(table):
    with pytest.raises(MissingRecords, match="needs a head that was trained on other data"):
        transfer_table(table)
    with pytest.raises(MissingRecords, match="needs a head"):
        transfer_table(away(table).assign(train_data=None))  # nobody knows
    with pytest.raises(ValueError, match=r"lacks the columns train_data$"):
        transfer_table(table.drop(columns="train_data"))


def test_drafts_of_one_pair_are_compared(table):
    lossless = table[table["method"] == "lossless"]
    tuned = lossless.assign(draft="runs/tuned", acceptance_rate=0.7, acceptance_rate_low=NAN)
    tuned = tuned.assign(model="tiny_finetuned")  # as the evaluation of such a draft is named
    elsewhere = table.assign(model="qwen", target="other")
    display = draft_table(pd.concat([table, tuned, elsewhere]))
    assert set(display[label("model")]) == {"tiny", "tiny_finetuned"}
    assert len(display) == 9 + 1  # plain decoding has no draft
    row = display[display[label("draft")] == "runs/tuned"].iloc[0]
    assert row[label("acceptance_rate")] == "0.700"
    assert row[label("mean_accepted")] == "1.10 [1.00, 1.30]"
    with pytest.raises(MissingRecords, match=r"needs runs of one target .* model\.draft\.path"):
        draft_table(table)
    with pytest.raises(ValueError, match=r"lacks the columns draft$"):
        draft_table(table.drop(columns="draft"))


def test_temperatures_stand_side_by_side(table):
    colder = table[table["method"] != "lenient"].assign(temperature=0.1, acceptance_rate=0.9)
    display = temperature_table(pd.concat([table, colder]))
    assert len(display) == 10
    head = display[display["setting"] == "λ = 1.5"].iloc[0]
    rate = f"{label('acceptance_rate')} at T = "
    assert head[f"{rate}0.1"] == "0.900 [0.740, 0.770]"
    assert head[f"{rate}1"] == "0.750 [0.740, 0.770]"
    lenient = display[display["method"] == "lenient"].iloc[0]
    assert lenient[f"{rate}0.1"] == "–"
    with pytest.raises(MissingRecords, match="needs runs at two temperatures or more"):
        temperature_table(table)


def test_draft_lengths_stand_side_by_side_without_plain_decoding(table):
    longer = table.assign(mean_accepted=4.0, draft_length=table["draft_length"] + 4)
    display = draft_length_table(pd.concat([table, longer]))
    assert display["method"].tolist()[0] == "lossless"
    assert len(display) == 9
    counts = [f"{label('mean_accepted')} at N = {length}" for length in (3, 7)]
    assert display[counts].iloc[0].tolist() == ["1.10 [1.00, 1.30]", "4.00 [1.00, 1.30]"]
    with pytest.raises(MissingRecords, match="needs runs with two draft lengths or more"):
        draft_length_table(table)


def test_equal_runs_and_seeds_keep_rows_of_their_own(table):
    colder = table.assign(temperature=0.1)
    twice = pd.concat([table, table, colder])
    assert len(temperature_table(twice)) == 20
    seeds = temperature_table(pd.concat([table, colder, table.assign(seed=1)]))
    assert len(seeds) == 20
    assert seeds[label("seed")].value_counts().to_dict() == {"0": 10, "1": 10}


@pytest.fixture
def paper():
    columns = ["source", "table", "model", "data", "temperature", "method", "draft"]
    columns += ["train_data", "acceptance_percent", "quality_percent"]
    rows = [
        ("arXiv:1", "table", "tiny", "arithmetic", 1.0, "diversed", "own", "arithmetic", 72.61, 67),
        ("arXiv:1", "table", "llama", "gsm8k", 1.0, "static", "own", np.nan, 69.49, np.nan),
    ]
    return pd.DataFrame(rows, columns=columns)


def test_published_numbers_lie_under_ours_for_the_same_pair_and_data(table, paper):
    display = comparison_table(pd.concat([table, table.assign(temperature=0.1)]), paper)
    assert display["numbers of"].tolist() == [
        *["ours"] * 10,
        "arXiv:1, table",
        *["ours"] * 10,
        "arXiv:1, table",
    ]
    published = display.iloc[10]
    assert published[label("acceptance_rate")] == "0.726"
    assert published[label("quality")] == "0.670"
    assert published["method"] == "DIVERSED"
    assert display.iloc[-1][label("quality")] == "–"
    ours = display.iloc[9]
    assert ours[label("quality")] == "0.900 [0.880, 0.940]"
    assert ours["setting"] == "λ = 1.5"


def test_runs_with_a_fine_tuned_draft_stand_with_their_pair(table, paper):
    tuned = table.iloc[1:2].assign(model="llama_finetuned", data="gsm8k")
    display = comparison_table(pd.concat([table, tuned]), paper)
    assert display[label("model")].tolist()[-2:] == ["llama_finetuned", "llama"]
    assert display["numbers of"].tolist()[-3:] == ["arXiv:1, table", "ours", "arXiv:1, table"]


def test_the_papers_table_needs_its_columns(table, paper):
    with pytest.raises(ValueError, match=r"lacks the columns quality_percent$"):
        comparison_table(table, paper.drop(columns="quality_percent"))


@pytest.mark.parametrize(
    "make", [transfer_table, draft_table, temperature_table, draft_length_table]
)
def test_panel_columns_are_needed(table, make):
    with pytest.raises(ValueError, match=r"lacks the columns model, data"):
        make(table.drop(columns=list(PANEL_COLUMNS)))
