"""Many small models as one: all seeds and learning rates of a task and an arm are trained side by side, as a stack."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

from ttcnet.errors import fail
from ttcnet.nn.horizon import parse
from ttcnet.storage.reading import read_json
from ttcnet.storage.writing import write_json
from ttcnet.train.loop import train
from ttcnet.train.run import Run
from ttcnet.train.schedule import warm_up_and_cosine

METRICS = "metrics.json"


@dataclass(frozen=True)
class Settings:
    """Settings of a run."""

    task: str
    arm: str
    steps: int = 4000
    batch: int = 256
    pool: int = 524_288  # tokens that are trained on
    judged: int = 8192  # tokens of validation, of test, and held out
    seeds: int = 5
    rates: tuple[float, ...] = (3e-3, 1e-2, 2e-2)
    weight_decay: float = 0.1
    horizon: str = "pln:8,0.1,32"  # in training, unless the arm has its own
    width: int = 64
    heads: int = 4
    state_size: int = 16
    rank: int = 16
    first_seed: int = 0  # others than 0 to repeat a result


class Tokens(NamedTuple):
    """Features (N, features) and targets (N, m), both of variance 1 over the training tokens, in float32."""

    x: Tensor
    y: Tensor


class Reader(nn.Module):
    """Maps features to targets through one layer with its residual."""

    def __init__(self, features: int, width: int, actions: int, layer: nn.Module) -> None:
        super().__init__()
        self.embed, self.layer, self.read = nn.Linear(features, width), layer, nn.Linear(width, actions)

    def forward(self, x: Tensor, horizon: int) -> Tensor:
        return self.read(self.layer(self.embed(x), horizon))


class Stack(ABC):
    """Many small models that are trained together, its members: seed by seed, and within a seed rate by rate.

    Attributes:
        spared: weights without weight decay, by the last parts of their names, besides all vectors.
        horizon: the sampler of horizons in training, if the arm has its own.
    """

    spared: tuple[str, ...] = ()
    horizon: str | None = None

    def __init__(self, settings: Settings, device: str = "cpu") -> None:
        self.settings, self.device, self.step, self.steps = settings, device, 0, settings.steps
        self.losses = torch.empty(0)  # loss of every member at the last step
        self.pool = self._pool()
        self.scale = self.pool.y.std(0)
        size = {name: getattr(settings, name) for name in ("width", "heads", "state_size", "rank")}
        members = []
        self.seeds = range(settings.first_seed, settings.first_seed + settings.seeds)
        for seed in self.seeds:
            for _ in settings.rates:
                torch.manual_seed(seed)
                layer = self._layer(size)
                reader = Reader(self.pool.x.shape[-1], settings.width, self.pool.y.shape[-1], layer)
                members.append(reader.to(device))
        self.parameters = sum(weight.numel() for weight in layer.parameters())
        stacked, _ = stack_module_state(members)
        self.flat = torch.cat([x.detach().flatten(1) for x in stacked.values()], 1)  # (members, weights)
        self.weights = self._named({name: x.shape[1:] for name, x in stacked.items()})
        self.moments = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.decayed = {
            name for name, x in stacked.items() if x.ndim > 2 and name.rpartition(".")[2] not in self.spared
        }
        decay = [torch.full_like(x[0].flatten(), name in self.decayed) for name, x in self.weights.items()]
        self.decay = settings.weight_decay * torch.cat(decay)
        self.rates = torch.tensor(settings.rates, device=device).repeat(settings.seeds)
        self.horizons = parse(settings.horizon if self.horizon is None else self.horizon, seed=0)
        shape = members[0].to("meta")

        def answer(weights: dict[str, Tensor], x: Tensor, horizon: int | Tensor) -> Tensor:
            return functional_call(shape, weights, (x, horizon))

        def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor, horizon: int) -> Tensor:
            return (answer(weights, x, horizon) - y).square().mean()

        self.member, self.answer = answer, vmap(answer, in_dims=(0, None, None))
        self.gradients = vmap(grad_and_value(loss), in_dims=(0, 0, 0, None))

    @abstractmethod
    def _pool(self) -> Tokens:
        """The tokens that are trained on."""

    @abstractmethod
    def _layer(self, size: dict[str, int]) -> nn.Module:
        """The layer of a member, drawn with torch's own random numbers."""

    def advance(self) -> None:
        """One step of training."""
        places = self._places()
        x, y = self.pool.x[places], self.pool.y[places] / self.scale
        grads, self.losses = self.gradients(self.weights, x, y, self.horizons.at(self.step))
        self._descend(grads)
        self.step += 1

    def news(self) -> dict[str, float]:
        """The lowest loss; members with too high a rate may have none."""
        finite = self.losses[self.losses.isfinite()]
        return {"lowest_loss": float(finite.min())} if len(finite) else {}

    def describe(self, news: dict[str, float]) -> str:
        name = f"{self.settings.task}/{self.settings.arm}"
        return f"{name}: lowest loss {news['lowest_loss']:.3f}" if news else f"{name}: no loss is finite"

    def _places(self) -> Tensor:
        """The tokens of this step, (members, batch): those of a seed are the same for all its rates."""
        rows = []
        for seed in self.seeds:
            random = torch.Generator().manual_seed(1_000_000 * (seed + 1) + self.step)
            rows.append(torch.randint(self.settings.pool, (self.settings.batch,), generator=random))
        return torch.stack(rows).to(self.device).repeat_interleave(len(self.settings.rates), 0)

    def _named(self, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
        """The weights by their names: views, which change as the flat ones do."""
        parts = self.flat.split([shape.numel() for shape in shapes.values()], 1)
        return {name: part.unflatten(1, shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}

    def _descend(self, grads: dict[str, Tensor]) -> None:
        """Take a step of AdamW, separately for every member."""
        grad, (first, second), count = torch.cat([x.flatten(1) for x in grads.values()], 1), self.moments, self.step + 1
        rates = (self.rates * warm_up_and_cosine(self.step, self.settings.steps, 1.0, 0.1, 0.05)).unsqueeze(1)
        grad = grad / grad.norm(dim=1, keepdim=True).clamp_min(1)
        first.lerp_(grad, 0.1)
        second.lerp_(grad.square(), 0.05)
        self.flat.mul_(1 - rates * self.decay)
        self.flat.sub_(rates * (first / (1 - 0.9**count)) / ((second / (1 - 0.95**count)).sqrt() + 1e-8))

    @torch.no_grad()
    def judge(self, tokens: Tokens, horizon: int, chosen: int | None = None) -> list[float]:
        """The unexplained variance of every member, or of those with the chosen rate."""
        weights = self.weights
        if chosen is not None:
            weights = {name: x[chosen :: len(self.settings.rates)].contiguous() for name, x in weights.items()}
        answers = torch.cat([self.answer(weights, x, horizon) for x in tokens.x.split(2048)], 1) * self.scale
        errors = (answers - tokens.y).square().mean((1, 2))
        return (errors / (tokens.y - tokens.y.mean(0)).square().mean()).tolist()

    def state(self) -> dict[str, Tensor]:
        return {"weights": self.flat, "first": self.moments[0], "second": self.moments[1]}

    def restore(self, tensors: Mapping[str, Tensor], step: int, source: str) -> None:
        for name, x in self.state().items():
            if name not in tensors or tensors[name].shape != x.shape:
                remedy = "It is damaged: delete it."
                fail(source, f"must hold {name} of all members", list(tensors), remedy, code="damaged")
            x.copy_(tensors[name])
        self.step = step


def carry_out(
    name: str,
    settings: Settings,
    folder: Path,
    start: Callable[[Any, str], Any],
    results: Callable[[Any], dict[str, Any]],
    device: str,
    every: int,
    save_every: int,
    **options: Any,
) -> dict[str, Any]:
    """Train, evaluate and write a run into its folder; or read its result there.

    Args:
        start: makes the stack, from settings and device.
        results: figures of the trained stack.
        every: steps between lines of the log; `save_every`: between checkpoints.
        options: of `ttcnet.train.run.Run`.
    """
    run, metrics = Run(folder, asdict(settings), results=[METRICS], **options), folder / METRICS
    if run.is_done:
        run.check_settings()
        return read_json(metrics, f"Remove {folder}.")
    with run:
        began, stack = time.monotonic(), start(settings, device)
        train((run, stack), every=every, save_every=save_every)
        found = {"run": name} | results(stack) | {"seconds": round(time.monotonic() - began, 1)} | run.provenance()
        write_json(metrics, found)
        run.forget()
    return found
