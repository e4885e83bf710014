"""Pieces of tensors: what a process holds of one that is spread over several, and what is read out of a file."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor


class Piece(NamedTuple):
    """A part of a tensor: where it begins in it, and what it holds."""

    start: tuple[int, ...]
    values: Tensor

    @property
    def size(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def overlap(self, start: tuple[int, ...], size: tuple[int, ...]) -> tuple[slice, ...] | None:
        """Where another part meets this one, counted from the beginning of the whole tensor; None if they do not."""
        low = [max(pair) for pair in zip(self.start, start, strict=True)]
        high = [min(a + b, c + d) for a, b, c, d in zip(self.start, self.size, start, size, strict=True)]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            return None
        return tuple(slice(a, b) for a, b in zip(low, high, strict=True))


def is_spread(tensor: Tensor) -> bool:
    """Whether processes hold it piece by piece, as under FSDP2 or tensor parallelism."""
    return hasattr(tensor, "full_tensor")


def own_piece(tensor: Any) -> Piece:
    """What this process holds of a tensor: all of it, unless it is spread. The values are those of the tensor, to be
    read or overwritten."""
    if not is_spread(tensor):
        return Piece((0,) * tensor.ndim, tensor.detach())
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Piece(tuple(start), tensor.detach().to_local())


def shifted(where: tuple[slice, ...], start: tuple[int, ...]) -> tuple[slice, ...]:
    """The same part, counted from `start`."""
    return tuple(slice(part.start - first, part.stop - first) for part, first in zip(where, start, strict=True))


def sliced(file: Any, name: str, where: tuple[slice, ...]) -> Tensor:
    """A part of a tensor in an open safetensors file; nothing else of it is read."""
    found: Tensor = file.get_slice(name)[where] if where else file.get_tensor(name)
    return found
