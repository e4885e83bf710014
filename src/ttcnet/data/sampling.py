"""Sampling: the last stage, which writes the training data."""

from __future__ import annotations

from array import array

from ttcnet.errors import fail

from .settings import Sample
from .stages import Stage
from .text import digest


def sample(stage: Stage, settings: Sample) -> None:
    """Draw rows by quota and number. Every row has a random rank, made of the seed and its id, and the lowest ranks are
    drawn: so the order of rows does not matter, and a larger sample holds the smaller one. Rows without a solution
    cannot be trained on, and are dropped. Remembers 64 bits of each row."""
    ranks: dict[str, array[int]] = {}
    for row in stage.peek():
        if row["solution"] is not None:
            ranks.setdefault(row["source"], array("Q")).append(_rank(row["id"], settings.seed))
    if not ranks:
        remedy = "The files *.dropped.jsonl say why rows were dropped."
        fail("data", "must have a row with a solution left", "none", remedy, "no-data")
    lowest = {name: sorted(own)[: settings.quotas.get(name)] for name, own in ranks.items()}
    last = sorted(rank for own in lowest.values() for rank in own)[: settings.rows][-1]
    for row in stage.rows():
        rank = _rank(row["id"], settings.seed)
        if row["solution"] is None:
            stage.drop(row["id"], "no solution")
        elif rank > lowest[row["source"]][-1]:
            stage.drop(row["id"], "over the quota")
        elif rank > last:
            stage.drop(row["id"], "not drawn")
        else:
            stage.keep(row)


def _rank(name: str, seed: int) -> int:
    return digest([str(seed), name])
