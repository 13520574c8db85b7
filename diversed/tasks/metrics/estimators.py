"""pass@k: the chance that one of k samples is right, estimated from n samples."""

from math import comb


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of k samples is right.

    The share of the subsets of k samples that hold a right one, `1 - C(n-c, k) / C(n, k)`, from
    exact integers: no product of small factors, so nothing is lost for large n.

    Args:
        num_samples: n, the samples of one problem.
        num_correct: c, those that passed.
        k: Size of the subsets, at most n.

    Returns:
        In [0, 1]; exactly 0.0 for c = 0 and exactly 1.0 for c > n - k.

    Raises:
        ValueError: Not 1 <= k <= n, or not 0 <= c <= n.

    >>> pass_at_k(num_samples=5, num_correct=2, k=2)
    0.7
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"k={k}: must be at least 1 and at most the {num_samples} samples")
    if not 0 <= num_correct <= num_samples:
        raise ValueError(f"num_correct={num_correct}: must be between 0 and {num_samples}")
    subsets = comb(num_samples, k)
    return (subsets - comb(num_samples - num_correct, k)) / subsets
