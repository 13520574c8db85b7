"""Quality against acceptance and time: the numbers drawn, read back from the artists."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import FillBetweenPolyCollection, LineCollection
from matplotlib.markers import MarkerStyle

from diversed.figures.checks import MissingRecords
from diversed.figures.front import plot_front, plot_time_front
from diversed.figures.labels import LABELS, METHOD_NAMES, label, method_name
from diversed.figures.style import PANEL_COLUMNS

HULL = [(0.7, 0.95), (0.9, 0.75), (1.0, 0.3)]


def line(figure, name):
    (found,) = (artist for artist in figure.axes[0].lines if artist.get_label() == name)
    return found


def points(figure, name):
    return sorted(map(tuple, np.asarray(line(figure, name).get_xydata()).tolist()))


def bars(figure):
    """Return the ends of every interval bar as (x0, y0, x1, y1)."""
    return {
        tuple(np.round(segment, 9).ravel().tolist())
        for artist in figure.axes[0].collections
        if isinstance(artist, LineCollection)
        for segment in artist.get_segments()
    }


def notes(figure):
    """Return what is written beside each point."""
    return {tuple(map(float, note.xy)): note.get_text() for note in figure.axes[0].texts}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_every_run_is_drawn_where_its_numbers_say(table):
    figure = plot_front(table)
    for method in ("lossless", "static", "lenient", "diversed"):
        rows = table[table["method"] == method]
        expected = sorted(zip(rows["expected_acceptance"], rows["quality"], strict=True))
        assert points(figure, METHOD_NAMES[method]) == expected
    assert set(line(figure, "plain decoding").get_ydata()) == {0.94}


def test_every_interval_is_drawn_on_both_axes(table):
    drawn = bars(plot_front(table))
    assert len(drawn) == 2 * 8  # nine points, two of which coincide
    assert (0.95, 0.88, 0.95, 0.94) in drawn  # the head with λ = 1.5, quality
    assert (0.94, 0.9, 0.97, 0.9) in drawn  # and acceptance


def test_plain_decoding_has_its_interval_as_a_band(table):
    (band,) = plot_front(table).axes[0].patches
    assert band.get_y() == pytest.approx(0.92)
    assert band.get_height() == pytest.approx(0.06)


def test_hull_and_curve_pass_through_the_static_points(table):
    figure = plot_front(table)
    assert points(figure, "concave hull (coin flips)") == HULL
    curve = [(0.7, 0.95), (0.8, 0.78), (0.9, 0.75), (0.97, 0.4), (1.0, 0.3)]
    assert points(figure, "static, joined") == curve


def test_shade_lies_below_the_hull_only(table):
    axes = plot_front(table).axes[0]
    (shade,) = (c for c in axes.collections if isinstance(c, FillBetweenPolyCollection))
    corners = set(map(tuple, shade.get_paths()[0].vertices.tolist()))
    floor = axes.get_ylim()[0]
    assert corners == {*HULL, *((x, floor) for x, _ in HULL)}


def test_lossless_stands_in_for_a_missing_static_run_with_full_weight(table):
    without = table[table["target_weight"] != 1]
    assert points(plot_front(without), "concave hull (coin flips)") == HULL
    neither = without[without["method"] != "lossless"]
    hull = points(plot_front(neither), "concave hull (coin flips)")
    assert hull == [(0.8, 0.78), *HULL[1:]]


def test_table_without_static_runs_has_no_hull(table):
    figure = plot_front(table[~table["method"].isin(["static", "lossless"])])
    assert "concave hull (coin flips)" not in legend(figure)
    assert points(figure, "DIVERSED") == [(0.88, 0.93), (0.95, 0.9)]


def test_points_carry_their_weights(table):
    written = notes(plot_front(table))
    assert written[0.9, 0.75] == "w=0.5"
    assert written[0.7, 0.95] == "w=1"
    assert written[0.95, 0.9] == "λ=1.5"
    assert len(written) == 7  # five static points, two heads
    single = notes(plot_front(table.iloc[:-1]))
    assert single[0.88, 0.93] == "DIVERSED λ=0.5"


def test_annotations_keep_clear_of_points_and_of_each_other(table):
    figure = plot_front(table)
    axes = figure.axes[0]
    figure.draw_without_rendering()
    boxes = [note.get_window_extent() for note in axes.texts]
    xy = axes.transData.transform(table[["expected_acceptance", "quality"]].dropna())
    for i, box in enumerate(boxes):
        assert box.count_overlaps(boxes[:i]) == 0
        assert not any(box.contains(*point) for point in xy)
        assert axes.bbox.contains(*box.min)
        assert axes.bbox.contains(*box.max)


def test_methods_differ_in_marker_and_colour():
    """Readable in grey: no two methods share a marker, whatever their colours look like."""
    methods = [method for method in METHOD_NAMES if method != "autoregressive"]
    table = pd.DataFrame({"method": methods, "run_name": methods, "acceptance_weight": np.nan})
    table = table.assign(
        target_weight=np.nan, dial=np.nan, setting="", **dict.fromkeys(PANEL_COLUMNS, 1)
    )
    for column in ("quality", "expected_acceptance"):
        for bound in ("", "_low", "_high"):
            table[f"{column}{bound}"] = np.linspace(0.5, 0.9, len(methods))
    figure = plot_front(table)
    drawn = [line(figure, METHOD_NAMES[method]) for method in methods]
    assert len({MarkerStyle(artist.get_marker()).get_marker() for artist in drawn}) == len(methods)
    assert len({artist.get_color() for artist in drawn}) == len(methods)


def test_labels_come_from_the_columns_unless_the_metric_is_known(table):
    axes = plot_front(table).axes[0]
    assert axes.get_xlabel() == LABELS["expected_acceptance"]
    assert axes.get_ylabel() == LABELS["quality"]
    assert axes.get_title() == ""
    assert plot_front(table, quality_label="accuracy").axes[0].get_ylabel() == "accuracy"


def test_each_method_has_one_legend_entry(table):
    twice = pd.concat([table, table.assign(quality=table["quality"] - 0.01)])
    entries = legend(plot_front(twice))
    methods = ["plain decoding", "lossless", "static", "lenient", "DIVERSED"]
    assert entries == [*methods, "static, joined", "concave hull (coin flips)"]


def test_undefined_intervals_leave_out_their_bars_only(table):
    table.loc[table["method"] == "diversed", "quality_low"] = np.nan
    figure = plot_front(table)
    assert points(figure, "DIVERSED") == [(0.88, 0.93), (0.95, 0.9)]
    assert (0.94, 0.9, 0.97, 0.9) in bars(figure)
    assert (0.95, 0.88, 0.95, 0.94) not in bars(figure)


@pytest.mark.parametrize("column", ["quality", "expected_acceptance"])
def test_run_without_its_numbers_is_refused_by_name(table, column):
    table.iloc[8, table.columns.get_loc(column)] = np.nan
    with pytest.raises(ValueError, match=rf"{column} is NaN in the runs run8$"):
        plot_front(table)


def test_missing_columns_and_rows_are_named(table):
    with pytest.raises(ValueError, match=r"lacks the columns target_weight, quality_low$"):
        plot_front(table.drop(columns=["quality_low", "target_weight"]))
    with pytest.raises(MissingRecords, match=r"needs any evaluation: python eval\.py"):
        plot_front(table.iloc[:0])


@pytest.mark.parametrize("method", ["sd_en", np.nan])
def test_unknown_method_is_refused(table, method):
    table.iloc[7, table.columns.get_loc("method")] = method
    with pytest.raises(ValueError, match=r"unknown method .*known: autoregressive, cascade"):
        plot_front(table)


def test_unknown_names_list_the_known_ones():
    assert label("draft_length") == "N"
    assert method_name("lossless") == "lossless"
    with pytest.raises(ValueError, match=r"unknown column 'lambda'; known: .*acceptance_weight"):
        label("lambda")


def test_plotting_changes_neither_the_table_nor_global_settings(table):
    before, settings = table.copy(), dict(mpl.rcParams)
    plot_front(table)
    pd.testing.assert_frame_equal(table, before)
    assert dict(mpl.rcParams) == settings


def band_of(table):
    shared = {name: table[name].iloc[-1] for name in PANEL_COLUMNS}
    columns = {"expected_acceptance": [0.7, 1.0], "quality_low": [0.9, 0.2]}
    return pd.DataFrame(columns | {"quality_high": [0.98, 0.4]}).assign(**shared)


def test_the_band_of_the_hull_is_drawn_where_it_is_known(table):
    axes = plot_front(table, band=band_of(table)).axes[0]
    bands = [c for c in axes.collections if isinstance(c, FillBetweenPolyCollection)]
    (band,) = (c for c in bands if c.get_label() == "95 % band of the hull")
    corners = set(map(tuple, band.get_paths()[0].vertices.tolist()))
    assert corners == {(0.7, 0.9), (1.0, 0.2), (1.0, 0.4), (0.7, 0.98)}


def test_each_setting_has_a_panel_with_its_own_band(table):
    colder = table.assign(temperature=0.5, quality=table["quality"] - 0.1)
    figure = plot_front(pd.concat([table, colder]), band=band_of(colder))
    assert [axes.get_title() for axes in figure.axes] == ["T = 1", "T = 0.5"]
    curves = [
        next(line for line in axes.lines if line.get_label() == "static, joined").get_ydata()
        for axes in figure.axes
    ]
    assert np.allclose(curves[0] - 0.1, curves[1])
    labels = [[c.get_label() for c in axes.collections] for axes in figure.axes]
    assert ["95 % band of the hull" in each for each in labels] == [False, True]
    assert len(legend(figure)) == len(set(legend(figure)))


def test_plain_decoding_stands_in_the_panel_of_every_draft_length(table):
    longer = table[table["method"] != "autoregressive"].assign(draft_length=5.0)
    figure = plot_front(pd.concat([table, longer]))
    assert [axes.get_title() for axes in figure.axes] == ["N = 3", "N = 5"]
    for axes in figure.axes:
        (plain,) = (each for each in axes.lines if each.get_label() == "plain decoding")
        assert set(plain.get_ydata()) == {0.94}


def test_a_head_from_other_data_says_so(table):
    own = table.assign(train_data="arithmetic")
    assert notes(plot_front(own)) == notes(plot_front(table))
    brought = own.assign(train_data=own["train_data"].mask(own["acceptance_weight"] == 1.5, "mbpp"))
    assert notes(plot_front(brought))[0.95, 0.9] == "λ=1.5 from mbpp"


def test_dials_and_other_settings_are_told_beside_their_points(table):
    table.iloc[9, table.columns.get_loc("dial")] = -2.0
    assert notes(plot_front(table))[0.95, 0.9] == "λ=1.5, dial=-2"


def test_time_takes_the_place_of_acceptance(table):
    figure = plot_time_front(table)
    axes = figure.axes[0]
    assert axes.get_xlabel() == LABELS["relative_time"]
    assert points(figure, "DIVERSED") == [(0.5, 0.9), (0.58, 0.93)]
    assert points(figure, "plain decoding") == [(1.0, 0.94)]
    assert (0.47, 0.9, 0.56, 0.9) in bars(figure)
    assert notes(figure)[0.4, 0.3] == "w=0"


def test_static_runs_are_joined_in_the_order_of_their_weights(table):
    joined = line(plot_time_front(table), "static, joined").get_xydata()
    assert joined.tolist() == [[0.4, 0.3], [0.45, 0.4], [0.55, 0.75], [0.7, 0.78], [0.81, 0.95]]
    without = line(plot_time_front(table[table["target_weight"] != 1]), "static, joined")
    assert without.get_xydata()[-1].tolist() == [0.8, 0.95]  # lossless


def test_runs_without_a_time_are_counted_and_without_any_it_says_what_to_run(table):
    is_lenient = table["method"] == "lenient"
    some = table.assign(relative_time=table["relative_time"].where(~is_lenient))
    texts = [text.get_text() for text in plot_time_front(some).axes[0].texts]
    assert "1 run without a time" in texts
    with pytest.raises(MissingRecords, match=r"needs plain decoding .* verifier=autoregressive"):
        plot_time_front(table.assign(relative_time=np.nan))
    with pytest.raises(ValueError, match=r"lacks the columns relative_time$"):
        plot_time_front(table.drop(columns="relative_time"))
