"""Predicted and measured speed, on a clock that model calls alone move, and on the real one."""

from types import SimpleNamespace

import numpy as np
import pytest

from diversed.core.loop import DecodeSettings
from diversed.core.probs import Sampling
from diversed.core.verifiers import AutoregressiveVerifier, LosslessVerifier, StaticVerifier
from diversed.evaluation import timing
from diversed.evaluation.speed import _ClockedDecoder, compare_speeds
from diversed.generation import SpeculativeDecoder
from diversed.models.hf import HFLanguageModel
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.theory.speed import StepCosts, predicted_speedup

PLAIN = Sampling()
NUM_PROMPTS = 2
NUM_JOBS = 6  # three decoders, with and without clocks
PREFILL, DRAFT_STEP, TARGET_STEP, PER_TOKEN = 50.0, 2.0, 10.0, 0.5  # seconds of the fake clock


@pytest.fixture(scope="module")
def fake_clock(pair):
    """Let only the models' calls take time, and a known one."""
    now = [0.0]
    start, step = HFLanguageModel.start, HFLanguageModel.step

    def timed_start(self, prompt_ids, prompt_mask):
        now[0] += PREFILL
        start(self, prompt_ids, prompt_mask)

    def timed_step(self, input_ids):
        is_draft = self.model is pair.draft.model
        now[0] += DRAFT_STEP if is_draft else TARGET_STEP + PER_TOKEN * input_ids.shape[1]
        return step(self, input_ids)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HFLanguageModel, "start", timed_start)
        patch.setattr(HFLanguageModel, "step", timed_step)
        patch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: now[0]))
        yield now


def requests(number):
    task = ArithmeticTask()
    return [task.prompt(each) for each in task.examples("test").select(range(number))]


def decoders(pair, sampling=PLAIN, **verifiers):
    task = ArithmeticTask()
    settings = DecodeSettings(max_new_tokens=task.max_new_tokens, sampling=sampling)
    rules = {"plain": AutoregressiveVerifier(), **verifiers}
    return {
        name: SpeculativeDecoder(pair, rule, settings, task.stop_strings)
        for name, rule in rules.items()
    }


def compare(pair, number, num_repeats=1, **options):
    """Compare at temperature 0, where nothing is luck."""
    rules = {"exact": LosslessVerifier(), "half": StaticVerifier(0.5, bonus="target")}
    return compare_speeds(
        decoders(pair, Sampling(0.0), **rules),
        requests(number),
        list(range(number)),
        num_repeats=num_repeats,
        num_warmup=0,
        num_resamples=50,
        **options,
    )


@pytest.fixture(scope="module")
def comparison(pair, fake_clock):
    """Two prompts; in the first round other processes take half of the time."""
    shipped = _ClockedDecoder.run
    num_runs = 0

    def disturbed(self, prompt, key):
        nonlocal num_runs
        num_runs += 1
        numbers, trace = shipped(self, prompt, key)
        if num_runs <= NUM_PROMPTS * NUM_JOBS:
            numbers = {k: v * 2 if k.endswith("seconds") else v for k, v in numbers.items()}
        return numbers, trace

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_ClockedDecoder, "run", disturbed)
        return compare(pair, NUM_PROMPTS, num_repeats=2)


def test_costs_are_those_of_the_clock_though_other_processes_slowed_one_round(comparison):
    table = comparison.table
    unit = TARGET_STEP + PER_TOKEN
    np.testing.assert_allclose(table["unit_seconds"], unit)
    np.testing.assert_allclose(table["draft_step"], DRAFT_STEP / unit)
    np.testing.assert_allclose(table[["overhead", "plain_overhead"]], 0, atol=1e-12)
    full_pass = (TARGET_STEP + PER_TOKEN * 6) / unit
    assert table["target_pass"].between(full_pass - 0.05, full_pass).all()  # short blocks, too


def test_prediction_holds_but_for_the_short_last_block_of_a_text(comparison):
    table = comparison.table
    np.testing.assert_allclose(table["mean_accepted"], table["counted_accepted"], atol=1e-6)
    assert table["predicted_to_measured"].between(0.95, 1.05).all()
    assert table["measured_speedup"].is_monotonic_increasing  # half accepts more than exact
    assert (table["measured_speedup_with_prompt"] < table["measured_speedup"]).all()


def test_prediction_is_the_models_and_stands_between_its_bounds(comparison):
    for row in comparison.table.to_dict("records"):
        costs = StepCosts(*(row[name] for name in ("draft_step", "target_pass", "overhead")))
        expected = predicted_speedup(row["mean_accepted"], row["num_draft_steps"], costs)
        assert row["predicted_speedup"] == pytest.approx(expected)
        extra = row["full_acceptance"] if row["run_name"] == "exact" else 0
        assert row["num_draft_steps"] == pytest.approx(row["draft_length"] + extra)
        for name in ("mean_accepted", "predicted_speedup", "measured_speedup"):
            assert row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
            assert row[f"{name}_low"] < row[f"{name}_high"]
        ratio = row["predicted_speedup"] / row["measured_speedup"]
        assert row["predicted_to_measured"] == pytest.approx(ratio)


def test_runs_are_interleaved_and_clocked_ones_are_runs_of_their_own(comparison):
    runs = comparison.runs
    jobs = list(zip(runs["run_name"], runs["is_clocked"], strict=True))
    bare = [("plain", False), ("exact", False), ("half", False)]
    one_round = [*bare, ("exact", True), ("half", True), ("plain", True)]
    assert jobs[: 2 * NUM_JOBS] == [*one_round, *one_round[1:], one_round[0]]
    turns = runs.iloc[::NUM_JOBS]
    assert turns["prompt"].tolist() == [0, 1, 0, 1]
    assert turns["repeat"].tolist() == [0, 0, 1, 1]
    clocked = runs[runs["is_clocked"]]
    plain = clocked[clocked["run_name"] == "plain"]
    assert (plain["num_target"] == plain["num_tokens"]).all()
    assert (plain["num_draft"] == 0).all()
    in_models = clocked["target_seconds"] + clocked["draft_seconds"]
    np.testing.assert_allclose(in_models, clocked["decode_seconds"])
    assert runs.loc[~runs["is_clocked"], "num_target"].isna().all()
    calm = runs[runs["repeat"] == 1]
    prefills = calm["run_name"].map({"plain": 1, "exact": 2, "half": 2}) * PREFILL
    np.testing.assert_allclose(calm["seconds"] - calm["decode_seconds"], prefills)


@pytest.mark.usefixtures("fake_clock")
def test_one_rule_may_give_the_costs_of_all(pair):
    comparison = compare(pair, 1, calibration="exact")
    for name in ("draft_step", "target_pass", "overhead", "unit_seconds"):
        assert comparison.table[name].nunique() == 1
    clocked = comparison.runs.query("is_clocked")
    assert set(clocked["run_name"]) == {"plain", "exact"}


def test_what_cannot_be_compared_is_refused(pair):
    both = decoders(pair, exact=LosslessVerifier())
    exact = {"exact": both["exact"]}
    with pytest.raises(ValueError, match="must hold one plain decoder, got 0"):
        compare_speeds(exact, ["a"], [0])
    with pytest.raises(ValueError, match="no decoder with a draft"):
        compare_speeds({"plain": both["plain"]}, ["a"], [0])
    with pytest.raises(ValueError, match="calibration='plain': must be one of exact"):
        compare_speeds(both, ["a"], [0], calibration="plain")
    with pytest.raises(ValueError, match="num_repeats=0: must be at least 1"):
        compare_speeds(both, ["a"], [0], num_repeats=0)


@pytest.mark.slow
def test_prediction_is_within_a_tenth_of_the_wall_clock(pair):
    """For a quiet machine, two minutes: each rule's own costs, then those of exact decoding.

    The luck of 24 prompts' 500 blocks moves the measured speed-up by about 2 %.
    """
    rules = {
        "exact": LosslessVerifier(),
        "half": StaticVerifier(0.5),
        "draft": StaticVerifier(0.0),
    }
    for calibration in (None, "exact"):
        table = compare_speeds(
            decoders(pair, **rules), requests(24), list(range(24)), calibration=calibration
        ).table
        assert table["predicted_to_measured"].between(0.9, 1.1).all(), table
