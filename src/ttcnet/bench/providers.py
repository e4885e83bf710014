"""Providers: each computes the first actions of (family, horizon), differentiably, and is measured."""

from __future__ import annotations

from importlib.util import find_spec

from torch import Tensor

from ttcnet.errors import fail
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


def check_provider(name: str, device: str) -> None:
    """Fail if a provider cannot run here."""
    if name not in PROVIDERS:
        fail("provider", f"must be one of {', '.join(PROVIDERS)}", repr(name), "Use one of those.", "unknown-name")
    if not _is_installed(name):
        remedy = f"Install it with: {_INSTALL.get(name, f'pip install {name}')}"
        fail("provider", "must be installed here", name, remedy, "package")
    if name in _CPU_ONLY and device != "cpu":
        remedy = "Leave it out, or pass --device cpu."
        fail("provider", "must be one that is measured on such a device", f"{name} on {device}", remedy, "device")


def installed(device: str = "cpu") -> list[str]:
    """The providers that can run here."""
    return [name for name in PROVIDERS if _is_installed(name) and (device == "cpu" or name not in _CPU_ONLY)]


def _is_installed(name: str) -> bool:
    return name not in _PACKAGES or find_spec(_PACKAGES[name]) is not None
