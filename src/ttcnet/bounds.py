"""Upper bounds of sizes and horizons. A configuration may come from others: a number beyond these bounds is a mistake,
or an attempt to keep a machine busy. Imports nothing heavy, so that a wrong number is reported at once."""

from __future__ import annotations

import os
from typing import Any

from .errors import check_integer, fail

HORIZON = 65_536
RAISE = "TTCNET_MAX_HORIZON"  # an environment variable
LARGE = 2**24
SIZES = {
    "heads": 4096, "state_size": 1024, "action_size": 1024, "rank": 4096,
    "num_hidden_layers": 4096, "num_attention_heads": 4096, "hidden_size": 2**20, "grid": 1024,
    "loops": 65_536, "num_labels": 65_536, "kernel": 1024, "iterations": 1024, "num_key_value_heads": 4096,
}  # fmt: skip
BASE = {  # bounds of transformers' models, and the names of such sizes in their families
    4096: "num_hidden_layers num_layers n_layer n_layers num_attention_heads num_key_value_heads n_head n_heads",
    2**16: "num_labels",
    2**20: "hidden_size d_model n_embd",
    LARGE: "vocab_size intermediate_size max_position_embeddings head_dim d_ff ffn_dim n_inner n_positions n_ctx "
    "num_experts num_local_experts",
}
SEED = 2**32 - 1
COUNTS = {"samples": 65_536, "n": 65_536, "count": 10**7, "epochs": 10**6}  # and COUNT for others
COUNT = 10**9
RATE = 1.0  # of learning
DECAY = 100.0  # of weights
TOGETHER = 64  # layers inserted in one place
WEIGHTS = 2**30  # the most weights of a TTC layer, about


def check_horizon(field: str, steps: int) -> None:
    """Fail if a horizon is out of bounds. It may be a symbol of torch.compile."""
    if steps > HORIZON:
        most = _raised()
        if steps > most:
            remedy = f"Plan fewer steps, or raise the bound: set the environment variable {RAISE}."
            fail(field, f"must be {most} or less", shown(steps), remedy, "too-large")


def check_size(field: str, value: object, least: int, remedy: str) -> int:
    """Return `value` if it is an integer from `least` to the bound of the field, with or without ttc_ in front."""
    size, most = check_integer(field, value, least, remedy), SIZES.get(field.removeprefix("ttc_"), LARGE)
    if field == "horizon":
        check_horizon(field, size)
    elif size > most:
        fail(field, f"must be {most} or less", shown(size), remedy, "too-large")
    return size


def beyond(content: Any) -> str | None:
    """The first size beyond its bound in the content of a config.json, parts of the model included; or None."""
    left = [content]
    while left:  # a file may be nested deeper than Python allows
        part = left.pop()
        if isinstance(part, dict):
            left += part.values()
            for most, names in BASE.items():
                for name in names.split():
                    if isinstance(size := part.get(name), int) and size > most:
                        return f"{name} = {shown(size)}, where {most} is the most"
    return None


def check_weights(width: int, heads: int, state_size: int, action_size: int, rank: int) -> None:
    """Fail if a TTC layer would be too large, although each of its sizes may be within bounds."""
    about = heads * (state_size + action_size + rank) * (width + state_size) + rank * state_size**2
    if about > WEIGHTS:
        rule = f"must make a layer of about {WEIGHTS} weights at most"
        got = f"{heads}, {state_size}, {action_size} and {rank} at width {width}, about {about} weights"
        remedy = "Pass smaller ones; 16 is usual for all four."
        fail("heads, state_size, action_size and rank", rule, got, remedy, "too-large")


def check_count(field: str, value: float | None) -> None:
    """Fail if something is wanted more often than any machine can do it. None passes."""
    most = COUNTS.get(field, COUNT)
    if value is not None and value > most:
        got = shown(value) if isinstance(value, int) else f"{value:g}"
        fail(field, f"must be {most:,} or less", got, "Pass a smaller number.", "too-large")


def check_rates(settings: Any, *fields: str, zero: bool = False) -> None:
    """Fail if learning rates, or the weight decay, are out of bounds: beyond them, weights are thrown about and mean
    nothing, though they may stay finite. `zero`: whether a rate may be 0. None passes."""
    for field in fields:
        value = getattr(settings, field)
        if value is not None and not (0 < value <= RATE or (zero and value == 0)):
            rule = f"must be {'0 or more' if zero else 'above 0'}, and {RATE:g} at most"
            fail(field, rule, value, "Pass such a number; 0.01 is a high rate already.", "out-of-range")
    if not 0 <= settings.weight_decay <= DECAY:
        fail(
            "weight_decay", f"must be between 0 and {DECAY:g}", settings.weight_decay, "Pass 0.1, say.", "out-of-range"
        )


def check_seed(seed: int) -> None:
    """Fail if a seed is out of bounds. Within them all generators of random numbers take it."""
    if not 0 <= seed <= SEED:
        fail("seed", f"must be between 0 and {SEED}", shown(seed), "Pass such a number.", "out-of-range")


def shown(value: int) -> str:
    """A number as text, also if it has more digits than Python writes."""
    return str(value) if value < 10**30 else f"a number of {value.bit_length()} bits"


def _raised() -> int:
    given = os.environ.get(RAISE, str(HORIZON))
    if not (given.isdecimal() and len(given) < 20):
        fail(RAISE, "must be a whole number", repr(given), f"Set it to {4 * HORIZON}, say, or remove it.", "format")
    return int(given)
