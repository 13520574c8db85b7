"""Configs as the scripts compose them, without running a script."""

import itertools
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from diversed.config import register_schemas

ROOT = Path(__file__).resolve().parents[1]
CONFIG_FOLDER = ROOT / "conf"

SMALL_DATA = ("data.num_train=16", "data.num_validation=8", "data.num_test=16")
SMALL_EVALUATION = (*SMALL_DATA, "evaluation.num_prompts=8", "decoding.max_new_tokens=64")
SMALL_TRAINING = (
    *SMALL_DATA,
    "decoding.max_new_tokens=64",
    "evaluation.num_prompts=4",
    "objective.num_rollouts=2",
    "objective.prompts_per_step=2",
    "objective.samples_per_prompt=2",
    "objective.num_validation_prompts=4",
    "objective.validate_every=1",
    "trainer.accelerator=cpu",
    "trainer.enable_progress_bar=false",
)


def composed(program: str, *overrides: str) -> DictConfig:
    """Return the config of "train" or "eval" with overrides as on the command line."""
    register_schemas()
    with initialize_config_dir(str(CONFIG_FOLDER), version_base="1.3"):
        return compose(program, overrides=list(overrides))


def points(overrides: list[str]) -> list[tuple[str, ...]]:
    """Return every combination of the values that a multirun asks for."""
    parsed = OverridesParser.create().parse_overrides(overrides)
    options = [
        [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
        if override.is_sweep_override()
        else [override.input_line]
        for override in parsed
    ]
    return list(itertools.product(*options))
