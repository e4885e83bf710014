"""A model that learns by AdamW, step by step: by one process or several, compiled, captured as a CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from ttcnet.errors import fail
from ttcnet.machine.pieces import is_spread
from ttcnet.machine.processes import count, rank, total, whole

from .checkpoint import (
    check_carried,
    model_state,
    random_states,
    read_like,
    restore_model,
    restore_random,
    seed_all,
    trained_parameters,
)

Batch = Sequence[Any]  # tensors and numbers; a captured step has tensors alone


class Objective(Protocol):
    """The objective of a learner: data, a loss, and numbers for the log."""

    steps: int
    counts: int  # numbers that `loss` counts
    carried: dict[str, Tensor]  # passed from step to step, changed in place, saved in checkpoints

    def rate(self, step: int) -> float:
        """The learning rate of a step. Groups of parameters have a share of it."""

    def begin(self, step: int) -> Sequence[Batch]:
        """Prepare a step. Returns this process's share of the batch, in pieces whose gradients are summed."""

    def loss(self, model: nn.Module, *batch: Any) -> tuple[Tensor, Tensor]:
        """The loss of a piece, scaled so that the mean over processes is the loss of the whole batch; and counts for
        the log, (counts,)."""

    def news(self, step: int, steps: int, loss: float, counted: list[float]) -> dict[str, float]:
        """The numbers of a line of the log: the last `steps` steps up to `step`, over all processes."""

    def describe(self, news: dict[str, float]) -> str:
        """Put the numbers of `news` as text for the progress bar."""


class Learner:
    """Trains one model. Its state after a step depends on the objective and the seed alone.

    A captured step, with its optimizer, is one CUDA graph. It is replayed on a stream of its own, so learners on one
    GPU run side by side (and then share the GPU's random numbers, for dropout).

    Args:
        objective: data and loss.
        model: it is moved to the device; or it is spread over the processes already (`sharding`).
        groups: of parameters, for AdamW, with a "share" of the learning rate.
        clip: the greatest norm of the gradients.
        ema: the share of the running average of the weights that is kept at each step; 0 for none.
        bf16: compute in bfloat16, weights in float32.
        captured: on a GPU, and by one process alone.
        may_skip: there may be parameters that a step does not use.
    """

    def __init__(
        self,
        objective: Objective,
        model: nn.Module,
        groups: list[dict[str, Any]],
        device: torch.device | str,
        *,
        seed: int = 0,
        clip: float = 1.0,
        ema: float = 0.0,
        bf16: bool = False,
        captured: bool = False,
        may_skip: bool = False,
    ) -> None:
        self.objective, self.model, self.device = objective, model, torch.device(device)
        self.step, self.steps, self.seed, self.clip, self.ema = 0, objective.steps, seed, clip, ema
        sharded = any(is_spread(parameter) for parameter in model.parameters())
        if not sharded:
            nn.Module.to(model, self.device)
        on_gpu = self.device.type == "cuda"
        for group in groups:  # a captured step reads its rate from memory
            group["lr"] = torch.zeros((), device=self.device) if captured else 0.0
        self.optimizer: Any = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=on_gpu, capturable=captured)
        self.parallel: nn.Module = model
        if count() > 1 and not sharded:
            self.parallel = DistributedDataParallel(model, find_unused_parameters=may_skip)
        self.bf16 = bf16 and not sharded  # FSDP2 does it
        self._trained = trained_parameters(self.model)
        self.average = [p.detach().clone() for p in self._trained.values()] if ema else []
        self.sums = torch.zeros(2 + objective.counts, device=self.device)  # loss, norm of the gradients, counts
        self._since = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream() if captured else None
        # a captured step reads its batch here
        self._fixed = [x.clone() for x in objective.begin(0)[0]] if captured else []
        seed_all(seed)  # random numbers of dropout

    def advance(self) -> None:
        """Take one step."""
        rate = self.objective.rate(self.step)
        if self._stream is None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group["share"]
            if count() > 1:  # each process has its own dropout; the checkpoint has the random states of the first alone
                seed_all(1_000_003 * self.seed + self.step * count() + rank())
            for batches in self.batches():
                self._compute(batches)
        else:
            (batch,) = self.objective.begin(self.step)
            self._stream.wait_stream(torch.cuda.current_stream())
            for part in batch:
                part.record_stream(self._stream)  # their memory is not reused until this stream has read them
            with torch.cuda.stream(self._stream):
                for group in self.optimizer.param_groups:
                    group["lr"].fill_(rate * group["share"])
                for there, part in zip(self._fixed, batch, strict=True):
                    there.copy_(part)
                self._replay()
        self.step += 1

    def batches(self) -> Iterable[Sequence[Batch]]:
        """The pieces of a step, one list for each update of the weights."""
        yield self.objective.begin(self.step)

    def _compute(self, batches: Sequence[Batch]) -> None:
        losses, counts = torch.zeros((), device=self.device), torch.zeros_like(self.sums[2:])
        for place, batch in enumerate(batches):
            with self._unsynchronized(place + 1 < len(batches)):
                with torch.autocast(self.device.type, torch.bfloat16, self.bf16, cache_enabled=self._stream is None):
                    loss, counted = self.objective.loss(self.parallel, *batch)
                loss.backward()
            losses, counts = losses + loss.detach(), counts + counted
        norm = whole(clip_grad_norm_(self._trained.values(), self.clip))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            if self.average:
                torch._foreach_lerp_(self.average, list(self._trained.values()), 1 - self.ema)
            self.sums += torch.cat([torch.stack([losses, norm.to(losses)]), counts])

    @contextmanager
    def _unsynchronized(self, more: bool) -> Iterator[None]:
        """DDP exchanges gradients after the last piece only."""
        if more and isinstance(self.parallel, DistributedDataParallel):
            with self.parallel.no_sync():
                yield
        else:
            yield

    def _replay(self) -> None:
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self._graph.replay()

    def _capture(self) -> None:
        """Record a step as a CUDA graph. The steps that warm up for it are undone."""
        before = {name: x.detach().clone() for name, x in self._changed().items()}
        sums, random = self.sums.clone(), random_states()
        for _ in range(3):
            self._compute([self._fixed])
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._compute([self._fixed])
        with torch.no_grad():
            for name, x in self._changed().items():
                x.copy_(before[name]) if name in before else x.zero_()
            self.sums.copy_(sums)
        restore_random(random)

    def _changed(self) -> dict[str, Tensor]:
        """All tensors that a step changes."""
        averages = zip(self._trained, self.average, strict=False)
        others = {f"average/{name}": x for name, x in averages} | {
            f"task/{name}": x for name, x in self.objective.carried.items()
        }
        return model_state(self.model, self.optimizer) | others

    def finish_step(self) -> None:
        """Wait until the GPU has finished the step."""
        if self._stream is not None:
            self._stream.synchronize()

    def state(self) -> dict[str, Tensor]:
        self.finish_step()
        return self._changed()

    def restore(self, tensors: Mapping[str, Tensor], step: int, source: str) -> None:
        if self.average and (missing := [name for name in self._trained if f"average/{name}" not in tensors]):
            value, remedy = f"none of {', '.join(missing)[:200]}", "It is damaged: delete it."
            fail(source, "must hold the average of every weight", value, remedy, code="damaged")
        check_carried(tensors, self.objective.carried, source)
        restore_model(tensors, self.model, self.optimizer, source)
        for name, x in self.objective.carried.items():
            x.copy_(tensors[f"task/{name}"])
        for name, x in zip(self._trained, self.average, strict=False):
            x.copy_(read_like(tensors, f"average/{name}", x, source))
        self.step = self._since = step

    def news(self) -> dict[str, float]:
        """The objective's numbers of the steps since the last call. A loss that is not finite is an error."""
        self.finish_step()
        loss, norm, *counted = total(self.sums).tolist()
        steps = max(self.step - self._since, 1)
        self.sums.zero_()
        self._since = self.step
        for what, number in (("loss", loss), ("the norm of the gradients", norm)):
            if not math.isfinite(number):
                remedy = "Lower lr, or look for odd data and odd weights. The last checkpoint is from an earlier step."
                fail(what, "must be a finite number", f"{number} at step {self.step}", remedy, code="diverged")
        return self.objective.news(self.step, steps, loss / steps / count(), counted)

    def describe(self, news: dict[str, float]) -> str:
        return self.objective.describe(news)
