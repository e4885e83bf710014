"""Means over problems, and how sure one can be of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .statistics import NORMAL_95


@dataclass(frozen=True)
class Mean:
    """A mean over problems, and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f} to {self.high:.4f})"


def average(values: Sequence[float]) -> Mean:
    """Of one value a problem."""
    return ratio(values, [1] * len(values))


def ratio(sums: Sequence[float], counts: Sequence[int]) -> Mean:
    """Σ sums / Σ counts, where each problem brings a sum over so many tokens: problems are what was sampled, and their
    tokens stand or fall together.

    Examples:
        >>> print(ratio([-2.0, -3.0, -7.0], [2, 4, 6]))
        -1.0000 (-1.2829 to -0.7171)
    """
    n, total = len(sums), sum(counts)
    rate = math.fsum(sums) / total
    spread = math.fsum((one - rate * count) ** 2 for one, count in zip(sums, counts, strict=True)) * n / max(n - 1, 1)
    error = NORMAL_95 * math.sqrt(spread) / total
    return Mean(rate, rate - error, rate + error)
