"""What the tests of training share."""

import pytest
from small_run import SmallRun


@pytest.fixture
def small_run(pair, tmp_path):
    """Return a maker of runs; each has a folder below tmp_path."""
    return lambda name="run", **options: SmallRun(pair, tmp_path / name, **options)
