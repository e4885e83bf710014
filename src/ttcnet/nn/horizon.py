"""Samplers of the horizon of each training step.

    PoissonLogNormal(mean=8, sigma=0.1, max=32)   the paper's choice: mostly near the mean, now and then far
    Uniform(1, 32)                                every horizon alike
    Fixed(8)                                      always the same

    sampler = PoissonLogNormal()
    for batch in batches:
        loss = model(batch, horizon=sampler.draw())

A draw depends on the seed and on how many draws came before, and on nothing else. So all processes of a distributed job
draw the same horizon without talking to each other, and no other use of random numbers shifts the sequence.
`state_dict()` holds integers and a name; a sampler that loads it continues where the other one stopped.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from random import Random
from statistics import NormalDist

from ttcnet.bounds import check_horizon
from ttcnet.errors import check_integer, fail


class Sampler(ABC):
    """Draws horizons, 1 or more and at most `max`."""

    max: int

    def __init__(self, seed: int) -> None:
        self.seed = check_integer("seed", seed, 0, "Pass an integer such as seed=0, the same on every process.")
        self.draws = 0

    def draw(self) -> int:
        """The next horizon."""
        value = self.at(self.draws)
        self.draws += 1
        return value

    def at(self, index: int) -> int:
        """The horizon of draw number `index`, counted from 0; earlier draws do not matter."""
        return self._sample(Random(f"{self.seed}/{index}"))

    def state_dict(self) -> dict[str, int | str]:
        """The seed and the number of draws, with the parameters: all that is needed to resume, fit for JSON."""
        return {"sampler": self._kind(), "seed": self.seed, "draws": self.draws}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Continue where the sampler that gave `state`, one of the same kind, stopped."""
        remedy = "Pass a dictionary that state_dict() of a sampler returned."
        if set(state) != {"sampler", "seed", "draws"}:
            fail("state", "must hold the keys draws, sampler and seed, and no others", sorted(state), remedy, "format")
        if state["sampler"] != self._kind():
            remedy = "Resume with the sampler of the run."
            fail("state", f"must be of a {self._kind()}", state["sampler"], remedy, "settings-changed")
        seed, draws = (check_integer(f"state[{key!r}]", state[key], 0, remedy) for key in ("seed", "draws"))
        self.seed, self.draws = seed, draws

    def _kind(self) -> str:
        """The sampler's name and parameters, without the seed."""
        return repr(self).replace(f", seed={self.seed}", "")

    @abstractmethod
    def _sample(self, random: Random) -> int:
        """A horizon, computed from the numbers of `random` alone."""


class PoissonLogNormal(Sampler):
    """T = 1 + Poisson(e^τ) with τ ~ N(log mean - sigma²/2, sigma²), drawn again until T is at most `max`.

    This is the paper's definition to the letter, so the mean of T is `mean` + 1 when `max` is far away: the Poisson
    variable has mean `mean`, and 1 is added to it.
    """

    def __init__(self, mean: float = 8, sigma: float = 0.1, max: int = 32, *, seed: int = 0) -> None:  # noqa: A002
        super().__init__(seed)
        self.max = _horizon("max", max, 1, "Pass the longest horizon of training, such as max=32.")
        self.mean = _number("mean", mean)
        self.sigma = _number("sigma", sigma)
        if not 0 < self.mean <= self.max:
            remedy = "Most draws beyond max are rejected: lower mean or raise max."
            fail("mean", f"must be above 0 and at most max = {self.max}", mean, remedy, "out-of-range")
        if not 0 <= self.sigma <= 2:
            remedy = "It is a spread in log scale; the paper's is 0.1."
            fail("sigma", "must be between 0 and 2", sigma, remedy, "out-of-range")

    def _sample(self, random: Random) -> int:
        while True:
            normal = _standard_normal(random)
            rate = self.mean * math.exp(self.sigma * normal - self.sigma**2 / 2)
            horizon = 1 + _poisson(rate, random, self.max)
            if horizon <= self.max:
                return horizon

    def __repr__(self) -> str:
        return f"PoissonLogNormal(mean={self.mean:g}, sigma={self.sigma:g}, max={self.max}, seed={self.seed})"


class Uniform(Sampler):
    """Every horizon from `min` to `max`, both included, with the same probability."""

    def __init__(self, min: int = 1, max: int = 32, *, seed: int = 0) -> None:  # noqa: A002
        super().__init__(seed)
        self.min = check_integer("min", min, 1, "The shortest plan has one step.")
        self.max = _horizon("max", max, self.min, "Pass the longest horizon of training, such as max=32.")

    def _sample(self, random: Random) -> int:
        return self.min + int(random.random() * (self.max - self.min + 1))

    def __repr__(self) -> str:
        return f"Uniform(min={self.min}, max={self.max}, seed={self.seed})"


class Fixed(Sampler):
    """Always draws `horizon`."""

    def __init__(self, horizon: int = 8, *, seed: int = 0) -> None:
        super().__init__(seed)
        self.max = _horizon("horizon", horizon, 1, "The shortest plan has one step.")

    def _sample(self, random: Random) -> int:
        return self.max

    def __repr__(self) -> str:
        return f"Fixed({self.max}, seed={self.seed})"


NAMES: dict[str, Callable[..., Sampler]] = {"pln": PoissonLogNormal, "uniform": Uniform, "fixed": Fixed}


def parse(text: str, *, seed: int = 0) -> Sampler:
    """A sampler from a command line: a name, a colon and numbers in the order of the class, all but the name optional.

    Examples:
        >>> parse("pln:8,0.1,32"), parse("uniform:1,32"), parse("fixed:8")
        (PoissonLogNormal(mean=8, sigma=0.1, max=32, seed=0), Uniform(min=1, max=32, seed=0), Fixed(8, seed=0))
    """
    remedy = 'Write "pln:8,0.1,32" (mean, sigma, max), "uniform:1,32" (min, max) or "fixed:8".'
    name, _, rest = text.partition(":")
    if name not in NAMES:
        fail("horizon sampler", f"must be one of {', '.join(NAMES)}", repr(text), remedy, "unknown-name")
    try:
        numbers = [float(word) if "." in word or "e" in word else int(word) for word in rest.split(",") if rest]
    except ValueError:
        fail("horizon sampler", "must have numbers after the colon", repr(text), remedy, "format")
    if len(numbers) > {"pln": 3, "uniform": 2, "fixed": 1}[name]:
        fail("horizon sampler", f"has too many numbers for {name}", repr(text), remedy, "format")
    return NAMES[name](*numbers, seed=seed)


def _standard_normal(random: Random) -> float:
    """Draw by inversion of one uniform number in (0, 1), which gives the same number on every machine."""
    return NormalDist().inv_cdf((int(random.random() * 2**52) + 0.5) / 2**52)


def _poisson(rate: float, random: Random, limit: int) -> int:
    """A Poisson variable, or any number above `limit` if it is above.

    Counts the events of a unit of time, whose gaps are exponential: no power of e that could vanish.
    """
    count, time = 0, -math.log1p(-random.random())
    while time < rate and count <= limit:
        count += 1
        time -= math.log1p(-random.random())
    return count


def _horizon(field: str, value: object, least: int, remedy: str) -> int:
    steps = check_integer(field, value, least, remedy)
    check_horizon(field, steps)
    return steps


def _number(field: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        fail(field, "must be a number", repr(value), "Pass an int or a float.", "type")
    return float(value)
