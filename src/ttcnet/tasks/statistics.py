"""Figures with 95 % intervals: pass@k, proportions, and means over examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, fsum, sqrt
from statistics import fmean

from ttcnet.errors import fail

NORMAL_95 = 1.959963984540054  # 95 % of a normal distribution lie within so many standard deviations


def pass_at_k(n: int, correct: int, k: int) -> float:
    """The chance that at least one of `k` answers is right, estimated without bias from `n` answers; `correct` of them
    are right (Chen et al. 2021).

    Examples:
        >>> pass_at_k(8, 1, 1), pass_at_k(8, 1, 8), pass_at_k(8, 0, 8)
        (0.125, 1.0, 0.0)
    """
    if not 1 <= k <= n:
        fail("k", f"must be between 1 and the {n} answers", k, "Take more answers, or a smaller k.", "out-of-range")
    if not 0 <= correct <= n:
        fail("correct", f"must be between 0 and the {n} answers", correct, "Count again.", "out-of-range")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def wilson(right: float, total: float) -> tuple[float, float]:
    """Wilson's 95 % interval for a proportion of `right` among `total`.

    Examples:
        >>> [round(end, 3) for end in wilson(95, 100)]
        [0.888, 0.978]
    """
    rate, square = right / total, NORMAL_95**2
    centre = (rate + square / (2 * total)) / (1 + square / total)
    margin = NORMAL_95 / (1 + square / total) * sqrt(rate * (1 - rate) / total + square / (4 * total**2))
    return (0.0 if rate == 0 else max(0.0, centre - margin)), (1.0 if rate == 1 else min(1.0, centre + margin))


def bootstrap(values: Sequence[float], draws: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean of one value per example, by drawing examples with replacement: answers to the same
    example are not independent, examples are."""
    import numpy as np  # late, since the command line loads this module

    array = np.asarray(values, dtype=np.float64)
    generator = np.random.default_rng(seed)
    means = np.array([array[generator.integers(0, len(array), len(array))].mean() for _ in range(draws)])
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


@dataclass(frozen=True)
class Mean:
    """A mean over examples, and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f} to {self.high:.4f})"


def average(values: Sequence[float]) -> Mean:
    """The mean of one value per example, with its interval."""
    return ratio(values, [1] * len(values))


def ratio(sums: Sequence[float], counts: Sequence[int]) -> Mean:
    """Σ sums / Σ counts, where each example brings a sum over so many tokens: examples are the sample, and the
    tokens of an example stay together.

    Examples:
        >>> print(ratio([-2.0, -3.0, -7.0], [2, 4, 6]))
        -1.0000 (-1.2829 to -0.7171)
    """
    n, total = len(sums), sum(counts)
    rate = fsum(sums) / total
    spread = fsum((one - rate * count) ** 2 for one, count in zip(sums, counts, strict=True)) * n / max(n - 1, 1)
    error = NORMAL_95 * sqrt(spread) / total
    return Mean(rate, rate - error, rate + error)


def accuracy(shares: Sequence[float]) -> Mean | None:
    """The mean of one share per example; None if there are none. The interval is Wilson's if every share is 0 or 1,
    else a bootstrap over examples.

    Examples:
        >>> print(accuracy([1.0, 0.0, 1.0, 1.0]))
        0.7500 (0.3006 to 0.9544)
    """
    if not shares:
        return None
    binary = all(share in (0.0, 1.0) for share in shares)
    return Mean(fmean(shares), *(wilson(round(sum(shares)), len(shares)) if binary else bootstrap(shares)))
