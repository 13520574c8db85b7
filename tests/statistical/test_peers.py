"""transformers' own decoding as the oracle: assisted generation with a weight, greedy generation.

`assistant_ensemble_weight` is the static rule with the target's bonus token: the same law of texts
and the same number of target calls, counted by a forward hook. A pair of very small Llamas makes
that law sharp enough to be enumerated; the embedded pair is compared token for token, and slowly.
"""

import functools
import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from laws import FALSE_ALARM, Law, block_law, outcomes, p_value, steps
from restated_rules import Position
from scipy.stats import chi2_contingency, ks_2samp, norm
from table_lm import PLAIN, left_pad, transformed
from transformers import LlamaConfig, LlamaForCausalLM

from diversed.core.counts import block_efficiency, token_acceptance_rate
from diversed.core.loop import DecodeSettings, speculative_decode
from diversed.core.probs import Sampling
from diversed.core.verifiers import LosslessVerifier, StaticVerifier
from diversed.models.hf import HFLanguageModel
from diversed.models.loading import load_tiny_pair
from diversed.tasks.arithmetic import ArithmeticTask

pytestmark = pytest.mark.statistical

WEIGHTS = (0.3, 0.5, 0.7)
VOCAB_SIZE = 5
END_ID = 3
PROMPT = [2]  # of one token: no call that only reads the prompt
NUM_TOKENS = 4
DRAFT_LENGTH = 3
NUM_THEIRS = 300
NUM_OURS = 5000
GREEDY = Sampling(temperature=0)


def small_llama(seed: int, num_layers: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.6,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=END_ID,  # transformers masks pads wherever they stand in the draft's input
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@functools.cache
def small_pair() -> tuple[LlamaForCausalLM, LlamaForCausalLM]:
    """Return two models that disagree: texts and calls change much with w."""
    return small_llama(6, 2), small_llama(106, 1)


@pytest.fixture(scope="module")
def embedded():
    return load_tiny_pair()


@pytest.fixture(scope="module")
def prompts(embedded):
    task = ArithmeticTask(num_test=200)
    examples = itertools.islice(task.examples("test"), 6)
    return [embedded.tokenizer(task.prompt(example)).input_ids for example in examples]


class CallCounter:
    """Counts a model's forward calls while it is open."""

    def __init__(self, model):
        self.model, self.num_calls = model.base_model, 0

    def __enter__(self):
        self.handle = self.model.register_forward_hook(self.count)
        return self

    def __exit__(self, *error):
        self.handle.remove()

    def count(self, *call):
        self.num_calls += 1


def transformers_sample(target, draft, prompt, draft_length, num_tokens, **options):
    """Return the completion of transformers' assisted generation and its target calls."""
    draft.generation_config.update(
        num_assistant_tokens=draft_length,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    ids = torch.tensor([prompt])
    with CallCounter(target) as counter:
        out = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=draft,
            max_new_tokens=num_tokens,
            **options,
        )
    return tuple(out[0, ids.shape[1] :].tolist()), counter.num_calls


def sampled_by_transformers(target, draft, prompts, draft_length, num_tokens, weight, sampling):
    """Return one completion and its calls per prompt; the seed is the prompt's index."""
    rows = []
    for seed, prompt in enumerate(prompts):
        torch.manual_seed(seed)
        rows.append(
            transformers_sample(
                target,
                draft,
                prompt,
                draft_length,
                num_tokens,
                assistant_ensemble_weight=weight,
                do_sample=True,
                temperature=sampling.temperature,
                top_k=sampling.top_k,
                top_p=sampling.top_p,
            )
        )
    return rows


def decode(target, draft, verifier, prompts, settings, keys=None):
    ids, mask = left_pad(prompts)
    keys = torch.arange(len(prompts)) if keys is None else torch.tensor(keys)
    return speculative_decode(target, draft, verifier, ids, mask, keys, settings)


def wrapped_small_pair():
    return [HFLanguageModel(model, VOCAB_SIZE) for model in small_pair()]


def small_law(weight: float, sampling: Sampling, num_on_draft: int = 1) -> Law:
    """Return the enumerated law of texts and target calls, from forwards without a cache.

    `num_on_draft` is how often the draft's logits go through the transforms.
    """
    levels = []
    for num_before in range(NUM_TOKENS):
        texts = itertools.product(range(VOCAB_SIZE), repeat=num_before)
        ids = torch.tensor([PROMPT + list(text) for text in texts])
        p, q = (m(ids, use_cache=False).logits[:, -1].double().numpy() for m in small_pair())
        p = [transformed(logits, sampling) for logits in p]
        for _ in range(num_on_draft):
            with np.errstate(divide="ignore"):
                q = np.log([transformed(logits, sampling) for logits in q])
        positions = [Position(*laws, *laws) for laws in zip(p, np.exp(q), strict=True)]
        levels.append(steps("static", {"weight": weight}, "target", positions))
    return block_law(levels, DRAFT_LENGTH, "target", (END_ID,))


def two_sample_p_value(some, more) -> float:
    """Return the p-value of a chi-square test that two samples have one law.

    Neighbours in the order of the outcomes are merged until the smaller sample can expect 5.
    """
    counts = [Counter(some), Counter(more)]
    share = len(some) / (len(some) + len(more))
    cells = [[0, 0]]
    for key in sorted(counts[0].keys() | counts[1].keys()):
        if sum(cells[-1]) * share >= 5:
            cells.append([0, 0])
        cells[-1] = [seen + count[key] for seen, count in zip(cells[-1], counts, strict=True)]
    if len(cells) > 1 and sum(cells[-1]) * share < 5:
        last = cells.pop()
        cells[-1] = [seen + more for seen, more in zip(cells[-1], last, strict=True)]
    return float(chi2_contingency(cells).pvalue)


def tokens_per_call(rows) -> tuple[float, float]:
    """Return the ratio of sums of tokens and calls, and its standard error (delta method)."""
    tokens = torch.tensor([len(text) for text, _ in rows], dtype=torch.float64)
    calls = torch.tensor([num_calls for _, num_calls in rows], dtype=torch.float64)
    ratio = tokens.sum() / calls.sum()
    error = (tokens - ratio * calls).square().sum().sqrt() / calls.sum()
    return float(ratio), float(error)


def same_tokens_per_call_p_value(some, more) -> float:
    (one, one_error), (other, other_error) = map(tokens_per_call, (some, more))
    return float(2 * norm.sf(abs(one - other) / (one_error**2 + other_error**2) ** 0.5))


# --- one law of texts and calls -------------------------------------------------------------------


@functools.cache
def both_samples(weight, sampling=PLAIN):
    """Return what transformers draws and what we draw from the small pair."""
    theirs = sampled_by_transformers(
        *small_pair(), [PROMPT] * NUM_THEIRS, DRAFT_LENGTH, NUM_TOKENS, weight, sampling
    )
    settings = DecodeSettings(NUM_TOKENS, DRAFT_LENGTH, sampling, (END_ID,))
    verifier = StaticVerifier(weight, bonus="target")
    result = decode(*wrapped_small_pair(), verifier, [PROMPT] * NUM_OURS, settings)
    return theirs, outcomes(result)


@pytest.mark.parametrize("weight", WEIGHTS)
def test_static_and_the_ensemble_of_transformers_have_one_law(weight):
    """Null: one law of texts and target calls; 300 of theirs, seeds 0-299, 5000 of ours, seed 0.

    False alarm 1e-6 each: either sample against the enumerated law, one against the other, and
    the tokens per target call. Both are told from the law of the other weights.
    """
    theirs, ours = both_samples(weight)
    for rows in (theirs, ours):
        assert p_value(rows, small_law(weight, PLAIN)) > FALSE_ALARM
        for other in WEIGHTS:
            if other != weight:
                assert p_value(rows, small_law(other, PLAIN)) < FALSE_ALARM
    assert two_sample_p_value(theirs, ours) > FALSE_ALARM
    assert same_tokens_per_call_p_value(theirs, ours) > FALSE_ALARM


def test_samples_of_other_weights_are_told_apart():
    """300 of theirs at w = 0.3, 5000 of ours at w = 0.7: the two-sample tests reject."""
    theirs, _ = both_samples(0.3)
    _, ours = both_samples(0.7)
    assert two_sample_p_value(theirs, ours) < FALSE_ALARM
    assert same_tokens_per_call_p_value(theirs, ours) < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [Sampling(2.0), Sampling(2.0, top_k=3)], ids=str)
def test_transformers_transforms_the_draft_twice(sampling):
    """w = 0.1; 300 of theirs, seeds 0-299, 5000 of ours, seed 0; false alarm 1e-6 each.

    Assisted generation hands its processors to the draft, which has the same settings once more.
    So with temperature, top-k or top-p their draft is another one than ours, and so is the law:
    each sample fits the law of its own draft, and theirs does not fit ours. Without them, as
    above, there is no difference.
    """
    theirs, ours = both_samples(0.1, sampling)
    assert p_value(ours, small_law(0.1, sampling)) > FALSE_ALARM
    assert p_value(theirs, small_law(0.1, sampling, num_on_draft=2)) > FALSE_ALARM
    assert p_value(theirs, small_law(0.1, sampling)) < FALSE_ALARM


@pytest.mark.parametrize("prompt", [PROMPT, [2, 1, 4]], ids=len)
def test_blocks_are_the_target_calls_that_a_hook_counts(prompt):
    """The prompt without its last token is read by one call more, which is not a block."""
    target, draft = wrapped_small_pair()
    settings = DecodeSettings(NUM_TOKENS, DRAFT_LENGTH, Sampling(), (END_ID,))
    verifier = StaticVerifier(0.5, bonus="target")
    batch = decode(target, draft, verifier, [prompt] * 40, settings)
    for row, blocks in enumerate(batch.counts.blocks.tolist()):
        with CallCounter(target.model) as counter:
            alone = decode(target, draft, verifier, [prompt], settings, keys=[row])
        assert torch.equal(alone.token_ids[0], batch.token_ids[row])
        assert counter.num_calls == blocks + (len(prompt) > 1)


@pytest.mark.slow
@pytest.mark.parametrize("weight", WEIGHTS)
def test_embedded_pair_samples_like_the_ensemble_of_transformers(embedded, prompts, weight):
    """Null: one law; 120 completions of 40 tokens each of one prompt, seeds 0-119 and 0.

    False alarm 1e-6 each: the first two tokens (chi-square), the number of distinct tokens
    (Kolmogorov-Smirnov), tokens per target call (z).
    """
    rows = [prompts[0]] * 120
    models = embedded.target.model, embedded.draft.model
    theirs = sampled_by_transformers(*models, rows, 5, 40, weight, Sampling())
    settings = DecodeSettings(40, 5, Sampling(), embedded.eos_ids)
    verifier = StaticVerifier(weight, bonus="target")
    ours = outcomes(decode(embedded.target, embedded.draft, verifier, rows, settings))
    starts = [[text[:2] for text, _ in sample] for sample in (theirs, ours)]
    assert two_sample_p_value(*starts) > FALSE_ALARM
    variety = [[len(set(text)) for text, _ in sample] for sample in (theirs, ours)]
    assert ks_2samp(*variety).pvalue > FALSE_ALARM
    assert same_tokens_per_call_p_value(theirs, ours) > FALSE_ALARM


# --- temperature 0, token for token ---------------------------------------------------------------


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("draft_length", [1, 5])
def test_static_at_temperature_zero_is_the_ensemble_of_transformers(
    embedded, prompts, weight, draft_length
):
    """Embedded pair: the same tokens by the same number of target calls."""
    settings = DecodeSettings(32, draft_length, GREEDY, embedded.eos_ids)
    verifier = StaticVerifier(weight, bonus="target")
    result = decode(embedded.target, embedded.draft, verifier, prompts[:4], settings)
    theirs = [
        transformers_sample(
            embedded.target.model,
            embedded.draft.model,
            prompt,
            draft_length,
            32,
            assistant_ensemble_weight=weight,
            do_sample=False,
        )
        for prompt in prompts[:4]
    ]
    assert outcomes(result) == theirs
    assert (token_acceptance_rate(result.counts) < 1) == (weight > 0.3)  # there q decides alone
    assert [text for text, _ in theirs] != greedy_texts(embedded, prompts[:4], 32)


def greedy_texts(pair, prompts, num_tokens):
    """Return what transformers generates greedily, each prompt alone, without the pad token."""
    texts = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = pair.target.model.generate(
            ids, attention_mask=mask, do_sample=False, max_new_tokens=num_tokens
        )
        texts.append(tuple(out[0, ids.shape[1] :].tolist()))
    return texts


@pytest.fixture(scope="module")
def greedy(embedded, prompts):
    return greedy_texts(embedded, prompts, 90)


@pytest.mark.parametrize("draft_length", [1, 3, 7])
@pytest.mark.parametrize("bonus", ["verifier", "target"])
def test_lossless_at_temperature_zero_is_greedy_generation(
    embedded, prompts, greedy, draft_length, bonus
):
    """Embedded pair, to the end of each answer: all prompts in one batch, and one prompt alone."""
    settings = DecodeSettings(90, draft_length, GREEDY, embedded.eos_ids)
    models = embedded.target, embedded.draft
    result = decode(*models, LosslessVerifier(bonus), prompts, settings)
    assert [text for text, _ in outcomes(result)] == greedy
    assert "eos" in result.end_reasons
    assert 0 < token_acceptance_rate(result.counts) < 1
    assert 1 < block_efficiency(result.counts) <= draft_length + 1
    alone = decode(*models, LosslessVerifier(bonus), prompts[-1:], settings)
    assert outcomes(alone) == outcomes(result)[-1:]
