"""The arms of `shortest_paths`, and how they are measured: all members of an arm are trained as one stack."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from experiments.lqr_in_a_token.arms import HORIZONS, layer_of, trained_at
from experiments.shared.stacks import Settings, Stack, Tokens
from experiments.shortest_paths.graphs import tokens
from experiments.where_planning_pays.imitation import Nothing
from ttcnet.errors import fail

ARMS = ("linear", "mlp", "mlp-2.5", "system-one", "system")
PLANS = ("system",)  # arms that look ahead
KNOB = (0, 1, 2, 4, 8, 16, 32)
VALIDATION, TEST, TRAINING = 1, 2, 1000  # seeds of questions


class Paths(Stack):
    """Models that read a graph, a start and a goal, and answer with the next node."""

    def __init__(self, settings: Settings, device: str = "cpu") -> None:
        self.horizon = HORIZONS.get(settings.arm)
        super().__init__(settings, device)

    def _pool(self) -> Tokens:
        return tokens(self.settings.pool, TRAINING, device=self.device)

    def _layer(self, size: dict[str, int]) -> nn.Module:
        return Nothing() if self.settings.arm == "linear" else layer_of(self.settings.arm, **size)

    @torch.no_grad()
    def right(self, tested: Tokens, horizon: int) -> list[float]:
        """The share of questions with the right next node, of every member."""
        answers = torch.cat([self.answer(self.weights, x, horizon) for x in tested.x.split(2048)], 1) * self.scale
        found: Tensor = (answers.argmax(-1) == tested.y.argmax(-1)).double().mean(1)
        return found.tolist()

    def tuning(self) -> dict[str, Any]:
        """The rate with the lowest unexplained variance."""
        errors = self.judge(tokens(self.settings.judged, VALIDATION, device=self.device), trained_at(self.settings.arm))
        validation = dict(zip(self.settings.rates, errors, strict=True))
        finite = {rate: value for rate, value in validation.items() if value == value}
        if not finite:
            remedy = "Every rate ended in NaN: pass lower ones."
            fail("rates", "must let a model learn", self.settings.rates, remedy, "diverged")
        shown = {f"{rate:g}": value for rate, value in validation.items()}
        return {"validation": shown, "rate": min(finite, key=lambda rate: finite[rate])}

    def results(self) -> dict[str, Any]:
        """The figures of all members on the test."""
        settings, own, found = self.settings, trained_at(self.settings.arm), []
        for long in (False, True):
            tested = tokens(settings.judged, TEST, long=long, device=self.device)
            for horizon in KNOB if settings.arm in PLANS else (own,):
                figures = {"unexplained": self.judge(tested, horizon), "right": self.right(tested, horizon)}
                found.append({"long": long, "horizon": horizon, "own": horizon == own} | figures)
        return {"parameters": self.parameters, "rate": settings.rates[0], "results": found}
