"""Mamba's fused scan: the kernels, the operators, and Mamba with and without them."""

import json
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.raising import raises
from ttcnet.nn.mixers import Mamba, build, selective

from .scan_cases import CASES, NAMES, check_operators, differentiate, draw, errors, fused_scan

gpu = pytest.mark.gpu
ROOT = Path(__file__).parents[3]
SUDOKU = (64, 81, 2, 256, 16)
try:
    TRITON = tuple(int(part) for part in version("triton").split(".")[:2])
except PackageNotFoundError:
    TRITON = (0, 0)


@pytest.mark.skipif(TRITON < (3, 7), reason="needs triton 3.7 or newer: older interpreters do not know numpy 2.4")
def test_the_kernels_in_the_interpreter():
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-m", "tests.nn.mixers.scan_cases"]
    result = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found.keys() == CASES.keys()
    for name, case in found.items():
        assert set(case) >= {"y", *NAMES[:-1]}, name
        assert all(error <= 1e-5 for error in case.values()), (name, case)


class Sizes(TorchDispatchMode):
    """The operators called, and the most numbers that one of them gives back."""

    def __init__(self):
        super().__init__()
        self.called, self.most = set(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.called.add(function.overloadpacket)
        for x in torch.utils._pytree.tree_leaves(out):
            self.most = max(self.most, x.numel() if isinstance(x, torch.Tensor) else 0)
        return out


@pytest.mark.parametrize("causal", [True, False])
def test_mamba_with_the_kernels_writes_few_states(causal, monkeypatch):
    """A step of training of which nothing is computed but the shapes."""
    monkeypatch.setattr(selective, "_has_kernel", lambda tensors: True)
    monkeypatch.setattr(Mamba, "reset_parameters", lambda self: None)  # to draw them takes numbers
    with FakeTensorMode(), Sizes() as sizes:
        mixer = build("mamba", 32, heads=2, causal=causal)
        x, state = torch.randn(4, 81, 32, requires_grad=True), mixer.new_state(4) if causal else None
        y = mixer(x, state=state)
        y.sum().backward()
        assert y.shape == x.shape
        assert all(parameter.grad.shape == parameter.shape for parameter in mixer.parameters())
        assert state is None or state.memory.shape == (4, 1, 64, 16)
    assert sizes.called >= {torch.ops.ttcnet.selective_scan, torch.ops.ttcnet.selective_scan_backward}
    assert sizes.most <= 4 * 81 * mixer.directions * 64 * 16 / 7


def test_second_derivatives_are_refused(monkeypatch):
    monkeypatch.setattr(selective, "_has_kernel", lambda tensors: True)
    with FakeTensorMode():
        tensors = [torch.empty_like(x, requires_grad=True) for x in draw((2, 9, 1, 4, 3), True)]
        y, _ = selective.selective_scan(*tensors)
        with raises("no-derivative", "selective_scan in float32 on a CUDA device", "create_graph=True"):
            torch.autograd.grad(y.sum(), tensors, create_graph=True)


@gpu
@pytest.mark.parametrize("name", CASES)
def test_the_kernels(name):
    found = errors(*CASES[name], device="cuda")
    assert all(error <= 1e-5 for error in found.values()), found


@gpu
@pytest.mark.parametrize("n", [1, 2, 5, 8, 16, 17, 32, 64])
@pytest.mark.parametrize("length", [1, 7, 63, 81])
@pytest.mark.parametrize("with_first", [False, True])
def test_odd_sizes(length, n, with_first):
    found = errors((3, length, 2, 60, n), with_first, device="cuda")
    assert all(error <= 1e-5 for error in found.values()), found


@gpu
@pytest.mark.parametrize("shape", [SUDOKU, (2, 2048, 1, 1536, 16)])
def test_whole_layers(shape):
    found = errors(shape, False, device="cuda")
    assert all(error <= 1e-5 for error in found.values()), found


@gpu
def test_the_operators_pass_opcheck():
    check_operators("cuda")


@gpu
def test_the_same_bits_every_time():
    tensors = draw(SUDOKU, True, device="cuda")
    first, second = (differentiate(fused_scan, tensors) for _ in range(2))
    for name, x in first.items():
        assert torch.equal(x, second[name]), name


@gpu
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_whole(dynamic):
    torch._dynamo.reset()

    def scaled(*tensors, keep):
        y, last = selective.selective_scan(*(x * 2 for x in tensors), keep=keep)
        return y + 1, last

    compiled = torch.compile(scaled, fullgraph=True, dynamic=dynamic)
    for length in (20, 33):
        tensors = draw((2, length, 2, 60, 16), True, device="cuda")
        found, wanted = differentiate(compiled, tensors), differentiate(scaled, tensors)
        for name, x in wanted.items():
            assert torch.allclose(found[name], x, rtol=1e-5, atol=1e-5 * x.abs().max().item()), name


@gpu
def test_both_passes_in_a_cuda_graph():
    inputs, others = (draw((2, 81, 2, 60, 16), True, seed, "cuda") for seed in (0, 1))
    weight = torch.randn(2, 81, 2, 60, device="cuda")

    def run(tensors):
        y, last = selective.selective_scan(*tensors, keep=True)
        return [y, last, *torch.autograd.grad([y, last], tensors, [weight, torch.ones_like(last)])]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(inputs)
    with torch.no_grad():
        for x, other in zip(inputs, others, strict=True):
            x.copy_(other)
    graph.replay()
    for one, two in zip(captured, run(others), strict=True):
        assert torch.equal(one, two)


@gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_the_host_never_waits():
    tensors = draw((2, 81, 2, 60, 16), False, device="cuda")
    weight = torch.randn(2, 81, 2, 60, device="cuda")
    for mode in ("default", "error"):
        try:
            torch.cuda.set_sync_debug_mode(mode)
            torch.autograd.grad(selective.selective_scan(*tensors)[0], tensors, weight)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@gpu
@pytest.mark.parametrize("kind", ["mamba", "samba"])
@pytest.mark.parametrize("causal", [True, False])
def test_mixers_fused_and_plain(kind, causal, monkeypatch):
    torch.manual_seed(0)
    mixer = build(kind, 48, heads=3, causal=causal, inner=60).cuda()
    x, mask = torch.randn(3, 81, 48, device="cuda", requires_grad=True), torch.ones(3, 81, dtype=torch.bool).cuda()
    mask[1, 50:] = False
    mask[2, :7] = False
    results = []
    for there in (True, False):
        monkeypatch.setattr(selective, "_TRITON", there)
        y = mixer(x, mask=mask)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])])
    for one, two in zip(*results, strict=True):
        assert (one - two).abs().max() <= 2e-5 * two.abs().max()


@gpu
@pytest.mark.parametrize("split", [[81], [40, 1, 40], [1] * 81], ids=["whole", "parts", "tokens"])
def test_generation_equals_one_pass(split):
    torch.manual_seed(0)
    mixer, x = build("mamba", 48, heads=3, inner=60).cuda(), torch.randn(3, 81, 48, device="cuda")
    state = mixer.new_state(3)
    with torch.no_grad():
        parts, whole = torch.cat([mixer(part, state=state) for part in x.split(split, 1)], 1), mixer(x)
    assert (parts - whole).abs().max() <= 1e-5 * whole.abs().max()
