"""Fast decoding says what transformers' generate says, greedily, and what `decoding` draws."""

import pytest
import torch

from tests.raising import raises
from tests.train.tiny import model
from ttcnet import adapter
from ttcnet.models import decoding
from ttcnet.models.fast_decoding import GROWING, decode, fits
from ttcnet.nn import mixers

PROMPTS = [[3, 6, 26, 7, 27, 28, 4], [3, 9, 4], [3, 6, 26, 7, 27, 28, 6, 26, 7, 27, 28, 4], [7]]
INSERTS = [None, "ttc", "mlp", "attention", "retnet", "mamba", "gdn", "mesanet"]


def net(insert, device="cpu", **changes):
    made = model(initializer_range=0.3, **changes).eval()
    if insert is not None:
        torch.manual_seed(1)
        adapter.insert(made, adapter.TTCAdapterConfig(every=2, heads=4, insert=insert, zero_init=False))
    return torch.nn.Module.to(made, device)


@pytest.mark.parametrize(
    "insert",
    [kind if kind in ("ttc", "gdn") else pytest.param(kind, marks=pytest.mark.slow) for kind in INSERTS],
)
def test_the_same_tokens_as_generate(insert):
    made = net(insert)
    for tokens in (1000, 40):
        found = decode(made, PROMPTS, 7, [1], tokens=tokens)
        for prompt, answer in zip(PROMPTS, found, strict=True):
            ids = torch.tensor([prompt])
            expected = made.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=7, do_sample=False)[0]
            kept = expected[len(prompt) :].tolist()
            assert answer.tokens == kept
            assert answer.ended == (kept[-1] == 1)
    assert made.config._attn_implementation == "sdpa"


def sizes(state):
    """The sizes of all tensors in a mixer's state."""
    if isinstance(state, torch.Tensor):
        return tuple(state.shape)
    return [sizes(part) for part in vars(state).values()] if isinstance(state, mixers.State) else None


@pytest.mark.parametrize("kind", mixers.KINDS)
def test_only_states_that_keep_their_size_are_replayed(kind):
    mixer = mixers.build(kind, 32, heads=2)
    state = mixer.new_state(1)
    before = sizes(state)
    mixer(torch.randn(1, 1, 32), state=state)
    assert (sizes(state) != before) == (kind in GROWING)


def test_rows_end_at_any_of_the_ends():
    made = net("ttc")
    whole = decode(made, PROMPTS, 40, [1])
    assert all(len(answer.tokens) == 40 for answer in whole if not answer.ended)
    end = whole[0].tokens[2]
    cut = decode(made, PROMPTS, 40, [1, end])
    for before, after in zip(whole, cut, strict=True):
        first = before.tokens.index(end) if end in before.tokens else None
        assert after.tokens == (before.tokens if first is None else before.tokens[: first + 1])
        assert after.ended == (before.ended or first is not None)


def test_the_horizon_counts():
    made = net("ttc")
    found = []
    for steps in (0, 1, 32):
        with adapter.horizon(made, steps):
            found.append(decode(made, PROMPTS, 12, [1]))
    with adapter.disabled(made):
        assert decode(made, PROMPTS, 12, [1]) == found[0]
    assert found[1] != found[0]


@pytest.mark.parametrize("insert", [None, "ttc"])
def test_samples_are_those_of_decoding(insert):
    made, seeds = net(insert), [3, 1, 4, 1]
    expected = decoding.decode(made, PROMPTS, seeds, limit=20, temperature=0.7, ends=[1, 9], pad=0)
    assert len({len(row.tokens) for row in expected}) > 1
    for tokens in (1000, 40):
        found = decode(made, PROMPTS, 20, [1, 9], seeds=seeds, temperature=0.7, tokens=tokens)
        assert [(row.tokens, row.ended) for row in found] == [(row.tokens, row.ended) for row in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.mean_logprob == pytest.approx(other.mean_logprob, abs=1e-4)
    assert decode(made, PROMPTS, 20, [1, 9], seeds=[2, 7, 1, 8], temperature=0.7) != found


def test_models_that_fit():
    assert fits(net(None))
    assert fits(net("ttc"))
    sliding = net(None)
    sliding.config.sliding_window = 8
    assert not fits(sliding)


def test_damaged_weights_are_noticed():
    made = net(None)
    with torch.no_grad():
        made.lm_head.weight[3] = float("nan")
    with raises("bad-output", "model", r"prompt \d"):
        decode(made, PROMPTS, 3, [1])


@pytest.mark.gpu
@pytest.mark.parametrize("insert", INSERTS)
def test_graphs_say_the_same(insert):
    made = net(insert, "cuda")
    expected = [answer.tokens for answer in decode(net(insert), PROMPTS, 60, [1])]
    assert [answer.tokens for answer in decode(made, PROMPTS, 60, [1])] == expected
