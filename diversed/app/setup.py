"""What every job builds first: pair, task, decoder, examples."""

import logging
import sys
from dataclasses import dataclass, replace

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from diversed.app.runs import plain, run_manifest
from diversed.config import InputError, input_errors
from diversed.core.loop import DecodeSettings
from diversed.core.probs import Sampling
from diversed.generation import SpeculativeDecoder, head_verifier
from diversed.models.checkpoint import load_head, new_head
from diversed.models.head import EnsembleHead
from diversed.models.loading import ModelPair, ModelSource, load_pair
from diversed.records.store import check_records_format
from diversed.tasks.base import Example, Task, check_split

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Setup:
    """What both jobs build first."""

    pair: ModelPair
    task: Task
    decoder: SpeculativeDecoder
    examples: list[Example]


def build_decoder(cfg: DictConfig) -> SpeculativeDecoder:
    """Return the decoder that `evaluate` would use; InputError as there."""
    with input_errors():
        return set_up(cfg).decoder


def set_up(cfg: DictConfig) -> Setup:
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
    make_verifier = instantiate(cfg.verifier) if not trains_head(cfg) else None
    if not sys.stderr.isatty():
        disable_progress_bar()  # of transformers, while weights load
    pair = load_pair(
        _source(cfg, "target"),
        _source(cfg, "draft"),
        cfg.model.dtype,
        attn_implementation=cfg.model.attn_implementation,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    if make_verifier is None:
        torch.manual_seed(cfg.seed)
        verifier = head_verifier(_new_head(cfg, pair), cfg.verifier.dial, cfg.verifier.bonus)
    else:
        verifier = make_verifier(pair=pair) if callable(make_verifier) else make_verifier
    task.settle(
        has_chat_template=pair.tokenizer.chat_template is not None,
        context_length=pair.context_length,
        is_training=trains_head(cfg) or _head_saw_part_of_file(cfg, task),
    )
    settings = _within_context(cfg, settings, pair.context_length)
    decoder = SpeculativeDecoder(pair, verifier, settings, task.stop_strings)
    number = cfg.evaluation.num_prompts
    examples = first_examples(task, cfg.evaluation.split, number, "evaluation.num_prompts")
    return Setup(pair, task, decoder, examples)


def trains_head(cfg: DictConfig) -> bool:
    """Return whether the job trains a head."""
    return "objective" in cfg


def _new_head(cfg: DictConfig, pair: ModelPair) -> EnsembleHead:
    if cfg.verifier.checkpoint is not None:
        return load_head(cfg.verifier.checkpoint, pair)
    return new_head(pair, **plain(cfg.head)).to(pair.device)


def _source(cfg: DictConfig, role: str) -> ModelSource:
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
    data = (run_manifest(cfg.verifier.get("checkpoint")) or {}).get("data", {})
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
