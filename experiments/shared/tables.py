"""Shared by the tables of several experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ttcnet.errors import fail


def check_alike(runs: Sequence[Mapping[str, Any]], *, fields: Sequence[str] = (), but: Sequence[str] = ()) -> None:
    """Fail unless all runs of a table have the settings of the first: all settings except those in `but`, or only
    `fields`."""
    for run in runs:
        first, here = runs[0]["config"], run["config"]
        compared = fields or [field for field in first if field not in but]
        if odd := [field for field in compared if here.get(field) != first.get(field)]:
            rule = f"must have the settings of {runs[0]['run']}"
            value = ", ".join(f"{field} = {here.get(field)}" for field in odd)
            fail(run["run"], rule, value, "Train it again.", "settings-changed")
