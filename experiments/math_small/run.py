"""A run of experiments/math_small: trained, measured, and asked for its answers."""

from __future__ import annotations

import copy
import gzip
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import typer
from torch import nn

from ttcnet import adapter
from ttcnet.errors import fail
from ttcnet.evaluate.analysis.likelihood import answer_tokens, likelihoods
from ttcnet.machine.torch_settings import avoid_cudnn
from ttcnet.models import fast_decoding
from ttcnet.models.decoding import ends_of
from ttcnet.models.loading import causal_lm, tokenizer_of
from ttcnet.storage.writing import replacing, write_json, write_text
from ttcnet.train.loop import train
from ttcnet.train.run import Run as TrainingRun
from ttcnet.train.settings import FineTuning

from .learner import fast, learner
from .tasks import LIMITS, MAX_LENGTH, Benchmark, Task, load

if TYPE_CHECKING:
    from .__main__ import Run

HORIZONS = (0, 1, 2, 4, 8, 16, 32, 64)
FEW_HORIZONS = (8, 16)
EVERY = 10  # steps between lines of a log
RESULTS = ("measured.json", "metrics.json")  # before and after its answers are graded
PROGRAM = "python -m experiments.math_small"
STAGES = ("training", "likelihood", "answers")

OF_THE_TABLES = {"context": "head"}  # older runs, from before this setting


class RunMaker:
    """The base model and a task, shared by runs."""

    def __init__(
        self, task: str, base: Path, data: Path | None, device: str, lr: float, inserted_lr: float | None,
        epochs: float, most: float = math.inf,
    ) -> None:  # fmt: skip
        avoid_cudnn()
        self.device, self.lr, self.inserted_lr, self.epochs = torch.device(device), lr, inserted_lr, epochs
        self.name, self.most = base.name, most
        self.tokenizer: Any = tokenizer_of(str(base))
        if self.tokenizer.chat_template is None:
            remedy = "Take an instruct model, such as SmolLM2-135M-Instruct."
            fail("base", "must have a chat template", base, remedy, "chat-template")
        self.base: Any = causal_lm(str(base), torch.float32)
        nn.Module.to(self.base, self.device)
        self.task: Task = load(task, data, self.tokenizer)
        typer.echo(f"{task}: {self.task.train.report}")
        self.ends = ends_of(self.base, self.tokenizer)
        if not set(self.ends) & set(self.task.train.rows[0].labels):
            remedy = "Correct eos_token in tokenizer_config.json, or eos_token_id in generation_config.json."
            fail("base", "must end its answers with its end-of-text token", self.ends, remedy, "chat-template")

    def make(self, name: str, run: Run, folder: Path) -> None:
        """Train, measure and answer. The folder gets settings.json, log.jsonl, solutions.json, answers.jsonl.gz, and
        after all these measured.json."""
        config = FineTuning(
            model=self.name, data=self.task.data, out=name, adapter=run.adapter, horizon=run.horizon, lr=self.lr,
            inserted_lr=None if run.adapter is None else self.inserted_lr, epochs=self.epochs, steps=run.steps,
            batch=run.batch, train="inserted" if run.frozen else "all",
            max_length=MAX_LENGTH, bf16=self.device.type == "cuda", seed=run.seed or 0,
            check_pointing=False, compiled=self.device.type == "cuda", log_every=EVERY,
        )  # fmt: skip
        facts = {"task": self.task.name, "trained": run.seed is not None} | config.to_dict()
        with TrainingRun(folder, facts, results=RESULTS, program=PROGRAM) as opened:
            self._make(name, run, config, opened)

    def _make(self, name: str, run: Run, config: FineTuning, opened: TrainingRun) -> None:
        folder = opened.folder
        torch.manual_seed(config.seed)
        model = copy.deepcopy(self.base)
        if run.adapter is not None:
            adapter.insert(model, adapter.TTCAdapterConfig.from_dict(OF_THE_TABLES | run.adapter))
        if run.frozen:
            adapter.freeze_base(model)
        inserted = 0 if run.adapter is None else sum(x.numel() for x in adapter.parameters(model).values())
        size = sum(parameter.numel() for parameter in model.parameters())
        clock = [time.monotonic()]
        tokens = 0 if run.seed is None else self.train_model(model, config, opened)
        clock.append(time.monotonic())
        found = self._likelihoods(model.eval(), run, folder)
        clock.append(time.monotonic())
        nn.Module.to(model, torch.bfloat16 if self.device.type == "cuda" else torch.float32)
        self._answer(model, run, folder)
        clock.append(time.monotonic())
        seconds = {what: end - begin for what, begin, end in zip(STAGES, clock, clock[1:], strict=False)}
        sizes = {"parameters": size, "inserted": inserted, "tokens": tokens, "rows": len(self.task.train.rows)}
        write_json(
            folder / "measured.json",
            {"run": name} | sizes | {"seconds": seconds, "likelihood": found} | opened.provenance(),
        )
        opened.forget()
        values = ", ".join(f"{each['benchmark']} {each['per_token']['mean']:.4f}" for each in found[:2])
        typer.echo(f"{name:16} log-likelihood a token {values}; {' + '.join(f'{s:.0f}' for s in seconds.values())} s")

    def train_model(self, model: Any, config: FineTuning, opened: TrainingRun) -> int:
        trained = learner(model, self.task.train.rows, config, self.most)
        with fast(model, config.compiled):
            train((opened, trained), every=config.log_every, save_every=config.save_every)
        return trained.objective.tokens(trained.steps)  # type: ignore[attr-defined]

    def _likelihoods(self, model: Any, run: Run, folder: Path) -> list[dict[str, Any]]:
        """The likelihoods of all benchmarks. solutions.json gets those of each solution, at the configured horizon."""
        own = adapter.TTCAdapterConfig().horizon if run.plans else None
        on_gpu, results, solutions = self.device.type == "cuda", list[dict[str, Any]](), dict[str, Any]()
        for benchmark in self.task.benchmarks:
            if not benchmark.solutions:
                continue
            with torch.autocast(self.device.type, torch.bfloat16, on_gpu):
                size = 2**15 if on_gpu else 2**11
                for found in likelihoods(model, benchmark.solutions, HORIZONS if run.plans else (None,), tokens=size):
                    results.append({"benchmark": benchmark.name} | found.to_dict())
                    if found.horizon == own:
                        each = [round(value, 2) for value in found.each]
                        solutions[benchmark.name] = {"tokens": answer_tokens(benchmark.solutions), "sums": each}
        write_text(folder / "solutions.json", json.dumps(solutions) + "\n")
        return results

    def _answer(self, model: Any, run: Run, folder: Path) -> None:
        horizons: Sequence[int | None] = (None,) if not run.plans else HORIZONS if run.sweep else FEW_HORIZONS
        with replacing(folder / "answers.jsonl.gz") as new, gzip.open(new, "wt", encoding="utf-8") as file:
            for steps in horizons:
                for benchmark in self.task.benchmarks:
                    for row in self.answers(model, benchmark, steps):
                        file.write(json.dumps({"benchmark": benchmark.name, "horizon": steps} | row) + "\n")

    def answers(self, model: Any, benchmark: Benchmark, horizon: int | None) -> Iterator[dict[str, Any]]:
        limit = LIMITS[self.task.name]
        made = fast_decoding.decode(model, benchmark.prompts, limit, self.ends, horizon=horizon)
        for row, answer in zip(benchmark.problems, made, strict=True):
            facts = {name: row[name] for name in ("answer", "numbers", "target") if name in row}
            text = self.tokenizer.decode(answer.tokens, skip_special_tokens=True)
            yield facts | {"text": text, "tokens": len(answer.tokens) - answer.ended, "ended": answer.ended}
