"""Offline environment, set before any library is imported, and what every test may use."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"

import pytest
import torch
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.load_profile("repeatable")


@pytest.fixture
def generator() -> torch.Generator:
    """Return a random generator with a fixed seed."""
    return torch.Generator().manual_seed(0)
