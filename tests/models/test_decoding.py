"""Decoding in batches is decoding one by one: greedy, sampled, with rows that end early and rows that stop."""

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

import ttcnet.adapter as adapter
from tests.raising import raises
from tests.train import tiny
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM
from ttcnet.models.decoding import decode, ends_of

LIMIT = 12
PROMPTS = [[6, 7, 8], [9, 10, 11, 12, 13, 14, 15], [20], [8, 21, 9, 22, 6], [17, 18, 19, 20, 21, 22]]


def eager(insert=None):
    """A model that is sure of nothing, so that rows differ and some end early."""
    net = tiny.model()
    with torch.no_grad():
        for weight in net.parameters():
            weight.mul_(3)
    if insert is not None:
        sizes = dict(heads=2, state_size=8, rank=4) if insert == "ttc" else dict(heads=2)
        net = adapter.insert(net, adapter.TTCAdapterConfig(insert=insert, every=2, zero_init=False, **sizes))
    return net.eval()


def other(kind):
    torch.manual_seed(0)
    if kind == "ttcnet":
        return TTCNetForCausalLM(TTCNetConfig.tiny(vocab_size=32)).eval()
    sizes = dict(vocab_size=32, hidden_size=32, num_hidden_layers=2, state_size=8)
    return MambaForCausalLM(MambaConfig(**sizes, eos_token_id=None, pad_token_id=0)).eval()


def run(net, prompts=PROMPTS, seeds=None, temperature=0.0, ends=(1,), **options):
    seeds = seeds or list(range(len(prompts)))
    return decode(net, prompts, seeds, limit=LIMIT, temperature=temperature, ends=list(ends), pad=0, **options)


def naive(net, prompt, ends):
    """Greedy, without cache or batch."""
    ids, logprobs = list(prompt), []
    for _ in range(LIMIT):
        with torch.no_grad():
            scores = net(torch.tensor([ids]), use_cache=False).logits[0, -1].float()
        ids.append(int(scores.argmax()))
        logprobs.append(float(scores.log_softmax(-1).max()))
        if ids[-1] in ends:
            break
    return ids[len(prompt) :], sum(logprobs) / len(logprobs)


@pytest.mark.parametrize("kind", [None, "ttc", "gdn", "attention", "ttcnet", "mamba"])
def test_greedy_decoding(kind):
    net = other(kind) if kind in ("ttcnet", "mamba") else eager(kind)
    free = run(net, ends=())
    assert all(not row.ended and len(row.tokens) == LIMIT for row in free)
    ends = {row.tokens[place] for row, place in zip(free, (2, 5, 5), strict=False)}  # so that rows end, at other times
    found = run(net, ends=ends)
    assert len({len(row.tokens) for row in found}) > 1
    for prompt, row in zip(PROMPTS, found, strict=True):
        tokens, mean = naive(net, prompt, ends)
        assert row.tokens == tokens
        assert row.ended == (tokens[-1] in ends)
        assert row.mean_logprob == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("kind", [None, "ttc", "gdn"])
def test_a_sample_depends_on_its_seed_alone(kind):
    net = eager(kind)
    seeds = [3, 1, 4, 1, 5]
    together = run(net, seeds=seeds, temperature=1.0)
    for prompt, seed, row in zip(PROMPTS, seeds, together, strict=True):
        assert run(net, [prompt], [seed], 1.0)[0].tokens == row.tokens
    backwards = run(net, PROMPTS[::-1], seeds[::-1], 1.0)
    assert [row.tokens for row in backwards] == [row.tokens for row in together[::-1]]
    assert run(net, seeds=[9, 2, 6, 5, 3], temperature=1.0) != together


def test_samples_follow_the_distribution():
    net = eager()
    count, temperature = 4000, 0.6
    rows = decode(
        net, [PROMPTS[0]] * count, list(range(count)), limit=1, temperature=temperature, ends=[], pad=0
    )  # fmt: skip
    with torch.no_grad():
        expected = (net(torch.tensor([PROMPTS[0]])).logits[0, -1] / temperature).softmax(-1)
    found = torch.bincount(torch.tensor([row.tokens[0] for row in rows]), minlength=len(expected)) / count
    assert 0.05 < expected.max() < 0.95
    assert (found - expected).abs().max() < 4 * (expected * (1 - expected) / count).sqrt().max()


def test_stops_are_looked_for_in_new_tokens_alone():
    net = eager()
    free = run(net, ends=())
    target = free[0].tokens[3]

    def stopped(tail):
        return (tail == target).any(-1)

    found = run(net, [[target, *PROMPTS[0]], PROMPTS[0]], [0, 0], ends=(), stopped=stopped)
    assert found[1].tokens == free[0].tokens[: free[0].tokens.index(target) + 1]
    assert found[1].ended
    assert len(found[0].tokens) >= 1


def test_damaged_weights_are_noticed():
    net = eager()
    with torch.no_grad():
        net.lm_head.weight[3] = float("nan")
    with raises("bad-output", "model"):
        run(net)


def test_progress_is_reported():
    told = []
    run(eager(), ends=(), watch=told.append)
    assert told == [pytest.approx(5 * 8 / 12)]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [None, "ttc", "gdn"])
def test_a_gpu_decodes_as_the_cpu_does(kind):
    net = eager(kind)
    for temperature in (0.0, 0.6):
        expected = run(net, temperature=temperature)
        found = run(net.cuda(), temperature=temperature)
        net.cpu()
        assert [row.tokens for row in found] == [row.tokens for row in expected]


@pytest.mark.parametrize("odd", ["x", 10**19, -(10**19), [[1]], [1, "x"], 0.5, True, {}], ids=repr)
def test_odd_end_tokens_are_errors(odd):
    net = tiny.model()
    net.generation_config.eos_token_id = odd
    with raises("type", "eos_token_id"):
        ends_of(net, tiny.tokenizer())


@pytest.mark.parametrize(
    ("listed", "ends"), [(None, [1]), (7, [1, 7]), ([7, 1, 3], [1, 3, 7]), ([], [1]), (-1, [-1, 1])]
)
def test_tokens_that_end(listed, ends):
    net = tiny.model()
    net.generation_config.eos_token_id = listed
    assert ends_of(net, tiny.tokenizer()) == ends
