"""Planners that answer without a policy: they believe an estimate of A and B (certainty equivalence).

ridge      least squares over the transitions of the prefix, drawn towards the mean of all systems; its weight is chosen
           on other systems, by the answers after prefixes of all lengths
estimate   A and B by the trunk
fit        least squares with the weight of the tokens of the task "fitted"; also while transitions are added
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.in_context_control import systems as world
from experiments.in_context_control.policies import BEGUN, KINDS, LENGTHS, Answers, Growing, chosen, regret
from experiments.in_context_control.trunk import Reading, Trunk
from experiments.where_planning_pays import planner
from experiments.where_planning_pays.imitation import BETWEEN, BEYOND, LONGEST, TRAINED

WEIGHTS = (0.03, 0.1, 0.3, 1.0, 3.0)


def unexplained(systems: planner.Systems, found: Tensor, horizons: tuple[int, ...], seed: int) -> float:
    """The unexplained variance of the answers, if the planner answers for the estimated systems."""
    errors = whole = torch.zeros((), dtype=torch.float64)
    for T in horizons:
        few, states = world.asked_anew(systems, 1000 * seed + T)
        known = world.known_as(few, found)
        y, guess = (planner.actions(few, each.physics["A"], each.physics["B"], states, T) for each in (few, known))
        errors = errors + (guess - y).square().mean()
        whole = whole + (y - y.mean(0)).square().mean()
    return float(errors / whole)


def _regret(systems: planner.Systems, found: Tensor, horizon: int) -> list[float]:
    K = world.gains(world.known_as(systems, found), horizon)
    return regret(systems, lambda states: (K @ states.unsqueeze(-1)).squeeze(-1), 1, horizon)


def _regret_while_learning(systems: planner.Systems, fit: world.Fit, horizon: int) -> list[float]:
    """The regret of a planner that plans anew at each step, with all transitions so far."""
    growing = Growing(fit, 1)

    def act(states: Tensor) -> Tensor:
        K = world.gains(world.known_as(systems, growing.fit.matrices()[0]), horizon)
        return (K @ states.unsqueeze(-1)).squeeze(-1)

    return regret(systems, act, 1, horizon, growing.add)


def ridge_weight(count: int, usual: Tensor) -> float:
    """The best of WEIGHTS on systems that are used for nothing else."""
    systems = world.draw(count, 1)
    ins, outs = world.prefixes(systems, 2)

    def left(weight: float) -> float:
        each = [world.ridge(ins[:, :length], outs[:, :length], weight, usual) for length in LENGTHS]
        return sum(unexplained(systems, found, (LONGEST,), 1) for found in each)

    return min(WEIGHTS, key=left)


def everything(settings: Answers, trunks: Path, reading: Reading) -> dict[str, Any]:
    """All reported figures: `estimate` has one value for each trunk, the others have one."""
    usual = world.matrices(world.draw(reading.pool, 1000)).mean(0)
    weight = ridge_weight(settings.judged, usual)
    seeds = range(reading.first_seed, reading.first_seed + reading.seeds)
    nets = [Trunk(trunks, reading, seed, "cpu") for seed in seeds]
    found: dict[str, Any] = {"ridge": {"weight": weight}, "estimate": {}, "fit": {"learning": []}}
    for each in found.values():
        each |= {"unexplained": [], "acting": []}
    for kind, held_out in KINDS.items():
        systems = world.draw(settings.judged, 2, held_out)
        ins, outs = world.prefixes(systems, 3)
        tokens, fits, few = world.transition_tokens(ins, outs), world.Fit.of(ins, outs), slice(settings.episodes)
        read = [net.matrices(net.contexts(tokens)) for net in nets]
        for length in LENGTHS:
            guesses = {
                "ridge": [world.ridge(ins[:, :length], outs[:, :length], weight, usual)],
                "estimate": [each[:, length - 1] for each in read],
                "fit": [fits.at(length).matrices()],
            }
            parts = {"trained": TRAINED} | ({"between": BETWEEN, "64": BEYOND[-1:]} if length == LENGTHS[-1] else {})
            for name, each in guesses.items():
                place = {"systems": kind, "length": length}
                for part, horizons in parts.items():
                    values = [unexplained(systems, guess, horizons, 2) for guess in each]
                    found[name]["unexplained"].append({"name": part} | place | {"values": values})
                values = [_regret(chosen(systems, few), guess[few], LONGEST)[0] for guess in each]
                found[name]["acting"].append({"horizon": LONGEST} | place | {"values": values})
            if length in BEGUN:
                values = _regret_while_learning(chosen(systems, few), fits.at(length).rows(few), LONGEST)
                found["fit"]["learning"].append({"horizon": LONGEST} | place | {"values": values})
    return found
