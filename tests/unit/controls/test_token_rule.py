"""Weights by hand: where the target decides alone, and what is refused."""

import pytest
import torch

from diversed import DecodeSettings, SpeculativeDecoder, StaticVerifier
from diversed.controls.token_rule import TokenRuleVerifier
from diversed.core.kernel import ModelView

PROMPTS = ["Ada has 3 pens. Ada buys 4 more pens. How many pens are there?\n"]


def view(pair, *laws):
    """Return a view at which the target has given laws: {token text: probability}."""
    vocabulary = pair.target.vocab_size
    probs = torch.zeros(1, len(laws), vocabulary)
    for position, law in enumerate(laws):
        for text, probability in law.items():
            (token,) = pair.tokenizer(text, add_special_tokens=False)["input_ids"]
            probs[0, position, token] = probability
    nothing = torch.zeros(1, len(laws), 1)
    return ModelView(probs, probs, probs.log(), probs.log(), nothing, nothing)


LAWS = (
    {"3": 0.4, " 4": 0.2, ".": 0.4},  # digits together above a half
    {"3": 0.5, ".": 0.5},
    {" +": 0.9, "3": 0.1},
    {" the": 0.8, ".": 0.2},
    {" the": 0.95, ".": 0.05},
)


@pytest.mark.parametrize(
    ("settings", "weights"),
    [
        ({}, [1, 0, 0, 0, 0]),
        ({"elsewhere": 0.25}, [1, 0.25, 0.25, 0.25, 0.25]),
        ({"classes": ["digit", "operator"]}, [1, 0, 1, 0, 0]),
        ({"threshold": 0.05}, [1, 1, 1, 0, 0]),
        ({"sure": 0.9}, [1, 0, 1, 0, 1]),
    ],
)
def test_the_target_decides_where_the_rule_says_so(pair, settings, weights):
    found = TokenRuleVerifier(pair, **settings).target_weight(view(pair, *LAWS))
    assert found.tolist() == [weights]


def test_a_rule_that_never_applies_is_a_static_weight(pair):
    settings = DecodeSettings(max_new_tokens=40)
    rules = TokenRuleVerifier(pair, threshold=1.0, elsewhere=0.3), StaticVerifier(0.3)
    ids = [
        SpeculativeDecoder(pair, rule, settings).generate(PROMPTS).result.token_ids[0]
        for rule in rules
    ]
    assert torch.equal(*ids)


def test_a_program_has_other_classes(pair):
    prose = TokenRuleVerifier(pair, classes=["operator"])
    code = TokenRuleVerifier(pair, classes=["operator"], is_code=True)
    (plus,) = pair.tokenizer(" plus", add_special_tokens=False)["input_ids"]
    assert prose.is_meant[plus]
    assert not code.is_meant[plus]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": ["digits"]}, "verifier.classes holds 'digits': must be some of digit, "),
        ({"threshold": 1.5}, "verifier.threshold=1.5"),
        ({"elsewhere": -0.1}, "verifier.elsewhere=-0.1"),
        ({"sure": 2}, "verifier.sure=2"),
    ],
)
def test_bad_settings_are_named(pair, settings, message):
    with pytest.raises(ValueError, match=message):
        TokenRuleVerifier(pair, **settings)
