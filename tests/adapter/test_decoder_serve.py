"""transformers' own server answers requests of different horizons at the same time: none is mixed up, none is lost."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, GenerationConfig

import ttcnet.adapter as adapter
from tests.train.tiny import model, tokenizer

from .bases import wake
from .test_vllm import post, wait_for

ROOT = Path(__file__).parents[2]
NEW, HORIZONS, PROMPTS = 8, (0, 1, 4, 16), ("1 + 2 = ?", "7 + 8 = ? the answer", "19", "3 3 3")
SERVE = "import ttcnet.adapter; from transformers.cli.transformers import main; main()"


def planner(folder):
    """A saved model that says other things at other horizons."""
    net = model(initializer_range=0.3)
    adapter.insert(net, adapter.TTCAdapterConfig(every=2, heads=4, zero_init=False))
    wake(net)
    net.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def greedy(net, prompt, horizon):
    """The text by `generate`, told the horizon in its configuration, as a server does it."""
    words = tokenizer()
    ids = words(prompt, return_tensors="pt").input_ids
    config = GenerationConfig(max_new_tokens=NEW, do_sample=False, horizon=horizon, eos_token_id=1, pad_token_id=0)
    return words.decode(net.generate(ids, generation_config=config)[0, ids.shape[1] :], skip_special_tokens=True)


def test_a_generation_config_may_name_the_horizon(tmp_path):
    net = planner(tmp_path / "planner")
    texts = {steps: greedy(net, PROMPTS[0], steps) for steps in HORIZONS}
    assert len(set(texts.values())) > 1
    assert net.config.horizon == 8
    for steps in HORIZONS:
        with adapter.horizon(net, steps):
            assert greedy(net, PROMPTS[0], None) == texts[steps]
    assert "horizon" not in net.generation_config.to_dict()


@pytest.mark.slow
@pytest.mark.skipif(
    not all(find_spec(name) for name in ("fastapi", "uvicorn", "openai")), reason="transformers[serving] is missing"
)
def test_concurrent_requests_of_different_horizons(tmp_path):
    """96 of them, 16 at a time, to one server on the loopback."""
    net = planner(tmp_path / "planner")
    expected = {(prompt, steps): greedy(net, prompt, steps) for prompt in PROMPTS for steps in HORIZONS}
    assert len(set(expected.values())) > len(PROMPTS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["serve", str(tmp_path / "planner"), "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", SERVE, *options]
        server = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def ask(case):
        prompt, steps = case
        config = dict(max_new_tokens=NEW, do_sample=False, horizon=steps, eos_token_id=1, pad_token_id=0)
        request = dict(model=str(tmp_path / "planner"), prompt=prompt, generation_config=json.dumps(config))
        return post(f"http://127.0.0.1:{port}/v1/completions", request)["choices"][0]["text"]

    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, tmp_path / "log")
        cases = [*expected] * 6
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(ask, cases))
    finally:
        server.terminate()
        server.wait(60)
    assert len(found) == 96
    wrong = [(case, text) for case, text in zip(cases, found, strict=True) if text.strip() != expected[case].strip()]
    assert wrong == []
