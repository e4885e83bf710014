"""Copies: the same problem twice, or almost the same. The first of several is kept, so name the most trusted sources
first."""

from __future__ import annotations

from ttcnet.extras import require

from .settings import Exact, Near
from .stages import Stage
from .text import digest, tokens

SHINGLE = 3  # tokens in a row
SLOTS = 120  # numbers in a signature; 120 has many divisors
RECALL = 0.9  # share of pairs found that are just as similar as the threshold; of more similar pairs more are found


def exact(stage: Stage, settings: Exact) -> None:
    """Drop problems that differ from an earlier one in notation alone. Remembers 64 bits of each, and its id."""
    seen: dict[int, str] = {}
    for row in stage.rows():
        first = seen.setdefault(digest(tokens(row["problem"])), row["id"])
        if first == row["id"]:
            stage.keep(row)
        else:
            stage.drop(row["id"], "copy", of=first)


def near(stage: Stage, settings: Near) -> None:
    """Drop problems that are similar to an earlier one, by MinHash, unless both have answers and these differ: a
    problem with other numbers, or with another question at its end, is another problem. Remembers a signature of each.
    """
    rensa = require("rensa", "data", "Finding near copies")
    index = rensa.RMinHashLSH(settings.threshold, SLOTS, bands(settings.threshold))
    known: list[tuple[str, int | None, object]] = []  # id, answer, signature
    for row in stage.rows():
        signature = rensa.RMinHash(SLOTS, settings.seed)
        signature.update(shingles(tokens(row["problem"])))
        answer = None if row["answer"] is None else digest(tokens(row["answer"]))
        for number in sorted(index.query(signature)):
            first, other, old = known[number]
            similarity = signature.jaccard(old)
            if similarity >= settings.threshold and (answer is None or other is None or answer == other):
                stage.drop(row["id"], "near copy", of=first, similarity=round(similarity, 3))
                break
        else:
            index.insert(len(known), signature)
            known.append((row["id"], answer, signature))
            stage.keep(row)


def shingles(parts: list[str]) -> list[str]:
    """All runs of three tokens; the whole text if it has fewer."""
    return [" ".join(parts[start : start + SHINGLE]) for start in range(max(1, len(parts) - SHINGLE + 1))]


def bands(threshold: float) -> int:
    """The number of bands of a signature: the fewest that find a pair of this similarity with probability RECALL."""
    fits = (count for count in range(1, SLOTS + 1) if SLOTS % count == 0)
    return next(count for count in fits if 1 - (1 - threshold ** (SLOTS // count)) ** count >= RECALL)
