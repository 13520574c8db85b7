"""Rollouts: what is kept of each token, against a second forward pass without a cache."""

import pytest
import torch

from diversed.core.loop import DecodeSettings
from diversed.core.probs import Sampling
from diversed.core.verifiers import StaticVerifier
from diversed.generation import SpeculativeDecoder, head_verifier, row_key
from diversed.models.checkpoint import new_head
from diversed.objective.acceptance import mixture_log_probs
from diversed.tasks.arithmetic import ArithmeticTask
from diversed.training.rollout import check_rollout_decoder, sample_rollout

TEMPERATURE = 0.8
NUM_SAMPLES = 2
STEP = 17
TASK = ArithmeticTask(num_train=3)


@pytest.fixture(scope="module")
def examples():
    return list(TASK.examples("train"))[:2]


@pytest.fixture(scope="module")
def head(pair):
    head = new_head(pair, uses_features=True)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return head


@pytest.fixture(scope="module")
def decoder(pair, head):
    settings = DecodeSettings(
        max_new_tokens=60, draft_length=4, sampling=Sampling(temperature=TEMPERATURE), seed=2
    )
    return SpeculativeDecoder(pair, head_verifier(head), settings)


@pytest.fixture(scope="module")
def rollout(decoder, examples):
    return sample_rollout(decoder, TASK, examples, NUM_SAMPLES, STEP)


@pytest.fixture(scope="module")
def completions(decoder, examples):
    """Return (prompt ids, completion ids, text) of the rollout's rows, in its order."""
    owners = [example for example in examples for _ in range(NUM_SAMPLES)]
    prompts = [TASK.prompt(example) for example in owners]
    keys = [
        row_key("train", STEP, example["id"], index % NUM_SAMPLES)
        for index, example in enumerate(owners)
    ]
    generation = decoder.generate(prompts, keys)
    prompt_ids = [decoder.encode_prompt(prompt) for prompt in prompts]
    rows = zip(prompt_ids, generation.result.token_ids, generation.texts, strict=True)
    return [(prompt, ids.tolist(), text) for prompt, ids, text in rows]


def forward(model, vocab_size, prompt, completion):
    """Return the law [T, V] and hidden state [T, D] before each token of a completion."""
    with torch.no_grad():
        ids = torch.tensor([prompt + completion])
        out = model(ids, use_cache=False, output_hidden_states=True)
    places = slice(len(prompt) - 1, len(prompt) + len(completion) - 1)
    logits = out.logits[0, places, :vocab_size]
    return (logits / TEMPERATURE).softmax(-1), out.hidden_states[-1][0, places]


def test_scalars_are_those_of_a_second_pass_at_every_token(pair, rollout, completions, head):
    assert len({len(ids) for _, ids, _ in completions}) > 1, "rows of one length test no padding"
    lengths = rollout.scalars.mask.sum(1).tolist()
    assert lengths == [len(ids) for _, ids, _ in completions]
    weights = rollout.target_weight(head).detach()
    for row, (prompt, ids, _) in enumerate(completions):
        vocab_size = pair.target.vocab_size
        p, target_hidden = forward(pair.target.model, vocab_size, prompt, ids)
        q, draft_hidden = forward(pair.draft.model, vocab_size, prompt, ids)
        places = torch.arange(len(ids))
        tv = 0.5 * (p - q).abs().sum(-1)
        entropies = [-(law * law.clamp(min=1e-30).log()).sum(-1) for law in (p, q)]
        features = torch.stack([*entropies, tv, p.amax(-1), q.amax(-1)], dim=-1)
        wanted = {
            "target_prob": p[places, ids],
            "draft_prob": q[places, ids],
            "tv_distance": tv,
        }
        for name, values in wanted.items():
            got = getattr(rollout.scalars, name)[row, : len(ids)]
            torch.testing.assert_close(got, values, rtol=0, atol=1e-4, msg=name)
        weight = head(draft_hidden, target_hidden, features).sigmoid().detach()
        torch.testing.assert_close(weights[row, : len(ids)], weight, rtol=0, atol=1e-3)


def test_rewards_belong_to_their_completions(rollout, completions, examples):
    owners = [example for example in examples for _ in range(NUM_SAMPLES)]
    wanted = [
        TASK.score(text, example) for (_, _, text), example in zip(completions, owners, strict=True)
    ]
    assert rollout.rewards.tolist() == wanted


class PartlyScoredTask(ArithmeticTask):
    """Its scorer fails on the completions of some examples, and pays others for their length."""

    def __init__(self, failing):
        super().__init__(num_train=3)
        self._failing = failing

    def score(self, text, example):
        if example["id"] in self._failing:
            raise RuntimeError("no\nsandbox")
        return 1 / (1 + len(text))


@pytest.mark.parametrize("position", [0, 1])
def test_a_prompt_that_cannot_be_scored_is_left_out_whole(
    decoder, examples, rollout, caplog, position
):
    task = PartlyScoredTask({examples[position]["id"]})
    partial = sample_rollout(decoder, task, examples, NUM_SAMPLES, STEP)
    assert partial.num_score_errors == NUM_SAMPLES
    assert (
        "rollout 18: 2 completions cannot be scored (RuntimeError: no sandbox); left out 1 of 2 "
        "prompts"
    ) in caplog.text
    kept = slice(2, 4) if position == 0 else slice(0, 2)
    lengths = rollout.scalars.mask.sum(1)[kept]
    for name in ("target_prob", "draft_prob", "tv_distance", "mask"):
        got, wanted = (getattr(part.scalars, name) for part in (partial, rollout))
        assert got.shape == (2, lengths.max())
        assert torch.equal(got, wanted[kept][:, : int(lengths.max())]), name
    is_kept = (rollout.row >= kept.start) & (rollout.row < kept.stop)
    assert torch.equal(partial.row, rollout.row[is_kept] - kept.start)
    assert torch.equal(partial.position, rollout.position[is_kept])
    for name in ("draft_hidden", "target_hidden", "features"):
        assert torch.equal(getattr(partial, name), getattr(rollout, name)[is_kept]), name
    assert partial.rewards.shape == (2,)
    assert bool((partial.rewards < 1).all())
    for name in ("num_drafted", "num_judged", "num_accepted"):
        assert getattr(partial, name) == getattr(rollout, name), name


def test_nothing_but_failed_scores_leaves_an_empty_rollout(decoder, examples, head):
    task = PartlyScoredTask({example["id"] for example in examples})
    empty = sample_rollout(decoder, task, examples, NUM_SAMPLES, STEP)
    assert empty.score_error == "RuntimeError: no sandbox"
    assert empty.num_score_errors == 2 * NUM_SAMPLES
    assert empty.rewards.shape == (0,)
    assert empty.target_weight(head).shape == empty.scalars.mask.shape == (0, 0)
    assert empty.draft_hidden.shape[0] == empty.row.numel() == 0


class LongTask(ArithmeticTask):
    """Its questions may lose their end."""

    long_column = "question"


def test_a_prompt_that_is_too_long_is_cut(decoder, examples):
    long = examples[0] | {"question": examples[0]["question"] * 20}
    cut = sample_rollout(decoder, LongTask(), [long, examples[1]], NUM_SAMPLES, STEP)
    assert cut.num_cut_prompts == 1
    assert len(cut.rewards) == 4


def test_log_probs_are_finite_and_weights_are_differentiable(rollout, head):
    weight = rollout.target_weight(head)
    log_probs = mixture_log_probs(rollout.scalars, weight)
    assert log_probs.isfinite().all()
    gradients = torch.autograd.grad(log_probs.sum(), list(head.parameters()))
    assert all(bool((gradient != 0).any()) for gradient in gradients)
    assert bool((weight[~rollout.scalars.mask] == 1).all())


def test_steps_and_samples_have_random_numbers_of_their_own(decoder, examples, rollout):
    again = sample_rollout(decoder, TASK, examples, NUM_SAMPLES, STEP)
    assert torch.equal(again.scalars.target_prob, rollout.scalars.target_prob)
    later = sample_rollout(decoder, TASK, examples, NUM_SAMPLES, STEP + 1)
    assert not torch.equal(later.scalars.target_prob, rollout.scalars.target_prob)
    first, second = rollout.scalars.target_prob[:2]
    assert not torch.equal(first, second)


def test_counts_are_of_the_batch(rollout):
    assert 0 < rollout.num_accepted < rollout.num_judged < rollout.num_drafted
    assert rollout.num_score_errors == 0
    assert rollout.score_error is None


@pytest.mark.parametrize(
    ("verifier", "temperature", "message"),
    [
        (lambda head: head_verifier(head, bonus="target"), 1.0, r"verifier\.bonus=target"),
        (lambda head: StaticVerifier(0.5, bonus="target"), 1.0, r"verifier\.bonus=target"),
        (head_verifier, 0.0, r"decoding\.temperature=0"),
        (lambda head: head_verifier(head, dial=0.5), 1.0, r"verifier\.dial=0\.5"),
    ],
)
def test_what_would_not_follow_nu_is_refused_by_name(pair, head, verifier, temperature, message):
    """A dial used to shift the w that sampled, but not the w of the gradient."""
    settings = DecodeSettings(max_new_tokens=4, sampling=Sampling(temperature=temperature))
    with pytest.raises(ValueError, match=message):
        check_rollout_decoder(SpeculativeDecoder(pair, verifier(head), settings))


def test_the_decoders_own_settings_are_left_alone(decoder, rollout):
    assert not decoder.settings.keep_head_inputs
    assert rollout.draft_hidden.shape[0] == int(rollout.scalars.mask.sum())
    check_rollout_decoder(decoder)
