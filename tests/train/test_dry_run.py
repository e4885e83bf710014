"""ttcnet sft --dry-run: bytes are those of a real run, flop those of the formula, and nothing is read or written."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import ttcnet.adapter as adapter
from tests.raising import raises, told
from tests.train.conftest import ADAPTER, run_settings
from tests.train.tiny import model, sums, tokenizer
from ttcnet.cli import app
from ttcnet.nn.horizon import parse
from ttcnet.train import ledger, sft
from ttcnet.train.checkpoint import trained_parameters
from ttcnet.train.dry_run import GB, check_gpu, dry_run
from ttcnet.train.examples import Example
from ttcnet.train.ledger import KERNELS, MEASURED, Ledger, Planned, Speed, plan_seconds

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and peft
LENGTH = 48
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "lqr-gpu.csv"
KINDS = [("all", "float32"), ("inserted", "float32"), ("inserted", "bfloat16"), ("lora", "bfloat16")]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model without its weights."""
    folder = tmp_path_factory.mktemp("base")
    net = model(num_hidden_layers=4)
    net.config.architectures = ["LlamaForCausalLM"]
    net.config.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def settings(base, **changes):
    values = dict(model=str(base), max_length=LENGTH, batch=4, device_batch=4, bf16=True, horizon="fixed:8", steps=None)
    return run_settings(base.parent, **values | changes)


def real(config):
    """The same, with values."""
    net = model(num_hidden_layers=4)
    for parameter in net.parameters():  # not of buffers, as in from_pretrained
        parameter.data = parameter.data.to(getattr(torch, config.weights))
    rows = [Example([7] * LENGTH, [7] * LENGTH)] * config.device_batch
    return sft.learner(sft.insert(net, config), rows, config, "cpu")


def size(tensors):
    return sum(x.numel() * x.element_size() for x in tensors)


@pytest.mark.parametrize(("train", "weights"), KINDS)
def test_weights_gradients_and_optimizer_are_those_of_a_real_run(train, weights, base):
    config = settings(base, train=train, weights=weights)
    found, learner = dry_run(config), real(config)
    trained = trained_parameters(learner.model).values()
    gradients = []
    step = learner.optimizer.step
    learner.optimizer.step = lambda: (gradients.extend(x.grad for x in trained), step())
    learner.advance()
    assert found.parameters == sum(x.numel() for x in learner.model.parameters())
    assert found.trained == sum(x.numel() for x in trained)
    assert found.weights == size([*learner.model.parameters(), *learner.model.buffers()])
    assert found.gradients == size(gradients) > 0
    assert found.optimizer == size(x for state in learner.optimizer.state.values() for x in state.values())


def counted_by_hooks(learner, config):
    """Bytes that autograd saves, other than weights; and what a ledger says of the same step."""
    known = {x.untyped_storage()._cdata for x in (*learner.model.parameters(), *learner.model.buffers())}
    saved, (batch,) = {}, learner.objective.begin(0)
    known |= {x.untyped_storage()._cdata for x in batch if isinstance(x, torch.Tensor)}

    def keep(x):
        saved[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
        return x

    held = [*learner.model.parameters(), *learner.model.buffers(), *(x for x in batch if isinstance(x, torch.Tensor))]
    with Ledger(held, Speed(1e12, 1e12, 0)) as seen:
        autocast = torch.autocast("cpu", torch.bfloat16, config.bf16)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x), autocast:
            loss, _ = learner.objective.loss(learner.model, *batch)
        live = seen.live
        loss.backward()
    return sum(number for key, number in saved.items() if key not in known), live, seen


@pytest.mark.parametrize("check_pointing", [False, True])
@pytest.mark.parametrize(
    ("train", "weights", "insert"),
    [
        ("all", "float32", "ttc"),
        ("lora", "bfloat16", "ttc"),
        ("inserted", "bfloat16", "mlp"),
        ("lora", "bfloat16", "mlp"),
        ("all", "float32", "none"),
    ],
)
def test_activations_are_those_of_a_real_step(train, weights, insert, check_pointing, base, monkeypatch):
    """With plans of the CPU's kernels here, because those of the GPU keep other check-points."""
    monkeypatch.setattr(ledger.imagined, "fits", lambda arguments: False)
    inserted = "none" if insert == "none" else ADAPTER | {"insert": insert}
    config = settings(base, check_pointing=check_pointing, train=train, weights=weights, adapter=inserted)
    found, learner = dry_run(config), real(config)
    by_hooks, live, seen = counted_by_hooks(learner, config)
    assert found.saved == pytest.approx(live, rel=0.01)
    assert found.flop == seen.flop > 0
    if insert != "ttc":  # the CPU's kernels have memory of their own in the backward pass
        assert found.activations + found.gradients == pytest.approx(seen.peak, rel=0.01)
    if not check_pointing:  # where it is on, it holds tensors that hooks do not see
        assert found.saved == pytest.approx(by_hooks, rel=0.05)


def test_plans_are_those_of_the_gpu(base):
    """Check-points of a horizon of 8 are kept at every step, and two steps need as much more as there are problems."""
    short, long = (dry_run(settings(base, horizon=f"fixed:{steps}", check_pointing=False)) for steps in (4, 8))
    problems, n = 2 * 4 * LENGTH * ADAPTER["heads"], ADAPTER["state_size"]  # of two layers
    assert long.saved - short.saved == 4 * 4 * problems * (n * n + 1)


def test_flop_are_six_for_each_weight_and_token(base):
    """Or eight with check-points, which compute the forward pass of all layers again, but for their last products."""
    config = settings(base, adapter="none", check_pointing=False)
    net, tokens = model(num_hidden_layers=4), config.batch * LENGTH
    last = sum(x.numel() for name, x in net.named_parameters() if "lm_head" in name or "down_proj" in name)
    products = sum(x.numel() for name, x in net.named_parameters() if x.ndim == 2 and "embed" not in name)
    attention = 2 * tokens * LENGTH * net.config.hidden_size * net.config.num_hidden_layers / 2  # of a product
    assert dry_run(config).flop == 6 * tokens * products + 7 * attention
    again = dry_run(replace(config, check_pointing=True)).flop
    assert again == 6 * tokens * products + 7 * attention + 2 * tokens * (products - last) + 2 * attention


@pytest.mark.parametrize("gpus", [2, 3, 16])
def test_gpus_share_a_model(gpus, base):
    config = settings(base, sharded=True, device_batch=1, batch=48)
    net = adapter.insert(model(num_hidden_layers=4), adapter.TTCAdapterConfig(**ADAPTER))
    pieces = [x.detach().chunk(gpus)[0] for x in net.parameters()]
    one, found = dry_run(replace(config, sharded=False)), dry_run(config, gpus=gpus)
    assert found.weights == size(pieces) + size(net.buffers())
    assert found.gradients == size(pieces)
    assert found.exchange > 0
    assert one.exchange == 0
    assert found.tokens == one.tokens == 48 * LENGTH
    assert found.flop == pytest.approx(one.flop / gpus)


def test_copies_exchange_their_gradients(base):
    found = dry_run(settings(base, device_batch=2), gpus=2)
    assert found.exchange == found.gradients


def test_steps_and_hours(base):
    assert dry_run(settings(base, batch=12)).steps == math.ceil(40 / 12)
    assert dry_run(settings(base, steps=9)).steps == 9
    absent = dry_run(settings(base, data="somebody/something"))
    assert absent.steps is None
    assert not any(" steps take" in line for line in absent.lines())


def test_the_model_decides_the_length_where_the_settings_do_not(base):
    found = dry_run(settings(base, max_length=None))
    assert found.tokens == 4 * 64
    assert "That is the model's longest row, because max_length is not given." in found.assumed


def test_it_fits_or_not(base):
    config = settings(base)
    found = dry_run(config)
    least = (found.total * 1.05 + 1e9) / GB
    assert dry_run(config, gpu_memory=least * 1.001).fits
    assert not dry_run(config, gpu_memory=least * 0.999).fits


def test_times_of_plans_are_published():
    """Those of the file are rounded in the package."""
    with RESULTS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["provider"], row["problems"]) == ("plan", "65536")]
    ours = {int(row["horizon"]): row for row in rows if row["regime"] == "trained"}
    assert {row["commit"] for row in ours.values()} == {MEASURED}
    for horizon, (forward, both) in KERNELS.items():
        row = ours[horizon]
        assert float(row["forward_ms"]) == pytest.approx(forward * 65536e-6, rel=2e-3)
        assert float(row["median_ms"]) == pytest.approx(both * 65536e-6, rel=2e-3)
        one = [plan_seconds(Planned(65536, 16, 16, backward), horizon) for backward in (False, True)]
        assert one == pytest.approx([forward * 65536e-9, (both - forward) * 65536e-9])
    between = [plan_seconds(Planned(1000, 16, 16, False), horizon) for horizon in (1, 8, 12, 16, 40, 64, 128)]
    assert between == sorted(between)
    assert between[0] > 0


@pytest.mark.parametrize(
    ("values", "code", "field"),
    [
        (dict(gpus=0), "too-small", "gpus"),
        (dict(gpu="Z80"), "unknown-name", "gpu"),
        (dict(memory=0.0), "out-of-range", "gpu_memory"),
        (dict(efficiency=1.5), "out-of-range", "efficiency"),
    ],
)
def test_values_that_do_not_fit(values, code, field):
    with raises(code, field):
        check_gpu(**dict(gpus=1, gpu=None, memory=None, efficiency=0.5) | values)


def test_a_batch_must_be_shared_by_all(base):
    with raises("conflict", "batch"):
        dry_run(settings(base, batch=4, device_batch=2), gpus=3)


def test_the_command(base, tmp_path):
    """No weights, no data, and nothing is written."""
    file = tmp_path / "run.toml"
    lines = [f'model = "{base}"', 'data = "absent.jsonl"', f'out = "{tmp_path / "out"}"', "steps = 10", "batch = 32"]
    file.write_text("\n".join([*lines, "sharded = true", "[adapter]", "every = 2", "heads = 4"]))
    found = CliRunner().invoke(app, ["sft", str(file), "--dry-run", "--gpus", "16", "--gpu-memory", "24"])
    assert found.exit_code == 0, found.output
    for words in ("Memory of each of 16 GPUs", "optimizer", "It fits into 24 GB (H100)", "10 steps take", "Assumed:"):
        assert words in found.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
    assert told(CliRunner().invoke(app, ["sft", str(file), "--dry-run", "--gpus", "0"]).output, "too-small", "gpus")
    assert told(CliRunner().invoke(app, ["sft", str(file), "--gpus", "2"]).output, "conflict", "gpus")


def test_the_longest_horizon_counts(base):
    sampler = parse("pln:8,0.1,32", seed=0)
    longest = max(sampler.at(number) for number in range(20))
    found = dry_run(settings(base, horizon="pln:8,0.1,32", steps=20))
    assert any(f"T = {longest};" in line for line in found.assumed)


def test_the_data_of_a_run_is_counted(base):
    sums(base.parent / "data.jsonl", count=100)
    assert dry_run(settings(base, epochs=2.0)).steps == 50
