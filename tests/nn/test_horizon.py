"""Samplers of the horizon: the right distribution, the same for everybody, and again after a restart."""

import json

import numpy as np
import pytest
import torch
from scipy import stats

from tests.raising import raises
from ttcnet.nn import Fixed, PoissonLogNormal, Uniform
from ttcnet.nn.horizon import parse

SAMPLERS = [PoissonLogNormal, Uniform, Fixed]
PINNED_POISSON = [6, 7, 6, 12, 8, 13, 7, 16, 11, 15, 10, 10]
PINNED_UNIFORM = [11, 25, 25, 23, 17, 14, 9, 32, 31, 30, 15, 15]


def draws(sampler, count):
    return [sampler.draw() for _ in range(count)]


def poisson_log_normal(mean, sigma, longest):
    """Probabilities of 1..longest, by quadrature over the log-normal rate."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    rates = mean * np.exp(sigma * nodes - sigma**2 / 2)
    mass = stats.poisson.pmf(np.arange(longest)[:, None], rates) @ weights
    return mass / mass.sum()


@pytest.mark.parametrize(("mean", "sigma", "longest"), [(8, 0.1, 32), (8, 0.5, 10), (3, 0.0, 6), (64, 0.3, 128)])
def test_poisson_log_normal_follows_its_definition(mean, sigma, longest):
    sampler = PoissonLogNormal(mean, sigma, longest, seed=1)
    found = np.bincount(draws(sampler, 6000), minlength=longest + 1)[1:]
    wanted = 6000 * poisson_log_normal(mean, sigma, longest)
    group = np.minimum((wanted.cumsum() // 20).astype(int), 250)  # cells of about 20 or more
    found, wanted = (np.bincount(group, values) for values in (found, wanted))
    filled = wanted > 5
    found, wanted = np.append(found[filled], found[~filled].sum()), np.append(wanted[filled], wanted[~filled].sum())
    keep = wanted > 0
    assert stats.chisquare(found[keep], wanted[keep]).pvalue > 1e-3


def test_poisson_log_normal_against_direct_simulation():
    random = np.random.default_rng(0)
    simulated = 1 + random.poisson(np.exp(random.normal(np.log(8) - 0.005, 0.1, 200_000)))
    simulated = simulated[simulated <= 32]
    found = np.array(draws(PoissonLogNormal(), 10_000))
    assert abs(found.mean() - simulated.mean()) < 4 * simulated.std() / 100
    assert abs(found.std() / simulated.std() - 1) < 0.04


def test_rejection_keeps_the_bound():
    found = draws(PoissonLogNormal(mean=4, sigma=1, max=5), 2000)
    assert min(found) == 1
    assert max(found) == 5
    assert set(draws(PoissonLogNormal(mean=1, max=1), 20)) == {1}


def test_uniform_and_fixed():
    found = np.bincount(draws(Uniform(3, 7), 5000))
    assert found[:3].sum() == 0
    assert len(found) == 8
    assert stats.chisquare(found[3:]).pvalue > 1e-3
    assert draws(Fixed(5), 4) == [5] * 4
    assert [sampler.max for sampler in (PoissonLogNormal(), Uniform(), Fixed())] == [32, 32, 8]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_same_on_every_process(kind):
    """Whatever else draws random numbers there."""
    ranks = []
    for rank in range(3):
        torch.manual_seed(rank)
        np.random.seed(rank)
        sampler, sequence = kind(), []
        for _ in range(50):
            torch.rand(rank + 1), np.random.rand(rank)
            sequence.append(sampler.draw())
        ranks.append(sequence)
    assert ranks[0] == ranks[1] == ranks[2]


@pytest.mark.parametrize("kind", SAMPLERS)
def test_drawing_leaves_other_random_numbers_alone(kind):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    draws(kind(), 5)
    assert torch.equal(before, torch.get_rng_state())


def test_the_first_draws_are_pinned():
    """A change here would break the resumption of everybody's runs."""
    assert draws(PoissonLogNormal(), 12) == PINNED_POISSON
    assert draws(Uniform(), 12) == PINNED_UNIFORM


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_resumed_sampler_continues(kind):
    whole = draws(kind(seed=3), 40)
    first = kind(seed=3)
    draws(first, 17)
    second = kind()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert draws(second, 23) == whole[17:]
    assert second.at(5) == whole[5]


def test_seeds_differ():
    assert draws(PoissonLogNormal(seed=0), 30) != draws(PoissonLogNormal(seed=1), 30)


def test_parse():
    assert repr(parse("pln")) == repr(PoissonLogNormal())
    assert repr(parse("pln:4,0.5,16", seed=2)) == repr(PoissonLogNormal(4, 0.5, 16, seed=2))
    assert repr(parse("uniform:2,5")) == repr(Uniform(2, 5))
    assert repr(parse("fixed:3")) == repr(Fixed(3))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: PoissonLogNormal(mean=0), ("out-of-range", "mean", "0")),
        (lambda: PoissonLogNormal(mean=40), ("out-of-range", "mean", "40")),
        (lambda: PoissonLogNormal(mean=float("nan")), ("out-of-range", "mean")),
        (lambda: PoissonLogNormal(sigma=-1), ("out-of-range", "sigma", "-1")),
        (lambda: PoissonLogNormal(max=0), ("too-small", "max", "0")),
        (lambda: PoissonLogNormal(seed=-1), ("too-small", "seed", "-1")),
        (lambda: Uniform(0, 3), ("too-small", "min", "0")),
        (lambda: Uniform(4, 3), ("too-small", "max", "3")),
        (lambda: Fixed(0), ("too-small", "horizon", "0")),
        (
            lambda: Fixed().load_state_dict({"seed": 1}),
            ("format", "state", r"\['seed'\]"),
        ),
        (
            lambda: Fixed(8).load_state_dict(Fixed(9).state_dict()),
            ("settings-changed", "state", r"Fixed\(9\)"),
        ),
        (lambda: parse("normal:8"), ("unknown-name", "horizon sampler", "'normal:8'")),
        (lambda: parse("pln:eight"), ("format", "horizon sampler")),
        (lambda: parse("fixed:8,9"), ("format", "horizon sampler")),
    ],
)
def test_bad_values(make, error):
    with raises(*error):
        make()


@pytest.mark.parametrize("make", [lambda: Fixed(2.5), lambda: Uniform(True), lambda: PoissonLogNormal(mean="8")])
def test_bad_types(make):
    with raises("type"):
        make()
