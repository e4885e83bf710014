"""Progress without a terminal."""

import io
import re

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from ttcnet import bars


@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_now_and_then_where_there_is_no_terminal(monkeypatch, terminal):
    now = [0.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with bars.Bar(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task("training", total=100)
        for step in range(70):
            now[0] += 1
            bar.advance(task)
            bar.update(task, description=f"step {step}")
        spoken = out.getvalue()
    said = {int(step) for step in re.findall(r"(\d+)/100", spoken)} - {0}
    assert said == (set() if terminal else {21, 42, 63})
    assert "step 69" in out.getvalue()  # at the end, as ever


def test_nothing_where_it_is_switched_off(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(bars, "PAUSE", -1.0)
    with bars.Bar(console=Console(file=out), disable=True) as bar:
        bar.advance(bar.add_task("x", total=2))
    assert "x" not in out.getvalue()
