"""The main job in one command, from a checkout: train, evaluate, time and draw on the tiny pair.

    python -m diversed.demo [--output outputs/demo] [--figures-only --records FOLDER]

Everything is made by the same jobs that `train.py` and `eval.py` run, with their default settings;
figure and table are functions of the records alone.
"""

import argparse
import logging
import math
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from diversed.app import build_decoder, evaluate, train
from diversed.config import InputError, Interrupted, register_schemas
from diversed.evaluation.summary import FRONT_SETTINGS, distance_to_static_front
from diversed.evaluation.timing import interleaved_speeds, speed_ratio
from diversed.figures.front import plot_front
from diversed.figures.labels import label
from diversed.figures.study_tables import distance_text
from diversed.figures.style import save_figure
from diversed.figures.tables import MISSING, results_table, to_markdown
from diversed.generation import row_key
from diversed.notebooks.data import SPEEDS_FILE, RecordSet
from diversed.records.store import (
    TRACE_FILE,
    RecordsError,
    read_manifest,
    read_records,
    read_trace,
    replace_file,
    write_json,
)
from diversed.theory.bootstrap import Interval
from diversed.theory.front import LowerBound

logger = logging.getLogger(__name__)

CONFIG_FOLDER = Path(__file__).resolve().parents[1] / "conf"
STATIC_WEIGHTS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.85, 0.9, 0.95)  # w = 1 is the lossless run
NUM_TIMED_PROMPTS = 16
NUM_SAMPLES = 3
SAMPLES_FILE = "samples.txt"
MARKS = {"accepted": ("", "", "green"), "recovered": ("[", "]", "red"), "bonus": ("{", "}", "blue")}


def main() -> None:
    """Run the demo, or redraw its figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("outputs/demo"))
    parser.add_argument("--figures-only", action="store_true", help="only draw, from --records")
    parser.add_argument("--records", type=Path, help="folder of finished runs; default: --output")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for noisy in ("httpx", "lightning.pytorch", "lightning.fabric", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    records = arguments.records or arguments.output
    try:
        if not arguments.figures_only:
            run_demo(arguments.output)
        report(records, Console())
    except (InputError, RecordsError, OSError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except Interrupted:
        sys.exit("stopped; `make demo` starts afresh")


def run_demo(output: Path) -> None:
    """Train a head, evaluate it, the static points and plain decoding, and time them.

    Args:
        output: Folder of the demo; an older one is replaced.
    """
    started = time.perf_counter()
    if output.exists():
        shutil.rmtree(output)
    register_schemas()
    head_folder = output / "runs" / "diversed"
    evaluations = {"autoregressive": ["verifier=autoregressive"], "lossless": ["verifier=lossless"]}
    for weight in STATIC_WEIGHTS:
        overrides = ["verifier=static", f"verifier.weight={weight}"]
        evaluations[f"static-{weight:g}"] = overrides
    train(_config("train"), head_folder)
    for name, overrides in evaluations.items():
        evaluate(_config("eval", *overrides), output / "runs" / name)
    timed = evaluations | {"diversed": ["verifier=diversed", f"verifier.checkpoint={head_folder}"]}
    logger.info("timing %d methods at batch 1 on %d prompts", len(timed), NUM_TIMED_PROMPTS)
    decoders, prompts, keys = {}, [], []
    for name, overrides in timed.items():
        run = read_records(output / "runs" / name)
        decoders[run["run_name"].iloc[0]] = build_decoder(_config("eval", *overrides))
        head = run.head(NUM_TIMED_PROMPTS)
        prompts = head["prompt"].tolist()
        keys = [row_key(prompt_id, 0) for prompt_id in head["prompt_id"]]
    speeds = interleaved_speeds(decoders, prompts, keys)
    replace_file(output / SPEEDS_FILE, lambda partial: speeds.to_csv(partial, index=False))
    logger.info("the demo's work took %.0f s", time.perf_counter() - started)


def report(folder: Path, console: Console) -> None:
    """Draw the figure and print table, distances, speeds and samples of a folder of runs.

    Args:
        folder: Holds the folders of finished runs, at any depth.
        console: Where to print.

    Raises:
        RecordsError: There are no records below the folder.
    """
    runs = RecordSet(folder)
    records, table = runs.records, runs.summary.copy()
    speeds = None
    table["tokens_per_second"] = math.nan  # those of the records are of whole batches
    if (folder / SPEEDS_FILE).is_file():
        speeds = pd.read_csv(folder / SPEEDS_FILE)
        sums = speeds.groupby("run_name")[["num_tokens", "seconds"]].sum()
        per_second = sums["num_tokens"] / sums["seconds"]
        table["tokens_per_second"] = table["run_name"].map(per_second)
    figure = plot_front(table, band=runs.bands, quality_label="accuracy")
    figures = save_figure(figure, folder / "front")
    display = results_table(table)
    markdown = to_markdown(display)
    replace_file(folder / "results.md", lambda partial: partial.write_text(markdown))
    _print_table(display, console)
    results: dict[str, Any] = {}
    for run_name in table.loc[table["method"] == "diversed", "run_name"]:
        results[run_name] = _print_distances(records, run_name, console)
        if speeds is not None:
            results[run_name]["speed"] = _print_speeds(table, speeds, run_name, console)
    write_json(folder / "distances.json", results)
    _print_samples(folder, console)
    console.print("\nWhere everything lies:")
    for path in (*figures, folder / "results.md", folder / "distances.json", folder / SAMPLES_FILE):
        if path.is_file():
            console.print(f"  {path}", soft_wrap=True, highlight=False)
    console.print(f"  {folder}/runs/: records, per-token traces and manifests, one folder a run")


def _config(name: str, *overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIG_FOLDER), version_base="1.3"):
        cfg: DictConfig = compose(name, overrides=list(overrides))
        return cfg


def _interval_text(interval: Interval, bound: LowerBound | None = None) -> str:
    """Return a distance as text, such as "+0.387 [+0.350, +0.420]".

    Where it has no two-sided interval, its one-sided bound takes the place, if there is one.
    """
    return distance_text(
        interval.estimate,
        interval.low,
        interval.high,
        bound=math.nan if bound is None else bound.low,
        undefined_frac=interval.undefined_frac,
    )


def _print_table(display: pd.DataFrame, console: Console) -> None:
    """Print the main columns of the table of results."""
    columns = {
        "accuracy": "quality",
        "acceptance A": "expected_acceptance",
        "tokens a block": "block_efficiency",
        "tokens/s": "tokens_per_second",
    }
    short = Table(title="accuracy and acceptance on the test problems; speed at batch 1")
    short.add_column("verifier", no_wrap=True)
    for title in columns:
        short.add_column(title, justify="right", no_wrap=title == "accuracy")
    for row in display.to_dict("records"):
        setting = row["setting"]
        method = row[label("method")]
        numbers = [row[label(column)] for column in columns.values()]
        numbers[1:] = [number.split(" [")[0] for number in numbers[1:]]
        short.add_row(method if setting == MISSING else f"{method}, {setting}", *numbers)
    console.print(short)


def _print_distances(records: pd.DataFrame, run_name: str, console: Console) -> dict[str, Any]:
    """Print how far a head lies above the static runs of its own settings, and return it."""
    peers = _peers(records, run_name)
    if not peers["method"].isin(["static", "lossless"]).any():
        console.print(
            f"{run_name}: no static or lossless run with its settings, so no front to measure from",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )
        return {}
    distance = distance_to_static_front(peers, run_name)
    console.print(f"\n{run_name} above the static points (95 % interval, paired over prompts):")
    hull_bound, curve_bound = (
        distance.acceptance_above_hull_bound,
        distance.acceptance_above_curve_bound,
    )
    for comparison, interval, bound in (
        ("hull, accuracy at equal acceptance", distance.quality_above_hull, None),
        ("hull, acceptance at equal accuracy", distance.acceptance_above_hull, hull_bound),
        ("curve, accuracy at equal acceptance", distance.quality_above_curve, None),
        ("curve, acceptance at equal accuracy", distance.acceptance_above_curve, curve_bound),
    ):
        text = f"  {comparison}: {_interval_text(interval, bound)}"
        console.print(text, soft_wrap=True, highlight=False, markup=False)
    return asdict(distance)


def _peers(records: pd.DataFrame, run_name: str) -> pd.DataFrame:
    """Return the records of a run and of all that may share a front with it."""
    own = records[records["run_name"] == run_name].iloc[0]
    is_peer = pd.Series(True, index=records.index)
    for name in FRONT_SETTINGS:
        is_peer &= (records[name] == own[name]) | (records[name].isna() & pd.isna(own[name]))
    return records[is_peer]


def _print_speeds(
    table: pd.DataFrame, speeds: pd.DataFrame, run_name: str, console: Console
) -> dict[str, Any]:
    console.print("speed at batch 1, relative to the same adapter (95 % interval over prompts):")
    ratios = {}
    for method in ("autoregressive", "lossless"):
        for baseline in table.loc[table["method"] == method, "run_name"]:
            interval = speed_ratio(speeds, run_name, baseline)
            ratios[baseline] = asdict(interval)
            text = f"{interval.estimate:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
            console.print(f"  {text} times {baseline}", highlight=False, markup=False)
    return ratios


def _print_samples(folder: Path, console: Console) -> None:
    """Show some completions with each token's fate, on screen and as a text file."""
    traced = sorted(path.parent for path in folder.rglob(TRACE_FILE))
    candidates = [run for run in traced if read_manifest(run)["run"]["method"] == "diversed"]
    if not candidates:
        return
    trace = read_trace(candidates[0])
    records = read_records(candidates[0]).head(NUM_SAMPLES)
    legend = "accepted as is, [recovered], {bonus}"
    console.print(f"\nSample answers ({legend}):", highlight=False, markup=False)
    lines = [legend, ""]
    for row in records.to_dict("records"):
        text = _marked(trace, row)
        verdict = "right" if row["quality"] == 1 else f"wrong, {row['reference']} is right"
        console.print(Text(row["prompt"], style="bold"), end="")
        console.print(text, f"({verdict})\n", highlight=False, markup=False)
        lines += [row["prompt"].rstrip(), text.plain, f"({verdict})", ""]
    samples = "\n".join(lines)
    replace_file(folder / SAMPLES_FILE, lambda partial: partial.write_text(samples))


def _marked(trace: pd.DataFrame, row: Mapping[Any, Any]) -> Text:
    tokens = trace[
        (trace["prompt_id"] == row["prompt_id"])
        & (trace["sample"] == row["sample"])
        & trace["status"].isin(list(MARKS))
    ].sort_values("position")
    text = Text()
    for token, status in zip(tokens["token"], tokens["status"], strict=True):
        before, after, style = MARKS[status]
        space = " " if token.startswith(" ") else ""
        shown = token.strip(" ").replace("\n", f"↵{after}\n" if after else "\n")
        text.append(f"{space}{before}{shown}{'' if '↵' in shown else after}", style=style)
    return text


if __name__ == "__main__":
    main()
