"""LQR in a token: the problems are solved right, the switches have their effects, runs resume; and the layer learns to
plan from a token, better than an MLP of its size."""

import json
import sys
from dataclasses import fields, replace
from statistics import mean

import pytest
import torch
import typer

from experiments.lqr_in_a_token import __main__ as lqr_in_a_token
from experiments.lqr_in_a_token.arms import ARMS, OWN, SWITCHES, Switched, layer_of, plan_rank_one, towards
from experiments.lqr_in_a_token.readers import Readers
from experiments.lqr_in_a_token.tokens import STEPS, TASKS, UNSTABLE, draw, features, first_action, tokens
from experiments.shared.stacks import Settings
from tests.raising import told
from ttcnet.lqr import LQR, ModulatedLQR, plan, solve

SIZE = dict(width=64, heads=4, state_size=8, rank=16)
TINY = dict(steps=4, batch=8, pool=64, judged=32, seeds=2, rates=(1e-3, 1e-2))


def along(x):
    """The same at every step."""
    return x.unsqueeze(1).expand(-1, STEPS, *x.shape[1:])


@pytest.mark.parametrize("stretch", [(0.7, 1.1), UNSTABLE])
@pytest.mark.parametrize("task", TASKS)
def test_targets_are_optimal(task, stretch):
    p = draw(task, 16, seed=0, stretch=stretch)
    # a target is a state that stays 1, and costs that look at it
    one = torch.ones(16, 1, dtype=torch.float64)
    A = torch.stack([torch.block_diag(each, one[0]) for each in p.A])
    E = torch.cat([torch.eye(4, dtype=torch.float64).expand(16, 4, 4), -p.z.unsqueeze(-1)], -1)
    problem = LQR(
        A=along(A),
        B=along(torch.cat([p.B, 0 * p.B[:, :1]], 1)),
        Q=along(E.mT @ torch.diag_embed(p.q) @ E),
        R=along(p.r),
        h0=torch.cat([p.h0, one], 1),
    )
    torch.testing.assert_close(first_action(p), solve(problem).u[:, 0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("task", TASKS)
def test_tokens_are_scaled_and_say_all(task):
    found = tokens(task, 20_000, seed=0)
    assert found.x.mean(0).abs().max() < 0.05
    assert (found.x.std(0) - 1).abs().max() < 0.05
    problems = draw(task, 3, seed=0)
    changes = [name for name in problems._fields if name != "z" or task == "tracking"]
    for name in changes:
        moved = problems._replace(**{name: 1.5 * getattr(problems, name)})
        assert not torch.equal(features(task, moved), features(task, problems)), name
    assert found.y.shape == (20_000, 4)


def switched(switch):
    torch.manual_seed(0)
    layer = Switched(switch, **SIZE).double()
    x = torch.randn(5, 64, dtype=torch.float64)
    return layer, x, layer.problem(x)


def test_the_plan_leads_to_the_target():
    layer, x, _ = switched("terminal-shared")
    problem, goal = layer.problem(x), torch.randn(5, 4, 7, dtype=torch.float64)
    steps = towards(problem, goal).unroll(6)
    u = torch.randn(5, 4, 6, 8, dtype=torch.float64)
    states, scale = steps.rollout(u), torch.exp(-torch.arange(1, 7).view(6, 1) * problem.decay_Q.unsqueeze(-2))
    scale[..., -1, :] = 1  # the terminal cost does not fade
    away = (scale * states[..., 1:, :])[..., :-1] - goal.unsqueeze(-2)
    Q = problem.Q[:, None, None, :-1, :-1]
    costs = (away.unsqueeze(-2) @ Q @ away.unsqueeze(-1)).squeeze((-1, -2)).sum(-1) / 2
    costs = costs + (u.square() / problem.r_inv.unsqueeze(-2)).sum((-1, -2)) / 2
    torch.testing.assert_close(steps.objective(u), costs)
    assert (states[..., -1] == 1).all()


def test_rank_one_dynamics_are_planned_right():
    _, _, problem = switched("rank-one")
    family = {field.name: getattr(problem, field.name) for field in fields(ModulatedLQR)}
    steps = ModulatedLQR(**family).unroll(6)
    fade = torch.exp(-torch.arange(1, 7).view(6, 1) * problem.decay_A.unsqueeze(-2)).unsqueeze(-1)
    product = problem.p.unsqueeze(-1) * problem.q.unsqueeze(-2)
    dense = LQR(torch.diag_embed(steps.A) + fade * product.unsqueeze(2), steps.B, steps.Q, steps.R, steps.h0)
    torch.testing.assert_close(plan_rank_one(problem, 6), solve(dense).u[..., 0, :])


@pytest.mark.parametrize("switch", [switch for switch in SWITCHES if switch != "rank-one"])
def test_a_switch_has_its_effect_alone(switch):
    layer, x, problem = switched(switch)
    problem.check()
    torch.manual_seed(0)
    assert torch.isfinite(layer(x, 32)).all()
    match switch:
        case "terminal-shared":
            assert torch.equal(problem.Qf[:, 1], problem.Q)
        case "terminal-none":
            assert problem.Qf.abs().max() == 0
            assert plan(problem, 1).abs().max() == 0
        case "decay-per-state":
            assert problem.decay_A.shape == (5, 4, 8)
        case "homogeneous-pure":
            assert problem.decay_A.abs().max() == problem.decay_B.abs().max() == problem.decay_Q.abs().max() == 0
            assert problem.a.max() > 0 > problem.a.min()
        case "homogeneous-bounded":
            assert problem.decay_A.abs().max() == problem.decay_B.abs().max() == problem.decay_Q.abs().max() == 0
            assert problem.a.max() == 0 > problem.a.min()
        case "fixed-scale":
            twice = replace(problem, h0=2 * problem.h0)
            torch.testing.assert_close(layer._answer(x, twice, 8), 2 * layer._answer(x, problem, 8))


def test_mlps_have_the_parameters_they_should():
    size = {arm: sum(p.numel() for p in layer_of(arm, **SIZE).parameters()) for arm in ARMS}
    assert abs(size["mlp"] / size["ttc"] - 1) < 0.02
    assert abs(size["mlp-2.5"] / size["ttc"] - 2.5) < 0.05


def test_a_member_trains_as_it_would_alone():
    together = Readers(Settings("dense", "ttc", **TINY))
    alone = Readers(Settings("dense", "ttc", **TINY | {"seeds": 1, "rates": (1e-2,)}))
    for _ in range(3):
        together.advance(), alone.advance()
    for name, weight in alone.weights.items():
        torch.testing.assert_close(together.weights[name][1], weight[0])


def test_steps_are_those_of_adamw():
    run = Readers(Settings("dense", "mlp", **TINY | {"seeds": 1, "rates": (1e-2,)}))
    weights = {name: x[0].clone().requires_grad_() for name, x in run.weights.items()}
    groups = [
        dict(params=[x for name, x in weights.items() if (name in run.decayed) is decayed], weight_decay=0.1 * decayed)
        for decayed in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    for step, share in enumerate((1.0, 1.0, 0.55, 0.1)):  # the schedule of four steps
        places = run._places()[0]
        x, y = run.pool.x[places], run.pool.y[places] / run.scale
        answers = run.answer({name: w.unsqueeze(0) for name, w in weights.items()}, x, OWN)[0]
        optimizer.zero_grad()
        (answers - y).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * share
        optimizer.step()
        run.advance()
        for name, weight in weights.items():
            torch.testing.assert_close(run.weights[name][0], weight.detach(), msg=f"{name} at step {step}")


@pytest.fixture
def start(tmp_path, monkeypatch):
    def start(**options):
        given = dict(out=tmp_path / "out", steps=4, batch=8, pool=64, judged=32, seeds=2, rates="1e-3,1e-2")
        words = [
            word for name, value in (given | options).items() if name != "only" for word in (f"--{name}", str(value))
        ]
        monkeypatch.setattr(sys, "argv", ["x", *words])
        lqr_in_a_token.main(**given | options)
        return tmp_path / "out"

    return start


def test_runs_write_all_that_belongs_to_a_result(start, capsys):
    out = start(only=["dense/ttc", "dense/mlp"], jobs=2)
    for arm, horizons in (("ttc", [1, 2, 4, 8, 16, 32]), ("mlp", [8])):
        found = json.loads((out / "dense" / arm / "metrics.json").read_text())
        assert [(x["tokens"], x["horizon"]) for x in found["results"]] == [
            (name, T) for name in ("test", "held out") for T in horizons
        ]
        assert all(len(x["unexplained"]) == 2 for x in found["results"])
        assert found["command"].startswith("python -m experiments.lqr_in_a_token --out out")
        assert {"machine", "versions", "commit", "rate", "parameters", "validation"} <= set(found)
        assert sorted(path.name for path in (out / "dense" / arm).iterdir()) == [
            "log.jsonl",
            "metrics.json",
            "settings.json",
        ]
    start(only=["dense/ttc"])
    assert "dense/ttc is done" in capsys.readouterr().out


def test_a_stopped_run_resumes(start, monkeypatch, tmp_path):
    whole = start(only=["dense/ttc"], out=tmp_path / "whole")
    monkeypatch.setattr(lqr_in_a_token, "SAVE_EVERY", 2)
    advance = Readers.advance

    def stumbling(run):
        if run.step == 3:
            raise KeyboardInterrupt
        return advance(run)

    monkeypatch.setattr(Readers, "advance", stumbling)
    with pytest.raises((KeyboardInterrupt, typer.Exit, typer.Abort)):
        start(only=["dense/ttc"])
    monkeypatch.setattr(Readers, "advance", advance)
    out = start(only=["dense/ttc"])
    first, second = (json.loads((x / "dense/ttc/metrics.json").read_text())["results"] for x in (whole, out))
    assert first == second


def test_missing_names_are_errors(start, capsys):
    with pytest.raises(typer.Exit):
        start(only=["maze"])
    assert told(capsys.readouterr().err, "unknown-name", "only", "maze")
    start(only=["dense/mlp"])
    with pytest.raises(typer.Exit):
        start(only=["dense/mlp"], steps=5)
    assert "'steps': (4, 5)" in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_the_layer_plans_better_than_an_mlp():
    """The short version: two seeds, one rate, fewer steps."""
    found = {}
    for arm in ("ttc", "mlp"):
        run = Readers(Settings("diagonal", arm, steps=1500, pool=131_072, seeds=2, rates=(1e-2,)))
        while run.step < run.settings.steps:
            run.advance()
        fresh = tokens("diagonal", 4096, seed=2)
        found[arm] = {T: mean(run.judge(fresh, T)) for T in (1, OWN)}
    assert found["ttc"][OWN] < 0.5 * found["mlp"][OWN], found
    assert found["ttc"][OWN] < 0.5 * found["ttc"][1], found
