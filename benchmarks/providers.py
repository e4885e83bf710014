"""Who is measured: every provider maps (family, horizon) to the first actions, differentiably."""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

from ttcnet.lqr import ModulatedLQR, plan, solve

from .errors import Provider
from .peers import mpc_pytorch


def _by_plan(family: ModulatedLQR, horizon: int) -> Tensor:
    return plan(family, horizon, check=False)


def _by_reference(family: ModulatedLQR, horizon: int) -> Tensor:
    return plan(family, horizon, backend="reference", check=False)


def _by_riccati(family: ModulatedLQR, horizon: int) -> Tensor:
    return solve(family.unroll(horizon), "riccati", check=False).u[..., 0, :]


def _by_kkt(family: ModulatedLQR, horizon: int) -> Tensor:
    return solve(family.unroll(horizon), "kkt", check=False).u[..., 0, :]


def _by_symplectic(family: ModulatedLQR, horizon: int) -> Tensor:
    return plan(family, horizon, backend="symplectic", check=False)


PROVIDERS: dict[str, Provider] = {
    "plan": _by_plan,
    "reference": _by_reference,
    "autograd-riccati": _by_riccati,
    "kkt": _by_kkt,
    "symplectic": _by_symplectic,
    "mpc.pytorch": mpc_pytorch,
}
_NEEDS = {"mpc.pytorch": "mpc"}


def installed() -> list[str]:
    """The providers that can run here."""
    return [name for name in PROVIDERS if name not in _NEEDS or find_spec(_NEEDS[name]) is not None]
