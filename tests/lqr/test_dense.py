"""The compiled loops for dense problems: against PyTorch, in every form that fields can have."""

import threading
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tests.raising import raises
from ttcnet.lqr import LQR, dense, solve
from ttcnet.lqr.kernels import dense_cpu
from ttcnet.testing.errors import cast
from ttcnet.testing.problems import random_problem
from ttcnet.testing.tolerance import beyond, by, cases, solve_beyond

PARTS = ("u", "h", "costate", "cost")
GAINS = ("K", "k", "P", "p")


def gradients(problem, gains=False, **options):
    """The solution, and the gradients of a loss on all parts of it, by field."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in problem.given().items()}
    solution = solve(LQR(**leaves, horizon=problem.horizon), gains=gains, **options)
    generator = torch.Generator().manual_seed(3)
    parts = [getattr(solution, name) for name in PARTS + (GAINS if gains else ())]
    loss = sum((torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x) * x).sum() for x in parts)
    return solution, dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values()), allow_unused=True), strict=True))


def agree(problem, rtol=1e-9, gains=False):
    assert dense.obstacle(problem) is None
    (found, slopes), (truth, wanted) = (gradients(problem, gains, implicit=x) for x in (None, False))
    for name in PARTS + (GAINS if gains else ()):
        a, b = getattr(found, name), getattr(truth, name)
        assert (a - b).norm() <= rtol * b.norm(), name
    for name, b in wanted.items():
        if b is not None:
            assert (slopes[name] - b).norm() <= 10 * rtol * b.norm().clamp_min(1e-3), name


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 3), (3, 5), (12, 4)])
@pytest.mark.parametrize("gains", [False, True])
def test_against_autograd(affine, n, m, gains):
    agree(random_problem((19,), 7, n, m, affine=affine), gains=gains)


@pytest.mark.parametrize(("n", "m"), [(64, 3), (20, 64)])
def test_the_largest(n, m):
    problem = random_problem((2,), 2, n, m, affine=True)
    agree(replace(problem, A=0.3 * problem.A, B=0.1 * problem.B), rtol=1e-8)


def test_float32():
    agree(random_problem((40,), 9, 6, 2, affine=True, dtype=torch.float32), rtol=2e-5)


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (0,)])
def test_batches(batch):
    problem = random_problem(batch, 4, 3, 2, affine=True)
    if 0 in batch:
        assert solve(problem).u.shape == (0, 4, 2)
    else:
        agree(problem)


def test_fields_shared_by_problems_or_steps_or_both():
    whole = random_problem((2, 3), 5, 4, 2, affine=True)
    fields = whole.given()
    forms = {
        "A": lambda x: x[:1, :1],
        "B": lambda x: x[:, :1],
        "Q": lambda x: x[:1, :, :1],
        "R": lambda x: x[:1, :1, :1],
        "r": lambda x: x[:, :, :1],
        "c": lambda x: x[:1, :1, :1],
        "N": lambda x: 0.1 * x[:1],
    }
    agree(LQR(**{name: forms.get(name, lambda x: x)(x).clone() for name, x in fields.items()}))


def test_expanded_fields_are_read_once_and_have_gradients_of_their_own_shape():
    problem = random_problem((3,), 1, 4, 2, affine=True)
    wide = {name: x if name == "h0" else x.expand(3, 6, *x.shape[2:]) for name, x in problem.given().items()}
    given = dense_cpu.read(LQR(**wide).given(), torch.Size((3,)), 6)
    assert given.arrays["A"].shape == (3, 1, 4, 4)
    leaf = wide["A"].requires_grad_()
    found = torch.autograd.grad(solve(LQR(**{**wide, "A": leaf})).u.square().sum(), leaf)[0]
    wanted = torch.autograd.grad(solve(LQR(**{**wide, "A": leaf}), implicit=False).u.square().sum(), leaf)[0]
    assert found.shape == (3, 6, 4, 4)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


def test_nothing_kept_is_worked_out_again():
    problem = random_problem((5,), 6, 3, 2, affine=True)
    with patch.object(dense_cpu, "KEPT", 0):
        _, found = gradients(problem)
    _, wanted = gradients(problem)
    for name, x in wanted.items():
        assert torch.equal(found[name], x), name


def test_pieces_and_threads():
    problem = random_problem((70,), 3, 3, 2, affine=True)
    shared = LQR(**{**problem.given(), "A": problem.A[:1], "N": 0 * problem.N})
    _, wanted = gradients(shared)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with patch.object(dense_cpu, "PIECE", 1):
            _, found = gradients(shared)
    finally:
        torch.set_num_threads(before)
    for name, x in wanted.items():
        torch.testing.assert_close(found[name], x, rtol=1e-12, atol=1e-12, msg=name)


@pytest.mark.parametrize(("piece", "elsewhere"), [(dense_cpu.PIECE, False), (1, True)])
def test_long_work_leaves_the_main_thread_to_interrupts(piece, elsewhere, monkeypatch):
    threads, compiled = [], dense_cpu._compiled

    def noted(*names):
        run = compiled(*names)
        return lambda *given: (threads.append(threading.current_thread()), run(*given))

    monkeypatch.setattr(dense_cpu, "_compiled", noted)
    monkeypatch.setattr(dense_cpu, "PIECE", piece)
    solve(random_problem((), 3, 3, 2), check=False)
    assert [thread is not threading.main_thread() for thread in threads] == [elsewhere]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hard_problems_are_solved_in_their_own_way_and_leave_the_others_alone(dtype):
    problem = random_problem((6,), 5, 3, 4, affine=True, dtype=dtype)
    R, N = problem.R.clone(), 0 * problem.N
    R[1], R[4] = 1e-5 * R[1], 1e-11 * R[4]  # more actions than states, and next to free
    mixed = replace(problem, R=R, N=N)
    shared = replace(mixed, A=mixed.A[:1])
    fields = tuple(getattr(shared, name) for name in dense.FIELDS)
    groups = dense._solve(fields, 5, False, False)[1][1]
    assert len(groups) == (3 if dtype == torch.float32 else 2)
    assert not solve(shared).residual(shared).max() > (1e-5 if dtype == torch.float32 else 1e-11)
    agree(shared, rtol=1e-3 if dtype == torch.float32 else 1e-7)


def test_one_bad_problem_is_named_and_the_others_are_solved():
    problem = random_problem((3,), 4, 3, 2)
    Q = problem.Q.clone()
    Q[1] -= 50 * torch.eye(3)
    bad = replace(problem, Q=Q)
    with raises("not-positive", None, r"problem \(1,\) of the batch"):
        solve(bad)
    found, truth = solve(bad, check=False), solve(problem)
    assert found.u[1].isnan().all()
    for k in (0, 2):
        torch.testing.assert_close(found.u[k], truth.u[k])
    h0 = problem.h0.clone()
    h0[2, 0] = float("nan")
    assert solve(replace(problem, h0=h0), check=False).u[:2].isfinite().all()


@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 1), (5, 3), (3, 5), (8, 2)])
@pytest.mark.parametrize("horizon", [1, 8, 40])
def test_float32_is_as_good_as_its_inputs(n, m, horizon):
    what, family = cases(n, m)
    assert not solve_beyond(what, family, horizon)


def first_actions(family, horizon):
    return solve(family.unroll(horizon), check=False).u[..., 0, :]


@pytest.mark.parametrize(("n", "m", "horizon"), [(1, 1, 300), (5, 1, 17), (16, 7, 17)])
def test_an_unrolled_family_is_as_good_as_its_inputs(n, m, horizon):
    """As test_dense_gpu.py has it. The gradients are of the family: a rounding of that moves all steps together."""
    what, family = cases(n, m, regimes=("trained", "slow"))
    assert not beyond(what, family, horizon, by(first_actions), draws=1, unrolled=True)


def test_gradients_of_steps_cancel_in_their_sum():
    """Over 300 steps a price next to nothing hardly matters. Each step's gradient of R is right, and even if it is
    rounded only once, their sum is not: no solve could return it."""
    what, family = cases(1, 1, scales=(1e-6,), regimes=("slow",), costs=("full", "axes"))
    problem = cast(family, torch.float32).unroll(300)
    found, exact = (gradients_of_R(problem, dtype) for dtype in (torch.float32, torch.float64))
    assert not solve_beyond(what, family, 300)
    assert (found.double() - exact).norm() < 1e-6 * exact.norm()
    for rounded_once in (found.double(), exact.float().double()):
        assert ((rounded_once.sum(-1) - exact.sum(-1)).abs() > 0.1 * exact.sum(-1).abs()).any()


def gradients_of_R(problem, dtype):
    leaves = {name: x.detach().to(dtype).requires_grad_() for name, x in problem.given().items()}
    first = solve(LQR(**leaves, horizon=problem.horizon), check=False).u[..., 0, :]
    return torch.autograd.grad(first.sum(), leaves["R"])[0].squeeze(-1)


@pytest.mark.parametrize("options", [{"method": "kkt"}, {"implicit": True}, {"implicit": False}], ids=str)
def test_other_ways_are_as_good_as_their_inputs(options):
    for n, m in ((5, 1), (3, 5)):
        what, family = cases(n, m, scales=(1.0, 1e4))
        assert not solve_beyond(what, family, 8, **options), (n, m)


def test_lost_digits_are_found_where_d_is_small():
    """One action holds five states, of which some are unstable: P of float32 is wrong long before d is large."""
    _, family = cases(5, 1, scales=(1.0,), regimes=("constant",))
    problem = cast(family, torch.float32).unroll(40)
    given = dense_cpu.read(problem.as_matrices().given(), problem.batch_shape, 40)
    unmet = dense_cpu.forward(given, torch.float32, False, False)[3]
    d = dense_cpu.forward(given, torch.float64, False, False)[2]
    assert d.max() < dense.WAYS[torch.float32][0][1]
    assert unmet.max() > 0.1
    assert solve(problem).residual(problem).max() < 1e-5
    easy = random_problem((64,), 20, 12, 4, dtype=torch.float32)
    given = dense_cpu.read(easy.as_matrices().given(), easy.batch_shape, 20)
    few = dense_cpu.forward(given, torch.float32, False, False)[3] > dense.ROUNDINGS * 16**0.5 * 2**-23
    assert few.sum() < 4, "ordinary problems raise no alarm"


def test_hidden_digits_are_found():
    """Only the end counts, and 40 steps push in the same directions: terms of d cancel, though d stays small and all
    conditions are met."""
    _, family = cases(16, 7, scales=(1e3,), regimes=("trained",), costs=("none",))
    hard = cast(family, torch.float32).unroll(40)
    easy = random_problem((64,), 20, 16, 7, dtype=torch.float32)
    limit = dense.WAYS[torch.float32][0][1]
    for problem, expected in ((hard, True), (easy, False)):
        given = dense_cpu.read(problem.as_matrices().given(), problem.batch_shape, problem.horizon)
        lost, unmet = dense_cpu.forward(given, torch.float32, False, False)[2:]
        d = dense_cpu.forward(given, torch.float64, False, False)[2]
        fine = (d < limit) & (unmet < dense.ROUNDINGS * 23**0.5 * 2**-23)
        assert fine.any()
        assert ((lost > limit) & fine).any() == expected


def test_values_are_symmetric_to_the_bit():
    solution, slopes = gradients(random_problem((9,), 6, 5, 3, dtype=torch.float32), gains=True)
    assert torch.equal(solution.P, solution.P.mT)
    solution, slopes = gradients(random_problem((9,), 6, 5, 3, dtype=torch.float32))
    for name in ("Q", "R"):
        assert torch.equal(slopes[name], slopes[name].mT)


@pytest.mark.parametrize("work", [torch.float32, torch.float64])
def test_no_output_is_left_unwritten(work):
    problem = random_problem((21,), 3, 3, 2, affine=True, dtype=torch.float32)
    given = dense_cpu.read(problem.given(), problem.batch_shape, 3)
    empty = np.empty
    with patch.object(np, "empty", lambda shape, dtype=float: np.full(shape, np.nan, dtype)):
        out, kept, *_ = dense_cpu.forward(given, work, True, True)
    assert empty is np.empty
    assert all(x.isfinite().all() for x in (*out.values(), torch.from_numpy(kept[:, :, :, :21])))


def test_where_it_cannot_run(caplog):
    problem = random_problem((), 2, 2, 2)
    big = random_problem((), 1, 65, 1)
    assert "up to 64 states" in dense.obstacle(big)
    assert solve(big).u.isfinite().all()
    with patch.object(dense_cpu, "why_not", lambda: "the package numba is not installed"):
        assert "numba" in dense.obstacle(problem)
        dense.tell.cache_clear()
        caplog.clear()
        with caplog.at_level("WARNING", "ttcnet"):
            truth, again = solve(problem), solve(problem)
        assert torch.equal(truth.u, again.u)
        assert [record.getMessage().count("numba") for record in caplog.records] == [1], "told once"
    torch.testing.assert_close(solve(problem).u, truth.u)
