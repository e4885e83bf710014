"""The log-likelihood of given solutions under a model, at any horizon. It tells models apart long before they answer
anything right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from ttcnet.errors import fail, not_finite
from ttcnet.models.decoding import batches
from ttcnet.models.horizon_and_loops import horizon
from ttcnet.tasks.statistics import Mean, average, ratio
from ttcnet.train.examples import IGNORED, Example, padded

TOKENS = 8192  # in a batch, padding included


@dataclass(frozen=True)
class Likelihood:
    """Log-likelihoods in nats, of answers alone.

    Args:
        horizon: of TTC layers; None if there are none, or if they kept their own.
        per_token: over all tokens; the interval treats whole solutions as the sample.
        per_solution: of sums over the tokens of a solution.
        each: those sums, in the order of the examples, to compare models example by example.
    """

    horizon: int | None
    solutions: int
    tokens: int
    per_token: Mean
    per_solution: Mean
    each: tuple[float, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dictionary for JSON, without `each`."""
        return {name: value for name, value in asdict(self).items() if name != "each"}


def likelihoods(
    model: Any,
    examples: Sequence[Example],
    horizons: Sequence[int | None] = (None,),
    *,
    tokens: int = TOKENS,
    watch: Callable[[int], None] = lambda _: None,
) -> Iterator[Likelihood]:
    """The likelihood of solutions, horizon after horizon.

    Args:
        model: any causal model of transformers, in evaluation mode and on its device.
        examples: from `ttcnet.train.examples.prepare`.
        horizons: for TTC layers; None leaves the model as it is, 0 switches them off.
        tokens: in a batch, padding included; a longer example is a batch of its own.
        watch: hears how many more solutions are done.
    """
    counts = answer_tokens(examples)
    if not all(counts) or not counts:
        remedy = "Use prepare()."
        fail("examples", "must all have an answer", f"{counts.count(0)} of {len(counts)} without", remedy, "no-data")
    for steps in horizons:
        with nullcontext() if steps is None else horizon(model, steps):
            sums = log_likelihoods(model, examples, tokens=tokens, watch=watch).tolist()
            yield Likelihood(steps, len(sums), sum(counts), ratio(sums, counts), average(sums), tuple(sums))


@torch.no_grad()
def log_likelihoods(
    model: Any, examples: Sequence[Example], *, tokens: int = TOKENS, watch: Callable[[int], None] = lambda _: None
) -> Tensor:
    """The log-likelihood of the answers in each example, a sum over tokens: (examples,) in float64 on the CPU."""
    device = next(model.parameters()).device
    sums = torch.empty(len(examples), dtype=torch.float64)
    for places in batches([len(example.input_ids) for example in examples], tokens):
        ids, labels = padded([examples[place] for place in places], model.config.pad_token_id or 0)
        ids, labels = ids.to(device), labels.to(device)
        mask = torch.arange(ids.shape[1], device=device) < torch.tensor(
            [[len(examples[place].input_ids)] for place in places], device=device
        )
        logits = model(input_ids=ids, attention_mask=mask.long(), use_cache=False).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="none"
        )
        sums[places] = -losses.view(len(places), -1).double().sum(1).cpu()
        for place in places:
            if not sums[place].isfinite():
                not_finite(f"solution {place + 1} of {len(examples)}")
        watch(len(places))
    return sums


def answer_tokens(examples: Sequence[Example]) -> list[int]:
    """The number of tokens that count in each example."""
    return [sum(label != IGNORED for label in example.labels[1:]) for example in examples]
