"""Reinforcement learning by two processes: as one does, and with grading that raises."""

import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import typer

from tests.raising import told
from tests.train import jobs
from tests.train.test_grpo import _loaded, log, planner, settings
from tests.train.test_sft_several import join, meet
from tests.train.tiny import tokenizer
from ttcnet.train.grpo.run import reinforce
from ttcnet.train.grpo.samples import Questions

pytestmark = pytest.mark.filterwarnings("ignore")  # of trl and transformers
PREPARING = 30  # seconds for a server of processes to import everything


def drawn_by_two(folder, rank, port):
    join(rank, port)
    reinforce(settings(folder, "two", held_out=str(folder / "others.py")), planner(), tokenizer())


@pytest.mark.slow
def test_two_processes_learn_as_one_does(tmp_path):
    (tmp_path / "others.py").write_text("from tests.tasks.echo import Echo\n\ntask = Echo(range(10, 15))\n")
    assert meet(drawn_by_two, tmp_path) == [0, 0]
    alone = reinforce(settings(tmp_path, held_out=str(tmp_path / "others.py")), planner(), tokenizer())
    again = _loaded(SimpleNamespace(model=str(tmp_path / "two/model")))
    for one, other in zip(again.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    for one, other in zip(log(tmp_path, "two"), log(tmp_path), strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-4)


def graded_by_two(folder, odd):
    """Grading raises in some of the processes, in the second step."""
    from ttcnet.errors import errors_as_sentences

    calls, grade, steps = [], Questions.graded, settings(Path(folder)).save_every

    def graded(self, places, answers):
        calls.append(0)
        if len(calls) == steps and dist.get_rank() in odd:
            self.task.grade = lambda example, text: 1 / 0
        return grade(self, places, answers)

    Questions.graded = graded
    try:
        with errors_as_sentences():
            reinforce(settings(Path(folder)), planner(), tokenizer())
    except typer.Exit as ended:  # as the command does
        raise SystemExit(ended.exit_code) from None


@pytest.mark.slow
@pytest.mark.parametrize("odd", [(1,), (0, 1)])
def test_a_grade_that_raises_ends_both_processes_with_one_error(odd, tmp_path):
    """Within a minute. What was learned before is saved."""
    began = time.monotonic()
    codes = jobs.job(2, graded_by_two, str(tmp_path), odd, seconds=120, said=tmp_path / "said")
    said = (tmp_path / "said").read_text()
    assert time.monotonic() - began < 60 + PREPARING, said
    assert not {0, None, -signal.SIGKILL} & set(codes), said
    assert said.count("[bad-task]") == 1
    assert told(said, "bad-task", "task", "ZeroDivisionError: division by zero, for example")
    assert "Traceback" not in said
    assert [path.name for path in (tmp_path / "run").glob("*.safetensors")] == ["checkpoint-1.safetensors"]
