"""Checks of problems: shapes, dtypes, devices and values.

Each message names the field, states the rule, shows the offending value and gives a remedy.
Checks of structure (types, shapes, dtypes, devices) read metadata only and always run. Checks of
values read the data, which costs a host synchronisation on a GPU, so callers can switch them off.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ..bounds import check_horizon
from ..errors import fail as fail

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
PIECE = 2**22  # numbers that are checked at once on a CPU
INTEGERS = (int, torch.SymInt)  # torch.compile and export pass a symbol instead


def one_kind(fields: Mapping[str, Tensor | None], anchor: str) -> None:
    """All fields are floating-point tensors with the dtype and the device of the field named `anchor`."""
    for name, value in fields.items():
        if not isinstance(value, Tensor):
            fail(name, "must be a torch.Tensor", type(value).__name__, "Wrap it with torch.as_tensor.", "type")
        if value.dtype not in FLOATS:
            remedy = f"Convert it with {name}.float()."
            fail(name, "must be float32, float64, float16 or bfloat16", value.dtype, remedy, "dtype")
    reference = fields[anchor]
    assert isinstance(reference, Tensor)
    for name, value in fields.items():
        assert isinstance(value, Tensor)
        if value.dtype != reference.dtype:
            rule, remedy = f"must have the dtype of {anchor}, {reference.dtype}", "Convert all fields to one dtype."
            fail(name, rule, value.dtype, remedy, "dtype")
        if value.device != reference.device:
            rule, remedy = f"must be on the device of {anchor}, {reference.device}", "Move all fields to one device."
            fail(name, rule, value.device, remedy, "device")


def shape(name: str, value: Tensor, *allowed: tuple[str, tuple[int, ...]]) -> None:
    """Fail unless `value` has one of the allowed shapes. Each has its symbols, as in ("(N, H, n)", (4, 2, 3))."""
    if tuple(value.shape) not in [sizes for _, sizes in allowed]:
        rule = "must have shape " + " or ".join(f"{symbols} = {sizes}" for symbols, sizes in allowed)
        fail(name, rule, tuple(value.shape), "Reshape or expand it.", "shape")


def horizon(value: object) -> int:
    """The horizon as a Python integer, 0 or more, and within bounds."""
    remedy = "Pass the number of steps to plan, such as horizon=8."
    if isinstance(value, (bool, Tensor)):  # no union: torch 2.8 cannot trace one
        fail("horizon", "must be an integer", repr(value), remedy, "type")
    try:
        steps: int = value if isinstance(value, INTEGERS) else operator.index(value)  # type: ignore[arg-type,assignment]
    except TypeError:
        fail("horizon", "must be an integer", repr(value), remedy, "type")
    if steps < 0:
        fail("horizon", "must be 0 or more", steps, remedy, "too-small")
    check_horizon("horizon", steps)
    return steps


def not_traced() -> None:
    """Fail under torch.jit.trace, which would record neither the horizon nor the kernels."""
    if torch._C._get_tracing_state() is not None:
        rule, value = (
            "cannot be recorded by torch.jit.trace",
            "a trace: it would fix the horizon and leave the kernels out",
        )
        remedy = "Use torch.compile, torch.export.export, or torch.onnx.export(..., dynamo=True)."
        fail("plan", rule, value, remedy, "not-traceable")


def first(bad: Tensor) -> str:
    """The index of the first True in `bad`, for an error message."""
    return str(tuple(bad.nonzero()[0].tolist())) if bad.ndim else "()"


def has_negative_eigenvalue(matrix: Tensor) -> bool:
    """Whether any symmetric matrix of the batch has a negative eigenvalue that rounding does not explain."""
    values = torch.linalg.eigvalsh(matrix.double())
    return bool((values[..., 0] < -1e-6 * values.abs().amax(-1)).any())


def finite(name: str, value: Tensor) -> None:
    if value.sum().isfinite():  # one pass; single values are checked only if the sum is not finite
        return
    bad = ~value.isfinite()
    if bad.any():
        found = f"{value[bad][0].item()} at index {first(bad)} ({int(bad.sum())} of {bad.numel()} entries)"
        remedy = "Look for a division by zero or an overflow in the code that computed it."
        fail(name, "must be finite everywhere", found, remedy, "not-finite")


def non_negative(name: str, value: Tensor, remedy: str) -> None:
    bad = value < 0
    if bad.any():
        rule = "must be 0 or more everywhere"
        fail(name, rule, f"{value[bad][0].item():.6g} at index {first(bad)}", remedy, "negative")


def symmetric(name: str, value: Tensor) -> None:
    """Fail unless matrices are symmetric up to rounding: asymmetry below sqrt(eps) of the largest entry of each."""
    if not any(bool(_gap(part)[1].any()) for part in pieces(value)):
        return
    gap, bad = _gap(value)
    worst = f"|M - M^T| up to {gap[bad][0].item():.3g} at index {first(bad)}"
    remedy = f"If you mean its symmetric part, pass ({name} + {name}.mT) / 2."
    fail(name, "must be symmetric", worst, remedy, "not-symmetric")


def _gap(value: Tensor) -> tuple[Tensor, Tensor]:
    """The largest difference of each matrix from its transpose, and whether that is more than rounding."""
    if torch.equal(value, value.mT):
        nothing = value.new_zeros(())
        return nothing, nothing.bool()
    gap = (value - value.mT).abs().amax((-2, -1))
    scale = value.abs().amax((-2, -1))
    return gap, gap > torch.finfo(value.dtype).eps ** 0.5 * scale


def positive_definite(name: str, value: Tensor, diagonal: bool) -> None:
    if diagonal:
        smallest, what = value, "diagonal entry"
    elif not any(bool(torch.linalg.cholesky_ex(part.double())[1].any()) for part in pieces(value)):
        return
    else:
        smallest, what = torch.linalg.eigvalsh(value.double())[..., 0], "smallest eigenvalue"
    bad = smallest <= 0
    if bad.any():
        worst = f"{smallest[bad][0].item():.6g}"
        remedy = (
            "Every action needs a positive cost: add a multiple of the identity, or build it as C @ C.mT + eps * I."
        )
        rule = "must be positive definite at every step"
        fail(name, rule, f"{what} {worst} at index {first(bad)}", remedy, "not-positive")


def pieces(value: Tensor) -> Iterator[Tensor]:
    """The matrices of a batch as views of a bounded size on a CPU, so that Ctrl-C is answered between them. What an
    expanded tensor repeats comes once."""
    value = value[tuple(slice(0, 1) if not stride else slice(None) for stride in value.stride()[:-2])]
    if value.device.type != "cpu" or value.numel() <= PIECE:
        yield value
        return
    for dim, size in enumerate(value.shape[:-2]):
        if size > 1:
            for part in value.split(max(1, PIECE * size // value.numel()), dim):
                yield from pieces(part)
            return
    yield value
