"""Gradients by class of context, against the derivative of an enumerated expectation."""

import itertools

import numpy as np
import pandas as pd
import pytest

from diversed.evaluation.context_gradients import context_gradients, tv_bands
from diversed.figures.token_classes import classes_before

LOGITS = {"first": 0.4, "after a": -0.7, "after b": 1.1}
END = 2


def tables(seed=0):
    """Return p and q of three tokens (the last ends) in three contexts, and rewards by text."""
    generator = np.random.default_rng(seed)
    p, q = ({name: generator.dirichlet(np.ones(3)) for name in LOGITS} for _ in range(2))
    return p, q, {text: generator.uniform() for text in texts()}


def texts():
    return [(END,)] + [(a, b) for a in (0, 1) for b in range(3)]


def contexts_of(text):
    return ["first", "after a" if text[0] == 0 else "after b"][: len(text)]


def tv(p, q):
    return 0.5 * np.abs(p - q).sum()


def expectations(logits, p, q, rewards):
    """Return the probability of every text, and E[R] and E[A]."""
    weight = {name: 1 / (1 + np.exp(-logit)) for name, logit in logits.items()}
    chances, acceptance = {}, {}
    for text in texts():
        seen = contexts_of(text)
        laws = [weight[c] * p[c] + (1 - weight[c]) * q[c] for c in seen]
        chances[text] = np.prod([law[token] for law, token in zip(laws, text, strict=True)])
        acceptance[text] = np.mean([1 - weight[c] * tv(p[c], q[c]) for c in seen])
    means = [sum(chances[t] * value[t] for t in texts()) for value in (rewards, acceptance)]
    return chances, acceptance, means


def tables_of(drawn, p, q, rewards, acceptance):
    """Return trace and records of completions, one for each prompt."""
    weight = {name: 1 / (1 + np.exp(-logit)) for name, logit in LOGITS.items()}
    trace, records = [], []
    for number, text in enumerate(drawn):
        own = {"prompt_id": number, "sample": 0}
        measured = {"quality": rewards[text], "expected_acceptance": acceptance[text]}
        records.append(own | measured)
        for position, (token, c) in enumerate(zip(text, contexts_of(text), strict=True)):
            probs = {"target_prob": p[c][token], "draft_prob": q[c][token]}
            more = {"tv_distance": tv(p[c], q[c]), "target_weight": weight[c], "context": c}
            place = {"position": position, "token": "ab\n"[token], "status": "accepted"}
            trace.append(own | place | probs | more)
        trace.append(trace[-1] | {"status": "rejected", "target_weight": np.nan})
    return pd.DataFrame(trace), pd.DataFrame(records)


def test_the_mean_over_all_samples_is_the_derivative():
    p, q, rewards = tables()
    chances, acceptance, _ = expectations(LOGITS, p, q, rewards)
    assert sum(chances.values()) == pytest.approx(1)
    got = dict.fromkeys(LOGITS, np.zeros(2))
    for pair in itertools.product(texts(), repeat=2):
        trace, records = tables_of(pair, p, q, rewards, acceptance)
        table = context_gradients(trace, records, trace["context"], num_resamples=1)
        table = table.set_index("context")[["quality_gradient", "acceptance_gradient"]]
        for name, row in table.iterrows():
            got[name] = got[name] + chances[pair[0]] * chances[pair[1]] * row.to_numpy()
    step = 1e-5
    for name, logit in LOGITS.items():
        above, below = (
            np.array(expectations(LOGITS | {name: logit + shift}, p, q, rewards)[2])
            for shift in (step, -step)
        )
        np.testing.assert_allclose(got[name], (above - below) / (2 * step), rtol=1e-6, atol=1e-10)


def sampled(number, seed=1):
    p, q, rewards = tables()
    chances, acceptance, _ = expectations(LOGITS, p, q, rewards)
    generator = np.random.default_rng(seed)
    places = generator.choice(len(chances), size=number, p=list(chances.values()))
    return tables_of([texts()[place] for place in places], p, q, rewards, acceptance)


def test_shares_intervals_and_price():
    trace, records = sampled(400)
    table = context_gradients(trace, records, trace["context"], num_resamples=400)
    assert table["token_frac"].sum() == pytest.approx(1)
    assert table["tv_frac"].sum() == pytest.approx(1)
    assert table["tv_frac"].is_monotonic_decreasing
    assert (table["quality_gradient_low"] < table["quality_gradient"]).all()
    assert (table["quality_gradient"] < table["quality_gradient_high"]).all()
    assert table["price"].to_numpy() == pytest.approx(
        -(table["quality_gradient"] / table["acceptance_gradient"]).to_numpy()
    )
    p, q, rewards = tables()
    wanted = {}
    for name, logit in LOGITS.items():
        above, below = (
            expectations(LOGITS | {name: logit + shift}, p, q, rewards)[2][0]
            for shift in (0.01, -0.01)
        )
        wanted[name] = (above - below) / 0.02
    for _, row in table.iterrows():
        half = row["quality_gradient_high"] - row["quality_gradient_low"]
        assert row["quality_gradient"] == pytest.approx(wanted[row["context"]], abs=half)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda trace, records: (trace, records[:1]), "at least 2"),
        (lambda trace, records: (trace, records[1:]), "different completions"),
        (lambda trace, records: (trace, records.assign(quality=np.nan)), "no score"),
        (lambda trace, records: (trace.assign(target_weight=1.0), records), r"inside \(0, 1\)"),
        (lambda trace, records: (trace.assign(draft_prob=np.nan), records), "needs p, q, TV"),
    ],
)
def test_what_cannot_be_measured_is_refused(change, message):
    trace, records = change(*sampled(5))
    with pytest.raises(ValueError, match=message):
        context_gradients(trace, records, trace["context"])


def test_classes_look_at_the_token_before_alone():
    trace = pd.DataFrame(
        {
            "prompt_id": [7, 7, 7, 7, 8],
            "sample": 0,
            "position": [0, 1, 1, 2, 0],
            "status": ["accepted", "rejected", "recovered", "bonus", "accepted"],
            "token": ["def", "x", " f", "(", "1"],
        }
    )
    got = classes_before(trace, is_code=True)
    assert got.isna().tolist() == [False, True, False, False, False]
    assert got.dropna().tolist() == [
        "after the prompt",
        "after code keyword",
        "after word",
        "after the prompt",
    ]


def test_bands_hold_their_upper_edge():
    trace = pd.DataFrame({"tv_distance": [0.0, 0.1, 0.1001, 1.0]}, index=[3, 4, 5, 6])
    got = tv_bands(trace, (0.1,))
    assert got.to_dict() == {3: "TV up to 0.1", 4: "TV up to 0.1", 5: "TV up to 1", 6: "TV up to 1"}
