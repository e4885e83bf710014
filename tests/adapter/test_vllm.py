"""vLLM gives the tokens that transformers gives, however far the layers plan. docs/serving.md has how to install it."""

import importlib.metadata
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

import ttcnet.adapter as adapter
from tests.raising import told

from .bases import FAMILIES, base, config, wake

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed"),
]
ROOT = Path(__file__).parents[2]
SETTINGS = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 2, 11, 12, 40, 41], [50], [33, 3] * 10]
NEW = 16


def made(folder, family="llama", **changes):
    """A saved model whose layers have something to say, with heads of a size that vLLM has attention for."""
    sizes = dict(hidden_size=128, head_dim=32, tie_word_embeddings=False)  # tied, Gemma repeats the last token
    model = wake(adapter.insert(base(family, **sizes), config(**changes)))
    model.save_pretrained(folder)
    return model


def by_vllm(folder, dtype="float32", horizons=(2, 16)):
    job = dict(folder=str(folder), dtype=dtype, horizons=horizons, prompts=PROMPTS, new=NEW)
    command = [sys.executable, "-m", "tests.adapter.vllm_greedy"]
    options = dict(input=json.dumps(job), env=os.environ | SETTINGS, cwd=ROOT, timeout=900)
    return subprocess.run(command, capture_output=True, text=True, **options)


def answer(folder, **job):
    run = by_vllm(folder, **job)
    assert run.returncode == 0, run.stderr[-5000:]
    return json.loads(run.stdout.splitlines()[-1])


def by_transformers(model, prompt):
    """Greedy tokens, and their log-probabilities."""
    options = dict(max_new_tokens=NEW, do_sample=False, return_dict_in_generate=True, output_logits=True)
    out = model.generate(torch.tensor([prompt]), **options)
    tokens = out.sequences[0, len(prompt) :]
    logs = torch.stack(out.logits, 1)[0].float().log_softmax(-1)
    return tokens.tolist(), logs.gather(1, tokens[:, None])[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_at_two_horizons(family, tmp_path):
    model = made(tmp_path, family)
    near, far = answer(tmp_path)
    assert near["tokens"] != far["tokens"]
    for steps, found in ((2, near), (16, far)):
        adapter.set_horizon(model, steps)
        for prompt, tokens, logs in zip(PROMPTS, found["tokens"], found["logprobs"], strict=True):
            expected, expected_logs = by_transformers(model, prompt)
            assert tokens == expected
            torch.testing.assert_close(torch.tensor(logs), expected_logs, atol=2e-3, rtol=0)


def test_bfloat16(tmp_path):
    """The first tokens' probabilities, since rounding sends texts apart."""
    model = made(tmp_path).to(torch.bfloat16)
    (found,) = answer(tmp_path, dtype="bfloat16", horizons=(16,))
    adapter.set_horizon(model, 16)
    for prompt, tokens, logs in zip(PROMPTS, found["tokens"], found["logprobs"], strict=True):
        logits = model(torch.tensor([prompt])).logits[0, -1].float()
        assert abs(logits.log_softmax(-1)[tokens[0]].item() - logs[0]) < 0.1


def test_a_baseline_without_memory(tmp_path):
    model = made(tmp_path, insert="mlp")
    (found,) = answer(tmp_path, horizons=(8,))
    assert found["tokens"] == [by_transformers(model, prompt)[0] for prompt in PROMPTS]


def test_a_baseline_with_memory_is_refused(tmp_path):
    made(tmp_path, insert="mamba")
    run = by_vllm(tmp_path)
    assert run.returncode != 0
    assert told(run.stdout + run.stderr, "stateful", "attn_implementation", "mamba")


def test_vllm_serve(tmp_path):
    model = made(tmp_path)
    words = Tokenizer(WordLevel({f"w{index}": index for index in range(61)}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*server_of(tmp_path), "--served-model-name", "planner"]
    command += ["--hf-overrides", '{"horizon": 16}', "--dtype", "float32", "--max-model-len", "64", "--enforce-eager"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | SETTINGS, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, tmp_path / "log")
        request = dict(model="planner", prompt="w5 w6 w7", max_tokens=NEW, temperature=0, skip_special_tokens=False)
        text = post(f"http://127.0.0.1:{port}/v1/completions", request)["choices"][0]["text"]
    finally:
        server.terminate()
        server.wait(60)
    adapter.set_horizon(model, 16)
    assert text.split() == [f"w{token}" for token in by_transformers(model, [5, 6, 7])[0]]


def server_of(folder):
    """`vllm serve`; or the same by its module, where the package has another name and the command stops for that."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder)]
    return [str(Path(sys.executable).parent / "vllm"), "serve", str(folder)]


def wait_for(address, server, log):
    for _ in range(600):
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            assert server.poll() is None, log.read_text()[-5000:]
            time.sleep(1)
    pytest.fail(log.read_text()[-5000:])


def post(address, content):
    request = urllib.request.Request(address, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)
