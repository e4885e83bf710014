"""Samples and their rewards: questions of a task, a copy of the model that answers them, and their grades."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn

import torch
from torch import nn

from ttcnet.errors import fail
from ttcnet.machine.processes import any_of_all, count, rank, whole
from ttcnet.models import fast_decoding
from ttcnet.models.decoding import Decoded, batches, decode, ends_of
from ttcnet.tasks import Example, Task, Verdict
from ttcnet.tasks.chat import prompt, question
from ttcnet.tasks.task import checked

from ..checkpoint import trained_parameters

GRADING_THREADS = min(8, os.cpu_count() or 1)
SHOWN = 80  # characters of an answer that a message quotes


class Sample(NamedTuple):
    """An answer to a question. If the model `ended` it, `answer` includes the token that did."""

    question: int
    answer: list[int]
    ended: bool
    verdict: Verdict
    reward: float


class GradingError(Exception):
    """A process could not grade an answer. No process has learned from the samples of the step."""

    def __init__(self, error: BaseException | None, about: str, first: int) -> None:
        super().__init__(str(error))
        self.error, self.about, self.first = error, about, first

    def report(self) -> NoReturn:
        """Turn the fault into an error of ours, from the first process that had one; the others end quietly."""
        if rank() != self.first or self.error is None:
            raise SystemExit(1)
        rule = "must grade any answer, and give the scores that rewards names"
        remedy = "Correct its grade(), and give the command again: the run resumes from this step."
        value = f"{type(self.error).__name__}: {self.error}, for {self.about}"
        fail("task", rule, value, remedy, "bad-task")


class Questions:
    """The examples of a task as prompts, and rewards of answers to them."""

    def __init__(
        self, task: Task, examples: Sequence[Example], tokenizer: Any, system: str | None, rewards: dict[str, float]
    ) -> None:
        self.task, self.examples, self.tokenizer, self.rewards = task, examples, tokenizer, rewards
        asked = (question(task.prompt(example), system or "") for example in examples)
        self.prompts = [prompt(messages, tokenizer) for messages in asked]

    def __len__(self) -> int:
        return len(self.prompts)

    def check(self, model: Any, max_tokens: int) -> None:
        """Fail if a prompt and its answer are too long for a model."""
        room, longest = getattr(model.config, "max_position_embeddings", None), max(map(len, self.prompts))
        if room is not None and longest + max_tokens > room:
            remedy = f"Pass {room - longest} or less." if room > longest else "Leave out long examples."
            rule = f"must leave room for prompts of up to {longest} tokens in the {room} that the model takes"
            fail("max_tokens", rule, max_tokens, remedy, "too-long")

    def worth(self, verdict: Verdict, ended: bool) -> float:
        """The reward of an answer."""
        known = {"right": verdict.right, "readable": verdict.answer is not None, "ended": ended} | dict(verdict.scores)
        found = sum(weight * float(known[name]) for name, weight in self.rewards.items())
        if not abs(found) < float("inf"):
            raise ValueError(f"a reward of {found}")
        return found

    def graded(self, places: Sequence[int], answers: Sequence[Decoded]) -> list[Sample]:
        """Answers to the questions at these places, with rewards. All processes have to call this: if grading fails in
        one of them, it fails in all."""
        texts = [self.tokenizer.decode(answer.tokens, skip_special_tokens=True) for answer in answers]

        def grade(number: int) -> Sample | BaseException:
            place, answer = places[number], answers[number]
            try:
                verdict = checked(self.task.grade(self.examples[place], texts[number]))
                return Sample(place, answer.tokens, answer.ended, verdict, self.worth(verdict, answer.ended))
            except (Exception, SystemExit) as error:  # the user's code may raise anything
                return error

        with ThreadPoolExecutor(GRADING_THREADS) as threads:
            found = list(threads.map(grade, range(len(places))))
        faults = [number for number, each in enumerate(found) if isinstance(each, BaseException)]
        failed = any_of_all(*(bool(faults) and rank() == number for number in range(count())))
        if any(failed):
            error, about = None, ""
            if faults:
                fault = found[faults[0]]
                error = fault if isinstance(fault, BaseException) else None
                about = f"example {self.examples[places[faults[0]]].number} and the answer {texts[faults[0]][:SHOWN]!r}"
            raise GradingError(error, about, failed.index(True))
        return [each for each in found if isinstance(each, Sample)]


class Actor:
    """A copy of a model that answers: in evaluation mode, whole in every process, in bfloat16 or in float32.

    Args:
        model: before it is spread over processes.
        tokens: of prompts and answers that are generated side by side.
    """

    def __init__(self, model: Any, tokenizer: Any, device: str, *, limit: int, tokens: int, bf16: bool) -> None:
        self.model = copy.deepcopy(model).eval()
        nn.Module.to(self.model, device, torch.bfloat16 if bf16 else torch.float32)
        self.limit, self.tokens, self.ends = limit, tokens, ends_of(model, tokenizer)
        if not self.ends:
            remedy = "Name it as eos_token in tokenizer_config.json, or as eos_token_id in generation_config.json."
            fail("tokenizer", "must have a token that ends answers", "none", remedy, "missing")
        self.pad = self.ends[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    @torch.no_grad()
    def follow(self, model: nn.Module) -> None:
        """Take over the weights of the model that learns. All processes have to call this."""
        own = trained_parameters(self.model)
        for name, parameter in trained_parameters(model).items():
            own[name].copy_(whole(parameter.detach()))

    def answers(
        self, prompts: Sequence[list[int]], seeds: Sequence[int], temperature: float, horizon: int | None = None
    ) -> list[Decoded]:
        """An answer to every prompt, which depends on its seed alone; at a horizon, or at the model's own."""
        if fast_decoding.fits(self.model):
            options: dict[str, Any] = dict(seeds=seeds, temperature=temperature, tokens=self.tokens, horizon=horizon)
            return fast_decoding.decode(self.model, prompts, self.limit, self.ends, **options)
        found: dict[int, Decoded] = {}
        for places in batches([len(each) + self.limit for each in prompts], self.tokens):
            asked, drawn = [prompts[place] for place in places], [seeds[place] for place in places]
            options = dict(limit=self.limit, temperature=temperature, ends=self.ends, pad=self.pad, horizon=horizon)
            found |= dict(zip(places, decode(self.model, asked, drawn, **options), strict=True))
        return [found[place] for place in range(len(prompts))]
