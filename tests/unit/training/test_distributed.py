"""Two processes against one with the same batch: gradients, heads, what is logged, records.

Both do what `distributed_scenarios.py` says. Batches of other widths round differently, by some
1e-7, so numbers are compared to 1e-6.
"""

import math
import os
import subprocess
import sys
from pathlib import Path

import distributed_scenarios
import pytest
import torch
from distributed_scenarios import ADVANTAGES, RESULTS_FILE, scenarios
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from small_run import SmallRun

from diversed.models.loading import load_tiny_pair
from diversed.objective.share import BatchShare
from diversed.training.distributed import gather_on_first, own_part

PATIENCE_S = 150
TOLERANCE = {"atol": 1e-6, "rtol": 1e-5}
TIMINGS = {"train/rollout_seconds", "train/update_seconds", "train/tokens_per_second"}
TRAININGS = (*ADVANTAGES, "unscored", "long")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return what one process comes to."""
    return scenarios(load_tiny_pair(), tmp_path_factory.mktemp("alone"), dict)


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """Return what each of two processes comes to; they must not wait for each other for ever."""
    folder = tmp_path_factory.mktemp("together")
    port = find_free_network_port()
    script = Path(distributed_scenarios.__file__)
    variables = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    commands = [[sys.executable, str(script), str(rank), str(port), str(folder)] for rank in (0, 1)]
    started = [
        subprocess.Popen(command, env=os.environ | variables, stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    try:
        for process in started:
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, errors
    finally:
        for process in started:
            process.kill()
            process.wait()
    return [
        torch.load(folder / RESULTS_FILE.format(rank=rank), weights_only=True) for rank in (0, 1)
    ]


@pytest.mark.parametrize("name", TRAININGS)
def test_gradients_are_those_of_one_process(alone, together, name):
    wanted = alone[name]["gradients"]
    assert len(wanted) == 2 * alone[name]["rollouts"] > 0
    assert max(float(gradient.norm()) for gradient in wanted) > 1e-3
    for results in together:
        got = results[name]["gradients"]
        assert len(got) == len(wanted)
        for number, (one, other) in enumerate(zip(got, wanted, strict=True)):
            torch.testing.assert_close(one, other, **TOLERANCE, msg=f"update {number}")


@pytest.mark.parametrize("name", TRAININGS)
def test_head_its_standardisation_and_the_baseline_are_those_of_one_process(alone, together, name):
    wanted = alone[name]
    for results in together:
        got = results[name]
        for key, value in wanted["head"].items():
            torch.testing.assert_close(got["head"][key], value, **TOLERANCE, msg=key)
        assert got["baseline"] == pytest.approx(wanted["baseline"], abs=1e-5)
        assert got["best_step"] == wanted["best_step"]
        for one, other in zip(got["history"], wanted["history"], strict=True):
            assert one == pytest.approx(other, abs=1e-6)
    first, second = (results[name]["head"] for results in together)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["input_mean"], wanted["start"]["input_mean"])


@pytest.mark.parametrize("name", TRAININGS)
def test_what_is_logged_is_of_all_processes(alone, together, name):
    def numbers(results):
        return [
            (step, {key: value for key, value in metrics.items() if key not in TIMINGS})
            for step, metrics in results[name]["logged"]
        ]

    wanted, got = numbers(alone), numbers(together[0])
    assert [step for step, _ in got] == [step for step, _ in wanted]
    for (_, one), (_, other) in zip(got, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-5, nan_ok=True)
    errors = [metrics.get("train/num_score_errors", 0) for _, metrics in got]
    assert sum(errors) == (2 if name == "unscored" else 0)


def test_a_process_without_a_scored_prompt_takes_part(alone, together):
    """Each process has one prompt, and in one rollout it is one that cannot be scored."""
    for results in (alone, *together):
        assert results["unscored"]["rollouts"] == 2
        assert len(results["unscored"]["gradients"]) == 4


def test_processes_of_different_length_meet_again(together):
    """The one with two prompts, and longer ones, has more to decode."""
    steps = [results["long"]["num_steps"] for results in together]
    assert steps[0] != steps[1]
    assert [results["long"]["rollouts"] for results in together] == [1, 1]


def test_where_nothing_can_be_scored_every_process_says_so(alone, together):
    for results in (alone, *together):
        assert (
            "none of the 3 prompts could be scored (RuntimeError: no sandbox)"
            in (results["nothing"]["error"])
        )
        assert results["nothing"]["gradients"] == []


def test_the_first_process_alone_writes_checkpoints(together):
    assert [results["rloo"]["has_checkpoint"] for results in together] == [True, False]


def test_a_stop_asked_of_one_process_ends_all_after_the_same_rollout(alone, together):
    assert [results["stopped"] for results in (alone, *together)] == [1, 1, 1]


def test_an_evaluation_has_every_row_once_and_in_order(alone, together):
    wanted, got = alone["evaluation"], together[0]["evaluation"]
    assert together[1]["evaluation"] is None
    assert got["sizes"] == [6, 4]  # two rows cannot be decoded, eight are dealt out
    keys = [(row["prompt_id"], row["sample"]) for row in wanted["rows"]]
    assert len(set(keys)) == len(keys) == 10
    assert [(row["prompt_id"], row["sample"]) for row in got["rows"]] == keys
    for one, other in zip(got["rows"], wanted["rows"], strict=True):
        for name, value in other.items():
            if name != "seconds":
                assert one[name] == (
                    pytest.approx(value, rel=1e-5, abs=1e-6) if isinstance(value, float) else value
                ), name


def test_an_evaluation_has_the_trace_of_every_row_once(alone, together):
    def ordered(results):
        place = ("prompt_id", "sample", "block", "block_position")
        return sorted(
            results["evaluation"]["trace"], key=lambda row: tuple(row[name] for name in place)
        )

    wanted, got = ordered(alone), ordered(together[0])
    assert len(got) == len(wanted) > 50
    for one, other in zip(got, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-5, nan_ok=True)


def test_the_first_process_is_asked(alone, together):
    assert [results["from_first"] for results in (alone, *together)] == [0, 0, 0]


def test_a_process_alone_has_everything():
    assert own_part([1, 2, 3]) == [1, 2, 3]
    assert gather_on_first("mine") == ["mine"]


@pytest.mark.parametrize(("start", "size"), [(0, 2), (2, 3), (1, 0)])
def test_a_share_finds_its_own_part_again(start, size):
    share = BatchShare(start=start, size=size, total=5, add=lambda values: values)
    own = torch.arange(1.0, size + 1)
    whole = share.whole(own)
    assert whole.sum() == own.sum()
    assert torch.equal(share.own(whole), own)
    assert math.isclose(share.fraction, size / 5)


class WrappingTrainer:
    """Says that Lightning's own DDP is at work."""

    world_size = 2
    strategy = object()


def test_a_strategy_that_reduces_gradients_itself_is_refused(tmp_path):
    run = SmallRun(load_tiny_pair(), tmp_path)
    run.module.trainer = WrappingTrainer()
    with pytest.raises(ValueError, match=r"trainer\.strategy: object does not fit .* trainer=ddp"):
        run.module.setup("fit")
