"""Providers: each computes the first actions of (family, horizon), differentiably, and is measured."""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

from ttcnet.lqr import ModulatedLQR, plan, solve
from ttcnet.testing.errors import Provider

from .peers import diffilqrax, mpc_pytorch, pypose


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
    "pypose": pypose,
    "diffilqrax": diffilqrax,
}
OURS = ("plan", "symplectic", "autograd-riccati", "kkt", "reference")
_PACKAGES = {"mpc.pytorch": "mpc", "pypose": "pypose", "diffilqrax": "diffilqrax"}
PEERS = tuple(_PACKAGES)
_INSTALL = {"mpc.pytorch": "pip install --no-deps mpc==0.0.6"}  # it pins an old numpy that it does not need
_CPU_ONLY = ("diffilqrax",)


def why_not(name: str, device: str) -> str | None:
    """Why a provider cannot run here, and what to do, or None if it can."""
    if name not in PROVIDERS:
        return f"provider must be one of {', '.join(PROVIDERS)}; got {name!r}."
    if name in _PACKAGES and find_spec(_PACKAGES[name]) is None:
        return f"provider {name} is not installed here. Install it with: {_INSTALL.get(name, f'pip install {name}')}"
    if name in _CPU_ONLY and device != "cpu":
        return f"provider {name} is measured on the CPU only; got --device {device}. Leave it out, or use --device cpu."
    return None


def installed(device: str = "cpu") -> list[str]:
    """The providers that can run here."""
    return [name for name in PROVIDERS if why_not(name, device) is None]
