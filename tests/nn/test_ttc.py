"""The TTC layer."""

import copy
import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.raising import raises
from ttcnet.lqr import plan
from ttcnet.nn import TTCLayer
from ttcnet.nn.context import CONTEXTS, DECAYS, GROWTH
from ttcnet.testing.errors import cast
from ttcnet.testing.tolerance import beyond, by


@pytest.fixture(params=CONTEXTS)
def layer(request):
    torch.manual_seed(0)
    return TTCLayer(24, heads=3, state_size=4, rank=5, horizon=6, context=request.param)


@pytest.fixture
def x():
    return torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(1))


def test_the_layer_computes_its_definition(layer, x):
    family = layer.problem(x)
    action = plan(family, 6, backend="reference").flatten(1)
    expected = x + layer.out(layer.action_norm(action)).view_as(x)
    assert torch.allclose(layer(x), expected, atol=1e-6)


@pytest.mark.parametrize("shape", [(24,), (7, 24), (2, 3, 4, 24), (0, 24)])
def test_any_leading_shape(layer, shape):
    tokens = torch.randn(shape)
    y = layer(tokens)
    assert y.shape == shape
    if y.ndim > 1 and len(y):
        assert torch.allclose(y[-1], layer(tokens[-1]), atol=1e-6)


def test_the_problem_is_valid(layer, x):
    """Signs, symmetry and bounds, whatever the tokens: plan's own checks say so."""
    family = layer.problem(100 * x)
    family.check()
    assert family.a.abs().max() <= 1
    for name in ("Q", "Qf"):
        assert torch.linalg.eigvalsh(getattr(family, name)).min() > -1e-6, name
    plan(family, 6, check=True)


@pytest.mark.parametrize("homogeneous", [False, True])
@pytest.mark.parametrize(("actions", "bound"), [(16, 1e-5), (8, 2e-5), (4, 5e-5)])
def test_new_layers_plan_exactly_however_far(actions, homogeneous, bound):
    torch.manual_seed(0)
    layer = TTCLayer(64, heads=4, action_size=actions, time_homogeneous=homogeneous)
    with torch.no_grad():
        family = layer.problem(3 * torch.randn(200, 64))
    exact = type(family)(**{name: value.double() for name, value in vars(family).items()})
    for horizon in (8, 32, 128, 256):
        found, truth = plan(family, horizon), plan(exact, horizon)
        assert ((found - truth).norm(dim=-1) / truth.norm(dim=-1)).max() < bound, horizon


@pytest.mark.parametrize("actions", [16, 8, 4])
def test_pure_homogeneous_layers_lose_no_digits_that_roundings_leave(actions):
    """Half of their states do not decay: a direction that no action reaches then counts at every step, and over
    hundreds of steps gradients have fewer digits than actions."""
    torch.manual_seed(0)
    layer = TTCLayer(64, heads=4, action_size=actions, time_homogeneous="pure")
    with torch.no_grad():
        family = layer.problem(3 * torch.randn(50, 64))
    exact = cast(family, torch.float64)
    for horizon in (8, 32):
        assert beyond(["pure"], exact, horizon, by(plan)) == []
    found, truth = plan(family, 256), plan(exact, 256)
    assert (found - truth).norm() < 1e-5 * truth.norm()


WORLD = ("a", "r_inv", "Qf", "decay_A", "decay_B", "decay_Q", "B", "Q")


def test_from_the_token_the_world_and_the_state_in_it_can_differ(x):
    """Tokens that differ where the states do not look: other worlds from the token, the same ones from the head."""
    for context in CONTEXTS:
        torch.manual_seed(0)
        layer = TTCLayer(24, heads=3, state_size=4, rank=5, context=context)
        states = layer.project.weight[:12].detach()  # the first rows make the states
        blind = torch.linalg.qr(states.T, mode="complete").Q[:, 12:].T  # directions that no state sees
        layer.norm = torch.nn.Identity()
        one, other = layer.problem(x), layer.problem(x + torch.randn(2, 5, 12) @ blind)
        assert torch.allclose(one.h0, other.h0, atol=1e-5)
        for name in WORLD:
            assert torch.allclose(getattr(one, name), getattr(other, name), atol=1e-4) == (context == "head"), name


def test_from_the_head_a_head_knows_its_own_state_alone(x):
    """A change in the state of one head: from the head, no other head's own numbers move."""
    torch.manual_seed(0)
    layer = TTCLayer(24, heads=3, state_size=4, rank=5, context="head")
    before = layer.problem(x)
    with torch.no_grad():
        layer.project.weight[:4] += 1
    after = layer.problem(x)
    for name in ("a", "r_inv", "Qf", "decay_A", "decay_B", "decay_Q"):
        one, other = getattr(before, name), getattr(after, name)
        assert torch.equal(one[:, 1:], other[:, 1:]), name
        assert not torch.allclose(one[:, 0], other[:, 0]), name


@pytest.mark.parametrize("context", CONTEXTS)
def test_weights_of_the_other_context_are_refused(context):
    (other,) = set(CONTEXTS) - {context}
    layer = torch.nn.Sequential(TTCLayer(24, heads=3, context=context))
    with raises("context", "context", f"'{context}'"):
        layer.load_state_dict(torch.nn.Sequential(TTCLayer(24, heads=3, context=other)).state_dict())


def test_states_left_alone_hardly_grow(layer, x):
    family = layer.problem(100 * x)
    growth = torch.ones_like(family.a)
    for t in range(1, 1000):
        growth = growth * (1 + torch.exp(-t * family.decay_A) * family.a)
    assert growth.max() < math.exp(GROWTH)
    assert growth.min() >= 0


@pytest.mark.parametrize("context", CONTEXTS)
def test_heads_look_at_several_distances(context, x):
    family = TTCLayer(24, heads=64, state_size=4, context=context).problem(torch.zeros_like(x))
    for name in ("decay_A", "decay_B", "decay_Q"):
        decay = getattr(family, name)
        assert DECAYS[0] * 0.999 < decay.min() < 0.06, name
        assert 0.4 < decay.max() < DECAYS[1] * 1.001, name


def test_a_horizon_of_zero_is_the_identity(layer, x):
    assert layer(x, horizon=0) is x


def test_the_horizon_is_free(layer, x):
    own = layer(x)
    assert torch.equal(own, layer(x, 6))
    assert not torch.allclose(own, layer(x, 12), atol=1e-4)
    assert torch.equal(own, layer(x)), "a call must not change the layer"


def test_zero_initialised_output_is_the_identity(x):
    layer = TTCLayer(24, heads=3, zero_init=True)
    assert torch.equal(layer(x), x)
    layer(x).square().sum().backward()
    assert layer.out.weight.grad.any(), "it must be able to leave the identity"


def test_actions_may_start_larger(x):
    plain, loud = (TTCLayer(24, heads=3, action_gain=gain) for gain in (1, 4))
    loud.load_state_dict(plain.state_dict() | {"action_norm.weight": loud.action_norm.weight})
    torch.testing.assert_close(loud(x) - x, 4 * (plain(x) - x))
    assert torch.equal(TTCLayer(24, heads=3, action_gain=4, zero_init=True)(x), x)


def test_dropout_applies_to_the_output(x):
    torch.manual_seed(0)
    layer = TTCLayer(24, heads=3, dropout=0.5)
    added = layer(x) - x
    whole = layer.eval()(x) - x
    dropped = added == 0
    assert 0.3 < dropped.float().mean() < 0.7
    assert torch.allclose(added[~dropped], 2 * whole[~dropped], atol=1e-5)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("how", [True, "pure"])
def test_time_homogeneous(x, context, how):
    layer = TTCLayer(24, heads=3, state_size=4, time_homogeneous=how, context=context)
    family = layer.problem(x)
    assert family.a.min() < family.a.max() <= 0
    assert not any(getattr(family, f"decay_{name}").any() for name in "ABQ")
    layer(x).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.parametrize("context", CONTEXTS)
def test_a_pure_homogeneous_layer_changes_nothing_but_the_decays(x, context):
    """This holds where a is negative; where it would be positive it is bounded by 4 decay_A, which is 0."""
    modulated, pure = (
        TTCLayer(24, heads=3, state_size=4, time_homogeneous=how, context=context) for how in (False, "pure")
    )
    drawn = pure.context.drawn
    with torch.no_grad():
        for name, weight in pure.named_parameters():
            source = modulated.get_parameter(name)
            if name == "project.weight" and context == "token":
                state, own, shared = source.split(modulated.context.widths)
                source = torch.cat([state, own.unflatten(0, (3, -1))[:, :drawn].flatten(0, 1), shared])
            elif name == "context.bias" and context == "token":
                own, shared = source.split(modulated.context.widths[1:])
                source = torch.cat([own.unflatten(0, (3, -1))[:, :drawn].flatten(), shared])
            elif name in ("context.weight", "context.bias"):
                source = source[..., :drawn]
            weight.copy_(source)
    with_decays, without = modulated.problem(x), pure.problem(x)
    for name in ("B", "Q", "Qf", "r_inv", "h0"):
        torch.testing.assert_close(getattr(without, name), getattr(with_decays, name), msg=name)
    torch.testing.assert_close(without.a, with_decays.a.clamp_max(0))
    assert not any(getattr(without, f"decay_{name}").any() for name in "ABQ")


def test_time_homogeneous_in_an_unknown_way():
    with raises("unknown-name", "time_homogeneous", "'yes'"):
        TTCLayer(24, heads=3, time_homogeneous="yes")


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize(("state_size", "action_size"), [(4, None), (8, 3), (1, 1)])
def test_sizes(x, state_size, action_size, context):
    layer = TTCLayer(24, heads=2, state_size=state_size, action_size=action_size, rank=3, context=context)
    layer(x).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


def test_the_plan_is_handed_out(layer, x):
    y, solution = layer(x, horizon=7, return_plan=True)
    assert torch.equal(y, layer(x, horizon=7))
    assert solution.u.shape == (2, 5, 3, 7, 4)
    assert solution.h.shape == solution.costate.shape == (2, 5, 3, 8, 4)
    assert solution.cost.shape == (2, 5, 3)
    assert not solution.u.requires_grad
    family = layer.problem(x)
    assert torch.allclose(solution.h[..., 0, :].flatten(0, 1), family.h0, atol=1e-6)
    assert torch.allclose(solution.u[..., 0, :].flatten(0, 1), plan(family, 7), atol=1e-5)


def test_backends_agree_forward_and_backward(layer, x):
    """They agree with float64, within a few times the effect of rounding weights and tokens, 2e-6 of the largest."""

    def results(backend, dtype):
        copied = copy.deepcopy(layer).to(dtype)
        copied.backend = backend
        tokens = x.to(dtype, copy=True).requires_grad_()
        y = copied(tokens)
        y.square().sum().backward()
        return {"y": y, "x": tokens.grad} | {n: p.grad for n, p in copied.named_parameters()}

    truth = results("reference", torch.float64)
    for backend, dtype, bound in (
        ("reference", torch.float32, 1e-5),
        ("fused", torch.float32, 1e-5),
        ("fused", torch.float64, 1e-13),
    ):
        found = results(backend, dtype)
        for name, value in truth.items():
            assert (found[name] - value).abs().max() < bound * value.abs().max(), (backend, dtype, name)


@pytest.mark.slow  # test_modeling does the same with a whole model
def test_training_ends_the_same_with_every_backend():
    """200 steps of a small regression: targets of a teacher."""
    losses = {}
    for backend in ("reference", "fused"):
        torch.manual_seed(0)
        teacher, student = (TTCLayer(8, heads=2, state_size=4, rank=4, horizon=4) for _ in range(2))
        student.backend = backend
        optimizer = torch.optim.AdamW(student.parameters(), lr=5e-3)
        data = torch.randn(64, 8)
        with torch.no_grad():
            targets = teacher(data)
        for _ in range(200):
            loss = (student(data) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses[backend] = loss.item()
    assert losses["fused"] < 0.3
    assert losses["fused"] == pytest.approx(losses["reference"], rel=0.02)


def test_bf16_autocast(layer, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
        family = layer.problem(x)
    assert y.dtype == torch.float32
    assert family.Q.dtype == torch.float32
    assert torch.allclose(y, layer(x), atol=0.1)
    y.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(layer, x, dtype):
    exact = layer(x)
    y = copy.deepcopy(layer).to(dtype)(x.to(dtype))
    assert y.dtype == dtype
    assert torch.allclose(y.float(), exact, atol=1e-6 if dtype == torch.float64 else 0.1)


def test_gradient_checkpointing(layer, x):
    tokens = x.clone().requires_grad_()
    plain = torch.autograd.grad(layer(tokens).square().sum(), [tokens, *layer.parameters()])
    again = checkpoint(layer, tokens, use_reentrant=False)
    for a, b in zip(plain, torch.autograd.grad(again.square().sum(), [tokens, *layer.parameters()]), strict=True):
        assert torch.equal(a, b)


def test_compiled_whole_and_few_times(layer, x):
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, backend=counter, fullgraph=True)
    for horizon in [*range(1, 33, 3), 64, None]:
        assert torch.allclose(compiled(x, horizon), layer(x, horizon), atol=1e-5)
    assert counter.frame_count <= 7, "sampled horizons must not compile the layer each anew"


def test_stable_at_a_high_learning_rate():
    """lr 5e-3 in bf16, with a loss that rewards large outputs: nothing may become non-finite."""
    torch.manual_seed(0)
    layer = TTCLayer(16, heads=2, state_size=4)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=5e-3)
    for _ in range(150):
        with torch.autocast("cpu", torch.bfloat16):
            loss = -layer(torch.randn(32, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
        optimizer.step()
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(heads=0), ("too-small", "heads", "0")),
        (dict(heads=2, state_size=-1), ("too-small", "state_size")),
        (dict(heads=2, rank=2.5), ("type", "rank")),
        (dict(heads=2, horizon=-1), ("too-small", "horizon")),
        (dict(heads=2, backend="fussed"), ("unknown-name", "backend")),
        (dict(heads=2, context="world"), ("unknown-name", "context", "'world'")),
        (dict(heads=2, eps=-1.0), ("out-of-range", "eps")),
        (dict(heads=2, dropout=1.0), ("out-of-range", "dropout")),
        (dict(heads=2, action_gain=0.0), ("out-of-range", "action_gain", "0.0")),
    ],
)
def test_bad_options(options, message):
    with raises(*message):
        TTCLayer(16, **options)


def test_bad_calls(layer, x):
    with raises("shape", "x"):
        layer(x[..., :20])
    with raises("type", "horizon"):
        layer(x, 2.5)
    with raises("too-small", "horizon"):
        layer(x, 0, return_plan=True)


@pytest.mark.gpu
def test_on_a_gpu(layer, x):
    """The same as on the CPU, forward and backward, and replayed as a CUDA graph."""
    there = copy.deepcopy(layer).cuda()
    tokens = x.cuda().requires_grad_()
    y = there(tokens)
    assert torch.allclose(y.cpu(), layer(x), atol=1e-5)
    y.square().sum().backward()
    layer(x).square().sum().backward()
    for (name, parameter), other in zip(layer.named_parameters(), there.parameters(), strict=True):
        assert torch.allclose(parameter.grad, other.grad.cpu(), rtol=1e-3, atol=1e-4), name
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            there(tokens)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = there(tokens)
        tokens.mul_(2)
        graph.replay()
        assert torch.allclose(captured, there(tokens), atol=1e-6)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_compiled_for_more_and_fewer_tokens():
    """Strides of tensors kept for the backward pass must not depend on the number of tokens: torch 2.11 would bake in
    those of the second call."""
    torch._dynamo.reset()
    layer = TTCLayer(64, heads=4, horizon=4).cuda()
    compiled = torch.compile(layer)
    for tokens in (160, 640, 160, 320):
        x = torch.randn(tokens, 64, device="cuda", requires_grad=True)
        found, wanted = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (compiled, layer))
        assert torch.allclose(found, wanted, rtol=1e-3, atol=1e-3), tokens


def test_numbers_that_are_not_floating_point_are_refused():
    with raises("dtype", "x", "int64"):
        TTCLayer(8, heads=1, state_size=2, rank=2)(torch.ones(2, 8, dtype=torch.int64))
    with raises("dtype", "dtype", "int32"):
        TTCLayer(8, heads=1, state_size=2, rank=2, dtype=torch.int32)
