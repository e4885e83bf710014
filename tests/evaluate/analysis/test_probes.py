"""Probes of planned states."""

import json

import torch
from typer.testing import CliRunner

from tests.raising import raises
from ttcnet.cli import app
from ttcnet.evaluate.analysis.probes import Labelled, _accuracy, planned_states, probe
from ttcnet.models import TTCNetForCellClassification
from ttcnet.tasks.sudoku import Boards, generate
from ttcnet.tasks.sudoku.feed import labelled
from ttcnet.tasks.sudoku.settings import SudokuTraining
from ttcnet.tasks.sudoku.step_by_step import plan_values


def model(architecture="ttc"):
    torch.manual_seed(0)
    config = SudokuTraining(architecture, layers=2, width=32, heads=2)
    return TTCNetForCellClassification(config.model()).eval()


def cells(*wish, **options):
    return Labelled(*labelled(generate(*wish, **options)))


def test_the_states_are_those_of_the_plan():
    net, boards = model(), generate(3, seed=0)
    ((states,),), labels = planned_states(net, Labelled(*labelled(boards)), (0, 2, 5))
    blanks = int((boards.puzzles == 0).sum())
    assert states.shape == (blanks, 3, 2 * 16)
    assert labels.shape == (blanks,)
    layer = net.model.layers[1].inserted[0]
    caught = []
    layer.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
    with torch.no_grad():
        net(torch.from_numpy(boards.puzzles).long())
        _, plan = layer(caught[0], 5, return_plan=True)
    expected = plan.h[torch.from_numpy(boards.puzzles) == 0]  # cells, heads, steps, n
    for place, step in enumerate((0, 2, 5)):
        assert torch.allclose(states[:, place], expected[:, :, step].flatten(1), atol=1e-5)


def test_in_loops_there_are_states_for_every_time():
    """TTC in passes 2 and 4 of 4: the first time is what 2 loops have alone."""
    torch.manual_seed(0)
    net = TTCNetForCellClassification(
        SudokuTraining(layers=1, loops=4, interleave="2:1", width=32, heads=2).model()
    ).eval()
    boards = generate(3, seed=0)
    data = Labelled(*labelled(boards))
    (times,), labels = planned_states(net, data, (0, 2))
    assert [tuple(states.shape) for states in times] == [(len(labels), 2, 32)] * 2
    assert not torch.allclose(times[0], times[1])
    net.config.loops = 2
    ((once,),), _ = planned_states(net, data, (0, 2))
    assert torch.allclose(once, times[0], atol=1e-5)
    net.config.loops = 4
    assert [(found.time, found.step) for found in probe(net, data, data, (0, 2), iterations=1)] == [
        (0, 0), (0, 2), (1, 0), (1, 2),
    ]  # fmt: skip
    assert plan_values(net, boards.puzzles[0], (1, 2, 3)).shape == (2, 3)


def test_a_probe_finds_linear_information_and_no_other():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 9, (600,), generator=generator)
    told = torch.nn.functional.one_hot(labels, 9).float() + 0.3 * torch.randn(600, 9, generator=generator)
    noise = torch.randn(600, 9, generator=generator)
    half = slice(0, 300), slice(300, 600)
    assert _accuracy(*((told[part], labels[part]) for part in half), 100) > 0.9
    assert _accuracy(*((noise[part], labels[part]) for part in half), 100) < 0.25


def test_probes_of_every_layer_and_step():
    results = list(probe(model(), cells(6, seed=1), cells(4, seed=2), steps=(0, 3), iterations=10))
    assert [(result.layer, result.step) for result in results] == [(0, 0), (0, 3)]
    assert all(0 <= result.accuracy <= 1 for result in results)
    with raises("no-layers", "model"):
        list(probe(model("transformer"), cells(2, seed=1), cells(2, seed=2)))
    with raises("too-small", "step", "-1"):
        list(probe(model(), cells(2, seed=1), cells(2, seed=2), steps=(0, -1)))
    few = generate(2, seed=1)
    with raises("bad-board", "puzzles", "a full puzzle at index 0"):
        labelled(Boards(few.solutions, few.solutions))


def test_the_probe_command_writes_results(tmp_path):
    model().save_pretrained(tmp_path / "model")
    generate(4, seed=1).write(tmp_path / "boards.csv")
    where = ["--train", str(tmp_path / "boards.csv"), "--test", str(tmp_path / "boards.csv"), "--device", "cpu"]
    options = [*where, "--step", "0", "--step", "2", "--out", str(tmp_path / "found" / "probe.json")]
    done = CliRunner().invoke(app, ["sudoku", "probe", str(tmp_path / "model"), *options])
    assert done.exit_code == 0, done.output
    assert "TTC layer 1, step 2:" in done.output
    kept = json.loads((tmp_path / "found" / "probe.json").read_text())
    assert [result["step"] for result in kept["results"]] == [0, 2]
    assert (kept["fitted"], kept["judged"]) == (4, 4)
