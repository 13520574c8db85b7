"""The jobs behind the scripts: unpack the config, build objects, hand over, keep records."""

import logging
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from lightning import Trainer
from lightning.pytorch.callbacks import RichProgressBar
from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers.utils.logging import disable_progress_bar

from diversed.config import InputError, Interrupted, discard_job_folder, input_errors
from diversed.core.loop import DecodeSettings
from diversed.core.probs import Sampling
from diversed.core.verifiers import DiversedVerifier, StaticVerifier
from diversed.evaluation.runner import corpus_metrics, evaluate_task
from diversed.evaluation.summary import summarise
from diversed.generation import SpeculativeDecoder, head_verifier
from diversed.models.checkpoint import load_head, new_head
from diversed.models.head import EnsembleHead
from diversed.models.loading import ModelPair, ModelSource, load_pair
from diversed.objective.acceptance import ObjectiveSettings
from diversed.prompting import fit_prompt
from diversed.records.folders import differing_keys
from diversed.records.manifest import build_manifest
from diversed.records.store import (
    MANIFEST_FILE,
    RecordsError,
    check_records_format,
    read_manifest,
    read_records,
    write_manifest,
    write_records,
    write_trace,
)
from diversed.tasks.base import Example, Task, check_split
from diversed.training.callbacks import HeadKeeper, read_checkpoint_step
from diversed.training.data import PromptDataModule
from diversed.training.module import DiversedModule

logger = logging.getLogger(__name__)

CHECKPOINT_FILE = "checkpoint.ckpt"
HEAD_FOLDER = "head"
NUM_VALIDATION_PROMPTS = 192


@dataclass(frozen=True)
class _Setup:
    """What both jobs build first."""

    pair: ModelPair
    task: Task
    decoder: SpeculativeDecoder
    examples: list[Example]


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
        setup = _set_up(cfg)
    run = _run_columns(cfg, setup, head_weight=None)
    return _evaluate(cfg, folder, setup, run)


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
        setup = _set_up(cfg)
        run_folder = _resume_folder(cfg, folder)
        module, data, keeper = _training(cfg, setup, objective, run_folder)
        run = _run_columns(cfg, setup, head_weight=objective.acceptance_weight)
        checkpoint = run_folder / CHECKPOINT_FILE
        num_rollouts = cfg.objective.num_rollouts
        trainer = None
        if not checkpoint.is_file() or read_checkpoint_step(checkpoint) < num_rollouts:
            trainer = _trainer(cfg, run_folder, run, keeper)
    if run_folder.resolve() != folder.resolve():
        discard_job_folder(folder)
        logger.info("resuming %s", run_folder)
    _write_manifest(cfg, run_folder, setup, run, status="running")
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
                f"with: {_command()} {shlex.quote(f'resume={run_folder}')}"
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
        numbers = _evaluate(cfg, run_folder, setup, run, chosen)
    except KeyboardInterrupt:
        resume = shlex.quote(f"resume={run_folder}")
        raise Interrupted(
            f"stopped in the evaluation, the head is saved; go on with: {_command()} {resume}"
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


def build_decoder(cfg: DictConfig) -> SpeculativeDecoder:
    """Return the decoder that `evaluate` would use; InputError as there."""
    with input_errors():
        return _set_up(cfg).decoder


def _set_up(cfg: DictConfig) -> _Setup:
    """Build pair, task, decoder and the examples of the evaluation."""
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise InputError(f"{missing[0]} has no value: add {missing[0]}=... to the command")
    if type(cfg.seed) is not int:
        raise InputError(f"seed={cfg.seed}: must be an integer")
    check_split(cfg.evaluation.split)
    check_records_format(cfg.evaluation.records_format)
    for name in ("num_prompts", "samples_per_prompt", "batch_size"):
        number = cfg.evaluation[name]
        if number is not None and number < 1:
            raise InputError(f"evaluation.{name}={number}: must be at least 1")
    task: Task = instantiate(cfg.data)
    settings = _decode_settings(cfg, task)
    make_verifier = instantiate(cfg.verifier) if not _trains_head(cfg) else None
    if not sys.stderr.isatty():
        disable_progress_bar()  # of transformers, while weights load
    pair = load_pair(_source(cfg, "target"), _source(cfg, "draft"), cfg.model.dtype)
    if torch.cuda.is_available():
        pair.to("cuda")
    if make_verifier is None:
        torch.manual_seed(cfg.seed)
        verifier = head_verifier(_new_head(cfg, pair), cfg.verifier.dial, cfg.verifier.bonus)
    else:
        verifier = make_verifier(pair=pair) if callable(make_verifier) else make_verifier
    task.settle(
        has_chat_template=pair.tokenizer.chat_template is not None,
        context_length=pair.context_length,
        is_training=_trains_head(cfg) or _head_saw_part_of_file(cfg, task),
    )
    settings = _within_context(cfg, settings, pair.context_length)
    decoder = SpeculativeDecoder(pair, verifier, settings, task.stop_strings)
    number = cfg.evaluation.num_prompts
    examples = _examples(task, cfg.evaluation.split, number, "evaluation.num_prompts")
    return _Setup(pair, task, decoder, examples)


def _trains_head(cfg: DictConfig) -> bool:
    return "objective" in cfg


def _new_head(cfg: DictConfig, pair: ModelPair) -> EnsembleHead:
    if cfg.verifier.checkpoint is not None:
        return load_head(cfg.verifier.checkpoint, pair)
    return new_head(pair, **_plain(cfg.head)).to(pair.device)


def _source(cfg: DictConfig, role: str) -> ModelSource:
    return ModelSource(**_plain(cfg.model[role]))


def _decode_settings(cfg: DictConfig, task: Task) -> DecodeSettings:
    decoding = cfg.decoding
    max_new_tokens = decoding.max_new_tokens
    return DecodeSettings(
        max_new_tokens=task.max_new_tokens if max_new_tokens is None else max_new_tokens,
        draft_length=decoding.draft_length,
        sampling=Sampling(decoding.temperature, decoding.top_k, decoding.top_p),
        seed=cfg.seed,
    )


def _within_context(cfg: DictConfig, settings: DecodeSettings, context: int) -> DecodeSettings:
    """Leave half of the context to the prompt where the user set no length."""
    if cfg.decoding.max_new_tokens is not None or settings.max_new_tokens <= context // 2:
        return settings
    logger.warning(
        "completions get %d tokens, not the task's %d: the models' context is %d",
        context // 2,
        settings.max_new_tokens,
        context,
    )
    return replace(settings, max_new_tokens=context // 2)


def _head_saw_part_of_file(cfg: DictConfig, task: Task) -> bool:
    """Return whether the head was trained on a part of the file that it is now evaluated on."""
    data = (_run_manifest(cfg.verifier.get("checkpoint")) or {}).get("data", {})
    own = task.provenance()
    shared = set(data.get("sha256", {}).values()) & set(own.get("sha256", {}).values())
    if not (data.get("split_file") and shared):
        return False
    if own["seed"] != data["seed"]:
        raise InputError(
            f"data.seed={own['seed']}: the head was trained on the part of {data['path']} that "
            f"data.seed={data['seed']} draws; only with that seed is the test part unseen"
        )
    logger.info("testing on the part of %s that the head was not trained on", data["path"])
    return True


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


def _examples(task: Task, split: str, number: int | None, key: str) -> list[Example]:
    """Return the first rows of a split; InputError, naming the key, where there are not so many."""
    examples = task.examples(split)
    if number is None:
        return list(examples)
    if not 1 <= number <= len(examples):
        raise InputError(
            f"{key}={number}: must be at least 1 and at most the {len(examples)} examples of "
            f"split {split} of {task.name}"
        )
    return list(examples.select(range(number)))


def _training(
    cfg: DictConfig, setup: _Setup, objective: ObjectiveSettings, run_folder: Path
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
    validation = _examples(setup.task, "validation", number, "objective.num_validation_prompts")
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
        run_logger.log_hyperparams(_resolved(cfg) | {"run": run})
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


def _evaluate(
    cfg: DictConfig,
    folder: Path,
    setup: _Setup,
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
    _write_manifest(cfg, folder, setup, run, status="running")
    if settings.writes_trace:
        write_trace(folder, evaluation.trace)
    write_records(folder, evaluation.rows, settings.records_format)
    metrics = corpus_metrics(setup.task, setup.examples, evaluation.rows)
    numbers = _summary_numbers(read_records(folder)) | metrics
    _write_manifest(
        cfg, folder, setup, run, status="finished", results={**(results or {}), **numbers}
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


def _run_columns(cfg: DictConfig, setup: _Setup, head_weight: float | None) -> dict[str, Any]:
    """Return what the run is, as `records.schema.RUN_COLUMNS`."""
    decoder, task = setup.decoder, setup.task
    verifier = decoder.verifier
    weight = verifier.weight if isinstance(verifier, StaticVerifier) else None
    dial = verifier.dial if isinstance(verifier, DiversedVerifier) else None
    sampling = decoder.settings.sampling
    if isinstance(verifier, DiversedVerifier):
        if head_weight is None:
            head_weight = _head_weight(cfg.verifier.checkpoint)
        setting = f"-lambda{head_weight:g}" if head_weight is not None else ""
        setting += f"-dial{dial:g}" if dial else ""
    elif weight is not None:
        setting = f"-w{weight:g}"
    else:
        parts = verifier.settings.items()
        setting = "".join(
            f"-{key}{value if isinstance(value, str) else format(value, 'g')}"
            for key, value in parts
        )
    return {
        "run_name": cfg.name
        or f"{cfg.model.name}-{task.name}-{verifier.name}{setting}-seed{cfg.seed}",
        "method": verifier.name,
        "model": cfg.model.name,
        "data": task.name,
        "split": cfg.evaluation.split,
        "seed": cfg.seed,
        "target_weight": weight,
        "acceptance_weight": head_weight,
        "dial": dial,
        "bonus": verifier.bonus,
        "draft_length": None
        if verifier.name == "autoregressive"
        else decoder.settings.draft_length,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "max_new_tokens": decoder.settings.max_new_tokens,
        "batch_size": cfg.evaluation.batch_size,
    }


def _head_weight(checkpoint: str | None) -> float | None:
    """Return the lambda that a run's head was trained with, where its manifest is at hand."""
    manifest = _run_manifest(checkpoint)
    weight: float | None = None if manifest is None else manifest["run"]["acceptance_weight"]
    return weight


def _run_manifest(checkpoint: str | None) -> dict[str, Any] | None:
    """Return the manifest of the run that a head comes from, where it is at hand."""
    if checkpoint is None:
        return None
    folder = Path(checkpoint).expanduser()
    for candidate in (folder, folder.parent):
        if (candidate / MANIFEST_FILE).is_file():
            return read_manifest(candidate)
    return None


def _resolved(cfg: DictConfig) -> dict[str, Any]:
    return _plain(cfg)


def _plain(node: DictConfig) -> dict[str, Any]:
    container = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    if not isinstance(container, dict):
        raise TypeError(f"expected a mapping, got {type(container).__name__}")
    return {str(key): value for key, value in container.items()}


def _write_manifest(
    cfg: DictConfig,
    folder: Path,
    setup: _Setup,
    run: dict[str, Any],
    status: str,
    results: dict[str, Any] | None = None,
) -> None:
    manifest = build_manifest(
        run=run,
        config=_resolved(cfg),
        pair=setup.pair.description,
        device=setup.pair.device,
        status=status,
        results=results,
        data=setup.task.provenance(),
    )
    write_manifest(folder, manifest)


def _resume_folder(cfg: DictConfig, folder: Path) -> Path:
    """Return the folder to write to: this job's own, or that of the run to resume."""
    if cfg.resume is None:
        return folder
    wanted = _resolved(cfg)
    if cfg.resume == "auto":
        candidates = [path.parent for path in folder.parent.glob(f"*/{MANIFEST_FILE}")]
        for candidate in sorted(candidates, reverse=True):
            try:
                manifest = read_manifest(candidate)
            except RecordsError as error:
                logger.warning("resume=auto: passed over %s", error)
                continue
            if manifest["status"] != "finished" and not differing_keys(wanted, manifest["config"]):
                return candidate
        logger.info("resume=auto: no unfinished run of this config in %s", folder.parent)
        return folder
    old = Path(str(cfg.resume)).expanduser().resolve()
    if not (old / MANIFEST_FILE).is_file():
        raise InputError(f"resume={cfg.resume}: no run there; give auto or the folder of a run")
    manifest = read_manifest(old)
    differing = differing_keys(wanted, manifest["config"])
    if differing:
        raise InputError(
            f"resume={cfg.resume}: that run has another config ({', '.join(differing)}); repeat "
            "its command and add resume=..."
        )
    return old


def _command() -> str:
    """Return the command of this job alone, one point of a multirun too, without `resume`."""
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else sys.argv[1:]
    arguments = [argument for argument in given if not argument.startswith("resume=")]
    return shlex.join(["python", sys.argv[0], *arguments])


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
