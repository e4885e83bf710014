"""Options of inserted layers: which, where, and how often. Imports nothing heavy, so that a wrong name is reported at
once."""

from __future__ import annotations

import logging
import math
from collections.abc import Container

from ttcnet.bounds import TOGETHER
from ttcnet.errors import fail, whole_number

TTC = "ttc"
CONTEXTS = ("token", "head", "system")  # how a token writes its problems; ttcnet.nn.context has them
PURE = "pure"  # time-homogeneous, and the same in all else
SUPERVISION = ("block", "loop", "end")  # which outputs have a loss
MIXERS = ("attention", "mlp", "mamba", "mamba2", "gdn", "retnet", "mesanet", "samba")  # ttcnet.nn.mixers has them


def check_insert(name: object) -> None:
    """Fail unless the name is TTC or a mixer."""
    if name not in (TTC, *MIXERS):
        fail("insert", f"must be one of {TTC}, {', '.join(MIXERS)}", repr(name), "Use one of those.", "unknown-name")


def check_gain(value: object) -> float:
    """Return `value` if it is a valid initial gain of a TTC layer's actions; fail otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        remedy = "Pass 1, or a little more, such as 4."
        fail("action_gain", "must be a positive finite number", repr(value), remedy, "out-of-range")
    return value


def check_context(value: object) -> str:
    """Return `value` if it is a context of TTC layers; fail otherwise."""
    if value not in CONTEXTS:
        remedy = "Pass 'token', 'head' for the text of the paper, or 'system' for dense dynamics."
        fail("context", f"must be one of {', '.join(CONTEXTS)}", repr(value), remedy, "unknown-name")
    return str(value)


def check_homogeneous(value: object) -> bool | str:
    """Return `value` if it is a way for a TTC layer to be time-homogeneous; fail otherwise."""
    if not (value is True or value is False or value == PURE):
        remedy = "Pass 'pure' for a layer without decays that is the same in all else."
        fail("time_homogeneous", f"must be False, True or {PURE!r}", repr(value)[:40], remedy, "unknown-name")
    return value if value is True or value is False else PURE


def context_of(names: Container[str], prefix: str) -> str | None:
    """The context of a TTC layer whose weights have these names; None if none of them is a context's."""
    if f"{prefix}context.bias" not in names:
        return None
    if f"{prefix}context.bases_A" in names:
        return "system"
    return "head" if f"{prefix}context.weight" in names else "token"


def say_context_of_before(source: str) -> None:
    """Warn that a file from before contexts could be chosen loads with context "head"."""
    text = "%s says nothing of its context: it was saved before there was a choice, and loads with context 'head'."
    logging.getLogger("ttcnet").warning(text, source)


def parse_interleave(field: str, value: object) -> tuple[int, int]:
    """Read n or "n:m" as (n, m): m layers in the last of every n."""
    blocks, colon, each = str(value).partition(":")
    known = isinstance(value, int | str) and not isinstance(value, bool)
    found, count = whole_number(blocks), whole_number(each) if colon else 1
    if not (known and found and count):
        rule = "must be a whole number of 1 or more, or two with a colon between"
        fail(field, rule, repr(value)[:40], 'Pass 8, or "16:2" for 2 layers in the last of every 16.', "format")
    if count > TOGETHER:
        remedy = 'Pass "16:2", say.'
        fail(field, f"must insert {TOGETHER} layers or fewer in one place", repr(value), remedy, "too-large")
    return found, count
