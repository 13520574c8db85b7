"""The closed form of the static ensemble against a linear program that knows nothing of it."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from diversed.core.probs import mix, tv_distance
from diversed.theory import pareto
from diversed.theory.pareto import front_law, front_weight, least_bias

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def random_pair(generator):
    """Return p and q over 3 to 50 tokens, each with zero entries now and then."""
    size = generator.integers(3, 51)
    laws = generator.dirichlet(np.full(size, generator.choice([0.1, 1.0])), size=2)
    laws[generator.random(laws.shape) < generator.choice([0.0, 0.4])] = 0
    laws[np.arange(2), generator.integers(size, size=2)] += 1e-3  # no row is zero throughout
    return laws / laws.sum(1, keepdims=True)


def programmed_bias(p, q, max_rejection):
    """Return min TV(pi, p) over all distributions pi with TV(pi, q) <= b.

    pi = q + gained - lost with gained, lost >= 0, lost <= q and equal sums of at most b; the
    objective is the sum of missing >= (p - pi)+.
    """
    size = p.size
    one, ones, zeros = np.eye(size), np.ones(size), np.zeros(size)
    solution = linprog(
        np.concatenate([zeros, zeros, ones]),  # gained, lost, missing
        A_ub=np.vstack([np.hstack([-one, one, -one]), np.concatenate([ones, zeros, zeros])]),
        b_ub=np.append(q - p, max_rejection),
        A_eq=np.concatenate([ones, -ones, zeros])[None],
        b_eq=[0.0],
        bounds=[(0, None)] * size + [(0, most) for most in q] + [(0, None)] * size,
        options=TIGHT,
    )
    assert solution.status == 0, solution.message
    return solution.fun


def scenarios(number=300):
    generator = np.random.default_rng(0)
    for _ in range(number):
        p, q = random_pair(generator)
        tv = np.abs(p - q).sum() / 2
        yield p, q, min(1.0, tv * generator.choice([0, 0.2, 0.5, 0.9, 1.0, 1.1]))


def is_optimal(p, q, max_rejection, tolerance=1e-9):
    """Whether the shipped law is one, keeps to its bound, and has the optimum's bias."""
    target, draft, bound = (torch.tensor(values) for values in (p, q, max_rejection))
    nu = front_law(target, draft, bound).numpy()
    is_law = nu.min() >= 0 and abs(nu.sum() - 1) < tolerance
    rejection, bias = (np.abs(nu - law).sum() / 2 for law in (q, p))
    optimum = programmed_bias(p, q, max_rejection)
    return is_law and rejection < max_rejection + tolerance and abs(bias - optimum) < tolerance


def test_no_law_beats_the_static_ensemble():
    """300 random pairs: the program's optimum, the closed form and what nu attains are equal."""
    num_with_zeros = 0
    for p, q, max_rejection in scenarios():
        tv = torch.tensor(np.abs(p - q).sum() / 2).clamp(max=1)
        closed = float(least_bias(tv, torch.tensor(max_rejection)))
        assert closed == pytest.approx(programmed_bias(p, q, max_rejection), abs=1e-9)
        assert is_optimal(p, q, max_rejection)
        num_with_zeros += bool((p == 0).any() or (q == 0).any())
    assert num_with_zeros > 50


def geometric(target_probs, draft_probs, weight):
    powers = target_probs ** weight.unsqueeze(-1) * draft_probs ** (1 - weight).unsqueeze(-1)
    return powers / powers.sum(-1, keepdim=True)


@pytest.mark.parametrize("mutant", [geometric, lambda p, q, weight: mix(q, p, weight)])
def test_another_mixture_is_beaten_by_the_program(monkeypatch, mutant):
    monkeypatch.setattr(pareto, "mix", mutant)
    assert sum(not is_optimal(*scenario, tolerance=1e-4) for scenario in scenarios(40)) > 10


def test_weight_shares_the_distance_between_rejection_and_bias():
    tv = torch.tensor([0.4, 0.4, 0.4, 0.0], dtype=torch.float64)
    bound = torch.tensor([0.0, 0.1, 0.7, 0.2], dtype=torch.float64)
    assert front_weight(tv, bound).tolist() == [0.0, 0.25, 1.0, 1.0]
    np.testing.assert_allclose(least_bias(tv, bound), [0.4, 0.3, 0.0, 0.0])


def test_front_law_is_the_mixture_of_its_weight_in_batches():
    generator = torch.Generator().manual_seed(0)
    p, q = torch.rand(2, 5, 7, 11, generator=generator, dtype=torch.float64).softmax(-1)
    bound = torch.rand(5, 7, generator=generator, dtype=torch.float64) * 0.2
    weight = front_weight(tv_distance(q, p), bound)
    assert front_law(p, q, bound).shape == (5, 7, 11)
    torch.testing.assert_close(front_law(p, q, bound), mix(p, q, weight))


def test_equal_laws_have_weight_one_and_no_bias():
    p = torch.tensor([0.2, 0.8], dtype=torch.float64)
    assert front_law(p, p, torch.tensor(0.0, dtype=torch.float64)).tolist() == p.tolist()


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_values_outside_the_unit_interval_are_named(bad):
    good, wrong = torch.tensor([0.5]), torch.tensor([bad])
    with pytest.raises(ValueError, match=r"max_rejection must lie in \[0, 1\], got"):
        front_weight(good, wrong)
    with pytest.raises(ValueError, match=r"tv must lie in \[0, 1\], got"):
        least_bias(wrong, good)
