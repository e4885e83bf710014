"""The plans of a model as it starts to answer, and the states of the tokens that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ttcnet.errors import fail
from ttcnet.models.horizon_and_loops import horizon
from ttcnet.nn import TTCLayer, ttc_layers
from ttcnet.storage.reading import Row
from ttcnet.tasks.chat import conversation, prompt, question

from ..runs.storage import evaluation_settings, generations, problems_of


class Text(NamedTuple):
    """A question, and the chain of thought that followed."""

    messages: list[dict[str, str]]
    thought: str


class Question(NamedTuple):
    """The tokens of a question and of its chain of thought."""

    prompt: list[int]
    thought: list[int]


class Questions(NamedTuple):
    """The questions of a file, and how many rows were left out, by reason."""

    questions: list[Question]
    left_out: Counter[str]


class Trajectory(NamedTuple):
    """What one layer plans and what then happens: the plan of the first token of the answer, (T, size), the state that
    it starts from, (size,), and the states of the tokens after it, (L, size)."""

    plan: Tensor
    start: Tensor
    states: Tensor


def written(source: Iterable[Row]) -> Iterator[Text]:
    """Read texts from rows such as {"problem": ..., "solution": ...}; `ttcnet.tasks.chat` has other names of fields."""
    for place, content in source:
        try:
            *before, last = conversation(content)
            if last["role"] != "assistant":
                raise ValueError(f"the last message is of the {last['role']}")
        except ValueError as error:
            remedy = "Correct the row."
            fail("data", "must have a problem and a solution in every row", f"{place}: {error}", remedy, "bad-data")
        yield Text(before, last["content"])


def generated(folder: Path, steps: int | None = None) -> Iterator[Text]:
    """The answers in a folder of `ttcnet eval math`; of several horizons, those at `steps`."""
    system, asked = evaluation_settings(folder, system=str)["system"], problems_of(folder)
    lines = generations(folder)
    known = list(dict.fromkeys(line["horizon"] for line in lines))
    if len(known) > 1 and steps not in known:
        rule = f"must be one that {folder} has answers at, {', '.join(map(str, known))}"
        fail("horizon", rule, steps, "Name one of them.", "unknown-name")
    for line in lines:
        if len(known) == 1 or line["horizon"] == steps:
            yield Text(question(asked[line["problem"]].text, system), line["text"])


def questions(texts: Iterable[Text], tokenizer: Any, limit: int | None = None, longest: int | None = None) -> Questions:
    """The first `limit` questions, each once, tokenised as they would be asked and answered; the model takes `longest`
    tokens."""
    distinct: dict[str, Question] = {}
    left_out: Counter[str] = Counter()
    for messages, text in texts:
        if len(distinct) == limit:
            break
        asked, thought = prompt(messages, tokenizer), tokenizer(text, add_special_tokens=False).input_ids
        if len(thought) < 2:
            left_out["of less than two tokens"] += 1
        elif longest is not None and len(asked) + len(thought) > longest:
            left_out["too long for the model"] += 1
        elif str(messages) in distinct:
            left_out["with a question that came before"] += 1
        else:
            distinct[str(messages)] = Question(asked, thought)
    if len(distinct) < 2:
        others = ", ".join(f"{count} rows {why}" for why, count in left_out.items()) or "no others"
        found = f"{len(distinct)} ({others})"
        fail("data", "must have at least 2 questions", found, "Pass more: one's plan meets another's text.", "no-data")
    return Questions([*distinct.values()], left_out)


@torch.no_grad()
def trajectories(model: Any, asked: Iterable[Question], steps: int) -> Iterator[dict[str, Trajectory]]:
    """Yield the trajectories of every question, one for each TTC layer by name; all plans look `steps` ahead.

    Plans and tokens meet in the space of the layer's states, all heads side by side: the state of a token is the start
    of its own plan, W_in norm(x), with x the residual stream where the layer reads it. The token that plans is not
    among them: it would be compared with itself, but in same-question pairs only.
    """
    layers = ttc_layers(model)
    inputs: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            inputs[name] = given[0][0]

        return hook

    hooks = [layer.register_forward_pre_hook(keep(name)) for name, layer in layers.items()]
    try:
        for question in asked:
            ids = torch.tensor([[*question.prompt, *question.thought]], device=model.device)
            with horizon(model, steps):
                model(ids, use_cache=False, logits_to_keep=1)
            yield {name: _trajectory(layers[name], x[len(question.prompt) :], steps) for name, x in inputs.items()}
    finally:
        for each in hooks:
            each.remove()


def _trajectory(layer: TTCLayer, x: Tensor, steps: int) -> Trajectory:
    _, solution = TTCLayer.forward(layer, x[:1], steps, return_plan=True)
    h = solution.h[0].transpose(0, 1).flatten(1)  # (T + 1, heads * n)
    return Trajectory(h[1:], h[0], layer.problem(x[1:]).h0.flatten(1).to(h.dtype))
