"""The demo: a model settles on boards and fills them in; loops and plans change its answers to hard ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ttcnet.extras import require
from ttcnet.nn import ttc_layers
from ttcnet.storage.writing import replacing

from .data import Boards
from .evaluation import evaluate
from .grid import Board, draw, name_of, parse
from .metrics import Rate
from .samples import LEVELS, samples
from .solver import solutions
from .step_by_step import Move, moves, settling, stage_name

if TYPE_CHECKING:
    from ttcnet.models import TTCNetForCellClassification

RIGHT, WRONG = "green", "red"
PAUSE = 3.0  # seconds for a board to settle, at least


@dataclass(frozen=True)
class Game:
    """A puzzle, its solution, and the model's answers: in one pass, the boards after every stage, (stages, 81),
    with plans and, if it has any, without; then cell by cell, if that was not right."""

    puzzle: Board
    solution: Board
    stages: NDArray[np.uint8]
    without: NDArray[np.uint8] | None
    moves: list[Move]
    seconds: float = 0.0

    @property
    def right(self) -> int:
        return sum(move.digit == self.solution[move.cell] for move in self.moves)

    def settled(self, stages: NDArray[np.uint8]) -> list[int]:
        """Blank cells that are right after every stage."""
        counts: list[int] = ((stages == self.solution) & (self.puzzle == 0)).sum(1).tolist()
        return counts

    @property
    def answer(self) -> Board:
        """The board as the model left it."""
        if not self.moves:
            return self.stages[-1]
        filled = self.puzzle.copy()
        for move in self.moves:
            filled[move.cell] = move.digit
        return filled


def watch(
    model: TTCNetForCellClassification, puzzle: Board, solution: Board, console: Console, loops: int | None = None
) -> Game:
    """Show a board settle in one pass; then fill it cell by cell, the most confident first."""
    stages, _ = settling(model, puzzle, loops=loops)
    without = settling(model, puzzle, 0, loops)[0] if ttc_layers(model) else None
    game = Game(puzzle, solution, stages, without, [])
    if (puzzle > 0).all():
        return game
    name, rights, blanks = stage_name(model), game.settled(stages), int((puzzle == 0).sum())
    with Live(console=console, refresh_per_second=20) as live:
        for number, digits in enumerate(stages):
            told = f"in one pass\n{name} {number + 1} of {len(stages)}\n{rights[number]} of {blanks} blanks right"
            live.update(Columns([_board(puzzle, solution, digits), Text(told)], padding=(0, 4)))
            if console.is_terminal:
                time.sleep(PAUSE / len(stages))
    if rights[-1] == blanks:
        return game
    begin, made = time.perf_counter(), list[Move]()
    with Live(console=console, refresh_per_second=20) as live:
        for move in moves(model, puzzle, loops=loops):
            made.append(move)
            game = Game(puzzle, solution, stages, without, made, time.perf_counter() - begin)
            live.update(Columns([_board(puzzle, solution, game.answer), _score(game)], padding=(0, 4)))
    return game


def _board(puzzle: Board, solution: Board, digits: Board) -> Text:
    def dress(cell: int, text: str) -> str:
        if puzzle[cell]:
            return f"[bold]{text}[/]"
        if digits[cell] == 0:
            return f"[dim]{text}[/]"
        return f"[{RIGHT if digits[cell] == solution[cell] else WRONG}]{text}[/]"

    return Text.from_markup(draw(digits, style=dress))


def _score(game: Game) -> Text:
    last = game.moves[-1]
    blanks = int((game.puzzle == 0).sum())
    lines = [
        "cell by cell",
        f"{81 - blanks} givens (bold), {blanks} cells to fill",
        f"{len(game.moves)} filled: [{RIGHT}]{game.right} right[/], [{WRONG}]{len(game.moves) - game.right} wrong[/]",
        f"{game.seconds:.1f} s",
        "",
        f"last: {last.digit} at {name_of(last.cell)}",
        f"sure to {100 * last.confidence:.1f} %",
    ]
    return Text.from_markup("\n".join(lines))


def level(name: str) -> Boards:
    """The boards of a level that come with the package."""
    puzzles = np.stack([parse(each.puzzle) for each in samples() if each.level == name])
    return Boards(puzzles, np.concatenate([solutions(puzzle) for puzzle in puzzles]))


def settings(model: TTCNetForCellClassification, loops: int | None = None) -> dict[str, list[tuple[int, int]]]:
    """The knobs of a model, and the loops and horizons to compare for it: from an eighth of its own loops,
    or of those wished for, to four times as many; no plans, and plans to four times its own horizon."""
    own, far = loops or model.config.loops, model.config.horizon
    found = {}
    if model.config.loops > 1:
        found["loops"] = [(n, far) for n in sorted({own // 8, own // 4, own // 2, own, 2 * own, 4 * own}) if n]
    if ttc_layers(model):
        found["horizon"] = [(own, T) for T in sorted({0, 1, far, 2 * far, 4 * far})]
    return found or {"": [(own, far)]}


Compared = dict[tuple[int, int], list[Rate]]  # by loops and horizon, for every level: cells right in one pass


def compare(model: TTCNetForCellClassification, asked: Sequence[tuple[int, int]]) -> Compared:
    """The boards of every level in one pass, at these loops and horizons."""
    boards = [level(name) for name in LEVELS]
    return {pair: [evaluate(model, each, "single", pair[1], pair[0]).scores.cells for each in boards] for pair in asked}


def table(name: str, asked: Sequence[tuple[int, int]], found: Compared) -> Table | str:
    """A line for every setting, a column for every level; a sentence if no setting makes a difference."""
    place = 1 if name == "horizon" else 0
    rates = [[f"{100 * rate.rate:.1f} %" for rate in found[pair]] for pair in asked]
    if len(asked) > 1 and all(line == rates[0] for line in rates):
        return f"On the boards of the package the {name} makes no difference to this model: {' / '.join(rates[0])}."
    loops = f", in {asked[0][0]} loops" if name == "horizon" and asked[0][0] > 1 else ""
    about = f", by {name}{loops}" if name else ""
    shown = Table(title=f"Blank cells right in one pass{about}", title_justify="left")
    shown.add_column(name, justify="right")
    for each, lowest in LEVELS.items():
        shown.add_column(f"{each}, {lowest}{'+' if lowest else ''} guesses", justify="right")
    for pair, line in zip(asked, rates, strict=True):
        shown.add_row("no plans" if name == "horizon" and pair[1] == 0 else str(pair[place]) if name else "", *line)
    return shown


def picture(games: list[Game], stage: str, path: Path) -> None:
    """Boards as the model left them, and how many of their cells were right on the way there in one pass."""
    matplotlib = require("matplotlib", "plot", "The demo's picture")
    matplotlib.use("Agg")
    plt = require("matplotlib.pyplot", "plot", "The demo's picture")
    figure, axes = plt.subplots(1, len(games) + 1, figsize=(3.6 * (len(games) + 1), 4), layout="constrained")
    for axis, game in zip(axes, games, strict=False):
        _paint(axis, game)
    axis = axes[-1]
    for number, game in enumerate(games):
        blanks = max(int((game.puzzle == 0).sum()), 1)
        label = f"board {number + 1}"
        for stages, dashes in ((game.stages, "-"), (game.without, ":")):
            if stages is not None:
                rates = [100 * right / blanks for right in game.settled(stages)]
                axis.plot(range(1, len(rates) + 1), rates, dashes, color=f"C{number}", label=label)
                label = f"board {number + 1}, no plans"
    axis.set(xlabel=stage, ylabel="% of blank cells right", ylim=(0, 103), title="in one pass")
    axis.legend(loc="lower right", fontsize=8)
    with replacing(path) as new:
        figure.savefig(new, dpi=150)
    plt.close(figure)


def _paint(axis: Any, game: Game) -> None:
    """One board: givens black, right cells green, wrong ones red."""
    axis.set(xlim=(0, 9), ylim=(9, 0), aspect="equal")
    axis.axis("off")
    wrong = int((game.answer != game.solution).sum())
    axis.set_title(f"{'cell by cell' if game.moves else 'in one pass'}: {f'{wrong} wrong' if wrong else 'solved'}")
    for line in range(10):
        width = 2 if line % 3 == 0 else 0.5
        axis.plot([line, line], [0, 9], color="black", linewidth=width, clip_on=False)
        axis.plot([0, 9], [line, line], color="black", linewidth=width, clip_on=False)
    for cell, digit in enumerate(game.answer.tolist()):
        x, y, given = cell % 9, cell // 9, bool(game.puzzle[cell])
        right = digit == game.solution[cell]
        color = "black" if given else "darkgreen" if right else "darkred"
        if not given:
            shade = "tab:green" if right else "tab:red"
            axis.fill_between([x, x + 1], y, y + 1, color=shade, alpha=0.2, linewidth=0)
        weight = "bold" if given else "normal"
        axis.text(x + 0.5, y + 0.52, digit, ha="center", va="center", color=color, weight=weight)
