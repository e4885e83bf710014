"""ttcnet sudoku ...: imports happen inside the commands, to keep --help instant."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from .training import Trainer

app = typer.Typer(help="Sudoku: train, evaluate and use models.", no_args_is_help=True, pretty_exceptions_enable=False)
Model = Annotated[Path | None, typer.Option(help="Folder of a model; the one that comes with ttcnet if not given.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if there is one.")]


@app.command("train")
def train_command(
    data: Annotated[Path, typer.Option(help="CSV of puzzle,solution, plain or gzip.")],
    out: Annotated[Path, typer.Option(help="Folder of the run. A run that is there already goes on.")],
    architecture: Annotated[str, typer.Option(help="ttc, transformer, mamba, mamba2, gdn or samba.")] = "ttc",
    steps: Annotated[int, typer.Option(help="Batches to train on.")] = 20_000,
    batch: Annotated[int, typer.Option(help="Boards in a batch.")] = 16,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 5e-3,
    final_lr: Annotated[float, typer.Option(help="Learning rate at the end.")] = 5e-4,
    weight_decay: Annotated[float, typer.Option(help="AdamW's.")] = 0.1,
    dropout: Annotated[float, typer.Option(help="Share of each branch to drop.")] = 0.0,
    augmentation: Annotated[str, typer.Option(help="none, relabel, relabel+reveal or all+reveal.")] = "none",
    ema: Annotated[float, typer.Option(help="Running average of the weights; 0 for none.")] = 0.999,
    horizon: Annotated[int, typer.Option(help="Steps that TTC layers look ahead.")] = 4,
    layers: Annotated[int, typer.Option(help="Blocks.")] = 32,
    width: Annotated[int, typer.Option(help="Width of a cell.")] = 128,
    heads: Annotated[int, typer.Option(help="Heads, of attention and of TTC.")] = 4,
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 0,
    save_every: Annotated[int, typer.Option(help="Steps between checkpoints.")] = 1000,
    device: Device = "auto",
) -> None:
    """Train a model. Killed runs continue from their last checkpoint when the command is given again. On several GPUs:
    accelerate launch -m ttcnet.cli sudoku train ..."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from ttcnet.files import is_first_process

    from .data import read
    from .training import TrainConfig, join_job, leave_job, train

    config = _or_exit(
        lambda: TrainConfig(
            architecture, steps, batch, lr, final_lr,
            weight_decay=weight_decay, dropout=dropout, augmentation=augmentation, ema=ema, horizon=horizon,
            layers=layers, width=width, heads=heads, seed=seed,
        )
    )  # fmt: skip
    boards = _or_exit(lambda: read(data))
    place = join_job(_device(device))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, disable=not is_first_process()) as progress,
        _board(out if is_first_process() else None) as writer,
    ):
        task = progress.add_task(architecture, total=steps)

        def report(trainer: Trainer, news: dict[str, float]) -> None:
            text = f"{architecture}: loss {news['loss']:.3f}, {100 * news['cells']:.1f} % of cells"
            progress.update(task, completed=trainer.step, description=text)
            for name, value in news.items():
                writer.add_scalar(name, value, trainer.step)

        _or_exit(lambda: train(config, boards, out, place, save_every=save_every, report=report))
    leave_job()
    if is_first_process():
        typer.echo(f"Trained. The model is in {out / 'model'}; evaluate it with: ttcnet sudoku eval {out / 'model'}")


@app.command("eval")
def eval_command(
    data: Annotated[Path, typer.Option(help="CSV of puzzle,solution, plain or gzip.")],
    model: Annotated[
        Path | None, typer.Argument(help="Folder of a model; the one that comes with ttcnet if not given.")
    ] = None,
    mode: Annotated[list[str] | None, typer.Option(help="single (one pass) or multi (cell by cell); both.")] = None,
    horizon: Annotated[list[int] | None, typer.Option(help="Steps to look ahead; repeat for a sweep.")] = None,
    limit: Annotated[int | None, typer.Option(help="Boards to take from the file; all if not given.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file for the results.")] = None,
    by_givens: Annotated[
        bool, typer.Option("--by-givens", help="Also print a line for each number of givens.")
    ] = False,
    device: Device = "auto",
) -> None:
    """Boards and cells that a model gets right, with 95 % intervals."""
    from .data import read
    from .evaluation import MODES, evaluate

    for name in mode or ():
        if name not in MODES:
            raise typer.BadParameter(f"mode must be one of {', '.join(MODES)}; got {name!r}.")
    boards = _or_exit(lambda: read(data))[:limit]
    net = _load(model, device)
    results: list[dict[str, Any]] = []
    horizons: list[int | None] = [*horizon] if horizon else [None]
    for steps in horizons:
        for name in mode or MODES:
            found = evaluate(net, boards, name, steps)
            results.append(found.to_dict())
            scores = found.scores
            label = f"{name}, horizon {net.config.horizon if steps is None else steps}"
            typer.echo(f"{label}: boards {scores.boards}, cells {scores.cells}, {found.seconds:.1f} s")
            if by_givens:
                typer.echo(scores.table())
    if out is not None:
        _write(out, model, {"data": data.name, "boards": len(boards), "results": results})


@app.command("probe")
def probe_command(
    train: Annotated[Path, typer.Option(help="CSV of puzzle,solution to fit the probes on.")],
    test: Annotated[Path, typer.Option(help="CSV of puzzle,solution to judge them on.")],
    model: Annotated[
        Path | None,
        typer.Argument(help="Folder of a model with TTC layers; the one that comes with ttcnet if not given."),
    ] = None,
    step: Annotated[list[int] | None, typer.Option(help="Planning steps; 0, 2, 4 and 8 if not given.")] = None,
    limit: Annotated[int, typer.Option(help="Boards of each file to take.")] = 1000,
    out: Annotated[Path | None, typer.Option(help="JSON file for the results.")] = None,
    device: Device = "auto",
) -> None:
    """How much of the solution can be read off the states that TTC layers plan to pass through."""
    from dataclasses import asdict

    from .data import read
    from .probe import STEPS, Probe, probe

    learnt, held_out = (_or_exit(lambda path=path: read(path))[:limit] for path in (train, test))
    net = _load(model, device)
    typer.echo(f"Probing {len(learnt):,} boards, judging on {len(held_out):,} ...", err=True)
    probes = probe(net, learnt, held_out, tuple(step or STEPS))
    results: list[Probe] = []
    while (result := _or_exit(lambda: next(probes, None))) is not None:
        typer.echo(f"TTC layer {result.layer + 1}, step {result.step}: {100 * result.cells:.1f} % of cells")
        results.append(result)
    if out is not None:
        sizes = {"fitted": len(learnt), "judged": len(held_out)}
        _write(out, model, sizes | {"results": [asdict(result) for result in results]})


@app.command("solve")
def solve_command(
    puzzle: Annotated[str, typer.Argument(help="81 characters row by row, 0 or . for blanks.")],
    model: Model = None,
    horizon: Annotated[int | None, typer.Option(help="Steps to look ahead; the model's own if not given.")] = None,
    device: Device = "auto",
) -> None:
    """Solve a puzzle, cell by cell, and say whether it has no or many solutions."""
    from .grid import draw, parse
    from .session import moves, verdict
    from .solver import solutions

    board = _or_exit(lambda: parse(puzzle))
    warning = verdict(board)
    typer.echo(warning) if warning else None
    if "no solution" in warning:
        raise typer.Exit(1)
    truth = [answer.tolist() for answer in solutions(board, limit=2)]
    filled = board.copy()
    for move in moves(_load(model, device), board, horizon):
        filled[move.cell] = move.digit

    def style(cell: int, text: str) -> str:
        if board[cell]:
            return typer.style(text, bold=True)
        right = any(answer[cell] == filled[cell] for answer in truth)
        return typer.style(text, fg="green" if right else "red")

    typer.echo(draw(filled, style=style))
    solved = filled.tolist() in truth or (len(truth) > 1 and not _clashes(filled))
    typer.echo("Solved." if solved else "Not solved: red cells are wrong.")
    raise typer.Exit(0 if solved else 1)


@app.command("demo")
def demo_command(
    givens: Annotated[list[int] | None, typer.Option(help="Givens of each puzzle to watch; repeat for more.")] = None,
    boards: Annotated[int, typer.Option(min=1, help="Boards in the table by horizon.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the puzzles, which are made on the spot.")] = 0,
    picture: Annotated[Path, typer.Option(help="Where to save the picture.")] = Path("demo/sudoku.png"),
    model: Model = None,
    device: Device = "auto",
) -> None:
    """Watch puzzles being solved, see what the horizon does, keep a picture."""
    from rich.console import Console

    from . import demo
    from .generator import generate

    console = Console()
    puzzles = _or_exit(
        lambda: [generate(1, givens=(n, n), seed=seed + k) for k, n in enumerate(givens or (34, 30, 26))]
    )
    with console.status("Loading the model ..."):
        net = _load(model, device)
    games = []
    for each in puzzles:
        console.print()
        games.append(demo.watch(net, each.puzzles[0], each.solutions[0], console))
    console.print()
    with console.status(f"{boards} boards at each of {len(demo.HORIZONS)} horizons ..."):
        judged = generate(boards, givens=(24, 30), seed=seed)
        found = demo.by_horizon(net, judged)
    console.print(demo.table(found, judged))
    _or_exit(lambda: demo.picture(games, found, picture))
    console.print(f"The picture is in {picture}. Next: ttcnet sudoku play", highlight=False)


@app.command("play")
def play_command(
    model: Model = None,
    port: Annotated[int, typer.Option(help="On localhost.")] = 8765,
    device: Device = "auto",
) -> None:
    """Serve a local page: type a puzzle, watch it being solved, drag the horizon."""
    from .server import serve

    server = _or_exit(lambda: serve(_load(model, device), port))
    typer.echo(f"Open http://127.0.0.1:{server.server_port} in a browser. Ctrl-C ends.")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("Ended.")


def _write(out: Path, model: Path | None, found: dict[str, Any]) -> None:
    """Results, with what made them."""
    import sys

    from ttcnet.environment import commit, machine, versions
    from ttcnet.records import write_json

    out.parent.mkdir(parents=True, exist_ok=True)
    which = {"model": "shipped" if model is None else str(model)}
    facts = {"machine": machine(), "versions": versions(), "commit": commit()}
    command = "ttcnet " + " ".join(argument.rpartition("/")[2] for argument in sys.argv[1:])
    write_json(out, which | found | facts | {"command": command})


def _clashes(board: Any) -> bool:
    from .solver import conflicts

    return bool(conflicts(board).any())


def _load(folder: Path | None, device: str) -> Any:
    """The model in a folder, or the shipped one."""
    from torch import nn

    from ttcnet.models import TTCNetForCellClassification

    from .shipped import pretrained

    if folder is None:
        return pretrained(_device(device))
    if not (folder / "config.json").exists():
        raise typer.BadParameter(f"{folder} holds no model. Pass the folder that `ttcnet sudoku train` named.")
    model = TTCNetForCellClassification.from_pretrained(folder)
    return nn.Module.to(model, _device(device)).eval()


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise typer.BadParameter("device must be cpu here: torch sees no CUDA device. See `ttcnet env`.")
    return name


def _or_exit(make: Any) -> Any:
    """What `make` returns; a sentence instead of a traceback if it complains."""
    try:
        return make()
    except (ValueError, OSError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from None


def _board(folder: Path | None) -> Any:
    """TensorBoard's writer, or one that writes nothing where it is not installed or there is no folder."""
    from contextlib import nullcontext
    from importlib.util import find_spec
    from types import SimpleNamespace

    if folder is None or find_spec("tensorboard") is None:
        return nullcontext(SimpleNamespace(add_scalar=lambda *_: None))
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"))
