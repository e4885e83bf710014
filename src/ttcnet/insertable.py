"""What can be inserted into a model, and how often. Imports nothing heavy: a wrong name is told at once."""

from __future__ import annotations

import math
from typing import Any

from .errors import fail, whole_number

TTC = "ttc"
MIXERS = ("attention", "mlp", "mamba", "mamba2", "gdn", "retnet", "mesanet", "samba")  # ttcnet.nn.mixers has them


def check_insert(name: object) -> None:
    """That it is TTC, or a mixer in its place."""
    if name not in (TTC, *MIXERS):
        fail("insert", f"must be one of {TTC}, {', '.join(MIXERS)}", repr(name), "Use one of those.")


def check_gain(value: object) -> float:
    """`value`, if a TTC layer's actions can start that loud."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        fail("action_gain", "must be a positive finite number", repr(value), "Pass 1, or a little more, such as 4.")
    return value


def plans(model: Any) -> bool:
    """Whether TTC layers are inserted in it."""
    return getattr(model.config, "inserted", None) == TTC


def rhythm(every: object) -> tuple[int, int]:
    """(n, m): m layers in the last of every n, from n or "n:m"."""
    blocks, colon, each = str(every).partition(":")
    each = each if colon else "1"
    known = isinstance(every, int | str) and not isinstance(every, bool)
    found, count = whole_number(blocks), whole_number(each)
    if not (known and found and count):
        rule = "must be a whole number of 1 or more, or two with a colon between"
        fail("every", rule, repr(every)[:40], 'Pass 8, or "16:2" for 2 layers in the last of every 16.')
    return found, count
