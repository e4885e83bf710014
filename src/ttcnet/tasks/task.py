"""The protocol of a task: examples, the prompt that asks them, grades for answers, and metrics over grades.

`ttcnet.evaluate` knows this protocol and no task. The page "Add a task" of the documentation has a whole one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol, runtime_checkable

from ttcnet.errors import TTCNetError, fail
from ttcnet.storage.reading import is_unicode

from .statistics import Mean, accuracy, pass_at_k

SHOWN = 80  # characters of an answer that a message quotes


@dataclass(frozen=True)
class Example:
    """A question and its answer.

    Args:
        number: counted from 1 in the order of the source.
        text: the question.
        answer: the right answer, in the form for readers.
        data: further values that grading needs, fit for JSON.
    """

    number: int
    text: str
    answer: str
    data: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Verdict:
    """The grade of one answer.

    Args:
        right: whether it is right.
        answer: the answer that was read from the text; None if there was none.
        note: the reason, or the error in grading.
        scores: further numbers that `Task.metrics` needs.
    """

    right: bool
    answer: str | None
    note: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of the verdict: right, wrong or unparsable. An unparsable answer counts as wrong."""
        return "right" if self.right else "wrong" if self.answer is not None else "unparsable"


@runtime_checkable
class Task(Protocol):
    """A task. A subclass defines `name`, `examples` and `grade`; the rest has a default.

    Attributes:
        name: of the folder that a run writes to.
        horizon: of TTC layers.
        samples: answers to an example.
        temperature: 0 is greedy.
        max_tokens: the most tokens of an answer.
        system: the system prompt that asks for reasoning; empty for none.
        system_no_cot: the system prompt that asks for the bare answer.
        packages: whose versions a summary records, because grades depend on them.
    """

    name: str
    horizon: int = 8
    samples: int = 1
    temperature: float = 0.0
    max_tokens: int = 4096
    system: str = ""
    system_no_cot: str = ""
    packages: tuple[str, ...] = ()

    def examples(self) -> list[Example]:
        """All examples, numbered from 1."""
        ...

    def grade(self, example: Example, text: str) -> Verdict:
        """Grade the text that a model wrote. Several threads may call it at the same time."""
        ...

    def prompt(self, example: Example) -> str:
        """The text of the user's turn."""
        return example.text

    def same(self, one: str, other: str) -> bool:
        """Whether two answers that were read mean the same; self-consistency counts them together then."""
        return one == other

    def metrics(self, verdicts: Sequence[Sequence[Verdict]], samples: int) -> dict[str, Mean | None]:
        """Figures by name, `accuracy` among them, of the verdicts of every example that has an answer; None where there
        is nothing to count.

        Accuracy is the mean over examples of the share of right answers. pass@k counts the examples with all `samples`
        answers.
        """
        right = [[verdict.right for verdict in each] for each in verdicts]
        found = {"accuracy": accuracy([fmean(each) for each in right])}
        if samples > 1:
            whole = [each for each in right if len(each) >= samples]
            passed = [pass_at_k(len(each), sum(each), samples) for each in whole]
            found[f"pass@{samples}"] = accuracy(passed)
        return found


@contextmanager
def asking(name: str, rule: str = "must be a task that can be asked", about: str = "") -> Iterator[None]:
    """Turn errors of a task's code inside the block into one of ours, because it may be a user's program."""
    try:
        yield
    except (TTCNetError, OSError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {error}".removesuffix(": ")
        remedy = "Correct it, and give the command again."
        fail("task", rule, f"{said}, in {name}{about and ', for '}{about}", remedy, "bad-task")


def graded(task: Task, example: Example, text: str) -> Verdict:
    """The grade of an answer, as it can be stored."""
    about = f"example {example.number} and the answer {text[:SHOWN]!r}"
    with asking(task.name, "must grade any answer", about):
        return checked(task.grade(example, text))


def checked(verdict: Any) -> Verdict:
    """A verdict of a user's as it can be stored, or an error of Python's: texts are Unicode, numbers are finite."""
    if not isinstance(verdict, Verdict):
        raise TypeError(f"grade() gave {verdict!r:.40} and no Verdict")
    for text in (verdict.answer, verdict.note):
        if not (text is None or isinstance(text, str)) or (text and not is_unicode(text)):
            raise TypeError(f"a Verdict with {text!r:.40} where a text belongs")
    scores = {str(name): each if type(each) in (int, float) else float(each) for name, each in verdict.scores.items()}
    if not all(map(math.isfinite, scores.values())):
        raise ValueError(f"a Verdict with the scores {scores}, which are not finite")
    return Verdict(bool(verdict.right), verdict.answer, verdict.note or "", scores)


def read_examples(task: Task, limit: int | None = None) -> list[Example]:
    """The examples of a task, or the first `limit`. An empty answer to each is graded, so that an example that
    cannot be graded is an error before anything is generated."""
    with asking(task.name, "must give its examples"):
        found = task.examples()
        if not isinstance(found, list) or not found or not all(isinstance(each, Example) for each in found):
            raise TypeError(f"examples() gave {found!r:.40}, which is no list of at least one Example")
        if [each.number for each in found] != [*range(1, len(found) + 1)]:
            raise ValueError("examples() gave numbers that do not count from 1")
        examples = found[:limit]
        digest(examples)  # which needs texts, and data fit for JSON
    for example in examples:
        with asking(task.name, "must give prompts", f"example {example.number}"):
            check_prompt(task, example)
        graded(task, example, "")
    return examples


def check_prompt(task: Task, example: Example) -> str:
    """The prompt for a model, if it can be written."""
    for text in (prompt := task.prompt(example), example.text, example.answer):
        if not isinstance(text, str):
            raise TypeError(f"{text!r:.40} where a text belongs")
        if not is_unicode(text):
            field = f"problem {example.number} of {task.name}"
            remedy = "Correct it: it has half a letter."
            fail(field, "must be whole Unicode text", repr(text[:40]), remedy, "bad-data")
    return prompt


def digest(examples: Iterable[Example]) -> str:
    """A fingerprint of questions and answers, by which a run notices other data."""
    text = json.dumps([(each.text, each.answer, *([each.data] if each.data else [])) for each in examples])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
