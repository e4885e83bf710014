"""Benchmarks of the paper, with the settings that it evaluates them in, and problems from files or the Hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ttcnet.errors import fail
from ttcnet.reading import Row, rows
from ttcnet.tasks.countdown.grading import is_puzzle

SHOWN = 5  # faults that a message names
PUZZLE = ("numbers", "target")


@dataclass(frozen=True)
class Benchmark:
    """A set of problems and how they are put: horizon of TTC layers, answers to a problem, temperature (0 is greedy)
    and the most tokens of an answer."""

    name: str
    source: str = ""  # a file, or owner/name of the Hub
    config: str | None = None
    split: str = "test"
    files: tuple[str, ...] = ()  # names in a folder of data
    horizon: int = 8
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int = 4096


_GREEDY = Benchmark("", horizon=8)
_CONTEST = Benchmark("", horizon=16, samples=8, temperature=0.6)
BENCHMARKS = {
    each.name: each
    for each in (
        replace(_GREEDY, name="math500", source="HuggingFaceH4/MATH-500", files=("math500.jsonl",)),
        replace(
            _CONTEST, name="amc", source="AI-MO/aimo-validation-amc", split="train", files=("amc83.jsonl", "amc.jsonl")
        ),
        replace(_CONTEST, name="aime24", source="HuggingFaceH4/aime_2024", split="train", files=("aime24.jsonl",)),
        replace(_CONTEST, name="aime25", source="math-ai/aime25", files=("aime25.jsonl",)),
        replace(
            _GREEDY, name="gsm8k", source="openai/gsm8k", config="main", files=("gsm8k-test.jsonl", "gsm8k.jsonl"),
            max_tokens=1024,
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A problem and its answer, counted from 1 in the order of the source; `puzzle` are the numbers and the target of
    one of Countdown, which is graded by those."""

    number: int
    text: str
    answer: str
    puzzle: dict[str, Any] | None = None


def benchmark(name: str, data: Path | None = None) -> Benchmark:
    """By name, its problems in a folder of data if one is given, else on the Hub; or a JSON Lines file by its path,
    greedily, once."""
    known = BENCHMARKS.get(name)
    if known is None:
        if not Path(name).is_file():
            remedy = f"Pass a file with problem and answer in every line, or a name: {', '.join(BENCHMARKS)}."
            fail("benchmark", "must be a known name or a file", repr(name), remedy, FileNotFoundError)
        return Benchmark(Path(name).name.partition(".")[0], name)
    if data is None:
        return known
    for file in known.files:
        if (data / file).is_file():
            return replace(known, source=str(data / file), config=None)
    remedy = "Put it there, or leave out the folder to take it from the Hub."
    fail("data", f"must hold {' or '.join(known.files)}", str(data), remedy, FileNotFoundError)


def problems(source: Benchmark, limit: int | None = None) -> list[Problem]:
    """All of them, or the first `limit`. Rows without a problem or an answer are an error that names file and line."""
    found, faults = list[Problem](), list[str]()
    for row in _rows(source):
        text = next((row.content[key] for key in ("problem", "question") if row.content.get(key)), None)
        answer = _answer(row.content.get("answer"))
        puzzle = {key: row.content[key] for key in PUZZLE if key in row.content}
        if not isinstance(text, str) or not text.strip():
            faults.append(f"{row.place}: no problem")
        elif answer is None:
            faults.append(f"{row.place}: no answer")
        elif len(puzzle) == len(PUZZLE) and not is_puzzle(puzzle):
            faults.append(f"{row.place}: numbers and target that are no puzzle of Countdown")
        else:
            found.append(Problem(len(found) + 1, text, answer, puzzle if len(puzzle) == len(PUZZLE) else None))
    if faults:
        more = f"; and {len(faults) - SHOWN:,} more" if len(faults) > SHOWN else ""
        remedy = "Correct these rows or take them out of the data."
        fail("data", "must have a problem and an answer in every row", "; ".join(faults[:SHOWN]) + more, remedy)
    if not found:
        fail("data", "must have at least one row", source.source, "Check the file.")
    return found[:limit]


def digest(found: Iterable[Problem]) -> str:
    """A number for problems and answers, by which other data is noticed."""
    text = json.dumps([(each.text, each.answer, *([each.puzzle] if each.puzzle else [])) for each in found])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rows(source: Benchmark) -> Iterator[Row]:
    options = {} if source.config is None else {"name": source.config}
    remedy = f"Check the network; or pass --data FOLDER with {' or '.join(source.files)} in it."
    return rows(source.source, source.split, remedy, **options)


def _answer(value: Any) -> str | None:
    """As text; what follows #### where it is a whole solution, as in GSM8K."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value).rpartition("####")[2].strip() or None
