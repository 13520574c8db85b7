"""A job as a run: its columns, its manifest, the folder it resumes in."""

import logging
import shlex
import sys
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from diversed.config import InputError
from diversed.core.verifiers import DiversedVerifier, StaticVerifier
from diversed.generation import SpeculativeDecoder
from diversed.models.loading import ModelPair
from diversed.records.folders import differing_keys
from diversed.records.manifest import build_manifest
from diversed.records.store import MANIFEST_FILE, RecordsError, read_manifest, write_manifest
from diversed.tasks.base import Task

logger = logging.getLogger(__name__)


def run_columns(
    cfg: DictConfig, decoder: SpeculativeDecoder, task: Task, head_weight: float | None = None
) -> dict[str, Any]:
    """Return what the run is, as `records.schema.RUN_COLUMNS`."""
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


def _head_weight(checkpoint: str | None) -> float | None:
    """Return the lambda that a run's head was trained with, where its manifest is at hand."""
    manifest = run_manifest(checkpoint)
    weight: float | None = None if manifest is None else manifest["run"]["acceptance_weight"]
    return weight


def run_manifest(checkpoint: str | None) -> dict[str, Any] | None:
    """Return the manifest of the run that a head comes from, where it is at hand."""
    if checkpoint is None:
        return None
    folder = Path(checkpoint).expanduser()
    for candidate in (folder, folder.parent):
        if (candidate / MANIFEST_FILE).is_file():
            return read_manifest(candidate)
    return None


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
) -> None:
    """Write what the run is, where it stands, and what came out of it."""
    manifest = build_manifest(
        run=run,
        config=plain(cfg),
        pair=pair.description,
        device=pair.device,
        status=status,
        results=results,
        data=task.provenance(),
    )
    write_manifest(folder, manifest)


def resume_folder(cfg: DictConfig, folder: Path) -> Path:
    """Return the folder to write to: this job's own, or that of the run to resume."""
    if cfg.resume is None:
        return folder
    wanted = plain(cfg)
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


def job_command() -> str:
    """Return the command of this job alone, one point of a multirun too, without `resume`."""
    given = HydraConfig.get().overrides.task if HydraConfig.initialized() else sys.argv[1:]
    arguments = [argument for argument in given if not argument.startswith("resume=")]
    return shlex.join(["python", sys.argv[0], *arguments])
