"""The transformers adapter on tiny random models, against the models without a cache."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch
from forced_verifier import ForcedVerifier
from table_lm import left_pad
from tiny_models import (
    ABSOLUTE,
    BASE,
    FAMILIES,
    GROUPED,
    SLIDING,
    VOCAB_SIZE,
    build,
    frozen,
    longrope_phi3,
    perturbed,
    random_prompts,
)
from transformers import (
    BertConfig,
    BertLMHeadModel,
    CohereConfig,
    CohereForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3nForCausalLM,
    Gemma3nTextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    JambaConfig,
    JambaForCausalLM,
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
    RobertaConfig,
    RobertaForCausalLM,
    RwkvConfig,
    RwkvForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    xLSTMConfig,
    xLSTMForCausalLM,
)

from diversed.app.setup import SHARED_KEYS
from diversed.core.counts import token_acceptance_rate
from diversed.core.loop import DecodeSettings, autoregressive_decode, speculative_decode
from diversed.core.probs import Sampling
from diversed.core.verifiers import LosslessVerifier, StaticVerifier
from diversed.models.hf import HFLanguageModel, UnsupportedModelError

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
SHARED_CACHE = {  # Gemma 3n: the last layers read the cache of others, hidden states are stacked
    "num_hidden_layers": 4,
    "layer_types": SLIDING["layer_types"] * 2,
    "num_kv_shared_layers": 2,
    "intermediate_size": [48] * 4,
    "activation_sparsity_pattern": [0.0] * 4,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
}
UNUSUAL = {
    "caps its logits": lambda: Gemma2ForCausalLM(
        Gemma2Config(**GROUPED, **SLIDING, final_logit_softcapping=3.0)
    ),
    "scales its logits": lambda: CohereForCausalLM(CohereConfig(**GROUPED, logit_scale=0.25)),
    "shares caches": lambda: Gemma3nForCausalLM(
        Gemma3nTextConfig(**{**GROUPED, **SLIDING, **SHARED_CACHE}, final_logit_softcapping=3.0)
    ),
    "sees images": lambda: Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config={**GROUPED, **SLIDING},
            vision_config=VISION,
            mm_tokens_per_image=1,
            tie_word_embeddings=False,
        )
    ),
}
NEEDS_WHOLE = ("caps its logits", "scales its logits", "shares caches")


def unusual(kind):
    torch.manual_seed(0)
    return frozen(UNUSUAL[kind]())


def wrap(model):
    return HFLanguageModel(model, VOCAB_SIZE)


def uncached(model, tokens, num_last):
    """Return logits at the last positions, and what the output head reads for them."""
    seen = []
    head = model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    logits = model(torch.tensor([tokens]), use_cache=False).logits
    hook.remove()
    return logits[0, -num_last:], seen[0][0, -num_last:]


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


CACHED = {name: partial(build, name) for name in ("llama", "gpt2", "gemma3")} | {
    kind: partial(unusual, kind) for kind in UNUSUAL
}


@pytest.mark.parametrize("name", CACHED)
def test_prompts_read_together_or_apart_have_the_same_cache(name):
    model = CACHED[name]()
    lm = wrap(model)
    short, other, long, single = random_prompts([9, 12, 60, 1])
    prompts = [long, short, other, short, single, short, long]
    with read_shapes(model) as shapes:
        lm.start(*left_pad(prompts))
    assert shapes == [(3, 11), (1, 59)]  # each text once; the long one does not widen the others
    check_next_logits(lm, model, prompts)


@pytest.mark.parametrize("name", CACHED)
def test_a_common_beginning_is_read_once(name):
    model = CACHED[name]()
    lm = wrap(model)
    stem, *rests = random_prompts([40, *range(2, 10)])
    prompts = [stem + rest for rest in rests] + [stem[:]]
    with read_shapes(model) as shapes:
        lm.start(*left_pad(prompts))
    assert shapes == [(1, 39), (9, 9)]  # the last token of a prompt is read with the first block
    check_next_logits(lm, model, prompts)


@pytest.mark.parametrize("is_shared", ["0", "1"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_do_not_depend_on_whether_query_heads_share_keys(name, is_shared, monkeypatch):
    monkeypatch.setenv(SHARED_KEYS, is_shared)
    model = build(name)
    lm = wrap(model)
    prompts = random_prompts([9, 4, 12])
    lm.start(*left_pad(prompts))
    check_next_logits(lm, model, prompts)


@contextmanager
def read_shapes(model):
    shapes = []
    hook = model.base_model.register_forward_pre_hook(
        lambda _, __, options: shapes.append(tuple(options["input_ids"].shape)), with_kwargs=True
    )
    yield shapes
    hook.remove()


def check_next_logits(lm, model, prompts):
    out = lm.step(torch.full((len(prompts), 2), 5))
    for row, prompt in enumerate(prompts):
        logits, _ = uncached(model, [*prompt[:-1], 5, 5], 2)
        assert torch.allclose(out.logits[row], logits, atol=1e-4)


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("pattern", DROPS)
@pytest.mark.parametrize(
    ("lengths", "leaves"),
    [([1, 9, 17, 5], False), ([1, 9, 17, 5], True), ([6, 6, 6], False), ([1, 60, 9, 3], True)],
)
def test_cached_steps_equal_the_model_without_a_cache(name, pattern, lengths, leaves):
    model = CACHED[name]()
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


class WatchedLM(HFLanguageModel):
    """Remembers the size of its cache after every call."""

    def start(self, prompt_ids, prompt_mask):
        super().start(prompt_ids, prompt_mask)
        self.sizes, self.num_calls = [], 0

    def step(self, input_ids):
        out = super().step(input_ids)
        self.num_calls += 1
        self.note(input_ids.shape[0])
        return out

    def retain(self, rows, num_drop):
        super().retain(rows, num_drop)
        self.note(rows.numel())

    def note(self, num_rows):
        for layer in self._cache.layers:
            storage = [layer._key_storage, layer._value_storage]
            assert [part.shape[0] for part in storage] == [num_rows] * 2  # rows that ended are gone
            room = max(part.shape[2] for part in storage)
            self.sizes.append((self.num_calls, self.cache_width, int(self._lengths.max()), room))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("pattern", ["all rejected", "ragged"])
def test_rejected_entries_do_not_pile_up(family, pattern):
    longest, draft_length, num_tokens = 17, 5, 60
    target = build(family)
    ids, mask = left_pad(random_prompts([1, 9, longest]))
    models = [WatchedLM(model, VOCAB_SIZE) for model in (target, perturbed(target, 0.06))]
    settings = DecodeSettings(max_new_tokens=num_tokens, draft_length=draft_length)
    keys = torch.arange(3)
    result = speculative_decode(*models, ForcedVerifier(pattern), ids, mask, keys, settings)
    assert int((result.counts.drafted - result.counts.accepted).sum()) > 100
    assert models[0].num_calls == int(result.counts.blocks.max())
    for model in models:
        for num_calls, width, longest_row, room in model.sizes:
            assert width == longest_row  # padding aside, each row has its own tokens alone
            assert room <= 1.25 * width + 32
            if pattern == "all rejected" and model is models[0]:
                num_emitted = num_calls - 1  # one by each call before
                assert width <= longest + num_emitted + draft_length
        assert max(width for _, width, _, _ in model.sizes) <= longest + num_tokens + draft_length


CONTEXT = 24
LIMITED = {
    "learned positions": lambda: GPT2LMHeadModel(
        GPT2Config(**{**ABSOLUTE, "n_positions": CONTEXT})
    ),
    "longrope": lambda: longrope_phi3(CONTEXT),
}


def limited(kind):
    torch.manual_seed(0)
    return frozen(LIMITED[kind]())


@pytest.mark.parametrize("kind", LIMITED)
def test_row_at_the_end_of_the_context_may_wait_for_others(kind):
    """What only its companions drafted used to stand past its last position: an IndexError, or
    other frequencies for the whole batch.
    """
    target = limited(kind)
    draft = perturbed(target, 0.06)
    settings = {"max_new_tokens": 10, "draft_length": 7}
    verifier, num_rounds = ForcedVerifier("ragged"), set()
    for seed in range(5):
        prompts = random_prompts([14, 4, 4], seed)
        together = decode(target, draft, verifier, prompts, **settings)
        num_rounds |= set(together.counts.blocks.tolist())
        for row, prompt in enumerate(prompts):
            alone = decode(target, draft, verifier, [prompt], keys=[row], **settings)
            assert lists(alone) == lists(together)[row : row + 1]
    assert len(num_rounds) > 2


@pytest.mark.parametrize("kind", LIMITED)
@pytest.mark.parametrize(("length", "num_new"), [(CONTEXT + 1, 1), (10, 30)])
def test_text_past_the_context_is_refused_by_name(kind, length, num_new):
    model = limited(kind)
    model.config.name_or_path = "some/model"
    prompts = random_prompts([3, length])
    settings = {"max_new_tokens": num_new, "draft_length": 3}
    with pytest.raises(ValueError, match="some/model has a context of 24 tokens: prompt and"):
        decode(model, perturbed(model, 0.06), LosslessVerifier(), prompts, **settings)
    fitting = [prompts[0], prompts[1][:10]]
    settings["max_new_tokens"] = CONTEXT - 10
    decode(model, perturbed(model, 0.06), LosslessVerifier(), fitting, **settings)


# --- which models ---------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_base_model_is_called_where_it_gives_the_models_own_logits(family):
    assert wrap(build(family))._uses_base


@pytest.mark.parametrize("kind", UNUSUAL)
def test_whole_model_is_called_where_it_changes_its_logits(kind):
    assert wrap(unusual(kind))._uses_base == (kind not in NEEDS_WHOLE)


def test_model_is_examined_once():
    """Every `generate` wraps both models: the examination used to run each time."""
    model, calls = build("llama"), []
    model.base_model.register_forward_pre_hook(lambda *_: calls.append(1))
    wrap(model)
    assert len(calls) == 5
    wrap(model)
    assert len(calls) == 5
    with pytest.raises(UnsupportedModelError, match="gives 40 logits"):
        HFLanguageModel(model, VOCAB_SIZE + 1)


def test_softcapping_is_seen_where_logits_are_small():
    """Small logits are hardly capped: the difference used to pass for rounding."""
    config = Gemma2Config(
        **{**GROUPED, "initializer_range": 0.01}, **SLIDING, final_logit_softcapping=30.0
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
CHANNELS = {"mamba_d_state": 4, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8}
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
    "linear attention behind attention": lambda: Qwen3NextForCausalLM(
        Qwen3NextConfig(**GROUPED, **LINEAR, **EXPERTS, layer_types=HYBRID[::-1])
    ),
    "mamba and attention side by side": lambda: FalconH1ForCausalLM(
        FalconH1Config(**BASE, **CHANNELS, num_key_value_heads=2)
    ),
    "mamba behind attention": lambda: JambaForCausalLM(
        JambaConfig(
            **BASE,
            num_key_value_heads=2,
            num_experts=1,
            attn_layer_period=2,
            attn_layer_offset=0,
            use_mamba_kernels=False,
        )
    ),
    "recurrence first": lambda: RecurrentGemmaForCausalLM(
        RecurrentGemmaConfig(**{**BASE, "num_hidden_layers": 3}, lru_width=32)
    ),
    "recurrence behind attention": lambda: RecurrentGemmaForCausalLM(
        RecurrentGemmaConfig(**BASE, lru_width=32, block_types=["attention", "recurrent"])
    ),
    "state beside the cache": lambda: RwkvForCausalLM(
        RwkvConfig(
            vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32
        )
    ),
    "cache of another class": lambda: xLSTMForCausalLM(
        xLSTMConfig(
            vocab_size=VOCAB_SIZE, hidden_size=32, num_heads=4, num_blocks=2, num_hidden_layers=2
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


class RememberingLlama(LlamaForCausalLM):
    """Has a cache of keys and values, and beside it a memory that its config does not tell of."""

    base_model_prefix = ""
    memory = 0.0

    def forward(self, input_ids, attention_mask=None, cache=None, **options):
        if cache is None or cache.get_seq_length() == 0:
            self.memory = 0.0
        out = super().forward(input_ids, attention_mask, cache=cache, **options)
        signs = (input_ids * 7 % 5 - 2.0).unsqueeze(-1)
        if attention_mask is not None:
            signs = signs * attention_mask[:, -input_ids.shape[1] :].unsqueeze(-1)
        state = self.memory + signs.cumsum(1)
        self.memory = state[:, -1:]
        out.logits = out.logits + state * torch.linspace(-1, 1, out.logits.shape[-1])
        return out


def test_memory_that_the_config_does_not_tell_of_is_found():
    """Only the cache's own layers used to be looked at."""
    torch.manual_seed(0)
    model = frozen(RememberingLlama(LlamaConfig(**GROUPED)))
    with pytest.raises(UnsupportedModelError, match="keeps more than its cache"):
        wrap(model)


ENCODER = {**BASE, "pad_token_id": 0, "is_decoder": False}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: T5ForConditionalGeneration(
                T5Config(vocab_size=VOCAB_SIZE, d_model=32, num_layers=2, num_heads=4, d_kv=8)
            ),
            "is an encoder-decoder model",
        ),
        (lambda: BertLMHeadModel(BertConfig(**ENCODER)), "is not causal"),
        (
            lambda: RobertaForCausalLM(RobertaConfig(**{**ENCODER, "is_decoder": True})),
            "counts positions in a way of its own",
        ),
        (
            lambda: FAMILIES["gpt2"]().transformer,
            r"cannot be called step by step with a cache \(AttributeError",
        ),
    ],
    ids=["encoder-decoder", "not causal", "positions of its own", "no logits"],
)
def test_model_that_is_no_causal_decoder_is_refused_by_name(make, message):
    """Encoders used to pass, and answered as if they saw what comes."""
    torch.manual_seed(0)
    model = make().eval()
    model.config.name_or_path = "some/model"
    with pytest.raises(UnsupportedModelError, match=f"model some/model.*{message}"):
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


@pytest.mark.parametrize("kind", UNUSUAL)
@pytest.mark.parametrize("lengths", [[7], [1, 9, 17]])
def test_lossless_at_temperature_zero_equals_generate_of_unusual_models(kind, lengths):
    target = unusual(kind)
    draft = perturbed(target, 0.03)
    prompts = random_prompts(lengths, seed=4)
    wanted = generated(target, prompts, 20, pad_token_id=0)
    result = decode(
        target,
        draft,
        LosslessVerifier(),
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
