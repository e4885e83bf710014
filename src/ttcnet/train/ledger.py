"""What a computation allocates and how long a GPU would take for it, operation by operation. Tensors may be without
values, under FakeTensorMode; then plans are those of the CUDA kernels."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from ttcnet.lqr import imagined

aten, ttcnet = torch.ops.aten, torch.ops.ttcnet
ATTENTION = {  # and its products: two forward, five backward, half of each where tokens see the past alone
    aten._scaled_dot_product_flash_attention_for_cpu.default: (2, 0),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (5, 1),
}
ROWS = {aten.embedding.default, aten.index_select.default, aten.gather.default}  # these read few rows of a tensor
# ns of a problem of n = m = 16, forward and both passes, by horizon: 65,536 problems on an H200, at MEASURED in
# lqr-gpu.csv of the published benchmarks
KERNELS = {8: (6.00, 13.58), 16: (10.31, 21.48), 32: (19.02, 59.01), 64: (36.56, 114.01)}
MEASURED = "609b8136a80a"


class Planned(NamedTuple):
    """A call of a planning kernel."""

    problems: int
    n: int
    m: int
    backward: bool


@dataclass(frozen=True)
class Speed:
    """What a GPU reaches.

    Args:
        products: flop a second of matrix products.
        bytes: moved a second by all other operations.
        host: seconds that the host takes to start an operation.
    """

    products: float
    bytes: float
    host: float


class Ledger(TorchDispatchMode):
    """Inside, operations are counted. Tensors that are `held` are not: they were there before.

    Attributes:
        live, peak: bytes that are allocated now, and at most.
        planned, most_planned: how many of them belong to plans and their gradients.
        without_plans: the peak of the others.
        flop: of matrix products.
        seconds: by `Speed`, of all operations but plans.
        plans: calls of planning kernels.
        operations: how many.
    """

    def __init__(self, held: Iterable[Tensor], speed: Speed) -> None:
        super().__init__()
        self.live = self.peak = self.planned = self.most_planned = self.without_plans = 0
        self.flop, self.seconds, self.operations = 0.0, 0.0, 0
        self.plans: list[Planned] = []
        self.speed, self._planning, self._known = speed, False, set[int]()
        self._held = [tensor.untyped_storage() for tensor in held]
        self._known.update(storage._cdata for storage in self._held)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (ttcnet.plan.default, ttcnet.plan_backward.default):
            self.operations += 1
            if imagined.fits(args) and getattr(args[0], "fake_mode", None) is not None:
                return self._plan(func, args)
        before = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **kwargs)
        self._count(func, args, kwargs, out, before)
        for x in tree_leaves(out):
            if isinstance(x, Tensor):
                self._charge(x)
        return out

    def _plan(self, func: Any, args: Any) -> Any:
        """A plan as the CUDA kernels do it."""
        backward = func is ttcnet.plan_backward.default
        a, r_inv = args[0], args[imagined.R_INV]
        self.plans.append(Planned(a.shape[0] * a.shape[1], a.shape[2], r_inv.shape[2], backward))
        with self, self._counted_as_plans():
            if backward:
                *tensors, points, g, horizon, _ = args
                return imagined.backward(tensors, points, g, horizon)
            *tensors, horizon, keep, _ = args
            return imagined.forward(tensors, horizon, keep)

    @contextmanager
    def _counted_as_plans(self) -> Iterator[None]:
        before, self._planning = self._planning, True
        try:
            yield
        finally:
            self._planning = before

    def _charge(self, x: Tensor) -> None:
        storage = x.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        weakref.finalize(storage, self._free, key, size, self._planning)
        self.live += size
        self.planned += size * self._planning
        self.peak = max(self.peak, self.live)
        self.most_planned = max(self.most_planned, self.planned)
        self.without_plans = max(self.without_plans, self.live - self.planned)

    def _free(self, key: int, size: int, planned: bool) -> None:
        self._known.discard(key)
        self.live -= size
        self.planned -= size * planned

    def _count(self, func: Any, args: Any, kwargs: Any, out: Any, before: set[int]) -> None:
        outs = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        new = [x for x in outs if x.untyped_storage()._cdata not in before]
        if self._planning or not (new or func._schema.is_mutable):  # a view costs nothing
            return
        self.operations += 1
        flop = _flop(func, args, kwargs, out)
        if flop:
            self.flop += flop
            self.seconds += max(flop / self.speed.products, self.speed.host)
            return
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        written = _bytes(outs)
        moved = 2 * written if func in ROWS else written + _bytes(given)
        self.seconds += max(moved / self.speed.bytes, self.speed.host)


def _flop(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    if func in ATTENTION:
        products, first = ATTENTION[func]
        query, key = args[first], args[first + 1]
        causal = args[4 if first == 0 else 7] if len(args) > (4 if first == 0 else 7) else kwargs.get("is_causal")
        batch, heads, length, size = query.shape
        return products * 2 * batch * heads * length * key.shape[2] * size * (0.5 if causal else 1.0)
    count = flop_registry.get(func.overloadpacket)
    return float(count(*args, **kwargs, out_val=out)) if count else 0.0


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def plan_seconds(call: Planned, horizon: int) -> float:
    """Of a call of a kernel. Between the horizons that were measured time is linear, and beyond; with the sizes it
    grows as the arithmetic does."""
    known = sorted(KERNELS)
    low = max([each for each in known[:-1] if each <= horizon], default=known[0])
    high = known[known.index(low) + 1]
    one, two = (KERNELS[each][1] - KERNELS[each][0] if call.backward else KERNELS[each][0] for each in (low, high))
    nanoseconds = max(one + (two - one) * (horizon - low) / (high - low), 0.5 * one * horizon / low)
    return 1e-9 * call.problems * nanoseconds * (call.n * call.n * call.m) / 16**3


def emptied(module: nn.Module, mode: FakeTensorMode) -> None:
    """Take the values of a module's parameters and buffers away, and leave their shapes."""
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            held: dict[str, Any] = tensors
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = mode.from_tensor(tensor)
