"""What a task is: examples, the prompt that asks them, grades for answers, and metrics over grades.

`ttcnet.evaluate` knows this protocol and no task. The page "Add a task" of the documentation has a whole one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol, runtime_checkable

from .statistics import Mean, accuracy, pass_at_k


@dataclass(frozen=True)
class Example:
    """A question and its answer.

    Args:
        number: counted from 1 in the order of the source.
        text: the question.
        answer: the right answer, as it is shown to a reader.
        data: what grading needs besides, fit for JSON.
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
        answer: what was read from the text as the answer; None if nothing could be.
        note: the reason, or what went wrong in grading.
        scores: further numbers that `Task.metrics` needs.
    """

    right: bool
    answer: str | None
    note: str = ""
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """right, wrong or unparsable. An unparsable answer counts as wrong."""
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
        """Judge the text that a model wrote. Several threads may call it at the same time."""
        ...

    def prompt(self, example: Example) -> str:
        """What the user says to the model."""
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


def read_examples(task: Task, limit: int | None = None) -> list[Example]:
    """The examples of a task, or the first `limit`. An empty answer to each is graded, so that what cannot be graded is
    an error before anything is generated."""
    examples = task.examples()[:limit]
    for example in examples:
        task.grade(example, "")
    return examples


def digest(examples: Iterable[Example]) -> str:
    """A fingerprint of questions and answers, by which a run notices other data."""
    text = json.dumps([(each.text, each.answer, *([each.data] if each.data else [])) for each in examples])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
