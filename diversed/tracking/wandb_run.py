"""Weights & Biases through Lightning's logger."""

import logging
import os

import wandb
from lightning.pytorch.loggers import WandbLogger

logger = logging.getLogger(__name__)


def wandb_logger(save_dir: str, project: str, name: str | None = None) -> WandbLogger:
    """Return a logger that is online with an API key and offline without one.

    WANDB_MODE decides where it is set.

    Args:
        save_dir: The run's folder; offline runs are kept below it.
        project: W&B project.
        name: Name of the run.
    """
    mode = os.environ.get("WANDB_MODE")
    is_offline = mode == "offline" or (mode is None and not wandb.login(prompt=False))
    if is_offline:
        logger.warning(
            "wandb is offline; upload later with: wandb sync %s/wandb/offline-*", save_dir
        )
    # wandb has read its settings by now: the mode must reach wandb.init itself.
    mode_option = {"mode": "offline"} if is_offline else {}
    return WandbLogger(
        save_dir=save_dir, project=project, name=name, offline=is_offline, **mode_option
    )
