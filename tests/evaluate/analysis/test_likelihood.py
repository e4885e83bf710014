"""The likelihood of solutions is that of their tokens one by one, whatever the batches."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

import ttcnet.adapter as adapter
from tests.raising import raises, told
from tests.train.tiny import model, sums, tokenizer
from ttcnet.cli import app
from ttcnet.evaluate.analysis.likelihood import likelihoods, log_likelihoods
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM
from ttcnet.models.decoding import batches
from ttcnet.storage.reading import rows
from ttcnet.tasks.statistics import average, ratio
from ttcnet.train.examples import IGNORED, Example, prepare


@pytest.fixture
def examples(tmp_path):
    found = prepare(rows(str(sums(tmp_path / "data.jsonl", 4))), tokenizer()).rows
    longer = Example([3, 6, 4, 7, 7, 8, 8, 9, 1], [IGNORED, IGNORED, IGNORED, 7, 7, 8, IGNORED, 9, 1])
    return [*found[:2], longer, *found[2:]]


def one_by_one(net, example):
    """Compute the likelihood by its definition: each token after the tokens before it."""
    total, tokens = 0.0, 0
    with torch.no_grad():
        for place in range(1, len(example.input_ids)):
            if example.labels[place] != IGNORED:
                logits = net(torch.tensor([example.input_ids[:place]])).logits[0, -1].double()
                total += float(logits.log_softmax(-1)[example.input_ids[place]])
                tokens += 1
    return total, tokens


@pytest.mark.parametrize("insert", [None, "ttc", pytest.param("gdn", marks=pytest.mark.slow)])
def test_it_is_the_likelihood_of_each_token(examples, insert):
    net = model().eval()
    if insert:
        net = adapter.insert(net, adapter.TTCAdapterConfig(every=2, heads=4, insert=insert, zero_init=False))
    expected = [one_by_one(net, example) for example in examples]
    for tokens in (1, 20, 1000):
        found = log_likelihoods(net, examples, tokens=tokens)
        assert found.tolist() == pytest.approx([total for total, _ in expected], abs=1e-4)
    [result] = likelihoods(net, examples, tokens=20)
    totals, counts = zip(*expected, strict=True)
    assert (result.horizon, result.solutions, result.tokens) == (None, len(examples), sum(counts))
    assert result.per_token.mean == pytest.approx(sum(totals) / sum(counts), abs=1e-5)
    assert result.per_solution.mean == pytest.approx(sum(totals) / len(totals), abs=1e-4)


def test_the_horizon_counts_and_comes_back(examples):
    net = adapter.insert(model().eval(), adapter.TTCAdapterConfig(every=2, heads=4, horizon=5, zero_init=False))
    off, one, far, own = likelihoods(net, examples, (0, 1, 16, None))
    assert [off.horizon, one.horizon, far.horizon, own.horizon] == [0, 1, 16, None]
    assert len({off.per_token.mean, one.per_token.mean, far.per_token.mean, own.per_token.mean}) == 4
    assert net.config.horizon == 5
    with adapter.disabled(net):
        [base] = likelihoods(net, examples)
    assert base.per_token == off.per_token


def test_a_ttc_net_of_our_own(examples):
    config = TTCNetConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, interleave="2:1")
    net = TTCNetForCausalLM(config).eval()
    off, far, own = likelihoods(net, examples, (0, 16, None))
    assert len({each.per_token.mean for each in (off, far, own)}) == 3
    assert net.config.horizon == 8


def test_the_command(tmp_path):
    base = adapter.insert(model(), adapter.TTCAdapterConfig(every=2, heads=4, zero_init=False))
    base.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    data, out = sums(tmp_path / "data.jsonl", 5), tmp_path / "deep" / "out.json"
    options = ["eval", "likelihood", str(data), "--model", str(tmp_path / "model"), "--limit", "4"]
    done = CliRunner().invoke(app, [*options, "--horizon", "0,8", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "horizon 8: log-likelihood of a token -3." in done.output
    kept = json.loads(out.read_text())
    assert [(each["horizon"], each["solutions"]) for each in kept["results"]] == [(0, 4), (8, 4)]
    for wrong, code, field in (
        (["--horizon", "x"], "format", "horizon"),
        (["--max-length", "2"], "too-long", "max_length"),
        (["--out", str(tmp_path)], "not-writable", "out"),
    ):
        failed = CliRunner().invoke(app, [*options, *wrong])
        assert failed.exit_code == 1
        assert told(failed.output, code, field)
    for net, code, field, value in (
        (model(), "no-layers", "model", ""),
        (model(max_position_embeddings=8), "too-long", "max_length", "None, and a row of 12"),
        (model(vocab_size=20), "too-long", "tokenizer", "31"),
    ):
        net.save_pretrained(tmp_path / "model")
        failed = CliRunner().invoke(app, [*options, "--horizon", "8"])
        assert told(failed.output, code, field, value)


def test_intervals_cover():
    """Solutions whose tokens stand or fall together: the interval of the mean over tokens knows."""
    torch.manual_seed(0)
    covered = [0, 0]
    for _ in range(400):
        counts = torch.randint(1, 40, (80,))
        totals = counts.double() * (-1.0 + 0.3 * torch.randn(80, dtype=torch.float64))
        token, solution = ratio(totals.tolist(), counts.tolist()), average(totals.tolist())
        covered[0] += token.low <= -1.0 <= token.high
        covered[1] += solution.low <= -20.0 <= solution.high
    assert all(0.91 < share / 400 < 0.985 for share in covered), covered


def test_batches_keep_their_limit_of_tokens():
    lengths = [3, 9, 1, 4, 4, 20, 2]
    found = list(batches(lengths, 9))
    assert sorted(place for batch in found for place in batch) == list(range(7))
    assert all(len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= 9 for batch in found)


def test_one_solution_and_none():
    [result] = likelihoods(model().eval(), [Example([3, 4, 6], [IGNORED, IGNORED, 6])])
    assert math.isfinite(result.per_solution.low)
    for wrong in ([], [Example([3, 4], [IGNORED, IGNORED])]):
        with raises("no-data", "examples", "without"):
            list(likelihoods(model().eval(), wrong))
