"""LoRA on the base, through PEFT, together with full TTC layers."""

import pytest
import torch

import ttcnet.adapter as adapter
from tests.raising import raises

from .bases import awake, base, config, tokens

peft = pytest.importorskip("peft", reason="PEFT is not installed")
LORA = dict(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=tokens()).logits


def train(model, steps=6):
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = model(input_ids=tokens(), labels=tokens()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_lora_and_ttc_layers_are_trained_together_and_saved_each_in_its_way(tmp_path):
    torch.manual_seed(0)
    model = peft.get_peft_model(adapter.insert(base(), config()), peft.LoraConfig(**LORA))
    adapter.freeze_base(model)
    kinds = {"inserted" if "inserted" in n else "lora" for n, p in model.named_parameters() if p.requires_grad}
    assert kinds == {"inserted", "lora"}
    assert all("inserted" in n or "lora" in n for n, p in model.named_parameters() if p.requires_grad)
    losses = train(model)
    assert losses[-1] < losses[0]
    assert all(value.grad is not None for value in adapter.parameters(model).values())
    adapter.save(model, tmp_path / "ttc")
    model.save_pretrained(tmp_path / "lora")
    again = adapter.load(base(), tmp_path / "ttc")
    again = peft.PeftModel.from_pretrained(again, tmp_path / "lora")
    assert torch.equal(logits(again), logits(model))
    merged = model.merge_and_unload()
    assert torch.allclose(logits(merged), logits(again), atol=1e-4)
    merged.save_pretrained(tmp_path / "whole")
    adapter.remove(merged)


def test_ttc_layers_kept_by_peft(tmp_path):
    """modules_to_save=["inserted"]: PEFT trains a copy, and saves it with its own."""
    torch.manual_seed(0)
    model = peft.get_peft_model(adapter.insert(base(), config()), peft.LoraConfig(**LORA, modules_to_save=["inserted"]))
    start = logits(model)
    train(model)
    assert not torch.allclose(logits(model), start, atol=1e-3)
    weights = adapter.parameters(model)
    assert all(parameter.requires_grad for parameter in weights.values())
    model.save_pretrained(tmp_path / "both")
    both = peft.PeftModel.from_pretrained(adapter.insert(base(), config()), tmp_path / "both")
    assert torch.equal(logits(both), logits(model))
    adapter.save(model, tmp_path / "ttc")
    alone = adapter.load(base(), tmp_path / "ttc")
    assert all(torch.equal(value, weights[name]) for name, value in adapter.parameters(alone).items())


def test_control_reaches_inside_the_wrapper():
    model = peft.get_peft_model(awake(), peft.LoraConfig(**LORA))
    own = logits(model)
    with adapter.horizon(model, 20):
        assert not torch.allclose(logits(model), own, atol=1e-4)
    with adapter.disabled(model):
        assert not torch.allclose(logits(model), own, atol=1e-4)
    assert torch.equal(logits(model), own)


def test_memory_inside_the_wrapper():
    options = peft.LoraConfig(**LORA, modules_to_save=["inserted"])
    model = peft.get_peft_model(awake(insert="gdn"), options).eval()
    mask = torch.ones_like(tokens())
    generation = dict(input_ids=tokens(), attention_mask=mask, max_new_tokens=5, do_sample=False)
    assert torch.equal(model.generate(**generation), model.generate(use_cache=False, **generation))


def test_conflicts_are_errors(tmp_path):
    wrapped = peft.get_peft_model(base(), peft.LoraConfig(**LORA))
    with raises("unsupported-model", "model"):
        adapter.insert(wrapped, config())
    model = peft.get_peft_model(awake(), peft.LoraConfig(**LORA | dict(target_modules=["q_proj", "project"])))
    with raises("weights", "the inserted layers", "lora"):
        adapter.save(model, tmp_path)
    with raises("unsupported-model", "model", "PeftModel"):
        adapter.remove(model)
    with raises("unsupported-model", "model"):
        adapter.train_all(model)
