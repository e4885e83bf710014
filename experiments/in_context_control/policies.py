"""Training and judging of `in_context_control`: policies that answer questions about systems they have read of.

A demonstration is the trunk's output after a prefix, a question (state, costs, horizon) and the first action of the
plan that knows the system. Horizons, arms and batches are those of `where_planning_pays.imitation`. With the task
"told" a token spells out A and B in the place of the trunk's output, with the task "fitted" their fit by least squares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vmap

from experiments.in_context_control import systems as world
from experiments.in_context_control.trunk import Reading, Trunk
from experiments.shared.stacks import Tokens
from experiments.where_planning_pays import planner
from experiments.where_planning_pays.imitation import (
    BETWEEN,
    BEYOND,
    KNOB,
    LONGEST,
    PLANS,
    TRAINED,
    Demonstrations,
    Imitation,
    OwnHorizons,
    told,
)  # fmt: skip

READ, TOLD, FITTED = TASKS = ("read", "told", "fitted")
ARMS = ("system", "system-one", "mlp", "mlp-2.5", "ttc", "linear")
SYSTEM: dict[str, Any] = {"heads": 2, "state_size": 4, "rank": 64, "context": "system"}
LENGTHS = (1, 2, 4, 8, 16)  # of prefixes, at the test; in training any up to 16
QUESTIONS = 8  # questions to a prefix in training
BEGUN = (1, 4)  # transitions after which a policy acts while its fit grows
STEPS, WORST = 40, 10.0  # of an episode; the regret of a lost one
KINDS = {"seen": False, "held out": True}


@dataclass(frozen=True)
class Answers(Demonstrations):
    """Settings of a run. `pool` counts the demonstrations of a seed."""

    steps: int = 1500
    batch: int = 128
    pool: int = 51_200
    episodes: int = 256
    rates: tuple[float, ...] = (3e-3, 1e-2)
    horizon: str = "fixed:1"  # unused: the demonstrations have it


class Scene(NamedTuple):
    """Fresh systems and the trunks' outputs: contexts (seeds, N, K, width), or the matrices in their place."""

    systems: planner.Systems
    contexts: Tensor
    fits: world.Fit | None  # of the prefixes, (N, K, ...), where tokens are written from them


class Policies(Imitation):
    """A run: all its seeds, each on the trunk of its own seed."""

    settings: Answers

    def __init__(self, settings: Answers, device: str, trunks: Path, reading: Reading) -> None:
        seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
        self.trunks = [Trunk(trunks, reading, seed, device) for seed in seeds] if settings.task == READ else []
        self.scenes: dict[tuple[bool, int], Scene] = {}
        self.device = device
        super().__init__(settings, device)

    def _layer(self, size: dict[str, int]) -> nn.Module:
        if self.settings.arm.startswith("system"):
            return OwnHorizons(size["width"], **SYSTEM)
        return super()._layer(size)

    def read(self, systems: planner.Systems, seed: int, place: int) -> Tensor:
        """The output of the trunk of the seed at this place, (N, K, width), or the matrices in its place."""
        if self.settings.task == TOLD:
            return self._spelt(systems).unsqueeze(1)
        ins, outs = world.prefixes(systems, seed)
        if self.settings.task == FITTED:
            return world.Fit.of(ins, outs).features().to(self.device)
        return self.trunks[place].contexts(world.transition_tokens(ins, outs).to(self.device))

    def _spelt(self, systems: planner.Systems) -> Tensor:
        A, B = systems.physics["A"], systems.physics["B"]
        return torch.cat([2 * A.flatten(1), 2 * B.flatten(1)], 1).float().to(self.device)

    def _pool(self) -> Tokens:
        """Seed by seed, and within a seed horizon by horizon. A prefix has QUESTIONS questions, at different
        lengths."""
        settings, found = self.settings, list[Tokens]()
        each, count = settings.pool // len(TRAINED), settings.pool // QUESTIONS
        for place, seed in enumerate(range(settings.first_seed, settings.first_seed + settings.seeds)):
            systems = world.draw(count, 10_000 * (seed + 1))
            contexts = self.read(systems, 10_000 * (seed + 1) + 1, place)
            for number, T in enumerate(TRAINED):
                source = 10_000 * (seed + 1) + 100 + T
                rows = (torch.arange(each) + number * each) % count
                few, states = world.asked_anew(chosen(systems, rows), source)
                random = torch.Generator().manual_seed(source)
                lengths = torch.randint(contexts.shape[1], (each,), generator=random)
                y = planner.actions(few, few.physics["A"], few.physics["B"], states, T).float().to(self.device)
                found.append(Tokens(self._tokens(contexts[rows, lengths], few, states, T), y))
        return Tokens(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _tokens(self, contexts: Tensor, systems: planner.Systems, states: Tensor, horizon: int) -> Tensor:
        """Contexts (..., N, width) and a question each."""
        asked = world.question(systems, states).to(self.device)
        x = torch.cat([contexts, asked.expand(*contexts.shape[:-1], -1)], -1)
        return x if self.settings.arm in PLANS else told(x, min(horizon, self.most))

    def scene(self, held_out: bool, seed: int) -> Scene:
        """Systems to judge by, the same for all arms."""
        if (held_out, seed) not in self.scenes:
            systems = world.draw(self.settings.judged, seed, held_out)
            read = [self.read(systems, seed + 1, place) for place in range(self.settings.seeds)]
            fits = world.Fit.of(*world.prefixes(systems, seed + 1)) if self.settings.task == FITTED else None
            self.scenes[held_out, seed] = Scene(systems, torch.stack(read), fits)
        return self.scenes[held_out, seed]

    @torch.no_grad()
    def unexplained(  # type: ignore[override]
        self,
        horizons: tuple[int, ...],
        length: int = 16,
        *,
        held_out: bool = False,
        seed: int = 2,
        own: int | None = None,
    ) -> list[float]:
        """The unexplained variance of the answers, by member, over these horizons together, after `length`
        transitions."""
        systems, contexts, _ = self.scene(held_out, seed)
        read = contexts[:, :, min(length, contexts.shape[2]) - 1].repeat_interleave(len(self.settings.rates), 0)
        answer = vmap(self.member, in_dims=(0, 0, None))
        errors = whole = torch.zeros((), dtype=torch.float64)
        for T in horizons:
            few, states = world.asked_anew(systems, 1000 * seed + T)
            y = planner.actions(few, few.physics["A"], few.physics["B"], states, T)
            x = self._tokens(read, few, states, T)
            found = (answer(self.weights, x, self._own(T) if own is None else own) * self.scale).double().cpu()
            errors = errors + (found - y).square().mean((1, 2))
            whole = whole + (y - y.mean(0)).square().mean()
        return (errors / whole).tolist()

    @torch.no_grad()
    def regret(self, horizon: int, length: int = 16, *, held_out: bool = False) -> list[float]:
        """The regret of acting for STEPS steps after `length` transitions, by seed."""
        systems, contexts, _ = self.scene(held_out, 2)
        few = chosen(systems, slice(self.settings.episodes))
        read = contexts[:, : self.settings.episodes, min(length, contexts.shape[2]) - 1]
        return regret(few, lambda states: self._act(read, few, states, horizon), self.settings.seeds, horizon)

    @torch.no_grad()
    def regret_while_learning(self, horizon: int, length: int, *, held_out: bool = False) -> list[float]:
        """The same, with every step added to the fit."""
        systems, _, fits = self.scene(held_out, 2)
        assert fits is not None
        few = chosen(systems, slice(self.settings.episodes))
        growing = Growing(fits.at(length).rows(slice(self.settings.episodes)), self.settings.seeds)

        def act(states: Tensor) -> Tensor:
            return self._act(growing.fit.features().to(self.device), few, states, horizon)

        return regret(few, act, self.settings.seeds, horizon, growing.add)

    def _act(self, contexts: Tensor, systems: planner.Systems, states: Tensor, horizon: int) -> Tensor:
        """Actions (seeds, N, m) in states (seeds, N, n)."""
        x = self._tokens(contexts, systems, states, horizon)
        answer = vmap(self.member, in_dims=(0, 0, None))
        return (answer(self.weights, x, self._own(horizon)) * self.scale).double().cpu()

    def everything(self) -> dict[str, Any]:
        """All that is reported of a run with one learning rate."""
        unexplained, acting, knob = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
        learning = list[dict[str, Any]]()
        lengths = LENGTHS[-1:] if self.settings.task == TOLD else LENGTHS
        for systems, held_out in KINDS.items():
            for length in lengths:
                values = self.unexplained(TRAINED, length, held_out=held_out)
                unexplained.append({"name": "trained", "systems": systems, "length": length, "values": values})
                values = self.regret(LONGEST, length, held_out=held_out)
                acting.append({"horizon": LONGEST, "systems": systems, "length": length, "values": values})
            for length in BEGUN if self.settings.task == FITTED else ():
                values = self.regret_while_learning(LONGEST, length, held_out=held_out)
                learning.append({"horizon": LONGEST, "systems": systems, "length": length, "values": values})
            for name, horizons in (("between", BETWEEN), ("64", BEYOND[-1:])):
                values = self.unexplained(horizons, held_out=held_out)
                unexplained.append({"name": name, "systems": systems, "length": LENGTHS[-1], "values": values})
        if self.settings.arm in PLANS:
            knob = [{"own": own, "values": self.unexplained((LONGEST,), own=own)} for own in KNOB]
        else:  # the same policies, told at most the longest horizon of training
            self.most = LONGEST
            for systems, held_out in KINDS.items():
                values = self.unexplained(BEYOND[-1:], held_out=held_out)
                unexplained.append({"name": "64, told 32", "systems": systems, "length": LENGTHS[-1], "values": values})
            self.most = Imitation.most
        return {"unexplained": unexplained, "acting": acting, "knob": knob} | (
            {"learning": learning} if learning else {}
        )


class Growing:
    """Fits to which every step of acting is added, one of each policy."""

    def __init__(self, fit: world.Fit, policies: int) -> None:
        self.fit = world.Fit(*(x.expand(policies, *x.shape) for x in fit))

    def add(self, states: Tensor, u: Tensor, new: Tensor) -> None:
        ins = torch.cat([states, u], -1)
        self.fit = self.fit.plus(world.Fit.of(ins.unsqueeze(-2), new.unsqueeze(-2)).at(1))


def chosen(systems: planner.Systems, rows: slice | Tensor) -> planner.Systems:
    """Those of them."""
    return planner.Systems({k: x[rows] for k, x in systems.physics.items()}, systems.q[rows], systems.r[rows])


def regret(
    systems: planner.Systems, act: Any, policies: int, horizon: int, saw: Callable[..., None] | None = None
) -> list[float]:
    """The regret of policies: their cost above that of the planner that knows the systems and has this horizon, as a
    share of the planner's cost. The mean over systems, each at most WORST. All have the same noise.

    Args:
        act: actions (policies, N, m) in states (policies, N, n).
        saw: is called after every step with states, actions and the next states.
    """
    K = world.gains(systems, horizon)
    random, count = torch.Generator().manual_seed(5), len(systems.q)
    states = torch.randn(count, world.STATES, generator=random, dtype=torch.float64)
    states = states.expand(policies + 1, -1, -1)  # the planner's come last
    costs = torch.zeros(states.shape[:-1], dtype=torch.float64)
    for _ in range(STEPS):
        u = torch.cat([act(states[:-1]), (K @ states[-1:].unsqueeze(-1)).squeeze(-1)])
        w = torch.randn(count, world.STATES, generator=random, dtype=torch.float64)
        new = world.step(systems, states, u, w)
        if saw is not None:
            saw(states[:-1], u[:-1], new[:-1])
        states = new
        costs += planner.cost(systems, states, u)
        states = states.clamp(-world.LOST, world.LOST)
    shares = (costs[:-1] / costs[-1] - 1).nan_to_num(WORST).clamp_max(WORST)
    return shares.mean(1).tolist()
