"""What every job builds first: pair, task, decoder, examples."""

import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from hydra.utils import instantiate
from lightning import Fabric
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from diversed.app.processes import Seat, job_fabric
from diversed.app.runs import plain
from diversed.config import InputError, input_errors
from diversed.controls.reading import hidden_bank, read_as
from diversed.core.loop import DecodeSettings
from diversed.core.probs import Sampling
from diversed.generation import SpeculativeDecoder, head_verifier
from diversed.generation.decoder import head_reads
from diversed.models.checkpoint import load_head, new_head
from diversed.models.head import EnsembleHead
from diversed.models.loading import ModelPair, ModelSource, load_pair
from diversed.records.store import RecordsError, check_records_format, run_manifest
from diversed.tasks.base import Example, Task, check_split

logger = logging.getLogger(__name__)

SHARED_KEYS = "TRANSFORMERS_SDPA_FORCE_GQA"
"""Variable of transformers: "1" lets attention share keys and values instead of copying them for
every query head, whatever the mask: on a CPU a third of the time that masked attention takes."""


@dataclass(frozen=True)
class Setup:
    """What both jobs build first."""

    pair: ModelPair
    task: Task
    decoder: SpeculativeDecoder
    examples: list[Example]
    fabric: Fabric


def build_decoder(cfg: DictConfig) -> SpeculativeDecoder:
    """Return the decoder that `evaluate` would use; InputError as there."""
    with input_errors():
        return set_up(cfg).decoder


def check_settings(cfg: DictConfig) -> tuple[Task, DecodeSettings, Any]:
    """Check what can be checked before models or rows are loaded.

    Returns:
        The task; how to decode; and the verifier, what makes it of a pair, or None where a head is
        to be trained.
    """
    missing = sorted(_missing_keys(OmegaConf.to_container(cfg, resolve=False)))
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
    return task, settings, instantiate(cfg.verifier) if not trains_head(cfg) else None


def _missing_keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys without a value; what refers to one of them is not named as well."""
    if isinstance(node, dict):
        for key, value in node.items():
            if value == "???":
                yield f"{prefix}{key}"
            yield from _missing_keys(value, f"{prefix}{key}.")


def set_up(cfg: DictConfig, seat: Seat | None = None) -> Setup:
    """Build pair, task, decoder and the examples of the evaluation, and choose the devices."""
    task, settings, make_verifier = check_settings(cfg)
    fabric = job_fabric(cfg, seat)
    if fabric.device.type == "cpu":
        os.environ.setdefault(SHARED_KEYS, "1")
    if not sys.stderr.isatty():
        disable_progress_bar()  # of transformers, while weights load
    pair = load_pair(
        model_source(cfg, "target"),
        model_source(cfg, "draft"),
        cfg.model.dtype,
        attn_implementation=cfg.model.attn_implementation,
        device=fabric.device,
    )
    if make_verifier is None:
        torch.manual_seed(cfg.seed)
        verifier = head_verifier(_new_head(cfg, pair), cfg.verifier.dial, cfg.verifier.bonus)
    else:
        verifier = make_verifier(pair=pair) if callable(make_verifier) else make_verifier
    settle_task(cfg, task, pair.tokenizer.chat_template is not None, pair.context_length)
    settings = within_context(cfg, settings, pair.context_length)
    pair = read_as(head_reads(verifier), pair, partial(hidden_bank, pair, task, settings))
    decoder = SpeculativeDecoder(pair, verifier, settings, task.stop_strings)
    number = cfg.evaluation.num_prompts
    examples = first_examples(task, cfg.evaluation.split, number, "evaluation.num_prompts")
    return Setup(pair, task, decoder, examples, fabric)


def settle_task(cfg: DictConfig, task: Task, has_chat_template: bool, context_length: int) -> None:
    """Fix what a task leaves to the models and the job."""
    task.settle(
        has_chat_template=has_chat_template,
        context_length=context_length,
        is_training=trains_head(cfg) or "finetune" in cfg or _pair_saw_part_of_file(cfg, task),
    )


def trains_head(cfg: DictConfig) -> bool:
    """Return whether the job trains a head."""
    return "objective" in cfg


def _new_head(cfg: DictConfig, pair: ModelPair) -> EnsembleHead:
    if cfg.verifier.checkpoint is not None:
        return load_head(cfg.verifier.checkpoint, pair)
    return new_head(pair, **plain(cfg.head)).to(pair.device)


def model_source(cfg: DictConfig, role: str) -> ModelSource:
    """Return where the target or the draft comes from."""
    return ModelSource(**plain(cfg.model[role]))


def _decode_settings(cfg: DictConfig, task: Task) -> DecodeSettings:
    decoding = cfg.decoding
    max_new_tokens = decoding.max_new_tokens
    return DecodeSettings(
        max_new_tokens=task.max_new_tokens if max_new_tokens is None else max_new_tokens,
        draft_length=decoding.draft_length,
        sampling=Sampling(decoding.temperature, decoding.top_k, decoding.top_p),
        seed=cfg.seed,
    )


def within_context(cfg: DictConfig, settings: DecodeSettings, context: int) -> DecodeSettings:
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


def _pair_saw_part_of_file(cfg: DictConfig, task: Task) -> bool:
    """Return whether head or draft was trained on a part of the file that it is evaluated on."""
    places = {"head": cfg.verifier.get("checkpoint"), "draft": cfg.model.draft.path}
    seen = [_saw_part_of_file(what, place, task) for what, place in places.items()]
    return any(seen)


def _saw_part_of_file(what: str, place: str | None, task: Task) -> bool:
    """Return whether what a run's folder holds was trained on a part of the task's file."""
    try:
        data = (run_manifest(place) or {}).get("data", {})
    except RecordsError:
        return False  # it stands beside a manifest of something else
    own = task.provenance()
    shared = set(data.get("sha256", {}).values()) & set(own.get("sha256", {}).values())
    if not (data.get("split_file") and shared):
        return False
    if own["seed"] != data["seed"]:
        raise InputError(
            f"data.seed={own['seed']}: the {what} was trained on the part of {data['path']} that "
            f"data.seed={data['seed']} draws; only with that seed is the test part unseen"
        )
    logger.info("testing on the part of %s that the %s was not trained on", data["path"], what)
    return True


def first_examples(task: Task, split: str, number: int | None, key: str) -> list[Example]:
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
