"""Whole plans, for analysis: all states, actions and co-states, in memory that is known before it is taken."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from ttcnet.errors import fail
from ttcnet.lqr import ModulatedLQR, Solution, StationaryLQR, solve

PIECE = 2**28  # bytes to work in: tokens are planned in pieces that need no more, or one by one
CONTROL_GROUP = Path("/sys/fs/cgroup")


@torch.no_grad()
def whole_plans(family: ModulatedLQR | StationaryLQR, horizon: int) -> Solution:
    """The solutions of all problems, detached, batch shape (N, H)."""
    kind, fields = type(family), {name: value.detach() for name, value in vars(family).items() if value is not None}
    tokens, heads, n = family.h0.shape
    m, number = family.action_size, family.h0.element_size()
    result = number * heads * (horizon * m + 2 * (horizon + 1) * n + 1)  # bytes of the solution of a token
    work = number * heads * horizon * (7 * n * n + 2 * n * m + 5 * m * m)  # bytes for `solve`
    at_once = max(1, PIECE // work)
    check_room(tokens, heads, horizon, tokens * result + min(tokens, at_once) * work, family.h0.device)
    if tokens <= at_once:
        return solve(kind(**fields).unroll(horizon), check=False)
    whole: dict[str, Tensor] = {}
    for first in range(0, tokens, at_once):
        some = {name: value[first : first + at_once] for name, value in fields.items()}
        found = solve(kind(**some).unroll(horizon), check=False)
        for name, value in ((name, getattr(found, name)) for name in ("u", "h", "costate", "cost")):
            if first == 0:
                whole[name] = value.new_empty(tokens, *value.shape[1:])
            whole[name][first : first + at_once] = value
    return Solution(**whole)


def check_room(tokens: int, heads: int, horizon: int, needed: int, device: torch.device) -> None:
    """Fail if the plans need more memory than is free."""
    free = None if torch.compiler.is_compiling() else free_memory(device)
    if free is not None and needed > free:
        got = f"{tokens} tokens, {heads} heads and {horizon} steps, which take {needed} bytes"
        remedy = "Pass fewer tokens at a time, or a shorter horizon."
        fail("return_plan", f"must fit into the {free} bytes that are free on {device}", got, remedy, "memory")


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be taken on a device, None if that is not known."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    if device.type != "cpu":
        return None
    known = [_of_the_machine(), _of_the_group()]
    return min((free for free in known if free is not None), default=None)


def _of_the_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux
        names = getattr(os, "sysconf_names", {})
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else None


def _of_the_group() -> int | None:
    """Bytes that a container may still take; the cache of files does not count."""
    try:
        most, taken, stat = ((CONTROL_GROUP / f"memory.{name}").read_text() for name in ("max", "current", "stat"))
        files = next(int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file "))
        return int(most) - int(taken) + files
    except (OSError, StopIteration, ValueError):  # no group, or one without a bound ("max")
        return None
