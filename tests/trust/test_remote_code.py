"""Code that comes with a model or a tokenizer runs only where a flag says so, whatever is typed or piped."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evaluate.scripted import model_folder, write
from tests.raising import told
from ttcnet.cli import app

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Path(__file__).with_name("ran").touch()
Path({mark!r}).touch()


class OwnConfig(LlamaConfig):
    model_type = "own"


class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
COMMANDS = {
    "eval math": "eval math {data} --out {out} --max-tokens 2 --system= --limit 1",
    "eval scaling": "eval scaling {data} --out {out} --max-tokens 2 --limit 1 --method self-consistency",
    "eval likelihood": "eval likelihood {data}",
    "eval lm": "eval lm --out {out} --tasks {task} --limit 1",
    "analyse alignment": "analyse alignment --data {data} --out {out}/found.json",
    "sft": "sft --data {data} --out {out} --insert none --batch 1 --steps 1 --no-bf16",
}


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    rows = [{"problem": f"{k} + 1 = ?", "answer": str(k + 1), "solution": f"the answer is {k + 1}"} for k in range(4)]
    data = write(tmp_path / "data.jsonl", *rows)
    task = tmp_path / "task.yaml"
    task.write_text(
        f"task: own\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\n"
        "output_type: loglikelihood\ndoc_to_text: '{{problem}}'\ndoc_to_target: '{{answer}}'\n"
    )
    return lambda command: command.format(data=data, out=tmp_path / "out", task=task).split()


def with_code(folder, mark, file, classes):
    """A model whose config, model or tokenizer is of a class of its own."""
    model_folder(folder)
    (folder / "code.py").write_text(CODE.format(mark=str(mark)))
    content = json.loads((folder / file).read_text()) | {"auto_map": classes}
    if file == "config.json":
        content["model_type"] = "own"
    else:
        content["tokenizer_class"] = "OwnTokenizer"
    (folder / file).write_text(json.dumps(content))
    return folder


KINDS = {
    "model": ("config.json", {"AutoConfig": "code.OwnConfig", "AutoModelForCausalLM": "code.OwnModel"}),
    "tokenizer": ("tokenizer_config.json", {"AutoTokenizer": [None, "code.OwnTokenizer"]}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COMMANDS)
def test_code_of_a_model_is_refused(command, kind, words, tmp_path):
    mark = tmp_path / "ran"
    folder = with_code(tmp_path / "model", mark, *KINDS[kind])
    call = [*words(COMMANDS[command]), "--model", str(folder)]
    done = CliRunner().invoke(app, call, input="y\ny\ny\n")
    assert done.exit_code == 1, done.output
    assert told(done.output, "remote-code", "model", "--trust-remote-code")
    assert "Traceback" not in done.output
    assert not mark.exists()


def test_code_of_a_model_runs_where_told_to(words, tmp_path):
    for kind, content in KINDS.items():
        mark = tmp_path / f"ran-{kind}"
        folder = with_code(tmp_path / kind, mark, *content)
        call = [*words(COMMANDS["eval likelihood"]), "--model", str(folder)]
        done = CliRunner().invoke(app, [*call, "--trust-remote-code"])
        assert done.exit_code == 0, done.output
        assert mark.exists()


def test_no_command_trusts_by_default_and_no_call_leaves_it_open():
    """Every from_pretrained of transformers' Auto classes in the source says it."""
    source = Path(__file__).parents[2] / "src"
    for path in source.rglob("*.py"):
        for part in path.read_text().split("Auto")[1:]:
            if ".from_pretrained(" in part[:60] and '"..."' not in part[:90] and "BASE" not in part[:90]:
                assert "trust_remote_code=trust_remote_code" in part[:200], path


@pytest.mark.parametrize("command", ["eval likelihood", "eval lm"])
def test_missing_weights_are_not_made_up(words, tmp_path, command):
    from safetensors.torch import load_file, save_file

    folder = model_folder(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    lost = next(name for name in weights if "q_proj" in name)
    del weights[lost]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    done = CliRunner().invoke(app, [*words(COMMANDS[command]), "--model", str(folder)])
    assert done.exit_code == 1
    assert told(done.output, "no-model", "model", f"which has no {lost}")


@pytest.mark.slow
def test_a_piped_yes_changes_nothing(words, tmp_path):
    """The command runs in a process of its own, with a real pipe."""
    folder = with_code(tmp_path / "model", tmp_path / "ran", *KINDS["model"])
    call = [sys.executable, "-m", "ttcnet", *words(COMMANDS["eval likelihood"]), "--model", str(folder)]
    done = subprocess.run(call, input="y\n" * 9, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    assert told(done.stderr, "remote-code", "model", "--trust-remote-code")
    assert not (tmp_path / "ran").exists()
