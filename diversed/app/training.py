"""The job behind train.py."""

import logging
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from diversed.app.evaluation import check_finished_rows, evaluate_run
from diversed.app.fitting import calm_interrupt, make_trainer
from diversed.app.lifecycle import running, working_folder
from diversed.app.processes import Seat, joined
from diversed.app.runs import resume_advice, run_columns
from diversed.app.setup import Setup, first_examples, set_up
from diversed.config import InputError, Interrupted, input_errors
from diversed.core.verifiers import DiversedVerifier
from diversed.models.checkpoint import save_head
from diversed.models.head import EnsembleHead
from diversed.objective.acceptance import ObjectiveSettings
from diversed.prompting import fit_prompt
from diversed.records.store import replace_folder
from diversed.training.callbacks import HeadKeeper, read_checkpoint_step
from diversed.training.data import PromptDataModule
from diversed.training.distributed import from_first
from diversed.training.module import DiversedModule

logger = logging.getLogger(__name__)

CHECKPOINT_FILE = "checkpoint.ckpt"
HEAD_FOLDER = "head"
NUM_VALIDATION_PROMPTS = 192

_Parts = tuple[DiversedModule, PromptDataModule, HeadKeeper]


def train(cfg: DictConfig, folder: Path, seat: Seat | None = None) -> dict[str, float]:
    """Train a head, keep the best on validation prompts, and evaluate it.

    Args:
        cfg: Composed from `conf/train.yaml`.
        folder: Where the run is written, unless `resume` names an older folder.
        seat: Of a process that `app.processes` has started.

    Returns:
        Summary numbers of the evaluation; nothing in processes other than the first.

    Raises:
        InputError: The config asks for something that cannot be.
        Interrupted: The user stopped the run.
    """
    with input_errors():
        objective = objective_settings(cfg)
        setup = set_up(cfg, seat)
    with working_folder(cfg, folder, setup.fabric) as run_folder:
        with input_errors():
            parts = _training(cfg, setup, objective, run_folder)
            run = run_columns(cfg, setup.decoder, setup.task, objective.acceptance_weight)
        with joined(train, cfg, run_folder, setup.fabric) as run_folder:
            return _train_and_evaluate(cfg, run_folder, setup, run, parts)


def _train_and_evaluate(
    cfg: DictConfig, run_folder: Path, setup: Setup, run: dict[str, Any], parts: _Parts
) -> dict[str, float]:
    """Do the job in a folder that is this run's; every process its part, the first one writes."""
    module, data, keeper = parts
    checkpoint = run_folder / CHECKPOINT_FILE
    num_rollouts = cfg.objective.num_rollouts
    start_step = from_first(read_checkpoint_step(checkpoint) if checkpoint.is_file() else 0)
    with input_errors():
        trainer = make_trainer(cfg, setup, keeper) if start_step < num_rollouts else None
    state = partial(_state, checkpoint)
    if trainer is None:
        found = torch.load(checkpoint, map_location="cpu", weights_only=True)
        keeper.load_state_dict(found["callbacks"][keeper.state_key])
        keeper.load_best(module)
        check_finished_rows(cfg, run_folder, setup)
    with running(cfg, run_folder, setup, run, start_step=start_step, state=state) as loggers:
        logger.info("training a head in %s", run_folder)
        if trainer is not None:
            trainer.loggers = loggers.loggers
            with calm_interrupt(keeper.request_stop, "rollout"):
                path = str(checkpoint) if start_step else None
                trainer.fit(module, data, ckpt_path=path, weights_only=True)
            if module.rollout_step < num_rollouts:
                raise Interrupted(
                    f"stopped after {module.rollout_step} of {num_rollouts} rollouts, saved; "
                    f"{resume_advice(run_folder)}"
                )
            keeper.load_best(module)
        module.head.eval().to(setup.pair.device)  # Lightning leaves it on the CPU
        if setup.fabric.is_global_zero:
            replace_folder(run_folder / HEAD_FOLDER, partial(save_head, module.head))
        logger.info("best head after rollout %d: %s", keeper.best_step, run_folder / HEAD_FOLDER)
        chosen = {
            "best_rollout": keeper.best_step,
            "validation_objective": keeper.best_objective,
            "validation": keeper.history,
        }
        return evaluate_run(cfg, run_folder, setup, run, loggers, chosen)


def _state(checkpoint: Path) -> str:
    """Return how far a run has come that cannot go on."""
    if not checkpoint.is_file():
        return "there is no checkpoint yet"
    step = read_checkpoint_step(checkpoint)
    return f"the last good checkpoint, after rollout {step}, is {checkpoint}"


def check_training(cfg: DictConfig, setup: Setup, folder: Path) -> None:
    """Raise what training would raise before it begins; `folder` is named in messages alone."""
    _training(cfg, setup, objective_settings(cfg), folder)


def objective_settings(cfg: DictConfig) -> ObjectiveSettings:
    """Return what is maximised; InputError where the job cannot train at all."""
    if not str(cfg.verifier.get("_target_", "")).endswith("checkpoint_verifier"):
        raise InputError("verifier: train.py trains the head of verifier=diversed, no other")
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
) -> _Parts:
    """Build module, data and callback."""
    if not isinstance(setup.decoder.verifier, DiversedVerifier):
        raise InputError("verifier: train.py trains the head of verifier=diversed, no other")
    head = setup.decoder.verifier.head
    if not isinstance(head, EnsembleHead):
        raise InputError("verifier: there is no ensemble head to train")
    head.train().pair = setup.pair.description  # a loaded one is in eval mode, of an older pair
    settings = cfg.objective
    if settings.prompts_per_step < setup.fabric.world_size:
        raise InputError(
            f"objective.prompts_per_step={settings.prompts_per_step}: must be at least 1 for each "
            f"of the {setup.fabric.world_size} processes"
        )
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
        max_prompts=settings.max_train_prompts,
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
