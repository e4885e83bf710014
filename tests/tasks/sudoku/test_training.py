"""Training: batches, resuming, decoding."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from ttcnet.cli import sudoku as commands
from ttcnet.models import TTCNetForCellClassification
from ttcnet.tasks.sudoku import generate
from ttcnet.tasks.sudoku.decode import cell_by_cell, in_one_pass
from ttcnet.tasks.sudoku.feed import STEPS_AT_ONCE, Feed
from ttcnet.tasks.sudoku.settings import ARCHITECTURES, TrainConfig
from ttcnet.train.sudoku import learner, train, trained_model

TINY = TrainConfig(steps=6, batch=4, layers=2, width=32, heads=2, dropout=0.1, augmentation="relabel+reveal")
LOOPED = replace(TINY, layers=1, loops=4, interleave="2:1", supervision="loop", zero_init=True, inserted_lr=1e-3)


class KilledError(Exception):
    """Ends a run from within, as a signal would."""


@pytest.fixture(scope="module")
def boards():
    return generate(40, givens=(30, 34), seed=0)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("config", [TINY, LOOPED, replace(LOOPED, architecture="mlp")], ids=["tall", "looped", "mlp"])
def test_a_killed_run_ends_at_the_same_weights(config, boards, tmp_path):
    whole = train(config, boards, tmp_path / "whole", every=2, save_every=2)

    def kill(trainer, _):
        if trainer.step == 4:
            raise KilledError  # after step 4 was logged, before it was saved

    with pytest.raises(KilledError):
        train(config, boards, tmp_path / "killed", every=2, save_every=2, report=kill)
    torch.manual_seed(123)  # whatever happens in between
    again = train(config, boards, tmp_path / "killed", every=2, save_every=2)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "killed")]
    assert logs[0] == logs[1]
    assert not list(tmp_path.rglob("*.tmp"))
    loaded = TTCNetForCellClassification.from_pretrained(tmp_path / "killed" / "model")
    assert torch.equal(loaded.classifier.weight, whole.classifier.weight)


def test_a_run_in_pieces_ends_at_the_same_weights(boards, tmp_path):
    whole = train(LOOPED, boards, tmp_path / "whole", every=2)
    for steps in (2, 4):
        train(LOOPED, boards, tmp_path / "pieces", every=2, minutes=0)
        assert checkpoint.load(tmp_path / "pieces" / "checkpoint.safetensors")[1]["step"] == steps
        assert not (tmp_path / "pieces" / "model").exists()
    again = train(LOOPED, boards, tmp_path / "pieces", every=2, minutes=0)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "pieces")]
    assert logs[0] == logs[1]
    assert (tmp_path / "pieces" / "model" / "config.json").exists()


def test_sigterm_saves_and_ends_the_run(boards, tmp_path, capsys):
    before = signal.getsignal(signal.SIGTERM)
    whole = train(TINY, boards, tmp_path / "whole", every=2)
    with pytest.raises(SystemExit) as ended:
        train(TINY, boards, tmp_path / "told", every=2, report=lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert ended.value.code == 128 + signal.SIGTERM
    assert "Stopped by SIGTERM after step 3 of 6, which is saved. Give the command again" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) == before
    again = train(TINY, boards, tmp_path / "told", every=2)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name


def test_a_looped_model_has_the_size_that_it_is_known_by():
    model = TTCNetForCellClassification(TrainConfig("transformer", layers=1, loops=32).model())
    assert sum(parameter.numel() for parameter in model.parameters()) == 214_345


def test_what_is_inserted_may_learn_at_a_rate_of_its_own(boards):
    trainer = Trainer(replace(LOOPED, lr=4e-3, inserted_lr=1e-3, decay_bases=False), boards)
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
        for group in Trainer(LOOPED, boards).optimizer.param_groups
        if any(parameter.shape == (16, 16, 16) for parameter in group["params"])
    )
    assert decayed == LOOPED.weight_decay


def test_resuming_with_another_configuration_is_refused(boards, tmp_path):
    train(replace(TINY, steps=2), boards, tmp_path, save_every=1)
    with pytest.raises(ValueError, match=r"config must be that of the checkpoint .*'lr': \(0.005, 0.001\)"):
        train(replace(TINY, steps=2, lr=1e-3), boards, tmp_path)


def test_heads_of_ttc_may_be_others(boards, tmp_path):
    trained = train(replace(TINY, steps=1, ttc_heads=3), boards, tmp_path)
    assert (trained.config.num_attention_heads, trained.config.ttc_heads) == (2, 3)
    with pytest.raises(ValueError, match=r"'ttc_heads': \(3, None\)"):
        train(replace(TINY, steps=1), boards, tmp_path)


OF_OLD = (
    "architecture", "steps", "batch", "lr", "final_lr", "warm_up", "weight_decay", "clip", "dropout", "augmentation",
    "ema", "horizon", "layers", "width", "heads", "seed",
)  # fmt: skip


def test_checkpoints_of_before_there_were_loops(boards, tmp_path):
    whole = train(replace(TINY, steps=2, context="head"), boards, tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    tensors, facts = checkpoint.load(path)
    facts["config"] = {name: value for name, value in facts["config"].items() if name in OF_OLD}
    checkpoint.save(path, tensors, facts)
    again = train(replace(TINY, steps=2, context="head"), boards, tmp_path)
    assert torch.equal(again.classifier.weight, whole.classifier.weight)
    with pytest.raises(ValueError, match=r"\(then, now\): {'context': \('head', 'token'\)}"):
        train(replace(TINY, steps=2), boards, tmp_path)


def test_resuming_on_other_boards_is_refused(boards, tmp_path):
    train(replace(TINY, steps=2), boards, tmp_path)
    with pytest.raises(ValueError, match=r"boards must be those of the checkpoint .*; got 39 others"):
        train(replace(TINY, steps=2), boards[1:], tmp_path)


def test_a_run_that_diverges_stops_and_keeps_its_last_checkpoint(boards, tmp_path):
    def spoil(trainer, _):
        if trainer.step == 4:
            torch.nn.init.constant_(trainer.model.classifier.weight, float("nan"))

    with pytest.raises(ValueError, match=r"loss must be a finite number; got nan near step 5"):
        train(TINY, boards, tmp_path, every=1, save_every=3, report=spoil)
    kept, facts = checkpoint.load(tmp_path / "checkpoint.safetensors")
    assert facts["step"] == 3
    assert all(value.isfinite().all() for value in kept.values() if value.is_floating_point())


def test_a_file_in_place_of_the_folder(boards, tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"out must be a folder; got .*run, a file"):
        train(TINY, boards, tmp_path / "run")


QUICK = ("ttc", "transformer")  # the others' mixers learn in test_mixers too


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ARCHITECTURES],
)
def test_every_architecture_learns(architecture, boards):
    learn(TrainConfig(architecture, steps=60, batch=8, layers=2, width=32, heads=2, lr=3e-3, ema=0), boards)


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_learns_in_loops(architecture, boards):
    sizes = dict(layers=1, loops=4, width=32, heads=2)
    learn(TrainConfig(architecture, steps=90, batch=8, lr=3e-3, ema=0, supervision="loop", **sizes), boards)


def learn(config, boards):
    trainer = Trainer(config, boards)
    losses = []
    for _ in range(3):
        for _ in range(config.steps // 3):
            trainer.advance()
        losses.append(trainer.news(config.steps // 3)["loss"])
    assert losses[-1] < losses[0] - 0.05, losses


def test_the_average_is_what_is_handed_out(boards):
    trainer = Trainer(replace(TINY, ema=0.5), boards)
    expected = weights(trainer.model)
    for _ in range(3):
        trainer.advance()
        expected = {name: torch.lerp(expected[name], value, 0.5) for name, value in weights(trainer.model).items()}
    for name, value in weights(trainer.trained_model()).items():
        assert torch.allclose(value, expected[name], atol=1e-6), name


def test_batches_are_a_function_of_seed_and_step(boards):
    one, other = (Feed(boards, 4, 1, "all+reveal", "cpu") for _ in range(2))
    for step in (0, STEPS_AT_ONCE + 3, 5, 200):
        for a, b in zip(one.at(step), other.at(step), strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(one.at(0)[0], Feed(boards, 4, 2, "all+reveal", "cpu").at(0)[0])


def test_every_board_once_a_pass(boards):
    feed = Feed(boards, 8, 0, "none", "cpu")
    seen = torch.cat([feed.at(step)[0] for step in range(5)])
    assert sorted(map(tuple, seen.tolist())) == sorted(map(tuple, boards.puzzles.tolist()))


@pytest.mark.parametrize("augmentation", ["none", "relabel", "relabel+reveal", "all+reveal"])
def test_labels_are_the_digits_of_blank_cells(boards, augmentation):
    puzzles, labels = Feed(boards, 8, 0, augmentation, "cpu").at(3)
    assert torch.equal(labels == -100, puzzles > 0)
    filled = torch.where(puzzles > 0, puzzles, labels + 1).view(8, 9, 9)
    assert torch.equal(filled.sort(-1).values, torch.arange(1, 10).expand(8, 9, 9))


class Oracle:
    """A model that knows the solution of every board, and is surer of some cells than of others."""

    device = torch.device("cpu")

    def __init__(self, boards, confidence):
        self.solutions = torch.from_numpy(boards.solutions).long()
        self.confidence, self.seen = confidence, []

    def __call__(self, puzzles, horizon=None, loops=None):
        self.seen.append(puzzles.clone())
        one_hot = torch.nn.functional.one_hot(self.solutions - 1, 9).float()
        return type("Output", (), {"logits": one_hot * (1 + self.confidence[..., None])})


def test_decoding_cell_by_cell_takes_the_surest_first(boards):
    few = boards[:3]
    confidence = torch.rand(3, 81, generator=torch.Generator().manual_seed(0))
    model = Oracle(few, confidence)
    puzzles = torch.from_numpy(few.puzzles).long()
    filled = cell_by_cell(model, puzzles)
    assert torch.equal(filled, model.solutions)
    assert len(model.seen) == int((puzzles == 0).sum(1).max())
    for board in range(3):
        steps = pairwise([*(boards[board] for boards in model.seen), filled[board]])
        cells = [int(cell) for one, other in steps for cell in (one != other).nonzero()]
        blanks = (puzzles[board] == 0).nonzero().flatten()
        assert cells == sorted(blanks.tolist(), key=lambda cell: -confidence[board, cell])
    assert torch.equal(in_one_pass(Oracle(few, confidence), puzzles), model.solutions)


def test_decoding_keeps_the_givens(boards):
    torch.manual_seed(0)
    model = TTCNetForCellClassification(TINY.model()).eval()
    puzzles = torch.from_numpy(boards.puzzles[:3]).long()
    for filled in (in_one_pass(model, puzzles), cell_by_cell(model, puzzles, horizon=2)):
        assert torch.equal(filled[puzzles > 0], puzzles[puzzles > 0])
        assert np.isin(filled.numpy(), range(1, 10)).all()


def test_strings_in_strings_out(boards):
    from ttcnet.tasks import sudoku

    model = TTCNetForCellClassification(TINY.model()).eval()
    puzzle = sudoku.format(boards.puzzles[0])
    (solved,) = sudoku.solve(model, [puzzle.replace("0", ".")])
    assert len(solved) == 81
    assert all(given in ("0", digit) for given, digit in zip(puzzle, solved, strict=True))
    assert sudoku.solve(model, []) == []


def test_commands(boards, tmp_path):
    from typer.testing import CliRunner

    from ttcnet.cli import app

    boards.write(tmp_path / "boards.csv")
    sizes = ["--steps", "3", "--layers", "1", "--width", "32", "--heads", "2", "--ttc-heads", "3", "--batch", "2"]
    options = ["--data", str(tmp_path / "boards.csv"), "--device", "cpu"]
    run = CliRunner().invoke(app, ["sudoku", "train", *options, *sizes, "--out", str(tmp_path / "run")])
    assert run.exit_code == 0, run.output
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["ttc_heads"] == 3
    model, out = str(tmp_path / "run" / "model"), str(tmp_path / "scores.json")
    limits = ["--limit", "2", "--horizon", "0", "--horizon", "2", "--out", out]
    run = CliRunner().invoke(app, ["sudoku", "eval", model, *options, *limits])
    assert run.exit_code == 0, run.output
    assert run.output.count("boards") == 4
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert [(result["mode"], result["horizon"]) for result in scores["results"]] == [
        ("single", 0), ("multi", 0), ("single", 2), ("multi", 2),
    ]  # fmt: skip
    ways = ["--limit", "2", "--mode", "single", "--horizon", "0,2", "--loops", "1,3", "--out", out]
    run = CliRunner().invoke(app, ["sudoku", "eval", model, *options, *ways])
    assert run.exit_code == 0, run.output
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert [(result["loops"], result["horizon"]) for result in scores["results"]] == [(1, 0), (1, 2), (3, 0), (3, 2)]
    assert "one pass, loops 3, horizon 2: boards" in run.output
    run = CliRunner().invoke(app, ["sudoku", "eval", model, *options, "--loops", "0"])
    assert "loops must be 1 or more; got 0" in run.output
    run = CliRunner().invoke(app, ["sudoku", "train", *options, "--architecture", "lstm", "--out", str(tmp_path / "x")])
    assert run.exit_code == 1
    assert "architecture must be one of" in run.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(architecture="lstm"), "architecture must be one of ttc, transformer"),
        (dict(augmentation="mirror"), "augmentation must be one of none"),
        (dict(steps=0), "steps must be 1 or more"),
        (dict(ttc_heads=0), "ttc_heads must be 1 or more; got 0"),
        (dict(architecture="gdn", ttc_heads=8), "ttc_heads must be left out for gdn, which has no TTC layers; got 8"),
        (dict(architecture="gdn", zero_init=True), "zero_init must be left out for gdn, which has no TTC layers"),
        (dict(architecture="gdn", interleave="1:1"), "interleave must be left out for gdn, which has no TTC layers"),
        (dict(loops=0), "loops must be 1 or more; got 0"),
        (dict(supervision="often"), "supervision must be one of block, loop, end; got 'often'"),
        (dict(context="world"), "context must be one of token, head; got 'world'"),
        (dict(inserted_lr=-1.0), "inserted_lr must be 0 or more and finite"),
        (dict(ema=1.0), r"ema must lie in \[0, 1\)"),
        (dict(lr=-1.0), "lr must be 0 or more and finite"),
        (dict(final_lr=float("inf")), "final_lr must be 0 or more and finite"),
        (dict(weight_decay=float("nan")), "weight_decay must be 0 or more and finite"),
        (dict(seed=2**50), "seed must be between 0 and 4294967295"),
    ],
)
def test_bad_configurations(options, message):
    with pytest.raises(ValueError, match=message):
        TrainConfig(**options)


def test_batches_larger_than_the_data(boards):
    with pytest.raises(ValueError, match="batch must be between 1 and the 40 boards; got 41"):
        Feed(boards, 41, 0, "none", "cpu")


TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]  # as `accelerate launch` starts them
DYING = """
import os
from ttcnet.cli import app
from ttcnet.tasks.sudoku.trainer import Trainer
advance = Trainer.advance
Trainer.advance = lambda trainer: os._exit(9) if trainer.step == 6 else advance(trainer)
app()
"""


def launched(start, out, *options):
    """Whether `ttcnet sudoku train`, or what stands for it, got to the end."""
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
    """With dropout, for which each has random numbers of its own."""
    boards.write(tmp_path / "boards.csv")
    (tmp_path / "dying.py").write_text(DYING)
    options = ["--dropout", "0.2", "--save-every", "4"]
    assert launched([*TWO, "-m", "ttcnet.cli"], tmp_path / "whole", *options)
    assert not launched([*TWO, str(tmp_path / "dying.py")], tmp_path / "killed", *options)
    assert checkpoint.load(tmp_path / "killed" / "checkpoint.safetensors")[1]["step"] == 4
    assert launched([*TWO, "-m", "ttcnet.cli"], tmp_path / "killed", *options)
    again = ended_at(tmp_path / "killed")
    for name, value in ended_at(tmp_path / "whole").items():
        assert torch.equal(value, again[name]), name


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch's compiler, to itself
@pytest.mark.parametrize("config", [TINY, LOOPED], ids=["tall", "looped"])
def test_on_a_gpu_a_captured_step_is_the_step(config, boards, tmp_path):
    """A killed and resumed run ends at the same weights there too, and near those of the CPU."""
    config = replace(config, dropout=0.0, steps=8)
    whole = train(config, boards, tmp_path / "whole", "cuda", every=4, save_every=4)

    def kill(trainer, _):
        if trainer.step == 8:
            raise KilledError

    with pytest.raises(KilledError):
        train(config, boards, tmp_path / "killed", "cuda", every=4, save_every=4, report=kill)
    again = train(config, boards, tmp_path / "killed", "cuda", every=4, save_every=4)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(again)[name]), name


def test_a_missing_tensorboard_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with commands._board(tmp_path) as writer:
        writer.add_scalar("loss", 1.0, 1)
    assert "Without TensorBoard" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
