"""Everything that is trained by the one loop, as small as it can be: for tests that hold for all of it."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import torch

from tests.train.conftest import ADAPTER
from tests.train.tiny import model, sums, tokenizer

STEPS, SAVE_EVERY = 7, 3


class Engine:
    """A kind of run of 7 steps, with a line of the log for every second one, and a checkpoint for every third."""

    keep = 1
    changed: ClassVar = dict(seed=1)
    without_dropout: ClassVar = {}  # so that several processes compute the same as one
    joins = True  # several processes can train it

    def go(self, out: Path, **changes) -> dict[str, torch.Tensor]:
        """Runs to the end; returns the trained weights and other results."""
        raise NotImplementedError

    @property
    def trained(self):
        """The class that takes the steps."""
        from ttcnet.train.learner import Learner

        return Learner


class Sudoku(Engine):
    results = ("model",)
    without_dropout: ClassVar = dict(dropout=0.0)

    def __init__(self, **changes):
        self.changes = changes

    def go(self, out, **changes):
        from ttcnet.machine.processes import join_job
        from ttcnet.tasks.sudoku.settings import SudokuTraining
        from ttcnet.train.sudoku import train

        sizes = dict(steps=STEPS, batch=4, layers=2, width=32, heads=2, dropout=0.1, augmentation="relabel+reveal")
        options = dict(every=2, save_every=SAVE_EVERY, report_to=changes.pop("report_to", "none"))
        config = replace(SudokuTraining(**sizes), **self.changes | changes)
        net = train(config, boards(), out, join_job("cpu"), **options)
        return {name: parameter.detach() for name, parameter in net.named_parameters()}


@cache
def boards():
    from ttcnet.tasks.sudoku import generate

    return generate(40, givens=(30, 34), seed=0)


class FineTuning(Engine):
    keep = 2
    without_dropout: ClassVar = dict(adapter=ADAPTER, device_batch=2)

    def __init__(self, **changes):
        self.changes = changes
        self.results = ("model",) if changes.get("train", "all") == "all" else ("adapter",)

    def go(self, out, **changes):
        from ttcnet.settings import from_table
        from ttcnet.train import settings
        from ttcnet.train.sft import fine_tune

        data = out.parent / "data.jsonl"
        if not data.exists():
            sums(data)
        values = dict(model="tiny", data=str(data), out=str(out), adapter=ADAPTER | {"dropout": 0.1}, steps=STEPS)
        values |= dict(batch=8, device_batch=4, lr=3e-3, inserted_lr=1e-2, bf16=False, save_every=SAVE_EVERY)
        values |= dict(log_every=2, check_pointing=False)
        trained = fine_tune(from_table(settings.FineTuning, values | self.changes | changes), model(), tokenizer())
        return {name: parameter.detach().clone() for name, parameter in trained.named_parameters()}


class Reinforcement(Engine):
    """GRPO of a model with inserted layers, on examples of which it answers a few in each step."""

    results, keep = ("model",), 2

    def go(self, out, **changes):
        from tests.tasks import echo
        from ttcnet import adapter
        from ttcnet.settings import from_table
        from ttcnet.train.grpo import settings
        from ttcnet.train.grpo.run import reinforce

        values = dict(model="tiny", task=str(Path(echo.__file__)), out=str(out), steps=STEPS, batch=4, samples=4)
        values |= dict(max_tokens=3, lr=1e-2, bf16=False, device_batch=8, log_every=2, save_every=SAVE_EVERY)
        net = adapter.insert(model(), adapter.TTCAdapterConfig.from_dict(ADAPTER | {"zero_init": False}))
        trained = reinforce(from_table(settings.Reinforcement, values | changes), net, tokenizer())
        return {name: parameter.detach().clone() for name, parameter in trained.named_parameters()}


class SmallTable(FineTuning):
    """The training of experiments/math_small: the objective of fine-tuning, with other pieces."""

    results, joins = ("done",), False

    def __init__(self):
        super().__init__()
        self.results, self.keep = ("done",), 1

    def go(self, out, **changes):
        from experiments.math_small.learner import fast, learner
        from ttcnet import adapter
        from ttcnet.settings import from_table
        from ttcnet.storage.reading import rows
        from ttcnet.train import settings
        from ttcnet.train.examples import prepare
        from ttcnet.train.loop import train
        from ttcnet.train.run import Run

        data = out.parent / "data.jsonl"
        if not data.exists():
            sums(data)
        values = dict(model="tiny", data="d", out="o", adapter=ADAPTER, steps=STEPS, batch=8, lr=3e-3, bf16=False)
        config = from_table(settings.FineTuning, values | changes)
        torch.manual_seed(config.seed)
        net = adapter.insert(model(), adapter.TTCAdapterConfig.from_dict(ADAPTER))
        examples = prepare(rows(str(data)), tokenizer()).rows
        with Run(out, config.to_dict(), results=self.results) as run, fast(net):
            train((run, learner(net, examples, config, most=60)), every=2, save_every=SAVE_EVERY)
        return {name: parameter.detach().clone() for name, parameter in net.named_parameters()}


class Diagnostic(Engine):
    """The training of experiments/lqr_in_a_token, where_planning_pays and in_context_control."""

    results, joins = ("metrics.json",), False
    changed: ClassVar = dict(batch=48)

    def __init__(self, kind):
        self.kind = kind

    @property
    def trained(self):
        from experiments.in_context_control.policies import Policies
        from experiments.lqr_in_a_token.readers import Readers
        from experiments.where_planning_pays.imitation import Imitation

        return {"token": Readers, "imitation": Imitation, "policies": Policies}[self.kind]

    def go(self, out, **changes):
        from experiments.in_context_control.policies import Answers
        from experiments.shared.stacks import Settings, carry_out
        from experiments.where_planning_pays.imitation import Demonstrations

        sizes = dict(steps=STEPS, seeds=2, rates=(1e-2, 3e-2), width=16, heads=2, state_size=4, rank=2) | changes
        if self.kind == "token":
            settings = Settings("diagonal", "ttc", **dict(batch=16, pool=64, judged=32) | sizes)
        elif self.kind == "imitation":
            settings = Demonstrations("dense", "ttc", **dict(batch=16, pool=64, judged=8, episodes=4) | sizes)
        else:
            settings = Answers("fitted", "ttc", **dict(batch=16, pool=64, judged=8, episodes=4) | sizes)
        found = {}

        def results(stack):
            found.update(stack.state())
            return {"weights": float(stack.flat.double().sum())}

        def start(given, device):
            if self.kind == "policies":
                return self.trained(given, device, trunks=None, reading=None)  # which reads fits, and no prefixes
            return self.trained(given, device)

        metrics = carry_out("name", settings, out, start, results, "cpu", 2, SAVE_EVERY)
        return found or metrics


ENGINES = {
    "sudoku": Sudoku(),
    "sudoku in loops": Sudoku(
        layers=1, loops=4, interleave="2:1", supervision="loop", zero_init=True, inserted_lr=1e-3
    ),
    "fine-tuning": FineTuning(),
    "fine-tuning of inserted layers": FineTuning(train="inserted"),
    "fine-tuning by LoRA": FineTuning(train="lora"),
    "reinforcement": Reinforcement(),
    "small table": SmallTable(),
    "LQR in a token": Diagnostic("token"),
    "imitation": Diagnostic("imitation"),
    "in-context policies": Diagnostic("policies"),
}


def log_of(out: Path) -> list[dict]:
    """The log without what depends on the time of day."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]
