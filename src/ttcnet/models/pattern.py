"""Which layers a model has, as data.

A pattern is a list of names. A mixer opens a block, which ends with an MLP; a name with a plus in front is inserted
into the block before it, between mixer and MLP. "ttc" mixes no tokens, so it needs no plus.

    ["attention", "attention", "ttc"]     two blocks, a TTC layer in the second
    ["attention", "+gdn"]                 one block, with Gated DeltaNet in TTC's place

Where blocks are applied in loops, "@8" behind a name means: in every eighth pass only, the last of each eight. A block
whose mixer has it sits out the other passes as a whole.

    ["attention", "ttc"]                  TTC in every pass
    ["attention", "ttc@8"]                TTC in passes 8, 16, 24 ...
    ["attention", "attention@8", "ttc"]   TTC in a block of its own, which follows every eighth pass of the first
"""

from __future__ import annotations

from typing import NamedTuple

from ttcnet.errors import fail
from ttcnet.nn.mixers import KINDS
from ttcnet.nn.options import TTC as TTC
from ttcnet.nn.options import parse_interleave


class BlockSpec(NamedTuple):
    """A block: its mixer, and the layers inserted between it and the MLP; every how many passes the block, and each
    inserted layer, is applied."""

    mixer: str
    inserted: tuple[str, ...]
    every: int = 1
    each: tuple[int, ...] = ()

    @property
    def layer_names(self) -> tuple[str, ...]:
        """The names of the layers as in a pattern, without the plus."""
        pairs = zip((self.mixer, *self.inserted), (self.every, *self.each), strict=True)
        return tuple(kind if every == 1 else f"{kind}@{every}" for kind, every in pairs)


def interleaved(interleave: str | None, blocks: int, mixer: str, insert: str = TTC, loops: int = 1) -> list[str]:
    """The pattern of `blocks` blocks in which, as "8:1" says, the last of every 8 has 1 layer inserted. Blocks that are
    applied in loops count each time: of 1 block, "8:1" inserts into every eighth pass."""
    if interleave is None:
        return [mixer] * blocks
    every, count = parse_interleave("interleave", interleave)
    step, passes = every, 1
    if step > blocks:
        if step > blocks * loops or step % blocks:
            rule = f"must fit the model's {blocks} blocks" + (f", or be a multiple, up to {loops} times" * (loops > 1))
            remedy = f"Pass num_hidden_layers={every} or more, or interleave='{blocks}:{count}'."
            fail("interleave", rule, repr(interleave), remedy, "conflict")
        step, passes = blocks, step // blocks
    name = (insert if insert == TTC else f"+{insert}") + (f"@{passes}" if passes > 1 else "")
    pattern = []
    for block in range(1, blocks + 1):
        pattern += [mixer, *[name] * (count if block % step == 0 else 0)]
    return pattern


def blocks_of(pattern: list[str]) -> list[BlockSpec]:
    """The blocks of a pattern, checked."""
    known = f"{', '.join(KINDS)}, and inserted: {TTC}, {', '.join(f'+{kind}' for kind in KINDS)}"
    specs: list[BlockSpec] = []
    for name in pattern:
        whole, _, number = name.partition("@")
        kind = whole.removeprefix("+")
        if "@" in name and not (number.isdecimal() and int(number) >= 1):
            remedy = f"Write {whole}@8, say, for every eighth pass."
            fail("pattern", "must have a whole number of 1 or more behind @", repr(name), remedy, "format")
        every = int(number or 1)
        if kind not in KINDS and kind != TTC:
            fail("pattern", "must be made of known layers", repr(name), f"Known are: {known}.", "unknown-name")
        if whole == kind != TTC:
            specs.append(BlockSpec(kind, (), every))
        elif not specs:
            remedy = "Put 'attention' first, say."
            fail("pattern", "must start with a mixer that opens a block", repr(name), remedy, "format")
        else:
            last = specs[-1]
            specs[-1] = last._replace(inserted=(*last.inserted, kind), each=(*last.each, every))
    if not specs:
        fail("pattern", "must have a block", repr(pattern), "Pass ['attention'], say, or interleave='8:1'.", "format")
    return specs
