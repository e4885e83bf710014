"""What commands say: progress without a terminal, and what went wrong."""

import io
import re

import pytest
import typer
from rich.console import Console

from ttcnet import bars
from ttcnet.errors import complaints


@pytest.mark.parametrize("terminal", [False, True])
def test_a_line_now_and_then_where_there_is_no_terminal(monkeypatch, terminal):
    now = [0.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=80)
    with bars.Bar(console=console, auto_refresh=False) as bar:
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


def test_what_the_operating_system_says_is_a_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(typer.Exit), complaints():
        (tmp_path / "file" / "inside").mkdir()
    assert capsys.readouterr().err == f"{tmp_path / 'file' / 'inside'}: Not a directory. Pass another path.\n"
