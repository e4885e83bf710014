"""plan() on a CUDA device, as its users call it. kernels/test_fused_cuda.py has the kernels themselves."""

import pytest
import torch

from ttcnet.lqr import plan
from ttcnet.testing.errors import NAMES, cast, differentiate, relative_errors, weights
from ttcnet.testing.regimes import REGIMES, draw

pytestmark = pytest.mark.gpu


def fused(family, horizon):
    return plan(family, horizon, backend="fused")


def reference(family, horizon):
    return plan(family, horizon, backend="reference", check=False)


def errors_of(family, horizon):
    """The errors of every output, against float64 on the very numbers that the kernels got."""
    g = weights(family).cuda()
    truth = differentiate(reference, cast(cast(family, torch.float32), torch.float64, "cuda"), horizon, g)
    return relative_errors(differentiate(fused, cast(family, torch.float32, "cuda"), horizon, g), truth)


@pytest.mark.parametrize("horizon", [1, 2, 8, 16, 17, 64, 300])
@pytest.mark.parametrize("regime", REGIMES)
def test_a_thousand_problems(regime, horizon):
    errors = errors_of(draw(regime, tokens=63, heads=16, seed=horizon), horizon)
    assert errors.pop("u") < 2e-6
    assert max(errors.values()) < 2e-5, errors


@pytest.mark.parametrize("regime", ["fresh", "trained", "slow"])
def test_a_long_horizon(regime):
    errors = errors_of(draw(regime, tokens=4, heads=16, seed=7), 2048)
    assert errors.pop("u") < 1e-5
    assert max(errors.values()) < 1e-4, errors


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize(("n", "m"), [(63, 63), (60, 63), (1, 1), (63, 1), (1, 60), (64, 64), (32, 17), (4, 8)])
def test_odd_sizes(n, m, per_head):
    regime = "trained" if m >= n else "fresh"
    errors = errors_of(draw(regime, tokens=3, heads=5, n=n, m=m, per_head=per_head), 9)
    assert errors.pop("u") < 2e-6
    assert max(errors.values()) < 2e-5, errors


@pytest.mark.parametrize("tokens", [1, 63, 60, 1025])
@pytest.mark.parametrize("heads", [1, 3, 16])
def test_any_number_of_problems(tokens, heads):
    errors = errors_of(draw("trained", tokens, heads, n=16), 5)
    assert errors.pop("u") < 2e-6
    assert max(errors.values()) < 2e-5, errors


@pytest.mark.parametrize(("dtype", "digits"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11)])
def test_half_precision_costs_the_rounding_of_the_answer_alone(dtype, digits):
    family = cast(draw("trained", tokens=63, heads=4), dtype)
    g = weights(family).cuda().to(dtype)
    found = differentiate(fused, cast(family, dtype, "cuda"), 8, g)
    truth = differentiate(reference, cast(family, torch.float64, "cuda"), 8, g)
    assert all(x.dtype == dtype for x in found.values())
    assert max(relative_errors(found, truth).values()) < digits


def test_the_same_bits_every_time():
    family = cast(draw("trained", tokens=512, heads=16), torch.float32, "cuda")
    g = weights(family).cuda().float()
    for horizon in (8, 40):
        first, second = differentiate(fused, family, horizon, g), differentiate(fused, family, horizon, g)
        for name, x in first.items():
            assert torch.equal(x, second[name]), name


@pytest.mark.parametrize("horizon", [8, 40])
def test_gradients_of_costs_are_symmetric_to_the_bit(horizon):
    family = cast(draw("trained", tokens=16, heads=16), torch.float32, "cuda")
    found = differentiate(fused, family, horizon, weights(family).cuda().float())
    for name in ("Q", "Qf"):
        assert torch.equal(found[name], found[name].mT), name


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("horizon", [8, 40, 300])
def test_the_host_never_waits(horizon):
    family = cast(draw("trained", tokens=4, heads=16), torch.float32, "cuda")
    g = weights(family).cuda().float()
    differentiate(fused, family, horizon, g)
    try:
        torch.cuda.set_sync_debug_mode("error")
        differentiate(fused, family, horizon, g)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("horizon", [8, 40])
def test_both_passes_in_a_cuda_graph(horizon):
    family = cast(draw("trained", tokens=4, heads=16), torch.float32, "cuda")
    g = weights(family).cuda().float()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        differentiate(fused, family, horizon, g)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = differentiate(fused, family, horizon, g)
    other = cast(draw("trained", tokens=4, heads=16, seed=3), torch.float32, "cuda")
    with torch.no_grad():
        for name in NAMES:
            getattr(family, name).copy_(getattr(other, name))
    graph.replay()
    for name, x in differentiate(fused, other, horizon, g).items():
        assert torch.equal(captured[name], x), name


def test_compiled_whole():
    family = cast(draw("trained", tokens=8, heads=16), torch.float32, "cuda")
    g = weights(family).cuda().float()
    compiled = torch.compile(lambda f, T: plan(f, T) * 2, fullgraph=True)
    found = differentiate(compiled, family, 8, g)
    for name, x in differentiate(lambda f, T: fused(f, T) * 2, family, 8, g).items():
        assert torch.allclose(found[name], x, rtol=1e-6, atol=0), name


def test_the_operator_passes_opcheck():
    family = cast(draw("trained", tokens=2, heads=3, n=4), torch.float32, "cuda")
    tensors = [getattr(family, name) for name in NAMES]
    torch.library.opcheck(torch.ops.ttcnet.plan, (*tensors, 8, True, "fused"))


def test_another_stream():
    family = cast(draw("trained", tokens=8, heads=16), torch.float32, "cuda")
    here = plan(family, 8)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        there = plan(family, 8)
    stream.synchronize()
    assert torch.equal(here, there)


def test_a_horizon_of_zero():
    family = cast(draw("trained", tokens=2, heads=2), torch.float32, "cuda")
    assert not plan(family, 0).any()


def test_bad_numbers_stay_by_themselves():
    clean = cast(draw("trained", tokens=8, heads=4), torch.float32, "cuda")
    dirty = cast(clean, torch.float32, "cuda")
    with torch.no_grad():
        dirty.Qf[3, 2, 0, 0] = float("nan")
        dirty.a[5, 1, 0] = float("inf")
    u, v = plan(clean, 8), plan(dirty, 8)
    bad = torch.zeros(8, 4, dtype=torch.bool, device="cuda")
    bad[3, 2] = bad[5, 1] = True
    assert not v[bad].isfinite().all(-1).any()
    assert torch.equal(u[~bad], v[~bad])
