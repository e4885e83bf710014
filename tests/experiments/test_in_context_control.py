"""In-context control: systems are those of the page, trunks are causal, demonstrations belong to their prefixes, runs
resume and write all that belongs."""

import json
import shutil
from statistics import mean

import pytest
import torch
import typer

from experiments.in_context_control import __main__ as in_context_control
from experiments.in_context_control import policies, references, trunk
from experiments.in_context_control import systems as world
from experiments.in_context_control.policies import Answers, Policies, regret
from experiments.in_context_control.table import context_table
from experiments.in_context_control.trunk import Reading, Trunk, Trunks
from experiments.where_planning_pays import planner
from experiments.where_planning_pays.imitation import TRAINED
from tests.raising import told
from ttcnet.errors import TTCNetError

READING = Reading("prefixes", "attention", steps=2, batch=4, pool=32, judged=8)
TINY = dict(steps=2, batch=16, pool=64, judged=16, episodes=6, seeds=2, rates=(1e-2,))


@pytest.fixture(scope="module")
def trunks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trunk")
    stack = Trunks(READING)
    stack.advance()
    stack.written(folder)
    return folder, stack


@pytest.mark.parametrize("held_out", [False, True])
def test_a_third_of_the_systems_each_is_stable_unstable_and_oscillating(held_out):
    systems = world.draw(300, 0, held_out)
    values = torch.linalg.eigvals(systems.physics["A"])
    size = values.abs().amax(1).view(-1, 3)
    turning = (values.imag.abs().amax(1) > 1e-9).view(-1, 3)
    assert turning.tolist() == [[False, False, True]] * 100
    unstable, pairs = (world.UNSTABLE_FAR, world.TURNING_FAR) if held_out else (world.UNSTABLE, world.TURNING)
    for place, (low, high) in enumerate((world.REAL, unstable, (pairs[0], max(pairs[1], world.REAL[1])))):
        assert size[:, place].min() > low - 1e-9
        assert size[:, place].max() < high + 1e-9
    assert (systems.physics["A"].abs() > 1e-3).double().mean() > 0.98  # dense
    assert torch.equal(world.draw(300, 0, held_out).physics["A"], systems.physics["A"])


def test_prefixes_follow_the_systems():
    systems = world.draw(4000, 0)
    ins, outs = world.prefixes(systems, 1)
    assert torch.equal(ins[:, 1:, : world.STATES], outs[:, :-1])
    left = outs - ins @ world.matrices(systems).mT
    assert float(left.std()) == pytest.approx(world.NOISE, rel=0.01)
    assert float(ins[..., world.STATES :].std()) == pytest.approx(1, rel=0.01)


def test_tokens_are_the_same_for_a_transition_of_another_size_but_for_one_number():
    ins, outs = world.prefixes(world.draw(5, 0), 1)
    one, other = world.transition_tokens(ins, outs), world.transition_tokens(3 * ins, 3 * outs)
    changed = (one - other).abs().amax((0, 1)) > 1e-5
    assert changed.nonzero().flatten().tolist() == [world.BOTH + world.STATES]


def test_least_squares_finds_systems_without_noise(monkeypatch):
    monkeypatch.setattr(world, "NOISE", 0.0)
    systems = world.draw(20, 0)
    ins, outs = world.prefixes(systems, 1)
    usual = torch.zeros(world.STATES, world.BOTH, dtype=torch.float64)
    exact = world.ridge(ins, outs, 1e-12, usual)
    torch.testing.assert_close(exact, world.matrices(systems), rtol=1e-6, atol=1e-6)
    assert references.unexplained(systems, exact, TRAINED, 2) < 1e-9
    drawn = world.ridge(ins, outs, 1e12, usual + 2)
    torch.testing.assert_close(drawn, torch.full_like(drawn, 2), rtol=1e-6, atol=1e-6)


def test_a_fit_is_least_squares_after_every_transition_and_says_how_uncertain_it_is():
    systems = world.draw(20, 0)
    ins, outs = world.prefixes(systems, 1)
    fits = world.Fit.of(ins, outs)
    for length in (1, 5, 16):
        fit = fits.at(length)
        expected = world.ridge(ins[:, :length], outs[:, :length], world.FIT_WEIGHT, world.usual())
        torch.testing.assert_close(fit.matrices(), expected, rtol=1e-9, atol=1e-9)
        spread = fit.features()[:, world.STATES * world.BOTH :]
        assert spread.shape[-1] == world.BOTH * (world.BOTH + 1) // 2
    first, last = (fits.at(length).features()[:, world.STATES * world.BOTH] for length in (1, 16))
    assert (last > 0).all()
    assert (last < first).all()
    assert (first < 1).all()  # 1 is the value before any transition


def test_a_fit_grows_with_the_transitions_of_a_policy():
    systems = world.draw(6, 0)
    ins, outs = world.prefixes(systems, 1)
    fits = world.Fit.of(ins, outs)
    growing = policies.Growing(fits.at(3), 2)
    states, u = ins[:, 3].split([world.STATES, world.ACTIONS], -1)
    growing.add(states.expand(2, -1, -1), u.expand(2, -1, -1), outs[:, 3].expand(2, -1, -1))
    torch.testing.assert_close(growing.fit.matrices(), fits.at(4).matrices().expand(2, -1, -1, -1))


def test_demonstrations_and_scenes_of_fitted_have_the_fits_of_their_prefixes(monkeypatch):
    monkeypatch.setattr(policies, "STEPS", 3)
    run = Policies(Answers("fitted", "system", **TINY), "cpu", None, READING)
    systems = world.draw(run.settings.pool // policies.QUESTIONS, 10_000)
    known = world.Fit.of(*world.prefixes(systems, 10_001)).features().flatten(0, 1)
    for x in run.pool.x[: run.settings.pool, : known.shape[-1]]:
        assert torch.isclose(known, x).all(-1).any()
    scene = run.scene(False, 2)
    assert torch.equal(scene.contexts[1], scene.fits.features())
    seen = []

    def watched(contexts, *rest):
        seen.append(contexts)
        return torch.zeros(2, 6, world.ACTIONS, dtype=torch.float64)

    monkeypatch.setattr(run, "_act", watched)
    run.regret_while_learning(32, 4)
    torch.testing.assert_close(seen[0][0], scene.contexts[0, :6, 3])
    assert not torch.equal(seen[1], seen[0])
    assert len(seen) == 3


def test_a_trunk_is_causal_and_predicts_the_system(trunks):
    folder, stack = trunks
    made = Trunk(folder, READING, 3, "cpu")  # any seed: there is a single one
    x = stack.pool.x[:5]
    contexts = made.contexts(x)
    moved = x.clone()
    moved[:, 7:] += 1
    found = made.contexts(moved)
    assert torch.equal(found[:, :7], contexts[:, :7])
    assert not torch.equal(found[:, 7], contexts[:, 7])
    told = (stack.answer(stack.weights, x, 0)[0] * stack.scale).unflatten(-1, (world.STATES, world.BOTH))
    torch.testing.assert_close(made.matrices(contexts).float(), told, rtol=1e-4, atol=1e-5)
    assert not any(p.requires_grad for p in made.net.parameters())


def test_a_trunk_that_is_not_there(tmp_path):
    with pytest.raises(TTCNetError) as raised:
        Trunk(tmp_path, READING, 0, "cpu")
    assert raised.value.code == "no-model"


def test_demonstrations_are_answers_for_the_systems_they_tell_of():
    run = Policies(Answers("told", "system", **TINY), "cpu", None, READING)
    each = run.settings.pool // len(TRAINED)
    for group, T in enumerate(TRAINED):
        rows = slice(group * each, (group + 1) * each)
        x, y = run.pool.x[rows].double(), run.pool.y[rows]
        A, B, q, r, states = x.split([9, 9, 3, 3, 3], 1)
        q, r = (
            4 ** (part * (high - low) * 12**-0.5 + (low + high) / 2)
            for part, (low, high) in ((q, world.Q), (r, world.R))
        )
        systems = planner.Systems({}, q, r)
        expected = planner.actions(systems, A.view(-1, 3, 3) / 2, B.view(-1, 3, 3) / 2, states, T)
        torch.testing.assert_close(y.double(), expected, rtol=1e-3, atol=1e-4)


def test_demonstrations_have_the_contexts_of_their_prefixes(trunks):
    run = Policies(Answers("read", "system", **TINY), "cpu", trunks[0], READING)
    count, each = run.settings.pool // policies.QUESTIONS, run.settings.pool // len(TRAINED)
    contexts = run.read(world.draw(count, 10_000 * 2), 10_000 * 2 + 1, 1)
    second = run.pool.x[run.settings.pool :, : contexts.shape[-1]]  # those of the second seed
    for row, x in enumerate(second):
        own = contexts[(row % each + row // each * each) % count]
        assert torch.isclose(own, x).all(-1).any()


@pytest.mark.parametrize("arm", policies.ARMS)
def test_an_arm_is_told_the_horizon_in_one_way(arm, trunks):
    run = Policies(Answers("read", arm, **TINY), "cpu", trunks[0], READING)
    systems, states = world.asked_anew(world.draw(4, 0), 1)
    short, far = (run._tokens(torch.zeros(4, 64), systems, states, T) for T in (2, 32))
    plans = arm in ("system", "ttc")
    assert torch.equal(short, far) is plans
    assert [run._own(T) for T in (2, 32)] == ([2, 32] if plans else [1, 1])
    before = run.flat.clone()
    run.advance()
    assert run.losses.isfinite().all()
    assert not torch.equal(run.flat, before)


def test_regret_is_none_for_the_planner_and_bounded_for_the_worst():
    systems = world.draw(12, 0)
    K = world.gains(systems, 32)

    def act(states):
        best = (K @ states[:1].unsqueeze(-1)).squeeze(-1)
        return torch.cat([best, 0 * best, 1e6 * best])

    best, idle, worst = regret(systems, act, 3, 32)
    assert best == pytest.approx(0, abs=1e-12)
    assert 0 < idle < worst == policies.WORST


@pytest.fixture
def start(tmp_path, monkeypatch):
    arm = {name: value for name, value in TINY.items() if name not in ("seeds", "rates")}
    small = {"trunk": dict(steps=2, batch=4, pool=32, judged=8), "arm": arm}
    monkeypatch.setattr(in_context_control, "SIZES", {"small": small})
    monkeypatch.setattr(policies, "STEPS", 2)
    options = dict(
        size="small",
        seeds=2,
        rates="1e-3,1e-2",
        steps=None,
        trunk_steps=None,
        pool=None,
        judged=None,
        first_seed=10,
        device="cpu",
    )
    return lambda **more: in_context_control.main(tmp_path / "out", **options | more) or tmp_path / "out"


def test_runs_write_all_that_belongs_to_a_result(start):
    out = start(only=["trunk", "references", "read/system", "read/mlp", "read/mlp-2.5"])
    for arm in ("system", "mlp"):
        found = json.loads((out / "read" / arm / "run" / "metrics.json").read_text())
        tuning = json.loads((out / "read" / arm / "tuning" / "metrics.json").read_text())
        assert found["rate"] == tuning["rate"] == float(min(tuning["validation"], key=tuning["validation"].get))
        assert {"machine", "versions", "commit", "command", "parameters"} <= set(found)
        assert all(len(each["values"]) == 2 for what in ("unexplained", "acting") for each in found[what])
        assert {each["own"] for each in found["knob"]} == ({0, 1, 2, 4, 8, 16, 32, 64} if arm == "system" else set())
    assert len(json.loads((out / "trunk" / "metrics.json").read_text())["unexplained"][0]) == world.LONGEST_PREFIX
    rows = context_table("unexplained", out).splitlines()
    expected = mean(json.loads((out / "read/mlp/run/metrics.json").read_text())["unexplained"][0]["values"])
    assert f"| {expected:.3f} ±" in next(row for row in rows if row.startswith("| MLP |"))
    answers = context_table("answers", out)
    assert "5. " not in answers
    assert "given A and B" not in answers
    assert "8. " not in answers
    assert "| less regret than a planner with least squares, at which numbers of transitions |" in answers
    before = (out / "read/mlp/run/metrics.json").read_bytes()
    start(only=["read/mlp"])
    assert (out / "read/mlp/run/metrics.json").read_bytes() == before


def test_a_round_with_fits_answers_its_further_questions(start, tmp_path):
    out = start(only=["trunk", "references", "fitted/system", "fitted/mlp", "fitted/mlp-2.5"], rates="1e-2")
    shutil.copytree(out, tmp_path / "third")
    shutil.copytree(out / "fitted", tmp_path / "third-small" / "fitted")
    rows = context_table("third-answers", tmp_path).splitlines()[2:]
    answers = dict(row.strip("| ").split(" | ") for row in rows)
    assert answers["fitted: 7. with 64 demonstrations: not above both MLPs with all"]
    planner = "a planner with the fit of the tokens"
    assert answers[f"fitted: 8. less regret than {planner}, at which numbers of transitions"]
    assert sum(question.startswith("fitted: 9. ") for question in answers) == 8
    rows = context_table("third-learning", tmp_path).splitlines()
    fitted = json.loads((out / "fitted/system/run/metrics.json").read_text())
    assert f"| {mean(fitted['learning'][0]['values']):.3f} ±" in next(row for row in rows if "writes systems" in row)
    planner = json.loads((out / "references/metrics.json").read_text())["fit"]
    assert f"| {planner['learning'][1]['values'][0]:.3f} |" in next(row for row in rows if "planner" in row)


def test_a_stopped_run_resumes(start, monkeypatch, tmp_path):
    options = dict(only=["told/mlp"], rates="1e-2")
    whole = json.loads((start(**options) / "told/mlp/run/metrics.json").read_text())
    (tmp_path / "out").rename(tmp_path / "whole")
    monkeypatch.setattr(in_context_control, "SAVE_EVERY", 1)
    advance = Policies.advance

    def stumbling(run):
        if run.step == 1:
            raise KeyboardInterrupt
        return advance(run)

    monkeypatch.setattr(Policies, "advance", stumbling)
    with pytest.raises((KeyboardInterrupt, typer.Exit, typer.Abort)):
        start(**options)
    monkeypatch.setattr(Policies, "advance", advance)
    found = json.loads((start(**options) / "told/mlp/run/metrics.json").read_text())
    assert found["unexplained"] == whole["unexplained"]
    assert found["acting"] == whole["acting"]


def test_missing_names_are_errors(start, tmp_path, capsys):
    for field, value in (("only", ["maze"]), ("size", "huge")):
        with pytest.raises(typer.Exit):
            start(**{field: value})
        assert told(capsys.readouterr().err, "unknown-name", field, "maze|huge")
    assert context_table("regret", tmp_path).startswith("*Not run yet: ")
    assert context_table("second-regret", tmp_path).startswith("*Not run yet: ")
    with pytest.raises(typer.Exit):
        start(only=["read/linear"])  # before its trunk
    assert not (tmp_path / "out/read/linear/run/metrics.json").exists()
    assert trunk.WEIGHTS not in [path.name for path in (tmp_path / "out").rglob("*")]
