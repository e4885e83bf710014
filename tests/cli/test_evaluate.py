"""ttcnet eval, as a user gives it: tiny models, a fake server, bad input."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

import ttcnet.adapter as adapter
from tests.evaluate.scripted import Scripted, model_folder, sums, ttcnet, write
from tests.fake_server import answer, serving
from tests.raising import told
from tests.train import tiny
from ttcnet import chat_client
from ttcnet.evaluate.runs.run import RunConfig, run
from ttcnet.evaluate.runs.show import chosen, page_through
from ttcnet.evaluate.runs.storage import generations
from ttcnet.tasks import Example
from ttcnet.tasks.jsonl import JsonLines

ROOT = Path(__file__).parents[2]
SHORT = ["--max-tokens", "6", "--system", ""]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model_folder(folder / "base")
    model_folder(folder / "ttc", ttc=True)
    adapter.save(adapter.load(tiny.model(), _adapter(folder)), folder / "again")
    return folder


def _adapter(folder):
    net = adapter.insert(
        tiny.model(), adapter.TTCAdapterConfig(every=2, heads=2, state_size=8, rank=4, zero_init=False)
    )
    adapter.save(net, folder / "adapter")
    return folder / "adapter"


def test_a_model_without_ttc_layers(models, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/somewhere/ttcnet", "eval", "math", "/home/of/one/sums.jsonl", "--system", ""])
    file = sums(tmp_path / "sums.jsonl")
    output = ttcnet("eval", "math", file, "--model", models / "base", "--out", tmp_path / "out", *SHORT)
    assert "sums" in output
    lines = generations(tmp_path / "out" / "sums")
    assert [line["horizon"] for line in lines] == [None] * 6
    assert all(line["new_tokens"] <= 6 for line in lines)
    summary = json.loads((tmp_path / "out" / "sums" / "summary.json").read_text())
    assert summary["command"] == "ttcnet eval math sums.jsonl --system ''"
    assert summary["results"][0]["problems"] == 6


def test_horizons_of_a_model_and_of_an_adapter(models, tmp_path):
    file = sums(tmp_path / "sums.jsonl")
    common = [file, "--device", "cpu", "--samples", "2", "--temperature", "1", *SHORT]
    ttcnet("eval", "math", *common, "--horizon", "0,4", "--model", models / "ttc", "--out", tmp_path / "whole")
    base = ["--model", models / "base", "--adapter", models / "adapter", "--horizon", "0", "--horizon", "4"]
    ttcnet("eval", "math", *common, *base, "--out", tmp_path / "parts")
    whole, parts = (generations(tmp_path / name / "sums") for name in ("whole", "parts"))
    assert len(whole) == 24
    assert [line["text"] for line in whole] == [line["text"] for line in parts]
    near, far = whole[:12], whole[12:]
    assert [line["mean_logprob"] for line in near] != [line["mean_logprob"] for line in far]
    ttcnet("eval", "math", file, "--model", models / "ttc", "--out", tmp_path / "own", *SHORT)
    assert {line["horizon"] for line in generations(tmp_path / "own" / "sums")} == {8}


def test_a_server_with_trouble(tmp_path, monkeypatch):
    """It drops, errs and stalls; one problem it never answers."""
    monkeypatch.setattr(chat_client, "Endpoint", partial(chat_client.Endpoint, pause=0.01, attempts=4))

    def script(request, number):
        what = request["messages"][-1]["content"]
        if what.startswith("2"):
            return "drop"
        trouble = {1: 500, 2: "drop", 3: 429, 4: 2.0}
        return trouble.get(number) or answer(rf"\boxed{{{int(what.split()[0]) + 1}}}", logprob=-0.1)

    file = sums(tmp_path / "sums.jsonl")
    with serving(script) as (url, _):
        words = ["--server", url, "--out", tmp_path / "out", "--patience", "1", *SHORT]
        output = ttcnet("eval", "math", file, *words, code=1)
        assert "1 samples failed" in output
        assert "most often for: RemoteProtocolError" in output
    lines = generations(tmp_path / "out" / "sums")
    assert [line["verdict"] for line in lines] == ["right", "right", "failed", "right", "right", "right"]
    assert "4 attempts" in lines[2]["note"]
    with serving(lambda *_: answer(r"\boxed{3}", logprob=-0.1)) as (url, seen):
        ttcnet("eval", "math", file, "--server", url, "--out", tmp_path / "out", *SHORT)
        assert len(seen) == 1
    summary = json.loads((tmp_path / "out" / "sums" / "summary.json").read_text())
    assert summary["results"][0]["accuracy"] == 1.0


def test_a_server_that_answers_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(chat_client, "Endpoint", partial(chat_client.Endpoint, pause=0.01))
    file = sums(tmp_path / "sums.jsonl")
    with serving(lambda *_: 401) as (url, _):
        for command in ("math", "scaling"):
            output = ttcnet("eval", command, file, "--server", url, "--out", tmp_path / command, "--limit", 2, code=1)
            assert "samples failed" in output
            assert "status 401" in output
    assert not (tmp_path / "scaling" / "scaling.csv").exists()


@pytest.mark.parametrize("odd", [answer("1", finish=None), answer("1") | {"usage": {"completion_tokens": "x"}}])
def test_a_server_that_answers_oddly_leaves_a_folder_that_resumes(odd, tmp_path, monkeypatch):
    monkeypatch.setattr(chat_client, "Endpoint", partial(chat_client.Endpoint, pause=0.01, attempts=2))
    words = ["eval", "math", sums(tmp_path / "sums.jsonl", 2), "--out", tmp_path / "out"]
    with serving(lambda *_: odd) as (url, _):
        output = ttcnet(*words, "--server", url, code=1)
    assert "2 samples failed" in output
    assert "no answer in" in " ".join(output.split())
    with serving(lambda *_: answer(r"\boxed{1}")) as (url, _):
        ttcnet(*words, "--server", url)
    assert [line["verdict"] for line in generations(tmp_path / "out" / "sums")] == ["right", "wrong"]


def test_folders_that_cannot_be_written_are_errors_before_anything_is_loaded(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "inside"):
        for words in (["math", "amc"], ["scaling", "amc"], ["lm"]):
            output = ttcnet("eval", *words, "--model", "a/b", "--out", out, code=1)
            assert told(output, "not-writable", "out")
            assert "Loading" not in output


def test_nothing_is_generated_for_data_with_faults(tmp_path):
    bad = write(tmp_path / "bad.jsonl", {"problem": "1 + 1 = ?", "answer": "2"}, {"problem": "1 + 2 = ?"})
    with serving(lambda *_: answer("2")) as (url, seen):
        good = sums(tmp_path / "good.jsonl")
        output = ttcnet("eval", "math", good, bad, "--server", url, "--out", tmp_path / "out", code=1)
    assert told(output, "bad-data", "data", f"{bad} line 2: no answer")
    assert seen == []
    assert not (tmp_path / "out").exists()


def test_nothing_is_generated_if_prompts_of_a_later_benchmark_do_not_fit(models, tmp_path):
    first, second = sums(tmp_path / "sums.jsonl"), write(tmp_path / "long.jsonl", {"problem": "1 " * 3000, "answer": 1})
    said = ttcnet("eval", "math", first, second, "--model", models / "base", "--out", tmp_path / "out", *SHORT, code=1)
    assert told(said, "too-long", "max-tokens")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "code", "field", "value"),
    [
        (["nosuch", "--model", "x"], "not-found", "benchmark", "'nosuch'"),
        (["{file}"], "missing", "model", "none"),
        (["{file}", "{file}", "--model", "x"], "conflict", "benchmarks", "'sums' twice"),
        (["{file}", "--model", "{models}/base", "--horizon", "x"], "format", "horizon", "'x'"),
        (["{file}", "--model", "{models}/base", "--horizon", "4"], "no-layers", "horizon", "4"),
        (["{file}", "--model", "{models}/base"], "too-long", "max-tokens", ""),
        (["{file}", "--model", "{models}/base", "--adapter", "{models}"], "not-found", "adapter", ""),
        (["{file}", "--model", "{models}/base", "--samples", "8"], "out-of-range", "temperature", "0"),
        (["{file}", "--server", "http://127.0.0.1:9/v1"], "server", "server", "127.0.0.1"),
        (["{file}", "--server", "nowhere"], "format", "server", "'nowhere'"),
        (["{file}", "--server", "nowhere", "--device", "cpu"], "conflict", "device", "'cpu'"),
        (["{file}", "--model", "{models}/base", "--device", "abacus"], "device", "device", "'abacus'"),
    ],
)
def test_bad_input(models, tmp_path, words, code, field, value):
    file = sums(tmp_path / "sums.jsonl")
    words = [word.format(file=file, models=models) for word in words]
    output = ttcnet("eval", "math", *words, "--out", tmp_path / "out", code=1)
    assert told(output, code, field, value)
    assert "Traceback" not in output


def test_showing_answers(models, tmp_path):
    file = sums(tmp_path / "sums.jsonl")
    ttcnet("eval", "math", file, "--model", models / "base", "--out", tmp_path / "out", *SHORT)
    lines = generations(tmp_path / "out" / "sums")
    output = ttcnet("eval", "show", tmp_path / "out" / "sums")
    assert output.count("gold: ") == 6
    kind = lines[0]["verdict"]
    some = ttcnet("eval", "show", tmp_path / "out" / "sums", "--only", kind)
    assert some.count("gold: ") == sum(line["verdict"] == kind for line in lines)
    one = ttcnet("eval", "show", tmp_path / "out" / "sums", "--problem", 3)
    assert "2 + 1 = ?" in one
    assert one.count("gold: ") == 1
    assert told(ttcnet("eval", "show", tmp_path / "out", code=1), "not-found", "folder", str(tmp_path / "out" / "sums"))
    assert told(ttcnet("eval", "show", tmp_path / "out" / "sums", "--only", "x", code=1), "unknown-name", "only", "'x'")


def test_unparsable_answers_are_shown_as_wrong(tmp_path):
    said = {"0 + 1 = ?": r"\boxed{1}", "1 + 1 = ?": r"\boxed{3}", "2 + 1 = ?": "No idea."}
    examples = [Example(number, text, str(number)) for number, text in enumerate(said, 1)]
    engine = Scripted(lambda ask, horizon: said[ask.messages[-1]["content"]])
    config = RunConfig("sums", JsonLines("sums.jsonl"), examples, (None,), 1, 0.0, 6, "")
    run(engine, config, tmp_path)

    def numbers(*kinds):
        return [line["problem"] for line in chosen(tmp_path, kinds, None, None)]

    assert (numbers("right"), numbers("wrong"), numbers("unparsable")) == ([1], [2, 3], [3])


def test_paging():
    console = Console(force_terminal=True, width=80, record=True)
    keys = iter("npn\r")
    with console.capture() as seen:
        page_through(["page one", "page two", "page three"], console, lambda: next(keys, "q"))
    pages = [word for word in seen.get().split() if word in ("one", "two", "three")]
    assert pages == ["one", "two", "one", "two", "three"]


@pytest.mark.slow
def test_two_processes_by_accelerate(models, tmp_path):
    file = sums(tmp_path / "sums.jsonl", 9)
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["-m", "ttcnet.cli", "eval", "math"]
    words = [str(file), "--model", str(models / "base"), "--out", str(tmp_path / "out"), *SHORT]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    folder = tmp_path / "out" / "sums"
    assert [len((folder / f"generations.{rank}.jsonl").read_text().splitlines()) for rank in (0, 1)] == [5, 4]
    assert json.loads((folder / "summary.json").read_text())["results"][0]["samples"] == 9
    ttcnet("eval", "math", file, "--model", models / "base", "--out", tmp_path / "alone", *SHORT)
    texts = [[line["text"] for line in generations(path)] for path in (folder, tmp_path / "alone" / "sums")]
    assert texts[0] == texts[1]
