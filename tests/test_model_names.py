"""Wrong paths are told at once, in one way, by every command that takes a model; and no command is silent for long."""

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tests.raising import raises, told
from ttcnet.cli import app
from ttcnet.model_names import ADAPTER, REMEDY, check_model, loading
from ttcnet.storage.reading import is_file, is_path

COMMANDS = [
    "sft --data {data} --out {out}",
    "eval math {data} --out {out}",
    "eval scaling {data} --out {out}",
    "eval likelihood {data}",
    "eval lm --out {out}",
    "analyse alignment --data {data} --out {out}",
]


@pytest.fixture
def words(tmp_path):
    """The words of a command, with a file of data that exists."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"problem": "1 + 1", "solution": "2", "answer": "2"}\n')
    return lambda command: command.format(data=data, out=tmp_path / "out").split()


def told_early(given, **environment):
    """The error of a command, in a process that has imported nothing heavy by then."""
    code = (
        "import sys\n"
        "from ttcnet.cli import app\n"
        "try:\n"
        "    app(sys.argv[1:])\n"
        "finally:\n"
        "    print({'torch', 'transformers', 'trl', 'lm_eval'} & set(sys.modules))\n"
    )
    call = [sys.executable, "-c", code, *given]
    done = subprocess.run(call, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == "set()\n"
    return done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_path_is_an_error_before_anything_heavy_is_imported(command, words, tmp_path):
    said = told_early([*words(command), "--model", "./nope"])
    assert said.startswith("model ")
    assert told(said, "not-found", "model", "'./nope', which does not exist")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "code", "field", "value"),
    [
        ("sft --insert foo --data {data} --model {model} --out {out}", "unknown-name", "insert", "'foo'"),
        ("sft --every foo --data {data} --model {model} --out {out}", "format", "every", "'foo'"),
        ("sft --horizon foo --data {data} --model {model} --out {out}", "unknown-name", "horizon sampler", "'foo'"),
        ("sudoku train --architecture foo --data {data} --out {out}", "unknown-name", "architecture", "'foo'"),
        ("sudoku train --augmentation foo --data {data} --out {out}", "unknown-name", "augmentation", "'foo'"),
        ("sudoku eval --horizon 0,x --data {data}", "format", "horizon", "'0,x'"),
    ],
)
def test_a_wrong_option_too(command, code, field, value, words, tmp_path):
    model_files(tmp_path)
    assert told(told_early(words(command.replace("{model}", str(tmp_path)))), code, field, value)


@pytest.mark.parametrize("command", ["eval math {data} --out {out}", "eval scaling {data} --out {out}"])
def test_a_missing_grader_too(command, words, tmp_path):
    model_files(tmp_path)
    (tmp_path / "math_verify.py").write_text("raise ImportError(name='math_verify')")
    with_it = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    said = told_early([*words(command), "--model", str(tmp_path)], PYTHONPATH=with_it)
    assert told(said.splitlines()[1], "package", "Grading answers")
    assert "math_verify" in said


def model_files(folder):
    """Write the files of a model that commands look at before they load anything."""
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_a_wrong_adapter(command, words, tmp_path):
    model_files(tmp_path)
    nope = tmp_path / "nope"
    for adapter, what in ((nope, f"'{nope}'"), (tmp_path, f"'{tmp_path}', a whole model")):
        done = CliRunner().invoke(app, [*words(command), "--model", str(tmp_path), "--adapter", str(adapter)])
        assert done.exit_code == 1
        assert told(done.output, "not-found", "adapter", what)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_without_its_tokenizer(command, words, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    done = CliRunner().invoke(app, [*words(command), "--model", str(tmp_path)])
    assert done.exit_code == 1
    assert told(done.output, "not-found", "model", f"'{tmp_path}', which has no tokenizer")


def test_folders_that_hold_something_else(tmp_path):
    def refused(name, value):
        with raises("not-found", "model", value) as found:
            check_model(str(name))
        return found.value.remedy

    file = tmp_path / "file"
    file.write_text("")
    refused(file, "which is no folder")
    assert refused(tmp_path, "has no config.json") == REMEDY
    (tmp_path / "model").mkdir()
    model_files(tmp_path / "model")
    assert str(tmp_path / "model") in refused(tmp_path, "has no config.json")
    check_model(str(tmp_path / "model"))
    (tmp_path / ADAPTER).write_text("")
    assert "--adapter" in refused(tmp_path, "has no model")


def test_paths_and_names_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("./data", "../data", "/data", "~/data", "runs/first/model", "."):
        assert is_path(path)
        with raises("not-found", "data"):
            is_file(path)
    for name in ("gpt2", "owner/name", "owner/name-1.5"):
        assert not is_path(name)
        check_model(name)
    assert not is_file("owner/name-1.5")
    for path in ("data/train.csv", "data/train.jsonl", "data/train.json.gz", "train"):
        with raises("not-found", "data"):
            is_file(path)
    (tmp_path / "data").mkdir()
    with raises("not-found", "data"):
        is_file("./data")


def test_messages_of_other_libraries_are_passed_on():
    said = ("no-model", "model", "'gpt2', which is no folder here; of the Hub: no such thing")
    with raises(*said), loading("gpt2"):
        raise OSError("no such\n thing.")
    with raises("no-model", "model"), loading("gpt2"):
        raise KeyError("layers")
    with pytest.raises(KeyboardInterrupt), loading("gpt2"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sft --model {model} --data {data} --out {out}", "Starting transformers ..."),
        ("eval math {data} --model {model} --out {out}", "Reading the examples of data ..."),
        ("eval likelihood {data} --model {model}", "Loading {model} ..."),
        ("eval lm --model {model} --out {out}", "Starting lm_eval ..."),
        ("analyse alignment --model {model} --data {data} --out {out}", "Starting transformers ..."),
        ("data {settings}", "Looking at the sources ..."),
    ],
)
def test_a_command_prints_a_line_before_it_imports(command, said, words, tmp_path):
    """The line is printed even in a process where the heavy imports fail."""
    model_files(tmp_path)
    (tmp_path / "run.toml").write_text(f'out = "x"\n[[source]]\ndata = "{tmp_path / "data.jsonl"}"\n')
    given = words(command.replace("{model}", str(tmp_path)).replace("{settings}", str(tmp_path / "run.toml")))
    heavy = ("torch", "transformers", "trl", "datasets", "lm_eval")
    code = f"import sys\nsys.modules |= dict.fromkeys({heavy})\nfrom ttcnet.cli import app\napp()"
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[0] == said.format(model=tmp_path)
