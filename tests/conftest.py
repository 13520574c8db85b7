"""Offline environment, set before any library is imported, and what every test may use."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from small_run import SmallRun

    from diversed.models.loading import ModelPair

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture
def generator() -> torch.Generator:
    """Return a random generator with a fixed seed."""
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def pair() -> "ModelPair":
    """Return the embedded pair, which the tests of a module share: none may change it."""
    from diversed.models.loading import load_tiny_pair

    return load_tiny_pair()


@pytest.fixture
def small_run(pair: "ModelPair", tmp_path: Path) -> "Callable[..., SmallRun]":
    """Return a maker of short trainings; each has a folder below tmp_path."""
    from small_run import SmallRun

    return lambda name="run", **options: SmallRun(pair, tmp_path / name, **options)
