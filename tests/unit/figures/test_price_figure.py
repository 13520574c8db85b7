"""Prices by class of context: which runs are taken, and what is drawn of them."""

import numpy as np
import pandas as pd
import pytest

from diversed.figures.checks import MissingRecords
from diversed.figures.prices import plot_prices
from diversed.notebooks.prices import price_table


@pytest.fixture
def runs():
    """Traces and records of a static run at w = 0.5, one at w = 1 and a head."""
    generator = np.random.default_rng(0)
    traces, records = [], []
    settings = {"half": ("static", 0.5), "one": ("static", 1.0), "head": ("diversed", np.nan)}
    for name, (method, weight) in settings.items():
        for prompt in range(30):
            run = {"run_name": name, "method": method, "data": "mbpp", "target_weight": weight}
            run |= {"bonus": "verifier"}
            own = {"prompt_id": prompt, "sample": 0}
            tv = generator.uniform(size=4)
            for position in range(4):
                p, q = generator.uniform(size=2)
                token = {"position": position, "token": ["def", " f", "(", "\n"][position]}
                token |= {"status": "accepted", "target_prob": p, "draft_prob": q}
                token |= {"tv_distance": tv[position], "target_weight_at": 0.5}
                traces.append(run | own | token)
            scores = {"quality": generator.uniform(), "expected_acceptance": 1 - tv.mean() / 2}
            records.append(run | own | scores)
    return pd.DataFrame(traces), pd.DataFrame(records)


def test_static_runs_inside_the_unit_interval_are_measured(runs):
    table = price_table(*runs)
    assert set(table["run_name"]) == {"half"}
    assert list(dict.fromkeys(table["sorted_by"])) == ["all", "TV", "token before"]
    for _, rows in table.groupby("sorted_by"):
        assert rows["tv_frac"].sum() == pytest.approx(1)
    before = set(table.loc[table["sorted_by"] == "token before", "context"])
    wanted = {"after the prompt", "after code keyword", "after word", "after punctuation"}
    assert before == wanted


def test_completions_without_a_score_are_left_out(runs):
    traces, records = runs
    failed = records.assign(quality=records["quality"].where(records["prompt_id"] > 4))
    kept = traces["prompt_id"] > 4
    wanted = price_table(traces[kept], records[records["prompt_id"] > 4])
    pd.testing.assert_frame_equal(price_table(traces, failed), wanted)
    assert price_table(traces, records.assign(quality=np.nan)).empty


def test_every_class_of_weight_is_drawn_with_its_interval(runs):
    table = price_table(*runs)
    shown = table[table["tv_frac"] >= 0.03]
    (axes,) = plot_prices(table).axes
    (points,) = [line for line in axes.lines if line.get_marker() == "o"]
    assert sorted(points.get_xdata()) == pytest.approx(sorted(shown["price"]))
    texts = {text.get_text().split("\n")[0] for text in axes.get_yticklabels()}
    assert texts == set(shown["context"])
    whole = table.loc[table["sorted_by"] == "all", "price"].item()
    assert any(np.allclose(line.get_xdata(), whole) for line in axes.lines)


def test_every_run_has_a_panel(runs):
    table = price_table(*runs)
    many = pd.concat([table.assign(run_name=f"run{number}") for number in range(5)])
    titles = [axes.get_title() for axes in plot_prices(many).axes if axes.get_title()]
    assert titles == [f"run{number}" for number in range(5)]


def test_without_such_a_run_the_figure_says_what_it_needs(runs):
    traces, records = runs
    with pytest.raises(MissingRecords, match="static weight inside"):
        plot_prices(price_table(traces[traces["run_name"] != "half"], records))
