"""docs/reproduce.md: each command of the main table reads the output of the one before it."""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.data.made import problems, write
from tests.fake_server import answer, serving
from ttcnet.cli import app
from ttcnet.data.stages import RESULT
from ttcnet.settings import read_toml
from ttcnet.tasks.math.benchmarks import BENCHMARKS
from ttcnet.train.sft import RESULTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reproduce.md").read_text()
BLOCK = re.search(r"## Tables 2 and 8.*?```\n(.*?)```", PAGE, re.DOTALL)[1]
COMMANDS = [shlex.split(line, comments=True) for line in BLOCK.replace("\\\n", "").splitlines()]
DATA = {command[2]: tomllib.loads((ROOT / command[2]).read_text()) for command in COMMANDS if command[1] == "data"}
BASES = ("llama3-8b", "qwen2.5-math-7b")
ARMS = ("full", "mlp", "attention", "retnet", "mamba", "gdn", "mesanet", "ttc")
NUMBER = re.compile(r"number (\d+)")  # that a made-up problem asks for


def option(command, name):
    return command[command.index(name) + 1]


def test_names_agree():
    """The commands of the page and the variants of experiments/math use the same names of files."""
    made = {f"{values['out']}/{RESULT}" for values in DATA.values()}
    read = {source["data"] for values in DATA.values() for source in values["source"] if "/data/" in source["data"]}
    runs = [read_toml(ROOT / "experiments/math/settings.toml", [base, arm]) for base in BASES for arm in ARMS]
    trained = {values["data"] for values in runs}
    assert len(trained) == 1
    assert trained | read == made, "all that is made is read, and all that is read is made"
    models = {f"{values['out']}/{RESULTS[values['train']]}" for values in runs}
    named = re.findall(r"--model (runs/\S+)", PAGE)
    assert len(named) > 3
    assert set(named) <= models
    answers = option(COMMANDS[-1], "--out")
    assert re.findall(r"--data (experiments/\S+)", PAGE) == [f"{answers}/amc"], "the answers of Table 11"


def put_in(row, path, value):
    """ "a.1.b" is a field b of the second object in a list a."""
    first, *rest = path.split(".")
    for part in rest:
        if part.isdecimal():
            row = row.setdefault(first, [{} for _ in range(4)])
            first = int(part)
        else:
            row = row.setdefault(first, {}) if isinstance(row, dict) else row[first]
            first = part
    row[first] = value


def made_up(folder, source, count=6):
    """Rows in place of a dataset's, with the fields that a recipe looks for."""
    found, seed = [], len(list(folder.iterdir()))  # none like another
    for number, text in enumerate(problems(count, seed)):
        row = {}
        values = {
            "problem": f"{text} It is number {number}.",
            "solution": rf"So it is \boxed{{{number}}}.",
            "answer": str(number),
        }
        for part, value in values.items():
            names = source.get(part, part)
            for name in [names] if isinstance(names, str) else names:
                put_in(row, name, value)
        found.append(row)
    return write(folder / f"{source['data'].replace('/', '_')}-{seed}.jsonl", found)


def without_the_hub(path, folder, url):
    """A recipe with made-up rows in place of the Hub's, and a server on this machine."""
    text = path.read_text()
    blocks = re.split(r"(?=^\[\[)", text, flags=re.MULTILINE)
    for place, block in enumerate(blocks):
        name = re.search(r'^data = "([\w-]+/[\w.-]+)"', block, re.MULTILINE)
        if name and block.startswith("[["):
            source = next(iter(tomllib.loads(block.replace("[[decontaminate.test]]", "[[source]]"))["source"]))
            new = block.replace(f'"{name[1]}"', f'"{made_up(folder, source)}"')
            if 'name = "' not in block:
                new = new.replace("\n", f'\nname = "{name[1].partition("/")[2]}"\n', 1)
            blocks[place] = new
    text = "".join(blocks).replace("http://localhost:8000/v1", url).replace("rounds = 32", "rounds = 2")
    path.write_text(text.replace("agree = 32", "agree = 2"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of trl, datasets and transformers
def test_the_commands_run_one_after_the_other(tmp_path, monkeypatch):
    from tests.train.tiny import model, tokenizer

    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "experiments/math", tmp_path / "experiments/math")
    (tmp_path / "hub").mkdir()
    model(max_position_embeddings=8192, num_hidden_layers=8).save_pretrained("tiny")
    tokenizer().save_pretrained("tiny")
    for each in BENCHMARKS.values():
        write(tmp_path / "hub" / each.files[0], [{"problem": "1 + 1 = ?", "answer": "2"}])

    def solve(request, _):
        return answer(rf"\boxed{{{NUMBER.search(str(request))[1]}}}")

    with serving(solve, model="openai/gpt-oss-120b") as (url, _):
        for name in DATA:
            without_the_hub(tmp_path / name, tmp_path / "hub", url)
        for command in COMMANDS:
            words = command[command.index("ttcnet.cli") + 1 :] if "ttcnet.cli" in command else command[1:]
            extra = {
                "sft": "--model tiny --heads 2 --batch 4 --steps 2 --no-bf16 --report-to none",
                "eval": "--data hub --max-tokens 2 --samples 1 --temperature 0",
            }.get(words[0], "")
            done = CliRunner().invoke(app, [*words, *extra.split()], catch_exceptions=False)
            assert done.exit_code == 0, done.output
    kept = [json.loads(line) for line in Path("runs/data/train/data.jsonl").read_text().splitlines()]
    assert {row["source"] for row in kept} == {"paper", "openthoughts"}
    record = json.loads(Path("runs/math/llama3-8b-ttc/settings.json").read_text())
    assert record["data"] == "runs/data/train/data.jsonl"
    assert record["provenance"]["examples"]["learned"] > 0
    for name in ("math500", "amc", "aime24", "aime25"):
        assert json.loads(Path(f"experiments/math/results/llama3-8b-ttc/{name}/summary.json").read_text())["results"]
