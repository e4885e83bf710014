"""Dense problems: `solve` beside mpc.pytorch, diffilqrax, a textbook Riccati recursion under autograd, OSQP and CasADi.

Every provider solves the same random problems in float32, n = 12, m = 4, T = 50 unless told otherwise, forward alone
and with the gradients of all matrices and h0. OSQP and CasADi have no gradients, compute in float64, and solve up to
1,024 problems, one after another. Errors are those of u and of the gradients against float64, each over the largest
entry. Times are medians; a provider that is not installed is left out, and `status` has the error of one that failed.
`busy` is the machine's load by other programs when the measurement began, per core: above about 0.1, times are
unreliable.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ttcnet.bench.peers import by_diffilqrax
from ttcnet.bench.results import Row, stamp
from ttcnet.lqr import LQR, solve

from .one_by_one import MOST, casadi, one_by_one, osqp

FIELDS = ("A", "B", "Q", "R", "h0")
Provider = Callable[[LQR], Tensor]


def draw(problems: int, n: int, m: int, horizon: int, device: str = "cpu") -> LQR:
    """Dynamics with eigenvalues around 1, costs of order one, the same numbers on every device."""
    torch.manual_seed(0)
    half = torch.randn(problems, horizon, n, n) / n**0.5
    fields = {
        "A": torch.randn(problems, horizon, n, n) / n**0.5,
        "B": torch.randn(problems, horizon, n, m),
        "Q": half @ half.mT + 0.1 * torch.eye(n),
        "R": torch.eye(m).repeat(problems, horizon, 1, 1),
        "h0": torch.randn(problems, n),
    }
    return LQR(**{name: x.to(device) for name, x in fields.items()})


def by_solve(problem: LQR) -> Tensor:
    return solve(problem, check=False).u


def by_autograd(problem: LQR) -> Tensor:
    """The textbook's recursion, in the dtype of the problem."""
    As, Bs, Qs, Rs = (x.unbind(1) for x in (problem.A, problem.B, problem.Q, problem.R))
    P, gains = Qs[-1], []
    for t in reversed(range(problem.horizon)):
        PB = P @ Bs[t]
        K = -torch.linalg.solve(Rs[t] + Bs[t].mT @ PB, PB.mT @ As[t])
        gains.append(K)
        P = As[t].mT @ P @ (As[t] + Bs[t] @ K) + (Qs[t - 1] if t else 0)
    h, actions = problem.h0.unsqueeze(-1), []
    for A, B, K in zip(As, Bs, gains[::-1], strict=True):
        actions.append(K @ h)
        h = A @ h + B @ actions[-1]
    return torch.stack(actions, 1).squeeze(-1)


def by_mpc_pytorch(problem: LQR) -> Tensor:
    """Set up for an unconstrained problem: one iteration, no line search. It has a control after the last state, which
    has a cost here and no effect, and a cost of h_0, which is zero."""
    from mpc import mpc

    count, T, n, m = *problem.A.shape[:2], problem.state_size, problem.action_size
    zero = problem.A.new_zeros
    states = torch.cat([zero(count, 1, n, n), problem.Q], 1)
    actions = torch.cat([problem.R, torch.eye(m).to(problem.R).expand(count, 1, m, m)], 1)
    upper = torch.cat([states, zero(count, T + 1, n, m)], -1)
    C = torch.cat([upper, torch.cat([zero(count, T + 1, m, n), actions], -1)], -2).transpose(0, 1)
    F = torch.cat([problem.A, problem.B], -1).transpose(0, 1)
    solver = mpc.MPC(
        n, m, T + 1, lqr_iter=1, grad_method=mpc.GradMethods.ANALYTIC, verbose=-1, exit_unconverged=False, eps=1e-12,
        detach_unconverged=False, backprop=True, max_linesearch_iter=1, u_init=zero(T + 1, count, m),
    )  # fmt: skip
    return solver(problem.h0, mpc.QuadCost(C, zero(T + 1, count, n + m)), mpc.LinDx(F))[1][:T].transpose(0, 1)


PROVIDERS: dict[str, Provider] = {
    "solve": by_solve,
    "autograd-riccati": by_autograd,
    "mpc.pytorch": by_mpc_pytorch,
    "diffilqrax": by_diffilqrax,
    "osqp": lambda problem: one_by_one(osqp)(doubled(problem))[0],
    "casadi": lambda problem: one_by_one(casadi)(doubled(problem))[0],
}
PACKAGES = {"mpc.pytorch": "mpc", "diffilqrax": "diffilqrax", "osqp": "osqp", "casadi": "casadi"}
ONE_BY_ONE = ("osqp", "casadi")


def available(device: str, problems: int = 1) -> list[str]:
    """The providers that can be measured here."""
    there = [name for name in PROVIDERS if name not in PACKAGES or importlib.util.find_spec(PACKAGES[name])]
    there = [name for name in there if problems <= MOST or name not in ONE_BY_ONE]
    return [name for name in there if device == "cpu" or name not in ONE_BY_ONE]


def both(provider: Provider, problem: LQR) -> tuple[Tensor, ...]:
    """Actions, and the gradients of the sum of their squares."""
    leaves = {name: getattr(problem, name).detach().requires_grad_() for name in FIELDS}
    u = provider(LQR(**leaves))
    grads = dict(zip(leaves, torch.autograd.grad(u.square().sum(), list(leaves.values())), strict=True))
    for name in ("Q", "R"):  # autograd's are not symmetric
        grads[name] = (grads[name] + grads[name].mT) / 2
    return u.detach(), *grads.values()


def doubled(problem: LQR) -> LQR:
    return LQR(*(getattr(problem, name).double() for name in FIELDS))


def error(found: Tensor, right: Tensor) -> float:
    return float((found.double() - right).abs().max() / right.abs().max())


def milliseconds(run: Callable[[], object], budget: float) -> float:
    def timed() -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start

    timed()
    times: list[float] = []
    while not times or (sum(times) < budget and len(times) < 200):
        times.append(timed())
    return 1e3 * statistics.median(times)


def dense_rows(
    sizes: list[int], n: int = 12, m: int = 4, horizon: int = 50, budget: float = 2.0, device: str = "cpu"
) -> Iterator[Row]:
    """A line for every provider and number of problems; each time is measured for `budget` seconds."""
    where = stamp()
    for problems in sizes:
        problem = draw(problems, n, m, horizon, device)
        right = both(by_solve, doubled(problem))
        for name in available(device, problems):
            busy = os.getloadavg()[0] / (os.cpu_count() or 1)
            told = {"provider": name, "device": device, "problems": problems, "n": n, "m": m, "horizon": horizon}
            told |= {"threads": torch.get_num_threads(), "busy": f"{busy:.2f}"}
            try:
                measured = _measured(PROVIDERS[name], problem, right, budget, name not in ONE_BY_ONE) | {"status": "ok"}
            except (RuntimeError, ValueError) as error:  # such as out of memory
                measured = dict.fromkeys(MEASURED, "") | {"status": str(error).partition("\n")[0][:100]}
            yield {key: str(value) for key, value in (told | measured).items()} | where


MEASURED = ("forward_ms", "both_ms", "error_u", "error_gradient")


def _measured(
    provider: Provider, problem: LQR, right: tuple[Tensor, ...], budget: float, differentiable: bool
) -> dict[str, str]:
    def forward() -> Tensor:
        with torch.no_grad():
            return provider(problem)

    if not differentiable:
        values = (f"{milliseconds(forward, budget):.3g}", "", f"{error(forward(), right[0]):.1e}", "")
        return dict(zip(MEASURED, values, strict=True))
    found = both(provider, problem)
    values = (
        f"{milliseconds(forward, budget):.3g}",
        f"{milliseconds(lambda: both(provider, problem), budget):.3g}",
        f"{error(found[0], right[0]):.1e}",
        f"{max(error(x, y) for x, y in zip(found[1:], right[1:], strict=True)):.1e}",
    )
    return dict(zip(MEASURED, values, strict=True))
