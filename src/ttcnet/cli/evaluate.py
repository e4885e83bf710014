"""ttcnet eval ...: imports happen inside the commands, to keep --help instant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from ttcnet.bounds import check_count
from ttcnet.command_options import Device, Trust, check_knobs, usable
from ttcnet.command_options import horizons as horizons_of
from ttcnet.errors import errors_as_sentences, fail
from ttcnet.model_names import check_model
from ttcnet.storage.locking import owned
from ttcnet.storage.writing import check_folder
from ttcnet.terminal.console import say, show, tell

from .likelihood import likelihood
from .lm_eval import lm

app = typer.Typer(help="Evaluate language models.", no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(lm)
app.command()(likelihood)

TASKS = "math500, amc, aime24, aime25, gsm8k, countdown, sudoku; a JSON Lines file; a Python file with a task."
Names = Annotated[list[str], typer.Argument(help=TASKS)]
Model = Annotated[str, typer.Option(help="Folder or name of the Hub; with --server, the model's name there.")]
Adapter = Annotated[Path | None, typer.Option(help="Folder of an adapter for the model.")]
ServerUrl = Annotated[str | None, typer.Option(help="OpenAI-compatible server, such as http://localhost:8000/v1.")]
Out = Annotated[Path, typer.Option(help="Folder of the run. An existing run is resumed.")]
Data = Annotated[Path | None, typer.Option(help="Folder with the files of benchmarks. Default: the Hub.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer. Default: the task's.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Ask the first N problems only.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Most samples in a batch, or requests to a server at a time.")]
Patience = Annotated[
    float, typer.Option(min=1, help="Seconds to wait for an answer of a server before it is asked again.")
]
Seed = Annotated[int, typer.Option(help="Seed of all samples.")]
System = Annotated[str | None, typer.Option(help="System prompt. Default: that of --cot or --no-cot. '' for none.")]


@app.command("math")
def math_command(
    benchmarks: Names,
    out: Out,
    model: Model = "",
    adapter: Adapter = None,
    server: ServerUrl = None,
    data: Data = None,
    horizon: Annotated[
        list[str] | None, typer.Option(help="Horizon of TTC layers, or several: 1,2,4,8. Default: the task's.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Answers to each example. Default: the task's.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy. Default: the task's.")] = None,
    max_tokens: Tokens = None,
    cot: Annotated[bool, typer.Option(help="Ask for reasoning, or for the bare answer.")] = True,
    system: System = None,
    limit: Limit = None,
    batch: Batch = None,
    patience: Patience = 600,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: Trust = False,
) -> None:
    """Accuracy on mathematics or any other task, with intervals. Run the same command again to resume. On several
    GPUs: accelerate launch -m ttcnet.cli eval math ..."""
    with errors_as_sentences():
        from ttcnet.tasks import find

        steps = horizons_of("horizon", horizon)
        check_count("samples", samples)
        _check(model, adapter, server, device)
        check_folder("out", out)
        tasks = [find(name, data) for name in benchmarks]
        _distinct([task.name for task in tasks])
        tell(f"Reading the examples of {', '.join(task.name for task in tasks)} ...")
        with ExitStack() as opened:
            for task in tasks:
                opened.enter_context(owned(out / task.name))
            from ttcnet.evaluate.runs.run import RunConfig, check, run_with_progress
            from ttcnet.tasks.task import read_examples

            sets = [read_examples(task, limit) for task in tasks]  # all tasks, before anything is generated
            with _engine(model, adapter, server, batch, device, patience, trust=trust_remote_code) as engine:
                configs = [
                    RunConfig(
                        task.name, task, examples, steps or ((task.horizon,) if engine.plans else (None,)),
                        samples or task.samples, task.temperature if temperature is None else temperature,
                        max_tokens or task.max_tokens,
                        (task.system if cot else task.system_no_cot) if system is None else system, seed,
                    )
                    for task, examples in zip(tasks, sets, strict=True)
                ]  # fmt: skip
                for config in configs:
                    check(engine, config)
                done = [run_with_progress(engine, config, out / config.name) for config in configs]
        _tell(done, out)


@app.command("scaling")
def scaling_command(
    name: Annotated[str, typer.Argument(help=TASKS)],
    out: Out,
    model: Model = "",
    adapter: Adapter = None,
    server: ServerUrl = None,
    data: Data = None,
    method: Annotated[
        list[str] | None, typer.Option(help="horizon, best-of-n, self-consistency or tree. Default: all.")
    ] = None,
    horizons: Annotated[
        str, typer.Option(help="Horizons to compare, of a model with TTC layers.")
    ] = "1,2,4,8,16,32,64",
    horizon: Annotated[
        int | None, typer.Option(min=0, help="Horizon of the other methods. Default: the task's. 0 for no planning.")
    ] = None,
    n: Annotated[int, typer.Option(min=2, help="Most samples to choose from.")] = 8,
    temperature: Annotated[
        float, typer.Option(min=0.01, help="For these samples and for the thoughts of a tree.")
    ] = 0.6,
    breadth: Annotated[int, typer.Option(min=1, help="Thoughts kept per level of the tree.")] = 2,
    depth: Annotated[int, typer.Option(min=1, help="Levels of the tree.")] = 4,
    cot: Annotated[str, typer.Option(help="Ask for reasoning: on, off or both.")] = "both",
    system: Annotated[
        str | None, typer.Option(help="System prompt with --cot on. Default: the task's. '' for none.")
    ] = None,
    max_tokens: Tokens = None,
    limit: Limit = None,
    batch: Batch = None,
    patience: Patience = 600,
    seed: Seed = 0,
    device: Device = "auto",
    trust_remote_code: Trust = False,
) -> None:
    """Accuracy against the horizon of TTC layers; and against best of n (chosen by the model's own log-likelihood),
    self-consistency and tree of thoughts, with the tokens and seconds of each. Run the same command again to resume."""
    with errors_as_sentences():
        from ttcnet.extras import require
        from ttcnet.tasks import find

        compared = horizons_of("horizons", [horizons])
        check_knobs(horizon)
        check_count("n", n)
        _check(model, adapter, server, device)
        check_folder("out", out)
        require("matplotlib", "eval", "Drawing the figure")  # now, not after all answers
        task = find(name, data)
        tell(f"Reading the examples of {task.name} ...")
        with owned(out):
            from ttcnet.evaluate.analysis.scaling import ScalingConfig, compare, method_runs
            from ttcnet.evaluate.analysis.scaling_table import METHODS, table
            from ttcnet.evaluate.runs.run import run_with_progress
            from ttcnet.tasks.task import read_examples

            settings = ScalingConfig(
                tuple(method or METHODS), compared, horizon, n, temperature, breadth, depth,
                cot, system, max_tokens, seed,
            )  # fmt: skip
            examples = read_examples(task, limit)
            wanted = dict(likelihoods="best-of-n" in settings.methods, trust=trust_remote_code)
            with _engine(model, adapter, server, batch, device, patience, **wanted) as engine:
                runs = method_runs(engine, task, examples, out, settings)
                summaries = [run_with_progress(each.engine, each.config, each.folder) for each in runs]
                rows = compare(runs, settings, out)
        if rows:
            show(table(rows))
            say(f"Table and picture are in {out / 'scaling.csv'} and {out / 'scaling.png'}.")
        _report_failures(summaries)


@app.command("show")
def show_command(
    folder: Annotated[Path, typer.Argument(help="Folder of one task in the folder of a run: OUT/math500.")],
    only: Annotated[
        list[str] | None, typer.Option(help="right, wrong, unparsable (also wrong), failed or cut. Repeat for more.")
    ] = None,
    problem: Annotated[int | None, typer.Option(help="Number of one example.")] = None,
    horizon: Annotated[int | None, typer.Option(help="One horizon.")] = None,
) -> None:
    """Page through answers: Enter for the next, p for the previous, q to quit."""
    with errors_as_sentences():
        from rich.console import Console

        from ttcnet.evaluate.runs.show import chosen, page_through, pages

        lines = chosen(folder, tuple(only or ()), problem, horizon)
        page_through(pages(folder, lines), Console(), typer.getchar)


def _check(model: str, adapter: Path | None, server: str | None, device: str) -> None:
    """Check the options before anything is loaded."""
    if server is not None:
        if adapter is not None:
            remedy = "Serve the whole model."
            fail("adapter", "must not be given: the server has its model", adapter, remedy, "conflict")
        if device != "auto":
            fail("device", "must not be given: the server has its own", repr(device), "Leave it out.", "conflict")
        return
    if not model:
        remedy = "Pass --model with a folder or a name of the Hub, or --server."
        fail("model", "must be given", "none", remedy, "missing")
    check_model(model, adapter)
    if device != "auto":
        usable(device)  # imports torch


@contextmanager
def _engine(
    model: str,
    adapter: Path | None,
    server: str | None,
    batch: int | None,
    device: str,
    patience: float,
    likelihoods: bool = False,
    trust: bool = False,
) -> Iterator[Any]:
    from ttcnet.extras import require

    if server is not None:
        from ttcnet.chat_client import Endpoint
        from ttcnet.evaluate.engines.server import Server

        tell(f"Asking {server} for its models ...")
        options: dict[str, Any] = {} if batch is None else {"concurrent": batch}
        with Endpoint(server, model, limit=patience, **options) as endpoint:
            yield Server(endpoint.connect(), likelihoods)
        return
    tell(f"Loading {model} ...")
    require("transformers", "eval", "ttcnet eval")
    from ttcnet.evaluate.engines.local import load

    yield load(model, adapter, batch, device, trust_remote_code=trust)


def _tell(summaries: list[dict[str, Any] | None], out: Path) -> None:
    from ttcnet.evaluate.runs.summary import table

    whole = [summary for summary in summaries if summary is not None]
    if whole:
        show(table(whole))
        place = out / whole[0]["settings"]["name"]
        say(f"All answers are in {out}; page through them with: ttcnet eval show {quote(str(place))}")
    _report_failures(summaries)


def _report_failures(summaries: list[dict[str, Any] | None]) -> None:
    """Print the failures, and exit with status 1 if there are any."""
    rows = [row for summary in summaries if summary for row in summary["results"]]
    failed = sum(row["failed"] for row in rows)
    if failed:
        reason = max((tuple(each) for row in rows for each in row["failures"]), key=lambda each: each[1])[0]
        say(
            f"{failed} samples failed and are left out of the figures; most often for: {reason}. Give the command "
            "again to retry.",
            err=True,
        )
        raise typer.Exit(1)


def _distinct(names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            remedy = "Name the files differently."
            fail("benchmarks", "must have different names", f"{name!r} twice", remedy, "conflict")
