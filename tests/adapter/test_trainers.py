"""Models with TTC layers in the hands of TRL and PEFT, by their public interfaces."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Trainer, TrainingArguments

import ttcnet.adapter as adapter
from tests.raising import raises
from tests.train.tiny import WORDS, model, tokenizer

from .bases import wake

peft = pytest.importorskip("peft", reason="PEFT is not installed")
CONFIG = dict(every=2, heads=2, state_size=8, rank=4)
TRAINING = dict(max_steps=2, per_device_train_batch_size=2, report_to=[], save_strategy="no", use_cpu=True)
TRAINING |= dict(disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False, learning_rate=1e-2, bf16=False)
LORA = dict(r=2, task_type="CAUSAL_LM", init_lora_weights=False)


def tokens():
    return torch.randint(3, len(WORDS), (2, 9), generator=torch.Generator().manual_seed(0))


def logits(net, **options):
    with torch.no_grad():
        return net.eval()(input_ids=tokens(), **options).logits


@pytest.fixture
def base(tmp_path):
    """The folder of a plain model with its tokenizer."""
    model(initializer_range=0.3).save_pretrained(tmp_path / "base")
    tokenizer().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


def inserted(base, **changes):
    plain = LlamaForCausalLM.from_pretrained(base)
    return adapter.insert(plain, adapter.TTCAdapterConfig(**CONFIG | changes))


@pytest.fixture
def whole(base, tmp_path):
    """The folder of a whole model with TTC layers that have something to say, and its tokenizer."""
    wake(inserted(base)).save_pretrained(tmp_path / "whole")
    tokenizer().save_pretrained(tmp_path / "whole")
    return tmp_path / "whole"


@pytest.fixture
def loaded(base, tmp_path):
    """A base model with an adapter that has something to say."""
    adapter.save(wake(inserted(base)), tmp_path / "adapter")
    return adapter.load(LlamaForCausalLM.from_pretrained(base), tmp_path / "adapter")


def train(net, steps=4):
    net.train()
    optimizer = torch.optim.AdamW([weight for weight in net.parameters() if weight.requires_grad], lr=1e-2)
    for _ in range(steps):
        net(input_ids=tokens(), labels=tokens()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def same(one, other):
    return torch.allclose(one, other, atol=1e-5)


def test_a_horizon_by_call(loaded):
    for net in (loaded, peft.get_peft_model(loaded, peft.LoraConfig(target_modules=["q_proj"], **LORA))):
        with adapter.horizon(net, 20):
            far = logits(net)
            text = net.generate(input_ids=tokens(), max_new_tokens=4, do_sample=False)
        assert not torch.allclose(logits(net), far, atol=1e-3)
        assert torch.equal(logits(net, horizon=20), far)
        assert torch.equal(net.generate(input_ids=tokens(), max_new_tokens=4, do_sample=False, horizon=20), text)
        with adapter.disabled(net):
            plain = logits(net)
        assert torch.equal(logits(net, horizon=0), plain)
    with raises("too-small", "horizon", "-1"):
        loaded(tokens(), horizon=-1)


def test_a_horizon_by_call_with_gradient_check_pointing(loaded):
    """Recomputation in the backward pass uses the same horizon."""
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            loaded.gradient_checkpointing_enable()
        loaded.train().zero_grad()
        loaded(tokens(), labels=tokens(), horizon=3, use_cache=False).loss.backward()
        gradients.append(loaded.model.layers[1].inserted.layers[0].project.weight.grad.clone())
    assert torch.allclose(*gradients, atol=1e-6)
    loaded.zero_grad()
    loaded(tokens(), labels=tokens(), use_cache=False).loss.backward()
    assert not torch.allclose(gradients[0], loaded.model.layers[1].inserted.layers[0].project.weight.grad, atol=1e-4)


def test_a_horizon_needs_ttc_layers(base):
    with raises("no-layers", "horizon", "3 for mlp"):
        inserted(base, insert="mlp")(tokens(), horizon=3)


def test_use_cache_is_saved_with_its_first_value(base, whole, tmp_path):
    """Trainer switches it off for good."""
    data = [{"input_ids": row, "labels": row} for row in tokens()]
    for net in (inserted(base), AutoModelForCausalLM.from_pretrained(whole)):
        Trainer(net, TrainingArguments(str(tmp_path / "run"), **TRAINING), train_dataset=data).train()
        assert net.config.use_cache is False
        net.save_pretrained(tmp_path / "saved")
        assert json.loads((tmp_path / "saved" / "config.json").read_text())["use_cache"] is True
        assert net.config.use_cache is False
    off = AutoModelForCausalLM.from_pretrained(whole, use_cache=False)
    off.save_pretrained(tmp_path / "off")
    assert json.loads((tmp_path / "off" / "config.json").read_text())["use_cache"] is False


def test_the_folder_of_an_adapter_is_loaded_with_its_base(loaded, tmp_path):
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    assert type(again) is type(loaded)
    assert same(logits(again), logits(loaded))
    far = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter", horizon=20)
    assert same(logits(far), logits(loaded, horizon=20))


def test_an_adapter_whose_base_is_not_known_is_refused(base, tmp_path):
    adapter.save(wake(inserted(base)), tmp_path / "adapter")
    (tmp_path / "adapter").rename(tmp_path / "moved")
    with raises("no-model", None, "'base'"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "moved")


def test_a_name_never_leads_to_another_model(base, loaded, tmp_path):
    """TRL loads its reference from config._name_or_path."""

    def reference(net):
        return AutoModelForCausalLM.from_pretrained(net.config._name_or_path)

    fresh = inserted(base)
    assert same(logits(reference(fresh)), logits(fresh))  # the layers put out nothing
    train(fresh, steps=1)
    with raises("no-model", "model"):
        reference(fresh)
    with raises("no-model", "model"):
        reference(inserted(base, zero_init=False))
    assert same(logits(reference(loaded)), logits(loaded))
    plain = adapter.remove(loaded)
    assert same(logits(reference(plain)), logits(plain))
    fresh.save_pretrained(tmp_path / "whole")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert same(logits(reference(again)), logits(fresh))
    with raises("no-model", "model"):
        reference(adapter.remove(again))


@pytest.mark.filterwarnings("ignore:Could not find a config file in:UserWarning")  # PEFT, when it saves
def test_weights_of_peft_are_not_loaded_without_the_layers(base, loaded, tmp_path):
    options = dict(target_modules=["q_proj"], modules_to_save=["inserted"], **LORA)
    first = peft.get_peft_model(inserted(base), peft.LoraConfig(**options))
    train(first)
    first.save_pretrained(tmp_path / "first")
    with pytest.raises(OSError, match=r"with ttc layers inserted, which no folder holds. Load what PEFT saved with"):
        peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "first")
    again = peft.PeftModel.from_pretrained(inserted(base), tmp_path / "first")
    assert same(logits(again), logits(first))
    second = peft.get_peft_model(loaded, peft.LoraConfig(**options))
    train(second)
    second.save_pretrained(tmp_path / "second")
    again = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "second")
    assert same(logits(again), logits(second))


def test_lora_on_all_linear_layers(base, loaded, whole, tmp_path):
    """Where the weights under LoRA are in no file, PEFT would not save them."""
    options = dict(target_modules="all-linear", **LORA)
    error = ("peft", "target_modules", "layers.1.inserted.layers.0.project")
    fresh = peft.get_peft_model(inserted(base), peft.LoraConfig(**options))
    with raises(*error):
        logits(fresh)
    saved = inserted(base)
    adapter.save(saved, tmp_path / "zero")
    outside = peft.LoraConfig(exclude_modules=r".*\.inserted\..*", **options)
    for number, (net, again, how) in enumerate([
        (loaded, lambda: adapter.load(LlamaForCausalLM.from_pretrained(base), tmp_path / "adapter"), options),
        (saved, lambda: adapter.load(LlamaForCausalLM.from_pretrained(base), tmp_path / "zero"), options),
        (AutoModelForCausalLM.from_pretrained(whole), lambda: AutoModelForCausalLM.from_pretrained(whole), options),
        (inserted(base), lambda: inserted(base), outside),
    ]):  # fmt: skip
        tuned = peft.get_peft_model(net, peft.LoraConfig(**how) if isinstance(how, dict) else how)
        train(tuned)
        tuned.save_pretrained(tmp_path / f"lora{number}", save_embedding_layers=False)
        restored = peft.PeftModel.from_pretrained(again(), tmp_path / f"lora{number}")
        assert same(logits(restored), logits(tuned)), number


def chosen():
    from datasets import Dataset

    rows = [dict(prompt=f"{n} + 1 =", chosen=f" the answer is {n + 1}", rejected=" is is") for n in range(8)]
    return Dataset.from_list(rows)


def trained(trainer):
    """Train, and say whether TTC layers have moved."""
    layer = trainer.model.get_decoder().layers[1].inserted.layers[0]
    before = layer.out.weight.detach().clone()
    trainer.train()
    return not torch.equal(layer.out.weight, before)


@pytest.mark.slow
def test_sft_on_a_folder(whole, tmp_path):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    data = Dataset.from_list([dict(text="1 + 2 = the answer is 3")] * 8)
    trainer = SFTTrainer(str(whole), SFTConfig(str(tmp_path / "run"), **TRAINING), train_dataset=data)
    assert type(trainer.model).__name__ == "TTCLlamaForCausalLM"
    assert trained(trainer)
    trainer.save_model(str(tmp_path / "after"))
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "after")
    assert same(logits(again), logits(trainer.model))
    assert again.config.use_cache is True


def dpo(net, tmp_path, **options):
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(net, args=DPOConfig(str(tmp_path / "run"), **TRAINING), train_dataset=chosen(), **options)


@pytest.mark.slow
def test_dpo_and_its_reference(base, whole, loaded, tmp_path):
    for net in (str(whole), loaded):
        given = logits(AutoModelForCausalLM.from_pretrained(whole) if isinstance(net, str) else net)
        trainer = dpo(net, tmp_path, processing_class=tokenizer())
        assert same(logits(trainer.ref_model), given), "the reference is the model as given"
        assert trained(trainer)
        assert same(logits(trainer.ref_model), given)
    changed = inserted(base)
    train(changed)
    with raises("no-model", "model"):
        dpo(changed, tmp_path, processing_class=tokenizer())
    trainer = dpo(
        changed, tmp_path, processing_class=tokenizer(), ref_model=AutoModelForCausalLM.from_pretrained(whole)
    )
    assert trained(trainer)


def grpo(net, tmp_path, **options):
    from trl import GRPOConfig, GRPOTrainer

    sizes = dict(num_generations=2, max_completion_length=4, beta=0.1)
    config = GRPOConfig(str(tmp_path / "run"), **TRAINING | sizes)
    return GRPOTrainer(
        net, reward_funcs=lambda completions, **_: [float(len(text)) for text in completions], args=config,
        train_dataset=chosen().select_columns("prompt"), **options,
    )  # fmt: skip


@pytest.mark.slow
def test_grpo_and_its_reference(base, whole, loaded, tmp_path):
    for net in (str(whole), loaded):
        given = logits(AutoModelForCausalLM.from_pretrained(whole) if isinstance(net, str) else net)
        trainer = grpo(net, tmp_path, processing_class=tokenizer())
        assert same(logits(trainer.ref_model), given), "the reference is the model as given"
        trainer.train()
        assert same(logits(trainer.ref_model), given)
    changed = inserted(base)
    train(changed)
    with raises("no-model", "model"):
        grpo(changed, tmp_path, processing_class=tokenizer())


@pytest.mark.slow
def test_dpo_with_lora(loaded, tmp_path):
    """The reference is the model without LoRA, with its TTC layers."""
    given = logits(loaded)
    for modules in (None, ["inserted"]):
        options = peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=modules, task_type="CAUSAL_LM")
        trainer = dpo(loaded, tmp_path, processing_class=tokenizer(), peft_config=options)
        trainer.train()
        assert not torch.allclose(logits(trainer.model), given, atol=1e-4)
        with trainer.model.disable_adapter():
            assert same(logits(trainer.model), given)
        trainer.save_model(str(tmp_path / "lora"))
        again = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "lora")
        assert same(logits(again), logits(trainer.model))
        loaded = trainer.model.unload()


@pytest.mark.slow
def test_a_reference_that_would_move_is_refused(loaded, tmp_path):
    """After freeze_base, TTC layers are trained in place beside LoRA, and nothing brings them back."""
    tuned = peft.get_peft_model(loaded, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    adapter.freeze_base(tuned)
    with raises("peft", "reference model"):
        dpo(tuned, tmp_path, processing_class=tokenizer()).train()
    with tuned.disable_adapter():
        logits(tuned)
