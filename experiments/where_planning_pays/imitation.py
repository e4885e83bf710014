"""Training and judging of `where_planning_pays`: policies that imitate planners of several horizons.

A demonstration is a token (state, system, costs), a horizon T, and the action of the planner with that horizon. Arms
that plan take T as their horizon; the others have T and log T as features of the token. A batch holds as many
demonstrations of every horizon. Every seed has demonstrations of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from experiments.lqr_in_a_token.arms import SYSTEM, layer_of
from experiments.shared.stacks import Settings, Stack, Tokens
from experiments.where_planning_pays import cart_pole, dense, pendulums, planner
from experiments.where_planning_pays.arm import Arm
from ttcnet.lqr.stationary import StationaryLQR, first_actions
from ttcnet.nn import TTCLayer

SYSTEMS: dict[str, planner.System] = {
    "dense": dense, "cart-pole": cart_pole, "pendulums": pendulums,
    "arms": Arm(matrices=True, axes=True), "arm": Arm(matrices=False), "arm-matrices": Arm(matrices=True),
}  # fmt: skip
ARMS = ("ttc", "fixed-scale", "mlp", "mlp-2.5", "one", "linear", "system", "system-one")
PLANS = ("ttc", "fixed-scale", "system")  # arms whose horizon is the planner's
TOGETHER = ("system", "system-one", "mlp", "mlp-2.5")  # arms that take the horizons of a batch in one call
TRAINED = (2, 4, 6, 8, 11, 16, 22, 32)  # horizons of demonstrations
BETWEEN, BEYOND = (3, 12, 24), (48, 64)  # horizons that are held out
LONGEST = TRAINED[-1]
KNOB = (0, 1, 2, 4, 8, 16, 32, 64)  # horizons of the layer, for the planner's 32 or 64
STEPS = 80  # of an episode
AT_ONCE = 4096


@dataclass(frozen=True)
class Demonstrations(Settings):
    """Settings of a run: `pool` is the number of demonstrations of a seed."""

    steps: int = 1000
    batch: int = 64
    pool: int = 10_000
    judged: int = 512  # systems, for every horizon
    episodes: int = 64  # systems to act in
    rates: tuple[float, ...] = (3e-3, 1e-2, 3e-2)
    heads: int = 8
    state_size: int = 8


class OwnHorizons(TTCLayer):
    """A layer that writes systems and takes a horizon for every token, (N,)."""

    def forward(self, x: Tensor, horizon: int | Tensor) -> Tensor:  # type: ignore[override]
        if not isinstance(horizon, Tensor):
            return super().forward(x, horizon)
        problem = self.problem(x)
        assert isinstance(problem, StationaryLQR)
        action = first_actions(problem, horizon).flatten(1)
        return x + self.out(action * self.action_norm.weight)


class Nothing(nn.Module):
    """No layer: the rest of the model is linear."""

    def forward(self, x: Tensor, horizon: int) -> Tensor:
        return x


def told(x: Tensor, horizon: int) -> Tensor:
    """Tokens with T and log T, which have mean 0 and variance 1 over the horizons of demonstrations."""
    lengths = torch.tensor(TRAINED, dtype=x.dtype)
    for way in (lengths, lengths.log()):
        here = torch.tensor(float(horizon), dtype=x.dtype)
        here = here if way is lengths else here.log()
        x = torch.cat([x, ((here - way.mean()) / way.std()).expand(*x.shape[:-1], 1)], -1)
    return x


class Imitation(Stack):
    """A run; systems stay on the CPU. `most` is the longest horizon that is told to arms that do not plan."""

    settings: Demonstrations
    most: int = 65_536
    system: planner.System

    def __init__(self, settings: Demonstrations, device: str = "cpu") -> None:
        if settings.task in SYSTEMS:
            self.system = SYSTEMS[settings.task]
        super().__init__(settings, device)

        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            """The actions for x (horizons, tokens, features)."""
            if settings.arm in TOGETHER:
                own: int | Tensor = torch.tensor(TRAINED, device=device).repeat_interleave(x.shape[1])
                own = own if settings.arm in PLANS else 1
                found = self.member(weights, x.flatten(0, 1), own).view_as(y)
            else:
                each = [self.member(weights, few, self._own(T)) for few, T in zip(x, TRAINED, strict=True)]
                found = torch.stack(each)
            return (found - y).square().mean()

        self.slopes = vmap(grad_and_value(loss))

    def tokens(self, count: int, seed: int, horizon: int, kind: str = "seen") -> Tokens:
        """Demonstrations of the planner with this horizon."""
        found = []
        for part, begin in enumerate(range(0, count, AT_ONCE)):
            few = min(AT_ONCE, count - begin)
            systems, states = self.system.draw(few, 1000 * seed + part, kind)
            A, B = self.system.linear(systems, states)
            y = planner.actions(systems, A, B, states, horizon)
            found.append(Tokens(self._read(systems, states, horizon), y.float().to(self.device)))
        return Tokens(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _read(self, systems: planner.Systems, states: Tensor, horizon: int) -> Tensor:
        x = self.system.features(systems, states)
        return (x if self.settings.arm in PLANS else told(x, min(horizon, self.most))).float().to(self.device)

    def _pool(self) -> Tokens:
        """Seed by seed, and within a seed horizon by horizon."""
        settings, each = self.settings, self.settings.pool // len(TRAINED)
        seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
        found = [self.tokens(each, 1000 * (seed + 1) + T, T) for seed in seeds for T in TRAINED]
        return Tokens(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _layer(self, size: dict[str, int]) -> nn.Module:
        arm = self.settings.arm
        if arm.startswith("system"):
            return OwnHorizons(size["width"], **SYSTEM)
        return Nothing() if arm == "linear" else layer_of("ttc" if arm == "one" else arm, **size)

    def advance(self) -> None:
        """One step of training."""
        each, few, rows = self.settings.pool // len(TRAINED), self.settings.batch // len(TRAINED), []
        for seed in self.seeds:
            random = torch.Generator().manual_seed(1_000_000 * (seed + 1) + self.step)
            rows.append(torch.randint(each, (len(TRAINED), few), generator=random))
        groups = each * torch.arange(len(rows) * len(TRAINED)).view(len(rows), len(TRAINED), 1)
        places = (torch.stack(rows) + groups).to(self.device).repeat_interleave(len(self.settings.rates), 0)
        grads, self.losses = self.slopes(self.weights, self.pool.x[places], self.pool.y[places] / self.scale)
        self._descend(grads)
        self.step += 1

    def _own(self, horizon: int) -> int:
        """The layer's horizon for this horizon of the planner."""
        return horizon if self.settings.arm in PLANS else 1

    def unexplained(
        self, horizons: tuple[int, ...], *, kind: str = "seen", seed: int = 2,
        chosen: int | None = None, own: int | None = None,
    ) -> list[float]:  # fmt: skip
        """The unexplained variance of the planner's actions, by member, over these horizons together."""
        errors = whole = torch.zeros(())
        for T in horizons:
            judged = self.tokens(self.settings.judged, seed, T, kind)
            share = torch.tensor(self.judge(judged, self._own(T) if own is None else own, chosen), dtype=torch.float64)
            variance = (judged.y.double() - judged.y.double().mean(0)).square().mean().cpu()
            errors, whole = errors + share * variance, whole + variance
        return (errors / whole).tolist()

    @torch.no_grad()
    def episodes(self, horizon: int, chosen: int, *, kind: str = "seen", own: int | None = None) -> dict[str, Any]:
        """Cost and length of episodes, of the policies with the chosen rate and of the planner with this horizon."""
        system, count, own = self.system, self.settings.episodes, self._own(horizon) if own is None else own
        weights = {name: x[chosen :: len(self.settings.rates)].contiguous() for name, x in self.weights.items()}
        systems, start = system.draw(count, 3, kind)
        states = (start / 2).expand(self.settings.seeds + 1, -1, -1)  # the planner's come last
        alive = torch.ones(states.shape[:-1], dtype=torch.bool)
        costs, lengths = torch.zeros(2, *alive.shape, dtype=torch.float64)
        answer = vmap(self.member, in_dims=(0, 0, None))
        for _ in range(STEPS):
            policies = answer(weights, self._read(systems, states[:-1], horizon), own) * self.scale
            best = planner.actions(systems, *system.linear(systems, states[-1:]), states[-1:], horizon)
            u = torch.cat([policies.double().cpu(), best])
            new = system.step(systems, states, u)
            costs += alive * planner.cost(systems, new, u)
            states = torch.where(alive.unsqueeze(-1), new, states)
            alive = alive & ~system.over(states)
            lengths += alive
        shares, means = (lengths.mean(1) / STEPS).tolist(), costs.mean(1).tolist()
        return {"return": shares[:-1], "cost": means[:-1], "planner": {"return": shares[-1], "cost": means[-1]}}

    def everything(self) -> dict[str, Any]:
        """All that is reported of a run with one learning rate."""
        unexplained, knob, episodes = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
        parts = {"trained": TRAINED, "between": BETWEEN, "48": (48,), "64": (64,)}
        for kind in self.system.KINDS:
            for name, horizons in parts.items():
                left = self.unexplained(horizons, kind=kind)
                unexplained.append({"name": name, "systems": kind, "values": left})
        for kind in self.system.KINDS:
            for horizon in (8, 16, 32, 64) if kind == "seen" else (32, 64):
                found = self.episodes(horizon, 0, kind=kind)
                episodes.append({"horizon": horizon, "systems": kind} | found)
        if self.settings.arm in PLANS:
            for horizon in (LONGEST, BEYOND[-1]):
                for own in KNOB:
                    knob.append({"planner": horizon, "own": own, "values": self.unexplained((horizon,), own=own)})
        else:  # the same policies, told at most the longest horizon of training
            self.most = LONGEST
            for kind in self.system.KINDS:
                for horizon in BEYOND:
                    left = self.unexplained((horizon,), kind=kind)
                    unexplained.append({"name": f"{horizon}, told {LONGEST}", "systems": kind, "values": left})
                found = self.episodes(BEYOND[-1], 0, kind=kind)
                episodes.append({"horizon": BEYOND[-1], "systems": kind, "told": LONGEST} | found)
            self.most = Imitation.most
        return {"unexplained": unexplained, "knob": knob, "episodes": episodes}
