"""Page through the answers of an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule

from ttcnet.errors import fail
from ttcnet.terminal.console import foreign

from ..engines.base import CUT
from .storage import evaluation_settings, generations, problems_of

KINDS = ("right", "wrong", "unparsable", "failed", "cut")
COLOURS = {"right": "green", "wrong": "red", "unparsable": "magenta", "failed": "yellow"}


def chosen(folder: Path, kinds: tuple[str, ...], problem: int | None, horizon: int | None) -> list[dict[str, Any]]:
    """The lines to show, restricted to these kinds (none: all), to one problem or to one horizon. Unparsable answers
    are wrong too."""
    for kind in kinds:
        if kind not in KINDS:
            fail("only", f"must be one of {', '.join(KINDS)}", repr(kind), "Name one of them.", "unknown-name")
    evaluation_settings(folder)
    verdicts = {*kinds, *(("unparsable",) if "wrong" in kinds else ())}
    found = [
        line
        for line in generations(folder)
        if (not kinds or line["verdict"] in verdicts or ("cut" in kinds and line["finish"] == CUT))
        and problem in (None, line["problem"])
        and horizon in (None, line["horizon"])
    ]
    if not found:
        fail("folder", "must hold answers of that kind", str(folder), "Ask for fewer restrictions.", "no-data")
    return found


def pages(folder: Path, lines: list[dict[str, Any]]) -> list[RenderableType]:
    """One page an answer: problem, gold answer, the answer that was read, and the whole text."""
    problems = problems_of(folder)
    return [_page(line, problems[line["problem"]], f"{place} of {len(lines)}") for place, line in enumerate(lines, 1)]


def _page(line: dict[str, Any], problem: Any, place: str) -> RenderableType:
    colour = COLOURS[line["verdict"]]
    facts = [f"problem {line['problem']}", f"sample {line['sample']}"]
    facts += [f"T = {line['horizon']}"] if line["horizon"] is not None else []
    facts += [f"{line['new_tokens']} tokens"] if line["new_tokens"] is not None else []
    facts += ["cut for length"] if line["finish"] == CUT else []
    verdict = f"{line['verdict']}: {line['answer'] or line['note'] or 'nothing could be read'}"
    return Group(
        Rule(foreign(f"{place} · {', '.join(facts)}"), style=colour),
        Panel(foreign(problem.text), title="problem", title_align="left"),
        Panel(foreign(line["text"]), title="answer", title_align="left", border_style=colour),
        foreign(f"gold: {problem.answer}"),
        foreign(verdict, f"bold {colour}"),
    )


def page_through(pages: list[RenderableType], console: Console, key: Callable[[], str]) -> None:
    """Show pages: Enter, space or n goes forward, p back, q quits. Without a terminal, print all at once."""
    if not console.is_terminal:
        for page in pages:
            console.print(page)
        return
    place = 0
    while place < len(pages):
        console.clear()
        console.print(pages[place])
        console.print("Enter: next, p: previous, q: quit", style="dim")
        pressed = key()
        if pressed in ("q", "\x1b", "\x03", "\x04"):
            return
        place = max(0, place - 1) if pressed in ("p", "b", "\x1b[D") else place + 1
