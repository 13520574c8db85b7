"""The job behind eval.py, and the second half of train.py."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from diversed.app.runs import run_columns, write_run_manifest
from diversed.app.setup import Setup, set_up
from diversed.config import input_errors
from diversed.evaluation.runner import corpus_metrics, evaluate_task
from diversed.evaluation.summary import summarise
from diversed.records.store import read_records, write_records, write_trace

logger = logging.getLogger(__name__)


def evaluate(cfg: DictConfig, folder: Path) -> dict[str, float]:
    """Decode and score a split with a verifier; write records, trace and manifest.

    Args:
        cfg: Composed from `conf/eval.yaml`.
        folder: Where the run is written.

    Returns:
        The run's summary numbers.

    Raises:
        InputError: The config asks for something that cannot be.
    """
    with input_errors():
        setup = set_up(cfg)
    run = run_columns(cfg, setup.decoder, setup.task)
    return evaluate_run(cfg, folder, setup, run)


def evaluate_run(
    cfg: DictConfig,
    folder: Path,
    setup: Setup,
    run: dict[str, Any],
    results: dict[str, Any] | None = None,
) -> dict[str, float]:
    """Decode, score, and write the run's records."""
    settings = cfg.evaluation
    logger.info("evaluating %s on %d prompts", run["run_name"], len(setup.examples))
    with input_errors(), _progress(run["run_name"]) as bar:
        task_id = bar.add_task(
            run["run_name"], total=len(setup.examples) * settings.samples_per_prompt
        )
        evaluation = evaluate_task(
            setup.decoder,
            setup.task,
            setup.examples,
            samples_per_prompt=settings.samples_per_prompt,
            batch_size=settings.batch_size,
            progress=lambda number: bar.advance(task_id, number),
        )
    write_run_manifest(cfg, folder, setup.pair, setup.task, run, status="running")
    if settings.writes_trace:
        write_trace(folder, evaluation.trace)
    write_records(folder, evaluation.rows, settings.records_format)
    metrics = corpus_metrics(setup.task, setup.examples, evaluation.rows)
    numbers = _summary_numbers(read_records(folder)) | metrics
    write_run_manifest(
        cfg,
        folder,
        setup.pair,
        setup.task,
        run,
        status="finished",
        results={**(results or {}), **numbers},
    )
    shown = ("quality", "expected_acceptance", "acceptance_rate", "block_efficiency", *metrics)
    text = ", ".join(f"{name} {numbers[name]:.3f}" for name in shown if name in numbers)
    logger.info("%s: %s", run["run_name"], text)
    if numbers["num_errors"]:
        logger.warning("%d rows failed; see the column `error`", numbers["num_errors"])
    if numbers["num_cut_prompts"]:
        logger.warning("%d prompts were cut to fit the context", numbers["num_cut_prompts"])
    logger.info("records in %s", folder)
    return numbers


def _summary_numbers(records: pd.DataFrame) -> dict[str, float]:
    row = {str(name): value for name, value in summarise(records).iloc[0].items()}
    return {
        name: float(value)  # run columns are in the manifest already
        for name, value in row.items()
        if name not in records.columns or name in ("quality", "expected_acceptance")
        if not pd.isna(value)
    }


@contextmanager
def _progress(description: str) -> Iterator[Progress]:
    """Show a bar on a terminal, nothing elsewhere.

    Yields:
        The progress to add tasks to.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        yield bar
