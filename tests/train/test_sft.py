"""Fine-tuning: trained weights, horizons, packing, results."""

import json
from itertools import chain, repeat
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import ttcnet.adapter as adapter
from tests.raising import raises
from tests.train.conftest import ADAPTER
from tests.train.tiny import model, tokenizer
from ttcnet.nn import TTCLayer
from ttcnet.nn.horizon import parse
from ttcnet.train import sft
from ttcnet.train.answers import Answers, packed
from ttcnet.train.example_store import examples_of

pytestmark = pytest.mark.filterwarnings("ignore")  # of trl, datasets and transformers, to each other


def weights(of):
    return {name: parameter.detach().clone() for name, parameter in of.named_parameters()}


@pytest.mark.parametrize("train", ["all", "inserted", "lora"])
def test_the_trained_weights(train, make):
    trained = sft.fine_tune(make(train=train), model(), tokenizer())
    inserted = adapter.parameters(trained)
    fresh = adapter.parameters(adapter.insert(model(), adapter.TTCAdapterConfig.from_dict(ADAPTER)))
    moved = {name for name, value in inserted.items() if not torch.equal(value.detach(), fresh[name].detach())}
    assert any(name.endswith("out.weight") for name in moved)
    base = {name: value for name, value in weights(trained).items() if "q_proj" in name and "lora" not in name}
    before = weights(model())
    kept = all(
        torch.equal(value, before[f"model.layers{name.split('layers')[1].replace('.base_layer', '')}"])
        for name, value in base.items()
    )
    assert kept == (train != "all")


def test_the_loss_falls_and_the_log_says_so(make, tmp_path):
    sft.fine_tune(make(steps=25, save_every=100, adapter=None), model(), tokenizer())
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [*range(2, 25, 2), 25]
    assert log[-1]["loss"] < log[0]["loss"] - 1
    assert log[0]["lr"] == pytest.approx(3e-3)  # after 2 steps of warm-up
    assert log[-1]["lr"] == pytest.approx(3e-4)  # a tenth
    assert log[-1]["tokens"] == 25 * 8 * 12
    assert all(line["tokens_per_second"] > 0 for line in log)


def test_a_run_of_one_step_learns(make):
    trained = sft.fine_tune(make(steps=1), model(), tokenizer())
    assert not torch.equal(trained.lm_head.weight, model().lm_head.weight)


def test_all_tokens_of_answers_count_alike(make, tmp_path):
    """However the rows of a step, of unequal length, are shared out."""
    answers = [{"problem": "1 + 1 = ?", "solution": "the " * count} for count in (1, 2, 9, 1, 5, 3, 1, 1)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))

    def gradients(device_batch):
        config = make(str(device_batch), device_batch=device_batch, steps=1)
        net = adapter.insert(model(), adapter.TTCAdapterConfig(**ADAPTER, zero_init=False))
        task = Answers(net, examples_of(config, tokenizer(), Path(config.out)).rows, config)
        for piece in task.begin(0):
            task.loss(net, *piece)[0].backward()
        return [parameter.grad for parameter in net.parameters()]

    for whole, parts in zip(gradients(8), gradients(2), strict=True):
        assert torch.allclose(whole, parts, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("insert", ["ttc", "mamba", "gdn", "mesanet"])
def test_norms_biases_and_rates_do_not_decay(insert, make):
    config = make(adapter=ADAPTER | {"insert": insert})
    net = sft.insert(model(), config)
    task = Answers(net, examples_of(config, tokenizer(), Path(config.out)).rows, config)
    groups = {group["weight_decay"] > 0: {id(x) for x in group["params"]} for group in task.groups()}
    decays, stays = groups[True], groups[False]
    for name, parameter in net.named_parameters():
        plain = parameter.ndim < 2 or name.endswith(("bias", "A_log", ".D", "ridge"))
        assert id(parameter) in (stays if plain else decays), name


def test_a_loss_that_is_no_number_ends_the_run(make, tmp_path):
    broken = model()
    broken.lm_head.weight.data[3] = torch.nan
    with raises("diverged", "loss", "nan at step 2"):
        sft.fine_tune(make(), broken, tokenizer())
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def test_gradients_that_are_no_numbers_end_the_run(make, tmp_path):
    """Attention may hide a NaN of its queries from the loss; the gradients show it."""
    broken, factors = model(), chain([1.0, 1.0], repeat(torch.nan))  # two batches a step
    broken.model.layers[0].input_layernorm.weight.register_hook(lambda gradient: gradient * next(factors))
    with raises("diverged", "the norm of the gradients", "nan at step 2"):
        sft.fine_tune(make(), broken, tokenizer())
    assert not list((tmp_path / "run").glob("checkpoint-*"))


def watched(monkeypatch):
    """The horizons of all steps, in which each layer has one alone."""
    seen, begin, forward = [], Answers.begin, TTCLayer.forward

    def began(answers, step):
        seen.append(answers.horizons.at(step))
        return begin(answers, step)

    def planned(layer, x, horizon=None, *others):
        assert horizon == seen[-1]
        return forward(layer, x, horizon, *others)

    monkeypatch.setattr(Answers, "begin", began)
    monkeypatch.setattr(TTCLayer, "forward", planned)
    return seen


def test_horizons_are_drawn_step_by_step(make, monkeypatch):
    seen = watched(monkeypatch)
    sft.fine_tune(make(horizon="uniform:1,32", seed=3), model(), tokenizer())
    sampler = parse("uniform:1,32", seed=3)
    assert seen == [sampler.at(step) for step in range(6)]
    assert len(set(seen)) > 1


def test_a_model_with_its_own_layers_still_plans(make, monkeypatch):
    """If no layer is inserted, horizons are drawn as before, and the model's own stays."""
    seen = watched(monkeypatch)
    net = adapter.insert(model(), adapter.TTCAdapterConfig(**ADAPTER, horizon=5))
    with raises("has-layers", "insert", "ttc"):
        sft.fine_tune(make(), net, tokenizer())
    trained = sft.fine_tune(make(adapter=None, horizon="fixed:3", steps=2), net, tokenizer())
    assert seen == [3, 3]
    assert trained.config.horizon == 5


def test_the_horizon_of_the_result_is_the_configurations(finished):
    folder, trained, _ = finished
    assert trained.config.horizon == 5
    assert AutoModelForCausalLM.from_pretrained(folder / "model").config.horizon == 5


def test_rows_in_a_pack_do_not_see_each_other(make):
    config = make(packing=True, max_length=32, batch=2, device_batch=2)
    net = model()
    adapter.insert(net, adapter.TTCAdapterConfig(every=2, heads=2, zero_init=False))
    task = Answers(net, examples_of(config, tokenizer(), Path(config.out)).rows, config)
    ((ids, positions, at, goals, *_),) = task.begin(0)
    starts = (positions[0] == 0).nonzero().flatten().tolist()
    assert len(starts) >= 4
    expected = []
    with torch.no_grad():
        found = task.logits(net.eval(), ids, at, {"position_ids": positions})
        for begin, end in zip(starts, [*starts[1:], ids.shape[1]], strict=True):
            own = [place - begin for place in at.tolist() if begin <= place < end - 1]
            expected.append(net(ids[:, begin:end]).logits[0, own])
    assert torch.allclose(found, torch.cat(expected), atol=1e-5)
    assert len(found) == len(torch.cat(expected)), "no row learns to write the beginning of the next"
    assert torch.equal(ids[0][at + 1], goals)


def test_packs_are_full_and_hold_every_row_once():
    lengths = torch.randint(1, 100, (500,), generator=torch.Generator().manual_seed(0)).numpy()
    packs = packed(lengths, 128)
    assert sorted(row for pack in packs for row in pack) == list(range(500))
    assert max(lengths[pack].sum() for pack in packs) <= 128
    assert len(packs) * 128 < 1.05 * lengths.sum()


def test_every_row_comes_once_an_epoch_in_an_order_of_the_seed(make):
    examples = examples_of(make(), tokenizer(), Path(make().out)).rows  # 40 rows
    tasks = [Answers(model(), examples, make(batch=16, steps=None, epochs=2, seed=seed)) for seed in (0, 0, 1)]
    orders = [[task.rows(step) for step in range(task.steps)] for task in tasks]
    assert [len(batch) for batch in orders[0]] == [16, 16, 8] * 2
    for epoch in (orders[0][:3], orders[0][3:]):
        assert sorted(place for batch in epoch for place in batch) == list(range(40))
    assert orders[0][:3] != orders[0][3:]
    assert orders[0] == orders[1] != orders[2]
    assert [tasks[0].tokens(step) for step in (0, 1, 6, 2)] == [0, 16 * 12, 80 * 12, 32 * 12]


def test_the_result_can_be_loaded(make, finished, tmp_path):
    trained = sft.fine_tune(make(train="inserted", steps=2), model(), tokenizer()).eval()
    again = adapter.load(model(), tmp_path / "run" / "adapter").eval()
    ids = torch.randint(6, 20, (2, 7))
    assert torch.equal(trained(ids).logits, again(ids).logits)
    folder, whole, _ = finished
    again = AutoModelForCausalLM.from_pretrained(folder / "model").eval()
    assert torch.equal(whole(ids).logits, again(ids).logits)


@pytest.mark.slow
def test_compiled_layers_stay_compiled_at_any_horizon(make, monkeypatch):
    monkeypatch.setattr(sft, "COMPILER", "eager")  # traced, not built
    limit = torch._dynamo.config.recompile_limit
    counts = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counts.clear()
    options = dict(horizon="uniform:1,32", steps=14, batch=4, save_every=100, check_pointing=True)
    compiled = sft.fine_tune(make("compiled", compiled=True, **options), model(), tokenizer())
    horizons = {parse("uniform:1,32").at(step) for step in range(14)}
    assert len(horizons) > 8
    assert counts["frames"]["ok"] == counts["frames"]["total"]
    assert torch._dynamo.config.recompile_limit == limit
    plain = sft.fine_tune(make("plain", **options), model(), tokenizer())
    for one, two in zip(compiled.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-5)
