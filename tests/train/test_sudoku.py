"""Training of Sudoku models; test_run.py has what holds for all runs."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from tests.raising import raises
from tests.train.engines import boards as some_boards
from ttcnet.models import TTCNetForCellClassification
from ttcnet.storage import tensor_file
from ttcnet.tasks.sudoku.settings import ARCHITECTURES, SudokuTraining
from ttcnet.train.sudoku import learner, train, trained_model

TINY = SudokuTraining(steps=6, batch=4, layers=2, width=32, heads=2, dropout=0.1, augmentation="relabel+reveal")
LOOPED = replace(TINY, layers=1, loops=4, interleave="2:1", supervision="loop", zero_init=True, inserted_lr=1e-3)

CARRIED = replace(LOOPED, recall=True, loops_per_step=2)


class KilledError(Exception):
    """Ends a run from within, as a signal would."""


@pytest.fixture(scope="module")
def boards():
    return some_boards()


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("config", [LOOPED, CARRIED], ids=["looped", "carried"])
def test_a_run_in_pieces_ends_at_the_same_weights(config, boards, tmp_path):
    whole = train(config, boards, tmp_path / "whole", every=2)
    for steps in (2, 4):
        train(config, boards, tmp_path / "pieces", every=2, minutes=0)
        assert [path.name for path in (tmp_path / "pieces").glob("checkpoint-*")] == [f"checkpoint-{steps}.safetensors"]
        assert not (tmp_path / "pieces" / "model").exists()
    again = train(config, boards, tmp_path / "pieces", every=2, minutes=0)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "pieces")]
    assert logs[0] == logs[1]
    assert (tmp_path / "pieces" / "model" / "config.json").exists()


def test_boards_stay_for_several_steps(boards):
    """With 2 of 4 loops a step, half of the boards are new, and the others continue."""
    config = replace(CARRIED, dropout=0.0, lr=0.0, final_lr=0.0, weight_decay=0.0)
    trained = learner(config, boards)
    first, second = (trained.objective.feed.at(step)[0] for step in (0, 1))
    trained.advance()
    carried = trained.objective.carried
    assert torch.equal(carried["puzzles"][:2], first)
    assert (carried["labels"][2:] == -100).all()  # there were no boards before
    trained.advance()
    assert torch.equal(carried["puzzles"], torch.cat([second, first]))
    model = trained.model.eval()
    with torch.no_grad():
        assert torch.allclose(carried["states"][:2], model(second, loops=2).state, atol=1e-5)
        assert torch.allclose(carried["states"][2:], model(first, loops=4).state, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "value"),
    [(dict(loops_per_step=3), 3), (dict(loops_per_step=1, batch=6), 1), (dict(loops_per_step=2, recall=False), 2)],
)
def test_loops_per_step_that_make_no_run(changes, value):
    with raises("conflict", "loops_per_step", f"^{value}$"):
        replace(CARRIED, **changes)


def test_a_checkpoint_without_carried_tensors(boards, tmp_path):
    train(CARRIED, boards, tmp_path, every=2, minutes=0)
    (path,) = tmp_path.glob("checkpoint-*")
    tensors = load_file(path)
    for changed in ({}, {"task/states": tensors["task/states"][1:]}):
        kept = {name: x for name, x in tensors.items() if name != "task/states"} | changed
        with raises("damaged", "folder/checkpoint"):
            learner(CARRIED, boards).restore(kept, 2, "folder/checkpoint")


def test_inserted_layers_may_have_their_own_rate(boards):
    trainer = learner(replace(LOOPED, lr=4e-3, inserted_lr=1e-3, decay_bases=False), boards)
    names = {parameter: name for name, parameter in trainer.model.named_parameters()}
    trainer.advance()
    for group in trainer.optimizer.param_groups:
        for parameter in group["params"]:
            name = names.pop(parameter)
            share = 0.25 if ".inserted." in name else 1
            assert group["lr"] == pytest.approx(share * 4e-3), name  # after one step of warm up out of one
            if "bases" in name:
                assert group["weight_decay"] == 0, name
    assert not names
    (decayed,) = (
        group["weight_decay"]
        for group in learner(LOOPED, boards).optimizer.param_groups
        if any(parameter.shape == (16, 16, 16) for parameter in group["params"])
    )
    assert decayed == LOOPED.weight_decay


def test_heads_of_ttc_may_be_others(boards, tmp_path):
    trained = train(replace(TINY, steps=1, ttc_heads=3), boards, tmp_path)
    assert (trained.config.num_attention_heads, trained.config.ttc_heads) == (2, 3)
    with raises("settings-changed", "settings", r"'ttc_heads': \(3, None\)"):
        train(replace(TINY, steps=1), boards, tmp_path)


def test_resuming_on_other_boards_is_refused(boards, tmp_path):
    train(replace(TINY, steps=2), boards, tmp_path)
    with raises("settings-changed", "settings", r"'boards': \('\w+', '\w+'\)"):
        train(replace(TINY, steps=2), boards[1:], tmp_path)


def test_a_run_that_diverges_stops_and_keeps_its_last_checkpoint(boards, tmp_path):
    def spoil(_, trainer, __):
        if trainer.step == 4:
            torch.nn.init.constant_(trainer.model.classifier.weight, float("nan"))

    with raises("diverged", "loss", "nan at step 5"):
        train(TINY, boards, tmp_path, every=1, save_every=3, report=spoil)
    kept, facts = tensor_file.load(tmp_path / "checkpoint-3.safetensors")
    assert facts["step"] == 3
    assert all(value.isfinite().all() for value in kept.values() if value.is_floating_point())


def test_a_file_in_place_of_the_folder(boards, tmp_path):
    (tmp_path / "run").write_text("mine")
    with raises("not-a-folder", "out", "run, a file"):
        train(TINY, boards, tmp_path / "run")


QUICK = ("ttc", "transformer")  # the others' mixers learn in test_mixers too


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ARCHITECTURES],
)
def test_every_architecture_learns(architecture, boards):
    learn(SudokuTraining(architecture, steps=60, batch=8, layers=2, width=32, heads=2, lr=3e-3, ema=0), boards)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_learns_in_loops(architecture, boards):
    sizes = dict(layers=1, loops=4, width=32, heads=2)
    learn(SudokuTraining(architecture, steps=90, batch=8, lr=3e-3, ema=0, supervision="loop", **sizes), boards)


def learn(config, boards):
    trainer = learner(config, boards)
    losses = []
    for _ in range(3):
        for _ in range(config.steps // 3):
            trainer.advance()
        losses.append(trainer.news()["loss"])
    assert losses[-1] < losses[0] - 0.05, losses


def test_the_result_has_the_average_of_the_weights(boards):
    trainer = learner(replace(TINY, ema=0.5), boards)
    expected = weights(trainer.model)
    for _ in range(3):
        trainer.advance()
        expected = {name: torch.lerp(expected[name], value, 0.5) for name, value in weights(trainer.model).items()}
    for name, value in weights(trained_model(trainer)).items():
        assert torch.allclose(value, expected[name], atol=1e-6), name


TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]  # as `accelerate launch` starts them
DYING = """
import os
from ttcnet.cli import app
from ttcnet.train.learner import Learner
advance = Learner.advance
Learner.advance = lambda trainer: os._exit(9) if trainer.step == 6 else advance(trainer)
app()
"""


def launched(start, out, *options):
    """Whether `ttcnet sudoku train`, or its stand-in, got to the end."""
    sizes = ["--steps", "8", "--layers", "2", "--width", "32", "--heads", "2", "--batch", "4", "--lr", "1e-3"]
    data = ["--data", str(out.parent / "boards.csv"), "--device", "cpu", "--augmentation", "relabel+reveal"]
    command = [sys.executable, *start, "sudoku", "train", *sizes, *data, *options, "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, timeout=90).returncode == 0


def ended_at(out):
    return weights(TTCNetForCellClassification.from_pretrained(out / "model"))


@pytest.mark.slow
def test_two_processes_train_as_one(boards, tmp_path):
    boards.write(tmp_path / "boards.csv")
    assert launched(["-m", "ttcnet.cli"], tmp_path / "one")
    assert launched([*TWO, "-m", "ttcnet.cli"], tmp_path / "two")
    two = ended_at(tmp_path / "two")
    for name, value in ended_at(tmp_path / "one").items():
        assert torch.allclose(value, two[name], atol=1e-5), name


@pytest.mark.slow
def test_two_processes_that_were_killed_end_at_the_same_weights(boards, tmp_path):
    """The model has dropout, for which each process has random numbers of its own."""
    boards.write(tmp_path / "boards.csv")
    (tmp_path / "dying.py").write_text(DYING)
    options = ["--dropout", "0.2", "--save-every", "4"]
    assert launched([*TWO, "-m", "ttcnet.cli"], tmp_path / "whole", *options)
    assert not launched([*TWO, str(tmp_path / "dying.py")], tmp_path / "killed", *options)
    assert (tmp_path / "killed" / "checkpoint-4.safetensors").exists()
    assert launched([*TWO, "-m", "ttcnet.cli"], tmp_path / "killed", *options)
    again = ended_at(tmp_path / "killed")
    for name, value in ended_at(tmp_path / "whole").items():
        assert torch.equal(value, again[name]), name


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, to itself
@pytest.mark.parametrize("config", [TINY, LOOPED, CARRIED], ids=["tall", "looped", "carried"])
def test_on_a_gpu_a_captured_step_is_the_step(config, boards, tmp_path):
    """A killed and resumed run ends at the same weights there too, and near those of the CPU."""
    config = replace(config, dropout=0.0, steps=8)
    whole = train(config, boards, tmp_path / "whole", "cuda", every=4, save_every=4)

    def kill(_, trainer, __):
        if trainer.step == 8:
            raise KilledError

    with pytest.raises(KilledError):
        train(config, boards, tmp_path / "killed", "cuda", every=4, save_every=4, report=kill)
    again = train(config, boards, tmp_path / "killed", "cuda", every=4, save_every=4)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name
