"""Every verification rule once more, in float64 numpy, one position at a time.

Written from the equations, without the functions under test: a rule is told both models' next-token
laws and answers with the probability that each token passes and with the law of what replaces one
that fails.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Position:
    """Both models at one position.

    Attributes:
        p, q: Target and draft after temperature, top-k and top-p, [V].
        pu, qu: The same before them.
        weight: What the head says, for the rule that has one.
    """

    p: np.ndarray
    q: np.ndarray
    pu: np.ndarray
    qu: np.ndarray
    weight: float = 1.0


Answer = tuple[np.ndarray, np.ndarray]


def normed(weights: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
    return weights / weights.sum() if weights.sum() > 0 else otherwise


def quotient(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return first / second, infinite where second is 0: no token of q = 0 is ever drafted."""
    return np.divide(first, second, out=np.full_like(first, np.inf), where=second > 0)


def towards(law: np.ndarray, q: np.ndarray) -> Answer:
    """Accept with min(1, law / q), else draw from norm((law - q)+)."""
    return np.minimum(1, quotient(law, q)), normed(np.maximum(law - q, 0), law)


def tv(p: np.ndarray, q: np.ndarray) -> float:
    return float(np.abs(p - q).sum() / 2)


def kl(p: np.ndarray, q: np.ndarray) -> float:
    seen = p > 0
    if (q[seen] == 0).any():
        return np.inf
    return float((p[seen] * np.log(p[seen] / q[seen])).sum())


def js(p: np.ndarray, q: np.ndarray) -> float:
    middle = (p + q) / 2
    return 0.5 * kl(p, middle) + 0.5 * kl(q, middle)


def entropy(p: np.ndarray) -> float:
    return -float((p[p > 0] * np.log(p[p > 0])).sum())


# --- the rules ------------------------------------------------------------------------------------


def lossless(at: Position) -> Answer:
    return towards(at.p, at.q)


def static(at: Position, weight: float) -> Answer:
    return towards(weight * at.p + (1 - weight) * at.q, at.q)


def diversed(at: Position) -> Answer:
    return static(at, at.weight)


def lenient(at: Position, lenience: float, residual: str = "target") -> Answer:
    drafted = at.q * {"target": 1.0, "scaled": lenience}[residual]
    left = normed(np.maximum(at.p - drafted, 0), at.p)
    return np.minimum(1, quotient(at.p, lenience * at.q)), left


def kept_by_cascade(at: Position, rule: str, alpha: float) -> np.ndarray:
    """Return which tokens of the draft are kept, bool [V]; all or none for the first three."""
    max_q, max_p = at.qu.max(), at.pu.max()
    whole = {
        "chow": max_q >= 1 - alpha,
        "diff": max_q >= max_p - alpha,
        "opt": max_q >= max_p - alpha * tv(at.p, at.q),
    }
    if rule in whole:
        return np.full(at.p.shape, whole[rule])
    if rule == "token_v1":
        return at.qu >= max_p - alpha
    if rule == "token_v2":
        return at.pu >= max_p - alpha
    return at.pu >= (1 - alpha) * max_p


def cascade(at: Position, rule: str, alpha: float) -> Answer:
    kept = np.where(kept_by_cascade(at, rule, alpha), at.q, 0)
    return towards(kept + (1 - kept.sum()) * at.p, at.q)


def typical(at: Position, threshold: float = 0.09, alpha: float = 0.3) -> Answer:
    return (at.p > min(threshold, alpha * np.exp(-entropy(at.p)))).astype(float), at.p


def is_near(at: Position, divergence: str, threshold: float) -> bool:
    return {"tv": tv, "kl": kl, "js": js}[divergence](at.p, at.q) <= threshold


def fuzzy(at: Position, threshold: float, divergence: str = "js") -> Answer:
    return np.full_like(at.p, is_near(at, divergence, threshold)), at.p


def close_race(at: Position, theta: float) -> list[int]:
    """Return the two best tokens of the target if they are close, else none."""
    second, best = np.argsort(at.pu)[-2:]
    return [int(best), int(second)] if at.pu[second] >= theta * at.pu[best] else []


def margin(at: Position, theta: float) -> Answer:
    accepts, left = towards(at.p, at.q)
    accepts[close_race(at, theta)] = 1
    return accepts, left


RULES: dict[str, Callable[..., Answer]] = {
    "lossless": lossless,
    "static": static,
    "diversed": diversed,
    "lenient": lenient,
    "cascade": cascade,
    "typical": typical,
    "fuzzy": fuzzy,
    "margin": margin,
}


def answer(name: str, at: Position, **settings: object) -> Answer:
    return RULES[name](at, **settings)


def emitted(q: np.ndarray, accepts: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return the law of the token that a judged position emits."""
    passed = q * np.where(q > 0, accepts, 0)
    return passed + (1 - passed.sum()) * left


# --- temperature 0: p and q are the temperature-1 laws --------------------------------------------


def greedy(name: str, at: Position, token: int, **settings: object) -> tuple[bool, int]:
    """Return whether a drafted token passes, and what stands in its place if it does not."""
    best = int(at.p.argmax())
    weight = {"lossless": 1.0, "static": settings.get("weight"), "diversed": at.weight}.get(name)
    if weight is not None:
        best = int((weight * at.p + (1 - weight) * at.q).argmax())
        return token == best, best
    passes = {
        "lenient": lambda lenience, residual="target": at.p[token] >= lenience * at.p.max(),
        "cascade": lambda rule, alpha: kept_by_cascade(at, rule, alpha)[token],
        "typical": lambda threshold, alpha: False,
        "fuzzy": lambda threshold, divergence: is_near(at, divergence, threshold),
        "margin": lambda theta: token in close_race(at, theta),
    }[name](**settings)
    return bool(passes) or token == best, best
