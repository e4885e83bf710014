"""Wrong paths are told at once, in one way, by every command that takes a model; and no command is silent for long."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from ttcnet.cli import app
from ttcnet.names import ADAPTER, PEFT, check_model, is_path, loading
from ttcnet.records import is_file

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
    """Of a command, with a file of data that is there."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"problem": "1 + 1", "solution": "2", "answer": "2"}\n')
    return lambda command: command.format(data=data, out=tmp_path / "out").split()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_path_is_told_before_anything_heavy_is_imported(command, words, tmp_path):
    code = (
        "import sys\n"
        "from ttcnet.cli import app\n"
        "try:\n"
        "    app(sys.argv[1:])\n"
        "finally:\n"
        "    print({'torch', 'transformers', 'trl', 'lm_eval'} & set(sys.modules))\n"
    )
    given = [*words(command), "--model", "./nope"]
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == "set()\n"
    assert done.stderr.startswith("model must be a folder with a model and its tokenizer, or a name of the Hub; got ")
    assert "'./nope', which does not exist. " in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", COMMANDS[1:])
def test_a_wrong_adapter(command, words, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    given = [*words(command), "--model", str(tmp_path), "--adapter", str(tmp_path / "nope")]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 1
    assert done.output.startswith(f"adapter must be a folder with {ADAPTER} or {PEFT}; got '{tmp_path / 'nope'}'.")


def test_folders_that_hold_something_else(tmp_path):
    def complaint(name):
        with pytest.raises(FileNotFoundError) as found:
            check_model(str(name))
        return str(found.value)

    file = tmp_path / "file"
    file.write_text("")
    assert "which is no folder" in complaint(file)
    assert "has no config.json. Check the name and the files." in complaint(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert complaint(tmp_path).endswith(f"has no config.json. Pass {tmp_path / 'model'}.")
    check_model(str(tmp_path / "model"))
    (tmp_path / ADAPTER).write_text("")
    assert complaint(tmp_path).endswith("It is an adapter: pass it as --adapter, and its base as --model.")


def test_paths_and_names_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("./data", "../data", "/data", "~/data", "runs/first/model", "."):
        assert is_path(path)
        with pytest.raises(FileNotFoundError, match="data must be a file; got"):
            is_file(path)
    for name in ("gpt2", "owner/name", "owner/name-1.5"):
        assert not is_path(name)
        check_model(name)
    assert not is_file("owner/name-1.5")
    for path in ("data/train.csv", "data/train.jsonl", "data/train.json.gz", "train"):
        with pytest.raises(FileNotFoundError, match="which does not exist"):
            is_file(path)
    (tmp_path / "data").mkdir()
    with pytest.raises(FileNotFoundError, match="which is a folder"):
        is_file("./data")


def test_what_other_libraries_say_is_passed_on():
    said = r"got 'gpt2', which is no folder here; of the Hub: no such thing\. Check"
    with pytest.raises(ValueError, match=said), loading("gpt2"):
        raise OSError("no such\n thing.")
    with pytest.raises(KeyError), loading("gpt2"):
        raise KeyError


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("sft --model {model} --data {data} --out {out}", "Starting transformers and TRL ..."),
        ("eval math {data} --model {model} --out {out}", "Reading the problems of data ..."),
        ("eval likelihood {data} --model {model}", "Loading {model} ..."),
        ("eval lm --model {model} --out {out}", "Starting lm_eval ..."),
        ("analyse alignment --model {model} --data {data} --out {out}", "Starting transformers ..."),
        ("data {settings}", "Looking at the sources ..."),
    ],
)
def test_a_command_says_what_it_does_before_it_imports(command, said, words, tmp_path):
    """In a process where the heavy imports fail, the line is there already."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "run.toml").write_text(f'out = "x"\n[[source]]\ndata = "{tmp_path / "data.jsonl"}"\n')
    given = words(command.replace("{model}", str(tmp_path)).replace("{settings}", str(tmp_path / "run.toml")))
    heavy = ("torch", "transformers", "trl", "datasets", "lm_eval")
    code = f"import sys\nsys.modules |= dict.fromkeys({heavy})\nfrom ttcnet.cli import app\napp()"
    done = subprocess.run([sys.executable, "-c", code, *given], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[0] == said.format(model=tmp_path)
