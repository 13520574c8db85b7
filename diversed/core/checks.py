"""Argument checks of the core; each names the argument and what it held."""

from numbers import Real

from torch import Tensor


def check_shape(name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Raise ValueError unless `tensor` has `shape`; None stands for any size."""
    actual = tuple(tensor.shape)
    fits = len(actual) == len(shape) and all(
        wanted is None or wanted == size for wanted, size in zip(shape, actual, strict=True)
    )
    if not fits:
        raise ValueError(f"{name} has shape {actual}, expected {shape}")


def check_same_shape(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Raise ValueError unless both tensors have the same shape."""
    if tensor.shape != other.shape:
        raise ValueError(
            f"{name} has shape {tuple(tensor.shape)}, {other_name} has {tuple(other.shape)}"
        )


def check_number(name: str, value: object) -> None:
    """Raise ValueError unless `value` is a number; True and False are none."""
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number:
        raise ValueError(f"{name}={value!r}: must be a number")


def check_at_least_one(name: str, number: int) -> None:
    """Raise ValueError unless `number` is 1 or more."""
    if number < 1:
        raise ValueError(f"{name}={number}: must be at least 1")


def check_unit_interval(name: str, value: float) -> None:
    """Raise ValueError unless 0 <= value <= 1 (NaN fails)."""
    check_number(name, value)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value}: must lie in [0, 1]")
