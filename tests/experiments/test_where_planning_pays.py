"""Where planning pays: systems are Gymnasium's, planners are optimal, runs resume and write all that belongs."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import typer

from experiments.where_planning_pays import __main__ as where_planning_pays
from experiments.where_planning_pays import arm, cart_pole, imitation, pendulums, planner
from experiments.where_planning_pays.imitation import ARMS, SYSTEMS, TRAINED, Demonstrations, Imitation, told
from tests import raising

ARMS_OF_MUJOCO = {name: each for name, each in SYSTEMS.items() if isinstance(each, arm.Arm)}
SAME = {name: each for name, each in SYSTEMS.items() if name not in ARMS_OF_MUJOCO}  # linear alike at all states

TINY = dict(steps=2, batch=16, pool=32, judged=16, episodes=4, seeds=2, rates=(1e-2,))


def groups(system, count=6):
    return system.draw(count, 0)


def test_carts_move_as_gymnasiums():
    gymnasium = pytest.importorskip("gymnasium", reason="the extra gym is not installed")
    systems, states = groups(cart_pole)
    u = torch.randn(6, 1, dtype=torch.float64)
    found = cart_pole.step(systems, states, u)
    for place in range(6):
        env = gymnasium.make("CartPole-v1").unwrapped
        env.reset(seed=0)
        cart, pole, length, strength = (float(x[place]) for x in systems.physics.values())
        env.masscart, env.masspole, env.length = cart, pole, length
        env.total_mass, env.polemass_length = cart + pole, pole * length
        push = float(u[place]) * strength
        env.force_mag, env.state = abs(push), states[place].numpy()
        assert (env.gravity, env.tau) == (cart_pole.GRAVITY, cart_pole.TAU)
        assert (env.x_threshold, env.theta_threshold_radians) == (cart_pole.PLACE, cart_pole.ANGLE)
        for _ in range(cart_pole.HOLD):
            env.step(int(push > 0))
        torch.testing.assert_close(found[place], torch.as_tensor(env.state))


def test_pendulums_without_springs_move_as_gymnasiums():
    gymnasium = pytest.importorskip("gymnasium", reason="the extra gym is not installed")
    systems, states = groups(pendulums, 2)
    systems.physics["spring"].zero_()
    u = torch.randn(2, 4, dtype=torch.float64)
    found = pendulums.step(systems, states, u)
    for group in range(2):
        for place in range(4):
            env = gymnasium.make("Pendulum-v1").unwrapped
            env.reset(seed=0)
            env.m, env.l = (float(systems.physics[name][group, place]) for name in ("mass", "length"))
            env.max_torque = env.max_speed = math.inf
            env.state = states[group, [place, 4 + place]].numpy()
            assert (env.g, env.dt) == (pendulums.GRAVITY, pendulums.TAU)
            for _ in range(pendulums.HOLD):
                env.step([float(u[group, place])])
            torch.testing.assert_close(found[group, [place, 4 + place]], torch.as_tensor(env.state))


def test_springs_pull_pendulums_together():
    systems, _ = groups(pendulums, 1)
    _, _, stiffness = pendulums._parts(systems)
    assert torch.equal(stiffness, stiffness.mT)
    torch.testing.assert_close(stiffness.sum(-1), torch.zeros(1, 4, dtype=torch.float64))  # none where angles agree
    k = systems.physics["spring"][0, pendulums.PAIRS.index((2, 0))]
    assert stiffness[0, 2, 0] == -k


@pytest.mark.parametrize("system", SAME.values(), ids=SAME)
def test_near_rest_systems_are_linear(system):
    systems, states = groups(system)
    A, B = system.linear(systems, states)
    u, small = torch.randn(6, B.shape[-1], dtype=torch.float64), 1e-6
    expected = (A @ states.unsqueeze(-1) + B @ u.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(system.step(systems, small * states, small * u) / small, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("system", SAME.values(), ids=SAME)
def test_planners_are_optimal(system):
    """Their first action is that of the sequence that minimises the cost, found by least squares."""
    systems, states = groups(system, 3)
    A, B = system.linear(systems, states)
    T, m = 5, B.shape[-1]
    for place in range(3):

        def residuals(actions, place=place):
            state, parts = states[place], []
            for u in actions.view(T, m):
                state = A[place] @ state + B[place] @ u
                parts += [systems.q[place].sqrt() * state, systems.r[place].sqrt() * u]
            return torch.cat(parts)

        zero = torch.zeros(T * m, dtype=torch.float64)
        slope = torch.func.jacrev(residuals)(zero)
        best = torch.linalg.lstsq(slope, -residuals(zero)).solution[:m]
        torch.testing.assert_close(planner.actions(systems, A, B, states, T)[place], best)


@pytest.mark.parametrize("system", SAME.values(), ids=SAME)
def test_tokens_are_scaled_and_say_all(system):
    systems, states = system.draw(20_000, 0)
    x = system.features(systems, states)
    assert x.mean(0).abs().max() < 0.05
    assert (x.std(0) - 1).abs().max() < 0.05
    one = system.draw(1, 0)[0]
    moved = [one._replace(q=1.5 * one.q), one._replace(r=1.5 * one.r)]
    moved += [one._replace(physics=one.physics | {name: 1.5 * value}) for name, value in one.physics.items()]
    for other in moved:
        assert not torch.equal(system.features(other, states[:1]), system.features(one, states[:1]))
    more = torch.stack([told(x[0], T) for T in TRAINED])[:, -2:]
    torch.testing.assert_close(more.mean(0), torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(more.std(0), torch.ones(2, dtype=torch.float64))


@pytest.fixture
def mujoco():
    return pytest.importorskip("mujoco", reason="the extra mujoco is not installed")


def test_the_arm_is_that_of_gymnasiums_pusher_with_its_wrist_locked(mujoco):
    gymnasium = pytest.importorskip("gymnasium", reason="the extra gym is not installed")
    whole = mujoco.MjModel.from_xml_path(str(Path(gymnasium.__file__).parent / arm.ASSET))
    data, ours = mujoco.MjData(whole), arm.read()
    arm.Arm(matrices=False)._become(np.ones(7))
    assert [whole.joint(place).name for place in range(4)] == list(arm.MOVES)
    assert whole.opt.timestep == ours.model.opt.timestep
    data.qpos[:4] = ours.data.qpos[:] = [0.3, -0.2, 0.5, -1.0]
    inertias = []
    for model, now in ((whole, data), (ours.model, ours.data)):
        mujoco.mj_forward(model, now)
        units = np.eye(model.nv)
        inertias.append(np.stack([product(mujoco, model, now, unit) for unit in units])[:4, :4])
    np.testing.assert_allclose(*inertias, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(data.xpos[whole.body("tips_arm").id], ours.data.xpos[ours.tip])


def product(mujoco, model, data, vector):
    found = np.empty(model.nv)
    mujoco.mj_mulM(model, data, found, vector)
    return found


@pytest.mark.parametrize("system", ARMS_OF_MUJOCO.values(), ids=ARMS_OF_MUJOCO)
def test_near_rest_arms_are_linear_where_they_are(system, mujoco):
    systems, states = groups(system)
    A, B = system.linear(systems, states)
    u, small = torch.randn(6, 4, dtype=torch.float64), 1e-5
    slow = torch.cat([small * states[:, :7], states[:, 7:]], 1)
    expected = (A @ states[:, :7].unsqueeze(-1) + B @ u.unsqueeze(-1)).squeeze(-1)
    moved = system.step(systems, slow, small * u)
    torch.testing.assert_close(moved[:, :7] / small, expected, rtol=1e-3, atol=1e-4)
    several = system.linear(systems, torch.stack([states, states.flip(0)]))
    for found, one in zip(several, (A, B), strict=True):
        torch.testing.assert_close(found[0], one)
        assert not torch.allclose(found[1], one)


@pytest.mark.parametrize("system", ARMS_OF_MUJOCO.values(), ids=ARMS_OF_MUJOCO)
def test_the_distance_of_an_arm_is_that_of_its_tip(system, mujoco):
    """With the tip at its target the distance is zero: a change of the distance is the move of the tip."""
    systems, states = groups(system, 1)
    ours = arm.read()

    def tip(angles):
        system._become(system._arms(systems, states)[0])
        ours.data.qpos[:] = arm.MIDDLE + angles.numpy()
        mujoco.mj_kinematics(ours.model, ours.data)
        return torch.tensor(ours.data.xpos[ours.tip])

    target = tip(states[0, 7:]) - states[0, :3]
    now = states
    for _ in range(3):
        now = system.step(systems, now, torch.ones(1, 4, dtype=torch.float64))
    torch.testing.assert_close(now[0, :3], tip(now[0, 7:]) - target)


@pytest.mark.parametrize("system", ARMS_OF_MUJOCO.values(), ids=ARMS_OF_MUJOCO)
def test_tokens_of_arms_are_scaled_and_say_all(system, mujoco):
    systems, states = system.draw(3000, 0)
    x = system.features(systems, states)
    assert x.mean(0).abs().max() < 0.1
    assert (x.std(0) - 1).abs().max() < 0.15
    one = type(systems)({name: value[:1] for name, value in systems.physics.items()}, systems.q[:1], systems.r[:1])
    moved = [one._replace(q=1.5 * one.q), one._replace(r=1.5 * one.r)]
    moved += [one._replace(physics=one.physics | {name: value.flip(1)}) for name, value in one.physics.items()]
    moved += [one._replace(physics=one.physics | {"hand": 1.5 * one.physics["hand"]})]
    moved = [other for other in moved if other is not moved[3]]  # a single number, flipped, is unchanged
    for other in moved:
        assert not torch.equal(system.features(other, states[:1]), system.features(one, states[:1]))


def test_planners_of_arms_come_to_their_target(mujoco):
    system = SYSTEMS["arms"]
    systems, states = system.draw(8, 0)
    now = states / 2
    for _ in range(80):
        now = system.step(systems, now, planner.actions(systems, *system.linear(systems, now), now, 32))
    assert not system.over(now).any()
    assert (now[:, :3].norm(dim=1) < 0.6 * states[:, :3].norm(dim=1) / 2).float().mean() > 0.7


@pytest.mark.parametrize("arm", ARMS)
def test_an_arm_is_told_the_horizon_in_one_way(arm):
    run = Imitation(Demonstrations("cart-pole", arm, **TINY))
    short, far = (run.tokens(4, 0, T) for T in (2, 32))
    assert torch.equal(short.x, far.x) is (arm in imitation.PLANS)
    assert [run._own(T) for T in (2, 32)] == ([2, 32] if arm in imitation.PLANS else [1, 1])
    run.advance()
    assert run.losses.isfinite().all()


@pytest.mark.parametrize("arm", imitation.TOGETHER)
def test_horizons_in_one_call_are_those_in_a_call_each(arm):
    run = Imitation(Demonstrations("cart-pole", arm, **TINY))
    x, y = (torch.stack(parts) for parts in zip(*(run.tokens(4, 0, T) for T in TRAINED), strict=True))
    one = {name: weight[0] for name, weight in run.weights.items()}
    each = [run.member(one, few, run._own(T)) for few, T in zip(x, TRAINED, strict=True)]
    several = [value.expand(2, *value.shape) for value in (x, y)]
    _, losses = run.slopes(run.weights, *several)
    assert float(losses[0]) == pytest.approx(float((torch.stack(each) - y).square().mean()), rel=1e-4)


def test_batches_hold_demonstrations_of_the_seed_and_the_horizon():
    run = Imitation(Demonstrations("cart-pole", "ttc", **TINY))
    seen = SimpleNamespace()
    slopes = run.slopes
    run.slopes = lambda weights, x, y: (setattr(seen, "x", x), slopes(weights, x, y))[1]
    run.advance()
    for member, seed in enumerate(run.seeds):
        for group, T in enumerate(TRAINED):
            own = run.tokens(4, 1000 * (seed + 1) + T, T).x
            assert all((own == x).all(1).any() for x in seen.x[member, group])


def test_a_policy_equal_to_the_planner_has_its_cost():
    run = Imitation(Demonstrations("cart-pole", "mlp", **TINY))
    systems, _ = cart_pole.draw(4, 3)
    states = torch.zeros(0)

    def read(_systems, now, _horizon):
        nonlocal states
        states = now
        return torch.zeros(2, 4, 1)

    run._read = read
    run.member = lambda weights, x, own: x
    run.scale = 1.0
    exact = imitation.vmap
    imitation.vmap = lambda *_, **__: (
        lambda *___: planner.actions(systems, *cart_pole.linear(systems, states), states, 32)
    )
    try:
        found = run.episodes(32, 0)
    finally:
        imitation.vmap = exact
    assert found["cost"] == pytest.approx([found["planner"]["cost"]] * 2)
    assert found["return"] == [found["planner"]["return"]] * 2 == [1.0, 1.0]


@pytest.fixture
def start(tmp_path, monkeypatch):
    small = {"numbers": (32,), "tuned_at": 32, "steps": 2, "batch": 16}
    monkeypatch.setattr(where_planning_pays, "TRAINING", {"cart-pole": small})
    monkeypatch.setattr(imitation, "STEPS", 2)
    options = dict(steps=None, seeds=2, rates="1e-3,1e-2", judged=16, episodes=4)
    return lambda **more: where_planning_pays.main(tmp_path / "out", **options | more) or tmp_path / "out"


def test_runs_write_all_that_belongs_to_a_result(start, capsys):
    out = start(only=["cart-pole/ttc", "cart-pole/mlp"])
    for name in ("ttc", "mlp"):
        folder = out / "cart-pole" / name
        found = json.loads((folder / "32" / "metrics.json").read_text())
        tuning = json.loads((folder / "tuning" / "metrics.json").read_text())
        assert found["rate"] == tuning["rate"] == float(min(tuning["validation"], key=tuning["validation"].get))
        assert {"machine", "versions", "commit", "command", "parameters"} <= set(found)
        assert found["versions"]["gymnasium"]
        assert all(len(each["values"]) == 2 for each in found["unexplained"])
        assert {each["own"] for each in found["knob"]} == (set(imitation.KNOB) if name == "ttc" else set())
        assert any("told" in each for each in found["episodes"]) is (name == "mlp")
        assert sorted(path.name for path in (folder / "32").iterdir()) == ["log.jsonl", "metrics.json", "settings.json"]
    before = (out / "cart-pole/ttc/32/metrics.json").read_bytes()
    start(only=["cart-pole/ttc/32"])
    assert (out / "cart-pole/ttc/32/metrics.json").read_bytes() == before


def test_a_stopped_run_resumes(start, monkeypatch, tmp_path):
    whole = json.loads((start(only=["cart-pole/mlp"]) / "cart-pole/mlp/32/metrics.json").read_text())
    (tmp_path / "out").rename(tmp_path / "whole")
    monkeypatch.setattr(where_planning_pays, "SAVE_EVERY", 1)
    advance = Imitation.advance

    def stumbling(run):
        if run.step == 1 and run.settings.seeds == 2:
            raise KeyboardInterrupt
        return advance(run)

    monkeypatch.setattr(Imitation, "advance", stumbling)
    with pytest.raises((KeyboardInterrupt, typer.Exit, typer.Abort)):
        start(only=["cart-pole/mlp"])
    monkeypatch.setattr(Imitation, "advance", advance)
    found = json.loads((start(only=["cart-pole/mlp"]) / "cart-pole/mlp/32/metrics.json").read_text())
    assert found["unexplained"] == whole["unexplained"]


def test_missing_names_are_errors(start, capsys):
    with pytest.raises(typer.Exit):
        start(only=["maze"])
    assert raising.told(capsys.readouterr().err, "unknown-name", "only", "maze")
    start(only=["cart-pole/linear"])
    with pytest.raises(typer.Exit):
        start(only=["cart-pole/linear"], steps=3)
    assert "'steps': (2, 3)" in " ".join(capsys.readouterr().err.split())
