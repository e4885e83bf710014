"""Upper bounds of sizes and horizons. A configuration may come from elsewhere: a number beyond these bounds is a
mistake, or is meant to keep a machine busy. Imports nothing heavy, so that a wrong number is reported at once."""

from __future__ import annotations

import os

from .errors import check_integer, fail

HORIZON = 65_536
RAISE = "TTCNET_MAX_HORIZON"  # an environment variable
LARGE = 2**24
SIZES = {
    "heads": 4096, "state_size": 1024, "action_size": 1024, "rank": 4096,
    "num_hidden_layers": 4096, "num_attention_heads": 4096, "hidden_size": 2**20, "grid": 1024,
    "loops": 65_536,
}  # fmt: skip
TOGETHER = 64  # layers inserted in one place
WEIGHTS = 2**30  # of a TTC layer, about


def check_horizon(field: str, steps: int) -> None:
    """Fail if a horizon is out of bounds. It may be a symbol of torch.compile."""
    if steps > HORIZON:
        most = _raised()
        if steps > most:
            remedy = f"Plan fewer steps, or raise the bound: set the environment variable {RAISE}."
            fail(field, f"must be {most} or less", shown(steps), remedy, "too-large")


check_reach = check_horizon  # its name in ttcnet.lqr


def check_size(field: str, value: object, least: int, remedy: str) -> int:
    """`value`, if it is an integer from `least` to the bound of the field, with or without ttc_ in front."""
    size, most = check_integer(field, value, least, remedy), SIZES.get(field.removeprefix("ttc_"), LARGE)
    if field == "horizon":
        check_horizon(field, size)
    elif size > most:
        fail(field, f"must be {most} or less", shown(size), remedy, "too-large")
    return size


def check_weights(width: int, heads: int, state_size: int, action_size: int, rank: int) -> None:
    """Fail if a TTC layer would be too large, although each of its sizes may be within bounds."""
    about = heads * (state_size + action_size + rank) * (width + state_size) + rank * state_size**2
    if about > WEIGHTS:
        rule = f"must make a layer of about {WEIGHTS} weights at most"
        got = f"{heads}, {state_size}, {action_size} and {rank} at width {width}, about {about} weights"
        remedy = "Pass smaller ones; 16 is usual for all four."
        fail("heads, state_size, action_size and rank", rule, got, remedy, "too-large")


def shown(value: int) -> str:
    """A number as text, also where it has more digits than Python writes."""
    return str(value) if value < 10**30 else f"a number of {value.bit_length()} bits"


def _raised() -> int:
    given = os.environ.get(RAISE, str(HORIZON))
    if not (given.isdecimal() and len(given) < 20):
        fail(RAISE, "must be a whole number", repr(given), f"Set it to {4 * HORIZON}, say, or take it away.", "format")
    return int(given)
