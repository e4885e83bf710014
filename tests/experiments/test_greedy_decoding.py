"""Fast greedy decoding says what transformers' generate says."""

import pytest
import torch

from experiments.math_small.greedy_decoding import GROWING, answers
from tests.train.tiny import model
from ttcnet import adapter
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
        found = answers(made, PROMPTS, 7, [1], tokens=tokens)
        for prompt, answer in zip(PROMPTS, found, strict=True):
            ids = torch.tensor([prompt])
            expected = made.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=7, do_sample=False)[0]
            kept = expected[len(prompt) :].tolist()
            assert [*answer.tokens, *([1] if answer.ended else [])] == kept
    assert made.config._attn_implementation == "sdpa"


def sizes(state):
    """Of all that a mixer remembers."""
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
    whole = answers(made, PROMPTS, 40, [1])
    assert all(len(answer.tokens) == 40 for answer in whole if not answer.ended)
    end = whole[0].tokens[2]
    cut = answers(made, PROMPTS, 40, [1, end])
    for before, after in zip(whole, cut, strict=True):
        first = before.tokens.index(end) if end in before.tokens else None
        assert after.tokens == (before.tokens if first is None else before.tokens[:first])
        assert after.ended == (before.ended or first is not None)


def test_the_horizon_counts():
    made = net("ttc")
    found = []
    for steps in (0, 1, 32):
        with adapter.horizon(made, steps):
            found.append(answers(made, PROMPTS, 12, [1]))
    with adapter.disabled(made):
        assert answers(made, PROMPTS, 12, [1]) == found[0]
    assert found[1] != found[0]


@pytest.mark.gpu
@pytest.mark.parametrize("insert", INSERTS)
def test_graphs_say_the_same(insert):
    made = net(insert, "cuda")
    expected = [answer.tokens for answer in answers(net(insert), PROMPTS, 60, [1])]
    assert [answer.tokens for answer in answers(made, PROMPTS, 60, [1])] == expected
