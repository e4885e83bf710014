"""Training and test data of experiments/math_small.

math       trained on gsm8k-train and math-train-7500 less 500 rows; graded by the answers to gsm8k-test and MATH-500,
           and by the likelihood of the solutions of gsm8k-test and of those 500 rows, since MATH-500 has no solutions
countdown  trained on generated puzzles, graded on others
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from ttcnet.storage.reading import Row, rows
from ttcnet.tasks import countdown
from ttcnet.train.examples import Example, Examples, prepare

TASKS = ("math", "countdown")
MAX_LENGTH = 1024  # longer rows are not trained on; they are counted
HELD_OUT = 500
LIMITS = {"math": 256, "countdown": 128}  # the most new tokens of an answer
DIFFICULTY = countdown.Difficulty(numbers=(3, 4), largest=30)
PUZZLES = {"train": 40_000, "test": 1000}


@dataclass(frozen=True)
class Benchmark:
    """Problems to answer, and solutions to find likely; either may be missing.

    Args:
        problems: rows with `problem` and the fields for grading.
        prompts: the problems as tokens.
        solutions: examples, for their likelihood.
    """

    name: str
    problems: Sequence[dict[str, Any]] = ()
    prompts: Sequence[list[int]] = ()
    solutions: Sequence[Example] = ()


@dataclass(frozen=True)
class Task:
    name: str
    data: str
    train: Examples
    benchmarks: Sequence[Benchmark]


def load(task: str, data: Path | None, tokenizer: Any) -> Task:
    """A task; `data` is the folder of the files of math."""
    if task == "countdown":
        made = {split: countdown.make(count, DIFFICULTY, split=split) for split, count in PUZZLES.items()}
        found = {split: [countdown.row(puzzle) for puzzle in puzzles] for split, puzzles in made.items()}
        train, test = (prepare(_named(split, found[split]), tokenizer) for split in ("train", "test"))
        source = f"{PUZZLES['train']} puzzles, {DIFFICULTY}"
        return Task(task, source, train, [_benchmark("countdown", found["test"], tokenizer, test.rows)])
    assert data is not None
    files = {name: list(rows(str(data / f"{name}.jsonl"))) for name in ("gsm8k-train", "math-train-7500")}
    mathematics = files["math-train-7500"]
    Random(0).shuffle(mathematics)
    held_out, kept = mathematics[:HELD_OUT], mathematics[HELD_OUT:]
    gsm8k, math500 = (list(rows(str(data / f"{name}.jsonl"))) for name in ("gsm8k-test", "math500"))
    benchmarks = [
        _benchmark("gsm8k", [row.content for row in gsm8k], tokenizer, prepare(gsm8k, tokenizer).rows),
        _benchmark("math500", [row.content for row in math500], tokenizer),
        Benchmark("math-held-out", solutions=prepare(held_out, tokenizer).rows),
    ]
    source = f"gsm8k-train, math-train-7500 less {HELD_OUT}"
    return Task(task, source, prepare([*files["gsm8k-train"], *kept], tokenizer, max_length=MAX_LENGTH), benchmarks)


def grade(task: str, answers: Sequence[dict[str, Any]]) -> list[bool]:
    """Whether each answer, a row with its `text`, is right."""
    if task == "countdown":
        return [countdown.grade(answer, answer["text"]).right for answer in answers]
    from ttcnet.tasks.math import Graders

    with Graders() as graders:
        verdicts = graders.verdicts((answer["answer"], answer["text"]) for answer in answers)
    return [verdict.right for verdict in verdicts]


def _benchmark(
    name: str, problems: Sequence[dict[str, Any]], tokenizer: Any, solutions: Sequence[Example] = ()
) -> Benchmark:
    asked = [[{"role": "user", "content": row["problem"]}] for row in problems]
    prompts = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    return Benchmark(name, problems, prompts, solutions)


def _named(split: str, found: Sequence[dict[str, Any]]) -> list[Row]:
    return [Row(f"{split} puzzle {number}", content) for number, content in enumerate(found, 1)]
