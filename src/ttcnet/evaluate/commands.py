"""ttcnet eval ...: imports happen inside the commands, to keep --help instant."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from .lm import lm

app = typer.Typer(help="Evaluate language models.", no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(lm)

Names = Annotated[list[str], typer.Argument(help="math500, amc, aime24, aime25, gsm8k, or JSON Lines files.")]
Model = Annotated[str, typer.Option(help="Folder or name of the Hub; with --server, the model's name there.")]
Adapter = Annotated[Path | None, typer.Option(help="Folder of an adapter for the model.")]
Server = Annotated[str | None, typer.Option(help="OpenAI-compatible server to ask, as http://localhost:8000/v1.")]
Out = Annotated[Path, typer.Option(help="Folder of the run. A run that is there already goes on.")]
Data = Annotated[Path | None, typer.Option(help="Folder with the benchmarks' files; the Hub if not given.")]
Tokens = Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer; the benchmark's if not given.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Take the first so many problems.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Most samples at a time; requests, for a server.")]
Seed = Annotated[int, typer.Option(help="Of all samples.")]
System = Annotated[str | None, typer.Option(help="System prompt, in place of that of --cot or --no-cot; '' for none.")]


@app.command("math")
def math_command(
    benchmarks: Names,
    out: Out,
    model: Model = "",
    adapter: Adapter = None,
    server: Server = None,
    data: Data = None,
    horizon: Annotated[
        str | None, typer.Option(help="Of TTC layers, or several: 1,2,4,8; the benchmark's if not given.")
    ] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Answers to a problem; the benchmark's if not given.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0 is greedy; the benchmark's if not given.")] = None,
    max_tokens: Tokens = None,
    cot: Annotated[bool, typer.Option(help="Ask for reasoning, or for the bare answer in the paper's words.")] = True,
    system: System = None,
    limit: Limit = None,
    batch: Batch = None,
    seed: Seed = 0,
) -> None:
    """Accuracy on mathematical problems, with intervals. Killed runs go on when the command is given again. On several
    GPUs: accelerate launch -m ttcnet.cli eval math ..."""
    with _complaints():
        from ttcnet.tasks.math import benchmark, problems, system_prompt

        from .run import Plan

        chosen = [benchmark(name, data) for name in benchmarks]
        _distinct([each.name for each in chosen])
        horizons = _numbers("horizon", horizon)
        sets = [problems(each, limit) for each in chosen]  # all of them, before anything is generated
        with _engine(model, adapter, server, batch) as engine:
            done = []
            for each, found in zip(chosen, sets, strict=True):
                plan = Plan(
                    each.name, found, horizons or ((each.horizon,) if engine.plans else (None,)),
                    samples or each.samples, each.temperature if temperature is None else temperature,
                    max_tokens or each.max_tokens, system_prompt(cot) if system is None else system, seed,
                )  # fmt: skip
                done.append(_run(engine, plan, out / each.name))
        _tell(done, out)


@contextmanager
def _engine(model: str, adapter: Path | None, server: str | None, batch: int | None) -> Iterator[Any]:
    from rich.console import Console

    from ttcnet.errors import fail

    if server is not None:
        from ttcnet.endpoint import Endpoint

        from .remote import Remote

        if adapter is not None:
            fail("adapter", "must not be given: the server has its model", adapter, "Serve the whole model.")
        with Endpoint(server, model, **({} if batch is None else {"concurrent": batch})) as endpoint:
            yield Remote(endpoint.connect())
        return
    if not model:
        fail("model", "must be given", "none", "Pass --model with a folder or a name of the Hub, or --server.")
    with Console(stderr=True).status(f"Loading {model} ..."):
        from .local import load

        engine = load(model, adapter, batch)
    yield engine


def _run(engine: Any, plan: Any, folder: Path) -> dict[str, Any] | None:
    """The summary; None while other processes are still at it."""
    import os

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from .run import run
    from .summary import summarise

    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=rank > 0) as progress:
        task = progress.add_task(plan.name, total=len(plan.keys()[rank::world]))
        seen: list[str] = []

        def report(done: float, lines: list[dict[str, Any]]) -> None:
            seen.extend(line["verdict"] for line in lines)
            right = f", {100 * seen.count('right') / len(seen):.1f} % right" if seen else ""
            progress.update(task, completed=done, description=plan.name + right)

        missing = run(engine, plan, folder, rank=rank, world=world, report=report)
    return summarise(folder) if missing == 0 else None


def _tell(summaries: list[dict[str, Any] | None], out: Path) -> None:
    from rich.console import Console

    from .summary import table

    whole = [summary for summary in summaries if summary is not None]
    if whole:
        Console().print(table(whole))
        typer.echo(
            f"All answers are in {out}; page through them with: ttcnet eval show {out / whole[0]['settings']['name']}"
        )
    failed = sum(row["failed"] for summary in whole for row in summary["results"])
    if failed:
        typer.echo(
            f"{failed} samples failed and are left out of the figures. Give the command again to retry.", err=True
        )
        raise typer.Exit(1)


def _numbers(name: str, text: str | None) -> tuple[int, ...]:
    """Of a list such as 1,2,4; none if not given."""
    from ttcnet.errors import fail

    parts = text.split(",") if text else []
    if not all(part.strip().isdigit() for part in parts):
        fail(name, "must be a number, or several with commas", repr(text), f"Pass, say, --{name} 1,2,4,8.")
    return tuple(dict.fromkeys(int(part) for part in parts))


def _distinct(names: list[str]) -> None:
    from ttcnet.errors import fail

    for name in names:
        if names.count(name) > 1:
            fail("benchmarks", "must have different names", f"{name!r} twice", "Name the files differently.")


@contextmanager
def _complaints() -> Iterator[None]:
    """A sentence instead of a traceback, where that is all there is to say."""
    from ttcnet.errors import is_complaint

    try:
        yield
    except KeyboardInterrupt:
        typer.echo("Stopped. Give the command again to go on.", err=True)
        raise typer.Exit(130) from None
    except Exception as error:
        if not isinstance(error, ImportError | OSError) and not is_complaint(error):
            raise  # a fault of ours or of a library: with all that is known about it
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
