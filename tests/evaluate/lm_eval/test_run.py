"""lm-evaluation-harness: the answers of its model are those of the model by hand, and runs go on where they stopped."""

import json
import logging
import os
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import ttcnet.adapter as adapter
from tests.adapter.bases import wake
from tests.raising import raises, told
from tests.train import tiny
from ttcnet.cli import app
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM
from ttcnet.storage.locking import owned

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install 'ttcnet[lm]'")
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

from ttcnet.evaluate.lm_eval import run as lm_run
from ttcnet.evaluate.lm_eval.answer_cache import AnswerCache
from ttcnet.evaluate.lm_eval.model import TTCNetLM
from ttcnet.evaluate.lm_eval.our_tasks import config, is_ours

ROOT = Path(__file__).parents[3]
PAIRS = [("1 + 2 =", " 3"), ("the answer is", " 4 ?"), ("7", " + 1 = 8"), ("1 + 2 =", " 4"), ("", "the answer")]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {data}, cache_dir: {cache}}}
test_split: train
doc_to_text: "{{{{problem}}}}"
{rest}
"""
CHOICE = """
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
WRITE = """
output_type: generate_until
doc_to_target: "0"
generation_kwargs: {until: ["?"], max_gen_toks: 6, do_sample: true, temperature: 1.0}
repeats: 3
unsafe_code: true
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """lm_eval lists all installed packages after every run, which takes seconds."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


def test_a_folder_where_another_evaluation_is_at_work(tmp_path):
    with owned(tmp_path), raises("in-use", "out"):
        lm_run.evaluate(lm_run.LMEvalConfig("m", ("amc",)), tmp_path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A base, its adapter, the two as one model, and two tasks."""
    folder = tmp_path_factory.mktemp("lm")
    tiny.model().save_pretrained(folder / "base")
    net = AutoModelForCausalLM.from_pretrained(folder / "base")
    net = wake(adapter.insert(net, adapter.TTCAdapterConfig(every=2, heads=2, state_size=8, rank=4)))
    adapter.save(net, folder / "adapter")
    net.save_pretrained(folder / "whole")
    for name in ("base", "whole"):
        tiny.tokenizer().save_pretrained(folder / name)
    rows = [dict(problem=f"{n} + 1 = ?", choices=[str(n + 1), str(n + 2), "the answer"], answer=0) for n in range(7)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, rest in (("sums", CHOICE), ("writing", WRITE)):
        task = TASK.format(name=name, rest=rest, data=folder / "data.jsonl", cache=folder / "cache")
        (folder / f"{name}.yaml").write_text(task)
    return folder


def lm(pretrained, **options):
    return TTCNetLM(str(pretrained), device="cpu", **dict(batch_size=3) | options)


def scored(model, pairs=PAIRS):
    return model.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs], disable_tqdm=True)


def by_hand(model, context, continuation):
    """The log-likelihood of a continuation and whether it is the greedy one, a text at a time."""
    words = tiny.tokenizer()
    start = words(context).input_ids or [words.eos_token_id]
    ids = torch.tensor([[*start, *words(continuation).input_ids]])
    with torch.no_grad():
        logs = model(ids).logits[0].log_softmax(-1)[len(start) - 1 : -1]
    told = ids[0, len(start) :]
    return logs.gather(-1, told[:, None]).sum().item(), bool((logs.argmax(-1) == told).all())


def assert_same(found, wanted):
    assert [greedy for _, greedy in found] == [greedy for _, greedy in wanted]
    torch.testing.assert_close(torch.tensor([value for value, _ in found]), torch.tensor([v for v, _ in wanted]))


@pytest.mark.parametrize("steps", [None, 12])
def test_log_likelihoods_are_those_of_the_model(place, steps):
    net = AutoModelForCausalLM.from_pretrained(place / "whole").eval()
    adapter.set_horizon(net, steps or 8)
    wanted = [by_hand(net, *pair) for pair in PAIRS]
    two = lm(place / "base", adapter=str(place / "adapter"), horizon=steps)
    for model in (lm(place / "whole", horizon=steps), two):
        assert model.horizon == (steps or 8)
        assert_same(scored(model), wanted)


def test_a_model_of_transformers_needs_no_ttc_layers_but_a_horizon_does(place):
    net = AutoModelForCausalLM.from_pretrained(place / "base").eval()
    model = lm(place / "base")
    assert model.horizon is None
    assert_same(scored(model), [by_hand(net, *pair) for pair in PAIRS])
    with raises("no-layers", "model"):
        lm(place / "base", horizon=8)


def own(place):
    torch.manual_seed(0)
    return TTCNetForCausalLM(TTCNetConfig.tiny(initializer_range=0.3, vocab_size=len(tiny.WORDS), interleave="2:1"))


@pytest.mark.parametrize("make", [own, lambda place: AutoModelForCausalLM.from_pretrained(place / "whole")])
def test_the_horizon_holds_while_the_model_answers_and_no_longer(place, make, monkeypatch):
    net = make(place).eval()
    near, far = (
        TTCNetLM(net, horizon=steps, device="cpu", tokenizer=tiny.tokenizer(), batch_size=2) for steps in (1, 12)
    )
    assert net.config.horizon == 8
    values = [torch.tensor([value for value, _ in scored(model)]) for model in (near, far)]
    assert (values[0] - values[1]).abs().min() > 1e-5
    assert net.config.horizon == 8
    monkeypatch.setattr(net, "lm_head", None)
    with pytest.raises(TypeError):
        scored(far)
    assert net.config.horizon == 8


def test_texts_are_those_of_the_model(place):
    net = AutoModelForCausalLM.from_pretrained(place / "whole").eval()
    words = tiny.tokenizer()
    asked = [("1 + 2 =", {"until": ["?"], "max_gen_toks": 8}), ("the answer is", {"until": ["?"], "max_gen_toks": 8})]
    found = lm(place / "whole", horizon=12).generate_until([Instance("generate_until", {}, a, 0) for a in asked], True)
    adapter.set_horizon(net, 12)
    for (context, _), text in zip(asked, found, strict=True):
        ids = torch.tensor([words(context).input_ids])
        told = net.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
        assert text == words.decode(told[0, ids.shape[1] :], skip_special_tokens=True).split("?")[0]


def test_an_adapter_of_peft_is_found_beside_the_inserted_layers(place, tmp_path):
    from peft import LoraConfig, get_peft_model

    net = adapter.load(AutoModelForCausalLM.from_pretrained(place / "base"), place / "adapter")
    net = get_peft_model(net, LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)).eval()
    adapter.save(net, tmp_path)
    net.save_pretrained(tmp_path)
    adapter.set_horizon(net, 3)
    model = lm(place / "base", adapter=str(tmp_path), horizon=3)
    assert_same(scored(model), [by_hand(net, *pair) for pair in PAIRS])


def command(place, out, *options, base="base", task="sums"):
    call = ["eval", "lm", "--model", str(place / base), "--tasks", str(place / f"{task}.yaml"), "--out", str(out)]
    return CliRunner().invoke(app, [*call, "--device", "cpu", *options], catch_exceptions=False)


def test_the_command_writes_results_and_resumes(place, tmp_path, monkeypatch):
    plan = ["--adapter", str(place / "adapter"), "--horizon", "12"]
    done = command(place, tmp_path, *plan)
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "results.json").read_text())
    net = adapter.load(AutoModelForCausalLM.from_pretrained(place / "base").eval(), place / "adapter")
    adapter.set_horizon(net, 12)
    rows = [json.loads(line) for line in (place / "data.jsonl").read_text().splitlines()]
    values = [[by_hand(net, row["problem"], f" {choice}")[0] for choice in row["choices"]] for row in rows]
    right = sum(max(value) == value[0] for value in values)
    assert record["results"]["sums"]["acc,none"] == pytest.approx(right / len(rows))
    assert (record["horizon"], record["settings"]["horizon"]) == (12, 12)
    assert {"torch", "transformers", "lm_eval"} <= record["versions"].keys()
    assert {"commit", "command", "machine"} <= record.keys()
    assert json.loads((tmp_path / "lm_eval.json").read_text())["results"]["sums"]["sample_len"] == len(rows)

    kept = (tmp_path / "answers-0.jsonl").read_text()
    (tmp_path / "answers-0.jsonl").write_text(kept[: len(kept) // 2])
    (tmp_path / "results.json").unlink()
    asked, ask = [], TTCNetLM._loglikelihood_tokens
    monkeypatch.setattr(
        TTCNetLM, "_loglikelihood_tokens", lambda self, todo, **more: asked.extend(todo) or ask(self, todo, **more)
    )
    assert command(place, tmp_path, *plan).exit_code == 0
    assert 0 < len(asked) < 3 * len(rows)
    assert json.loads((tmp_path / "results.json").read_text())["results"] == record["results"]
    refused = command(place, tmp_path)
    assert refused.exit_code == 1
    assert told(refused.output, "settings-changed", "settings")


def test_answers_of_a_model_that_was_trained_since_are_not_taken(place, tmp_path):
    shutil.copytree(place / "whole", tmp_path / "whole")
    call = [place, tmp_path / "out", "--limit", "2"]
    assert command(*call, base=tmp_path / "whole").exit_code == 0
    net = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    with torch.no_grad():
        net.model.norm.weight += 0.1
    net.save_pretrained(tmp_path / "whole")
    refused = command(*call, base=tmp_path / "whole")
    assert refused.exit_code == 1
    assert told(refused.output, "settings-changed", "settings", "'weights':")


def test_programs_of_a_model_run_only_when_told_to(place, tmp_path, monkeypatch):
    refused = command(place, tmp_path, task="writing")
    assert refused.exit_code == 1
    assert told(refused.output, "bad-task", "tasks", "'writing'")
    assert not (tmp_path / "results.json").exists()
    monkeypatch.delenv(lm_run.ALLOWED, raising=False)
    seen, evaluate = [], lm_run.simple_evaluate
    monkeypatch.setattr(
        lm_run, "simple_evaluate", lambda *a, **o: seen.append(os.environ[lm_run.ALLOWED]) or evaluate(*a, **o)
    )
    done = command(place, tmp_path, "--run-code", task="writing")
    assert done.exit_code == 0, done.output
    assert seen == ["1"]
    assert lm_run.ALLOWED not in os.environ
    samples = [json.loads(line) for line in (tmp_path / "samples-writing.jsonl").read_text().splitlines()]
    assert len(samples) == 7
    assert len({*samples[0]["resps"][0]}) > 1  # three samples, not one thrice


def test_lm_eval_says_no_more_than_a_user_needs(place, tmp_path, monkeypatch, caplog, capfd):
    monkeypatch.chdir(tmp_path)  # no checkout, which git calls fatal
    options = ["--shots", "1", "--max-tokens", "5", "--limit", "2", "--run-code"]
    done = command(place, tmp_path / "out", *options, base="whole", task="writing")
    assert done.exit_code == 0, done.output
    told = [each for each in caplog.records if each.name.startswith("lm_eval") and each.levelno >= logging.WARNING]
    assert [each.getMessage() for each in told] == []
    assert "fatal" not in capfd.readouterr().err
    logging.getLogger("lm_eval.evaluator").warning("Overwriting default num_fewshot of one from 0 to 1")
    assert "Overwriting" in caplog.text  # for others, as before


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        (["--tasks", "sums.yml"], "bad-task", "tasks"),
        (["--tasks", " , "], "missing", "tasks"),
        (["--limit", "0"], "too-small", "limit"),
        (["--shots", "-1"], "too-small", "shots"),
        (["--adapter", "nowhere"], "not-found", "adapter"),
        (["--horizon", "4"], "no-layers", "model"),
    ],
)
def test_mistakes_are_errors_and_leave_nothing(place, tmp_path, options, code, field, monkeypatch):
    quick = partial(lm_run.TaskManager, include_defaults=False)  # reading all of lm_eval's takes long
    monkeypatch.setattr(lm_run, "TaskManager", quick)
    result = command(place, tmp_path / "out", *options)
    assert result.exit_code == 1
    assert told(result.output, code, field)
    assert not (tmp_path / "out").exists()


def test_tasks_and_templates_that_are_none(place, tmp_path):
    (tmp_path / "broken.yaml").write_text("task: [\n")
    result = command(place, tmp_path / "out", "--tasks", str(tmp_path / "broken.yaml"))
    assert result.exit_code == 1
    assert told(result.output, "bad-task", "tasks", "broken.yaml")
    shutil.copytree(place / "base", tmp_path / "plain")
    words = tiny.tokenizer()
    words.chat_template = None
    for path in (tmp_path / "plain").glob("*.jinja"):
        path.unlink()
    words.save_pretrained(tmp_path / "plain")
    result = command(place, tmp_path / "out", "--model", str(tmp_path / "plain"), "--chat")
    assert result.exit_code == 1
    assert told(result.output, "chat-template", "model")


def test_unreachable_data_are_an_error(place, tmp_path, monkeypatch):
    def load(manager, name):
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(lm_run.TaskManager, "load", load)
    result = command(place, tmp_path / "out")
    assert result.exit_code == 1
    assert told(result.output, "bad-task", "tasks", "Couldn't reach the Hub")


def test_a_sampled_answer_is_handed_out_once(tmp_path):
    request = ("1 + 2 =", {"do_sample": True})
    cache = AnswerCache(tmp_path)
    for answer in ("3", "4"):
        cache.add_partial("generate_until", request, answer)
    cache.add_partial("loglikelihood", ("a", "b"), (-0.1, True))
    again = AnswerCache(tmp_path, rank=1)
    assert again.found == 3
    assert [again.take("generate_until", request) for _ in range(3)] == ["3", "4", None]
    assert again.take("loglikelihood", ("a", "b")) == (-0.1, True)


def test_any_task_of_ours_is_one_of_lm_eval(tmp_path):
    """AMC from a file: its examples, prompts, grades and metrics are those of the task."""
    path = tmp_path / "amc.jsonl"
    path.write_text('{"problem": "What is a half?", "answer": "1/2"}\n{"problem": "2 + 1?", "answer": 3}\n')
    loaded = lm_run.TaskManager(include_defaults=False).load(config("amc", str(tmp_path)))
    (task,) = loaded["tasks"].values()
    assert (task.task_name, task.config.repeats) == ("amc", 8)
    rows = list(task.test_docs())
    assert [(task.doc_to_text(row), task.doc_to_target(row)) for row in rows] == [
        ("What is a half?\n", "1/2"), ("2 + 1?\n", "3"),
    ]  # fmt: skip
    texts = [r"\boxed{0.5}", r"\boxed{2}", r"\boxed{\frac{1}{2}}", "No idea."] * 2
    graded = [task.process_results(row, [texts]) for row in rows]
    figures = {name: sum_up([each[name] for each in graded]) for name, sum_up in task.aggregation().items()}
    assert figures == {"accuracy": 0.25, "pass@8": 0.5}
    path.write_text('{"problem": "What is a half?", "answer": "1/2"}\n{"problem": "2 + 1?"}\n')
    with raises("bad-data", "data", " line 2: no answer"):
        config("amc", str(tmp_path))
    assert is_ours("countdown")
    assert is_ours(str(path))
    assert not is_ours("hellaswag")
    assert not is_ours("nowhere.jsonl")


def test_a_task_of_ones_own_through_the_command(place, tmp_path, monkeypatch):
    monkeypatch.setattr(lm_run, "TaskManager", lambda **_: TaskManager(include_defaults=False))
    own = str(ROOT / "tests" / "tasks" / "backwards.py")
    done = command(place, tmp_path, "--tasks", own, "--limit", "2", "--max-tokens", "4")
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "results.json").read_text())["results"]["backwards"]
    assert found["accuracy,samples"] == 0
    assert 0 <= found["letters,samples"] <= 1
    samples = [json.loads(line) for line in (tmp_path / "samples-backwards.jsonl").read_text().splitlines()]
    assert [sample["accuracy"][0]["right"] for sample in samples] == [False, False]


def test_lm_eval_knows_the_model():
    assert get_model("ttcnet") is TTCNetLM
