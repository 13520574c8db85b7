"""The decoding loop against replays in plain Python, on tables instead of models."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from table_lm import TableLM, left_pad

from diversed.core.counts import block_efficiency, token_acceptance_rate
from diversed.core.loop import DecodeSettings, autoregressive_decode, speculative_decode
from diversed.core.probs import Sampling
from diversed.core.types import Status
from diversed.core.verifiers import DiversedVerifier, LosslessVerifier, StaticVerifier

GREEDY = Sampling(temperature=0)
BONUS_MODES = ("verifier", "target")
NUM_PROMPTS = 16
DRAFTED = (Status.ACCEPTED, Status.REJECTED, Status.UNJUDGED)
JUDGED = (Status.ACCEPTED, Status.REJECTED)


def make_prompts(vocab_size, num_rows=NUM_PROMPTS, longest=6):
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(vocab_size, (num_rows, longest), generator=generator)
    return [ids[row, : 1 + row % longest].tolist() for row in range(num_rows)]


class TableHead:
    """A linear head on one-hot hidden states: every context has a weight of its own."""

    def __init__(self, vocab_size, seed=11):
        generator = torch.Generator().manual_seed(seed)
        self.draft_part, self.target_part = torch.randn(2, vocab_size**2, generator=generator)

    def __call__(self, draft_hidden, target_hidden, features):
        return draft_hidden @ self.draft_part + target_hidden @ self.target_part

    def weight(self, context):
        logit = float(self.draft_part[context]) + float(self.target_part[context])
        return 1 / (1 + np.exp(-logit))


@dataclass
class Case:
    """A pair, a rule, and the same rule in float64 Python."""

    target: TableLM
    draft: TableLM
    name: str
    bonus: str

    def __post_init__(self):
        self.head = TableHead(self.target.vocab_size)
        self.verifier = {
            "lossless": lambda: LosslessVerifier(self.bonus),
            "static": lambda: StaticVerifier(0.3, self.bonus),
            "diversed": lambda: DiversedVerifier(self.head, bonus=self.bonus),
        }[self.name]()

    def laws(self, tokens, sampling):
        """Return p, q, w and nu after `tokens`."""
        p, q = self.target.probs(tokens, sampling), self.draft.probs(tokens, sampling)
        w = {"lossless": 1.0, "static": 0.3}.get(self.name)
        if w is None:
            w = self.head.weight(self.target.context(tokens))
        return p, q, w, w * p + (1 - w) * q

    def decode(self, prompts, keys=None, find_end=None, **settings):
        ids, mask = left_pad(prompts)
        keys = torch.arange(len(prompts)) if keys is None else torch.tensor(keys)
        return speculative_decode(
            self.target,
            self.draft,
            self.verifier,
            ids,
            mask,
            keys,
            DecodeSettings(**settings),
            find_end,
        )


def random_case(name="lossless", bonus="verifier", vocab_size=5):
    return Case(TableLM(vocab_size, 0), TableLM(vocab_size, 1), name, bonus)


def decode_alone(target, prompts, find_end=None, **settings):
    ids, mask = left_pad(prompts)
    return autoregressive_decode(
        target, ids, mask, torch.arange(len(prompts)), DecodeSettings(**settings), find_end
    )


def chain(vocab_size, step=1):
    """Return a table that always goes from token t to t + step, with near certainty."""
    table = torch.zeros(vocab_size**2, vocab_size)
    last = torch.arange(vocab_size**2) % vocab_size
    table[torch.arange(vocab_size**2), (last + step) % vocab_size] = 60.0
    return TableLM(vocab_size, 0, table=table)


def lists(result):
    return [ids.tolist() for ids in result.token_ids]


def entries(result):
    """Return each row's trace entries as dicts, in order of decoding."""
    columns = {
        name: value.tolist() for name, value in vars(result.trace).items() if value is not None
    }
    by_row = [[] for _ in result.token_ids]
    for values in zip(*columns.values(), strict=True):
        entry = dict(zip(columns, values, strict=True))
        by_row[entry["row"]].append(entry)
    return by_row


def check_counts(result, settings_length, draft_length):
    """Assert what must hold between ids, counts and trace of any run."""
    counts = result.counts
    lengths = [ids.numel() for ids in result.token_ids]
    assert counts.emitted.tolist() == lengths
    assert max(lengths) <= settings_length
    assert bool((counts.drafted >= counts.judged).all())
    assert bool((counts.judged >= counts.accepted).all())
    assert counts.judged.tolist() == (counts.accepted + counts.recovered).tolist()
    for total, by_position in (
        (counts.drafted, counts.drafted_at),
        (counts.judged, counts.judged_at),
        (counts.accepted, counts.accepted_at),
    ):
        assert by_position.shape == (len(lengths), draft_length)
        assert by_position.sum(1).tolist() == total.tolist()
    assert bool((counts.drafted <= counts.blocks * draft_length).all())
    rows = zip(entries(result), lists(result), counts.blocks.tolist(), strict=True)
    for of_row, ids, num_blocks in rows:
        emitted = [e for e in of_row if e["status"] not in (Status.REJECTED, Status.UNJUDGED)]
        assert [e["position"] for e in emitted] == list(range(len(ids)))
        assert [e["token_id"] for e in emitted] == ids
        assert {e["block"] for e in emitted} == set(range(num_blocks))
    assert set(result.end_reasons) <= {"eos", "stop", "length"}


# --- temperature 0 --------------------------------------------------------------------------------


def close_table(vocab_size, seed, gap):
    """Return a table whose logits differ by multiples of `gap`, or by steps of fp32 if it is 0."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(vocab_size**2, vocab_size, generator=generator).argsort(-1)
    if gap:
        return TableLM(vocab_size, 0, table=2.0 - order * gap)
    steps = [torch.tensor(0.1)]
    for _ in range(vocab_size - 1):
        steps.append(torch.nextafter(steps[-1], torch.tensor(1.0)))
    return TableLM(vocab_size, 0, table=torch.stack(steps)[order])


def greedy(target, prompt, num_tokens):
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(target.table[target.context(tokens)].double().argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("draft_length", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("gap", [1e-3, 1e-6, 0.0])
@pytest.mark.parametrize("bonus", BONUS_MODES)
def test_lossless_at_temperature_zero_is_greedy_decoding(draft_length, gap, bonus):
    target = close_table(8, 0, gap)
    prompts = make_prompts(8)
    wanted = [greedy(target, prompt, 12) for prompt in prompts]
    settings = {"max_new_tokens": 12, "draft_length": draft_length, "sampling": GREEDY}
    assert lists(decode_alone(target, prompts, **settings)) == wanted
    half = torch.where(torch.arange(64).unsqueeze(1) % 2 == 0, target.table, target.table.flip(0))
    for table in (close_table(8, 1, gap).table, target.table, half):
        case = Case(target, TableLM(8, 0, table=table), "lossless", bonus)
        result = case.decode(prompts, **settings)
        assert lists(result) == wanted
        check_counts(result, 12, draft_length)
    assert 0 < token_acceptance_rate(result.counts) < 1  # the last draft is right now and then


def replay_greedy(case, prompt, max_new_tokens, draft_length):
    """Return what the published rule emits at temperature 0, block by block."""
    out = []
    while len(out) < max_new_tokens:
        room = max_new_tokens - len(out)
        budget = min(draft_length, room if case.bonus == "verifier" else room - 1)
        for _ in range(budget):
            _, q, _, nu = case.laws(prompt + out, GREEDY)
            out.append(int(nu.argmax()))
            if int(q.argmax()) != out[-1]:
                break
        else:
            if len(out) < max_new_tokens:
                p, _, _, nu = case.laws(prompt + out, GREEDY)
                out.append(int((nu if case.bonus == "verifier" else p).argmax()))
    return out


@pytest.mark.parametrize("name", ["static", "diversed"])
@pytest.mark.parametrize("bonus", BONUS_MODES)
@pytest.mark.parametrize("draft_length", [1, 3, 7])
def test_mixture_at_temperature_zero_emits_the_argmax_of_mixed_probabilities(
    name, bonus, draft_length
):
    case = random_case(name, bonus, vocab_size=7)
    prompts = make_prompts(7)
    settings = {"max_new_tokens": 12, "draft_length": draft_length, "sampling": GREEDY}
    result = case.decode(prompts, **settings)
    wanted = [replay_greedy(case, prompt, 12, draft_length) for prompt in prompts]
    assert lists(result) == wanted
    check_counts(result, 12, draft_length)
    if bonus == "verifier":
        for prompt, ids in zip(prompts, wanted, strict=True):
            for end in range(12):
                assert ids[end] == case.laws(prompt + ids[:end], GREEDY)[3].argmax()
    assert wanted != [greedy(case.target, prompt, 12) for prompt in prompts]
    assert wanted != [greedy(case.draft, prompt, 12) for prompt in prompts]


def test_top_k_and_top_p_have_no_part_at_temperature_zero():
    case = random_case("static", vocab_size=7)
    prompts = make_prompts(7)
    plain = case.decode(prompts, max_new_tokens=10, sampling=GREEDY)
    cut = case.decode(prompts, max_new_tokens=10, sampling=Sampling(0, top_k=1, top_p=0.1))
    assert lists(plain) == lists(cut)


# --- lengths and ends -----------------------------------------------------------------------------


@pytest.mark.parametrize("max_new_tokens", [1, 2, 5, 8])
@pytest.mark.parametrize("draft_length", [1, 3, 7])
@pytest.mark.parametrize("bonus", BONUS_MODES)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
def test_exactly_the_tokens_that_were_asked_for(max_new_tokens, draft_length, bonus, sampling):
    settings = {
        "max_new_tokens": max_new_tokens,
        "draft_length": draft_length,
        "sampling": sampling,
    }
    prompts = make_prompts(5)
    for name in ("lossless", "static"):
        result = random_case(name, bonus).decode(prompts, **settings)
        assert [len(ids) for ids in lists(result)] == [max_new_tokens] * NUM_PROMPTS
        assert result.end_reasons == ["length"] * NUM_PROMPTS
        check_counts(result, max_new_tokens, draft_length)
    alone = decode_alone(random_case().target, prompts, **settings)
    assert [len(ids) for ids in lists(alone)] == [max_new_tokens] * NUM_PROMPTS
    check_counts(alone, max_new_tokens, draft_length)


@pytest.mark.parametrize("bonus", BONUS_MODES)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
@pytest.mark.parametrize(("eos", "ids"), [(4, [2, 3, 4]), (3, [2, 3]), (2, [2])])
def test_nothing_follows_an_end_inside_an_accepted_block(bonus, sampling, eos, ids):
    case = Case(chain(7), chain(7), "lossless", bonus)
    result = case.decode(
        [[1], [6, 1]], max_new_tokens=20, draft_length=6, sampling=sampling, eos_ids=(eos,)
    )
    assert lists(result) == [ids, ids]
    assert result.end_reasons == ["eos", "eos"]
    for name in ("drafted", "judged", "accepted", "draft_calls"):
        assert getattr(result.counts, name).tolist() == [len(ids)] * 2
    assert result.counts.bonus.tolist() == result.counts.recovered.tolist() == [0, 0]
    assert result.counts.blocks.tolist() == [1, 1]
    assert [e["position"] for e in entries(result)[0]] == list(range(len(ids)))
    check_counts(result, 20, 6)


@pytest.mark.parametrize("bonus", BONUS_MODES)
def test_end_ids_as_recovered_and_as_bonus_token_end_the_row(bonus):
    # the draft goes on by two: its first token is rejected, the target's own is the end
    recovered = Case(chain(7), chain(7, step=2), "lossless", bonus)
    result = recovered.decode([[1]], max_new_tokens=9, draft_length=3, eos_ids=(2,))
    assert lists(result) == [[2]]
    assert result.counts.recovered.tolist() == [1]
    # two tokens are drafted and accepted, the third is the bonus and the end
    result = Case(chain(7), chain(7), "lossless", bonus).decode(
        [[1]], max_new_tokens=9, draft_length=2, eos_ids=(4,)
    )
    assert lists(result) == [[2, 3, 4]]
    assert result.counts.bonus.tolist() == [1]
    assert result.end_reasons == ["eos"]


def cut_at(ids, is_end):
    """Return ids up to the first end, and whether there was one."""
    for end in range(1, len(ids) + 1):
        if is_end(ids[:end]):
            return ids[:end], True
    return ids, False


def find_pattern(patterns):
    """Return an `EndFinder` for sequences of ids, and the same as a test of an ended list."""

    def is_end(ids):
        return any(ids[-len(pattern) :] == pattern for pattern in patterns)

    def find_end(ids, first):
        return next((i for i in range(first, len(ids)) if is_end(ids[: i + 1])), None)

    return find_end, is_end


@pytest.mark.parametrize("bonus", BONUS_MODES)
@pytest.mark.parametrize("draft_length", [1, 2, 5])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
@pytest.mark.parametrize("kind", ["one id", "two ids", "pattern of two", "patterns of three"])
def test_ends_cut_the_run_without_ends_and_change_nothing_before(
    bonus, draft_length, sampling, kind
):
    patterns = {
        "one id": [[3]],
        "two ids": [[3], [0]],
        "pattern of two": [[2, 4], [1, 3]],
        "patterns of three": [[a, b, c] for a, b, c in itertools.product([0, 2, 4], repeat=3)],
    }[kind]
    find_end, is_end = find_pattern(patterns)
    ends = {"find_end": find_end}
    if "id" in kind:
        ends = {"eos_ids": tuple(pattern[0] for pattern in patterns)}
    settings = {"max_new_tokens": 12, "draft_length": draft_length, "sampling": sampling}
    case, prompts = random_case("static", bonus), make_prompts(5)
    free = case.decode(prompts, **settings)
    ended = case.decode(prompts, **settings, **ends)
    check_counts(ended, 12, draft_length)
    cuts = [cut_at(ids, is_end) for ids in lists(free)]
    assert lists(ended) == [ids for ids, _ in cuts]
    word = "eos" if "id" in kind else "stop"
    assert ended.end_reasons == [word if has_end else "length" for _, has_end in cuts]
    assert {has_end for _, has_end in cuts} >= {True}
    for (ids, _), of_row, of_free in zip(cuts, entries(ended), entries(free), strict=True):
        judged = [e for e in of_row if e["status"] in JUDGED]
        wanted = [e for e in of_free if e["status"] in JUDGED]
        assert [e["token_id"] for e in judged] == [
            e["token_id"] for e in wanted if e["position"] < len(ids)
        ]
        behind = [e for e in of_row if e["position"] >= len(ids)]
        assert {e["status"] for e in behind} <= {Status.UNJUDGED}


@pytest.mark.parametrize("draft_length", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("bonus", BONUS_MODES)
def test_stop_that_spans_tokens_and_blocks_is_found_in_time(draft_length, bonus):
    find_end, _ = find_pattern([[4, 5, 6, 0]])
    case = Case(chain(7), chain(7), "lossless", bonus)
    result = case.decode([[1]], find_end=find_end, max_new_tokens=20, draft_length=draft_length)
    assert lists(result) == [[2, 3, 4, 5, 6, 0]]
    assert result.end_reasons == ["stop"]
    assert max(e["position"] for e in entries(result)[0]) == 5
    check_counts(result, 20, draft_length)


def test_stop_is_not_found_in_the_prompt():
    find_end, _ = find_pattern([[1, 2]])
    result = Case(chain(7), chain(7), "lossless", "verifier").decode(
        [[1]], find_end=find_end, max_new_tokens=4
    )
    assert lists(result) == [[2, 3, 4, 5]]
    assert result.end_reasons == ["length"]


def test_end_id_goes_before_stop_and_stop_before_length():
    find_end, _ = find_pattern([[3]])
    case = Case(chain(7), chain(7), "lossless", "verifier")
    both = case.decode([[1]], find_end=find_end, max_new_tokens=2, eos_ids=(3,))
    assert (lists(both), both.end_reasons) == ([[2, 3]], ["eos"])
    stop = case.decode([[1]], find_end=find_end, max_new_tokens=2)
    assert (lists(stop), stop.end_reasons) == ([[2, 3]], ["stop"])


# --- counts and trace -----------------------------------------------------------------------------


def test_plain_decoding_has_block_efficiency_one():
    result = decode_alone(TableLM(5, 0), make_prompts(5), max_new_tokens=9, eos_ids=(0,))
    assert block_efficiency(result.counts) == 1
    assert result.counts.blocks.tolist() == [ids.numel() for ids in result.token_ids]
    for name in ("drafted", "judged", "accepted", "recovered", "draft_calls"):
        assert int(getattr(result.counts, name).sum()) == 0
    assert bool((result.trace.status == Status.BONUS).all())
    for name in ("draft_prob", "tv_distance", "target_weight", "accept_prob"):
        assert bool(getattr(result.trace, name).isnan().all())


def test_draft_that_is_the_target_is_always_accepted():
    case = Case(TableLM(5, 0), TableLM(5, 0), "lossless", "verifier")
    result = case.decode(make_prompts(5), max_new_tokens=12, draft_length=3)
    assert token_acceptance_rate(result.counts) == 1
    assert block_efficiency(result.counts) == 4
    assert result.counts.draft_calls.tolist() == [12] * NUM_PROMPTS


def test_weight_zero_trusts_the_draft_without_exception():
    case = random_case("static")
    case.verifier = StaticVerifier(0.0)
    result = case.decode(make_prompts(5), max_new_tokens=12, draft_length=3)
    assert token_acceptance_rate(result.counts) == 1
    assert bool((result.trace.accept_prob[result.trace.status == Status.ACCEPTED] == 1).all())


def check_blocks(case, prompt, ids, of_row, settings):
    """Assert that each block drafts what it may; return pairs of entry and tokens before it."""
    room, pairs = settings.max_new_tokens, []
    for _, group in itertools.groupby(of_row, lambda e: e["block"]):
        block = list(group)
        start = settings.max_new_tokens - room
        drafted = [e for e in block if e["status"] in DRAFTED]
        tokens = [e["token_id"] for e in drafted]
        budget = min(settings.draft_length, room if case.bonus == "verifier" else room - 1)
        ends = [column for column, token in enumerate(tokens) if token in settings.eos_ids]
        assert len(tokens) == (ends[0] + 1 if ends else budget)
        assert [e["block_position"] for e in drafted] == list(range(len(tokens)))
        for e in block:
            assert e["position"] == start + e["block_position"]
            pairs.append((e, prompt + ids[:start] + tokens[: e["block_position"]]))
        room -= sum(e["status"] not in (Status.REJECTED, Status.UNJUDGED) for e in block)
    return pairs


def check_entry(case, entry, before, settings):
    p, q, w, nu = case.laws(before, settings.sampling)
    token, is_greedy = entry["token_id"], settings.sampling.is_greedy
    assert entry["target_prob"] == pytest.approx(p[token], abs=1e-5)
    if entry["status"] == Status.BONUS and case.bonus == "target":
        for name in ("draft_prob", "tv_distance", "target_weight", "expected_acceptance"):
            assert np.isnan(entry[name])
        assert np.isnan(entry["accept_prob"])
        return
    assert entry["draft_prob"] == pytest.approx(q[token], abs=1e-5)
    assert entry["tv_distance"] == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-5)
    assert entry["target_weight"] == pytest.approx(w, abs=1e-5)
    expected = float(q.argmax() == nu.argmax()) if is_greedy else np.minimum(q, nu).sum()
    assert entry["expected_acceptance"] == pytest.approx(expected, abs=1e-5)
    if entry["status"] in DRAFTED:
        accept = float(token == nu.argmax()) if is_greedy else min(1, nu[token] / q[token])
        assert entry["accept_prob"] == pytest.approx(accept, abs=1e-4)
    else:
        assert np.isnan(entry["accept_prob"])


@pytest.mark.parametrize("name", ["lossless", "static", "diversed"])
@pytest.mark.parametrize("bonus", BONUS_MODES)
@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(), Sampling(0.7, top_k=3), Sampling(1.4, top_p=0.8)]
)
@pytest.mark.parametrize("batch_size", [1, NUM_PROMPTS])
def test_trace_holds_every_drafted_position_as_the_tables_give_it(
    name, bonus, sampling, batch_size
):
    """In a batch, rows rejected at once in their first block used to lose the prompt's last token
    from the draft's context under bonus='target'.
    """
    case, prompts = random_case(name, bonus), make_prompts(5)[-batch_size:]
    settings = DecodeSettings(
        max_new_tokens=10, draft_length=3, sampling=sampling, eos_ids=(0,), seed=5
    )
    result = case.decode(prompts, **vars(settings))
    check_counts(result, 10, 3)
    for prompt, ids, of_row in zip(prompts, lists(result), entries(result), strict=True):
        for entry, before in check_blocks(case, prompt, ids, of_row, settings):
            check_entry(case, entry, before, settings)
    if batch_size > 1 and name != "lossless":
        assert set(result.trace.status.tolist()) == set(Status)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
def test_head_inputs_are_those_of_the_emitted_tokens(sampling):
    case, prompts = random_case("diversed"), make_prompts(5)
    result = case.decode(
        prompts, max_new_tokens=10, draft_length=3, sampling=sampling, keep_head_inputs=True
    )
    trace, ids = result.trace, lists(result)
    emitted = trace.is_emitted.nonzero()[:, 0]
    assert trace.draft_hidden.shape == trace.target_hidden.shape == (emitted.numel(), 25)
    for index, row, position in zip(
        range(emitted.numel()),
        trace.row[emitted].tolist(),
        trace.position[emitted].tolist(),
        strict=True,
    ):
        before = prompts[row] + ids[row][:position]
        context = case.target.context(before)
        assert trace.draft_hidden[index].argmax() == context
        assert trace.target_hidden[index].argmax() == context
        p, q, _, _ = case.laws(before, sampling)
        assert float(trace.features[index, 2]) == pytest.approx(np.abs(p - q).sum() / 2, abs=1e-5)
        assert float(trace.features[index, 3]) == pytest.approx(p.max(), abs=1e-5)
        assert float(trace.features[index, 4]) == pytest.approx(q.max(), abs=1e-5)


def test_head_inputs_are_left_out_unless_asked_for():
    trace = random_case().decode([[1]], max_new_tokens=3).trace
    assert trace.draft_hidden is trace.target_hidden is trace.features is None


# --- rows and batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lossless", "diversed"])
@pytest.mark.parametrize("bonus", BONUS_MODES)
@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
@pytest.mark.parametrize("draft_length", [2, 12])
def test_row_does_not_depend_on_its_batch(name, bonus, sampling, draft_length):
    """A draft cache one token short after a block without bonus used to depend on the batch."""
    case, prompts = random_case(name, bonus), make_prompts(5)
    settings = {
        "max_new_tokens": 10,
        "draft_length": draft_length,
        "sampling": sampling,
        "eos_ids": (0,),
        "seed": 2,
    }
    together = case.decode(prompts, **settings)
    order = torch.randperm(NUM_PROMPTS, generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = case.decode([prompts[row] for row in order], keys=order, **settings)
    for row, prompt in enumerate(prompts):
        alone = case.decode([prompt], keys=[row], **settings)
        for batch, index in ((together, row), (shuffled, order.index(row))):
            assert alone.token_ids[0].tolist() == batch.token_ids[index].tolist()
            assert alone.end_reasons[0] == batch.end_reasons[index]
            for count, value in vars(alone.counts).items():
                assert torch.equal(value[0], getattr(batch.counts, count)[index]), count
            same = batch.trace.row == index
            for column, value in vars(alone.trace).items():
                if column != "row" and value is not None:
                    other = getattr(batch.trace, column)[same]
                    assert torch.equal(value.nan_to_num(-1), other.nan_to_num(-1)), column


def test_plain_decoding_of_a_row_does_not_depend_on_its_batch():
    target, prompts = TableLM(5, 0), make_prompts(5)
    together = decode_alone(target, prompts, max_new_tokens=10, eos_ids=(0,))
    for row, prompt in enumerate(prompts):
        ids, mask = left_pad([prompt])
        alone = autoregressive_decode(
            target, ids, mask, torch.tensor([row]), DecodeSettings(10, eos_ids=(0,))
        )
        assert alone.token_ids[0].tolist() == together.token_ids[row].tolist()


def test_keys_and_seed_choose_the_random_numbers():
    case = random_case()
    result = case.decode([[1, 2]] * 4, keys=[5, 5, 6, 7], max_new_tokens=12)
    ids = lists(result)
    assert ids[0] == ids[1]
    assert len({tuple(row) for row in ids}) == 3
    assert lists(case.decode([[1, 2]], keys=[5], max_new_tokens=12, seed=1)) != ids[:1]
    assert lists(case.decode([[1, 2]], keys=[5], max_new_tokens=12, seed=0)) == ids[:1]


@pytest.mark.parametrize("bonus", BONUS_MODES)
@pytest.mark.parametrize("draft_length", [1, 3, 7])
def test_cap_changes_nothing_before_it(bonus, draft_length):
    case, prompts = random_case("static", bonus), make_prompts(5)
    short, long = (
        lists(case.decode(prompts, max_new_tokens=cap, draft_length=draft_length))
        for cap in (6, 12)
    )
    # the target's bonus takes the place of the last drafted token at the cap
    same = 6 if bonus == "verifier" else 5
    assert [ids[:same] for ids in short] == [ids[:same] for ids in long]


# --- refusals -------------------------------------------------------------------------------------


def decode_raw(ids, mask, keys=None, draft=None):
    ids, mask = torch.tensor(ids), torch.tensor(mask)
    keys = torch.arange(ids.shape[0]) if keys is None else keys
    return speculative_decode(
        TableLM(5, 0),
        draft or TableLM(5, 0),
        LosslessVerifier(),
        ids,
        mask,
        keys,
        DecodeSettings(4),
    )


def test_one_object_as_target_and_draft_is_refused():
    """Both roles used to write into one cache."""
    lm = TableLM(5, 0)
    ids = torch.tensor([[1, 2]])
    keys = torch.arange(1)
    with pytest.raises(ValueError, match="one object"):
        speculative_decode(lm, lm, LosslessVerifier(), ids, ids > 0, keys, DecodeSettings(4))


def test_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="prompt 1 is empty"):
        decode_raw([[1, 2], [0, 0]], [[True, True], [False, False]])
    with pytest.raises(ValueError, match="prompt 0 is empty"):
        decode_raw(torch.zeros(2, 0).tolist(), torch.zeros(2, 0).bool().tolist())
    with pytest.raises(ValueError, match="no row"):
        decode_raw(torch.zeros(0, 2).tolist(), torch.zeros(0).tolist())


@pytest.mark.parametrize("mask", [[True, False], [False, True, False], [True, False, True]])
def test_padding_anywhere_but_on_the_left_is_refused(mask):
    """A hole inside a prompt used to pass, and shifted what the caches held."""
    with pytest.raises(ValueError, match="padded on the left"):
        decode_raw([[1] * len(mask)], [mask])


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="prompt_mask"):
        decode_raw([[1, 2]], [[True]])
    with pytest.raises(ValueError, match="row_keys"):
        decode_raw([[1, 2]], [[True, True]], keys=torch.arange(2))


def test_vocabularies_that_differ_are_refused():
    with pytest.raises(ValueError, match="draft has a vocabulary of 6, target of 5"):
        decode_raw([[1]], [[True]], draft=TableLM(6, 0))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"max_new_tokens": 0}, r"decoding\.max_new_tokens=0"),
        ({"max_new_tokens": 5, "draft_length": 0}, r"decoding\.draft_length=0"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(settings, key):
    with pytest.raises(ValueError, match=key):
        DecodeSettings(**settings)


def test_head_inputs_without_the_verifiers_bonus_are_refused():
    """The target's bonus has no draft state: its rows used to be missing or depend on the batch."""
    case = random_case("diversed", "target")
    with pytest.raises(ValueError, match="keep_head_inputs"):
        case.decode([[1, 2]], max_new_tokens=5, keep_head_inputs=True)
    settings = DecodeSettings(max_new_tokens=5)
    assert len(case.decode([[1, 2]], **vars(replace(settings, seed=1))).token_ids[0]) == 5
