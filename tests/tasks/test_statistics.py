"""pass@k and intervals, against enumeration and simulation."""

from itertools import combinations

import numpy as np
import pytest
from scipy.stats import binomtest

from tests.raising import raises
from ttcnet.evaluate import bootstrap, pass_at_k, wilson


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_pass_at_k_is_the_mean_over_all_choices(n):
    for correct in range(n + 1):
        verdicts = [place < correct for place in range(n)]
        for k in range(1, n + 1):
            expected = np.mean([any(choice) for choice in combinations(verdicts, k)])
            assert pass_at_k(n, correct, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("arguments", "field", "value"), [((8, 1, 9), "k", "9"), ((8, 9, 1), "correct", "9"), ((8, 1, 0), "k", "0")]
)
def test_pass_at_k_of_nonsense(arguments, field, value):
    with raises("out-of-range", field, value):
        pass_at_k(*arguments)


@pytest.mark.parametrize(("right", "total"), [(0, 60), (1, 30), (264, 500), (30, 30)])
def test_wilson(right, total):
    expected = binomtest(right, total).proportion_ci(method="wilson")
    assert wilson(right, total) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_bootstrap():
    values = np.random.default_rng(0).binomial(8, 0.3, 400) / 8
    low, high = bootstrap(values)
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.002)
    assert high == pytest.approx(values.mean() + half, abs=0.002)
    assert bootstrap(values) == (low, high)
    assert bootstrap([1.0, 1.0]) == (1.0, 1.0)
