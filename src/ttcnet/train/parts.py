"""A checkpoint as one file or several: that of the first process, and one for each other process that held pieces.

    checkpoint-STEP.safetensors             tensors that all processes share, and the first one's pieces
    checkpoint-STEP.part-1.safetensors      the second one's pieces, and so on

The first file is written last. It holds the number of parts, and all parts hold the same random number, so that parts
of a killed save are never mixed with those of another. Any number of processes can read it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ttcnet.errors import fail
from ttcnet.machine.pieces import Piece, is_spread, own_piece, shifted, sliced
from ttcnet.machine.processes import any_of_all, count, is_first_process, of_first, rank, together
from ttcnet.storage import tensor_file
from ttcnet.storage.reading import check_fields
from ttcnet.storage.writing import replacing

REMEDY = "Delete it, and its parts."


def part_of(path: Path, number: int) -> Path:
    """The file of a process's pieces, beside the file of the first process."""
    return path if number == 0 else path.with_name(f"{path.stem}.part-{number}{path.suffix}")


def write(path: Path, tensors: Mapping[str, Tensor], facts: dict[str, Any]) -> None:
    """All processes have to call this. It succeeds in all of them, or leaves no checkpoint and is an error in one."""
    (spread,) = any_of_all(any(map(is_spread, tensors.values())))
    parts = count() if spread else 1
    facts = facts | {"parts": parts, "save": of_first(secrets.token_hex(8))}
    own, pieces, values = part_of(path, rank()), dict[str, Any](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        piece = own_piece(tensor)
        if is_spread(tensor):
            pieces[name] = {"shape": list(tensor.shape), "start": list(piece.start)}
        elif not is_first_process():
            continue
        if piece.values.numel() or not is_spread(tensor):
            values[name] = piece.values
    content = facts | {"pieces": {name: pieces[name] for name in values if name in pieces}}
    if is_first_process():
        with replacing(path) as new, together():
            tensor_file.write(new, values, content)
        return
    try:
        with together():
            if parts > 1:
                tensor_file.save(own, values, content)
    except SystemExit:
        with suppress(FileNotFoundError):
            own.unlink()
        raise


def delete(path: Path) -> None:
    """Delete a checkpoint and its parts."""
    path.unlink()
    for part in path.parent.glob(f"{path.stem}.part-*{path.suffix}"):
        part.unlink(missing_ok=True)


def delete_strays(folder: Path) -> None:
    """Parts that belong to no checkpoint, because their save was killed."""
    for part in folder.glob("checkpoint-*.part-*.safetensors"):
        if not part.with_name(part.name.split(".part-")[0] + part.suffix).exists():
            part.unlink(missing_ok=True)


class Parts(Mapping[str, Tensor]):
    """The tensors of a checkpoint by name. Each is read on request, whole or in part, from the files that hold it.

    Attributes:
        facts: numbers and texts kept beside them.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        first = tensor_file.opened(path)
        self.facts = tensor_file.facts_of(path, first)
        check_fields(str(path), self.facts, REMEDY, format=int, step=int, settings=dict)
        files = [first]
        check_fields(str(path), {"parts": 1, "pieces": {}} | self.facts, REMEDY, parts=int, pieces=dict)
        for number in range(1, self.facts.get("parts", 1)):
            part = part_of(path, number)
            files.append(tensor_file.opened(part))
            if tensor_file.facts_of(part, files[-1]).get("save") != self.facts.get("save"):
                fail(str(part), "must belong to the same save as the first part", "another", REMEDY, "damaged")
        self._places: dict[str, list[tuple[Any, Piece]]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for number, file in enumerate(files):
            with tensor_file.told(part_of(path, number)):
                self._index(file, tensor_file.facts_of(part_of(path, number), file).get("pieces", {}))

    def _index(self, file: Any, pieces: dict[str, Any]) -> None:
        for name in file.keys():  # noqa: SIM118
            size = tuple(file.get_slice(name).get_shape())
            about = pieces.get(name, {"shape": size, "start": (0,) * len(size)})
            shape, start = tuple(about["shape"]), tuple(about["start"])
            if not len(shape) == len(start) == len(size) or self._shapes.setdefault(name, shape) != shape:
                fail(str(self.path), "must have pieces that fit together", name, REMEDY, "damaged")
            self._places.setdefault(name, []).append((file, Piece(start, torch.empty(size, device="meta"))))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name, tuple(slice(0, size) for size in self.shape(name)))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        return self._shapes[name]

    def read(self, name: str, where: tuple[slice, ...]) -> Tensor:
        """Read the part `where` of a tensor."""
        start, size = tuple(part.start for part in where), tuple(part.stop - part.start for part in where)
        found: Tensor | None = None
        missing = 1
        for extent in size:
            missing *= extent
        for file, piece in self._places[name]:
            both = piece.overlap(start, size)
            if both is None and where:
                continue
            values = sliced(file, name, shifted(both or (), piece.start))
            if values.shape == size:
                return values
            found = values.new_empty(size) if found is None else found
            found[shifted(both or (), start)] = values
            missing -= values.numel()
        if missing == 0:
            return torch.empty(size) if found is None else found
        fail(str(self.path), "must have all pieces", f"too few of {name}", REMEDY, "damaged")
