"""`target.generate(custom_generate=partial(diversed_generate, ...))`, on the embedded pair."""

import copy
from functools import partial

import pytest
import tiny_models
import torch
from transformers import (
    DynamicCache,
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TextIteratorStreamer,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from diversed import (
    AutoregressiveVerifier,
    CascadeVerifier,
    DecodeSettings,
    FuzzyVerifier,
    LenientVerifier,
    LosslessVerifier,
    MarginVerifier,
    Sampling,
    SpeculativeDecoder,
    StaticVerifier,
    TypicalVerifier,
    diversed_generate,
)
from diversed.core.loop import speculative_decode
from diversed.generation import SpeculativeOutput, head_verifier
from diversed.models.checkpoint import new_head
from diversed.models.hf import HFLanguageModel

PROMPTS = [
    "Ada has 3 pens. How many pens are there?\n",
    "Ben has 7 books. Ben buys 4 more books. Ben sells 2 books. How many books are there?\n",
    "Cleo keeps 5 toys.\n",
]
NUM_NEW = 16
EOS_ID, PAD_ID = 2, 0
SEED = 11


def encoded(pair, prompts=PROMPTS):
    """Return model inputs, padded on the left."""
    return dict(pair.tokenizer(list(prompts), padding=True, return_tensors="pt"))


def generate(pair, inputs, *, bound=None, **request):
    """Return what the target's own `generate` returns through the door."""
    usual = {"draft": pair.draft.model, "verifier": LosslessVerifier(), "seed": SEED}
    bound = usual | (bound or {})
    if not request.keys() & {"max_new_tokens", "max_length", "generation_config"}:
        request["max_new_tokens"] = NUM_NEW
    return pair.target.model.generate(
        **inputs, **request, custom_generate=partial(diversed_generate, **bound)
    )


def decoded(pair, verifier=None, prompts=PROMPTS, stop_strings=(), **settings):
    """Return what the project's own decoder returns for the same prompts, seed and row keys."""
    settings = {"max_new_tokens": NUM_NEW, "seed": SEED} | settings
    decoder = SpeculativeDecoder(
        pair, verifier or LosslessVerifier(), DecodeSettings(**settings), stop_strings
    )
    return decoder.generate(prompts).result


def completions(sequences, inputs, pad_id=PAD_ID):
    """Return the new ids of each row, without the padding behind them."""
    rows = []
    for row in sequences[:, inputs["input_ids"].shape[1] :].tolist():
        while row and row[-1] == pad_id:
            row.pop()
        rows.append(row)
    return rows


def as_lists(result):
    return [ids.tolist() for ids in result.token_ids]


class RecordingStreamer:
    """Keeps what it is given."""

    def __init__(self):
        self.puts = []
        self.num_ends = 0

    def put(self, value):
        assert self.num_ends == 0
        self.puts.append(value.tolist())

    def end(self):
        self.num_ends += 1


@pytest.mark.parametrize("draft_length", [1, 3, 7])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1], PROMPTS[1:2]], ids=["all", "0", "1"])
def test_greedy_lossless_is_plain_generation(pair, prompts, draft_length):
    inputs = encoded(pair, prompts)
    plain = pair.target.model.generate(**inputs, max_new_tokens=NUM_NEW, do_sample=False)
    got = generate(pair, inputs, bound={"draft_length": draft_length}, do_sample=False)
    assert torch.equal(got, plain)


@pytest.mark.parametrize("num_new", [1, 2, 60])
def test_greedy_lossless_is_plain_generation_of_any_length(pair, num_new):
    inputs = encoded(pair)
    plain = pair.target.model.generate(**inputs, max_new_tokens=num_new, do_sample=False)
    got = generate(pair, inputs, max_new_tokens=num_new, do_sample=False)
    assert torch.equal(got, plain)


@pytest.mark.parametrize(
    ("request_", "sampling"),
    [
        ({"temperature": 0.5}, Sampling(temperature=0.5)),
        ({"temperature": 2.0, "top_k": 7}, Sampling(temperature=2, top_k=7)),
        ({"temperature": 2.0, "top_p": 0.7}, Sampling(temperature=2, top_p=0.7)),
        (
            {"temperature": 1.5, "top_k": 20, "top_p": 0.9},
            Sampling(temperature=1.5, top_k=20, top_p=0.9),
        ),
        ({"temperature": 1.5, "renormalize_logits": True}, Sampling(temperature=1.5)),
    ],
)
def test_sampling_is_that_of_the_decoder(pair, request_, sampling):
    inputs = encoded(pair)
    got = completions(generate(pair, inputs, do_sample=True, **request_), inputs)
    assert got == as_lists(decoded(pair, sampling=sampling))
    assert got != as_lists(decoded(pair))


def test_plain_sampling_is_that_of_the_decoder(pair):
    inputs = encoded(pair)
    got = completions(generate(pair, inputs, do_sample=True), inputs)
    assert got == as_lists(decoded(pair))


def test_top_k_of_a_request_that_names_none_is_that_of_transformers(pair, monkeypatch):
    monkeypatch.setattr(pair.target.model.generation_config, "top_k", None)
    inputs = encoded(pair)
    got = completions(generate(pair, inputs, do_sample=True, temperature=3.0), inputs)
    assert got == as_lists(decoded(pair, sampling=Sampling(temperature=3, top_k=50)))
    assert got != as_lists(decoded(pair, sampling=Sampling(temperature=3)))


VERIFIERS = {
    "static": lambda _: StaticVerifier(0.3),
    "static, bonus of the target": lambda _: StaticVerifier(0.3, bonus="target"),
    "lenient": lambda _: LenientVerifier(0.2),
    "cascade": lambda _: CascadeVerifier("token_v3", 0.5),
    "typical": lambda _: TypicalVerifier(),
    "fuzzy": lambda _: FuzzyVerifier(0.05),
    "margin": lambda _: MarginVerifier(0.2),
    "diversed": lambda pair: head_verifier(new_head(pair, initial_weight=0.4).eval()),
    "autoregressive": lambda _: AutoregressiveVerifier(),
}


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("name", VERIFIERS)
def test_every_rule_decodes_as_in_the_decoder(pair, name, do_sample):
    verifier = VERIFIERS[name](pair)
    sampling = Sampling(temperature=float(do_sample))
    inputs = encoded(pair)
    out = generate(
        pair,
        inputs,
        bound={"verifier": verifier},
        do_sample=do_sample,
        return_dict_in_generate=True,
    )
    wanted = decoded(pair, verifier, sampling=sampling)
    assert completions(out.sequences, inputs) == as_lists(wanted)
    for counted in ("drafted", "judged", "accepted", "recovered", "bonus", "blocks"):
        assert torch.equal(getattr(out.counts, counted), getattr(wanted.counts, counted)), counted


def test_greedy_autoregressive_is_plain_generation(pair):
    inputs = encoded(pair)
    plain = pair.target.model.generate(**inputs, max_new_tokens=NUM_NEW, do_sample=False)
    bound = {"verifier": AutoregressiveVerifier()}
    assert torch.equal(generate(pair, inputs, bound=bound, do_sample=False), plain)


def test_draft_and_rule_may_be_given_to_generate_itself(pair):
    inputs = encoded(pair)
    got = pair.target.model.generate(
        **inputs,
        custom_generate=diversed_generate,
        draft=pair.draft.model,
        verifier=StaticVerifier(0.3),
        draft_length=3,
        seed=SEED,
        max_new_tokens=NUM_NEW,
        do_sample=True,
    )
    wanted = decoded(pair, StaticVerifier(0.3), draft_length=3)
    assert completions(got, inputs) == as_lists(wanted)


def test_max_length_counts_the_padded_prompt(pair):
    inputs = encoded(pair)
    max_length = inputs["input_ids"].shape[1] + 9
    by_length = generate(pair, inputs, max_length=max_length, do_sample=False)
    assert by_length.shape[1] == max_length
    assert torch.equal(by_length, generate(pair, inputs, max_new_tokens=9, do_sample=False))


def test_every_end_id_ends_a_row_and_rows_are_padded_behind_it(pair):
    inputs = encoded(pair)
    plain = pair.target.model.generate(**inputs, max_new_tokens=NUM_NEW, do_sample=False)
    other = int(plain[0, inputs["input_ids"].shape[1] + 4])  # in the midst of the first row
    ends = {"eos_token_id": [EOS_ID, other], "pad_token_id": 5, "do_sample": False}
    wanted = pair.target.model.generate(**inputs, max_new_tokens=NUM_NEW, **ends)
    got = generate(pair, inputs, **ends)
    assert torch.equal(got, wanted)
    lengths = [len(row) for row in completions(got, inputs, pad_id=5)]
    assert lengths[0] <= 5
    assert len(set(lengths)) > 1


def test_pad_id_defaults_to_the_end_id(pair, monkeypatch):
    monkeypatch.setattr(pair.target.model.generation_config, "pad_token_id", None)
    inputs = encoded(pair)
    wanted = pair.target.model.generate(**inputs, max_new_tokens=80, do_sample=False)
    got = generate(pair, inputs, max_new_tokens=80, do_sample=False)
    assert torch.equal(got, wanted)
    assert (got[:, -2:] == EOS_ID).all(dim=1).any()


def test_a_generation_config_object_is_honoured(pair):
    inputs = encoded(pair)
    config = GenerationConfig(
        max_new_tokens=7, do_sample=True, temperature=2.0, top_k=7, eos_token_id=EOS_ID
    )
    got = generate(pair, inputs, generation_config=config)
    wanted = decoded(pair, max_new_tokens=7, sampling=Sampling(temperature=2, top_k=7))
    assert completions(got, inputs) == as_lists(wanted)


def test_dict_holds_sequences_counts_trace_and_end_reasons(pair):
    inputs = encoded(pair)
    out = generate(pair, inputs, max_new_tokens=60, do_sample=False, return_dict_in_generate=True)
    assert isinstance(out, SpeculativeOutput)
    assert torch.equal(out.sequences, generate(pair, inputs, max_new_tokens=60, do_sample=False))
    rows = completions(out.sequences, inputs)
    assert out.counts.emitted.tolist() == [len(row) for row in rows]
    assert out.end_reasons == ["eos" if row[-1] == EOS_ID else "length" for row in rows]
    assert "eos" in out.end_reasons
    for index, row in enumerate(rows):
        of_row = out.trace.is_emitted & (out.trace.row == index)
        assert out.trace.token_id[of_row][out.trace.position[of_row].argsort()].tolist() == row


def test_returned_sequences_of_a_prompt_are_samples_of_their_own(pair):
    inputs = encoded(pair)
    got = generate(pair, inputs, do_sample=True, temperature=2.0, num_return_sequences=2)
    repeated = [prompt for prompt in PROMPTS for _ in range(2)]
    wanted = as_lists(decoded(pair, prompts=repeated, sampling=Sampling(temperature=2)))
    assert completions(got, inputs) == wanted
    assert all(wanted[row] != wanted[row + 1] for row in (0, 2, 4))


@pytest.mark.parametrize("verifier", [LosslessVerifier(), AutoregressiveVerifier()])
def test_streamer_sees_the_prompt_then_the_completion_then_the_end(pair, verifier):
    inputs = encoded(pair, PROMPTS[:1])
    streamer = RecordingStreamer()
    got = generate(
        pair, inputs, bound={"verifier": verifier, "streamer": streamer}, max_new_tokens=60
    )
    prompt, *blocks = streamer.puts
    assert prompt == inputs["input_ids"].tolist()
    assert [token for block in blocks for token in block] == completions(got, inputs)[0]
    assert len(blocks) > 1
    assert streamer.num_ends == 1


def test_streamer_of_transformers_gives_the_text(pair):
    inputs = encoded(pair, PROMPTS[:1])
    streamer = TextIteratorStreamer(
        pair.tokenizer, skip_prompt=True, timeout=1, skip_special_tokens=True
    )
    got = generate(pair, inputs, bound={"streamer": streamer}, max_new_tokens=60)
    wanted = pair.tokenizer.decode(completions(got, inputs)[0], skip_special_tokens=True)
    assert "".join(streamer) == wanted != ""


def test_streamer_follows_one_row_only(pair):
    with pytest.raises(ValueError, match="streamer with 3 rows"):
        generate(pair, encoded(pair), bound={"streamer": RecordingStreamer()})
    with pytest.raises(ValueError, match="streamer with 2 rows"):
        generate(
            pair,
            encoded(pair, PROMPTS[:1]),
            bound={"streamer": RecordingStreamer()},
            num_return_sequences=2,
            do_sample=True,
        )


@pytest.mark.parametrize("stop_strings", [("1", "pens"), ["1", "pens"]])
def test_stop_strings_end_as_in_the_decoder(pair, stop_strings):
    inputs = encoded(pair)
    out = generate(
        pair,
        inputs,
        bound={"stop_strings": stop_strings, "tokenizer": pair.tokenizer},
        do_sample=True,
        return_dict_in_generate=True,
    )
    wanted = decoded(pair, stop_strings=stop_strings)
    assert completions(out.sequences, inputs) == as_lists(wanted)
    assert out.end_reasons == wanted.end_reasons
    assert "stop" in out.end_reasons


def test_one_stop_string_is_not_a_list_of_letters(pair):
    inputs = encoded(pair)
    bound = {"stop_strings": "pens", "tokenizer": pair.tokenizer}
    wanted = as_lists(decoded(pair, stop_strings=["pens"]))
    assert completions(generate(pair, inputs, bound=bound), inputs) == wanted
    assert wanted != as_lists(decoded(pair, stop_strings=list("pens")))


def test_stop_strings_of_the_request_reach_a_bound_tokenizer(pair):
    inputs = encoded(pair)
    got = generate(pair, inputs, bound={"tokenizer": pair.tokenizer}, stop_strings=["1", "pens"])
    assert completions(got, inputs) == as_lists(decoded(pair, stop_strings=["1", "pens"]))


@pytest.mark.parametrize(
    ("stop_strings", "tokenizer", "message"),
    [(["1"], False, "stop_strings need tokenizer"), (["1", ""], True, "an empty string")],
)
def test_stop_strings_that_cannot_be_looked_for_are_refused(pair, stop_strings, tokenizer, message):
    bound = {"stop_strings": stop_strings, "tokenizer": pair.tokenizer if tokenizer else None}
    with pytest.raises(ValueError, match=message):
        generate(pair, encoded(pair), bound=bound)


def test_default_seed_comes_from_torch(pair):
    inputs = encoded(pair)

    def sampled(of_torch, seed=None):
        torch.manual_seed(of_torch)
        bound = {"seed": seed}
        return generate(pair, inputs, bound=bound, do_sample=True, temperature=2.0).tolist()

    first = sampled(1)
    assert sampled(1) == first
    assert sampled(2) != first
    assert sampled(1, seed=5) == sampled(2, seed=5)


def test_consecutive_calls_draw_anew(pair):
    inputs = encoded(pair)
    torch.manual_seed(1)
    first, second = (
        generate(pair, inputs, bound={"seed": None}, do_sample=True, temperature=2.0).tolist()
        for _ in range(2)
    )
    assert first != second


def test_mask_is_found_by_transformers_where_none_is_given(pair):
    inputs = encoded(pair)
    wanted = generate(pair, inputs, do_sample=True)
    assert torch.equal(generate(pair, {"input_ids": inputs["input_ids"]}, do_sample=True), wanted)


def test_inputs_are_left_alone(pair):
    inputs = encoded(pair)
    before = copy.deepcopy(inputs)
    generate(pair, inputs)
    for name, tensor in before.items():
        assert torch.equal(inputs[name], tensor)


def test_criteria_of_the_caller_take_the_place_of_the_requests(pair):
    """They used to be passed over: transformers puts them in the place of its own."""
    inputs = encoded(pair)
    length = inputs["input_ids"].shape[1]
    criteria = StoppingCriteriaList([MaxLengthCriteria(length + 6), EosTokenCriteria(136)])
    plain = pair.target.model.generate(
        **inputs, max_new_tokens=NUM_NEW, do_sample=False, stopping_criteria=criteria
    )
    got = generate(pair, inputs, do_sample=False, stopping_criteria=criteria)
    assert torch.equal(got, plain)
    assert got.shape[1] == length + 6


def test_processors_of_the_caller_are_honoured_in_our_order(pair):
    inputs = encoded(pair)
    processors = LogitsProcessorList([TemperatureLogitsWarper(2.0), TopKLogitsWarper(7)])
    got = generate(pair, inputs, do_sample=True, logits_processor=processors)
    wanted = decoded(pair, sampling=Sampling(temperature=2, top_k=7))
    assert completions(got, inputs) == as_lists(wanted)


class ForeignProcessor(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores


class ForeignCriterion(StoppingCriteria):
    def __call__(self, input_ids, scores, **_):
        return torch.zeros(len(input_ids), dtype=torch.bool)


REFUSED = {
    "num_beams=2": ({"num_beams": 2}, "num_beams=2"),
    "repetition_penalty": ({"repetition_penalty": 1.2}, "RepetitionPenaltyLogitsProcessor"),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 2}, "NoRepeatNGramLogitsProcessor"),
    "min_p": ({"do_sample": True, "min_p": 0.1}, "MinPLogitsWarper"),
    "typical_p": ({"do_sample": True, "typical_p": 0.5}, "TypicalLogitsWarper"),
    "epsilon_cutoff": ({"do_sample": True, "epsilon_cutoff": 0.1}, "EpsilonLogitsWarper"),
    "bad_words_ids": ({"bad_words_ids": [[7]]}, "NoBadWordsLogitsProcessor"),
    "suppress_tokens": ({"suppress_tokens": [7]}, "SuppressTokensLogitsProcessor"),
    "min_new_tokens": ({"min_new_tokens": 3}, "MinLengthLogitsProcessor"),
    "prefix_allowed_tokens_fn": (
        {"prefix_allowed_tokens_fn": lambda *_: [7, 8]},
        "PrefixConstrainedLogitsProcessor",
    ),
    "logits_processor": (
        {"logits_processor": LogitsProcessorList([ForeignProcessor()])},
        "logits processor ForeignProcessor",
    ),
    "temperature twice": (
        {
            "do_sample": True,
            "temperature": 2.0,
            "logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.5)]),
        },
        "TemperatureLogitsWarper, TemperatureLogitsWarper: .* each once",
    ),
    "top_p before temperature": (
        {
            "do_sample": True,
            "temperature": 2.0,
            "logits_processor": LogitsProcessorList([TopPLogitsWarper(0.5)]),
        },
        "TopPLogitsWarper, TemperatureLogitsWarper: .* in this order",
    ),
    "top_k with another filter": (
        {
            "do_sample": True,
            "logits_processor": LogitsProcessorList([TopKLogitsWarper(5, filter_value=-1.0)]),
        },
        "logits processor TopKLogitsWarper",
    ),
    "top_p that keeps more": (
        {
            "do_sample": True,
            "logits_processor": LogitsProcessorList([TopPLogitsWarper(0.5, min_tokens_to_keep=3)]),
        },
        "logits processor TopPLogitsWarper",
    ),
    "stopping_criteria": (
        {"stopping_criteria": StoppingCriteriaList([ForeignCriterion()])},
        "stopping criterion ForeignCriterion",
    ),
    "max_time": ({"max_time": 3.0}, r"max_time=3\.0"),
    "output_scores": (
        {"output_scores": True, "return_dict_in_generate": True},
        "output_scores=True",
    ),
    "output_logits": (
        {"output_logits": True, "return_dict_in_generate": True},
        "output_logits=True",
    ),
    "output_hidden_states": (
        {"output_hidden_states": True, "return_dict_in_generate": True},
        "output_hidden_states=True",
    ),
    "use_cache": ({"use_cache": False}, "use_cache=False"),
    "cache_implementation": ({"cache_implementation": "static"}, "cache_implementation='static'"),
    "assistant_ensemble_weight": (
        {"assistant_ensemble_weight": 0.5},
        r"assistant_ensemble_weight=0\.5.*StaticVerifier",
    ),
    "prompt_lookup_num_tokens": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens=3"),
    "penalty_alpha": ({"penalty_alpha": 0.6, "top_k": 4}, r"penalty_alpha=0\.6"),
    "dola_layers": ({"dola_layers": "low"}, "dola_layers='low'"),
    "max_length past the context": ({"max_new_tokens": 300}, "max_length=.* context of .* is 256"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(pair, name):
    request, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        generate(pair, encoded(pair), **request)


@pytest.mark.parametrize(
    "harmless",
    [
        {"min_p": 0.1},
        {"typical_p": 0.5},
        {"top_p": 0.5},
        {"num_assistant_tokens": 3},
        {"num_beams": 1},
    ],
    ids=str,
)
def test_what_has_no_part_in_the_request_is_not_refused(pair, harmless):
    inputs = encoded(pair)
    wanted = generate(pair, inputs, do_sample=False)
    assert torch.equal(generate(pair, inputs, do_sample=False, **harmless), wanted)


def test_a_filled_cache_is_refused(pair):
    inputs = encoded(pair, PROMPTS[:1])
    cache = DynamicCache(config=pair.target.model.config)
    pair.target.model(input_ids=inputs["input_ids"][:, :4], cache=cache, use_cache=True)
    with pytest.raises(ValueError, match=r"cache: .* not from a filled cache"):
        generate(pair, inputs, cache=cache)


def test_an_empty_cache_is_left_empty(pair):
    inputs = encoded(pair, PROMPTS[:1])
    cache = DynamicCache(config=pair.target.model.config)
    assert torch.equal(generate(pair, inputs, cache=cache), generate(pair, inputs))
    assert cache.get_seq_length() == 0


def test_embeddings_are_refused(pair):
    inputs = encoded(pair, PROMPTS[:1])
    embeddings = pair.target.model.get_input_embeddings()(inputs["input_ids"])
    with pytest.raises(ValueError, match=r"inputs_embeds: .* token ids only"):
        generate(pair, {"inputs_embeds": embeddings})


def test_right_padding_is_refused(pair):
    tokenizer = copy.deepcopy(pair.tokenizer)
    tokenizer.padding_side = "right"
    with pytest.raises(ValueError, match="padded on the left"):
        generate(pair, dict(tokenizer(PROMPTS, padding=True, return_tensors="pt")))


def test_positions_of_the_callers_own_are_refused(pair):
    inputs = encoded(pair)
    own = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
    wanted = generate(pair, inputs)
    assert torch.equal(generate(pair, inputs | {"position_ids": own}), wanted)
    with pytest.raises(ValueError, match="position_ids"):
        generate(pair, inputs | {"position_ids": own + 1})


class FewIds:
    """A tokenizer that knows the ids below a number."""

    def __init__(self, number):
        self.number = number

    def get_vocab(self):
        return {str(index): index for index in range(self.number)}


NARROW, WIDE = tiny_models.VOCAB_SIZE, tiny_models.VOCAB_SIZE + 24


def llama(num_ids, seed):
    """Return a model with nearly uniform laws over its ids, padded ones too."""
    config = copy.deepcopy(tiny_models.build("llama").config)
    config.vocab_size = num_ids
    config.initializer_range = 0.1
    config.eos_token_id = None
    torch.manual_seed(seed)
    return tiny_models.frozen(tiny_models.LlamaForCausalLM(config))


@pytest.fixture(scope="module")
def unequal():
    return {num_ids: llama(num_ids, seed) for seed, num_ids in enumerate((NARROW, WIDE))}


@pytest.mark.parametrize(("target", "draft"), [(NARROW, WIDE), (WIDE, NARROW)])
@pytest.mark.parametrize("verifier", [LosslessVerifier(), StaticVerifier(0.5)])
def test_ids_past_the_narrower_model_are_never_drawn(unequal, target, draft, verifier):
    prompt_ids = torch.tensor(tiny_models.random_prompts([5] * 40))
    request = {"max_new_tokens": 10, "do_sample": True, "top_k": 0}
    generate_ = partial(
        diversed_generate, draft=unequal[draft], verifier=verifier, seed=SEED, draft_length=3
    )
    got = unequal[target].generate(prompt_ids, **request, custom_generate=generate_)
    assert int(got.max()) < NARROW
    wanted = speculative_decode(
        HFLanguageModel(unequal[target], NARROW),
        HFLanguageModel(unequal[draft], NARROW),
        verifier,
        prompt_ids,
        torch.ones_like(prompt_ids, dtype=torch.bool),
        torch.arange(40),
        DecodeSettings(max_new_tokens=10, draft_length=3, seed=SEED),
    )
    assert got[:, 5:].tolist() == as_lists(wanted)
    torch.manual_seed(0)
    assert int(unequal[WIDE].generate(prompt_ids, **request).max()) >= NARROW


def test_ids_past_the_tokenizer_are_never_drawn(unequal):
    prompt_ids = torch.tensor(tiny_models.random_prompts([5] * 40)) % 17 + 3
    request = {"max_new_tokens": 10, "do_sample": True, "top_k": 0}
    bound = {"draft": unequal[WIDE], "verifier": LosslessVerifier(), "seed": SEED}
    few, all_ids = (
        unequal[WIDE].generate(
            prompt_ids, **request, custom_generate=partial(diversed_generate, **bound, **more)
        )
        for more in ({"tokenizer": FewIds(20)}, {})
    )
    assert int(few.max()) < 20 <= int(all_ids.max())


def test_a_prompt_past_the_narrower_model_is_refused(unequal):
    prompt_ids = torch.tensor([[5, NARROW + 1, 7]])
    generate_ = partial(diversed_generate, draft=unequal[NARROW], verifier=LosslessVerifier())
    with pytest.raises(ValueError, match=f"input_ids holds {NARROW + 1}.* below {NARROW}"):
        unequal[WIDE].generate(prompt_ids, max_new_tokens=3, custom_generate=generate_)


def test_a_pad_id_past_the_narrower_model_does_no_harm(unequal):
    """The draft used to look it up among its embeddings and fail."""
    pad = NARROW + 3
    prompt_ids = torch.tensor([[pad, pad, 5, 6], [3, 4, 5, 6]])
    request = {
        "max_new_tokens": 6,
        "do_sample": False,
        "attention_mask": (prompt_ids != pad).long(),
    }
    generate_ = partial(diversed_generate, draft=unequal[NARROW], verifier=LosslessVerifier())
    got = unequal[WIDE].generate(prompt_ids, **request, custom_generate=generate_)
    other = prompt_ids.where(prompt_ids != pad, 0)
    wanted = unequal[WIDE].generate(other, **request, custom_generate=generate_)
    assert torch.equal(got[:, 4:], wanted[:, 4:])
    assert torch.equal(got[:, :4], prompt_ids)


def test_a_draft_elsewhere_is_refused(pair):
    draft = copy.deepcopy(pair.draft.model).to("meta")
    with pytest.raises(ValueError, match="draft is on meta, the target on cpu"):
        generate(pair, encoded(pair), bound={"draft": draft})


def test_padding_does_not_reach_a_rows_text(pair):
    """A row in a batch is the row alone, with its own row key."""
    whole = as_lists(decoded(pair, sampling=Sampling(temperature=2)))
    inputs = encoded(pair)
    got = completions(generate(pair, inputs, do_sample=True, temperature=2.0), inputs)
    alone = generate(pair, encoded(pair, PROMPTS[:1]), do_sample=True, temperature=2.0)
    assert got == whole
    assert completions(alone, encoded(pair, PROMPTS[:1]))[0] == whole[0]


def test_settings_of_the_decoder_keep_their_checks(pair):
    with pytest.raises(ValueError, match=r"draft_length=0: must be at least 1"):
        generate(pair, encoded(pair), bound={"draft_length": 0})
