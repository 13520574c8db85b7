"""Panels, orders, names and files that all figures share."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from diversed.figures.labels import METHOD_NAMES, run_label, setting_text
from diversed.figures.style import (
    STYLES,
    by_setting,
    panel_figure,
    panels,
    row_labels,
    save_figure,
)
from diversed.models.head import HEAD_READS

NOTHING = {"target_weight": None, "acceptance_weight": None, "dial": None, "setting": ""}


def test_every_method_has_a_look_of_its_own_in_grey_too():
    assert STYLES.keys() == METHOD_NAMES.keys()
    assert {f"{reads}_head" for reads in HEAD_READS if reads != "hidden"} <= STYLES.keys()
    drawn = [style for name, style in STYLES.items() if name != "autoregressive"]
    assert len({style.marker for style in drawn}) == len(drawn)
    assert len({style.hatch for style in drawn}) == len(drawn)


def test_panels_hold_every_row_and_are_told_apart_by_what_differs(table):
    other = table.assign(model="qwen", data="gsm8k", index=1)
    found = panels(pd.concat([table, other]))
    assert [panel.title for panel in found] == ["tiny, arithmetic", "qwen, gsm8k"]
    assert [len(panel.rows) for panel in found] == [10, 10]
    assert [panel.title for panel in panels(table)] == [""]


def test_plain_decoding_alone_has_a_panel(table):
    (panel,) = panels(table[table["method"] == "autoregressive"])
    assert len(panel.rows) == 1


def test_a_grid_of_panels_has_no_empty_ones_and_ticks_under_each_column():
    figure, axes = panel_figure(4, (2.0, 2.0), shares_x=True)
    assert len(figure.axes) == len(axes) == 4
    figure.draw_without_rendering()
    shown = [any(text.get_visible() for text in each.get_xticklabels()) for each in axes]
    assert shown == [False, True, True, True]


def test_rows_that_read_the_same_tell_their_seed_or_their_name():
    row = NOTHING | {"method": "diversed", "acceptance_weight": 1.5, "dial": 0.0}
    rows = [row | {"seed": seed, "run_name": f"run{i}"} for i, seed in enumerate((0, 1, 1))]
    rows.append(NOTHING | {"method": "lossless", "seed": 0, "run_name": "exact"})
    assert row_labels(pd.DataFrame(rows)) == [
        "DIVERSED, λ = 1.5, seed 0",
        "DIVERSED, λ = 1.5 (run1)",
        "DIVERSED, λ = 1.5 (run2)",
        "lossless",
    ]


def test_settings_read_as_symbols():
    assert setting_text(NOTHING | {"target_weight": 0.5, "setting": "weight=0.5"}) == "w = 0.5"
    assert setting_text(NOTHING | {"acceptance_weight": 2.0, "dial": 0.0}) == "λ = 2"
    assert setting_text(NOTHING | {"dial": 1.0}) == "dial = 1"
    cascade = NOTHING | {"method": "cascade", "setting": "rule=opt alpha=0.3"}
    assert run_label(cascade) == "SpecCascade, rule = opt, α = 0.3"
    assert setting_text(NOTHING) == ""


def test_seeds_and_older_records_of_a_setting_are_pooled_in_reading_order():
    columns = {"method": "static", "acceptance_weight": np.nan, "dial": np.nan}
    rows = [
        columns | {"target_weight": 0.2, "setting": "weight=0.2", "value": 0},
        columns | {"target_weight": 0.8, "setting": "weight=0.8", "value": 1},
        columns | {"target_weight": 0.2, "setting": "", "value": 2},  # of an older schema
    ]
    found = by_setting(pd.DataFrame(rows))
    assert [shared["target_weight"] for shared, _ in found] == [0.8, 0.2]
    assert [rows["value"].tolist() for _, rows in found] == [[1], [0, 2]]


def test_saved_files_are_the_formats_asked_for_and_reproducible(tmp_path):
    def drawn():
        figure = Figure(figsize=(2, 2))
        figure.subplots().plot([0, 1], [1, 0], label="w=0.5")
        return figure

    formats = ("png", "svg", "pdf")
    first = save_figure(drawn(), tmp_path / "new" / "front_w0.5", formats)
    assert [path.name for path in first] == [f"front_w0.5.{suffix}" for suffix in formats]
    starts = [path.read_bytes()[:5] for path in first]
    assert starts == [b"\x89PNG\r", b"<?xml", b"%PDF-"]
    second = save_figure(drawn(), tmp_path / "again" / "front_w0.5", formats)
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"formats=\['gif'\]: must be among png, svg, pdf"):
        save_figure(Figure(), tmp_path / "front", ("gif",))
    assert list(tmp_path.iterdir()) == []
