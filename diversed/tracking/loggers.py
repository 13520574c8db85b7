"""What a run logs to: Lightning's loggers, in which a run that was killed goes on.

Steps are numbers of finished rollouts. A resumed run repeats those after its checkpoint, which the
killed one may have logged already; here every step stands once.
"""

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from diversed.tracking.curves import CurveLogger
from diversed.tracking.wandb_run import Table, WandbTracker, choose_mode

logger = logging.getLogger(__name__)

CLOSING_PREFIX = "test/"
"""Of the numbers that close a run; the split that they are of is one of its run columns."""


class RunLoggers:
    """The loggers of one run; with none, nothing is logged."""

    def __init__(self, *loggers: Logger) -> None:
        """Take over loggers; `finish` ends them."""
        self.loggers = list(loggers)
        self._trackers = [one for one in loggers if isinstance(one, WandbTracker)]

    @property
    def num_samples(self) -> int:
        """How many completions `log_evaluation` wants to show."""
        return max((tracker.num_samples for tracker in self._trackers), default=0)

    def describe(self, manifest: Mapping[str, Any]) -> None:
        """Log what the run is: its config, and beside it what else the manifest says of it."""
        names = ("run", "git", "versions", "pair", "device")
        for run_logger in self.loggers:
            run_logger.log_hyperparams(
                {**manifest["config"], **{name: manifest[name] for name in names}}
            )

    def log_evaluation(
        self, results: Mapping[str, Any], tables: Mapping[str, Table], step: int
    ) -> None:
        """Log what closes a run: the numbers among its results, and tables where they have a place.

        Args:
            results: As in the manifest.
            tables: By name.
            step: The run's last one.
        """
        named = {
            f"{CLOSING_PREFIX}{name}": value
            for name, value in results.items()
            if isinstance(value, int | float)
        }
        shown = {f"{CLOSING_PREFIX}{name}": table for name, table in tables.items()}
        for run_logger in self.loggers:
            if isinstance(run_logger, WandbTracker):
                run_logger.log_closing(named, shown, step)
            else:
                run_logger.log_metrics(named, step=step)
                run_logger.save()

    def finish(self, exit_code: int) -> None:
        """End the run, once: 0 is well, anything else marks it failed."""
        for run_logger in self.loggers:
            try:
                run_logger.finalize("success" if exit_code == 0 else "failed")
            except OSError as error:  # the disk is full, say
                if exit_code == 0:
                    raise
                logger.warning("%s", error)
        for tracker in self._trackers:
            tracker.finish(exit_code)
        self.loggers, self._trackers = [], []


def csv_loggers(folder: Path, name: str, start_step: int) -> RunLoggers:
    """Return a logger of curves as CSV.

    Args:
        folder: The run's folder.
        name: The run's name.
        start_step: Rollouts behind the checkpoint that the run goes on from; 0 for a new run.
    """
    return RunLoggers(CurveLogger(folder, start_step))


def tensorboard_loggers(folder: Path, name: str, start_step: int) -> RunLoggers:
    """Return loggers of curves for TensorBoard, and as CSV; arguments as in `csv_loggers`.

    Raises:
        ValueError: TensorBoard is not installed.
    """
    if find_spec("tensorboard") is None:
        raise ValueError("logger=tensorboard: pip install 'diversed[tensorboard]' first")
    # TensorBoard passes over what an earlier process has logged from `purge_step` on.
    purge = {"purge_step": start_step + 1} if start_step else {}
    events = TensorBoardLogger(folder, name="tensorboard", version="", **purge)
    return RunLoggers(CurveLogger(folder, start_step), events)


def wandb_loggers(
    folder: Path,
    name: str,
    start_step: int,
    *,
    project: str,
    mode: str | None = None,
    num_samples: int = 8,
    **options: Any,
) -> RunLoggers:
    """Return loggers to Weights & Biases, and of curves as CSV; the W&B run begins.

    Args:
        folder: As in `csv_loggers`.
        name: As in `csv_loggers`.
        start_step: As in `csv_loggers`.
        project: W&B project.
        mode: "online", "offline" or "disabled"; None is online with an API key and offline without
            one, unless WANDB_MODE is set.
        num_samples: Completions of the evaluation to show in tables.
        options: Of `wandb.init`, such as `entity`, `group` and `tags`.

    Raises:
        ValueError: The mode is unknown, or W&B cannot be reached.
    """
    if num_samples < 0:
        raise ValueError(f"logger.num_samples={num_samples}: must be at least 0")
    curves = CurveLogger(folder, start_step)
    tracker = WandbTracker(
        folder, project, name, mode=choose_mode(mode), num_samples=num_samples, **options
    )
    try:
        tracker.begin(curves.experiment.rows() if rank_zero_only.rank == 0 else {})
    except wandb.Error as error:
        text = " ".join(str(error).split())
        raise ValueError(f"logger=wandb: {text}; logger.mode=offline needs no server") from error
    return RunLoggers(curves, tracker)
