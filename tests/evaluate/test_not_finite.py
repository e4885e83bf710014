"""A model whose numbers are none is an error that names the sample, in every command that asks one."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

import ttcnet.adapter as adapter
from tests.evaluate.scripted import model_folder, sums, write
from tests.fake_server import answer, serving
from tests.raising import raises, told
from tests.tasks.sudoku.boards import PUZZLE, SOLUTION
from tests.train import tiny
from ttcnet.cli import app
from ttcnet.evaluate.analysis.likelihood import log_likelihoods
from ttcnet.evaluate.analysis.selection import best_of
from ttcnet.models import TTCNetForCellClassification
from ttcnet.models.decoding import decode
from ttcnet.tasks.sudoku.settings import SudokuTraining
from ttcnet.train.examples import Example


def not_finite(said, where):
    """Whether a command printed that scores are not finite there."""
    return told(said, "bad-output", "model", f"NaN or infinity for {where}")


def ttcnet(*words):
    done = CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200"})
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    assert "Traceback" not in done.output
    return done.output


def broken(folder, token="5"):
    """A model in which one word is not a number."""
    weights = load_file(folder / "model.safetensors")
    weights["model.embed_tokens.weight"][tiny.WORDS.index(token)] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    broken(model_folder(folder / "base"))
    broken(model_folder(folder / "ttc", ttc=True))
    return folder


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_decoding_names_the_row(models, temperature):
    net = tiny.model()
    with torch.no_grad():
        net.lm_head.weight[3] = float("nan")
    options = dict(limit=4, temperature=temperature, ends=[1], pad=0)
    with raises("bad-output", "model", "prompt 1"):
        decode(net, [[6, 7], [8]], [0, 1], **options)
    net = tiny.model()
    with torch.no_grad():
        net.model.embed_tokens.weight[8] = float("nan")
    with raises("bad-output", "model", "the second"):
        decode(net, [[6, 7], [8]], [0, 1], **options, names=["the first", "the second"])


@pytest.mark.parametrize("words", [["--temperature", "0"], ["--temperature", "1", "--samples", "2"]])
def test_answers(models, tmp_path, words):
    file = sums(tmp_path / "sums.jsonl")
    call = ["eval", "math", file, "--model", models / "base", "--out", tmp_path / "out", "--max-tokens", 6, *words]
    said = ttcnet(*call, "--system", "", "--batch", 1)
    assert not_finite(said, r"problem [1-6] of sums, sample [01]\.")  # one that is asked of a 5, or says it


def test_scaling(models, tmp_path):
    file = write(tmp_path / "sums.jsonl", {"problem": "5 + 5 = ?", "answer": "10"})
    call = ["eval", "scaling", file, "--model", models / "ttc", "--out", tmp_path / "out", "--max-tokens", 6]
    assert not_finite(ttcnet(*call, "--system", "", "--horizons", "1"), r"problem 1 of sums horizon, sample 0.")


def test_a_server_whose_likelihoods_are_none(tmp_path):
    file = sums(tmp_path / "sums.jsonl", 1)
    with serving(lambda *_: answer("1", logprob=float("nan"))) as (url, _):
        said = ttcnet("eval", "scaling", file, "--server", url, "--out", tmp_path / "out", "--method", "best-of-n")
    assert not_finite(said, "problem 1 of sums samples, sample ")


def test_the_best_of_answers_that_were_kept():
    lines = [{"mean_logprob": value, "new_tokens": 1, "problem": 7, "sample": k} for k, value in enumerate((-1, 1e999))]
    with raises("bad-output", "model", "problem 7, sample 1"):
        best_of(lines)


def test_likelihoods(models, tmp_path):
    rows = [{"problem": f"{k} + 1 = ?", "solution": f"the answer is {k + 1}"} for k in (1, 2, 4)]
    file = write(tmp_path / "data.jsonl", *rows)
    for model in ("base", "ttc"):
        said = ttcnet("eval", "likelihood", file, "--model", models / model, "--out", tmp_path / "out.json")
        assert not_finite(said, "solution 3 of 3.")
    assert not (tmp_path / "out.json").exists()
    net = tiny.model()
    with torch.no_grad():
        net.lm_head.weight[3] = float("inf")
    with raises("bad-output", "model", "solution 1 of 1"):
        log_likelihoods(net, [Example([6, 7, 8], [-100, 7, 8])])


def test_alignment(models, tmp_path):
    rows = [{"problem": f"{k} + 1 = ?", "solution": f"the answer is {k + 1}"} for k in (1, 2, 4)]
    file = write(tmp_path / "data.jsonl", *rows)
    said = ttcnet("analyse", "alignment", "--model", models / "ttc", "--data", file, "--out", tmp_path / "out.json")
    assert not_finite(said, "question 3.")


@pytest.mark.parametrize("kind", ["loglikelihood", "generate_until"])
def test_lm(models, tmp_path, kind):
    rows = [{"problem": f"{k} + 1 = ?", "answer": str(k + 1)} for k in (1, 2, 5)]
    data, task = write(tmp_path / "data.jsonl", *rows), tmp_path / "task.yaml"
    task.write_text(
        f"task: own\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\n"
        f"output_type: {kind}\ndoc_to_text: '{{{{problem}}}}'\ndoc_to_target: ' {{{{answer}}}}'\n"
        "generation_kwargs: {max_gen_toks: 4, until: [x]}\n"
    )
    said = ttcnet("eval", "lm", "--model", models / "base", "--out", tmp_path / "out", "--tasks", task, "--batch", 1)
    assert not_finite(said, "the text that ends in ")
    assert "5 + 1 = ?" in said
    assert "NaN" not in (tmp_path / "out" / "answers-0.jsonl").read_text()


@pytest.fixture(scope="module")
def sudoku(tmp_path_factory):
    """A model whose output is NaN where a 9 is given."""
    torch.manual_seed(0)
    net = TTCNetForCellClassification(SudokuTraining(layers=2, width=32, heads=2).model())
    with torch.no_grad():
        net.model.embed_tokens.weight[9] = float("nan")
    net.save_pretrained(tmp_path_factory.mktemp("sudoku") / "model")
    folder = tmp_path_factory.getbasetemp()
    return next(folder.glob("sudoku*/model"))


def test_sudoku(sudoku, tmp_path):
    empty = "".join(digit if digit in "12345" else "0" for digit in SOLUTION)  # a puzzle without a given 9
    (tmp_path / "boards.csv").write_text(f"{empty},{SOLUTION}\n{PUZZLE},{SOLUTION}\n")
    data = tmp_path / "boards.csv"
    assert "9" in PUZZLE
    assert not_finite(ttcnet("sudoku", "solve", PUZZLE, "--model", sudoku), "board 1 of 1.")
    for mode in ("single", "multi"):
        said = ttcnet("sudoku", "eval", sudoku, "--data", data, "--mode", mode, "--out", tmp_path / "out.json")
        assert not_finite(said, "board 2 of 2.")
    assert not_finite(ttcnet("sudoku", "probe", sudoku, "--train", data, "--test", data), r"row 2 of 2.")
    assert not (tmp_path / "out.json").exists()


def test_an_adapter(tmp_path, models):
    base = model_folder(tmp_path / "base")
    net = adapter.insert(tiny.model(), adapter.TTCAdapterConfig(every=2, heads=2, state_size=8, rank=4))
    with torch.no_grad():
        next(iter(adapter.parameters(net).values())).fill_(float("nan"))
    adapter.save(net, tmp_path / "adapter")
    file = sums(tmp_path / "sums.jsonl", 2)
    call = ["eval", "math", file, "--model", base, "--adapter", tmp_path / "adapter", "--out", tmp_path / "out"]
    assert not_finite(ttcnet(*call, "--max-tokens", 4, "--system", ""), "problem ")
    assert not json.loads((tmp_path / "out" / "sums" / "settings.json").read_text()).get("summary")
