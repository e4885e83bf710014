"""The demo: watch a model fill in puzzles, see what the horizon does, keep a picture."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ttcnet.extras import require
from ttcnet.writing import replacing

from .data import Boards
from .evaluation import Evaluation, evaluate
from .grid import Board, draw, name_of
from .session import Move, moves

if TYPE_CHECKING:
    from ttcnet.models import TTCNetForCellClassification

HORIZONS = (0, 1, 2, 4, 8)
RIGHT, WRONG = "green", "red"


@dataclass(frozen=True)
class Game:
    """A puzzle, its solution, and what the model made of it."""

    puzzle: Board
    solution: Board
    moves: list[Move]
    seconds: float

    @property
    def right(self) -> int:
        return sum(move.digit == self.solution[move.cell] for move in self.moves)


def watch(model: TTCNetForCellClassification, puzzle: Board, solution: Board, console: Console) -> Game:
    """Solve a puzzle cell by cell, the surest first, and draw it on the way."""
    begin, made = time.perf_counter(), list[Move]()
    with Live(console=console, refresh_per_second=20) as live:
        for move in moves(model, puzzle):
            made.append(move)
            game = Game(puzzle, solution, made, time.perf_counter() - begin)
            live.update(Columns([_board(game), _score(game)], padding=(0, 4)))
    return game if made else Game(puzzle, solution, made, 0.0)


def _board(game: Game) -> Text:
    filled = {move.cell: move.digit for move in game.moves}
    board = game.puzzle.copy()
    board[list(filled)] = list(filled.values())

    def dress(cell: int, text: str) -> str:
        if game.puzzle[cell]:
            return f"[bold]{text}[/]"
        if cell not in filled:
            return f"[dim]{text}[/]"
        return f"[{RIGHT if filled[cell] == game.solution[cell] else WRONG}]{text}[/]"

    return Text.from_markup(draw(board, style=dress))


def _score(game: Game) -> Text:
    last = game.moves[-1]
    blanks = int((game.puzzle == 0).sum())
    lines = [
        f"{81 - blanks} givens (bold), {blanks} cells to fill",
        f"{len(game.moves)} filled: [{RIGHT}]{game.right} right[/], [{WRONG}]{len(game.moves) - game.right} wrong[/]",
        f"{game.seconds:.1f} s",
        "",
        f"last: {last.digit} at {name_of(last.cell)}",
        f"sure to {100 * last.confidence:.1f} %",
    ]
    return Text.from_markup("\n".join(lines))


def by_horizon(model: TTCNetForCellClassification, boards: Boards) -> list[Evaluation]:
    """All boards in a single pass, at each of HORIZONS."""
    return [evaluate(model, boards, "single", horizon) for horizon in HORIZONS]


def table(evaluations: list[Evaluation], boards: Boards) -> Table:
    shown = Table(title=f"{len(boards)} boards in a single pass, by horizon T", title_justify="left")
    for heading in ("T", "boards right", "cells right", "seconds"):
        shown.add_column(heading, justify="right")
    for found in evaluations:
        scores = found.scores
        off = " (off)" if found.horizon == 0 else ""
        shown.add_row(f"{found.horizon}{off}", str(scores.boards), str(scores.cells), f"{found.seconds:.1f}")
    return shown


def picture(games: list[Game], evaluations: list[Evaluation], path: Path) -> None:
    """Boards as the model left them, cells shaded in the order it filled them; and accuracy by horizon."""
    matplotlib = require("matplotlib", "plot", "The demo's picture")
    matplotlib.use("Agg")
    plt = require("matplotlib.pyplot", "plot", "The demo's picture")
    figure, axes = plt.subplots(1, len(games) + 1, figsize=(3.6 * (len(games) + 1), 4), layout="constrained")
    for axis, game in zip(axes, games, strict=False):
        _paint(axis, game)
    axis = axes[-1]
    labels = [str(found.horizon) for found in evaluations]
    for offset, kind in ((-0.2, "boards"), (0.2, "cells")):
        rates = [getattr(found.scores, kind) for found in evaluations]
        heights = [100 * rate.rate for rate in rates]
        spread = [
            [100 * (rate.rate - rate.low) for rate in rates],
            [100 * (rate.high - rate.rate) for rate in rates],
        ]
        places = [place + offset for place in range(len(labels))]
        axis.bar(places, heights, 0.38, yerr=spread, capsize=2, label=f"{kind} right")
    axis.set_xticks(range(len(labels)), labels)
    axis.set(xlabel="horizon T", ylabel="%", ylim=(0, 105), title="single pass")
    axis.legend(loc="lower right", fontsize=8)
    with replacing(path) as new:
        figure.savefig(new, dpi=150)
    plt.close(figure)


def _paint(axis: Any, game: Game) -> None:
    """One board: givens black, right cells green, wrong ones red, the first filled darkest."""
    axis.set(xlim=(0, 9), ylim=(9, 0), aspect="equal")
    axis.axis("off")
    axis.set_title(f"{int((game.puzzle > 0).sum())} givens, {game.seconds:.1f} s")
    for line in range(10):
        width = 2 if line % 3 == 0 else 0.5
        axis.plot([line, line], [0, 9], color="black", linewidth=width, clip_on=False)
        axis.plot([0, 9], [line, line], color="black", linewidth=width, clip_on=False)
    for cell, digit in enumerate(game.puzzle.tolist()):
        if digit:
            axis.text(cell % 9 + 0.5, cell // 9 + 0.52, digit, ha="center", va="center", weight="bold")
    for order, move in enumerate(game.moves):
        right = move.digit == game.solution[move.cell]
        x, y = move.cell % 9, move.cell // 9
        shade = 0.5 * (1 - order / len(game.moves))
        axis.fill_between([x, x + 1], y, y + 1, color="tab:green" if right else "tab:red", alpha=shade, linewidth=0)
        color = "darkgreen" if right else "darkred"
        axis.text(x + 0.5, y + 0.52, move.digit, ha="center", va="center", color=color)
