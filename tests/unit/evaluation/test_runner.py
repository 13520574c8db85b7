"""Evaluation of a split with the embedded pair: rows, errors, and the law of what it counts."""

import logging
import math

import pytest
from scipy.stats import norm

from diversed.core import kernel
from diversed.core.loop import DecodeSettings
from diversed.core.verifiers import AutoregressiveVerifier, StaticVerifier
from diversed.evaluation import runner
from diversed.evaluation.runner import corpus_metrics, evaluate_task
from diversed.generation import PromptError, SpeculativeDecoder
from diversed.records.schema import ROW_COLUMNS, TRACE_COLUMNS
from diversed.tasks.arithmetic import ArithmeticTask

TASK = ArithmeticTask(num_test=220)
FALSE_ALARM = 1e-6
COMPARED = [name for name in ROW_COLUMNS if name != "seconds"]


@pytest.fixture(scope="module")
def task():
    return TASK


@pytest.fixture(scope="module")
def examples():
    return list(TASK.examples("test"))


def decoder(pair, verifier=None, max_new_tokens=40, seed=1):
    settings = DecodeSettings(max_new_tokens=max_new_tokens, draft_length=4, seed=seed)
    return SpeculativeDecoder(pair, verifier or StaticVerifier(0.5), settings)


def by_sample(evaluation):
    return {(row["prompt_id"], row["sample"]): row for row in evaluation.rows}


@pytest.fixture(scope="module")
def evaluation(pair, task, examples):
    # long enough for some answers to end, short enough for some to be cut
    return evaluate_task(
        decoder(pair, max_new_tokens=70), task, examples[:6], samples_per_prompt=2, batch_size=8
    )


def test_rows_and_trace_have_exactly_the_columns_of_the_schema(evaluation):
    assert all(row.keys() == ROW_COLUMNS.keys() for row in evaluation.rows)
    assert list(evaluation.trace.columns) == list(TRACE_COLUMNS)


def test_there_is_one_row_per_prompt_and_sample(evaluation, examples):
    wanted = {(example["id"], sample) for example in examples[:6] for sample in (0, 1)}
    assert set(by_sample(evaluation)) == wanted
    assert len(evaluation.rows) == len(wanted)


def test_samples_of_a_prompt_differ(evaluation, examples):
    rows = by_sample(evaluation)
    assert any(rows[e["id"], 0]["text"] != rows[e["id"], 1]["text"] for e in examples[:6])


def test_rows_state_what_the_task_says_of_the_text(evaluation, task, examples):
    known = {example["id"]: example for example in examples}
    for row in evaluation.rows:
        example = known[row["prompt_id"]]
        assert row["prompt"] == task.prompt(example)
        assert row["reference"] == example["answer"]
        assert row["answer"] == task.extract(row["text"])
        assert row["quality"] == task.score(row["text"], example)


def test_ends_are_told_apart(evaluation):
    reasons = {row["end_reason"] for row in evaluation.rows}
    assert reasons == {"eos", "length"}, "this sample must hold both ends"
    for row in evaluation.rows:
        assert row["is_truncated"] == (row["end_reason"] == "length")
        assert not row["is_truncated"] or row["num_tokens"] == 70


def test_counts_are_those_of_the_trace(evaluation):
    statuses = {
        "num_tokens": ["accepted", "recovered", "bonus"],
        "num_drafted": ["accepted", "rejected", "unjudged"],
        "num_judged": ["accepted", "rejected"],
        "num_accepted": ["accepted"],
        "num_recovered": ["recovered"],
        "num_bonus": ["bonus"],
    }
    for key, part in evaluation.trace.groupby(["prompt_id", "sample"]):
        row = by_sample(evaluation)[key]
        for name, counted in statuses.items():
            assert row[name] == part["status"].isin(counted).sum(), name
        assert row["num_blocks"] == part["block"].nunique()


def test_acceptance_and_bias_are_means_over_emitted_tokens(evaluation):
    emitted = evaluation.trace[evaluation.trace["status"].isin(["accepted", "recovered", "bonus"])]
    for key, part in emitted.groupby(["prompt_id", "sample"]):
        row = by_sample(evaluation)[key]
        acceptance = 1 - 0.5 * part["tv_distance"]
        assert row["expected_acceptance"] == pytest.approx(acceptance.mean(), abs=1e-6)
        assert row["expected_acceptance_sum"] == pytest.approx(acceptance.sum(), abs=1e-4)
        assert row["bias"] == pytest.approx((0.5 * part["tv_distance"]).mean(), abs=1e-6)
        assert row["mean_target_weight"] == pytest.approx(0.5)
        assert part["expected_acceptance"].mean() == pytest.approx(row["expected_acceptance"])


def test_trace_spells_the_completion(evaluation):
    emitted = evaluation.trace[evaluation.trace["status"].isin(["accepted", "recovered", "bonus"])]
    for key, part in emitted.groupby(["prompt_id", "sample"]):
        row = by_sample(evaluation)[key]
        part = part.sort_values("position")
        assert part["position"].tolist() == list(range(row["num_tokens"]))
        assert "".join(part["token"]).startswith(row["text"])


@pytest.mark.parametrize(("batch_size", "is_reversed"), [(1, False), (4, False), (3, True)])
def test_neither_batch_size_nor_order_changes_a_row(
    pair, task, examples, evaluation, batch_size, is_reversed
):
    chosen = examples[:2][::-1] if is_reversed else examples[:2]
    other = evaluate_task(
        decoder(pair, max_new_tokens=70), task, chosen, samples_per_prompt=2, batch_size=batch_size
    )
    first, second = by_sample(evaluation), by_sample(other)
    assert len(second) == 4
    for key, row in second.items():
        for name in COMPARED:
            value = row[name]
            wanted = pytest.approx(value, abs=1e-4) if isinstance(value, float) else value
            assert first[key][name] == wanted, (key, name)


def test_another_seed_gives_other_texts(pair, task, examples, evaluation):
    other = evaluate_task(decoder(pair, max_new_tokens=70, seed=2), task, examples[:2])
    first, second = by_sample(evaluation), by_sample(other)
    assert any(first[key]["text"] != row["text"] for key, row in second.items())


def overlong(example):
    return example | {"id": example["id"] + "/long", "question": example["question"] * 20}


def test_overlong_prompt_among_good_ones_is_a_row_with_an_error(pair, task, examples, caplog):
    chosen = [examples[0], overlong(examples[1]), examples[2]]
    with caplog.at_level(logging.WARNING):
        evaluation = evaluate_task(decoder(pair), task, chosen, samples_per_prompt=2)
    failed = [row for row in evaluation.rows if row["error"] is not None]
    assert [(row["prompt_id"], row["sample"]) for row in failed] == [
        (chosen[1]["id"], 0),
        (chosen[1]["id"], 1),
    ]
    for row in failed:
        assert row.keys() == ROW_COLUMNS.keys()
        assert "decoding.max_new_tokens=40" in row["error"]
        assert row["quality"] is row["text"] is row["num_tokens"] is None
    assert "2 of 6 prompts cannot be decoded" in caplog.text
    alone = evaluate_task(decoder(pair), task, [examples[0], examples[2]])
    for key, row in by_sample(alone).items():
        assert by_sample(evaluation)[key]["text"] == row["text"]


class LongTask(ArithmeticTask):
    """Its questions may lose their end."""

    long_column = "question"


def test_overlong_prompt_of_a_long_column_is_cut_and_said_so(pair, task, examples, caplog):
    chosen = [examples[0], overlong(examples[1])]
    with caplog.at_level(logging.WARNING):
        evaluation = evaluate_task(decoder(pair), LongTask(), chosen, samples_per_prompt=2)
    assert [row["is_prompt_cut"] for row in evaluation.rows] == [False, False, True, True]
    assert all(row["error"] is None for row in evaluation.rows)
    whole, cut = chosen[1]["question"], evaluation.rows[2]["prompt"]
    assert whole.startswith(cut.strip())
    assert len(pair.tokenizer(cut).input_ids) + 40 <= 256 < len(pair.tokenizer(whole).input_ids)
    assert "1 of 2 prompts were cut at the end of question to fit" in caplog.text


class UnreliableTask(ArithmeticTask):
    """Its scorer fails on some examples."""

    def __init__(self, failing, score=None):
        super().__init__(num_test=220)
        self._failing = failing
        self._score = score

    def score(self, text, example):
        if example["id"] not in self._failing:
            return super().score(text, example)
        if self._score is None:
            raise OSError("the sandbox\nis gone")
        return self._score

    def corpus_metrics(self, texts, examples):
        assert len(texts) == len(examples)
        assert not self._failing & {example["id"] for example in examples}
        return {"length": sum(map(len, texts)) / len(texts)}


@pytest.mark.parametrize(
    ("score", "error"),
    [
        (None, "scoring failed: OSError: the sandbox is gone"),
        (1.5, "scoring failed: the score 1.5 is not in [0, 1]"),
        (math.nan, "scoring failed: the score nan is not in [0, 1]"),
    ],
)
def test_a_failure_of_the_scorer_is_a_row_with_completion_and_error(
    pair, task, examples, caplog, score, error
):
    unreliable = UnreliableTask({examples[1]["id"]}, score)
    with caplog.at_level(logging.WARNING):
        evaluation = evaluate_task(decoder(pair), unreliable, examples[:3], batch_size=2)
    wanted = evaluate_task(decoder(pair), task, examples[:3], batch_size=2)
    for row, other in zip(evaluation.rows, wanted.rows, strict=True):
        changed = {"seconds": row["seconds"]}
        if row["prompt_id"] == examples[1]["id"]:
            changed |= {"quality": None, "error": error}
        assert row == other | changed
    assert f"1 of 3 completions cannot be scored ({error})" in caplog.text


def test_corpus_metrics_see_the_rows_that_have_a_score(pair, examples):
    unreliable = UnreliableTask({examples[1]["id"]})
    evaluation = evaluate_task(decoder(pair), unreliable, examples[:3], samples_per_prompt=2)
    texts = [row["text"] for row in evaluation.rows if row["error"] is None]
    assert len(texts) == 4
    metrics = corpus_metrics(unreliable, examples[:3], evaluation.rows)
    assert metrics == {"length": sum(map(len, texts)) / 4}
    failed = [row for row in evaluation.rows if row["error"] is not None]
    assert corpus_metrics(unreliable, examples[:3], failed) == {}
    assert corpus_metrics(ArithmeticTask(), examples[:3], evaluation.rows) == {}


class BrokenTask(ArithmeticTask):
    """Its batched scorer is of no use."""

    def score_batch(self, texts, examples):
        if len(texts) == 2:
            raise ValueError("a pool died")
        return []


@pytest.mark.parametrize(
    ("batch_size", "error"),
    [(2, "ValueError: a pool died"), (3, "BrokenTask gave 0 scores for 3 completions")],
)
def test_a_failure_of_a_whole_batch_loses_no_completion(pair, examples, batch_size, error):
    chosen = examples[:batch_size]
    evaluation = evaluate_task(decoder(pair), BrokenTask(), chosen, batch_size=batch_size)
    assert {row["error"] for row in evaluation.rows} == {f"scoring failed: {error}"}
    assert all(row["text"] for row in evaluation.rows)


def test_nothing_but_overlong_prompts_is_an_error_that_names_the_key(pair, task, examples):
    with pytest.raises(PromptError, match=r"decoding\.max_new_tokens=40.*context"):
        evaluate_task(decoder(pair), task, [overlong(example) for example in examples[:2]])


def test_plain_decoding_has_no_acceptance(pair, task, examples):
    evaluation = evaluate_task(decoder(pair, AutoregressiveVerifier()), task, examples[:2])
    for row in evaluation.rows:
        assert row["num_drafted"] == row["num_accepted"] == row["num_draft_calls"] == 0
        assert row["num_bonus"] == row["num_tokens"] == row["num_blocks"] > 0
        assert row["expected_acceptance"] is row["bias"] is row["mean_target_weight"] is None


def test_much_longer_prompts_have_batches_of_their_own(pair, task, examples, monkeypatch):
    lengths = [len(decoder(pair).encode_prompt(task.prompt(example))) for example in examples[:8]]
    middle = sorted(lengths)[3]
    assert lengths != sorted(lengths)
    assert middle < max(lengths) <= 4 * middle
    monkeypatch.setattr(runner, "_SHORT_PROMPT", middle)
    batches = []
    options = {"batch_size": 3, "keep": batches.append}
    evaluate_task(decoder(pair, max_new_tokens=2), task, examples[:8], **options)
    ids = [[row["prompt_id"] for row in batch.rows] for batch in batches]
    pairs = list(zip(examples[:8], lengths, strict=True))
    short = [example["id"] for example, length in pairs if length <= middle]
    long = [example["id"] for example, length in pairs if length > middle]
    wanted = [group[n : n + 3] for group in (short, long) for n in range(0, len(group), 3)]
    assert ids == wanted


def test_progress_adds_up_to_the_rows(pair, task, examples):
    finished = []
    options = {"samples_per_prompt": 2, "batch_size": 4, "progress": finished.append}
    evaluate_task(decoder(pair, max_new_tokens=2), task, examples[:5], **options)
    assert finished == [4, 4, 2]


@pytest.mark.parametrize("name", ["samples_per_prompt", "batch_size"])
def test_numbers_below_1_are_refused_by_name(pair, task, examples, name):
    with pytest.raises(ValueError, match=rf"evaluation\.{name}=0"):
        evaluate_task(decoder(pair), task, examples[:1], **{name: 0})


def test_no_examples_are_refused(pair, task):
    with pytest.raises(ValueError, match="no examples"):
        evaluate_task(decoder(pair), task, [])


def acceptance_score(pair, task, examples, num_prompts):
    """Return z of accepted tokens against their expectation, clustered by prompt."""
    short = decoder(pair, max_new_tokens=10, seed=11)
    evaluation = evaluate_task(short, task, examples[:num_prompts], batch_size=100)
    judged = evaluation.trace[evaluation.trace["status"].isin(["accepted", "rejected"])]
    surplus = (judged["status"] == "accepted") - (1 - 0.5 * judged["tv_distance"])
    by_prompt = surplus.groupby(judged["prompt_id"]).sum()
    assert len(by_prompt) == num_prompts
    return by_prompt.sum() / math.sqrt((by_prompt**2).sum())


@pytest.mark.statistical
def test_accepted_tokens_are_as_many_as_1_minus_w_tv_says(pair, task, examples, monkeypatch):
    """Count accepted tokens at judged positions, static w = 0.5, 200 prompts of up to 10 tokens.

    Null: a judged token is accepted with probability 1 - w TV given everything before it, so the
    surplus of each prompt has mean zero and the prompts are independent. z-test, false alarm 1e-6,
    fixed seed. The mutant, seen on 100 prompts, accepts as if w were 1.
    """
    threshold = norm.isf(FALSE_ALARM / 2)
    assert abs(acceptance_score(pair, task, examples, 200)) < threshold
    shipped = kernel.mixture_accept_probs
    monkeypatch.setattr(
        kernel, "mixture_accept_probs", lambda p, q, weight: shipped(p, q, weight * 0 + 1)
    )
    assert abs(acceptance_score(pair, task, examples, 100)) > threshold
