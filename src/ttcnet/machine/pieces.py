"""Pieces of tensors: the part that a process holds of a tensor that is spread over several, or a part in a file."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Piece(NamedTuple):
    """A part of a tensor: the place where it begins, and its values."""

    start: tuple[int, ...]
    values: Tensor

    @property
    def size(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def overlap(self, start: tuple[int, ...], size: tuple[int, ...]) -> tuple[slice, ...] | None:
        """The overlap with another part, counted from the beginning of the whole tensor; None if there is none."""
        low = [max(pair) for pair in zip(self.start, start, strict=True)]
        high = [min(a + b, c + d) for a, b, c, d in zip(self.start, self.size, start, size, strict=True)]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            return None
        return tuple(slice(a, b) for a, b in zip(low, high, strict=True))


def is_spread(tensor: Tensor) -> bool:
    """Whether several processes hold pieces of it, as under FSDP2 or tensor parallelism."""
    return hasattr(tensor, "full_tensor")


def own_piece(tensor: Any) -> Piece:
    """The part of a tensor that this process holds: all of it, unless it is spread. The values are not a copy: read or
    overwrite them."""
    if not is_spread(tensor):
        return Piece((0,) * tensor.ndim, tensor.detach())
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Piece(tuple(start), tensor.detach().to_local())


def shifted(where: tuple[slice, ...], start: tuple[int, ...]) -> tuple[slice, ...]:
    """The slices `where`, counted from `start`."""
    return tuple(slice(part.start - first, part.stop - first) for part, first in zip(where, start, strict=True))


def sliced(file: Any, name: str, where: tuple[slice, ...]) -> Tensor:
    """A part of a tensor in an open safetensors file; the rest is not read."""
    found: Tensor = file.get_slice(name)[where] if where else file.get_tensor(name)
    return found
