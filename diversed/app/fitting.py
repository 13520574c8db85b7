"""How jobs that train make their trainer, and how Ctrl-C ends them."""

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hydra.utils import instantiate
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from omegaconf import DictConfig

from diversed.app.processes import accelerator, environment_plugins
from diversed.app.setup import Setup

logger = logging.getLogger(__name__)


def make_trainer(cfg: DictConfig, setup: Setup, keeper: Callback, **options: Any) -> Trainer:
    """Return the trainer of a config, on the devices and processes of the job.

    Args:
        cfg: With the group `trainer`.
        setup: What the job has built.
        keeper: What it keeps of the training.
        options: Of the trainer, where the config has none.
    """
    callbacks: list[Any] = [keeper]
    if cfg.trainer.enable_progress_bar:
        callbacks.append(RichProgressBar())
    trainer: Trainer = instantiate(
        cfg.trainer,
        accelerator=accelerator(cfg),
        callbacks=callbacks,
        logger=False,
        plugins=environment_plugins(setup.fabric),
        **{name: value for name, value in options.items() if name not in cfg.trainer},
    )
    return trainer


@contextmanager
def calm_interrupt(request_stop: Callable[[], None], unit: str) -> Iterator[None]:
    """Let the first Ctrl-C end training after the current unit of it; the second ends it at once.

    Args:
        request_stop: Called at the first.
        unit: Its name, such as "rollout".
    """

    def stop(*_: Any) -> None:
        logger.warning("stopping after this %s; press Ctrl-C again to stop at once", unit)
        request_stop()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
