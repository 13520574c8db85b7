"""The job behind eval.py, and the second half of train.py."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn import Module

from diversed.app.lifecycle import running, working_folder
from diversed.app.processes import Seat, joined
from diversed.app.runs import plain, resume_advice, run_columns, write_run_manifest
from diversed.app.setup import Setup, set_up, trains_head
from diversed.config import Interrupted, input_errors
from diversed.core.verifiers import DiversedVerifier
from diversed.evaluation.runner import (
    Evaluation,
    corpus_metrics,
    evaluate_task,
    joined_parts,
)
from diversed.evaluation.summary import summarise
from diversed.generation import PromptError
from diversed.models.loading import weights_fingerprint
from diversed.prompting import fit_prompt
from diversed.records.parts import read_parts, remove_parts, row_origin, write_part
from diversed.records.store import read_records, write_records, write_trace
from diversed.tracking.loggers import RunLoggers
from diversed.training.distributed import from_first, gather_on_first

logger = logging.getLogger(__name__)


def evaluate(cfg: DictConfig, folder: Path, seat: Seat | None = None) -> dict[str, float]:
    """Decode and score a split with a verifier; write records, trace and manifest.

    Args:
        cfg: Composed from `conf/eval.yaml`.
        folder: Where the run is written, unless `resume` names an older folder.
        seat: Of a process that `app.processes` has started.

    Returns:
        The run's summary numbers; nothing in processes other than the first.

    Raises:
        InputError: The config asks for something that cannot be.
        Interrupted: The user stopped the run.
    """
    with input_errors():
        setup = set_up(cfg, seat)
        _check_prompts(setup)
    run = run_columns(cfg, setup.decoder, setup.task)
    with (
        working_folder(cfg, folder, setup.fabric) as run_folder,
        joined(evaluate, cfg, run_folder, setup.fabric) as run_folder,
    ):
        check_finished_rows(cfg, run_folder, setup)
        with running(cfg, run_folder, setup, run) as loggers:
            return evaluate_run(cfg, run_folder, setup, run, loggers)


def _check_prompts(setup: Setup) -> None:
    """Raise PromptError if not one prompt can be decoded, before anything is written."""
    first: PromptError | None = None
    for example in setup.examples:
        try:
            fit_prompt(setup.decoder, setup.task, example)
        except PromptError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def check_finished_rows(cfg: DictConfig, folder: Path, setup: Setup) -> None:
    """Raise InputError if a resumed run has rows that this evaluation may not go on with.

    To be asked before the manifest says that the run is at work: one that is refused stays as it
    was.
    """
    if cfg.resume is not None and setup.fabric.is_global_zero:
        with input_errors():
            read_parts(folder, _origin(cfg, setup))


def evaluate_run(
    cfg: DictConfig,
    folder: Path,
    setup: Setup,
    run: dict[str, Any],
    loggers: RunLoggers,
    results: dict[str, Any] | None = None,
) -> dict[str, float]:
    """Decode, score, and write the run's records; every process its part, the first one writes.

    Each process keeps the batches that it has finished in the run's folder until the records are
    there, and a run that is resumed decodes the others alone.

    Args:
        cfg: With the group `evaluation`.
        folder: The run's folder, with a manifest.
        setup: What is evaluated.
        run: The run's columns.
        loggers: Get the numbers and some samples.
        results: Of the training before, for the manifest and the loggers.

    Raises:
        Interrupted: The user stopped the run.
    """
    settings = cfg.evaluation
    fabric = setup.fabric
    origin = _origin(cfg, setup)
    logger.info("evaluating %s on %d prompts", run["run_name"], len(setup.examples))
    with input_errors(), _progress(run["run_name"]) as bar:
        num_rows = len(setup.examples) * settings.samples_per_prompt
        task_id = bar.add_task(run["run_name"], total=-(-num_rows // fabric.world_size))
        finished = _finished_rows(cfg, folder, setup, origin) if fabric.is_global_zero else None
        try:
            evaluation = evaluate_task(
                setup.decoder,
                setup.task,
                setup.examples,
                samples_per_prompt=settings.samples_per_prompt,
                batch_size=settings.batch_size,
                part=fabric.global_rank,
                num_parts=fabric.world_size,
                progress=lambda number: bar.advance(task_id, number),
                finished=from_first(finished),
                keep=_keeper(folder, setup, origin),
            )
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped in the evaluation, finished rows are saved; {resume_advice(folder)}"
            ) from None
    parts = gather_on_first(evaluation)
    if not fabric.is_global_zero:
        return {}
    evaluation = joined_parts(parts, [example["id"] for example in setup.examples])
    if settings.writes_trace:
        write_trace(folder, evaluation.trace)
    write_records(folder, evaluation.rows, settings.records_format)
    metrics = corpus_metrics(setup.task, setup.examples, evaluation.rows)
    numbers = _summary_numbers(read_records(folder)) | metrics
    results = {**(results or {}), **numbers}
    step = cfg.objective.num_rollouts if trains_head(cfg) else 0
    loggers.log_evaluation(results, _samples(evaluation, loggers.num_samples), step)
    write_run_manifest(
        cfg, folder, setup.pair, setup.task, run, "finished", results, origin["head"]
    )
    remove_parts(folder)
    shown = ("quality", "expected_acceptance", "acceptance_rate", "block_efficiency", *metrics)
    text = ", ".join(f"{name} {numbers[name]:.3f}" for name in shown if name in numbers)
    logger.info("%s: %s", run["run_name"], text)
    if numbers["num_errors"]:
        logger.warning("%d rows failed; see the column `error`", numbers["num_errors"])
    if numbers["num_cut_prompts"]:
        logger.warning("%d prompts were cut to fit the context", numbers["num_cut_prompts"])
    logger.info("records in %s", folder)
    return numbers


def _origin(cfg: DictConfig, setup: Setup) -> dict[str, Any]:
    """Return what the rows of an evaluation follow from."""
    verifier = setup.decoder.verifier
    head = verifier.head if isinstance(verifier, DiversedVerifier) else None
    fingerprint = weights_fingerprint(head) if isinstance(head, Module) else None
    return row_origin(plain(cfg), setup.pair.description, setup.task.provenance(), fingerprint)


def _finished_rows(
    cfg: DictConfig, folder: Path, setup: Setup, origin: Mapping[str, Any]
) -> Evaluation | None:
    """Return the rows that a resumed run has already; a new one begins without any."""
    if cfg.resume is None:
        remove_parts(folder)
    parts = [Evaluation(rows, trace) for rows, trace in read_parts(folder, origin)]
    if not parts:
        return None
    finished = joined_parts(parts, [example["id"] for example in setup.examples])
    logger.info("%d rows were finished before", len(finished.rows))
    return finished


def _keeper(
    folder: Path, setup: Setup, origin: Mapping[str, Any]
) -> Callable[[Evaluation], None] | None:
    """Return what keeps a finished batch; None where this process does not see the folder."""
    if not folder.is_dir():
        return None
    place = {example["id"]: number for number, example in enumerate(setup.examples)}

    def keep(batch: Evaluation) -> None:
        first = batch.rows[0]
        name = f"{place[first['prompt_id']]:07}-{first['sample']:04}"
        write_part(folder, name, batch.rows, batch.trace, origin)

    return keep


def _samples(evaluation: Evaluation, number: int) -> dict[str, list[dict[str, Any]]]:
    """Return the first completions that have a score, and every token of them, as tables."""
    rows = [row for row in evaluation.rows if row["error"] is None][:number]
    if not rows:
        return {}
    keys = pd.MultiIndex.from_tuples([(row["prompt_id"], row["sample"]) for row in rows])
    trace = evaluation.trace
    is_shown = pd.MultiIndex.from_frame(trace[["prompt_id", "sample"]]).isin(keys)
    names = list(map(str, trace.columns))
    tokens = [dict(zip(names, row, strict=True)) for row in trace[is_shown].to_numpy().tolist()]
    return {"samples": rows, "trace": tokens}


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
