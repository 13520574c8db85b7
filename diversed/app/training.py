"""The job behind train.py."""

import logging
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from lightning import Trainer
from lightning.pytorch.callbacks import RichProgressBar
from omegaconf import DictConfig

from diversed.app.evaluation import evaluate_run
from diversed.app.runs import job_command, plain, resume_folder, run_columns, write_run_manifest
from diversed.app.setup import Setup, first_examples, set_up
from diversed.config import InputError, Interrupted, discard_job_folder, input_errors
from diversed.core.verifiers import DiversedVerifier
from diversed.models.head import EnsembleHead
from diversed.objective.acceptance import ObjectiveSettings
from diversed.prompting import fit_prompt
from diversed.training.callbacks import HeadKeeper, read_checkpoint_step
from diversed.training.data import PromptDataModule
from diversed.training.module import DiversedModule

logger = logging.getLogger(__name__)

CHECKPOINT_FILE = "checkpoint.ckpt"
HEAD_FOLDER = "head"
NUM_VALIDATION_PROMPTS = 192


def train(cfg: DictConfig, folder: Path) -> dict[str, float]:
    """Train a head, keep the best on validation prompts, and evaluate it.

    Args:
        cfg: Composed from `conf/train.yaml`.
        folder: Where the run is written, unless `resume` names an older folder.

    Returns:
        Summary numbers of the evaluation.

    Raises:
        InputError: The config asks for something that cannot be.
        Interrupted: The user stopped the run.
    """
    with input_errors():
        objective = _objective(cfg)
        if not str(cfg.verifier.get("_target_", "")).endswith("checkpoint_verifier"):
            raise InputError("verifier: train.py trains the head of verifier=diversed, no other")
        setup = set_up(cfg)
        run_folder = resume_folder(cfg, folder)
        module, data, keeper = _training(cfg, setup, objective, run_folder)
        run = run_columns(cfg, setup.decoder, setup.task, head_weight=objective.acceptance_weight)
        checkpoint = run_folder / CHECKPOINT_FILE
        num_rollouts = cfg.objective.num_rollouts
        trainer = None
        if not checkpoint.is_file() or read_checkpoint_step(checkpoint) < num_rollouts:
            trainer = _trainer(cfg, run_folder, run, keeper)
    if run_folder.resolve() != folder.resolve():
        discard_job_folder(folder)
        logger.info("resuming %s", run_folder)
    write_run_manifest(cfg, run_folder, setup.pair, setup.task, run, status="running")
    logger.info("training a head in %s", run_folder)
    if trainer is not None:
        with _calm_interrupt(keeper):
            trainer.fit(
                module,
                data,
                ckpt_path=str(checkpoint) if checkpoint.is_file() else None,
                weights_only=True,
            )
        if module.rollout_step < num_rollouts:
            raise Interrupted(
                f"stopped after {module.rollout_step} of {num_rollouts} rollouts, saved; go on "
                f"with: {job_command()} {shlex.quote(f'resume={run_folder}')}"
            )
    else:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        keeper.load_state_dict(state["callbacks"][keeper.state_key])
    keeper.load_best(module)
    module.head.eval().save_pretrained(run_folder / HEAD_FOLDER)
    logger.info("best head after rollout %d: %s", keeper.best_step, run_folder / HEAD_FOLDER)
    chosen = {
        "best_rollout": keeper.best_step,
        "validation_objective": keeper.best_objective,
        "validation": keeper.history,
    }
    try:
        numbers = evaluate_run(cfg, run_folder, setup, run, chosen)
    except KeyboardInterrupt:
        resume = shlex.quote(f"resume={run_folder}")
        raise Interrupted(
            f"stopped in the evaluation, the head is saved; go on with: {job_command()} {resume}"
        ) from None
    if trainer is not None and trainer.logger is not None:
        _close_logger(trainer.logger, numbers, num_rollouts)
    return numbers


def _close_logger(run_logger: Any, numbers: dict[str, float], step: int) -> None:
    """Log the evaluation's numbers, and end a tracker's run so that the next job starts its own."""
    run_logger.log_metrics({f"test/{name}": value for name, value in numbers.items()}, step=step)
    run_logger.save()
    finish = getattr(run_logger.experiment, "finish", None)
    if finish is not None:
        finish()


def _objective(cfg: DictConfig) -> ObjectiveSettings:
    objective = cfg.objective
    return ObjectiveSettings(
        acceptance_weight=objective.acceptance_weight,
        acceptance_reduction=objective.acceptance_reduction,
        advantage=objective.advantage,
        clip_ratio=objective.clip_ratio,
        uses_direct_gradient=objective.uses_direct_gradient,
        uses_score_gradient=objective.uses_score_gradient,
    )


def _training(
    cfg: DictConfig, setup: Setup, objective: ObjectiveSettings, run_folder: Path
) -> tuple[DiversedModule, PromptDataModule, HeadKeeper]:
    """Build module, data and callback."""
    if not isinstance(setup.decoder.verifier, DiversedVerifier):
        raise InputError("verifier: train.py trains the head of verifier=diversed, no other")
    head = setup.decoder.verifier.head
    if not isinstance(head, EnsembleHead):
        raise InputError("verifier: there is no ensemble head to train")
    settings = cfg.objective
    number = settings.num_validation_prompts
    if number is None:
        number = min(NUM_VALIDATION_PROMPTS, len(setup.task.examples("validation")))
    validation = first_examples(
        setup.task, "validation", number, "objective.num_validation_prompts"
    )
    module = DiversedModule(
        head,
        setup.decoder,
        setup.task,
        objective,
        samples_per_prompt=settings.samples_per_prompt,
        updates_per_rollout=settings.updates_per_rollout,
        grad_clip=settings.grad_clip,
        optimizer=instantiate(cfg.optimizer),
        scheduler=instantiate(cfg.scheduler),
    )
    try:
        module.configure_optimizers()  # once for its checks, before anything is written
    except (ValueError, TypeError) as error:
        raise InputError(f"optimizer, scheduler: {error}") from error
    data = PromptDataModule(
        setup.task,
        prompts_per_step=settings.prompts_per_step,
        num_rollouts=settings.num_rollouts,
        seed=cfg.seed,
        start=lambda: module.rollout_step,
    )
    for batch in (*data.batches, validation):
        for example in batch:
            fit_prompt(setup.decoder, setup.task, example)  # too long: says so before training
    keeper = HeadKeeper(
        run_folder / CHECKPOINT_FILE,
        validation,
        validate_every=settings.validate_every,
        save_every=settings.save_every,
        num_rollouts=settings.num_rollouts,
        batch_size=cfg.evaluation.batch_size,
    )
    return module, data, keeper


def _trainer(cfg: DictConfig, run_folder: Path, run: dict[str, Any], keeper: HeadKeeper) -> Trainer:
    callbacks: list[Any] = [keeper]
    if cfg.trainer.enable_progress_bar:
        callbacks.append(RichProgressBar())
    run_logger: Any = False
    if cfg.logger:
        make_logger = instantiate(cfg.logger)
        run_logger = make_logger(save_dir=str(run_folder))
    trainer: Trainer = instantiate(cfg.trainer, callbacks=callbacks, logger=run_logger)
    if run_logger:
        run_logger.log_hyperparams(plain(cfg) | {"run": run})
    return trainer


@contextmanager
def _calm_interrupt(keeper: HeadKeeper) -> Iterator[None]:
    """Let the first Ctrl-C end training after the current rollout; the second ends it at once."""

    def stop(*_: Any) -> None:
        logger.warning("stopping after this rollout; press Ctrl-C again to stop at once")
        keeper.request_stop()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
