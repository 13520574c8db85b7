"""What some tests need of the machine: a sandbox for programs, a folder of sample data."""

import os
from pathlib import Path

import pytest

from diversed.tasks.sandbox import TOOLS, fault_of

FAULTS = {tool: fault_of(tool) for tool in TOOLS}
needs_sandbox = pytest.mark.skipif(
    all(FAULTS.values()), reason=f"programs cannot be isolated here: {FAULTS}"
)

_SAMPLE_FOLDER = os.environ.get("DIVERSED_SAMPLE_DATA", "")
SAMPLE_DATA = Path(_SAMPLE_FOLDER)
needs_sample_data = pytest.mark.skipif(
    not _SAMPLE_FOLDER, reason="DIVERSED_SAMPLE_DATA names no folder of sample data"
)
