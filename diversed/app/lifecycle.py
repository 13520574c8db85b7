"""A run from the folder that it claims to the end that its manifest and trackers are told of."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hydra.utils import instantiate
from lightning import Fabric
from omegaconf import DictConfig, OmegaConf

from diversed.app.runs import plain, write_run_manifest
from diversed.app.setup import Setup
from diversed.config import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    InputError,
    Interrupted,
    RunError,
    discard_job_folder,
    input_errors,
)
from diversed.records.folders import (
    ERROR_FILE,
    FINISHED,
    ROW_CHOICE,
    FolderHeldError,
    claimed,
    differing_keys,
    mark_failed,
    mark_stopped,
)
from diversed.records.parts import reopen
from diversed.records.store import MANIFEST_FILE, RecordsError, read_manifest
from diversed.tracking.loggers import RunLoggers
from diversed.training.module import NonFiniteError
from diversed.training.rollout import ScoringError

logger = logging.getLogger(__name__)

_FAULTS = (NonFiniteError, ScoringError, InputError, OSError)
"""What ends a run through no fault of the code: numbers, scorers, the disk."""


@contextmanager
def working_folder(cfg: DictConfig, folder: Path, fabric: Fabric) -> Iterator[Path]:
    """Hold the folder that a job writes to: its own, or that of the run that it resumes.

    Args:
        cfg: With `resume` where the job can go on with a run.
        folder: The job's own.
        fabric: The first process holds the folder, for all.

    Yields:
        The folder. No other process works in it. The job's own is removed where it is another.

    Raises:
        InputError: `resume` names no run, a run of another config or one that is at work, or the
            folder cannot be written.
    """
    with ExitStack() as stack:
        try:
            place = _claim(cfg, folder, stack) if fabric.is_global_zero else folder
        except OSError as error:
            raise InputError(f"{error.filename or folder}: {error.strerror or error}") from error
        if place.resolve() != folder.resolve():
            discard_job_folder(folder)
            logger.info("resuming %s", place)
        yield place


def _claim(cfg: DictConfig, folder: Path, stack: ExitStack) -> Path:
    resume = cfg.get("resume")
    if resume == "auto":
        for candidate in _unfinished_runs(cfg, folder):
            try:
                stack.enter_context(claimed(candidate, waits=False))
            except FolderHeldError:
                continue  # another process was quicker
            if read_manifest(candidate)["status"] != FINISHED:
                return candidate
            stack.close()
        logger.info("resume=auto: no unfinished run of this config in %s", _places(folder)[1])
    elif resume is not None:
        old = _run_to_resume(cfg)
        try:
            stack.enter_context(claimed(old, waits=False))
        except FolderHeldError as error:
            raise InputError(f"resume={resume}: another process is at work in it") from error
        if read_manifest(old)["status"] == FINISHED:
            with input_errors():
                reopen(old)
        return old
    stack.enter_context(claimed(folder))
    return folder


def _unfinished_runs(cfg: DictConfig, folder: Path) -> Iterator[Path]:
    """Yield the folders of unfinished runs of a config, the newest first."""
    wanted = plain(cfg)
    places, _ = _places(folder)
    for candidate in sorted(places, reverse=True):
        if not (candidate / MANIFEST_FILE).is_file():
            continue
        try:
            manifest = read_manifest(candidate)
        except RecordsError as error:
            logger.warning("resume=auto: passed over %s", error)
            continue
        if manifest["status"] != FINISHED and not differing_keys(wanted, manifest["config"]):
            yield candidate


def _places(folder: Path) -> tuple[list[Path], str]:
    """Return where runs of a job may be, and the same in words.

    They are beside its folder; a point of a multirun is in the same place of the multiruns beside.
    """
    if not (HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN):
        return list(folder.parent.glob("*")), str(folder.parent)
    point = Path(HydraConfig.get().sweep.subdir)
    root = folder.parents[len(point.parts)]
    words = f"the folders {point} of the multiruns in {root}"
    return [multirun / point for multirun in root.glob("*")], words


def _run_to_resume(cfg: DictConfig) -> Path:
    """Return the folder that `resume` names."""
    old = Path(str(cfg.resume)).expanduser().resolve()
    if not (old / MANIFEST_FILE).is_file():
        raise InputError(f"resume={cfg.resume}: no run there; give auto or the folder of a run")
    manifest = read_manifest(old)
    old_config = OmegaConf.create(manifest["config"])
    differing = differing_keys(plain(cfg), manifest["config"])
    for key in ROW_CHOICE:
        if key in differing:
            differing.remove(key)
            now, before = (OmegaConf.select(one, key) for one in (cfg, old_config))
            if now is not None and (before is None or now < before):
                raise InputError(
                    f"resume={cfg.resume}: {key}={now} would drop rows of that run, which has "
                    f"{'all' if before is None else before}; give as many or more"
                )
    if differing:
        raise InputError(
            f"resume={cfg.resume}: that run has another config ({', '.join(differing)}); repeat "
            "its command and add resume=..."
        )
    return old


@contextmanager
def running(
    cfg: DictConfig,
    folder: Path,
    setup: Setup,
    run: dict[str, Any],
    *,
    start_step: int = 0,
    state: Callable[[], str] | None = None,
) -> Iterator[RunLoggers]:
    """Tell a run's manifest and trackers that it is at work, and then how it ends.

    Processes other than the first have nothing to tell.

    Args:
        cfg: With the group `logger`.
        folder: The run's folder.
        setup: What the job has built.
        run: The run's columns.
        start_step: Rollouts behind the checkpoint that it goes on from.
        state: Says how far the run has come, where that is of use after a failure.

    Yields:
        The run's loggers.

    Raises:
        InputError: A logger's setting is out of range, or a server cannot be reached.
        RunError: The run cannot go on, through no fault of the code.
    """
    if not setup.fabric.is_global_zero:
        yield RunLoggers()
        return
    with input_errors():
        loggers = _open_loggers(cfg, folder, run["run_name"], start_step)
    try:
        manifest = write_run_manifest(cfg, folder, setup.pair, setup.task, run, "running")
        (folder / ERROR_FILE).unlink(missing_ok=True)
        loggers.describe(manifest)
        yield loggers
    except (Interrupted, KeyboardInterrupt, SystemExit):  # the last is Lightning's after a signal
        mark_stopped(folder)
        loggers.finish(EXIT_INTERRUPTED)
        raise
    except Exception as error:
        text = _in_words(error) if state is None else f"{_in_words(error)}; {state()}"
        mark_failed(folder, text)
        loggers.finish(EXIT_FAILED)
        if isinstance(error, _FAULTS):
            raise RunError(text) from error
        raise
    loggers.finish(0)


def _open_loggers(cfg: DictConfig, folder: Path, name: str, start_step: int) -> RunLoggers:
    if not cfg.get("logger"):
        return RunLoggers()
    loggers: RunLoggers = instantiate(cfg.logger)(folder=folder, name=name, start_step=start_step)
    return loggers


def _in_words(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return text if isinstance(error, _FAULTS) and text else f"{type(error).__name__}: {text}"
