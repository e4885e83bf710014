"""Tree of thoughts (Yao et al. 2023): an engine on top of another one. It samples the next lines of a solution, has the
model rate them, and continues from the best."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from .base import CUT, FAILED, Answer, Ask, Engine, Groups, Sampling, Watch, unwatched

BRANCHES = 3  # thoughts that are tried after every one that was kept
LINE, RATING = 128, 8  # most tokens of a thought, and of a rating
VALUE = """Problem:
{problem}

A solution, as far as it goes:
{thoughts}

How likely is it that this leads to the right answer? Reply with one number, from 1 (impossible) to 10 (certain)."""
NUMBER = re.compile(r"\d+")
DIGITS = 4  # the most digits of a number that can be a rating


@dataclass(frozen=True)
class Thought:
    """The beginning of a solution, whether it is complete, and the model's rating of it, 0 to 10."""

    text: str = ""
    whole: bool = False
    value: float | None = None


@dataclass
class _Search:
    """The search for one answer: its best thoughts, and its cost so far."""

    ask: Ask
    thoughts: list[Thought] = field(default_factory=lambda: [Thought()])
    prompt_tokens: int = 0
    new_tokens: int = 0
    failure: str = ""

    def open(self) -> list[Thought]:
        return [] if self.failure else [thought for thought in self.thoughts if not thought.whole]

    def count(self, answer: Answer) -> None:
        self.prompt_tokens += answer.prompt_tokens or 0
        self.new_tokens += answer.new_tokens or 0
        if answer.finish == FAILED:
            self.failure = answer.note


@dataclass
class Tree:
    """Breadth-first search: `breadth` thoughts are kept at each of `depth` levels, the best of them is then written to
    its end. Tokens are all that were generated, ratings included."""

    engine: Engine
    breadth: int = 2
    depth: int = 4
    together: int = 32  # examples in a group

    @property
    def plans(self) -> bool:
        return self.engine.plans

    def facts(self) -> dict[str, str]:
        return self.engine.facts() | {"search": f"tree, breadth {self.breadth} of {BRANCHES} each, depth {self.depth}"}

    def check(self, asks: Sequence[Ask], max_tokens: int) -> None:
        rating = [replace(ask, messages=_value(ask, Thought())) for ask in asks]
        self.engine.check([*asks, *rating], max_tokens + RATING)

    def answers(self, asks: Sequence[Ask], how: Sampling, watch: Watch = unwatched) -> Groups:
        for start in range(0, len(asks), self.together):
            numbers = range(start, min(start + self.together, len(asks)))
            searches = [_Search(asks[number]) for number in numbers]
            step = max(1, min(LINE, how.max_tokens // (self.depth + 1)))
            for level in range(self.depth):
                self._grow(searches, level, replace(how, max_tokens=step, stop=("\n",)))
                self._rate(searches, Sampling(RATING, 0.0, how.horizon))
                watch(len(numbers) * (level + 1) / (self.depth + 1))
            self._finish(searches, replace(how, max_tokens=max(1, how.max_tokens - self.depth * step), stop=()))
            yield [(number, _answer(search)) for number, search in zip(numbers, searches, strict=True)]

    def _ask(self, questions: list[tuple[_Search, Ask]], how: Sampling) -> list[Answer]:
        """Answers in order, charged to the searches that asked."""
        found: dict[int, Answer] = {}
        asks = [ask for _, ask in questions]
        for group in self.engine.answers(asks, how) if asks else []:
            found |= dict(group)
        for number, (search, _) in enumerate(questions):
            search.count(found[number])
        return [found[number] for number in range(len(questions))]

    def _grow(self, searches: list[_Search], level: int, how: Sampling) -> None:
        """Replace each unfinished thought by its possible continuations."""
        grown = [
            (search, thought, replace(search.ask, prefix=thought.text, seed=_seed(search.ask, level, place, branch)))
            for search in searches
            for place, thought in enumerate(search.open())
            for branch in range(BRANCHES)
        ]
        answers = self._ask([(search, ask) for search, _, ask in grown], how)
        for search in searches:
            search.thoughts = [thought for thought in search.thoughts if thought.whole]
        for (search, before, _), answer in zip(grown, answers, strict=True):
            whole = answer.finish != CUT and "\n" not in answer.text  # a token may have more behind the end of a line
            thought = Thought(before.text + answer.text, whole)
            if thought.text not in [other.text for other in search.thoughts]:
                search.thoughts.append(thought)

    def _rate(self, searches: list[_Search], how: Sampling) -> None:
        """Let the model rate the new thoughts, and keep the best."""
        new = [
            (search, place, replace(search.ask, messages=_value(search.ask, thought)))
            for search in searches
            for place, thought in enumerate([] if search.failure else search.thoughts)
            if thought.value is None
        ]
        answers = self._ask([(search, ask) for search, _, ask in new], how)
        for (search, place, _), answer in zip(new, answers, strict=True):
            search.thoughts[place] = replace(search.thoughts[place], value=_number(answer.text))
        for search in searches:
            search.thoughts = sorted(search.thoughts, key=lambda thought: -(thought.value or 0.0))[: self.breadth]

    def _finish(self, searches: list[_Search], how: Sampling) -> None:
        """Write the best thought of every search to its end."""
        unfinished = [search for search in searches if not search.failure and not search.thoughts[0].whole]
        asks = [(search, replace(search.ask, prefix=search.thoughts[0].text)) for search in unfinished]
        for (search, _), answer in zip(asks, self._ask(asks, how), strict=True):
            best = search.thoughts[0]
            search.thoughts[0] = replace(best, text=best.text + answer.text, whole=answer.finish != CUT)


def _seed(ask: Ask, level: int, place: int, branch: int) -> int:
    return (ask.seed + 1_000_003 * (1 + (level * 64 + place) * BRANCHES + branch)) % (1 << 31)


def _value(ask: Ask, thought: Thought) -> list[dict[str, str]]:
    content = VALUE.format(problem=ask.messages[-1]["content"], thoughts=thought.text)
    return [{"role": "user", "content": content}]


def _number(text: str) -> float:
    """The rating in a text; 0 if there is none."""
    found = NUMBER.search(text)
    return float(found[0]) if found and len(found[0]) <= DIGITS and 1 <= int(found[0]) <= 10 else 0.0


def _answer(search: _Search) -> Answer:
    if search.failure:
        return Answer("", None, search.new_tokens, FAILED, note=search.failure)
    best = search.thoughts[0]
    return Answer(best.text, search.prompt_tokens, search.new_tokens, "stop" if best.whole else CUT)
