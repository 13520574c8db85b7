"""Random numbers as a pure function of (seed, row, position, purpose, token).

No generator has a state: a row draws the same numbers whoever shares its batch, on any device, and
a resumed run draws what the unbroken run would have drawn. The mixing function is SplitMix64
(Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).

Every drafted position may be drafted again in a later block with the same numbers: the rules of
`verifiers.py` judge from left to right, so a token that is thrown away had no say in its being
thrown away.
"""

from enum import IntEnum
from functools import lru_cache

import torch
from torch import Tensor


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GAMMA = _signed(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = _signed(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = _signed(0x94D049BB133111EB)
_BELOW_ONE = 1 - 2.0**-24
_CACHED_NUMBERS = 1 << 17  # drawn at a time on a CPU: what fits its cache
_MEAN_ARRIVAL = 1 / 32  # no arrival above 1: no denormal weight loses its race by rounding to 0


class Purpose(IntEnum):
    """What a number is drawn for; each purpose has its own stream."""

    DRAFT = 1
    ACCEPT = 2
    NEXT = 3  # the recovered or bonus token that ends a block


def _finalise(bits: Tensor) -> Tensor:
    """Return the SplitMix64 output function of 64-bit states (int64, wrapping), in their place."""
    bits.bitwise_xor_(_shifted(bits, 30)).mul_(_MULTIPLIER_1)
    bits.bitwise_xor_(_shifted(bits, 27)).mul_(_MULTIPLIER_2)
    return bits.bitwise_xor_(_shifted(bits, 31))


def _shifted(bits: Tensor, number: int) -> Tensor:
    """Return int64 bits moved to the right, zeros moved in."""
    return (bits >> number).bitwise_and_((1 << (64 - number)) - 1)


def stream_keys(
    seed: int, row_keys: Tensor, positions: Tensor, purpose: Purpose | Tensor
) -> Tensor:
    """Return one 64-bit key per (row, position) for a purpose.

    Args:
        seed: The run's seed.
        row_keys: int64, broadcastable with `positions`; equal keys share all their numbers.
        positions: int64, index of the token among the row's generated tokens.
        purpose: Which stream; or int64 values of `Purpose`, broadcastable with `positions`.

    Returns:
        int64 keys of the broadcast shape.
    """
    keys = _finalise(row_keys + _signed((seed * 0x9E3779B97F4A7C15) % (1 << 64)))
    return _finalise(keys + (positions * 4 + purpose) * _GAMMA)


def _unit_floats(bits: Tensor) -> Tensor:
    """Return floats in (0, 1) with full relative precision near 0."""
    fraction = _shifted(bits, 11).to(torch.float32)
    return fraction.add_(0.5).mul_(2.0**-53).clamp_(max=_BELOW_ONE)


def uniform(keys: Tensor) -> Tensor:
    """Return one fp32 number in (0, 1) per key."""
    return _unit_floats(_finalise(keys + _GAMMA))


@lru_cache(maxsize=8)
def _token_steps(vocab_size: int, device: torch.device) -> Tensor:
    return torch.arange(1, vocab_size + 1, device=device) * _GAMMA


def exponential(keys: Tensor, vocab_size: int) -> Tensor:
    """Return exponential numbers of mean 1/32, one per key and token.

    Args:
        keys: int64, shape [...].
        vocab_size: V.

    Returns:
        fp32, shape [..., V], positive and below 1.
    """
    steps = _token_steps(vocab_size, keys.device)
    arrivals = torch.empty(*keys.shape, vocab_size, device=keys.device)
    is_cached = keys.device.type == "cpu"
    num_keys = max(1, _CACHED_NUMBERS // vocab_size if is_cached else keys.numel())
    parts = keys.reshape(-1, 1).split(num_keys), arrivals.view(-1, vocab_size).split(num_keys)
    for own_keys, own_arrivals in zip(*parts, strict=True):
        numbers = _unit_floats(_finalise(own_keys + steps))
        torch.mul(numbers.neg_().log1p_(), -_MEAN_ARRIVAL, out=own_arrivals)
    return arrivals


def race(weights: Tensor, arrivals: Tensor) -> Tensor:
    """Draw one token per row from unnormalised weights by an exponential race.

    argmax of weight / exponential follows the weights exactly, needs no cumulative sum over the
    vocabulary, and moves to another token only where two scores nearly tie, so logits that differ
    by rounding (another batch size) give the same text. A token of weight 0 is never drawn.

    Args:
        weights: Non-negative, positive sum, shape [..., V].
        arrivals: From `exponential`, same shape.

    Returns:
        Token ids, int64, shape [...].
    """
    return (weights / arrivals).argmax(-1)
