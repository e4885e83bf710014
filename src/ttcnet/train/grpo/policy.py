"""The objective of `ttcnet grpo`: learn from samples of the policy, by their rewards relative to their group."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ttcnet.errors import fail
from ttcnet.lqr.arithmetic import working_dtype
from ttcnet.machine.processes import count, rank, total
from ttcnet.models.horizon_and_loops import at_horizon
from ttcnet.nn import ttc_layers
from ttcnet.nn.horizon import parse
from ttcnet.nn.inserted import inserted_parameters
from ttcnet.terminal.console import tell

from ..learner import Batch, Learner
from ..schedule import parameter_groups, warm_up_and_cosine
from .loss import advantages, is_flat, terms
from .samples import Actor, Questions, Sample
from .settings import Reinforcement

COUNTED = ("samples", "reward", "right", "length", "cut", "flat", "tokens", "clipped", "kl", "entropy")
FLAT = (
    "All samples of every example had the same reward up to step {step}, so there is nothing to learn from. Take "
    "easier examples (or harder ones), more samples or a higher temperature; or fine-tune first."
)


@dataclass(frozen=True)
class Piece:
    """Samples that are computed at a time.

    Args:
        ids: prompts and answers, (samples, length), padded at the end.
        last: the number of scores at the end of a sample that are needed.
        at: the places of the scores of an answer's tokens, among the needed scores of all samples in a row.
        goals: these tokens.
        advantage: of each of them.
        scale: of their loss, so that all tokens of an update count alike.
        facts: sums over the samples, (6,): the first of COUNTED.
        horizon: at which the loss is computed; None is the model's own.
        old: log-probabilities of the tokens when they were drawn; None if they equal those that the loss computes.
        reference: log-probabilities under the model at the start, if they count.
    """

    ids: Tensor
    last: int
    at: Tensor
    goals: Tensor
    advantage: Tensor
    scale: float
    facts: Tensor
    horizon: int | None = None
    old: Tensor | None = None
    reference: Tensor | None = None


class Policy:
    """The order of examples depends on the seed alone; an epoch has each example once. Samples depend on the
    seed, the step and the weights."""

    counts = len(COUNTED)

    def __init__(
        self, model: nn.Module, actor: Actor, questions: Questions, held_out: Questions | None,
        reference: nn.Module | None, config: Reinforcement,
    ) -> None:  # fmt: skip
        self.model, self.actor, self.reference, self.config = model, actor, reference, config
        self.questions, self.held_out = questions, held_out
        self.steps, self.carried = config.steps, dict[str, Tensor]()
        plans = bool(ttc_layers(model))
        self.horizons, self.sampling = (
            parse(text, seed=config.seed) if plans and text is not None else None
            for text in (config.horizon, config.sampling_horizon)
        )
        each = config.batch * count()
        if config.batch % (count() * config.updates):
            rule = f"must be a multiple of {count()} processes times {config.updates} updates"
            fail("batch", rule, config.batch, "Pass a multiple.", "conflict")
        if len(questions) < config.batch:
            remedy = f"Pass {len(questions)} or less, or more examples."
            fail("batch", f"must be at most the {len(questions)} examples of the task", each, remedy, "too-large")
        self.each = len(questions) // config.batch  # steps of an epoch
        self._told = False

    def groups(self) -> list[dict[str, Any]]:
        """The trained parameters, in groups. Inserted layers may have a learning rate of their own."""
        config = self.config
        apart = () if config.inserted_lr is None else inserted_parameters(self.model)
        share = 1.0 if config.inserted_lr is None else config.inserted_lr / config.lr
        return parameter_groups(
            self.model, config.weight_decay, spared=lambda name: name.endswith("bias"), apart=apart, share=share
        )

    def rate(self, step: int) -> float:
        config = self.config
        return warm_up_and_cosine(step, self.steps, config.lr, config.lr, config.warm_up)

    def rows(self, step: int) -> list[int]:
        """The questions of a step. An epoch may leave out a few, others each time, if batches do not divide it."""
        epoch, place = divmod(step, self.each)
        generator = torch.Generator().manual_seed(2**20 * self.config.seed + epoch)
        order = torch.randperm(len(self.questions), generator=generator)
        return order[place * self.config.batch : (place + 1) * self.config.batch].tolist()

    def begin(self, step: int) -> Sequence[Batch]:
        """Draw and grade the samples of a step: pieces, as many for each of its updates."""
        steps = None if self.horizons is None else self.horizons.at(step)
        groups = self.draw(step, self.drawn_at(step))
        worth = torch.tensor([[sample.reward for sample in group] for group in groups], dtype=torch.float64)
        gained, flat = advantages(worth, self.config.scale).tolist(), is_flat(worth).tolist()
        pieces = list[Batch]()
        for first in range(self.config.updates):
            chosen = range(first, len(groups), self.config.updates)
            pairs = [(number, zip(groups[number], gained[number], strict=True)) for number in chosen]
            samples = [(sample, gain, flat[number]) for number, each in pairs for sample, gain in each]
            tokens = float(total(torch.tensor(sum(len(sample.answer) for sample, *_ in samples), dtype=torch.float64)))
            samples.sort(key=lambda each: len(self.questions.prompts[each[0].question]) + len(each[0].answer))
            size = self.config.device_batch
            parts = (samples[place : place + size] for place in range(0, len(samples), size))
            pieces += [(self.piece(part, count() / tokens, steps),) for part in parts]
        return pieces

    def drawn_at(self, step: int) -> int | None:
        """The horizon at which samples are drawn."""
        sampler = self.sampling or self.horizons
        return None if sampler is None else sampler.at(step)

    def draw(self, step: int, horizon: int | None) -> list[list[Sample]]:
        """The samples of this process's examples, group by group."""
        config, batch = self.config, self.rows(step)
        own = range(rank(), len(batch), count())
        asked = [(batch[place], place, number) for place in own for number in range(config.samples)]
        self.actor.follow(self.model)
        prompts = [self.questions.prompts[question] for question, *_ in asked]
        seeds = [_seed(config.seed, step, place, number) for _, place, number in asked]
        answers = self.actor.answers(prompts, seeds, config.temperature, horizon)
        found = self.questions.graded([question for question, *_ in asked], answers)
        return [found[first : first + config.samples] for first in range(0, len(found), config.samples)]

    def piece(self, samples: Sequence[tuple[Sample, float, bool]], scale: float, horizon: int | None) -> Piece:
        prompts = [self.questions.prompts[sample.question] for sample, *_ in samples]
        shortest = min(map(len, prompts)) - 1  # from here on scores are needed
        length = -(-max(len(p) + len(each.answer) for p, (each, *_) in zip(prompts, samples, strict=True)) // 8) * 8
        ids, inside = torch.zeros(len(samples), length, dtype=torch.long), torch.zeros(len(samples), length)
        gains = torch.zeros(len(samples), length)
        for row, (before, (sample, gain, _)) in enumerate(zip(prompts, samples, strict=True)):
            end = len(before) + len(sample.answer)
            ids[row, :end] = torch.tensor([*before, *sample.answer])
            inside[row, len(before) : end], gains[row, len(before) : end] = 1, gain
        goals, inside, gains = (x[:, shortest + 1 :].flatten() for x in (ids, inside, gains))
        at = inside.nonzero().squeeze(1)
        facts = [
            (1.0, sample.reward, sample.verdict.right, len(sample.answer), not sample.ended, flat)
            for sample, _, flat in samples
        ]
        sums = torch.tensor(facts, dtype=torch.float64).sum(0).float()
        return Piece(ids, length - shortest, at, goals[at], gains[at], scale, sums, horizon)

    def scores(self, model: nn.Module, piece: Piece) -> Tensor:
        """Log-probabilities at the tokens of answers, (tokens, words), at the temperature of the policy."""
        ids, at = piece.ids.to(self.device), piece.at.to(self.device)
        options = dict(use_cache=False, logits_to_keep=piece.last) | at_horizon(piece.horizon)
        found = model(input_ids=ids, **options).logits[:, :-1]
        logits = found.flatten(0, 1).index_select(0, at)
        return logits.to(working_dtype(logits.dtype)) / self.config.temperature

    def logprobs(self, model: nn.Module, piece: Piece) -> Tensor:
        """The log-probabilities of the tokens of answers."""
        return _of_tokens(self.scores(model, piece).log_softmax(-1), piece)

    def remembered(self, model: nn.Module, pieces: Iterable[Batch], step: int) -> list[Batch]:
        """Add to pieces the log-probabilities from before the updates, which the loss needs."""
        several, found = self.config.updates > 1 or self.sampling is not None, list[Batch]()
        for (piece,) in pieces:
            if several:
                drawn = replace(piece, horizon=self.drawn_at(step))
                piece = replace(piece, old=self.logprobs(model, drawn))
            if self.reference is not None:
                piece = replace(piece, reference=self.logprobs(self.reference, piece))
            found.append((piece,))
        return found

    def loss(self, model: nn.Module, piece: Piece) -> tuple[Tensor, Tensor]:
        every = self.scores(model, piece).log_softmax(-1)
        logprobs = _of_tokens(every, piece)
        old = logprobs.detach() if piece.old is None else piece.old
        options: dict[str, Any] = dict(clip=self.config.clip, clip_high=self.config.clip_high, beta=self.config.beta)
        found = terms(logprobs, old, piece.advantage.to(logprobs), reference=piece.reference, **options)
        with torch.no_grad():
            entropy = -(every.exp() * every).sum()
            sums = [torch.tensor(len(logprobs)).to(entropy), found.clipped.sum(), found.divergence.sum(), entropy]
            counted = torch.cat([piece.facts.to(self.device), torch.stack([x.to(entropy) for x in sums]).float()])
        return found.loss.sum() * piece.scale, counted

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def accuracy(self) -> dict[str, float]:
        """Figures of greedy answers to the held-out questions, at the model's own horizon. All processes have to call
        this."""
        if self.held_out is None:
            return {}
        own = range(rank(), len(self.held_out), count())
        self.actor.follow(self.model)
        prompts = [self.held_out.prompts[place] for place in own]
        answers = self.actor.answers(prompts, [0] * len(own), 0.0) if prompts else []
        right = sum(sample.verdict.right for sample in self.held_out.graded(own, answers))
        return {"held_out": float(total(torch.tensor(float(right)))) / len(self.held_out)}

    def news(self, step: int, steps: int, loss: float, counted: list[float]) -> dict[str, float]:
        sums = dict(zip(COUNTED, counted, strict=True))
        samples, tokens = max(sums.pop("samples"), 1.0), max(sums.pop("tokens"), 1.0)
        per_token = {name: sums.pop(name) / tokens for name in ("clipped", "kl", "entropy")}
        found = {"loss": loss / self.config.updates, "lr": self.rate(step - 1)}
        found |= {name: value / samples for name, value in sums.items()} | per_token
        if found["flat"] == 1.0 and not self._told:
            tell(FLAT.format(step=step))
            self._told = True
        if step % self.config.held_out_every == 0 or step == self.steps:
            found |= self.accuracy()
        return found

    def describe(self, news: dict[str, float]) -> str:
        text = f"reward {news['reward']:.3f}, {100 * news['right']:.1f} % right, {news['length']:.0f} tokens"
        return text + (f"; held out {100 * news['held_out']:.1f} %" if "held_out" in news else "")


class PolicyLearner(Learner):
    """A model that learns from its own samples. A step draws them, and makes `updates` updates of the weights."""

    objective: Policy

    def batches(self) -> Iterator[Sequence[Batch]]:
        pieces = self.objective.begin(self.step)
        with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, self.bf16):
            pieces = self.objective.remembered(self.parallel, pieces, self.step)
        each = len(pieces) // self.objective.config.updates
        for first in range(0, len(pieces), each):
            yield pieces[first : first + each]


def _of_tokens(every: Tensor, piece: Piece) -> Tensor:
    """Log-probabilities of the tokens of answers, picked from those of all words."""
    return every.gather(1, piece.goals.to(every.device)[:, None]).squeeze(1)


def _seed(*parts: int) -> int:
    """The seed of one sample, a hash of the parts."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:6], "big")
