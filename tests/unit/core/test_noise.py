"""Random numbers as a function of their key: right laws, separate streams, no batch in them."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, chisquare, kstest

from diversed.core import noise
from diversed.core.noise import Purpose, exponential, race, stream_keys, uniform

WORD = (1 << 64) - 1


def splitmix64(state):
    """Return the output function of Steele et al. 2014 on a Python integer."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & WORD
    return state ^ (state >> 31)


def signed(value):
    return value - (1 << 64) if value >> 63 else value


def grid_keys(num_rows, num_positions, purpose=Purpose.DRAFT, seed=0):
    rows, positions = torch.arange(num_rows).unsqueeze(1), torch.arange(num_positions)
    return stream_keys(seed, rows, positions, purpose)


def test_finaliser_gives_the_reference_vectors():
    states = torch.arange(1, 4) * noise._GAMMA  # SplitMix64 with seed 0
    got = [value & WORD for value in noise._finalise(states).tolist()]
    assert got == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@given(st.lists(st.integers(0, WORD), min_size=1, max_size=20))
def test_finaliser_equals_integer_arithmetic_on_any_state(states):
    got = noise._finalise(torch.tensor([signed(state) for state in states]))
    assert [value & WORD for value in got.tolist()] == [splitmix64(state) for state in states]


def test_uniforms_are_uniform():
    """Null: U(0, 1); n = 90,000; Kolmogorov-Smirnov at false-alarm probability 1e-6; seed 0."""
    values = uniform(grid_keys(300, 300, Purpose.ACCEPT)).flatten().double().numpy()
    assert kstest(values, "uniform").pvalue > 1e-6


@pytest.mark.parametrize("axis", ["rows", "positions", "tokens"])
def test_exponentials_are_exponential_along_every_axis(axis):
    """Null: Exp(1); n = 50,000; Kolmogorov-Smirnov at false-alarm probability 1e-6; seed 0."""
    sizes = {"rows": (50_000, 1, 1), "positions": (1, 50_000, 1), "tokens": (1, 1, 50_000)}
    num_rows, num_positions, vocab_size = sizes[axis]
    values = exponential(grid_keys(num_rows, num_positions), vocab_size)
    assert values.shape == sizes[axis]
    assert kstest(values.flatten().double().numpy() * 32, "expon").pvalue > 1e-6


def test_extreme_words_stay_inside_the_open_interval():
    values = noise._unit_floats(torch.tensor([0, -1, 1 << 11, signed(1 << 63)]))
    assert bool(((values > 0) & (values < 1)).all())
    waiting = values.clone().neg_().log1p_().neg_()
    assert bool(((waiting > 0) & torch.isfinite(waiting)).all())


def test_race_follows_the_weights():
    """Null: tokens follow the normalised weights; n = 60,000; chi-square, false alarm 1e-6."""
    weights = torch.tensor([0.05, 2.0, 0.0, 0.4, 1.0, 0.0, 0.55])
    arrivals = exponential(grid_keys(20_000, 3, Purpose.NEXT), weights.numel())
    drawn = torch.bincount(race(weights.expand_as(arrivals), arrivals).flatten(), minlength=7)
    assert drawn[weights == 0].tolist() == [0, 0]
    seen, expected = drawn[weights > 0].numpy(), (weights / weights.sum() * 60_000)[weights > 0]
    assert chisquare(seen, expected.numpy() * seen.sum() / float(expected.sum())).pvalue > 1e-6


@pytest.mark.parametrize("weight", [1e-45, 1e-40, 1e-30])
def test_race_never_draws_weight_zero_however_small_the_rest(weight):
    """A denormal weight over an arrival above 2 used to round to 0, and token 0 was drawn."""
    arrivals = exponential(grid_keys(2000, 1), 4)
    weights = torch.tensor([0.0, 0.0, weight, 0.0]).expand_as(arrivals)
    assert race(weights, arrivals).unique().tolist() == [2]


def pairs_of_streams():
    """Return name -> two equally long streams that must have nothing to do with each other."""
    base = uniform(grid_keys(201, 201))
    other_purposes = {
        f"{one.name}-{other.name}": (
            uniform(grid_keys(200, 200, one)),
            uniform(grid_keys(200, 200, other)),
        )
        for one, other in itertools.combinations(Purpose, 2)
    }
    tokens = 1 - (exponential(grid_keys(200, 200), 2) * -32).exp()
    return {
        **other_purposes,
        "rows": (base[1:], base[:-1]),
        "positions": (base[:, 1:], base[:, :-1]),
        "seeds": (base, uniform(grid_keys(201, 201, seed=1))),
        "tokens": (tokens[..., 0], tokens[..., 1]),
        "row and position": (base[1:, :-1], base[:-1, 1:]),
        "draft of a row, acceptance": (tokens[..., 0], uniform(grid_keys(200, 200, 2))),
    }


@pytest.mark.parametrize("name", pairs_of_streams())
def test_streams_are_independent(name):
    """Null: independent U(0, 1) pairs; n = 40,000; chi-square on 8 x 8 cells, false alarm 1e-6."""
    one, other = (stream.flatten().double().numpy() for stream in pairs_of_streams()[name])
    table, _, _ = np.histogram2d(one, other, bins=8, range=[[0, 1], [0, 1]])
    expected = one.size / 64
    assert chi2.sf(((table - expected) ** 2 / expected).sum(), 63) > 1e-6
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(one.size)


def test_keys_do_not_collide():
    keys = [
        grid_keys(40, 40, purpose, seed).flatten()
        for seed in (0, 1, 2, -1, 2**40)
        for purpose in Purpose
    ]
    keys = torch.cat(keys)
    assert keys.unique().numel() == keys.numel()


def test_numbers_do_not_depend_on_the_batch():
    row_keys = torch.tensor([7, 2**62, -5, 0])
    positions = torch.tensor([[0, 1], [5, 6], [2, 3], [9, 10]])
    together = exponential(stream_keys(3, row_keys.unsqueeze(1), positions, Purpose.DRAFT), 11)
    for row in range(4):
        for column in range(2):
            alone = exponential(
                stream_keys(3, row_keys[row], positions[row, column], Purpose.DRAFT), 11
            )
            assert torch.equal(alone, together[row, column])
    narrow = exponential(stream_keys(3, row_keys, positions[:, 0], Purpose.DRAFT), 5)
    assert torch.equal(narrow, together[:, 0, :5])
