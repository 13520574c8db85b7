"""The transformers adapter on tiny random models, against the models without a cache."""

import copy

import pytest
import torch
from table_lm import left_pad
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    RecurrentGemmaConfig,
    RecurrentGemmaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
)

from diversed.core.counts import token_acceptance_rate
from diversed.core.loop import DecodeSettings, autoregressive_decode, speculative_decode
from diversed.core.probs import Sampling
from diversed.core.verifiers import LosslessVerifier, StaticVerifier
from diversed.models.hf import HFLanguageModel, UnsupportedModelError

VOCAB_SIZE = 40
SHARP = 0.25  # spread of the random weights: far from uniform, so that contexts matter
BASE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "initializer_range": SHARP,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,  # tied, random models repeat one token
}
GROUPED = {**BASE, "num_key_value_heads": 2, "head_dim": 8}
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**GROUPED)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB_SIZE,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=128,
            initializer_range=SHARP,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=False,
        )
    ),
    "gemma3": lambda: Gemma3ForCausalLM(Gemma3TextConfig(**GROUPED, **WINDOW)),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(**GROUPED, **WINDOW, final_logit_softcapping=3.0)
    ),
    "cohere": lambda: CohereForCausalLM(CohereConfig(**GROUPED, logit_scale=0.25)),
}
CAPPED = ("gemma2", "cohere")


def build(name, seed=0):
    torch.manual_seed(seed)
    return MODELS[name]().eval().requires_grad_(False)


def perturbed(model, scale, seed=5):
    """Return a copy with noise on its weights: a draft that agrees now and then."""
    model = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for weights in model.parameters():
        weights.add_(torch.randn(weights.shape, generator=generator) * scale)
    return model


def random_prompts(lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


def wrap(model):
    return HFLanguageModel(model, VOCAB_SIZE)


def uncached(model, tokens, num_last):
    """Return logits and last hidden states at the last positions, from one plain forward."""
    out = model(torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    return out.logits[0, -num_last:], out.hidden_states[-1][0, -num_last:]


def decode(target, draft, verifier, prompts, keys=None, **settings):
    ids, mask = left_pad(prompts)
    keys = torch.arange(len(prompts)) if keys is None else torch.tensor(keys)
    return speculative_decode(
        wrap(target), wrap(draft), verifier, ids, mask, keys, DecodeSettings(**settings)
    )


def lists(result):
    return [ids.tolist() for ids in result.token_ids]


# --- the cache ------------------------------------------------------------------------------------

DROPS = {
    "none": lambda n, rows: [0] * rows,
    "all": lambda n, rows: [n] * rows,
    "alternating": lambda n, rows: [n * (row % 2) for row in range(rows)],
    "ragged": lambda n, rows: [(2 * row + 1) % (n + 1) for row in range(rows)],
}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3", "gemma2"])
@pytest.mark.parametrize("pattern", DROPS)
@pytest.mark.parametrize(
    ("lengths", "leaves"), [([1, 9, 17, 5], False), ([1, 9, 17, 5], True), ([6, 6, 6], False)]
)
def test_cached_steps_equal_the_model_without_a_cache(name, pattern, lengths, leaves):
    model = build(name)
    lm = wrap(model)
    prompts = random_prompts(lengths)
    lm.start(*left_pad(prompts))
    read = [prompt[:-1] for prompt in prompts]
    generator = torch.Generator().manual_seed(1)
    for num_new in (1, 4, 2, 6):
        new = torch.randint(3, VOCAB_SIZE, (len(read), num_new), generator=generator)
        out = lm.step(new)
        read = [row + more for row, more in zip(read, new.tolist(), strict=True)]
        assert lm.cache_width == max(map(len, read))
        for row, tokens in enumerate(read):
            logits, hidden = uncached(model, tokens, num_new)
            assert torch.allclose(out.logits[row], logits, atol=1e-4)
            assert torch.allclose(out.hidden[row], hidden, atol=1e-4)
        kept = list(range(len(read)))
        if leaves and len(read) > 2:
            kept.remove(len(read) // 2)
        num_drop = DROPS[pattern](num_new, len(kept))
        lm.retain(torch.tensor(kept), torch.tensor(num_drop))
        read = [
            read[row][: len(read[row]) - drop] for row, drop in zip(kept, num_drop, strict=True)
        ]
        assert lm.cache_width <= max(1, max(map(len, read)))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("kept", [[0], [0, 1, 2], [1, 2], [2]])
def test_everything_can_be_forgotten_and_read_again(name, kept):
    """Rows that leave while the others forget everything used to end in an error on sizes."""
    model = build(name)
    lm = wrap(model)
    prompts = random_prompts([1] * (kept[-1] + 1))
    lm.start(*left_pad(prompts))
    lm.step(torch.tensor(prompts))
    lm.retain(torch.tensor(kept), torch.ones(len(kept), dtype=torch.long))
    assert lm.cache_width == 0
    prompts = [[*prompts[row], 7, 8] for row in kept]
    for end in (1, 2, 3):
        out = lm.step(torch.tensor([prompt[end - 1 : end] for prompt in prompts]))
        for row, prompt in enumerate(prompts):
            assert torch.allclose(out.logits[row], uncached(model, prompt[:end], 1)[0], atol=1e-4)


def test_start_forgets_the_batch_before():
    model = build("llama")
    lm = wrap(model)
    prompts = random_prompts([3, 12])
    for batch in (random_prompts([8, 2, 5], seed=9), prompts):
        lm.start(*left_pad(batch))
        out = lm.step(torch.tensor([row[-1:] for row in batch]))
    for row, prompt in enumerate(prompts):
        assert torch.allclose(out.logits[row], uncached(model, prompt, 1)[0], atol=1e-4)


@pytest.mark.parametrize("bonus", ["verifier", "target"])
def test_cache_never_gets_wider_than_the_longest_row(bonus):
    class WidthWatch(HFLanguageModel):
        """Remembers the widest cache beside the longest row."""

        excess = 0

        def step(self, input_ids):
            out = super().step(input_ids)
            self.excess = max(self.excess, self.cache_width - int(self._lengths.max()))
            self.widest = self.cache_width
            return out

    target, draft = build("llama"), perturbed(build("llama"), 0.05)
    ids, mask = left_pad(random_prompts([1, 9, 17]))
    models = [WidthWatch(model, VOCAB_SIZE) for model in (target, draft)]
    settings = DecodeSettings(max_new_tokens=40, draft_length=5)
    result = speculative_decode(*models, LosslessVerifier(bonus), ids, mask, ids[:, -1], settings)
    assert int((result.counts.judged - result.counts.accepted).sum()) > 10
    for model in models:
        assert model.excess == 0
        assert model.widest <= 17 + 40


# --- which models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_base_model_is_called_only_where_it_gives_the_models_own_logits(name):
    assert wrap(build(name))._uses_base == (name not in CAPPED)


def test_softcapping_is_seen_where_logits_are_small():
    """Small logits are hardly capped: the difference used to pass for rounding."""
    config = Gemma2Config(
        **{**GROUPED, "initializer_range": 0.01}, **WINDOW, final_logit_softcapping=30.0
    )
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(config).eval()
    lm = wrap(model)
    assert not lm._uses_base
    for weights in model.parameters():  # grown since: now the cap matters
        weights.data.mul_(10)
    prompt = random_prompts([6])[0]
    lm.start(*left_pad([prompt]))
    out = lm.step(torch.tensor([prompt[-1:]]))
    assert torch.allclose(out.logits[0], uncached(model, prompt, 1)[0], atol=1e-4)


def test_logits_wider_than_the_vocabulary_are_cut():
    model = build("llama")
    lm = HFLanguageModel(model, VOCAB_SIZE - 3)
    prompt = random_prompts([4])[0]
    lm.start(*left_pad([prompt]))
    logits = lm.step(torch.tensor([prompt[-1:]])).logits
    assert logits.shape == (1, 1, VOCAB_SIZE - 3)
    assert torch.allclose(logits[0], uncached(model, prompt, 1)[0][:, :-3], atol=1e-5)


def test_logits_narrower_than_the_vocabulary_are_refused_by_name():
    model = build("llama")
    model.config.name_or_path = "some/llama"
    with pytest.raises(UnsupportedModelError, match=r"some/llama gives 40 logits.*41 ids"):
        HFLanguageModel(model, VOCAB_SIZE + 1)


LINEAR = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
EXPERTS = {
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
HYBRID = ["linear_attention", "full_attention"]
RECURRENT = {
    "mamba": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=32, state_size=4, num_hidden_layers=2)
    ),
    "convolution": lambda: Lfm2ForCausalLM(
        Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"])
    ),
    "linear attention": lambda: Qwen3NextForCausalLM(
        Qwen3NextConfig(**GROUPED, **LINEAR, **EXPERTS, layer_types=HYBRID)
    ),
    "state in the modules": lambda: RecurrentGemmaForCausalLM(
        RecurrentGemmaConfig(**{**BASE, "num_hidden_layers": 3}, lru_width=32)
    ),
    "state beside the cache": lambda: RwkvForCausalLM(
        RwkvConfig(
            vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32
        )
    ),
}


@pytest.mark.parametrize("kind", RECURRENT)
def test_model_that_cannot_forget_is_refused_by_name(kind):
    """Hybrids used to fail with an IndexError; a state kept elsewhere used to pass."""
    torch.manual_seed(0)
    model = RECURRENT[kind]().eval()
    model.config.name_or_path = "some/model"
    with pytest.raises(UnsupportedModelError, match="some/model has a cache that cannot forget"):
        wrap(model)


# --- whole decoding -------------------------------------------------------------------------------


def generated(model, prompts, num_tokens, **options):
    """Return what transformers generates greedily, up to and with the end token."""
    ids, mask = left_pad(prompts)
    out = model.generate(
        ids, attention_mask=mask.long(), do_sample=False, max_new_tokens=num_tokens, **options
    )
    rows = out[:, ids.shape[1] :].tolist()
    return [row[: row.index(2) + 1] if 2 in row else row for row in rows]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("lengths", [[7], [1, 9, 17]])
@pytest.mark.parametrize("bonus", ["verifier", "target"])
def test_lossless_at_temperature_zero_equals_generate(name, lengths, bonus):
    target = build(name)
    draft = perturbed(target, 0.03)
    prompts = random_prompts(lengths, seed=4)
    wanted = generated(target, prompts, 20, pad_token_id=0)
    result = decode(
        target,
        draft,
        LosslessVerifier(bonus),
        prompts,
        max_new_tokens=20,
        draft_length=4,
        sampling=Sampling(temperature=0),
        eos_ids=(2,),
    )
    assert lists(result) == wanted
    if len(lengths) > 1:
        assert max(len(set(row)) for row in wanted) > 5  # texts that say something
        assert 0 < token_acceptance_rate(result.counts) < 1


@pytest.mark.parametrize(("weight", "draft_length"), [(0.3, 4), (0.7, 4), (0.7, 1)])
def test_static_at_temperature_zero_equals_the_ensemble_of_transformers(weight, draft_length):
    """Their `assistant_ensemble_weight` mixes the same way and draws the bonus token from p."""
    target = build("llama")
    draft = build("llama", seed=1)
    draft.generation_config.update(
        num_assistant_tokens=draft_length,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0,
    )
    prompts = random_prompts([3, 8], seed=4)
    verifier = StaticVerifier(weight, bonus="target")
    result = decode(
        target,
        draft,
        verifier,
        prompts,
        max_new_tokens=20,
        draft_length=draft_length,
        sampling=Sampling(temperature=0),
        eos_ids=(2,),
    )
    options = {"assistant_model": draft, "assistant_ensemble_weight": weight}
    wanted = [generated(target, [prompt], 20, **options)[0] for prompt in prompts]
    assert lists(result) == wanted
    assert wanted != generated(target, prompts, 20)


@pytest.mark.parametrize(
    ("name", "bonus"),
    [("llama", "verifier"), ("llama", "target"), ("gpt2", "target"), ("gemma3", "verifier")],
)
def test_batch_of_one_and_batch_of_eight_give_the_same_text(name, bonus):
    target = build(name)
    draft = perturbed(target, 0.03)
    prompts = random_prompts([1, 9, 17, 4, 1, 6, 12, 2], seed=2)
    settings = {"max_new_tokens": 14, "draft_length": 3, "eos_ids": (2,), "seed": 7}
    verifier = StaticVerifier(0.6, bonus)
    together = decode(target, draft, verifier, prompts, **settings)
    for row, prompt in enumerate(prompts):
        alone = decode(target, draft, verifier, [prompt], keys=[row], **settings)
        assert lists(alone) == lists(together)[row : row + 1]
        for count, value in vars(alone.counts).items():
            assert torch.equal(value[0], getattr(together.counts, count)[row]), count
    assert 0 < token_acceptance_rate(together.counts) < 1


def test_plain_decoding_equals_generate():
    target = build("llama")
    prompts = random_prompts([1, 9, 17])
    ids, mask = left_pad(prompts)
    settings = DecodeSettings(20, sampling=Sampling(temperature=0), eos_ids=(2,))
    result = autoregressive_decode(wrap(target), ids, mask, torch.arange(3), settings)
    assert lists(result) == generated(target, prompts, 20, pad_token_id=0)
