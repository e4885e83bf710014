"""The runs of the small table are trained as ttcnet sft trains."""

import json
import math

import pytest
import torch

from experiments.math_small.learner import fast, learner, micro_batches
from tests.train.tiny import model, sums, tokenizer
from ttcnet import adapter
from ttcnet.storage.reading import rows
from ttcnet.train import sft
from ttcnet.train.examples import Example, prepare
from ttcnet.train.settings import FineTuning

ADAPTER = dict(every=2, heads=4, state_size=8, zero_init=False)


def net_of():
    """A model in float64 with gradients far from zero: Adam divides by them, and would make much of rounding."""
    return model(initializer_range=0.3).double()


@pytest.mark.parametrize(
    "insert", [pytest.param(None, marks=pytest.mark.slow), "ttc", pytest.param("gdn", marks=pytest.mark.slow)]
)
def test_the_same_losses_and_the_same_weights(tmp_path, insert):
    """A batch is all rows, so that both see the same ones at every step."""
    data = str(sums(tmp_path / "data.jsonl", 12))
    config = FineTuning(
        model="tiny", data=data, out=str(tmp_path / "run"), batch=12, device_batch=3, steps=4, lr=3e-3, bf16=False,
        check_pointing=False, log_every=1, horizon="pln:4,0.1,8",
        adapter=None if insert is None else ADAPTER | {"insert": insert}, inserted_lr=None if insert is None else 1e-3,
    )  # fmt: skip
    expected = sft.fine_tune(config, net_of(), tokenizer())
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]

    net, news = net_of(), list[dict[str, float]]()
    torch.manual_seed(config.seed)
    if insert is not None:
        adapter.insert(net, adapter.TTCAdapterConfig.from_dict(config.adapter))
    trained = learner(net, prepare(rows(data), tokenizer()).rows, config, most=60)  # in several pieces
    with fast(net):
        for _ in range(config.steps):
            trained.advance()
            news.append(trained.news())
    assert [line["loss"] for line in news] == pytest.approx([line["loss"] for line in log], abs=1e-5)
    assert [line["lr"] for line in news] == pytest.approx([line["lr"] for line in log], rel=1e-6)
    assert [line["tokens"] for line in news] == [line["tokens"] for line in log]
    theirs, start = (dict(each.named_parameters()) for each in (expected, net_of()))
    for name, parameter in net.named_parameters():
        assert (parameter - theirs[name]).abs().max() < 1e-5, name
        assert name not in start or (parameter - start[name]).abs().max() > 1e-3, name


def test_micro_batches_waste_little():
    torch.manual_seed(0)
    lengths = torch.randint(100, 1000, (96,)).tolist()
    made = micro_batches([Example([0] * length, [0] * length) for length in lengths])
    assert sorted(len(row.input_ids) for part in made for row in part) == sorted(lengths)
    padding = sum(len(part) * max(len(row.input_ids) for row in part) for part in made)
    assert padding < 1.25 * sum(lengths)
    assert 1 < len(made) < 12
    assert min(map(len, made)) > 1
    for count in (1, 2, 5):
        assert [len(part) for part in micro_batches([Example([0] * 9, [0] * 9)] * count)] == [count]
    long = [Example([0] * length, [0] * length) for length in (9, 9, 9000)]
    assert [len(part) for part in micro_batches(long)] == [3]


def test_micro_batches_stay_below_the_most_tokens_where_rows_allow_it():
    some = [Example([0] * length, [0] * length) for length in (99, 9, 30, 31, 30, 9, 30, 30)]
    made = [[len(row.input_ids) for row in part] for part in micro_batches(some, 62)]
    assert made == [[31, 99], [30, 30], [30, 30], [9, 9]]  # no row alone


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch, to itself, when it compiles
def test_compiled_layers_train_alike(tmp_path):
    data = str(sums(tmp_path / "data.jsonl", 30))
    config = FineTuning(model="m", data=data, out="o", batch=7, steps=6, lr=3e-3, bf16=False, adapter=ADAPTER)
    examples = prepare(rows(data), tokenizer()).rows
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = adapter.insert(model(num_hidden_layers=4), adapter.TTCAdapterConfig.from_dict(ADAPTER))
        news = list[dict[str, float]]()
        trained = learner(net, examples, config)
        with fast(net, compiled):
            for _ in range(3):
                trained.advance(), trained.advance()
                news.append(trained.news())
        losses.append([line["loss"] for line in news])
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert all(math.isfinite(loss) for loss in losses[0])
