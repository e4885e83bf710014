"""Bad input is answered with field, rule, value and remedy."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from benchmarks.regimes import draw
from tests.lqr.problems import random_problem
from ttcnet.lqr import LQR, ModulatedLQR, plan, solve

GOOD = random_problem((2,), 4, 3, 2, affine=True).given()
FAMILY = draw("trained", tokens=2, heads=2, n=3, m=2)


def spoil(x, index, value):
    x = x.clone()
    x[index] = value
    return x


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (dict(A=GOOD["A"].numpy()), TypeError, r"A must be a torch.Tensor; got ndarray. Wrap it with torch.as_tensor"),
        (dict(A=GOOD["A"].int()), TypeError, r"A must be float32, .*; got torch.int32. Convert it with A.float\(\)"),
        (dict(B=GOOD["B"].float()), TypeError, r"B must have the dtype of A, torch.float64; got torch.float32"),
        (dict(B=GOOD["B"].to("meta")), ValueError, r"B must be on the device of A, cpu; got meta. Move all"),
        (dict(h0=GOOD["h0"][0, 0]), ValueError, r"h0 must have shape \(..., n\); got \(\)"),
        (
            dict(h0=GOOD["h0"][0]),
            ValueError,
            r"B must have shape \(..., T, n, m\) with the 0 leading .*; got \(2, 4, 3, 2\)",
        ),
        (dict(h0=GOOD["h0"][:, :2]), ValueError, r"h0 must have shape \(..., n\) = \(..., 3\) .*; got \(2, 2\)"),
        (
            dict(A=GOOD["A"][:, :3]),
            ValueError,
            r"A must have shape .*\(..., 4, 3, 3\) or .*\(..., 4, 3\).*; got \(2, 3, 3, 3\)",
        ),
        (dict(Q=GOOD["Q"][..., :2]), ValueError, r"Q must have shape \(..., T, n, n\).*; got \(2, 4, 3, 2\)"),
        (dict(R=GOOD["R"][..., :1]), ValueError, r"R must have shape .*\(..., 4, 2, 2\) or .*; got \(2, 4, 2, 1\)"),
        (dict(r=GOOD["r"][..., :1]), ValueError, r"r must have shape .*\(..., 4, 2\).*; got \(2, 4, 1\)"),
        (
            dict(h0=GOOD["h0"].repeat(2, 1)[:3]),
            ValueError,
            r"leading dimensions must broadcast; got A \(2,\), .*h0 \(3,\)",
        ),
    ],
)
def test_structure_of_a_problem(change, error, message):
    with pytest.raises(error, match=message):
        LQR(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(A=spoil(GOOD["A"], (1, 2, 0, 0), float("nan"))),
            r"A must be finite everywhere; got nan at index \(1, 2, 0, 0\)",
        ),
        (
            dict(h0=spoil(GOOD["h0"], (0, 1), float("inf"))),
            r"h0 must be finite everywhere; got inf at index \(0, 1\) \(1 of 6",
        ),
        (
            dict(Q=spoil(GOOD["Q"], (1, 2, 0, 1), 9.0)),
            r"Q must be symmetric; got .* at index \(1, 2\). Pass \(Q \+ Q.mT\) / 2",
        ),
        (dict(R=spoil(GOOD["R"], (1, 3, 0, 1), 9.0)), r"R must be symmetric; got .* at index \(1, 3\)"),
        (
            dict(R=GOOD["R"] - 10 * torch.eye(2)),
            r"R must be positive definite .*; got smallest eigenvalue -.*add a multiple",
        ),
        (
            dict(R=spoil(torch.ones(2, 4, 2).double(), (1, 3, 1), 0.0)),
            r"R must be positive definite .*entry 0 at index \(1, 3, 1\)",
        ),
    ],
)
def test_values_of_a_problem(change, message):
    problem = LQR(**{**GOOD, **change})
    with pytest.raises(ValueError, match=message):
        solve(problem)
    solve(problem, check=False)  # switched off: no check, no crash


def test_a_problem_without_a_minimum():
    problem = LQR(**{**GOOD, "Q": GOOD["Q"] - 50 * torch.eye(3)})
    with pytest.raises(
        ValueError, match=r"solution must be finite; got NaN .* in problem \(0,\).*Q has a negative eigenvalue"
    ):
        solve(problem)


def test_a_problem_that_overflows():
    problem = LQR(**{name: x.float() for name, x in GOOD.items()})
    problem = replace(problem, A=problem.A * 1e15)
    with pytest.raises(ValueError, match=r"solution must be finite; got .*use a wider one, a shorter horizon"):
        solve(problem)


def test_arguments_of_solve():
    with pytest.raises(ValueError, match=r"method must be one of riccati, symplectic, kkt; got 'ricatti'"):
        solve(LQR(**GOOD), method="ricatti")
    with pytest.raises(TypeError, match=r"problem must be an LQR; got ModulatedLQR. .*family.unroll"):
        solve(FAMILY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(a=FAMILY.a[0]), r"a must have shape \(tokens, heads, n\); got \(2, 3\). Flatten"),
        (dict(r_inv=FAMILY.r_inv[0]), r"r_inv must have shape \(tokens, heads, m\); got \(2, 2\)"),
        (
            dict(B=FAMILY.B.mT),
            r"B must have shape \(N, n, m\) = \(2, 3, 2\) or \(N, H, n, m\) = \(2, 2, 3, 2\); got \(2, 2, 3\)",
        ),
        (dict(Q=FAMILY.Q[:, :2]), r"Q must have shape \(N, n, n\) = \(2, 3, 3\) or .*; got \(2, 2, 3\)"),
        (dict(Qf=FAMILY.Q), r"Qf must have shape \(N, H, n, n\) = \(2, 2, 3, 3\); got \(2, 3, 3\)"),
        (
            dict(decay_A=FAMILY.decay_A[..., 0]),
            r"decay_A must have shape \(N, H, n\) .* or \(N, H, 1\) .*; got \(2, 2\)",
        ),
        (dict(decay_B=FAMILY.decay_Q), r"decay_B must have shape \(N, H, m\) = \(2, 2, 2\); got \(2, 2, 3\)"),
        (dict(decay_Q=FAMILY.decay_B), r"decay_Q must have shape \(N, H, n\) = \(2, 2, 3\); got \(2, 2, 2\)"),
        (dict(h0=FAMILY.h0[:1]), r"h0 must have shape \(N, H, n\) = \(2, 2, 3\); got \(1, 2, 3\)"),
    ],
)
def test_structure_of_a_family(change, message):
    with pytest.raises(ValueError, match=message):
        replace(FAMILY, **change)


def test_kind_of_a_family():
    with pytest.raises(TypeError, match=r"Q must have the dtype of a, torch.float64; got torch.float32"):
        replace(FAMILY, Q=FAMILY.Q.float())
    with pytest.raises(ValueError, match=r"h0 must be on the device of a, cpu; got meta"):
        replace(FAMILY, h0=FAMILY.h0.to("meta"))


@pytest.mark.parametrize("name", ["r_inv", "decay_A", "decay_B", "decay_Q"])
def test_signs_in_a_family(name):
    family = replace(FAMILY, **{name: -getattr(FAMILY, name)})
    with pytest.raises(ValueError, match=rf"{name} must be 0 or more everywhere; got -.* at index .*softplus"):
        plan(family, 4)
    plan(family, 4, check=False)


@pytest.mark.parametrize("name", ["Q", "Qf"])
def test_symmetry_in_a_family(name):
    matrix = getattr(FAMILY, name)
    with pytest.raises(ValueError, match=rf"{name} must be symmetric; got"):
        plan(replace(FAMILY, **{name: matrix + torch.triu(torch.ones(3, 3), 1)}), 4)


def test_infinities_in_a_family():
    with pytest.raises(ValueError, match=r"h0 must be finite everywhere; got inf at index \(0, 0, 0\)"):
        plan(replace(FAMILY, h0=spoil(FAMILY.h0, (0, 0, 0), float("inf"))), 4)


@pytest.mark.parametrize(
    ("horizon", "error", "message"),
    [
        (-1, ValueError, r"horizon must be 0 or more; got -1. Pass the number of steps to plan"),
        (2.0, TypeError, r"horizon must be an integer; got 2.0"),
        ("8", TypeError, r"horizon must be an integer; got '8'"),
        (True, TypeError, r"horizon must be an integer; got True"),
        (None, TypeError, r"horizon must be an integer; got None"),
        (torch.tensor(4), TypeError, r"horizon must be an integer; got tensor\(4\)"),
    ],
)
def test_horizons(horizon, error, message):
    with pytest.raises(error, match=message):
        plan(FAMILY, horizon)
    with pytest.raises(error, match=message):
        FAMILY.unroll(horizon)


def test_arguments_of_plan():
    with pytest.raises(ValueError, match=r"backend must be one of auto, reference, .*; got 'cuda'"):
        plan(FAMILY, 4, backend="cuda")
    with pytest.raises(TypeError, match=r"family must be a ModulatedLQR; got LQR. .*solve\(\)"):
        plan(FAMILY.unroll(4), 4)


def test_a_backend_that_cannot_run_says_why():
    with (
        patch("ttcnet.lqr.kernels.cpu.why_not", lambda: "the package numba is not installed"),
        pytest.raises(RuntimeError, match=r'backend="fused" cannot run here: the package numba .* Use backend="auto"'),
    ):
        plan(FAMILY, 4, backend="fused")


def test_sizes_of_nothing():
    with pytest.raises(ValueError, match=r"B must have a state and an action; got \(2, 4, 3, 0\). Use n >= 1"):
        LQR(**{**GOOD, "B": GOOD["B"][..., :0], "R": GOOD["R"][..., :0, :0], "r": None, "N": None})
    with pytest.raises(ValueError, match=r"a and r_inv must have a state and an action; got n = 3, m = 0"):
        replace(FAMILY, r_inv=FAMILY.r_inv[..., :0], B=FAMILY.B[..., :0], decay_B=FAMILY.decay_B[..., :0])


def test_actions_of_another_shape():
    with pytest.raises(ValueError, match=r"u must have shape \(..., T, m\) = \(..., 4, 2\); got \(2, 3, 2\)"):
        LQR(**GOOD).objective(torch.zeros(2, 3, 2))


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 600.0), (torch.float32, 1e20)])
def test_a_cost_that_outgrows_its_dtype(dtype, size):
    one = torch.ones(3, 1, 1, dtype=dtype)
    with pytest.raises(ValueError, match=r"solution must be finite.*The numbers outgrew the dtype"):
        solve(LQR(A=one, B=one, Q=one, R=one, h0=torch.full((1,), size, dtype=dtype)))


def test_good_matrices_are_not_blamed_for_an_overflow():
    family = draw("constant", n=5, m=1)
    family = ModulatedLQR(**{name: x.float() for name, x in vars(family).items()})
    with pytest.raises(ValueError, match=r"plan must be finite; got NaN or infinity in problem .*use float64"):
        plan(replace(family, a=10 * family.a.abs() + 10), 64)


def test_problems_are_frozen():
    with pytest.raises(AttributeError):
        FAMILY.a = None
    assert isinstance(FAMILY, ModulatedLQR)
