"""Nothing can be asked for in silence that would keep a machine busy for good, or take all of its memory."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch

from tests.raising import raises
from ttcnet import bounds
from ttcnet.adapter import TTCAdapterConfig
from ttcnet.lqr import ModulatedLQR, plan
from ttcnet.lqr.kernels import fused_cpu
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM
from ttcnet.nn import Fixed, PoissonLogNormal, TTCLayer, Uniform, mixers, plans
from ttcnet.testing.regimes import draw


@pytest.fixture
def family():
    return draw("trained", tokens=2, heads=2, n=2, m=2)


@pytest.fixture
def layer():
    return TTCLayer(8, heads=2, state_size=3, rank=2, horizon=4)


@pytest.mark.parametrize("steps", [65_537, 10**12, 10**5000], ids=["a little", "far", "very far"])
def test_horizons_beyond_the_bound(family, layer, steps):
    value = str(steps) if steps < 10**30 else "a number of .* bits"
    for ask in (
        lambda: plan(family, steps),
        lambda: family.unroll(steps),
        lambda: layer(torch.zeros(1, 8), steps),
        lambda: layer(torch.zeros(1, 8), steps, return_plan=True),
        lambda: TTCLayer(8, heads=2, horizon=steps),
        lambda: TTCNetConfig.tiny(horizon=steps),
        lambda: TTCAdapterConfig(horizon=steps),
        lambda: Fixed(steps),
    ):
        with raises("too-large", "horizon", value):
            ask()
    for ask in (lambda: PoissonLogNormal(max=steps), lambda: Uniform(1, steps)):
        with raises("too-large", "max", value):
            ask()


def test_the_bound_can_be_raised(family, monkeypatch):
    monkeypatch.setenv(bounds.RAISE, "70000")
    assert plan(family, 65_600).isfinite().all()
    with raises("too-large", "horizon", "70001"):
        plan(family, 70_001)
    monkeypatch.setenv(bounds.RAISE, "far")
    with raises("format", "TTCNET_MAX_HORIZON", "'far'"):
        plan(family, 70_001)
    assert plan(family, 3).isfinite().all()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (dict(heads=10**9), ("too-large", "heads")),
        (dict(state_size=10**6), ("too-large", "state_size")),
        (dict(action_size=2000), ("too-large", "action_size")),
        (dict(rank=10**5000), ("too-large", "rank", "a number of 16610 bits")),
        (dict(heads=4096, state_size=1024, rank=4096), ("too-large", "heads, state_size, action_size and rank")),
    ],
)
def test_layers_beyond_all_measure(options, error):
    with raises(*error):
        TTCLayer(1024, **({"heads": 16} | options))
    if len(options) == 1:
        with raises(*error):
            TTCAdapterConfig(**options)
        with raises("too-large", f"ttc_{error[1]}"):
            TTCNetConfig.tiny(**{f"ttc_{name}": value for name, value in options.items()})


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (dict(num_hidden_layers=10**9), ("too-large", "num_hidden_layers")),
        (dict(hidden_size=2**24), ("too-large", "hidden_size")),
        (dict(vocab_size=10**12), ("too-large", "vocab_size")),
        (dict(intermediate_size=10**12), ("too-large", "intermediate_size")),
        (dict(interleave="4:100000000"), ("too-large", "interleave")),
    ],
)
def test_models_beyond_all_measure(changes, error):
    with raises(*error):
        TTCNetConfig.tiny(**changes)


def test_mixers_beyond_all_measure():
    with raises("too-large", "inner"):
        mixers.build("mlp", 64, heads=1, inner=10**12)
    for kind, option in (("mamba", "kernel"), ("mesanet", "iterations"), ("mesanet", "kernel")):
        with raises("too-large", option):
            mixers.build(kind, 64, heads=1, **{option: 2**20})
    with raises("too-large", "every"):
        TTCAdapterConfig(every="1:100000000")


@pytest.mark.parametrize(("field", "value"), [("horizon", 10**9), ("ttc_heads", 10**9), ("ttc_rank", 10**7)])
def test_a_configuration_from_elsewhere(tmp_path, field, value):
    TTCNetForCausalLM(TTCNetConfig.tiny()).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with raises("too-large", field, str(value)):
        TTCNetForCausalLM.from_pretrained(tmp_path)


def test_plans_need_memory_that_is_free(layer, monkeypatch):
    x = torch.zeros(10, 8)
    monkeypatch.setattr(plans, "free_memory", lambda device: 100_000)
    layer(x, 4, return_plan=True)
    error = ("memory", "return_plan", r"10 tokens, 2 heads and 500 steps, which take \d+ bytes")
    with raises(*error):
        layer(x, 500, return_plan=True)


def test_plans_in_pieces_are_the_same(layer, monkeypatch):
    x = torch.randn(7, 8)
    y, whole = layer(x, 5, return_plan=True)
    monkeypatch.setattr(plans, "PIECE", 2 * 4 * 2 * 5 * (7 * 9 + 2 * 9 + 5 * 9))  # two tokens
    again, pieces = layer(x, 5, return_plan=True)
    assert torch.equal(y, again)
    for name, value in vars(whole).items():
        torch.testing.assert_close(getattr(pieces, name), value)


def test_free_memory_is_that_of_the_machine_or_the_container(tmp_path, monkeypatch):
    machine = plans.free_memory(torch.device("cpu"))
    assert machine is None or 0 < machine < 2**60
    monkeypatch.setattr(plans, "CONTROL_GROUP", tmp_path)
    for name, text in (("max", "5000\n"), ("current", "4000\n"), ("stat", "anon 3500\ninactive_file 300\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert plans.free_memory(torch.device("cpu")) == 1300
    (tmp_path / "memory.max").write_text("max\n")
    assert plans.free_memory(torch.device("cpu")) != 1300
    assert plans.free_memory(torch.device("meta")) is None


@pytest.mark.parametrize("threads", [1, 3])
def test_work_in_pieces_is_the_same_to_the_bit(monkeypatch, request, threads):
    drawn = draw("trained", tokens=200, heads=3, n=3, m=2)
    family = ModulatedLQR(**{name: value.float().requires_grad_() for name, value in vars(drawn).items()})
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(threads)

    def everything():
        u = plan(family, 9, "fused")
        return [u, *torch.autograd.grad(u.square().sum(), list(vars(family).values()))]

    whole = everything()
    begun = []
    in_pieces = fused_cpu.in_pieces
    monkeypatch.setattr(fused_cpu, "in_pieces", lambda *given: (begun.append(given[1]), in_pieces(*given)))
    monkeypatch.setattr(fused_cpu, "PIECE", 9 * 118 * 128)
    for one, other in zip(whole, everything(), strict=True):
        assert torch.equal(one, other)
    assert [len(pieces) for pieces in begun] == [5, 5], "600 problems, 128 at once, forwards and backwards"


def test_errors_in_a_piece_are_raised():
    def compute(first, last):
        raise ZeroDivisionError(first)

    with pytest.raises(ZeroDivisionError):
        fused_cpu.in_pieces(compute, [(0, 1), (1, 2)], 2)


WAIT = """
import signal, sys, torch
from ttcnet.nn import TTCLayer
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
torch.set_num_threads(1)
backend, context, tokens = sys.argv[1:]
layer = TTCLayer(64, heads=16, backend=backend, context=context)
layer(torch.randn(2, 64), 2).sum().backward()  # compiled, if it has to be
print("ready", flush=True)
with torch.no_grad():
    layer(torch.randn(int(tokens), 64), 65_536)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT to send to another process")
@pytest.mark.parametrize(
    ("backend", "context", "tokens"), [("fused", "token", 512), ("reference", "token", 512), ("auto", "system", 8192)]
)
def test_an_interrupt_is_answered_within_a_second(backend, context, tokens):
    call = [sys.executable, "-c", WAIT, backend, context, str(tokens)]
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        try:
            assert run.stdout.readline() == b"ready\n"
            time.sleep(2)
            start = time.perf_counter()
            run.send_signal(signal.SIGINT)
            _, error = run.communicate(timeout=60)
        finally:
            run.kill()
    assert b"KeyboardInterrupt" in error
    assert run.returncode != 0
    assert time.perf_counter() - start < 5, "with the end of Python itself"
