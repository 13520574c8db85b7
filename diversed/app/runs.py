"""A job as a run: its columns, its manifest, its command."""

import shlex
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from diversed.config import DecodingConfig
from diversed.core.verifiers import DiversedVerifier, StaticVerifier
from diversed.generation import SpeculativeDecoder
from diversed.models.loading import ModelPair
from diversed.records.manifest import build_manifest
from diversed.records.store import head_run, write_manifest
from diversed.tasks.base import Task


def run_columns(
    cfg: DictConfig, decoder: SpeculativeDecoder, task: Task, head_weight: float | None = None
) -> dict[str, Any]:
    """Return what the run is, as `records.schema.RUN_COLUMNS`."""
    verifier = decoder.verifier
    weight = verifier.weight if isinstance(verifier, StaticVerifier) else None
    dial = verifier.dial if isinstance(verifier, DiversedVerifier) else None
    sampling = decoder.settings.sampling
    if isinstance(verifier, DiversedVerifier):
        head = {} if head_weight is not None else head_run(cfg) or {}
        head_weight = head.get("acceptance_weight", head_weight)
        kind = getattr(verifier.head, "kind", "linear")
        setting = "" if kind == "linear" else f"-{kind}"
        setting += f"-lambda{head_weight:g}" if head_weight is not None else ""
        setting += f"-dial{dial:g}" if dial else ""
        setting += f"-from-{head['data']}" if head.get("data", task.name) != task.name else ""
        setting += f"-head{head['seed']}" if head.get("seed", cfg.seed) != cfg.seed else ""
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
        or f"{cfg.model.name}-{task.name}-{verifier.name}{setting}"
        f"{_unusual_decoding(cfg.decoding)}-seed{cfg.seed}",
        "method": verifier.name,
        "model": cfg.model.name,
        "data": task.name,
        "split": cfg.evaluation.split,
        "seed": cfg.seed,
        "setting": " ".join(f"{key}={value}" for key, value in verifier.settings.items()),
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


def _unusual_decoding(decoding: DictConfig) -> str:
    """Return what of the decoding is not the default, as a part of the run's name."""
    usual = DecodingConfig()
    letters = {"draft_length": "N", "temperature": "T", "top_k": "topk", "top_p": "topp"}
    return "".join(
        f"-{letter}{decoding[key]:g}"
        for key, letter in letters.items()
        if decoding[key] != getattr(usual, key)
    )


def plain(node: DictConfig) -> dict[str, Any]:
    """Return a config as plain containers, resolved; a missing value raises."""
    container = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    if not isinstance(container, dict):
        raise TypeError(f"expected a mapping, got {type(container).__name__}")
    return {str(key): value for key, value in container.items()}


def write_run_manifest(
    cfg: DictConfig,
    folder: Path,
    pair: ModelPair,
    task: Task,
    run: dict[str, Any],
    status: str,
    results: dict[str, Any] | None = None,
    head: str | None = None,
) -> dict[str, Any]:
    """Write what the run is, where it stands, and what came out of it; return all that."""
    manifest = build_manifest(
        run=run,
        config=plain(cfg),
        pair=pair.description,
        device=pair.device,
        status=status,
        results=results,
        data=task.provenance(),
        head_run=head_run(cfg),
        head=head,
    )
    write_manifest(folder, manifest)
    return manifest


def resume_advice(folder: Path) -> str:
    """Return how to go on with a run: this job's command, of a multirun that of the point alone."""
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else sys.argv[1:]
    arguments = [argument for argument in given if not argument.startswith("resume=")]
    return f"go on with: {shlex.join(['python', sys.argv[0], *arguments, f'resume={folder}'])}"
