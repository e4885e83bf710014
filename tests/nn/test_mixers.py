"""One battery over all mixers: shapes, gradients, causality, padding, generation, arithmetic, compilation, learning."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.raising import raises
from ttcnet.nn import mixers
from ttcnet.nn.mixers import KINDS, build, matched, parameters
from ttcnet.nn.options import MIXERS

VARIANTS = [(kind, {}) for kind in KINDS]
VARIANTS += [
    ("attention", dict(window=3)),
    ("attention", dict(rotary=False, qk_norm=True)),
    ("samba", dict(window=3, qk_norm=True)),
]
STATEFUL = [variant for variant in VARIANTS if variant[0] != "mlp"]
BATCH, LENGTH, WIDTH, HEADS = 3, 11, 16, 2


def name(value):
    return "-".join(value) if isinstance(value, dict) else str(value)


each = pytest.mark.parametrize(("kind", "options"), VARIANTS, ids=name)
each_stateful = pytest.mark.parametrize(("kind", "options"), STATEFUL, ids=name)
each_way = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


def make(kind, causal=True, dtype=torch.float64, **options):
    """A mixer with all parameters away from their special initial values."""
    torch.manual_seed(0)
    mixer = build(kind, WIDTH, heads=HEADS, causal=causal, **options).to(dtype)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return mixer


def tokens(length=LENGTH, dtype=torch.float64, batch=BATCH):
    torch.manual_seed(1)
    return torch.randn(batch, length, WIDTH, dtype=dtype)


def close(one, two, tolerance=1e-11):
    scale = max(1.0, two.abs().max().item())
    assert (one - two).abs().max().item() <= tolerance * scale


@each
@each_way
def test_shapes_and_gradients(kind, options, causal):
    mixer = make(kind, causal, torch.float32, **options)
    x = tokens(dtype=torch.float32).requires_grad_()
    y = mixer(x)
    assert y.shape == x.shape
    assert y.dtype == x.dtype
    y.square().sum().backward()
    assert x.grad.isfinite().all()
    for key, parameter in mixer.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@each
@pytest.mark.parametrize("length", [1, 2])
def test_very_short_sequences(kind, options, length):
    for causal in (True, False):
        mixer, x = make(kind, causal, **options), tokens(length)
        assert mixer(x).isfinite().all()


@each
@each_way
def test_no_tokens_at_all(kind, options, causal):
    mixer = make(kind, causal, **options)
    for batch, length in ((0, 5), (2, 0)):
        x, mask = tokens(length, batch=batch), torch.ones(batch, length, dtype=torch.bool)
        assert mixer(x).shape == mixer(x, mask=mask).shape == x.shape
        if causal and length == 0:
            state = mixer.new_state(batch)
            mixer(x, state=state)
            close(mixer(tokens(), state=mixer.new_state(BATCH)), mixer(tokens()))
            assert mixer(tokens(1, batch=batch), state=state).shape == (batch, 1, WIDTH)


@each
@each_way
def test_shapes_alone_on_the_meta_device(kind, options, causal):
    mixer = make(kind, causal, **options).to("meta")
    assert mixer(torch.empty(2, 5, WIDTH, dtype=torch.float64, device="meta")).shape == (2, 5, WIDTH)


@pytest.mark.parametrize("kind", ["mlp", "mamba", "mamba2", "gdn", "retnet"])
@each_way
def test_second_derivatives(kind, causal):
    assert torch.autograd.gradgradcheck(make(kind, causal), (tokens(3, batch=1).requires_grad_(),), fast_mode=True)


def test_second_derivatives_that_do_not_exist_are_refused():
    x = tokens().requires_grad_()
    with raises("no-derivative", "MesaNet"):
        torch.autograd.grad(make("mesanet")(x).sum(), x, create_graph=True)


@each
def test_causal_mixers_do_not_look_ahead(kind, options):
    mixer, x = make(kind, **options), tokens()
    other = x.clone()
    other[:, 7:] += 1
    assert torch.equal(mixer(x)[:, :7], mixer(other)[:, :7])
    assert not torch.allclose(mixer(x)[:, 7:], mixer(other)[:, 7:])


@each_stateful
def test_bidirectional_mixers_look_both_ways(kind, options):
    mixer, x = make(kind, causal=False, **options), tokens()
    other = x.clone()
    other[:, 5] += 1
    moved = (mixer(x) - mixer(other)).abs().amax((0, 2)) > 1e-9
    if options.get("window") and kind == "attention":
        assert moved.tolist() == [3 <= t <= 7 for t in range(LENGTH)]
    else:
        assert moved.all()


@each_stateful
def test_a_bidirectional_recurrence_is_symmetric(kind, options):
    """If the parameters of the directions are swapped and the sequence is reversed, the output is reversed."""
    mixer, x = make(kind, causal=False, **options), tokens()
    swapped = copy.deepcopy(mixer)
    per_way = ("convolution", "select", "step", "A_log", "D", "beta_bias", "decay_bias", "ridge")
    with torch.no_grad():
        for key, parameter in swapped.named_parameters():
            if any(part in key.split(".")[-2:] or part in key.split(".")[-1] for part in per_way):
                parameter.copy_(torch.cat(parameter.chunk(2)[::-1]))
    close(swapped(x.flip(1)).flip(1), mixer(x))


@each
@each_way
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_count(kind, options, causal, side):
    mixer, x = make(kind, causal, **options), tokens()
    counts = [LENGTH, 6, 1]
    mask = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    for row, count in enumerate(counts):
        mask[row, LENGTH - count :] = side == "left"
        mask[row, :count] |= side == "right"
    x[~mask] = torch.nan
    y = mixer(x, mask=mask)
    assert (y[~mask] == 0).all()
    for row in range(BATCH):
        close(y[row][mask[row]], mixer(x[row][mask[row]][None])[0])
    y.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@each
def test_a_sequence_of_padding_alone(kind, options):
    for causal in (True, False):
        mixer, mask = make(kind, causal, torch.float32, **options), torch.ones(BATCH, LENGTH, dtype=torch.bool)
        mask[1] = False
        y = mixer(tokens(dtype=torch.float32), mask=mask)
        y.sum().backward()
        assert y.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@each
@pytest.mark.parametrize("split", [[11], [5, 1, 1, 1, 1, 1, 1], [1] * 11, [2, 6, 3], [10, 1]], ids=str)
def test_generation_equals_one_pass(kind, options, split):
    mixer, x = make(kind, **options), tokens()
    state = mixer.new_state(BATCH)
    assert (state is None) == (kind == "mlp")
    with torch.no_grad():
        close(torch.cat([mixer(part, state=state) for part in x.split(split, 1)], 1), mixer(x))


@each
def test_generation_across_chunks(kind, options):
    """Long enough for the chunked forms, with a remainder."""
    mixer, x = make(kind, **options), tokens(211, batch=2)
    state = mixer.new_state(2)
    with torch.no_grad():
        close(torch.cat([mixer(part, state=state) for part in x.split([150, 1, 60], 1)], 1), mixer(x), 1e-10)


@each_stateful
@pytest.mark.parametrize("side", ["left", "right"])
def test_generation_after_a_padded_prompt(kind, options, side):
    mixer, x = make(kind, **options), tokens()
    counts = [6, 4, 1]
    mask = torch.stack([torch.arange(6) < count for count in counts])
    mask = mask.flip(1) if side == "left" else mask
    state = mixer.new_state(BATCH)
    with torch.no_grad():
        prompt = mixer(x[:, :6], mask=mask, state=state)
        after = torch.cat([mixer(part, state=state) for part in x[:, 6:].split([1, 3, 1], 1)], 1)
        for row in range(BATCH):
            alone = mixer(torch.cat([x[row, :6][mask[row]], x[row, 6:]])[None])[0]
            close(torch.cat([prompt[row][mask[row]], after[row]]), alone)


@each_stateful
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_second_turn_may_be_padded_too(kind, options, side):
    mixer, x = make(kind, **options), tokens()
    mask = torch.stack([torch.arange(5) < count for count in (5, 2, 0)])
    mask = mask.flip(1) if side == "left" else mask
    state = mixer.new_state(BATCH)
    with torch.no_grad():
        first = mixer(x[:, :4], state=state)
        turn = mixer(x[:, 4:9], mask=mask, state=state)
        after = mixer(x[:, 9:], state=state)
        for row in range(BATCH):
            alone = mixer(torch.cat([x[row, :4], x[row, 4:9][mask[row]], x[row, 9:]])[None])[0]
            close(torch.cat([first[row], turn[row][mask[row]], after[row]]), alone)


@each_stateful
def test_states_follow_the_beams(kind, options):
    mixer, x = make(kind, **options), tokens()
    state, order = mixer.new_state(BATCH), torch.tensor([2, 0, 0, 1])
    with torch.no_grad():
        mixer(x[:, :8], state=state)
        state.reorder(order)
        close(mixer(x[order, 8:], state=state), mixer(x[order])[:, 8:])


@pytest.mark.parametrize("kind", ["mamba", "mamba2", "gdn", "retnet", "mesanet"])
def test_a_recurrent_state_stays_where_it_is(kind):
    """CUDA graphs replay addresses. The state of attention grows."""
    mixer, x = make(kind), tokens()
    state = mixer.new_state(BATCH)
    with torch.no_grad():
        mixer(x[:, :4], state=state)
        memory, before = state.memory.data_ptr(), state.memory.clone()
        mixer(x[:, 4:], state=state)
    assert state.memory.data_ptr() == memory
    assert not torch.equal(state.memory, before)


def test_a_window_keeps_no_more_than_it_can_see():
    mixer, x = make("attention", window=3), tokens()
    state = mixer.new_state(BATCH)
    for part in x.split([7, 1, 1, 2], 1):
        mixer(part, state=state)
        assert state.keys.shape[1] == 2


@each_stateful
def test_gradients_flow_through_a_state(kind, options):
    mixer, x = make(kind, **options), tokens()
    wanted = torch.autograd.grad(mixer(x).square().sum(), list(mixer.parameters()))
    state = mixer.new_state(BATCH)
    parts = torch.cat([mixer(part, state=state) for part in x.split([6, 4, 1], 1)], 1)
    for one, two in zip(torch.autograd.grad(parts.square().sum(), list(mixer.parameters())), wanted, strict=True):
        close(one, two, 1e-9)


@each
@each_way
def test_autocast(kind, options, causal):
    """bfloat16 around, float32 inside the recurrence: off by the rounding of bfloat16 and no more."""
    mixer, x = make(kind, causal, torch.float32, **options), tokens(40, torch.float32)
    mask = torch.ones(BATCH, 40, dtype=torch.bool)
    mask[1, :7] = False
    exact = mixer(x, mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x, mask=mask)
    assert y.dtype == torch.bfloat16
    assert (y.float() - exact).norm() < 0.03 * exact.norm()
    # A token of MesaNet may magnify the rounding of its input: with torch 2.11's draw one moves by 19 % of the largest
    # entry when the tokens alone are rounded and all else is float64.
    if kind != "mesanet":
        assert (y.float() - exact).abs().max() < 0.05 * exact.abs().max()
    y.float().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mixer.parameters())


@each
def test_weights_in_bfloat16(kind, options):
    mixer, x = make(kind, dtype=torch.float32, **options), tokens(dtype=torch.float32)
    exact, half = mixer(x), mixer.bfloat16()
    with torch.no_grad():
        y = half(x.bfloat16())
        assert y.dtype == torch.bfloat16
        assert (y.float() - exact).abs().max() < 0.1 * exact.abs().max()
        state = half.new_state(BATCH)
        parts = torch.cat([half(part, state=state) for part in x.bfloat16().split([6, 5], 1)], 1)
    assert (parts.float() - exact).abs().max() < 0.1 * exact.abs().max()
    if isinstance(state, mixers.Memory):
        assert state.memory.dtype == torch.float32


def test_the_names_that_commands_check_are_those_of_the_mixers():
    assert tuple(KINDS) == MIXERS


# torch's compiler makes an instance of every autograd.Function, which torch itself warns about
quiet = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@quiet
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("causal", "backend"), [(True, "aot_eager"), (False, "eager")])
def test_compiles_as_one_graph(kind, causal, backend):
    torch._dynamo.reset()
    options = dict(iterations=2) if kind == "mesanet" else {}  # of 30: they are unrolled
    mixer, x = make(kind, causal, torch.float32, **options), tokens(6, torch.float32)
    wanted, found = mixer(x), torch.compile(mixer, fullgraph=True, backend=backend)(x)
    close(found, wanted, 1e-5)
    grads = [torch.autograd.grad(y.square().sum(), list(mixer.parameters())) for y in (wanted, found)]
    for one, two in zip(*grads, strict=True):
        close(one, two, 1e-4)


@quiet
@each_stateful
def test_generation_compiles_as_one_graph(kind, options):
    torch._dynamo.reset()
    mixer, x = make(kind, dtype=torch.float32, **options), tokens(8, torch.float32)
    step = torch.compile(lambda x, state: mixer(x, state=state), fullgraph=True, backend="eager", dynamic=False)
    state = mixer.new_state(BATCH)
    with torch.no_grad():
        parts = [mixer(x[:, :6], state=state), step(x[:, 6:7], state), step(x[:, 7:], state)]
        close(torch.cat(parts, 1), mixer(x), 1e-5)


@each
def test_deterministic_and_safe_to_recompute(kind, options):
    mixer, x = make(kind, dtype=torch.float32, **options), tokens(dtype=torch.float32).requires_grad_()
    grads = []
    for run in (mixer, mixer, lambda x: checkpoint(mixer, x, use_reentrant=False)):
        mixer.zero_grad()
        run(x).square().sum().backward()
        grads.append([parameter.grad.clone() for parameter in mixer.parameters()])
    for one, two, three in zip(*grads, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@each
def test_float32_is_accurate(kind, options):
    exact = make(kind, **options)
    mixer, x = copy.deepcopy(exact).float(), tokens(150, batch=1)
    close(mixer(x.float()).double(), exact(x), 2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_initial_values(kind):
    """Outputs have a sane size, reset_parameters draws anew, and there is nothing to save but parameters."""
    torch.manual_seed(0)
    mixer = build(kind, 64, heads=4)
    assert 0.02 < mixer(torch.randn(4, 20, 64)).std() < 2
    before = copy.deepcopy(mixer.state_dict())
    assert set(before) == {key for key, _ in mixer.named_parameters()}
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(0)
    mixer.reset_parameters()
    for key, value in mixer.state_dict().items():
        assert value.isfinite().all(), key
        if value.numel() > 200:
            assert abs(value.std() - before[key].std()) <= 0.2 * before[key].std(), key
        if key.endswith("A_log"):
            assert value.min() >= 0
            assert value.max() <= math.log(16) + 1e-6
        if key.endswith("step_bias"):
            assert F.softplus(value).min() >= 0.999e-3
            assert F.softplus(value).max() <= 1.001e-1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mlp"])
@each_way
def test_learning(kind, causal):
    """A mixer learns to copy the token two places before, or two places after if it sees all."""
    torch.manual_seed(0)
    symbols, length = 6, 10
    options = dict(iterations=6) if kind == "mesanet" else {}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(symbols, 32)
            self.place = nn.Embedding(length, 32)
            self.norms = nn.ModuleList(nn.RMSNorm(32) for _ in range(2))
            self.mixers = nn.ModuleList(build(kind, 32, heads=2, causal=causal, **options) for _ in range(2))
            self.head = nn.Linear(32, symbols)

        def forward(self, ids):
            x = self.embed(ids) + self.place.weight
            for norm, mixer in zip(self.norms, self.mixers, strict=True):
                x = x + mixer(norm(x))
            return self.head(x)

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(80):
        ids = torch.randint(symbols, (16, length))
        target = ids.roll(2, 1) if causal else ids.roll(-2, 1)
        where = slice(2, None) if causal else slice(None, -2)
        loss = F.cross_entropy(model(ids)[:, where].flatten(0, 1), target[:, where].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    start, end = losses[0], sum(losses[-5:]) / 5
    assert end < 0.6 * start, (start, end)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "heads"), [(128, 4), (1024, 16)])
@each_way
def test_parameter_counts_can_be_matched(kind, width, heads, causal):
    target = 4 * width * heads * 16  # about a TTC layer with heads of size 16
    options = matched(kind, width, target, heads=heads, causal=causal)
    count = parameters(kind, width, **options)
    assert abs(count / target - 1) < 0.05
    assert options["inner"] % KINDS[kind].unit(heads) == 0
    if width == 128:
        assert count == sum(parameter.numel() for parameter in build(kind, width, **options).parameters())


def test_matching_says_when_it_cannot():
    with raises("out-of-range", "target", "1000"):
        matched("mamba2", 128, 1000, heads=4)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: build("mambo", 16, heads=2), ("unknown-name", "kind", "'mambo'")),
        (
            lambda: build("attention", 16, heads=3),
            ("conflict", "inner", r"16 \(the default"),
        ),
        (lambda: build("gdn", 16, heads=4, inner=18), ("conflict", "inner")),
        (lambda: build("attention", 16, heads=2, window=0), ("too-small", "window", "0")),
        (lambda: build("samba", 16, heads=2, window=-1), ("too-small", "window", "-1")),
        (lambda: build("mlp", 0, heads=2), ("too-small", "width", "0")),
        (lambda: build("mlp", 16, heads=0), ("too-small", "heads", "0")),
        (lambda: build("mesanet", 16, heads=2, iterations=0), ("too-small", "iterations", "0")),
        (lambda: build("mlp", 16, heads=2)(torch.zeros(2, 3, 8)), ("shape", "x")),
        (lambda: build("mlp", 16, heads=2)(torch.zeros(3, 16)), ("shape", "x", r"\(3, 16\)")),
        (
            lambda: build("gdn", 16, heads=2)(torch.zeros(2, 3, 16), mask=torch.ones(2, 3)),
            ("shape", "mask", "torch.float32"),
        ),
        (lambda: build("gdn", 16, heads=2, causal=False).new_state(2), ("stateful", "causal")),
        (
            lambda: build("gdn", 16, heads=2, causal=False)(
                torch.zeros(1, 3, 16), state=build("gdn", 16, heads=2).new_state(1)
            ),
            ("stateful", "state"),
        ),
    ],
)
def test_bad_input(make, error):
    with raises(*error):
        make()


@each
def test_the_state_of_another_mixer(kind, options):
    other = build("gdn" if kind in ("attention", "samba", "mlp") else "attention", WIDTH, heads=HEADS)
    with raises("type", "state", r"\w+"):
        make(kind, **options)(tokens(), state=other.new_state(BATCH))
