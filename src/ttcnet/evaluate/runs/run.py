"""Put problems to an engine, grade what it says, and keep every answer."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn

from ttcnet.bars import Bar, Description
from ttcnet.errors import fail
from ttcnet.reading import is_unicode
from ttcnet.tasks import countdown
from ttcnet.tasks.math import Graders, Problem, Verdict, conversation
from ttcnet.tasks.math.benchmarks import digest

from ..engines.base import FAILED, Answer, Ask, Engine
from .storage import Key, RunFolder, generations, key_of
from .summary import summarise


@dataclass(frozen=True)
class Plan:
    """What to ask: every problem at every horizon (None where there is none to set), `samples` times."""

    name: str
    problems: list[Problem]
    horizons: tuple[int | None, ...]
    samples: int
    temperature: float
    max_tokens: int
    system: str
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples > 1 and self.temperature == 0:
            fail("temperature", f"must be above 0 for {self.samples} samples to differ", 0, "Pass, say, 0.6.")
        if not math.isfinite(self.temperature):
            fail("temperature", "must be finite", self.temperature, "Pass, say, 0.6.")
        for problem in self.problems:
            if not is_unicode(problem.text):
                field = f"problem {problem.number} of {self.name}"
                fail(field, "must be whole Unicode text", repr(problem.text[:40]), "Correct it: it has half a letter.")

    def keys(self) -> list[Key]:
        numbers, samples = [problem.number for problem in self.problems], range(self.samples)
        return [Key(number, sample, horizon) for horizon, number, sample in product(self.horizons, numbers, samples)]

    def ask(self, key: Key) -> Ask:
        problem = self.problems[key.problem - 1]
        name = f"problem {key.problem} of {self.name}, sample {key.sample}"
        return Ask(conversation(problem.text, self.system), seed_of(self.seed, key.problem, key.sample), name=name)

    def settings(self) -> dict[str, Any]:
        content = asdict(self) | {"problems": len(self.problems), "data": digest(self.problems)}
        return content | {"horizons": list(self.horizons)}


def seed_of(*parts: object) -> int:
    """A seed for a sample: the same for all horizons, so that they are compared on the same draws."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def check(engine: Engine, plan: Plan) -> None:
    """Fail if the engine cannot do what is planned."""
    if not engine.plans and plan.horizons != (None,):
        remedy = "Leave it out. A server plans as far as it was told to at its start."
        fail("horizon", "must not be given: there are no TTC layers here to set it", plan.horizons, remedy)
    engine.check([plan.ask(Key(problem.number, 0, None)) for problem in plan.problems], plan.max_tokens)


def run(
    engine: Engine,
    plan: Plan,
    folder: Path,
    graders: Graders,
    *,
    rank: int = 0,
    world: int = 1,
    report: Callable[[float, list[dict[str, Any]]], None] = lambda done, lines: None,
) -> int:
    """Make what is not there yet of this process's share, and return how many are missing of all. `report` hears how
    many samples are done, parts of samples included, and the lines that were written.

    A killed run loses the batch in the making. What failed is tried again by the next run.
    """
    check(engine, plan)
    graders.check()
    store = RunFolder(folder, plan.settings() | engine.facts(), plan.problems, rank)
    done = store.done()
    share = plan.keys()[rank::world]
    count = len(share) - sum(key not in done for key in share)
    report(count, [])

    def watch(part: float) -> None:
        report(count + part, [])

    for horizon in plan.horizons:
        keys = [key for key in share if key.horizon == horizon and key not in done]
        asks, since = [plan.ask(key) for key in keys], time.perf_counter()
        options: dict[str, Any] = dict(max_tokens=plan.max_tokens, temperature=plan.temperature, horizon=horizon)
        for group in engine.answers(asks, **options, watch=watch) if keys else []:
            seconds = (time.perf_counter() - since) / len(group)
            lines = _judged(graders, plan, [(keys[number], answer) for number, answer in group], seconds)
            store.append(lines)
            count += len(group)
            report(count, lines)
            since = time.perf_counter()
    return missing(plan, folder)


def run_watched(engine: Engine, plan: Plan, folder: Path, graders: Graders) -> dict[str, Any] | None:
    """This process's share of a run, with a bar by the first one. The summary; None while other processes work."""
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    columns = (Description(), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), disable=rank > 0) as progress:
        task = progress.add_task(plan.name, total=len(plan.keys()[rank::world]))
        seen = Counter[str]()

        def report(done: float, lines: list[dict[str, Any]]) -> None:
            seen.update(line["verdict"] for line in lines)
            graded, failed = seen.total() - seen[FAILED], f", {seen[FAILED]:,} failed" if seen[FAILED] else ""
            right = f", {100 * seen['right'] / graded:.1f} % right" if graded else ""
            progress.update(task, completed=done, description=plan.name + right + failed)

        missing = run(engine, plan, folder, graders, rank=rank, world=world, report=report)
    return summarise(folder) if missing == 0 else None


def missing(plan: Plan, folder: Path) -> int:
    """How many samples there is nothing about yet, from no process."""
    return len(set(plan.keys()) - {key_of(line) for line in generations(folder)})


def _verdict(graders: Graders, problem: Problem, text: str) -> Future[Verdict]:
    if problem.puzzle is None:
        return graders.submit(problem.answer, text)
    right, reason = countdown.grade(problem.puzzle, text)
    done = Future[Verdict]()
    done.set_result(Verdict(right, countdown.stated(text), reason))
    return done


def _judged(graders: Graders, plan: Plan, group: list[tuple[Key, Answer]], seconds: float) -> list[dict[str, Any]]:
    """Lines for the file. `seconds` is the share of the time that went by."""
    waiting = [
        None if answer.finish == FAILED else _verdict(graders, plan.problems[key.problem - 1], answer.text)
        for key, answer in group
    ]
    lines = []
    for (key, answer), verdict in zip(group, waiting, strict=True):
        judged = None if verdict is None else verdict.result()
        lines.append(
            key._asdict()
            | {"seed": plan.ask(key).seed, "seconds": round(seconds, 4)}
            | asdict(answer)
            | {"answer": judged.answer if judged else None, "verdict": judged.kind if judged else FAILED}
            | ({"note": judged.note} if judged else {})
        )
    return lines
