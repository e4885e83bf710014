"""solve() of dense problems on a CUDA device. kernels/test_dense_cuda.py has the kernels on the emulator."""

from dataclasses import replace

import pytest
import torch

from tests.lqr.test_dense import GAINS, PARTS, gradients
from ttcnet.lqr import LQR, dense, solve, solve_constrained
from ttcnet.testing.problems import random_problem
from ttcnet.testing.tolerance import HORIZONS, SHAPES, beyond, by, cases

pytestmark = pytest.mark.gpu


def on(device, problem):
    return LQR(**{name: x.detach().to(device) for name, x in problem.given().items()}, horizon=problem.horizon)


def agree(problem, rtol, gains=False):
    """Kernels agree with autograd through the recursion in float64 on the CPU."""
    there = on("cuda", problem)
    assert dense.obstacle(there) is None
    found, slopes = gradients(there, gains)
    truth, wanted = gradients(on("cpu", problem), gains, implicit=False)
    for name in PARTS + (GAINS if gains else ()):
        a, b = getattr(found, name).cpu(), getattr(truth, name)
        assert (a - b).norm() <= rtol * b.norm(), name
    for name, b in wanted.items():
        if b is not None:
            assert (slopes[name].cpu() - b).norm() <= 10 * rtol * b.norm().clamp_min(1e-3), name


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (5, 3), (3, 5), (12, 4), (16, 16), (33, 20)])
@pytest.mark.parametrize("gains", [False, True])
def test_against_autograd(affine, n, m, gains):
    agree(random_problem((67,), 7, n, m, affine=affine), 1e-8, gains)


@pytest.mark.parametrize(("n", "m"), [(64, 3), (20, 64), (64, 64)])
def test_the_largest(n, m):
    problem = random_problem((3,), 2, n, m, affine=True)
    agree(replace(problem, A=0.3 * problem.A, B=0.1 * problem.B), 1e-8)


@pytest.mark.parametrize("problems", [1, 1000, 20000])
def test_float32_and_any_number_of_problems(problems):
    agree(random_problem((problems,), 9, 6, 2, affine=True, dtype=torch.float32), 2e-5)


@pytest.mark.parametrize("horizon", HORIZONS)
@pytest.mark.parametrize(("n", "m"), SHAPES)
def test_float32_is_as_good_as_its_inputs(n, m, horizon):
    def first(family, horizon):
        moved = {name: getattr(family, name).cuda() for name in family.__dataclass_fields__}
        return solve(type(family)(**moved).unroll(horizon), check=False).u[..., 0, :].cpu()

    what, family = cases(n, m, regimes=("trained", "slow"))
    assert not beyond(what, family, horizon, by(first), device="cuda", unrolled=True)


def test_one_system_for_all():
    fields = random_problem((700,), 1, 12, 4, affine=True).given()
    one = {name: x if name == "h0" else x[:1].clone() for name, x in fields.items()}
    agree(LQR(**one, horizon=30), 1e-8)


def test_constraints_on_a_gpu():
    problem = random_problem((50,), 12, 5, 3)
    here, there = (solve_constrained(on(device, problem), u_min=-0.4, u_max=0.5) for device in ("cpu", "cuda"))
    assert there.u.is_cuda
    torch.testing.assert_close(there.u.cpu(), here.u, rtol=0, atol=1e-6)
    assert torch.equal(there.status.cpu(), here.status)
