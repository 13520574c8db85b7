"""Tables of one question each: distance from the front, transfer, drafts, temperature, N, paper."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from diversed.figures.checks import MissingRecords, require_columns, require_rows
from diversed.figures.labels import FINETUNED, SETTING_COLUMNS, label, method_name, setting_text
from diversed.figures.style import PANEL_COLUMNS
from diversed.figures.tables import (
    MISSING,
    by_panel,
    cells,
    identity,
    number_text,
)
from diversed.records.schema import HEADS

_RUN = ("method", "run_name", "seed", *SETTING_COLUMNS, *PANEL_COLUMNS)
_DISTANCES = {
    "quality_above_hull": "quality above the hull, at equal A",
    "acceptance_above_hull": "A above the hull, at equal quality",
    "quality_above_curve": "quality above the static curve, at equal A",
    "acceptance_above_curve": "A above the static curve, at equal quality",
}
_PAPER = (
    *("source", "table", "model", "data", "temperature", "method", "draft", "train_data"),
    *("acceptance_percent", "quality_percent"),
)


def distance_table(distances: pd.DataFrame) -> pd.DataFrame:
    """Return how far heads lie above the static front, a row for each kind of them.

    Args:
        distances: Columns of `evaluation.summary.distances_over_heads`, and `PANEL_COLUMNS`.

    Raises:
        MissingRecords: There is no row.
        ValueError: Columns are missing.
    """
    one_sided = ("acceptance_above_hull_bound", "acceptance_above_curve_bound")
    shown_as_is = (
        *("method", "train_data", "acceptance_weight", "dial", "num_heads"),
        *PANEL_COLUMNS,
    )
    columns = (*shown_as_is, *_DISTANCES, *one_sided)
    parts = [f"{name}_{end}" for name in _DISTANCES for end in ("low", "high", "undefined_frac")]
    require_columns(distances, (*columns, *parts))
    require_rows(
        distances,
        "a head and static runs on the same prompts: python train.py, and python eval.py -m "
        "verifier=static verifier.weight=0,0.2,0.5,0.8,1",
    )
    rows = distances.to_dict("records")
    told = [column for column in PANEL_COLUMNS if distances[column].nunique() > 1]
    shown = {label(column): cells(distances, column) for column in told}
    shown[label("method")] = [method_name(row["method"]) for row in rows]
    if distances["train_data"].nunique(dropna=False) > 1:
        shown[label("train_data")] = cells(distances, "train_data")
    shown |= {
        label("acceptance_weight"): [_plain(row["acceptance_weight"]) for row in rows],
        label("dial"): [_plain(row["dial"]) for row in rows],
        label("num_heads"): [_plain(row["num_heads"]) for row in rows],
    }
    for name, title in _DISTANCES.items():
        shown[title] = [
            distance_text(
                row[name],
                row[f"{name}_low"],
                row[f"{name}_high"],
                bound=row.get(f"{name}_bound", float("nan")),
                undefined_frac=row[f"{name}_undefined_frac"],
            )
            for row in rows
        ]
    return pd.DataFrame(shown, dtype=str)


def distance_text(
    estimate: float, low: float, high: float, *, bound: float, undefined_frac: float
) -> str:
    """Return a distance as text, such as "+0.387 [+0.350, +0.420]".

    Args:
        estimate: The distance; NaN where the method is beyond the front.
        low: Lower end of the two-sided interval; NaN where there is none.
        high: Upper end.
        bound: What the distance is at least, with the same confidence, one-sided; NaN if unknown.
        undefined_frac: Share of the resamples in which the method is beyond the front.

    >>> distance_text(0.21, float("nan"), float("nan"), bound=0.194, undefined_frac=0.214)
    '+0.210, at least +0.194 (beyond the front in 21% of resamples)'
    >>> nan = float("nan")
    >>> distance_text(nan, nan, nan, bound=nan, undefined_frac=1.0)
    'beyond the front in 100% of resamples'
    """
    value = "" if pd.isna(estimate) else f"{estimate:+.3f}"
    if pd.notna(low):
        return f"{value} [{low:+.3f}, {high:+.3f}]"
    known = [value] if value else []
    known += [f"at least {bound:+.3f}"] if pd.notna(bound) else []
    beyond = f"beyond the front in {undefined_frac:.0%} of resamples"
    return f"{', '.join(known)} ({beyond})" if known else beyond


def transfer_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return heads on the data they were trained on and on other data, with lossless beside them.

    Args:
        table: One row per run. Columns: `method`, `run_name`, `seed`, `target_weight`,
            `acceptance_weight`, `dial`, `PANEL_COLUMNS`, `train_data` (of a head; NaN if unknown),
            and `acceptance_rate`, `expected_acceptance` and `quality` with their `_low` and
            `_high`. Shown are heads of known origin, and lossless runs, or else static ones of
            w = 1, on the data that they meet.

    Raises:
        MissingRecords: No head was evaluated on other data than it was trained on.
        ValueError: Columns are missing, or a method is unknown.
    """
    measures = ("expected_acceptance", "acceptance_rate", "quality")
    require_columns(table, (*_RUN, "train_data", *measures))
    heads = table[table["method"].isin(HEADS) & table["train_data"].notna()]
    is_away = heads["train_data"] != heads["data"]
    require_rows(
        heads[is_away],
        "a head that was trained on other data than it is tested on: python eval.py "
        "verifier=diversed verifier.checkpoint=... data=...",
    )
    met = heads[["model", "data"]].drop_duplicates()
    where = ["model", "data"]
    lossless = table[table["method"] == "lossless"]
    exact = table[table["method"].eq("static") & table["target_weight"].eq(1)]
    has_lossless = exact.set_index(where).index.isin(lossless.set_index(where).index)
    lossless = pd.concat([lossless, exact[~has_lossless]]).merge(met, on=where)
    rows = by_panel(pd.concat([lossless, heads], ignore_index=True))
    columns = identity(rows, also=("model", "train_data", "data"))
    columns["tested on"] = columns.pop(label("data"))
    order = [label("model"), label("train_data"), "tested on"]
    columns = {name: columns[name] for name in (*order, *(set_minus(columns, order)))}
    columns |= {label(name): cells(rows, name) for name in measures}
    return pd.DataFrame(columns, dtype=str)


def set_minus(names: Any, others: Sequence[str]) -> list[str]:
    """Return `names` without `others`, in their order."""
    return [name for name in names if name not in others]


def draft_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return runs of one target with different drafts: its own and one that was fine-tuned, say.

    Args:
        table: One row per run. Columns: `method`, `run_name`, `seed`, `target_weight`,
            `acceptance_weight`, `dial`, `PANEL_COLUMNS`, `target` and `draft` (name or folder of
            each), and `acceptance_rate`, `mean_accepted`, `quality` and `relative_time`, with
            `_low` and `_high`. Shown are the runs of targets and data with more than one draft.

    Raises:
        MissingRecords: Every target was run with one draft.
        ValueError: Columns are missing, or a method is unknown.
    """
    measures = ("acceptance_rate", "mean_accepted", "quality", "relative_time")
    require_columns(table, (*_RUN, "target", "draft", *measures))
    drafting = table[table["method"] != "autoregressive"]
    number = drafting.groupby(["target", "data"])["draft"].transform("nunique")
    several = drafting[number > 1]
    require_rows(
        several,
        "runs of one target with its own and with a fine-tuned draft: python finetune_draft.py "
        "data=..., then python eval.py model.draft.path=... data=...",
    )
    rows = by_panel(several)
    columns = identity(rows, also=("model", "data", "draft"))
    columns |= {label(name): cells(rows, name) for name in measures}
    return pd.DataFrame(columns, dtype=str)


def temperature_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return acceptance and quality of each method at each temperature.

    Args:
        table: One row per run. Columns: `method`, `run_name`, `seed`, `target_weight`,
            `acceptance_weight`, `dial`, `PANEL_COLUMNS`, and `acceptance_rate` and `quality` with
            their `_low` and `_high`.

    Raises:
        MissingRecords: All runs have one temperature.
        ValueError: Columns are missing, or a method is unknown.
    """
    require_columns(table, (*_RUN, "acceptance_rate", "quality"))
    if table["temperature"].nunique() < 2:
        message = "needs runs at two temperatures or more: python eval.py -m decoding.temperature="
        raise MissingRecords(message + "0,0.1,1")
    return _by_value(table, "temperature", ("acceptance_rate", "quality"))


def draft_length_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return accepted tokens per block, acceptance and quality of each method at each N.

    Args:
        table: As for `temperature_table`, with `mean_accepted`. Plain decoding has no N and is not
            shown.

    Raises:
        MissingRecords: All runs have one draft length.
        ValueError: Columns are missing, or a method is unknown.
    """
    measures = ("mean_accepted", "acceptance_rate", "quality")
    require_columns(table, (*_RUN, *measures))
    drafting = table[table["method"] != "autoregressive"]
    if drafting["draft_length"].nunique() < 2:
        message = "needs runs with two draft lengths or more: python eval.py -m "
        raise MissingRecords(message + "decoding.draft_length=3,5,7")
    return _by_value(drafting, "draft_length", measures)


def comparison_table(table: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Return our runs with the published numbers laid under them, by pair, data and temperature.

    The paper's percent are shown as fractions, as ours are. Its acceptance is compared with
    accepted / drafted. N is not told with its numbers.

    Args:
        table: One row per run. Columns: `method`, `run_name`, `seed`, `target_weight`,
            `acceptance_weight`, `dial`, `PANEL_COLUMNS`, `draft`, `train_data`, and
            `acceptance_rate` and `quality` with their `_low` and `_high`.
        paper: Columns `source`, `table`, `model`, `data`, `temperature`, `method`, `draft`,
            `train_data`, `acceptance_percent` and `quality_percent`; see
            `analysis/paper_numbers.csv`.

    Raises:
        ValueError: Columns are missing, or a method is unknown.
    """
    measures = ("acceptance_rate", "quality")
    require_columns(table, (*_RUN, "draft", "train_data", *measures))
    require_columns(paper, _PAPER)
    published = paper.assign(
        acceptance_rate=paper["acceptance_percent"] / 100,
        quality=paper["quality_percent"] / 100,
        draft_length=float("nan"),
    )
    rows = [(row, "ours") for row in by_panel(table).to_dict("records")]
    rows += [(row, f"{row['source']}, {row['table']}") for row in published.to_dict("records")]
    places = {
        place: rank for rank, place in enumerate(dict.fromkeys(_place(row) for row, _ in rows))
    }
    rows.sort(key=lambda entry: places[_place(entry[0])])
    names = ("model", "data", "temperature", "draft_length", "method", "draft", "train_data")
    shown: dict[str, list[str]] = {"numbers of": [whose for _, whose in rows]}
    for name in names:
        shown[label(name)] = [
            method_name(row[name]) if name == "method" else number_text(row, name)
            for row, _ in rows
        ]
    shown["setting"] = [
        (setting_text(row) or MISSING) if whose == "ours" else MISSING for row, whose in rows
    ]
    shown |= {label(name): [number_text(row, name) for row, _ in rows] for name in measures}
    return pd.DataFrame(shown, dtype=str)


def _place(row: Any) -> tuple[Any, ...]:
    return str(row["model"]).removesuffix(FINETUNED), row["data"], row["temperature"]


def _by_value(table: pd.DataFrame, column: str, measures: Sequence[str]) -> pd.DataFrame:
    """Return a row for each method and setting, and the measures at each value of a column."""
    values = sorted(table[column].dropna().unique())
    others = [name for name in PANEL_COLUMNS if name != column]
    told = [name for name in others if table[name].nunique() > 1]
    rows: dict[tuple[Any, ...], dict[Any, Any]] = {}
    ordered = by_panel(table, but=column)
    for row in ordered.to_dict("records"):
        what = (
            *(number_text(row, name) for name in told),
            *(method_name(row["method"]), setting_text(row) or MISSING),
            *((number_text(row, "seed"),) if table["seed"].nunique() > 1 else ()),
        )
        number = 0  # of equal runs at one value
        while row[column] in rows.get((*what, number), {}):
            number += 1
        rows.setdefault((*what, number), {})[row[column]] = row
    heads = [*map(label, told), label("method"), "setting"]
    heads += [label("seed")] if table["seed"].nunique() > 1 else []
    display = pd.DataFrame([key[:-1] for key in rows], columns=heads, dtype=str)
    for measure in measures:
        for value in values:
            title = f"{label(measure)} at {label(column)} = {value:g}"
            display[title] = [
                number_text(found[value], measure) if value in found else MISSING
                for found in rows.values()
            ]
    return display


def _plain(value: float) -> str:
    return MISSING if pd.isna(value) else f"{value:g}"
