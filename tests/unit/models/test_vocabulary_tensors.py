"""What a block holds over the vocabulary, measured: the factor of `models.memory`."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from diversed.core.loop import DecodeSettings, autoregressive_decode, speculative_decode
from diversed.core.probs import Sampling
from diversed.core.types import StepOutput
from diversed.core.verifiers import (
    CascadeVerifier,
    FuzzyVerifier,
    LenientVerifier,
    LosslessVerifier,
    MarginVerifier,
    StaticVerifier,
)
from diversed.models.memory import VOCAB_TENSORS

NUM_ROWS, DRAFT_LENGTH, VOCAB_SIZE = 2, 5, 5_000
RULES = {
    "lossless": LosslessVerifier(),
    "static": StaticVerifier(0.5),
    "lenient": LenientVerifier(0.5, residual="scaled"),
    "fuzzy": FuzzyVerifier(0.1),
    "margin": MarginVerifier(0.5),
    "cascade": CascadeVerifier("token_v3", 0.3),
}
SAMPLINGS = {
    "plain": Sampling(),
    "greedy": Sampling(temperature=0),
    "top-p": Sampling(top_p=0.9),
}


class RandomLM:
    """Logits near a common table; holds nothing itself."""

    vocab_size = VOCAB_SIZE

    def __init__(self, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(0)) * 2

    def start(self, prompt_ids, prompt_mask):
        pass

    def step(self, input_ids):
        noise = torch.randn(*input_ids.shape, 1, generator=self.generator)
        logits = self.table + noise * self.table.roll(1)
        return StepOutput(logits=logits, hidden=torch.zeros(*input_ids.shape, 4))

    def retain(self, rows, num_drop):
        pass


def peak(verifier, sampling):
    """Return the most that a decoding holds at once, in tensors [B, N + 1, V] of fp32."""
    target, draft = RandomLM(1), RandomLM(2)
    ids = torch.ones(NUM_ROWS, 2, dtype=torch.long)
    inputs = (ids, ids.bool(), torch.arange(NUM_ROWS))
    settings = DecodeSettings(max_new_tokens=6, draft_length=DRAFT_LENGTH, sampling=sampling)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        if verifier is None:
            autoregressive_decode(target, *inputs, settings)
        else:
            speculative_decode(target, draft, verifier, *inputs, settings)
    events = [event for event in recorded.profiler.kineto_results.events() if event.nbytes()]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / (4 * NUM_ROWS * (DRAFT_LENGTH + 1) * VOCAB_SIZE)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_block_holds_no_more_tensors_than_are_counted(sampling):
    found = {name: peak(rule, SAMPLINGS[sampling]) for name, rule in RULES.items()}
    assert max(found.values()) <= VOCAB_TENSORS, found
    assert min(found.values()) > 3


def test_the_factor_is_not_far_above_what_is_needed():
    assert peak(LosslessVerifier(), Sampling(top_p=0.9)) > VOCAB_TENSORS - 1.5


def test_plain_decoding_holds_much_less():
    assert 0 < peak(None, Sampling()) < 2
