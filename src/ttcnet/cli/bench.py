"""Measure providers on the same inputs, in one run, into one CSV file.

ttcnet bench lqr                         # the standard table, into bench/lqr.csv
ttcnet bench lqr --sweep horizon         # the shapes of a figure; see sweeps.py
ttcnet bench lqr --horizon 8 --problems 64 --provider plan --provider mpc.pytorch
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ttcnet import command_options as options
from ttcnet.bench.measure import Outcome, Point, measure
from ttcnet.bench.providers import OURS, PEERS, PROVIDERS, check_provider, installed
from ttcnet.bench.results import Row, line, measured, parse, stamp, write
from ttcnet.bench.sweeps import SWEEPS, History, expand
from ttcnet.bounds import check_horizon
from ttcnet.errors import errors_as_sentences, fail, whole_number
from ttcnet.terminal.console import Commands, say
from ttcnet.terminal.progress_bars import Bar
from ttcnet.testing.regimes import REGIMES, check_regime

app = typer.Typer(cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Measure planning and other solvers: time, memory and error."""


@app.command()
@errors_as_sentences()
def lqr(
    provider: Annotated[list[str] | None, typer.Option(help=f"Solvers to measure: {', '.join(PROVIDERS)}.")] = None,
    horizon: Annotated[list[int] | None, typer.Option(min=1, help="Steps to plan; 8, 32 and 128 if not given.")] = None,
    problems: Annotated[list[int] | None, typer.Option(help="Problems at once; 64 and 1024 if not given.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Problems x horizon in one, as 65536x8.")] = None,
    sweep: Annotated[
        list[str] | None, typer.Option(help=f"Instead of single shapes, named sets of them: {', '.join(SWEEPS)}, all.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    regime: Annotated[str, typer.Option(help=f"Parameters: {', '.join(REGIMES)}.")] = "trained",
    seconds: Annotated[
        float | None,
        typer.Option(help="Time to repeat each measurement for; 2, or 0.2 in a sweep."),
    ] = None,
    limit: Annotated[float, typer.Option(help="Most seconds of one measurement; longer ones are skipped.")] = 300,
    out: Annotated[Path, typer.Option(help="CSV file to write, after every measurement.")] = Path("bench/lqr.csv"),
    resume: Annotated[bool, typer.Option("--resume", help="Keep the lines of the file and measure the rest.")] = False,
) -> None:
    """Planning, forward and backward, float32, n = m = 16: time, peak memory, error against float64, and the share of
    the time (forward / both passes) that is the physical limit, from the rates of a matrix product and of a copy."""
    check_regime(regime)
    for steps in horizon or ():
        check_horizon("horizon", steps)
    _check(device, out)
    if sweep and (shape or horizon or problems):
        remedy = "Leave them out: a sweep has shapes of its own."
        fail("sweep", "must be without shape, horizon and problems", ", ".join(sweep), remedy, "conflict")
    chosen = provider or _usual(device, in_sweep=bool(sweep))
    for name in chosen:
        check_provider(name, device)
    shapes = expand(sweep) if sweep else [("custom", one) for one in _shapes(shape, problems, horizon)]
    points = [
        Point(name, regime, count, steps, device=device, sweep=sweep_name)
        for sweep_name, (count, steps) in shapes
        for name in chosen
    ]
    where = stamp()
    rows = measured(out, where) if resume else []
    console = Console(width=max(Console().width, 110))
    repeat_for = (0.2 if sweep else 2.0) if seconds is None else seconds
    try:
        _measure_all(points, rows, where, repeat_for, limit, out, console)
    except KeyboardInterrupt:
        say(f"Interrupted. {len(rows)} measurements are in {out}; --resume continues from there.")
        raise typer.Exit(130) from None
    show([parse(row) for row in rows], console)
    say(f"Written to {out}")


def _measure_all(
    points: list[Point], rows: list[Row], where: Row, seconds: float, limit: float, out: Path, console: Console
) -> None:
    """Measure the points that are not in `rows` yet, and add each there and to the file."""
    history = History(limit)
    for row in rows:
        history.add(*parse(row))
    done = {parse(row)[0] for row in rows}
    with Bar(console=console) as progress:
        task = progress.add_task("measuring", total=len(points))
        for point in points:
            progress.update(task, description=f"{point.provider}, {point.problems} problems, T = {point.horizon}")
            if point not in done:
                outcome = history.foresee(point) or measure(point, seconds, limit)
                history.add(point, outcome)
                rows.append(line(point, outcome, where))
                write(rows, out)
            progress.advance(task)


def _check(device: str, out: Path, otherwise: str = "--device cpu") -> None:
    """Check device and file before anything is measured."""
    if device not in ("cpu", "cuda"):
        fail("device", "must be cpu or cuda", repr(device), f"Pass {otherwise}.", "unknown-name")
    if device == "cuda" and not options.gpus():
        fail("device", "must be one that torch sees", "cuda, and it sees none", f"Pass {otherwise}.", "device")
    if out.is_dir():
        value = f"{out}, which is a folder"
        fail("out", "must be a file", value, "Name a file in it.", "not-writable", IsADirectoryError)


def _usual(device: str, in_sweep: bool) -> list[str]:
    """The default providers."""
    peers = [name for name in PEERS if name in installed(device)] if device == "cpu" else []
    return [*(OURS if in_sweep or device == "cuda" else ("plan", "autograd-riccati")), *peers]


def _shapes(shape: list[str] | None, problems: list[int] | None, horizon: list[int] | None) -> list[tuple[int, int]]:
    if not shape:
        return [(count, steps) for count in problems or (64, 1024) for steps in horizon or (8, 32, 128)]
    return [_numbers(text, ("problems", "horizon")) for text in shape]  # type: ignore[misc]


def _numbers(text: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """The numbers of a shape."""
    found = tuple(whole_number(part) for part in text.split("x"))
    if len(found) != len(names) or not all(found):
        example = "x".join(("65536", "8", "16", "16")[: len(names)])
        fail("shape", f"must be {' x '.join(names)}", repr(text[:40]), f"Write it as {example}.", "format")
    return found  # type: ignore[return-value]


@app.command()
@errors_as_sentences()
def forms(
    shape: Annotated[
        list[str] | None, typer.Option(help="problems x horizon x n x m, as 65536x8x16x16; many if not given.")
    ] = None,
    regime: Annotated[str, typer.Option(help=f"Parameters: {', '.join(REGIMES)}.")] = "trained",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds in which all forms take turns.")] = 15,
    out: Annotated[Path, typer.Option(help="CSV file to write, after every shape.")] = Path("bench/forms.csv"),
) -> None:
    """Forms of the CUDA kernels against each other, as CUDA graphs: time of both passes, memory, error. The result
    shows which one `lqr/kernels/fused_forms.py` should choose on this GPU."""
    from ttcnet.bench.forms import SHAPES, measure_forms

    check_regime(regime)
    shapes = [_numbers(text, ("problems", "horizon", "n", "m")) for text in shape] if shape else SHAPES
    _check("cuda", out, "it on a machine with a GPU")
    rows: list[Row] = []
    where = stamp()
    for each in shapes:
        for point, found in measure_forms(each, "cuda", regime, rounds):  # type: ignore[arg-type]
            rows.append({name: str(value) for name, value in (vars(point) | found).items()} | where)
            say(_form_line(point.form, each, found))
        write([{name: row.get(name, "") for name in max(rows, key=len)} for row in rows], out)
    say(f"Written to {out}")


def _form_line(form: str, shape: tuple[int, ...], found: dict[str, Any]) -> str:
    head = f"{'x'.join(map(str, shape))}, {form}"
    if found["status"] != "ok":
        return f"{head}: {found['status']}"
    parts = []
    for word in ("forward", "both"):
        ratio, low, high = (found[f"{word}_ratio{end}"] for end in ("", "_p20", "_p80"))
        took = f"{word} {found[f'{word}_ms']:.3g} ms, {100 * found[f'{word}_of_limit']:.2g} % limit"
        parts.append(f"{took}, {ratio:.3f} ({low:.3f} to {high:.3f}) of plain")
    errors = f"u {found['error_u']:.0e}, gradient {found['error_worst_gradient']:.0e}"
    return f"{head}: {'; '.join(parts)}; {found['peak_mb']:.0f} MB; {errors}"


@app.command()
@errors_as_sentences()
def layer(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of the model.")] = 12,
    width: Annotated[int, typer.Option(min=1, help="Width of the model.")] = 1024,
    heads: Annotated[int, typer.Option(min=1, help="Heads of the model.")] = 16,
    batch: Annotated[int, typer.Option(min=1, help="Sequences in a step.")] = 8,
    length: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 2048,
    repeats: Annotated[int, typer.Option(min=1, help="Steps to take the median of.")] = 10,
    out: Annotated[Path, typer.Option(help="CSV file to write, after every measurement.")] = Path("bench/layer.csv"),
) -> None:
    """A training step of a language model in bfloat16, with and without TTC layers."""
    from ttcnet.bench.layer import measure_layer, points

    _check(device, out)
    if width % heads:
        fail("width", f"must be a multiple of the {heads} heads", width, "Pass a multiple.", "conflict")
    rows: list[Row] = []
    where = stamp()
    for point in points(blocks, width, heads, batch, length, device):
        values = vars(point) | measure_layer(point, repeats)
        rows.append({name: str(value) for name, value in values.items()} | where)
        write(rows, out)
        say(f"{point.interleave}, T = {point.horizon}, compiled {point.compiled}: {values['step_ms']:.1f} ms")
    say(f"Written to {out}")


@app.command()
@errors_as_sentences()
def decode(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    shape: Annotated[str, typer.Option(help="8B, the shape of Llama 3, or tiny.")] = "8B",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the prompt.")] = 64,
    new: Annotated[int, typer.Option(min=6, help="Tokens to generate: one more than there are horizons.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of texts to take the median of.")] = 9,
    out: Annotated[Path, typer.Option(help="CSV file to write, after every measurement.")] = Path("bench/decode.csv"),
) -> None:
    """Generating text, batch 1, bfloat16: tokens a second with and without TTC layers, which take turns."""
    say("Starting transformers ...", err=True)
    from ttcnet.bench.decode import SHAPES, measure_decoding

    if shape not in SHAPES:
        fail("shape", f"must be one of {', '.join(SHAPES)}", repr(shape), "Use one of those.", "unknown-name")
    _check(device, out, "--device cpu --shape tiny")
    rows: list[Row] = []
    where = stamp()
    for point, found in measure_decoding(shape, device, prompt, new, repeats):
        rows.append({name: str(value) for name, value in (vars(point) | found).items()} | where)
        write(rows, out)
        kind = f"T = {point.horizon}" if point.horizon else "no TTC"
        how = "compiled" if point.compiled else "eager"
        low, slower, high = (100 * (found[name] - 1) for name in ("slower_p20", "slower", "slower_p80"))
        say(f"{kind}, {how}: {found['ms_per_token']:.2f} ms a token, {slower:+.1f} % ({low:+.1f} to {high:+.1f})")
    say(f"Written to {out}")


@app.command()
@errors_as_sentences()
def full_size(
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cuda",
    shape: Annotated[
        str, typer.Option(help="8B (LoRA and inserted layers are trained), 1B (all is trained), or tiny.")
    ] = "8B",
    horizon: Annotated[int, typer.Option(min=1, help="Steps that TTC layers look ahead.")] = 8,
    length: Annotated[int, typer.Option(min=2, help="Tokens of a sequence.")] = 4096,
    check_pointing: Annotated[bool, typer.Option(help="Recompute activations, as ttcnet sft does.")] = True,
    steps: Annotated[int, typer.Option(min=1, help="Steps to take the median of.")] = 20,
    seconds: Annotated[float, typer.Option(help="Most seconds for the steps of an arm.")] = 60,
    out: Annotated[Path, typer.Option(help="CSV file to write, after every arm.")] = Path("bench/full-size.csv"),
    resume: Annotated[bool, typer.Option("--resume", help="Keep the lines of the file and measure the rest.")] = False,
) -> None:
    """Fine-tuning at full size on one GPU, with random weights: steps with and without TTC layers, every 8 blocks; time
    and memory beside what `ttcnet sft --dry-run` predicts."""
    say("Starting transformers ...", err=True)
    from ttcnet.bench.full_size import ARMS, measure_full_size, points

    if shape not in ARMS:
        fail("shape", f"must be one of {', '.join(ARMS)}", repr(shape), "Use one of those.", "unknown-name")
    _check(device, out, "--device cpu --shape tiny")
    where = stamp()
    rows = measured(out, where, lambda row: (row["shape"], row["arm"], float(row["step_ms"]))) if resume else []
    done = {tuple(row.get(name) for name in ("shape", "arm", "horizon", "length", "check_pointing")) for row in rows}
    chosen = points(shape, horizon, length, check_pointing, device)
    left = [each for each in chosen if tuple(str(value) for value in list(vars(each).values())[:5]) not in done]
    known = {row["arm"]: float(row["step_ms"]) for row in rows if row["shape"] == shape}
    for point, found in measure_full_size(left, steps, seconds, known):
        rows.append({name: str(value) for name, value in (vars(point) | found).items()} | where)
        write(rows, out)
        say(
            f"{point.arm}: {found['step_ms']:.1f} ms a step (predicted {found['predicted_ms']:.1f}), "
            f"{found['tokens_per_second']:,.0f} tokens a second, {found['peak_gb']:.2f} GB (predicted "
            f"{found['predicted_gb']:.2f}), {found['of_time_without_ttc']:.3f} of the time without TTC"
        )
    say(f"Written to {out}")


def show(rows: list[tuple[Point, Outcome]], console: Console) -> None:
    table = Table(title="Planning, forward + backward, float32, n = m = 16")
    columns = (
        "problems",
        "T",
        "provider",
        "forward ms",
        "both ms",
        "20-80 %",
        "of limit",
        "peak MB",
        "error u",
        "worst gradient",
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "provider" else "right")
    for point, outcome in {replace(point, sweep=""): outcome for point, outcome in rows}.items():  # each shape once
        head = (str(point.problems), str(point.horizon), point.provider)
        if outcome.status != "ok":
            table.add_row(*head, outcome.status)
            continue
        table.add_row(
            *head,
            f"{outcome.forward_ms:.3g}",
            f"{outcome.median_ms:.3g}",
            f"{outcome.p20_ms:.3g}-{outcome.p80_ms:.3g}",
            _percent(outcome.limit_forward_ms, outcome.forward_ms)
            + " / "
            + _percent(outcome.limit_ms, outcome.median_ms),
            f"{outcome.peak_mb:.0f}",
            f"{outcome.error_u:.0e}",
            f"{outcome.error_worst_gradient:.0e}",
        )
    console.print(table)


def _percent(limit: float, time: float) -> str:
    return "-" if math.isnan(limit) else f"{100 * limit / time:.2g} %"
