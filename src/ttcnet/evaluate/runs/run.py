"""Put the examples of a task to an engine, grade its answers, and store them."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

from ttcnet.errors import fail
from ttcnet.tasks import Example, Task, Verdict
from ttcnet.tasks.chat import question
from ttcnet.tasks.task import check_prompt, digest, graded
from ttcnet.terminal.progress_bars import Bar, Description

from ..engines.base import FAILED, Answer, Ask, Engine, Sampling
from .storage import Generations, Key, generations, key_of
from .summary import summarise

GRADING_THREADS = min(8, os.cpu_count() or 1)


@dataclass(frozen=True)
class RunConfig:
    """Settings of an evaluation. It asks every example at every horizon, `samples` times.

    Args:
        name: the name of the run.
        task: the task that makes prompts and grades answers.
        examples: the examples of the task, or the first of them.
        horizons: horizons of TTC layers; (None,) if the engine has none.
        samples: answers per example and horizon.
        temperature: 0 is greedy.
        max_tokens: of an answer.
        system: the system prompt; empty for none.
        seed: the seeds of all samples are made from it.
    """

    name: str
    task: Task
    examples: list[Example]
    horizons: tuple[int | None, ...]
    samples: int
    temperature: float
    max_tokens: int
    system: str
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples > 1 and self.temperature == 0:
            remedy = "Pass, say, 0.6."
            fail("temperature", f"must be above 0 for {self.samples} samples to differ", 0, remedy, "out-of-range")
        if not 0 <= self.temperature < math.inf:
            fail("temperature", "must be 0 or more and finite", self.temperature, "Pass, say, 0.6.", "out-of-range")
        for example in self.examples:
            check_prompt(self.task, example)

    def keys(self) -> list[Key]:
        numbers, samples = [example.number for example in self.examples], range(self.samples)
        return [Key(number, sample, horizon) for horizon, number, sample in product(self.horizons, numbers, samples)]

    def example(self, key: Key) -> Example:
        return self.examples[key.problem - 1]

    def ask(self, key: Key) -> Ask:
        name = f"problem {key.problem} of {self.name}, sample {key.sample}"
        messages = question(self.task.prompt(self.example(key)), self.system)
        return Ask(messages, seed_of(self.seed, key.problem, key.sample), name=name)

    def settings(self) -> dict[str, Any]:
        """The content of settings.json. A resumed run must have the same."""
        fields = ("name", "samples", "temperature", "max_tokens", "system", "seed")
        content = {name: getattr(self, name) for name in fields} | {"horizons": list(self.horizons)}
        return content | {"problems": len(self.examples), "data": digest(self.examples)}


def seed_of(*parts: object) -> int:
    """A seed for a sample: the same for all horizons, so that they are compared on the same draws."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def check(engine: Engine, config: RunConfig) -> None:
    """Fail if the engine cannot do this evaluation."""
    if not engine.plans and config.horizons != (None,):
        remedy = "Leave it out. The horizon of a server is set at its start."
        rule = "must not be given: there are no TTC layers here to set it"
        fail("horizon", rule, config.horizons, remedy, "no-layers")
    engine.check([config.ask(Key(example.number, 0, None)) for example in config.examples], config.max_tokens)


def run(
    engine: Engine,
    config: RunConfig,
    folder: Path,
    *,
    rank: int = 0,
    world: int = 1,
    report: Callable[[float, list[dict[str, Any]]], None] = lambda done, lines: None,
) -> int:
    """Generate the missing samples of this process's share. Returns how many are missing in all. `report` is called
    with the number of samples that are done, parts of samples included, and with the lines that were written.

    An interrupted run loses its current batch. Failed samples are tried again when it is resumed.
    """
    check(engine, config)
    settings, packages = config.settings() | engine.facts(), config.task.packages
    stored = Generations(folder, settings, _questions(config), rank, packages)
    done = stored.done()
    share = config.keys()[rank::world]
    count = len(share) - sum(key not in done for key in share)
    report(count, [])

    def watch(part: float) -> None:
        report(count + part, [])

    with ThreadPoolExecutor(GRADING_THREADS) as threads:
        for horizon in config.horizons:
            keys = [key for key in share if key.horizon == horizon and key not in done]
            asks, since = [config.ask(key) for key in keys], time.perf_counter()
            how = Sampling(config.max_tokens, config.temperature, horizon)
            for group in engine.answers(asks, how, watch) if keys else []:
                seconds = (time.perf_counter() - since) / len(group)
                lines = _graded(threads, config, [(keys[number], answer) for number, answer in group], seconds)
                stored.append(lines)
                count += len(group)
                report(count, lines)
                since = time.perf_counter()
    return missing(config, folder)


def run_with_progress(engine: Engine, config: RunConfig, folder: Path) -> dict[str, Any] | None:
    """Run this process's share; the first process shows a bar. Returns the summary, or None while others still work."""
    from ttcnet.machine import processes  # late, since it imports torch

    rank, world = processes.rank(), processes.count()
    columns = (Description(), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), disable=rank > 0) as progress:
        bar = progress.add_task(config.name, total=len(config.keys()[rank::world]))
        seen = Counter[str]()

        def report(done: float, lines: list[dict[str, Any]]) -> None:
            seen.update(line["verdict"] for line in lines)
            graded, failed = seen.total() - seen[FAILED], f", {seen[FAILED]:,} failed" if seen[FAILED] else ""
            right = f", {100 * seen['right'] / graded:.1f} % right" if graded else ""
            progress.update(bar, completed=done, description=config.name + right + failed)

        left = run(engine, config, folder, rank=rank, world=world, report=report)
    return summarise(folder, config.task) if left == 0 else None


def missing(config: RunConfig, folder: Path) -> int:
    """How many samples no process has answered or failed yet."""
    return len(set(config.keys()) - {key_of(line) for line in generations(folder)})


def _questions(config: RunConfig) -> list[dict[str, Any]]:
    """The content of problems.jsonl: questions and right answers."""
    return [
        {"number": example.number, "text": config.task.prompt(example), "answer": example.answer}
        for example in config.examples
    ]


def _graded(
    threads: ThreadPoolExecutor, config: RunConfig, group: list[tuple[Key, Answer]], seconds: float
) -> list[dict[str, Any]]:
    """Grade a group of answers. Returns lines for the file; `seconds` is the time per answer."""

    def grade(pair: tuple[Key, Answer]) -> Verdict | None:
        key, answer = pair
        return None if answer.finish == FAILED else graded(config.task, config.example(key), answer.text)

    lines = []
    for (key, answer), verdict in zip(group, threads.map(grade, group), strict=True):
        line = key._asdict() | {"seed": config.ask(key).seed, "seconds": round(seconds, 4)} | asdict(answer)
        line |= {"answer": verdict.answer if verdict else None, "verdict": verdict.kind if verdict else FAILED}
        line |= {"note": verdict.note} if verdict else {}
        line |= {"scores": dict(verdict.scores)} if verdict and verdict.scores else {}
        lines.append(line)
    return lines
