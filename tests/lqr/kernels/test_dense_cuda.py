"""dense.cu, the very source that a GPU runs, on the CPU: behind `solve`, against PyTorch, in every form of fields."""

from dataclasses import replace

import pytest
import torch

from tests.lqr import emulator
from tests.lqr.test_dense import agree, first_actions, gradients
from ttcnet.lqr import LQR, dense, solve
from ttcnet.lqr.kernels import dense_cpu, dense_cuda, nvrtc
from ttcnet.testing.errors import cast
from ttcnet.testing.problems import random_problem
from ttcnet.testing.tolerance import beyond, by, cases, solve_beyond

pytestmark = pytest.mark.skipif(emulator.COMPILER is None, reason="needs g++")


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    """`solve` on the CPU takes the kernels, on the emulator; the kernels that have run."""
    ran = []

    def run(launch, device, arguments):
        ran.append(launch)
        emulator.run(launch, device, arguments)

    monkeypatch.setattr(nvrtc, "run", run)
    monkeypatch.setattr(dense_cuda, "obstacle", lambda *_: None)
    monkeypatch.setattr(dense_cuda, "_room", lambda like, dtype, *size: torch.full(size, torch.nan, dtype=dtype))
    monkeypatch.setitem(dense.PASSES, "cpu", dense_cuda)
    yield ran
    assert ran, "no kernel has run"


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 3), (3, 5)])
@pytest.mark.parametrize("gains", [False, True])
def test_against_autograd(affine, n, m, gains):
    agree(random_problem((19,), 7, n, m, affine=affine), gains=gains)


def test_a_block_for_one_problem(launches):
    problem = random_problem((2,), 2, 40, 3, affine=True)
    agree(replace(problem, A=0.3 * problem.A, B=0.1 * problem.B), rtol=1e-8)
    assert dict(launches[0].defines)["LANES"] == "128"


def test_float32():
    agree(random_problem((40,), 9, 5, 3, affine=True, dtype=torch.float32), rtol=2e-5)


@pytest.mark.parametrize(("n", "m", "horizon"), [(5, 3, 1), (5, 3, 8), (5, 1, 40)])
def test_float32_is_as_good_as_its_inputs(n, m, horizon):
    what, family = cases(n, m, scales=(1.0, 1e4), regimes=("trained", "slow", "constant"))
    assert not solve_beyond(what, family, horizon, draws=1)


def test_an_unrolled_family_is_as_good_as_its_inputs():
    what, family = cases(5, 1, regimes=("slow",))
    assert not beyond(what, family, 17, by(first_actions), draws=1)


@pytest.mark.parametrize(("n", "m"), [(5, 3), (40, 4)])
def test_hidden_digits_are_those_of_the_loops(n, m):
    _, family = cases(n, m, scales=(1e3,), regimes=("trained",), costs=("none",))
    problem = cast(family, torch.float32).unroll(12)

    def lost(passes, work):
        given = passes.read(problem.as_matrices().given(), problem.batch_shape, 12)
        return passes.forward(given, work, False, False)[2]

    hidden = lost(dense_cpu, torch.float32)
    torch.testing.assert_close(lost(dense_cuda, torch.float32), hidden, rtol=0.02, atol=0)
    assert (hidden > 4 * lost(dense_cpu, torch.float64)).any(), "digits are lost where no d is large"


def unmet(passes, problem, work):
    """How far the conditions of every problem are from being met."""
    given = passes.read(problem.as_matrices().given(), problem.batch_shape, problem.horizon)
    return passes.forward(given, work, False, False)[3]


@pytest.mark.parametrize("n", [3, 12, 40])
def test_lost_digits_are_found(n):
    problem = random_problem((5,), 6, n, 2, affine=True, dtype=torch.float32)
    assert 0 < unmet(dense_cuda, problem, torch.float64).max() < 1e-13
    _, family = cases(5, 1, scales=(1.0,), regimes=("constant",))
    hard = cast(family, torch.float32).unroll(40)
    limit = dense.ROUNDINGS * 6**0.5 * torch.finfo(torch.float32).eps
    assert (unmet(dense_cuda, hard, torch.float32) > limit).sum() > 4
    assert (unmet(dense_cuda, hard, torch.float64) <= limit).all()


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,)])
def test_batches(batch, launches):
    problem = random_problem(batch, 4, 5, 3, affine=True)
    if 0 in batch:
        assert solve(problem).u.shape == (0, 4, 3)
        launches.append("none is needed")
    else:
        agree(problem)


def test_fields_shared_by_problems_or_steps_or_both():
    whole = random_problem((2, 3), 5, 5, 3, affine=True)
    forms = {
        "A": lambda x: x[:1, :1],
        "B": lambda x: x[:, :1],
        "Q": lambda x: x[:1, :, :1],
        "R": lambda x: x[:1, :1, :1],
        "r": lambda x: x[:, :, :1],
        "q": lambda x: x[:1, :1],
        "c": lambda x: x[:1, :1, :1],
        "N": lambda x: 0.1 * x[:1, :1],
    }
    agree(LQR(**{name: forms.get(name, lambda x: x)(x).clone() for name, x in whole.given().items()}))


@pytest.mark.parametrize("T", [1, 4])
@pytest.mark.parametrize("shared", [False, True])
def test_a_terminal_cost(T, shared):
    fields = random_problem((3,), T, 5, 3, affine=True).given()
    Qf = fields["Q"][:1, -1] if shared else fields["Q"][:, -1]
    agree(LQR(**(fields | {"Q": fields["Q"][:, :1], "Qf": Qf.clone(), "N": 0 * fields["N"]}), horizon=T))


def test_one_system_for_all():
    fields = random_problem((7,), 1, 5, 3, affine=True).given()
    one = {name: x if name == "h0" else x[:1].clone() for name, x in fields.items()}
    agree(LQR(**one, horizon=6), gains=True)


def test_expanded_fields_have_gradients_of_their_own_shape():
    problem = random_problem((3,), 1, 5, 3, affine=True)
    wide = {name: x if name == "h0" else x.expand(3, 6, *x.shape[2:]) for name, x in problem.given().items()}
    given = dense_cuda.read(LQR(**wide).given(), torch.Size((3,)), 6)
    assert given.tensors["A"].shape == (3, 1, 5, 5)
    leaf = wide["A"].requires_grad_()
    found = torch.autograd.grad(solve(LQR(**{**wide, "A": leaf})).u.square().sum(), leaf)[0]
    wanted = torch.autograd.grad(solve(LQR(**{**wide, "A": leaf}), implicit=False).u.square().sum(), leaf)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def test_problems_one_after_another_and_nothing_kept(monkeypatch, launches):
    problem = random_problem((19,), 7, 5, 3, affine=True)
    _, wanted = gradients(problem)
    assert len(launches) == 2
    monkeypatch.setattr(dense_cuda, "KEPT", 8 * 7 * 8 * (dense_cuda._entries(5, 3) + 8))  # of eight problems
    _, found = gradients(problem)
    assert len(launches) == 2 + 3 + 3
    for name, x in wanted.items():
        assert torch.equal(found[name], x), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hard_problems_are_solved_in_their_own_way_and_leave_the_others_alone(dtype):
    problem = random_problem((6,), 5, 3, 5, affine=True, dtype=dtype)
    R = problem.R.clone()
    R[1], R[4] = 1e-5 * R[1], 1e-11 * R[4]  # more actions than states, and next to free
    mixed = replace(problem, R=R, N=0 * problem.N)
    shared = replace(mixed, A=mixed.A[:1])
    fields = tuple(getattr(shared, name) for name in dense.FIELDS)
    groups = dense._solve(fields, 5, False, False)[1][1]
    assert len(groups) == (3 if dtype == torch.float32 else 2)
    assert not solve(shared).residual(shared).max() > (1e-5 if dtype == torch.float32 else 1e-11)
    agree(shared, rtol=1e-3 if dtype == torch.float32 else 1e-7)


def test_one_bad_problem_leaves_the_others_alone():
    problem = random_problem((3,), 4, 5, 3)
    Q = problem.Q.clone()
    Q[1] -= 50 * torch.eye(5)
    found, truth = solve(replace(problem, Q=Q), check=False), solve(problem)
    assert found.u[1].isnan().all()
    for k in (0, 2):
        torch.testing.assert_close(found.u[k], truth.u[k])


def test_values_are_symmetric_to_the_bit():
    problem = random_problem((9,), 6, 5, 3, dtype=torch.float32)
    P = gradients(problem, gains=True)[0].P
    assert torch.equal(P, P.mT)
    _, slopes = gradients(problem)
    for name in ("Q", "R"):
        assert torch.equal(slopes[name], slopes[name].mT)


def test_second_derivatives_and_func():
    problem = random_problem((2,), 3, 5, 3)

    def loss(h0):
        return solve(replace(problem, h0=h0), check=False).u.square().sum()

    assert torch.autograd.gradgradcheck(loss, problem.h0.requires_grad_())
    torch.testing.assert_close(
        torch.func.grad(loss)(problem.h0.detach()), torch.autograd.grad(loss(problem.h0), problem.h0)[0]
    )
