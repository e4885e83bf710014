"""Which layers a model has, as data.

A pattern is a list of names. A mixer opens a block, which ends with an MLP; a name with a plus in front is inserted
into the block before it, between mixer and MLP. "ttc" mixes no tokens, so it needs no plus.

    ["attention", "attention", "ttc"]     two blocks, a TTC layer in the second
    ["attention", "+gdn"]                 one block, with Gated DeltaNet in TTC's place
"""

from __future__ import annotations

from typing import NamedTuple

from ttcnet.errors import fail, whole_number
from ttcnet.insertable import TTC as TTC
from ttcnet.nn.mixers import KINDS


class BlockPlan(NamedTuple):
    """A block: its mixer, and what is inserted between it and the MLP."""

    mixer: str
    inserted: tuple[str, ...]


def interleaved(interleave: str | None, blocks: int, mixer: str, insert: str = TTC) -> list[str]:
    """The pattern of `blocks` blocks in which, as "8:1" says, the last of every 8 has 1 layer inserted."""
    if interleave is None:
        return [mixer] * blocks
    every, count = (whole_number(part) for part in str(interleave).partition(":")[::2])
    remedy = "Pass blocks:layers, such as 8:1, 4:1, 16:1 or 16:2, or None for no such layer."
    if not (every and count):
        fail("interleave", "must be two whole numbers of 1 or more, blocks:layers", repr(interleave)[:40], remedy)
    if every > blocks:
        remedy = f"Pass num_hidden_layers={every} or more, or interleave='{blocks}:{count}'."
        fail("interleave", f"must fit the model's {blocks} blocks", repr(interleave), remedy)
    name = insert if insert == TTC else f"+{insert}"
    pattern = []
    for block in range(1, blocks + 1):
        pattern += [mixer, *[name] * (count if block % every == 0 else 0)]
    return pattern


def blocks_of(pattern: list[str]) -> list[BlockPlan]:
    """The blocks of a pattern, checked."""
    known = f"{', '.join(KINDS)}, and inserted: {TTC}, {', '.join(f'+{kind}' for kind in KINDS)}"
    plans: list[BlockPlan] = []
    for name in pattern:
        kind = name.removeprefix("+")
        if kind not in KINDS and kind != TTC:
            fail("pattern", "must be made of known layers", repr(name), f"Known are: {known}.")
        if name == kind != TTC:
            plans.append(BlockPlan(kind, ()))
        elif not plans:
            fail("pattern", "must start with a mixer that opens a block", repr(name), "Put 'attention' first, say.")
        else:
            plans[-1] = BlockPlan(plans[-1].mixer, (*plans[-1].inserted, kind))
    if not plans:
        fail("pattern", "must have a block", repr(pattern), "Pass ['attention'], say, or interleave='8:1'.")
    return plans
