"""The job behind finetune_draft.py."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from safetensors import SafetensorError
from tqdm.auto import tqdm
from transformers import PreTrainedConfig

from diversed.app.fitting import calm_interrupt, make_trainer
from diversed.app.lifecycle import running, working_folder
from diversed.app.runs import run_columns, write_run_manifest
from diversed.app.setup import Setup, first_examples, model_source, set_up
from diversed.config import InputError, Interrupted, input_errors
from diversed.core.verifiers import LosslessVerifier
from diversed.evaluation.comparison import compare_acceptance
from diversed.evaluation.runner import evaluate_task
from diversed.generation import SpeculativeDecoder
from diversed.models.loading import DTYPES, ModelPair, ModelSource, make_pair
from diversed.models.memory import TrainingMemory, model_without_weights, training_memory
from diversed.records.schema import RUN_COLUMNS
from diversed.records.store import replace_folder
from diversed.tracking.loggers import RunLoggers
from diversed.training.completions import (
    Completion,
    CompletionData,
    FittedExample,
    fitted_prompts,
    reference_completions,
    sampled_completions,
)
from diversed.training.finetune import BestDraft, FinetuneModule
from diversed.training.trainable import LoraAdapter, TrainableDraft

logger = logging.getLogger(__name__)

SOURCES = ("target", "references")
DRAFT_FOLDER = "draft"
NUM_TRAIN_PROMPTS = 4096
NUM_VALIDATION_PROMPTS = 192


@dataclass(frozen=True)
class _Plan:
    """What the job will do, checked.

    Attributes:
        setup: What every job builds; its decoder is lossless.
        adapter: What is trained in place of all weights.
        fitted: Prompts by split, of "train" and "validation".
        references: The task's own answers by split; empty where the target's outputs are learnt.
        run: The run's columns.
    """

    setup: Setup
    adapter: LoraAdapter | None
    fitted: dict[str, list[FittedExample]]
    references: dict[str, list[Completion]]
    run: dict[str, Any]


@dataclass(frozen=True)
class _Learnt:
    """What training has brought.

    Attributes:
        pair: The target and the new draft.
        keeper: What was kept of the training.
        num_steps: Optimiser steps.
        seconds: Of the training, validations included.
    """

    pair: ModelPair
    keeper: BestDraft
    num_steps: int
    seconds: float


def finetune_draft(cfg: DictConfig, folder: Path) -> dict[str, float]:
    """Fine-tune the draft, keep the best by validation loss, and save it as a plain folder.

    Args:
        cfg: Composed from `conf/finetune_draft.yaml`.
        folder: Where the run is written; its `draft` is a folder for `model.draft.path`.

    Returns:
        What exact verification accepts of the draft before and after, and the losses.

    Raises:
        InputError: The config asks for something that cannot be.
        Interrupted: The user stopped the run.
    """
    with input_errors():
        plan = _plan(cfg)
    setup = plan.setup
    with (
        working_folder(cfg, folder, setup.fabric) as run_folder,
        running(cfg, run_folder, setup, plan.run) as loggers,
    ):
        return _finetune(cfg, run_folder, plan, loggers)


def _plan(cfg: DictConfig) -> _Plan:
    """Check the config, and load what it names."""
    settings = cfg.finetune
    if cfg.source not in SOURCES:
        raise InputError(f"source={cfg.source}: must be one of {', '.join(SOURCES)}")
    if cfg.evaluation.split != "validation":
        raise InputError(
            f"evaluation.split={cfg.evaluation.split}: weights are chosen on the validation split; "
            "eval.py evaluates on the others"
        )
    for name in ("num_epochs", "batch_size", "samples_per_prompt"):
        if settings[name] < 1:
            raise InputError(f"finetune.{name}={settings[name]}: must be at least 1")
    adapter = instantiate(cfg.adapter) if cfg.adapter else None
    _module(cfg, torch.nn.Linear(1, 1), num_steps=1).configure_optimizers()  # for its checks
    setup = set_up(cfg)
    if not isinstance(setup.decoder.verifier, LosslessVerifier):
        raise InputError(
            f"verifier={setup.decoder.verifier.name}: finetune_draft.py takes no other than "
            "lossless, under which completions are the target's own"
        )
    if setup.fabric.world_size > 1:
        raise InputError(
            f"trainer.devices={cfg.trainer.devices}: finetune_draft.py works on one device; set "
            "trainer=default"
        )
    number = settings.num_train_prompts
    if number is None:
        number = min(NUM_TRAIN_PROMPTS, len(setup.task.examples("train")))
    train = first_examples(setup.task, "train", number, "finetune.num_train_prompts")
    validation = setup.examples
    if cfg.evaluation.num_prompts is None:
        validation = validation[:NUM_VALIDATION_PROMPTS]
    decoder, task = setup.decoder, setup.task
    fitted = {
        split: fitted_prompts(decoder, task, examples)
        for split, examples in (("train", train), ("validation", validation))
    }
    references = {}
    if cfg.source == "references":
        references = {
            split: reference_completions(decoder, task, own) for split, own in fitted.items()
        }
    return _Plan(setup, adapter, fitted, references, _run_columns(cfg, setup, adapter))


def _run_columns(cfg: DictConfig, setup: Setup, adapter: LoraAdapter | None) -> dict[str, Any]:
    how = "full" if adapter is None else adapter.name
    name = f"{cfg.model.name}-{setup.task.name}-finetune-{cfg.source}-{how}-seed{cfg.seed}"
    return run_columns(cfg, setup.decoder, setup.task) | {
        "run_name": cfg.name or name,
        "method": "finetune_draft",
        "setting": f"source={cfg.source} adapter={how}",
    }


def _module(cfg: DictConfig, model: torch.nn.Module, num_steps: int) -> FinetuneModule:
    return FinetuneModule(
        model,
        num_steps=num_steps,
        warmup_frac=cfg.finetune.warmup_frac,
        grad_clip=cfg.finetune.grad_clip,
        optimizer=instantiate(cfg.optimizer),
    )


def _finetune(cfg: DictConfig, folder: Path, plan: _Plan, loggers: RunLoggers) -> dict[str, float]:
    """Do the job in a folder that is this run's."""
    setup = plan.setup
    started = time.perf_counter()
    completions = plan.references or _target_outputs(cfg, plan)
    sampling_seconds = time.perf_counter() - started
    before = _records(cfg, plan, setup.decoder)
    learnt = _learn(cfg, folder, plan, completions, loggers)
    old = setup.decoder
    decoder = SpeculativeDecoder(learnt.pair, old.verifier, old.settings, old.stop_strings)
    try:
        after = _records(cfg, plan, decoder)
    except KeyboardInterrupt:
        raise Interrupted(
            f"stopped before the new draft was measured; it is {folder / DRAFT_FOLDER}"
        ) from None
    numbers = compare_acceptance(before, after) | {
        "validation_loss_before": learnt.keeper.history[0]["loss"],
        "validation_loss_after": learnt.keeper.best_loss,
        "best_step": float(learnt.keeper.best_step or 0),
        "num_steps": float(learnt.num_steps),
        "sampling_seconds": sampling_seconds,
        "fit_seconds": learnt.seconds,
    }
    loggers.log_evaluation(numbers, {}, learnt.num_steps)
    results = {**numbers, "validation": learnt.keeper.history}
    write_run_manifest(cfg, folder, setup.pair, setup.task, plan.run, "finished", results)
    _report(numbers, folder, cfg)
    return numbers


def _learn(
    cfg: DictConfig,
    folder: Path,
    plan: _Plan,
    completions: dict[str, list[Completion]],
    loggers: RunLoggers,
) -> _Learnt:
    """Train the draft on completions by split, and save the best."""
    setup, settings = plan.setup, cfg.finetune
    train, validation = completions["train"], completions["validation"]
    data = CompletionData(train, validation, batch_size=settings.batch_size, seed=cfg.seed)
    batches_per_step = cfg.trainer.get("accumulate_grad_batches", 1)
    num_steps = settings.num_epochs * -(-data.num_batches // batches_per_step)
    keeper = BestDraft()
    trainer = make_trainer(cfg, setup, keeper, precision=_precision(setup.pair))
    trainer.loggers = loggers.loggers
    torch.manual_seed(cfg.seed)  # of an adapter's first weights
    with input_errors():
        trainable = TrainableDraft(setup.pair.draft.model, plan.adapter)
    module = _module(cfg, trainable.model, num_steps)
    logger.info(
        "%s: learning %d completions of %d tokens in %d steps",
        plan.run["run_name"],
        len(train),
        sum(len(one.completion_ids) for one in train),
        num_steps,
    )
    started = time.perf_counter()
    with calm_interrupt(keeper.request_stop, "step"):
        trainer.validate(module, data, verbose=False)  # the draft as it is
        trainer.fit(module, data)
    seconds = time.perf_counter() - started
    keeper.load_best(module)
    pair = _new_pair(cfg, setup, trainable, folder / DRAFT_FOLDER)
    if keeper.should_stop and trainer.global_step < num_steps:
        raise Interrupted(
            f"stopped after {trainer.global_step} of {num_steps} steps; the best draft until then, "
            f"after step {keeper.best_step}, is {folder / DRAFT_FOLDER}"
        )
    logger.info("draft after step %d: %s", keeper.best_step, folder / DRAFT_FOLDER)
    return _Learnt(pair, keeper, num_steps, seconds)


def _target_outputs(cfg: DictConfig, plan: _Plan) -> dict[str, list[Completion]]:
    """Return what the target makes of the prompts, by split."""
    completions = {}
    for split, fitted in plan.fitted.items():
        number = cfg.finetune.samples_per_prompt if split == "train" else 1
        logger.info("sampling the target: %d %s prompts", len(fitted), split)
        total = len(fitted) * number
        with tqdm(total=total, desc=split, unit="row", leave=False, disable=None) as bar:
            completions[split] = sampled_completions(
                plan.setup.decoder, fitted, number, cfg.evaluation.batch_size, bar.update
            )
    return completions


def _precision(pair: ModelPair) -> str:
    """Return how Lightning computes: fp32 weights, read as bf16 where the pair is bf16."""
    return "bf16-mixed" if pair.draft.model.dtype == torch.bfloat16 else "32-true"


def finetuning_memory(cfg: DictConfig, config: PreTrainedConfig, length: int) -> TrainingMemory:
    """Return what training the draft will need, beside the target's weights.

    Args:
        cfg: Composed from `conf/finetune_draft.yaml`.
        config: Of the draft.
        length: Tokens of the longest prompt and completion.
    """
    dtype = DTYPES[cfg.model.dtype]
    draft = model_without_weights(config, dtype).requires_grad_(False)
    with torch.device("meta"):
        trainable = TrainableDraft(draft, instantiate(cfg.adapter) if cfg.adapter else None)
    return training_memory(
        trainable.model,
        config,
        instantiate(cfg.optimizer),
        torch.bfloat16 if dtype == torch.bfloat16 else torch.float32,
        cfg.finetune.batch_size,
        length,
    )


def _new_pair(cfg: DictConfig, setup: Setup, trainable: TrainableDraft, folder: Path) -> ModelPair:
    """Save the draft with the pair's tokenizer, and return the pair that it makes."""
    draft, pair = trainable.frozen(), setup.pair

    def write(partial_folder: Path) -> None:
        try:
            draft.save_pretrained(partial_folder)
        except SafetensorError as error:  # what safetensors makes of a full disk
            raise OSError(str(error)) from error
        pair.tokenizer.save_pretrained(partial_folder)

    replace_folder(folder, write)
    return make_pair(
        pair.target.model,
        draft.to(setup.fabric.device),  # Lightning leaves it on the CPU
        pair.tokenizer,
        pair.target.vocab_size,
        model_source(cfg, "target"),
        ModelSource(name=cfg.model.draft.name, path=str(folder)),
    )


def _records(cfg: DictConfig, plan: _Plan, decoder: SpeculativeDecoder) -> pd.DataFrame:
    """Decode the validation prompts; return one row per prompt and sample."""
    evaluation = evaluate_task(
        decoder,
        plan.setup.task,
        [one.example for one in plan.fitted["validation"]],
        samples_per_prompt=cfg.evaluation.samples_per_prompt,
        batch_size=cfg.evaluation.batch_size,
    )
    return pd.DataFrame(evaluation.rows).assign(**{name: plan.run[name] for name in RUN_COLUMNS})


def _report(numbers: dict[str, float], folder: Path, cfg: DictConfig) -> None:
    spelt = [
        "{:.3f} [{:.3f}, {:.3f}]".format(
            *(numbers[f"acceptance_rate_{when}{bound}"] for bound in ("", "_low", "_high"))
        )
        for when in ("before", "after")
    ]
    logger.info("acceptance_rate on validation prompts: %s before, %s after", *spelt)
    loss, best = numbers["validation_loss_before"], numbers["validation_loss_after"]
    logger.info("validation loss: %.4f before, %.4f after", loss, best)
    if not numbers["best_step"]:
        logger.warning("no step made the draft better: it is saved as it was")
    logger.info(
        "use it with: model.name=%s_finetuned model.draft.path=%s",
        cfg.model.name,
        folder / DRAFT_FOLDER,
    )
