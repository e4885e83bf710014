"""New boards out of old ones: the symmetries of Sudoku, and cells of the solution revealed.

Relabelling the digits, permuting the rows within a band, the bands, the columns within a stack, the stacks, and
transposing turn a puzzle with one solution into another: 9! relabellings times 2 * 6^8 rearrangements.

All of this works on whole batches, one draw for every board. `augment` takes numpy arrays with a numpy generator, or
torch tensors with a torch generator on the same device; with tensors nothing waits for the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from ttcnet.errors import fail

if TYPE_CHECKING:
    import torch


class _Numpy:
    """The functions of numpy that `augment` needs."""

    def __init__(self, puzzles: NDArray[Any], generator: np.random.Generator) -> None:
        if not isinstance(generator, np.random.Generator):
            remedy = "Pass numpy.random.default_rng(seed)."
            fail("generator", "must be a numpy generator for numpy arrays", type(generator).__name__, remedy, "type")
        self.boards, self.generator = len(puzzles), generator

    def uniform(self, *shape: int) -> Any:
        return self.generator.random((self.boards, *shape))

    def range(self, size: int) -> Any:
        return np.arange(size)

    def take(self, values: Any, index: Any) -> Any:
        return np.take_along_axis(values, index.astype(np.int64), 1)

    def like(self, values: Any, other: Any) -> Any:
        return values.astype(other.dtype)

    def labels(self, order: Any) -> Any:
        return np.pad(order + 1, ((0, 0), (1, 0)))


class _Torch:
    """The functions of torch that `augment` and `reveal` need."""

    def __init__(self, puzzles: torch.Tensor, generator: torch.Generator | None) -> None:
        import torch

        if generator is not None and not isinstance(generator, torch.Generator):
            remedy = "Pass torch.Generator(puzzles.device)."
            fail("generator", "must be a torch generator for tensors", type(generator).__name__, remedy, "type")
        if generator is not None and generator.device.type != puzzles.device.type:
            remedy = "Make it with torch.Generator(puzzles.device)."
            fail("generator", f"must be on the device of puzzles, {puzzles.device}", generator.device, remedy, "device")
        self.torch, self.boards, self.device, self.generator = torch, len(puzzles), puzzles.device, generator

    def uniform(self, *shape: int) -> Any:
        return self.torch.rand(self.boards, *shape, generator=self.generator, device=self.device)

    def range(self, size: int) -> Any:
        return self.torch.arange(size, device=self.device)

    def take(self, values: Any, index: Any) -> Any:
        return values.gather(1, index.long())

    def like(self, values: Any, other: Any) -> Any:
        return values.to(other.dtype)

    def labels(self, order: Any) -> Any:
        return self.torch.nn.functional.pad(order + 1, (1, 0))


@overload
def augment(
    puzzles: NDArray[Any],
    solutions: NDArray[Any],
    generator: np.random.Generator,
    *,
    relabel: bool = ...,
    rows: bool = ...,
    bands: bool = ...,
    columns: bool = ...,
    stacks: bool = ...,
    transpose: bool = ...,
) -> tuple[NDArray[Any], NDArray[Any]]: ...
@overload
def augment(
    puzzles: torch.Tensor,
    solutions: torch.Tensor,
    generator: torch.Generator | None,
    *,
    relabel: bool = ...,
    rows: bool = ...,
    bands: bool = ...,
    columns: bool = ...,
    stacks: bool = ...,
    transpose: bool = ...,
) -> tuple[torch.Tensor, torch.Tensor]: ...
def augment(
    puzzles: Any,
    solutions: Any,
    generator: Any,
    *,
    relabel: bool = True,
    rows: bool = True,
    bands: bool = True,
    columns: bool = True,
    stacks: bool = True,
    transpose: bool = True,
) -> tuple[Any, Any]:
    """Every puzzle and its solution, integers (B, 81), under a random symmetry of its own.

    All kinds of symmetry take part unless they are switched off. The dtypes stay. For tensors, None takes
    torch's own generator.
    """
    kit = _kit(puzzles, solutions, generator)
    if rows or bands or columns or stacks or transpose:
        cells = _rearranged(kit, rows, bands, columns, stacks, transpose)
        puzzles, solutions = kit.take(puzzles, cells), kit.take(solutions, cells)
    if relabel:
        labels = kit.like(kit.labels(kit.uniform(9).argsort(-1)), puzzles)  # (B, 10); a blank stays one
        puzzles, solutions = kit.take(labels, puzzles), kit.take(kit.like(labels, solutions), solutions)
    return puzzles, solutions


def _rearranged(kit: Any, rows: bool, bands: bool, columns: bool, stacks: bool, transpose: bool) -> Any:
    """Draw rearrangements. Returns the cell of the old board that each cell of a new one is taken from, (B, 81)."""
    lines = []
    for within, between in ((rows, bands), (columns, stacks)):
        inner = kit.uniform(3, 3).argsort(-1) if within else kit.range(3)
        outer = kit.uniform(3, 1).argsort(1) if between else kit.range(3).reshape(1, 3, 1)
        lines.append((3 * outer + inner).reshape(-1, 9))
    down, across = 9 * lines[0], lines[1]  # (B, 9), or (1, 9) where nothing is permuted
    cells = down[:, :, None] + across[:, None, :]
    if transpose:
        turned = down[:, None, :] + across[:, :, None]
        cells = cells + (kit.uniform(1, 1) < 0.5) * (turned - cells)
    return cells.reshape(-1, 81)


def reveal(
    puzzles: torch.Tensor, solutions: torch.Tensor, generator: torch.Generator | None, share_of_boards: float = 0.3
) -> torch.Tensor:
    """Puzzles (B, 81) with more givens: each board is chosen with probability `share_of_boards`; of the blanks of a
    chosen one, a number that is drawn evenly from none to all but one is filled from its solution.

    So a model sees boards that are nearly full, as it does when it fills in a board cell by cell.
    """
    kit = _kit(puzzles, solutions, generator)
    if not 0 <= share_of_boards <= 1:
        remedy = "Pass a probability, such as 0.3."
        fail("share_of_boards", "must be between 0 and 1", share_of_boards, remedy, "out-of-range")
    if not isinstance(kit, _Torch):
        fail("puzzles", "must be a torch.Tensor", type(puzzles).__name__, "Use torch.from_numpy.", "type")
    blank = puzzles == 0
    number = (kit.uniform(1) * blank.sum(1, keepdim=True)).long() * (kit.uniform(1) < share_of_boards)
    order = kit.uniform(81).masked_fill(~blank, 2.0)  # blanks come first, in random order
    rank = order.argsort(1).argsort(1)
    return solutions.to(puzzles.dtype).where(rank < number, puzzles)


def _kit(puzzles: Any, solutions: Any, generator: Any) -> _Numpy | _Torch:
    """Checks that need no data, and the functions of numpy or of torch."""
    arrays = isinstance(puzzles, np.ndarray)
    if arrays != isinstance(solutions, np.ndarray):
        value = f"{type(puzzles).__name__} and {type(solutions).__name__}"
        fail("puzzles and solutions", "must be of one kind, numpy or torch", value, "Convert one of them.", "type")
    shape = tuple(puzzles.shape)
    if len(shape) != 2 or shape[1] != 81 or tuple(solutions.shape) != shape:
        value, remedy = f"{shape} and {tuple(solutions.shape)}", "Pass a batch of boards, one in every row."
        fail("puzzles and solutions", "must both have shape (B, 81)", value, remedy, "shape")
    for name, value in (("puzzles", puzzles), ("solutions", solutions)):
        kind = str(value.dtype).removeprefix("torch.")
        if not kind.startswith(("int", "uint")):
            fail(name, "must hold integers", value.dtype, "Convert it to uint8 or int64.", "dtype")
    return _Numpy(puzzles, generator) if arrays else _Torch(puzzles, generator)
