"""Bad input is answered with field, rule, value and remedy."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from tests.raising import raises
from ttcnet.lqr import LQR, ModulatedLQR, checks, plan, solve
from ttcnet.lqr import solution as of_solution
from ttcnet.testing.problems import random_problem
from ttcnet.testing.regimes import draw

GOOD = random_problem((2,), 4, 3, 2, affine=True).given()
FAMILY = draw("trained", tokens=2, heads=2, n=3, m=2)


def spoil(x, index, value):
    x = x.clone()
    x[index] = value
    return x


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (dict(A=GOOD["A"].numpy()), ("type", "A", "ndarray")),
        (dict(A=GOOD["A"].int()), ("dtype", "A", "torch.int32")),
        (dict(B=GOOD["B"].float()), ("dtype", "B", "torch.float32")),
        (dict(B=GOOD["B"].to("meta")), ("device", "B", "meta")),
        (dict(h0=GOOD["h0"][0, 0]), ("shape", "h0", r"\(\)")),
        (
            dict(h0=GOOD["h0"][0]),
            ("shape", "B", r"\(2, 4, 3, 2\)"),
        ),
        (dict(h0=GOOD["h0"][:, :2]), ("shape", "h0", r"\(2, 2\)")),
        (
            dict(A=GOOD["A"][:, :3]),
            ("shape", "A", r"\(2, 3, 3, 3\)"),
        ),
        (dict(Q=GOOD["Q"][..., :2]), ("shape", "Q", r"\(2, 4, 3, 2\)")),
        (dict(R=GOOD["R"][..., :1]), ("shape", "R", r"\(2, 4, 2, 1\)")),
        (dict(r=GOOD["r"][..., :1]), ("shape", "r", r"\(2, 4, 1\)")),
        (
            dict(h0=GOOD["h0"].repeat(2, 1)[:3]),
            ("shape", "leading dimensions", r"A \(2,\),"),
        ),
    ],
)
def test_structure_of_a_problem(change, error):
    with raises(*error):
        LQR(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (
            dict(A=spoil(GOOD["A"], (1, 2, 0, 0), float("nan"))),
            ("not-finite", "A", r"nan at index \(1, 2, 0, 0\)"),
        ),
        (
            dict(h0=spoil(GOOD["h0"], (0, 1), float("inf"))),
            ("not-finite", "h0", r"inf at index \(0, 1\) \(1 of 6"),
        ),
        (
            dict(Q=spoil(GOOD["Q"], (1, 2, 0, 1), 9.0)),
            ("not-symmetric", "Q", r"at index \(1, 2\)"),
        ),
        (dict(R=spoil(GOOD["R"], (1, 3, 0, 1), 9.0)), ("not-symmetric", "R", r"at index \(1, 3\)")),
        (
            dict(R=GOOD["R"] - 10 * torch.eye(2)),
            ("not-positive", "R", "smallest eigenvalue -"),
        ),
        (
            dict(R=spoil(torch.ones(2, 4, 2).double(), (1, 3, 1), 0.0)),
            ("not-positive", "R"),
        ),
    ],
)
def test_values_of_a_problem(change, error):
    problem = LQR(**{**GOOD, **change})
    with raises(*error):
        solve(problem)
    solve(problem, check=False)  # switched off: no check, no crash


def test_a_problem_without_a_minimum():
    problem = LQR(**{**GOOD, "Q": GOOD["Q"] - 50 * torch.eye(3)})
    with raises("not-positive", "solution", r"NaN .* in problem \(0,\)"):
        solve(problem)


def test_a_problem_that_overflows():
    problem = LQR(**{name: x.float() for name, x in GOOD.items()})
    problem = replace(problem, A=problem.A * 1e15)
    with raises("overflow", "solution"):
        solve(problem)


def test_arguments_of_solve():
    with raises("unknown-name", "method", "'ricatti'"):
        solve(LQR(**GOOD), method="ricatti")
    with raises("type", "problem", "ModulatedLQR"):
        solve(FAMILY)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (dict(a=FAMILY.a[0]), ("shape", "a", r"\(2, 3\)")),
        (dict(r_inv=FAMILY.r_inv[0]), ("shape", "r_inv", r"\(2, 2\)")),
        (
            dict(B=FAMILY.B.mT),
            ("shape", "B", r"\(2, 2, 3\)"),
        ),
        (dict(Q=FAMILY.Q[:, :2]), ("shape", "Q", r"\(2, 2, 3\)")),
        (dict(Qf=FAMILY.Q), ("shape", "Qf", r"\(2, 3, 3\)")),
        (
            dict(decay_A=FAMILY.decay_A[..., 0]),
            ("shape", "decay_A", r"\(2, 2\)"),
        ),
        (dict(decay_B=FAMILY.decay_Q), ("shape", "decay_B", r"\(2, 2, 3\)")),
        (dict(decay_Q=FAMILY.decay_B), ("shape", "decay_Q", r"\(2, 2, 2\)")),
        (dict(h0=FAMILY.h0[:1]), ("shape", "h0", r"\(1, 2, 3\)")),
    ],
)
def test_structure_of_a_family(change, error):
    with raises(*error):
        replace(FAMILY, **change)


def test_kind_of_a_family():
    with raises("dtype", "Q", "torch.float32"):
        replace(FAMILY, Q=FAMILY.Q.float())
    with raises("device", "h0", "meta"):
        replace(FAMILY, h0=FAMILY.h0.to("meta"))


@pytest.mark.parametrize("name", ["r_inv", "decay_A", "decay_B", "decay_Q"])
def test_signs_in_a_family(name):
    family = replace(FAMILY, **{name: -getattr(FAMILY, name)})
    with raises("negative", name, "-.* at index"):
        plan(family, 4)
    plan(family, 4, check=False)


@pytest.mark.parametrize("name", ["Q", "Qf"])
def test_symmetry_in_a_family(name):
    matrix = getattr(FAMILY, name)
    with raises("not-symmetric", name):
        plan(replace(FAMILY, **{name: matrix + torch.triu(torch.ones(3, 3), 1)}), 4)


def test_infinities_in_a_family():
    with raises("not-finite", "h0", r"inf at index \(0, 0, 0\)"):
        plan(replace(FAMILY, h0=spoil(FAMILY.h0, (0, 0, 0), float("inf"))), 4)


@pytest.mark.parametrize(
    ("horizon", "error"),
    [
        (-1, ("too-small", "horizon", "-1")),
        (2.0, ("type", "horizon", "2.0")),
        ("8", ("type", "horizon", "'8'")),
        (True, ("type", "horizon", "True")),
        (None, ("type", "horizon", "None")),
        (torch.tensor(4), ("type", "horizon", r"tensor\(4\)")),
    ],
)
def test_horizons(horizon, error):
    with raises(*error):
        plan(FAMILY, horizon)
    with raises(*error):
        FAMILY.unroll(horizon)


def test_arguments_of_plan():
    with raises("unknown-name", "backend", "'cuda'"):
        plan(FAMILY, 4, backend="cuda")
    with raises("type", "family", "LQR"):
        plan(FAMILY.unroll(4), 4)


def test_a_backend_that_cannot_run_says_why():
    with (
        patch("ttcnet.lqr.kernels.fused_cpu.why_not", lambda: "the package numba is not installed"),
        raises("backend", "backend"),
    ):
        plan(FAMILY, 4, backend="fused")


def test_sizes_of_nothing():
    with raises("shape", "B", r"\(2, 4, 3, 0\)"):
        LQR(**{**GOOD, "B": GOOD["B"][..., :0], "R": GOOD["R"][..., :0, :0], "r": None, "N": None})
    with raises("shape", "a and r_inv", "n = 3, m = 0"):
        replace(FAMILY, r_inv=FAMILY.r_inv[..., :0], B=FAMILY.B[..., :0], decay_B=FAMILY.decay_B[..., :0])


def test_actions_of_another_shape():
    with raises("shape", "u", r"\(2, 3, 2\)"):
        LQR(**GOOD).objective(torch.zeros(2, 3, 2))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 600.0), (torch.float32, 1e20)])
def test_a_cost_that_outgrows_its_dtype(dtype, size):
    one = torch.ones(3, 1, 1, dtype=dtype)
    with raises("overflow", "solution"):
        solve(LQR(A=one, B=one, Q=one, R=one, h0=torch.full((1,), size, dtype=dtype)))


def test_good_matrices_are_not_blamed_for_an_overflow():
    family = draw("constant", n=5, m=1)
    family = ModulatedLQR(**{name: x.float() for name, x in vars(family).items()})
    with raises("overflow", "plan", "NaN or infinity in problem"):
        plan(replace(family, a=10 * family.a.abs() + 10), 64)


def test_problems_are_frozen():
    with pytest.raises(AttributeError):
        FAMILY.a = None
    assert isinstance(FAMILY, ModulatedLQR)


def test_large_batches_are_checked_in_pieces(monkeypatch):
    problem = draw_lqr(batch=(7, 3), horizon=5)
    solution = solve(problem)
    whole = solution.residual(problem)
    monkeypatch.setattr(checks, "PIECE", 40)
    monkeypatch.setattr(of_solution, "PIECE", 100)
    problem.check()
    assert torch.equal(solution.residual(problem), whole)
    parts = list(checks.pieces(problem.Q))
    assert len(parts) > 10
    assert sum(part.numel() for part in parts) == problem.Q.numel()
    assert [part.shape for part in checks.pieces(torch.eye(3).expand(9, 8, 3, 3))] == [(1, 1, 3, 3)]
    for name, code, change in (("Q", "not-symmetric", (0, 1, 5.0)), ("R", "not-positive", (0, 0, -9.0))):
        bad = getattr(problem, name).clone()
        row, column, value = change
        bad[6, 2, 3, row, column] = value
        with raises(code, name, r"\(6, 2, 3\)"):
            replace(problem, **{name: bad}).check()


def draw_lqr(batch, horizon):
    random = torch.Generator().manual_seed(0)
    A, B = (torch.randn(*batch, horizon, 2, 2, generator=random, dtype=torch.float64) for _ in range(2))
    Q = R = torch.eye(2, dtype=torch.float64).expand(*batch, horizon, 2, 2).clone()
    return LQR(A, B, Q, R, torch.ones(*batch, 2, dtype=torch.float64))
