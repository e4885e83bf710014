"""Training and evaluation of `lqr_in_a_token`: all seeds and learning rates of a task and an arm, as one stack."""

from __future__ import annotations

from statistics import mean
from typing import Any

from torch import nn

from experiments.lqr_in_a_token.arms import HORIZONS, OWN, UNDECAYED, layer_of, trained_at
from experiments.lqr_in_a_token.tokens import UNSTABLE, tokens
from experiments.shared.stacks import Settings, Stack, Tokens
from ttcnet.errors import fail

TEST_HORIZONS = (1, 2, 4, 8, 16, 32)


class Readers(Stack):
    """Models that read a token and answer with the first action."""

    def __init__(self, settings: Settings, device: str = "cpu") -> None:
        self.spared, self.horizon = UNDECAYED.get(settings.arm, ()), HORIZONS.get(settings.arm)
        self.plans = not settings.arm.startswith("mlp")
        super().__init__(settings, device)

    def _pool(self) -> Tokens:
        """The tokens that are trained on."""
        return tokens(self.settings.task, self.settings.pool, seed=1000, device=self.device)

    def _layer(self, size: dict[str, int]) -> nn.Module:
        """The layer of a member, drawn with torch's own random numbers."""
        return layer_of(self.settings.arm, **size)

    def results(self) -> dict[str, Any]:
        """The rate by validation tokens, and the figures of its members on test tokens and held-out ones."""
        settings = self.settings

        def fresh(seed: int, **options: Any) -> Tokens:
            return tokens(settings.task, settings.judged, seed, device=self.device, **options)

        own = trained_at(settings.arm)
        found = self.judge(fresh(1), own)
        validation = {f"{rate:g}": found[place :: len(settings.rates)] for place, rate in enumerate(settings.rates)}
        means = [mean(each) for each in validation.values()]
        if all(value != value for value in means):
            remedy = "Every rate ended in NaN: pass lower ones."
            fail("rates", "must let a model learn", settings.rates, remedy, "diverged")
        chosen = means.index(min(value for value in means if value == value))
        results = [
            {"tokens": name, "horizon": horizon, "unexplained": self.judge(evaluated, horizon, chosen)}
            for name, evaluated in (("test", fresh(2)), ("held out", fresh(3, stretch=UNSTABLE)))
            for horizon in (TEST_HORIZONS if self.plans else (OWN,))
        ]
        rate = settings.rates[chosen]
        return {"parameters": self.parameters, "validation": validation, "rate": rate, "results": results}
