"""A real backbone: insertion leaves it as it was, fine-tuning teaches it something, horizons matter afterwards."""

import json

import pytest
import torch

import ttcnet.adapter as adapter
from tests import smollm2
from ttcnet.settings import from_table
from ttcnet.train import sft
from ttcnet.train.settings import FineTuning

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of gguf and trl, to each other
PROMPT = "What is the capital of France?"
ADAPTER = {"every": 8, "heads": 9}


def text(model, prompt=PROMPT, tokens=24):
    tokenizer = smollm2.tokenizer()
    messages = [{"role": "user", "content": prompt}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        out = model.eval().generate(**ids, max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    return tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)


def test_a_real_model_is_extended_trained_saved_and_loaded(tmp_path):
    base = smollm2.model()
    said = text(base)
    assert "Paris" in said
    model = adapter.insert(base, adapter.TTCAdapterConfig.from_dict(ADAPTER))
    assert text(model) == said
    with adapter.horizon(model, 2):
        assert text(model) == said  # its output is zero, whatever it plans

    rows = [
        {"prompt": f"What is {a} plus {b}?", "solution": f"plus({a}, {b}) -> {a + b}"}
        for a in range(8)
        for b in range(8)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = dict(model="SmolLM2-135M-Instruct", data=str(tmp_path / "data.jsonl"), out=str(tmp_path / "run"))
    values |= dict(adapter=ADAPTER, train="inserted", steps=30, batch=4, device_batch=4, lr=1e-2, bf16=False)
    values |= dict(check_pointing=False, log_every=5, save_every=1000, horizon="fixed:8")
    trained = sft.fine_tune(from_table(FineTuning, values), smollm2.model(), smollm2.tokenizer())
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0] - 1, losses

    question = "What is 3 plus 4?"
    answer = text(trained, question, 12)
    again = adapter.load(smollm2.model(), tmp_path / "run" / "adapter")
    assert text(again, question, 12) == answer
    with adapter.disabled(again):
        assert text(again) == said
    ids = torch.randint(0, 1000, (1, 16))
    with torch.no_grad(), adapter.horizon(again, 1):
        near = again(ids).logits
    with torch.no_grad(), adapter.horizon(again, 32):
        far = again(ids).logits
    assert (near - far).abs().max() > 1e-3
