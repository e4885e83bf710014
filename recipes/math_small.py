"""The paper's table of mathematics at the size of one GPU: SmolLM2-135M-Instruct, or any other Llama, fine-tuned with
TTC layers, with other layers in their place, and without; and the paper's ablations.

    python -m recipes.math_small math --base SmolLM2-135M-Instruct --data math --out results/math-small/math
    python -m recipes.math_small countdown --base SmolLM2-135M-Instruct --out results/math-small/countdown

All runs of a task see the same rows in the same order (for a seed) and are trained as `ttcnet sft` trains, by
`recipes.lean`. A run that is done is passed over, and one that was killed starts again: it takes a minute. Answers of a
run are graded at the end, where math-verify is installed; elsewhere they wait, and the same command grades them later.
"""

from __future__ import annotations

import copy
import gzip
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from ttcnet import adapter
from ttcnet.environment import commit, machine, versions
from ttcnet.evaluate import wilson
from ttcnet.evaluate.likelihood import likelihoods
from ttcnet.records import write_json
from ttcnet.train.settings import FineTuning

from .greedy import answers
from .lean import Lean
from .math_tasks import LIMITS, MAX_LENGTH, TASKS, Benchmark, Task, grade, load

ADAPTER: dict[str, Any] = dict(every=8, heads=16)
INTERLEAVED = ("4-1", "16-2", "16-1")
MIXERS = ("mlp", "attention", "retnet", "mamba", "gdn", "mesanet")
HORIZONS = (0, 1, 2, 4, 8, 16, 32, 64)
ABLATED_HORIZONS = (8, 16)  # at which ablations answer
EPOCHS = {"math": 2.0, "countdown": 1.0}
LR = 3e-4  # the paper's 2e-5 is for a model 50 times as large and far more steps
EVERY = 10  # steps between lines of a log


class Run(NamedTuple):
    """What is inserted, how far it plans in training; the seed, None for the base model as it is."""

    adapter: dict[str, Any] | None = None
    horizon: str = "pln:8,0.1,32"
    seed: int | None = 0

    @property
    def plans(self) -> bool:
        return self.adapter is not None and self.adapter.get("insert", "ttc") == "ttc"


def runs(only: list[str] | None = None) -> dict[str, Run]:
    """Every run by its name: those first that are missed most."""
    found = {"base": Run(seed=None), "full-0": Run(), "ttc-0": Run(ADAPTER)}
    found |= {f"{kind}-0": Run(ADAPTER | {"insert": kind}) for kind in MIXERS}
    for seed in (1, 2):
        found |= {f"full-{seed}": Run(seed=seed), f"ttc-{seed}": Run(ADAPTER, seed=seed)}
    found |= {"ttc-homogeneous": Run(ADAPTER | {"time_homogeneous": True})}
    found |= {"ttc-fixed": Run(ADAPTER, "fixed:8"), "ttc-uniform": Run(ADAPTER, "uniform:1,32")}
    found |= {f"ttc-{every}": Run(ADAPTER | {"every": every.replace("-", ":")}) for every in INTERLEAVED}
    if unknown := set(only or ()) - set(found):
        raise typer.BadParameter(f"only must name runs among {', '.join(found)}; got {', '.join(sorted(unknown))}.")
    return {name: run for name, run in found.items() if not only or name in only}


def main(
    task: Annotated[str, typer.Argument(help="math or countdown.")],
    base: Annotated[Path, typer.Option(help="Folder of the base model.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    data: Annotated[Path | None, typer.Option(help="Folder of the files of math.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Runs; all if not given.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data; 2 for math, 1 for countdown.")] = None,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = LR,
    minutes: Annotated[float, typer.Option(help="Start no run that would end later; 0 for no limit.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
) -> None:
    if task not in TASKS:
        raise typer.BadParameter(f"task must be one of {', '.join(TASKS)}; got {task!r}.")
    if task == "math" and data is None:
        raise typer.BadParameter("data must be given for math: the folder of its files.")
    chosen = runs(only)
    missing = {name: run for name, run in chosen.items() if not (out / name / "measured.json").exists()}
    missing = {name: run for name, run in missing.items() if not (out / name / "metrics.json").exists()}
    if missing:
        begin = time.monotonic()
        workshop = Workshop(task, base, data, device, lr, epochs or EPOCHS[task])
        longest = 0.0
        for name, run in missing.items():
            now = time.monotonic()
            if minutes and now - begin + longest > 60 * minutes:
                typer.echo("Stopped for the time being. The same command goes on.")
                break
            workshop.make(name, run, out / name)
            longest = max(longest, time.monotonic() - now)
    for name in chosen:
        if (out / name / "measured.json").exists() and _graded(task, out / name):
            typer.echo(f"{name} is done: {out / name / 'metrics.json'}")


class Workshop:
    """The base model and a task, from which runs are made."""

    def __init__(self, task: str, base: Path, data: Path | None, device: str, lr: float, epochs: float) -> None:
        self.device, self.lr, self.epochs, self.name = torch.device(device), lr, epochs, base.name
        self.tokenizer: Any = AutoTokenizer.from_pretrained(base)
        self.base: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        nn.Module.to(self.base, self.device)
        self.task: Task = load(task, data, self.tokenizer)
        typer.echo(f"{task}: {self.task.train.report}")

    def make(self, name: str, run: Run, folder: Path) -> None:
        """Train, measure and answer: config.json, log.jsonl, answers.jsonl.gz, and measured.json when all is there."""
        folder.mkdir(parents=True, exist_ok=True)
        config = FineTuning(
            model=self.name, data=self.task.data, out=name, adapter=run.adapter, horizon=run.horizon, lr=self.lr,
            epochs=self.epochs, max_length=MAX_LENGTH, bf16=self.device.type == "cuda", seed=run.seed or 0,
            check_pointing=False, compiled=self.device.type == "cuda", log_every=EVERY,
        )  # fmt: skip
        write_json(folder / "config.json", {"task": self.task.name, "trained": run.seed is not None} | config.to_dict())
        torch.manual_seed(config.seed)
        model = copy.deepcopy(self.base)
        if run.adapter is not None:
            adapter.insert(model, adapter.TTCAdapterConfig.from_dict(run.adapter))
        inserted = 0 if run.adapter is None else sum(x.numel() for x in adapter.parameters(model).values())
        size = sum(parameter.numel() for parameter in model.parameters())
        clock = [time.monotonic()]
        tokens = 0 if run.seed is None else self._train(name, model, config, folder)
        clock.append(time.monotonic())
        found = list(self._likelihoods(model.eval(), run))
        clock.append(time.monotonic())
        nn.Module.to(model, torch.bfloat16 if self.device.type == "cuda" else torch.float32)
        self._answer(model, run, folder)
        clock.append(time.monotonic())
        seconds = {what: end - begin for what, begin, end in zip(_STAGES, clock, clock[1:], strict=False)}
        facts = {"machine": machine(), "versions": versions(), "commit": commit(), "command": _command()}
        sizes = {"parameters": size, "inserted": inserted, "tokens": tokens, "rows": len(self.task.train.kept)}
        write_json(folder / "measured.json", {"run": name} | sizes | {"seconds": seconds, "likelihood": found} | facts)
        values = ", ".join(f"{each['benchmark']} {each['per_token']['mean']:.4f}" for each in found[:2])
        typer.echo(f"{name:16} log-likelihood a token {values}; {' + '.join(f'{s:.0f}' for s in seconds.values())} s")

    def _train(self, name: str, model: Any, config: FineTuning, folder: Path) -> int:
        lean = Lean(model, self.task.train.kept, config, config.compiled)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        log = folder / "log.jsonl"
        with Progress(*columns) as progress, log.open("w") as file:
            bar = progress.add_task(name, total=lean.steps)

            def news(values: dict[str, float]) -> None:
                file.write(json.dumps(values) + "\n")
                text = f"{name}: loss {values['loss']:.3f}, {values['tokens_per_second']:,.0f} tokens/s"
                progress.update(bar, completed=int(values["step"]), description=text)

            lean.train(EVERY, news)
        return lean.tokens

    def _likelihoods(self, model: Any, run: Run) -> Iterator[dict[str, Any]]:
        horizons: Sequence[int | None] = HORIZONS if run.plans else (None,)
        on_gpu = self.device.type == "cuda"
        for benchmark in self.task.benchmarks:
            if benchmark.solutions:
                with torch.autocast(self.device.type, torch.bfloat16, on_gpu):
                    for found in likelihoods(model, benchmark.solutions, horizons, tokens=2**15 if on_gpu else 2**11):
                        yield {"benchmark": benchmark.name} | found.to_dict()

    def _answer(self, model: Any, run: Run, folder: Path) -> None:
        ablated = run.adapter != ADAPTER or run.horizon != Run().horizon
        horizons: Sequence[int | None] = (None,) if not run.plans else ABLATED_HORIZONS if ablated else HORIZONS
        unfinished = folder / "answers.jsonl.gz.tmp"
        with gzip.open(unfinished, "wt", encoding="utf-8") as file:
            for steps in horizons:
                if steps is not None:
                    adapter.set_horizon(model, steps)
                for benchmark in self.task.benchmarks:
                    for row in self._answers(model, benchmark):
                        file.write(json.dumps({"benchmark": benchmark.name, "horizon": steps} | row) + "\n")
        os.replace(unfinished, folder / "answers.jsonl.gz")

    def _answers(self, model: Any, benchmark: Benchmark) -> Iterator[dict[str, Any]]:
        prompts = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": row["problem"]}], add_generation_prompt=True, return_dict=False
            )
            for row in benchmark.problems
        ]
        if not prompts:
            return
        made = answers(model, prompts, LIMITS[self.task.name], [self.tokenizer.eos_token_id])
        for row, answer in zip(benchmark.problems, made, strict=True):
            kept = {name: row[name] for name in ("answer", "numbers", "target") if name in row}
            text = self.tokenizer.decode(answer.tokens, skip_special_tokens=True)
            yield kept | {"text": text, "tokens": len(answer.tokens), "ended": answer.ended}


_STAGES = ("training", "likelihood", "answers")


def _graded(task: str, folder: Path) -> bool:
    """Grade the answers of a run, if that is possible here: metrics.json takes the place of measured.json."""
    if task == "math" and find_spec("math_verify") is None:
        typer.echo(f"{folder.name} waits to be graded. Give the same command where math-verify is installed.")
        return False
    with gzip.open(folder / "answers.jsonl.gz", "rt", encoding="utf-8") as file:
        found = [json.loads(line) for line in file]
    groups: dict[tuple[str, int | None], list[tuple[bool, bool]]] = {}
    for answer, verdict in zip(found, grade(task, found), strict=True):
        groups.setdefault((answer["benchmark"], answer["horizon"]), []).append((verdict, answer["ended"]))
    accuracy = []
    for (benchmark, horizon), each in groups.items():
        right, total = sum(one for one, _ in each), len(each)
        low, high = wilson(right, total)
        figures = dict(right=right, total=total, rate=right / total, low=low, high=high)
        ended = sum(over for _, over in each) / total
        accuracy.append({"benchmark": benchmark, "horizon": horizon} | figures | {"ended": ended})
    measured = json.loads((folder / "measured.json").read_text())
    write_json(folder / "metrics.json", measured | {"accuracy": accuracy})
    (folder / "measured.json").unlink()
    return True


def _command() -> str:
    words = (Path(word).name if word.startswith("/") else word for word in sys.argv[1:])
    return " ".join(["python -m recipes.math_small", *words])


if __name__ == "__main__":
    typer.run(main)
