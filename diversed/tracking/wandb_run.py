"""Weights & Biases: a run's config, curves, heads and sample generations.

Every rollout is one step of the run. What is offline is kept below the run's folder, files of heads
too, and can be uploaded at any later time.
"""

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wandb
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from diversed.records.store import replace_folder

logger = logging.getLogger(__name__)

MODES = ("online", "offline", "disabled")
FLUSH_SECONDS = 1.0
"""How much of an offline run a kill may cost; W&B's own default is 15."""

OBJECTIVE = "val/objective"
"""What chooses the best head."""

Table = Sequence[Mapping[str, Any]]
"""Rows with the same columns."""


def choose_mode(mode: str | None) -> str:
    """Return how to talk to W&B: as asked for, or online with an API key and offline without one.

    Args:
        mode: "online", "offline" or "disabled"; None asks the environment (WANDB_MODE), then looks
            for a key.

    Raises:
        ValueError: The mode is unknown, or there is no API key for online.
    """
    asked, name = (mode, "logger.mode") if mode else (os.environ.get("WANDB_MODE"), "WANDB_MODE")
    if asked and asked not in MODES:
        raise ValueError(f"{name}={asked}: must be one of {', '.join(MODES)}")
    if asked in ("offline", "disabled"):
        return asked
    has_key = wandb.login(prompt=False)
    if asked == "online" and not has_key:
        raise ValueError(
            f"{name}=online: there is no API key; run `wandb login`, or set logger.mode=offline"
        )
    return "online" if has_key else "offline"


def find_run_id(folder: Path) -> str | None:
    """Return the id of the last W&B run that was begun in a run's folder."""
    files = folder.glob("wandb/*run-*-*/run-*.wandb")
    last = max(files, key=lambda file: file.parent.name.removeprefix("offline-"), default=None)
    return None if last is None else last.stem.removeprefix("run-")


class WandbTracker(WandbLogger):
    """Lightning's W&B logger, with heads as artifacts, tables, and no step twice."""

    def __init__(
        self, folder: Path, project: str, name: str, *, mode: str, num_samples: int, **options: Any
    ) -> None:
        """Prepare a run; it begins with the first thing that is logged.

        Args:
            folder: The run's folder. A W&B run that it holds already is gone on with.
            project: W&B project.
            name: Name of the run.
            mode: "online", "offline" or "disabled".
            num_samples: Completions of the evaluation to show.
            options: Of `wandb.init`, such as `entity`, `group` and `tags`.
        """
        is_of_sweep = "WANDB_SWEEP_ID" in os.environ  # the agent has given it an id
        super().__init__(
            save_dir=folder,
            project=project,
            name=name,
            id=None if is_of_sweep else find_run_id(folder),
            mode=mode,
            settings=wandb.Settings(x_transaction_log_flush_interval=FLUSH_SECONDS),
            **options,
        )
        self._wandb_init.pop("anonymous", None)  # Lightning passes it on, W&B warns that it is gone
        self._folder = folder / "wandb"
        self._mode = mode
        self.num_samples = num_samples

    @rank_zero_only
    def begin(self, rows: Mapping[int, Mapping[str, float]]) -> None:
        """Begin the run, or go on with it.

        W&B cannot add to an offline run. There, what goes on is a whole run of its own with the
        same id: it takes the place of the broken one when it is uploaded.

        Args:
            rows: Step -> numbers, of the rollouts behind the run's checkpoint.
        """
        run = self.experiment
        best = -math.inf
        for step, numbers in rows.items():
            self.log_metrics(numbers, step)
            objective = numbers.get(OBJECTIVE, -math.inf)
            if self._head_folder(step).is_dir():
                self._log_head_folder(step, is_best=objective > best)
            best = max(best, objective)
        if self._mode == "offline":
            folder = Path(run.settings.sync_dir)
            logger.warning("wandb is offline; to upload the run later: wandb sync %s", folder)

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log all numbers of a step at once; nothing, if the run has that step already."""
        run = self.experiment
        if step is None or step >= run.starting_step:
            run.log({**metrics, "trainer/global_step": step}, step=step, commit=True)

    @rank_zero_only
    def log_head(self, write: Callable[[Path], None], step: int, *, is_best: bool) -> None:
        """Keep a head as a version of the run's artifact; see `training.callbacks.HeadLogger`."""
        if self._mode != "disabled":
            replace_folder(self._head_folder(step), write)
            self._log_head_folder(step, is_best=is_best)

    def _head_folder(self, step: int) -> Path:
        return self._folder / "heads" / f"rollout-{step}"

    def _log_head_folder(self, step: int, *, is_best: bool) -> None:
        artifact = wandb.Artifact(
            f"head-{self.experiment.id}", type="model", metadata={"rollout": step}
        )
        for path in sorted(self._head_folder(step).iterdir()):
            artifact.add_file(str(path), policy="immutable", skip_cache=True)  # stays where it is
        aliases = ["best", "latest"] if is_best else ["latest"]
        self.experiment.log_artifact(artifact, aliases=aliases)

    @rank_zero_only
    def log_closing(
        self, numbers: Mapping[str, float], tables: Mapping[str, Table], step: int
    ) -> None:
        """Log the numbers and tables that close a run, as its last step and in its summary."""
        data: dict[str, Any] = {**numbers, "trainer/global_step": step}
        with _staged_in(self._folder):
            for name, rows in tables.items():
                columns = list(rows[0]) if rows else []
                cells = [[row[column] for column in columns] for row in rows]
                data[name] = wandb.Table(columns=columns, data=cells, allow_mixed_types=True)
            self.experiment.log(data)

    @rank_zero_only
    def finish(self, exit_code: int) -> None:
        """End the run, and wait until it is uploaded or on disk."""
        if self._experiment is not None:
            self._experiment.finish(exit_code=exit_code)


@contextmanager
def _staged_in(folder: Path) -> Iterator[None]:
    """Let W&B keep the files of artifacts in a folder, not in the user's home.

    Yields:
        Nothing.
    """
    name = "WANDB_DATA_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = str(folder)
    try:
        yield
    finally:
        del os.environ[name]
