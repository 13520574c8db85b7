"""`check=true`: could this run start, here and now? Everything that it needs is looked at.

Nothing is written; what the hub serves goes into the hub's own caches, as it would for the run.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig
from rich.console import Console
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from diversed.app.findings import OK, PROBLEM, UNCHECKED, Finding, findings_table
from diversed.app.finetuning import finetuning_memory
from diversed.app.machine import free_bytes, host_free_bytes
from diversed.app.processes import job_fabric
from diversed.app.setup import (
    check_settings,
    first_examples,
    model_source,
    set_up,
    settle_task,
    trains_head,
    within_context,
)
from diversed.app.training import check_training, objective_settings
from diversed.config import InputError, input_errors
from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import LosslessVerifier
from diversed.evaluation.runner import evaluate_task
from diversed.generation import SpeculativeDecoder
from diversed.models.hf import context_length
from diversed.models.loading import (
    DTYPES,
    ModelPair,
    ModelPlace,
    check_same_tokenizer,
    find_model,
)
from diversed.models.memory import Workload, pair_memory
from diversed.prompting import fit_prompt
from diversed.tasks.base import Example, Task

ROLES = ("target", "draft")
NUM_MEASURED = 64
"""Prompts of each split whose length is measured."""

NUM_DECODED = 2


@dataclass(frozen=True)
class _PromptSide:
    """What building prompts needs of a pair; its models are not loaded."""

    tokenizer: PreTrainedTokenizerBase
    context_length: int
    eos_ids: tuple[int, ...] = ()
    reads: str = "hidden"


@dataclass
class _Known:
    """What the steps have found so far; None and empty where they have not."""

    task: Task | None = None
    settings: DecodeSettings | None = None
    device: torch.device | None = None
    num_processes: int = 1
    places: dict[str, ModelPlace] = field(default_factory=dict)
    configs: dict[str, PreTrainedConfig] = field(default_factory=dict)
    tokenizer: PreTrainedTokenizerBase | None = None
    examples: dict[str, list[Example]] = field(default_factory=dict)
    longest_prompt: int | None = None


def check(cfg: DictConfig, console: Console | None = None) -> list[str]:
    """Look at what a job needs, show a table, and return the problems, one line each.

    Args:
        cfg: Composed for one of the scripts.
        console: Where the table goes; default: standard output.
    """
    findings = preflight(cfg)
    (console or Console()).print(findings_table(findings))
    return [
        f"{finding.what}: {finding.detail}" for finding in findings if finding.result == PROBLEM
    ]


def preflight(cfg: DictConfig) -> list[Finding]:
    """Return what was found, in the order of looking."""
    known = _Known()
    steps: dict[str, Callable[[DictConfig, _Known], str]] = {
        "settings": _look_at_settings,
        "target": lambda cfg, known: _look_at_model(cfg, known, "target"),
        "draft": lambda cfg, known: _look_at_model(cfg, known, "draft"),
        "tokenizers": _look_at_tokenizers,
        "data": _look_at_data,
        "prompts": _look_at_prompts,
        "memory": _look_at_memory,
        "two prompts": lambda cfg, _: _decode_two(cfg),
    }
    findings: list[Finding] = []
    for what, look in steps.items():
        failed = {finding.what for finding in findings if finding.result != OK}
        lacking = [name for name in _NEEDS[what] if name in failed]
        if lacking:
            findings.append(Finding(what, UNCHECKED, f"needs {', '.join(lacking)}"))
            continue
        try:
            with input_errors():
                findings.append(Finding(what, OK, look(cfg, known)))
        except InputError as error:
            findings.append(Finding(what, PROBLEM, str(error)))
    return findings


_NEEDS: Mapping[str, tuple[str, ...]] = {
    "settings": (),
    "target": (),
    "draft": (),
    "tokenizers": ROLES,
    "data": ("settings",),
    "prompts": ("settings", "tokenizers", "data"),
    "memory": ("settings", *ROLES, "prompts"),
    "two prompts": ("settings", *ROLES, "tokenizers", "data", "prompts", "memory"),
}


def _look_at_settings(cfg: DictConfig, known: _Known) -> str:
    if trains_head(cfg):
        objective_settings(cfg)
    known.task, known.settings, _ = check_settings(cfg)
    fabric = job_fabric(cfg, None)
    known.device, known.num_processes = fabric.device, fabric.world_size
    parts = [known.task.name, f"up to {known.settings.max_new_tokens} new tokens", known.device]
    return ", ".join(map(str, parts))


def _look_at_model(cfg: DictConfig, known: _Known, role: str) -> str:
    if cfg.model.dtype not in DTYPES:
        raise InputError(f"model.dtype={cfg.model.dtype!r}: must be one of {', '.join(DTYPES)}")
    place = find_model(role, model_source(cfg, role))
    known.configs[role] = place.load_config()
    known.places[role] = place
    return place.where if place.commit is None else f"{place.where} at {place.commit}"


def _look_at_tokenizers(cfg: DictConfig, known: _Known) -> str:
    tokenizers = {role: known.places[role].load_tokenizer() for role in ROLES}
    check_same_tokenizer(
        *(tokenizers["target"], tokenizers["draft"], cfg.model.target.name, cfg.model.draft.name)
    )
    known.tokenizer = tokenizers["target"]
    has_template = known.tokenizer.chat_template is not None
    return f"the same {_vocab_size(known)} ids, {'a' if has_template else 'no'} chat template"


def _look_at_data(cfg: DictConfig, known: _Known) -> str:
    task = _present(known.task)
    has_template = known.tokenizer is not None and known.tokenizer.chat_template is not None
    settle_task(cfg, task, has_template, _context(known) or 0)
    wanted = [cfg.evaluation.split]
    if trains_head(cfg) or "finetune" in cfg:
        wanted += [name for name in ("train", "validation") if name not in wanted]
    for split in wanted:
        number = cfg.evaluation.num_prompts if split == cfg.evaluation.split else None
        known.examples[split] = first_examples(task, split, number, "evaluation.num_prompts")
    return ", ".join(f"{len(rows)} {split} rows" for split, rows in known.examples.items())


def _look_at_prompts(cfg: DictConfig, known: _Known) -> str:
    """Measure the first prompts of each split."""
    context = _present(_context(known))
    task = _present(known.task)
    settings = within_context(cfg, _present(known.settings), context)
    side = _PromptSide(_present(known.tokenizer), context)
    decoder = SpeculativeDecoder(
        cast(ModelPair, side), LosslessVerifier(), settings, task.stop_strings
    )
    known.settings = settings
    fitted = [
        fit_prompt(decoder, task, example)
        for rows in known.examples.values()
        for example in rows[:NUM_MEASURED]
    ]
    lengths = [len(decoder.encode_prompt(fit.prompt)) for fit in fitted]
    known.longest_prompt = max(lengths)
    num_cut = sum(fit.is_cut for fit in fitted)
    return (
        f"{min(lengths)} to {known.longest_prompt} tokens in the first {len(lengths)}, {num_cut} "
        f"of them cut; context {context}"
    )


def _look_at_memory(cfg: DictConfig, known: _Known) -> str:
    dtype, device = DTYPES[cfg.model.dtype], _present(known.device)
    needed = pair_memory(
        known.configs["target"],
        known.configs["draft"],
        dtype,
        _vocab_size(known),
        _workload(cfg, known),
    )
    weights = needed.target_weights + needed.draft_weights
    decoding = {
        "weights": weights,
        "caches": needed.target_cache + needed.draft_cache,
        "working space": needed.distributions + needed.activations + needed.head_inputs,
    }
    phases = {_DECODING_ADVICE: decoding}
    if "finetune" in cfg:
        phases[_FINETUNING_ADVICE] = _finetuning(cfg, known, needed.target_weights, device)
    free = free_bytes(device)
    for advice, parts in phases.items():
        _check_room(parts, free, device, advice)
    if device.type != "cpu":  # weights are read there first
        host = torch.device("cpu")
        _check_room({"weights": weights}, host_free_bytes(), host, _DECODING_ADVICE)
    there = "an unknown amount" if free is None else _size(free)
    largest = max(phases.values(), key=lambda parts: sum(parts.values()))
    return f"{_spelt(largest)}, {there} free on {device}"


_DECODING_ADVICE = (
    "evaluation.batch_size, when training objective.prompts_per_step or "
    "objective.samples_per_prompt, or choose smaller models"
)
_FINETUNING_ADVICE = "finetune.batch_size, set adapter=lora, or choose a smaller draft"


def _check_room(
    parts: Mapping[str, int], free: int | None, device: torch.device, advice: str
) -> None:
    if free is not None and sum(parts.values()) > free:
        raise InputError(
            f"{_spelt(parts)}, but only {_size(free)} are free on {device}: lower {advice}"
        )


def _finetuning(
    cfg: DictConfig, known: _Known, target_weights: int, device: torch.device
) -> dict[str, int]:
    """Return the bytes that the training of a draft needs, by what they are for."""
    longest = _present(known.longest_prompt) + _present(known.settings).max_new_tokens
    needed = finetuning_memory(cfg, known.configs["draft"], longest)
    parts = {
        "weights": target_weights + needed.weights,
        "gradients": needed.gradients,
        "optimizer": needed.optimizer,
        "activations": needed.activations,
    }
    if device.type == "cpu":  # where the best weights are kept
        parts["best draft"] = needed.gradients
    return parts


def _workload(cfg: DictConfig, known: _Known) -> Workload:
    """Return the largest batch of one process: of the evaluation, or of a rollout."""
    rows = len(known.examples[cfg.evaluation.split]) * cfg.evaluation.samples_per_prompt
    num_rows = min(math.ceil(rows / known.num_processes), cfg.evaluation.batch_size)
    is_training = trains_head(cfg)
    if is_training:
        num_prompts = math.ceil(cfg.objective.prompts_per_step / known.num_processes)
        num_rows = max(num_rows, num_prompts * cfg.objective.samples_per_prompt)
    settings = _present(known.settings)
    return Workload(
        num_rows=num_rows,
        prompt_length=_present(known.longest_prompt),
        max_new_tokens=settings.max_new_tokens,
        draft_length=settings.draft_length,
        keeps_head_inputs=is_training,
    )


def _spelt(parts: Mapping[str, int]) -> str:
    spelt = " + ".join(f"{name} {_size(size)}" for name, size in parts.items())
    return spelt if len(parts) == 1 else f"{spelt} = {_size(sum(parts.values()))}"


def _size(number: int) -> str:
    """Return bytes as people read them."""
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def _decode_two(cfg: DictConfig) -> str:
    """Do what the job does, on two prompts."""
    setup = set_up(cfg)
    if trains_head(cfg):
        check_training(cfg, setup, Path())
    examples = setup.examples[:NUM_DECODED]
    started = time.perf_counter()
    rows = evaluate_task(setup.decoder, setup.task, examples).rows
    seconds = time.perf_counter() - started
    for row in rows:
        if row["error"] is not None:
            raise InputError(f"{row['prompt_id']}: {row['error']}")
    tokens = sum(row["num_tokens"] for row in rows)
    scores = ", ".join(f"{row['quality']:.3g}" for row in rows)
    return f"{tokens} tokens in {seconds:.1f} s, {setup.task.quality_name} {scores}"


def _context(known: _Known) -> int | None:
    configs = known.configs.values()
    return min(map(context_length, configs)) if len(known.configs) == len(ROLES) else None


def _vocab_size(known: _Known) -> int:
    return max(_present(known.tokenizer).get_vocab().values()) + 1


def _present(value: Any) -> Any:
    """Return what an earlier step has found."""
    if value is None:
        raise RuntimeError("an earlier step has left something out")
    return value
