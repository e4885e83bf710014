"""Figures from verdicts: pass@k, and how sure one can be of an accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, sqrt

from ttcnet.errors import fail


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The chance that at least one of `k` answers is right, estimated without bias from `n` answers of which `correct`
    are right (Chen et al. 2021).

    Examples:
        >>> pass_at_k(8, 1, 1), pass_at_k(8, 1, 8), pass_at_k(8, 0, 8)
        (0.125, 1.0, 0.0)
    """
    if not 1 <= k <= n:
        fail("k", f"must be between 1 and the {n} answers", k, "Take more answers, or a smaller k.")
    if not 0 <= correct <= n:
        fail("correct", f"must be between 0 and the {n} answers", correct, "Count again.")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def wilson(right: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's interval for a proportion, 95 % unless z says otherwise.

    Examples:
        >>> low, high = wilson(0, 60)
        >>> f"{low:.3f} {high:.3f}"
        '0.000 0.060'
    """
    share, square = right / total, z * z / total
    centre, half = share + square / 2, z * sqrt(share * (1 - share) / total + square / (4 * total))
    return max(0.0, (centre - half) / (1 + square)), min(1.0, (centre + half) / (1 + square))


def bootstrap(values: Sequence[float], draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean of one value a problem, by drawing problems again with replacement: answers to the
    same problem are not independent, problems are."""
    import numpy as np  # late, since the command line loads this module

    array = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means = np.array([array[generator.integers(0, len(array), len(array))].mean() for _ in range(draws)])
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
