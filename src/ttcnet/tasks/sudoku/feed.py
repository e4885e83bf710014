"""Batches of boards for training: a function of seed and step, so that a run can be resumed at any step."""

from __future__ import annotations

import torch
from torch import Tensor

from ttcnet.errors import fail

from .data import Boards
from .metrics import check_blanks
from .symmetry import augment, reveal

STEPS_AT_ONCE = 64  # batches that are drawn together


class Feed:
    """Puzzles (batch, 81) with digits 0..9, and labels (batch, 81): the digit less one, -100 where it is given.

    Args:
        boards: drawn from; every board comes once before any comes again.
        augmentation: "none"; "relabel", the digits; "relabel+reveal", and some cells of the solution on 30 % of the
            boards; "all+reveal", all symmetries of Sudoku and that.
    """

    def __init__(self, boards: Boards, batch: int, seed: int, augmentation: str, device: torch.device | str) -> None:
        if not 1 <= batch <= len(boards):
            remedy = "Pass a smaller batch."
            fail("batch", f"must be between 1 and the {len(boards)} boards", batch, remedy, "out-of-range")
        self.puzzles = torch.from_numpy(boards.puzzles).to(device)
        self.solutions = torch.from_numpy(boards.solutions).to(device)
        self.batch, self.seed, self.augmentation = batch, seed, augmentation
        self.device = torch.device(device)
        self._chunk, self._batches = -1, (self.puzzles, self.puzzles)

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of a step."""
        chunk, place = divmod(step, STEPS_AT_ONCE)
        if chunk != self._chunk:
            self._batches, self._chunk = self._draw(chunk), chunk
        puzzles, labels = self._batches
        return puzzles[place], labels[place]

    def _draw(self, chunk: int) -> tuple[Tensor, Tensor]:
        size = STEPS_AT_ONCE * self.batch
        index = self._order(chunk * size, size)
        puzzles, solutions = self.puzzles[index], self.solutions[index]
        generator = torch.Generator(self.device).manual_seed(mixed(self.seed, chunk, 1))
        if self.augmentation != "none":
            others = self.augmentation.startswith("all")
            moves = dict.fromkeys(("rows", "bands", "columns", "stacks", "transpose"), others)
            puzzles, solutions = augment(puzzles, solutions, generator, relabel=True, **moves)
        if self.augmentation.endswith("reveal"):
            puzzles = reveal(puzzles, solutions, generator)
        labels = labels_of(puzzles, solutions)
        shape = (STEPS_AT_ONCE, self.batch, 81)
        return puzzles.long().view(shape), labels.view(shape)

    def _order(self, first: int, count: int) -> Tensor:
        """Boards number first .. first + count - 1 of an endless sequence of shuffled passes."""
        total = len(self.puzzles)
        parts = []
        while count:
            pass_number, start = divmod(first, total)
            generator = torch.Generator().manual_seed(mixed(self.seed, pass_number, 0))
            part = torch.randperm(total, generator=generator)[start : start + count]
            parts.append(part)
            first, count = first + len(part), count - len(part)
        return torch.cat(parts).to(self.device)


def labels_of(puzzles: Tensor, solutions: Tensor) -> Tensor:
    """The digit less one, -100 where it is given."""
    return torch.where(puzzles == 0, solutions.long() - 1, -100)


def labelled(boards: Boards) -> tuple[Tensor, Tensor]:
    """All puzzles (N, 81) and their labels. A puzzle without blanks is an error."""
    check_blanks(boards.puzzles)
    puzzles, solutions = torch.from_numpy(boards.puzzles).long(), torch.from_numpy(boards.solutions)
    return puzzles, labels_of(puzzles, solutions)


def mixed(seed: int, number: int, purpose: int) -> int:
    """Mix numbers into a seed for one of many draws."""
    return (seed * 1_000_003 + number) * 2 + purpose
