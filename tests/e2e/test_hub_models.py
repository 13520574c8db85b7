"""Models and heads from a hub that answers, and from the cache when it no longer does."""

import json

import pytest
from script_processes import run_script

pytestmark = pytest.mark.e2e

COMMIT = "c0ffee" + "0" * 34


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    changes = {
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "NO_PROXY": "127.0.0.1",
    }
    done = run_script(folder, "tests/e2e/hub_scenario.py", str(folder / "head"), COMMIT, **changes)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}


@pytest.mark.parametrize("state", ["online", "cached"])
def test_commit_of_a_branch_is_resolved_and_recorded(report, state):
    assert [report[state][role]["revision"] for role in ("target", "draft")] == [COMMIT] * 2
    assert [report[state][role]["num_parameters"] > 0 for role in ("target", "draft")] == [True] * 2


def test_cache_takes_over_at_once_and_says_so(report):
    """Each file used to be asked for six times over 23 seconds, with warnings."""
    assert report["cached_s"] < 10
    for name in ("some/target", "some/draft", "some/head"):
        assert f"{name}: the hub cannot be reached" in report["stderr"]
    assert report["stderr"].count(f"using the cached commit {COMMIT}") == 3
    assert "Retry" not in report["stderr"]


def test_heads_come_from_hub_and_cache(report):
    assert report["online_weight"] == report["cached_weight"] == pytest.approx(0.25)


FROM_HUB = "cannot be loaded from the hub"


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("name", f"model.target.name=some/other: {FROM_HUB} (the hub has no such repository"),
        (
            "revision",
            f"model.draft.name=some/draft: {FROM_HUB} (the repository has no revision v9)",
        ),
        ("unreachable", f"model.target.name=some/other: {FROM_HUB} (the hub cannot be reached"),
        ("head", "verifier.checkpoint=some/other-head: no such folder, and no such head on the"),
    ],
)
def test_what_cannot_be_had_is_one_quick_line(report, kind, message):
    """An unreachable hub used to cost most of a minute."""
    line, seconds = report["failures"][kind]
    assert line.startswith(message)
    assert len(line.splitlines()) == 1
    assert seconds < 5
