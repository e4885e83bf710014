"""Calls of a TTC layer with few tokens, recorded on a GPU. Their results must not depend on that."""

import copy
import pickle
import threading

import pytest
import torch

from ttcnet.nn import TTCLayer
from ttcnet.nn.context import CONTEXTS
from ttcnet.nn.replay import FEW, OFTEN, Replays, as_built, may_replay

WIDTH = 48


@pytest.fixture(params=CONTEXTS)
def layer(request):
    torch.manual_seed(0)
    return TTCLayer(WIDTH, heads=3, horizon=6, context=request.param).eval()


def recorded(layer):
    return len(layer._replays._recorded)


def test_a_copy_starts_empty():
    replays = Replays()
    replays._seen["kind"] = 2
    assert copy.deepcopy(replays)._seen == {}
    assert pickle.loads(pickle.dumps(replays))._seen == {}


def test_not_on_the_cpu(layer):
    with torch.no_grad():
        assert not may_replay(torch.zeros(1, WIDTH), layer)


def test_the_addresses_are_those_of_all_parameters(layer):
    before = layer._addresses()
    assert sorted(before) == sorted(weight.data_ptr() for weight in layer.parameters())
    paths = ["norm", "project", "context", "action_norm", "out"]
    for path in paths + ["context.shared"] * (layer.context_kind == "head"):
        part = layer.get_submodule(path)
        name = next(iter(part._parameters))
        setattr(part, name, torch.nn.Parameter(getattr(part, name).detach().clone()))
        after = layer._addresses()
        assert len(after) == len(before)
        assert after != before, path
        before = after
        hook = part.register_forward_hook(lambda *_: None)
        assert not layer._addresses(), path
        hook.remove()


def test_as_built(layer):
    assert layer._addresses()
    handle = layer.out.register_forward_hook(lambda *_: None)
    assert not layer._addresses()
    handle.remove()
    assert as_built(layer.out, torch.nn.Linear)
    layer.project = torch.nn.Sequential(layer.project)
    assert not layer._addresses()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_to_the_bit(layer, dtype, mode):
    layer = layer.cuda().to(dtype)
    for tokens in (1, 3, FEW):
        for call in range(2 * OFTEN):
            x = torch.randn(tokens, WIDTH, device="cuda", dtype=dtype)
            with mode():
                assert torch.equal(layer(x), layer._step(x, 6)), (tokens, call)
                assert torch.equal(layer(x, horizon=9), layer._step(x, 9)), (tokens, call)
    assert recorded(layer) == 6
    with mode():
        layer(torch.randn(FEW + 1, WIDTH, device="cuda", dtype=dtype))
    assert recorded(layer) == 6


@pytest.mark.gpu
def test_changes_between_calls(layer):
    layer = layer.cuda()
    x = torch.randn(2, WIDTH, device="cuda")

    def same():
        with torch.no_grad():
            for _ in range(OFTEN + 1):
                assert torch.equal(layer(x), layer._step(x, 6))

    same()
    assert recorded(layer) == 1
    with torch.inference_mode():  # and back
        assert torch.equal(layer(x), layer._step(x, 6))
    with torch.no_grad():
        first = layer(x)
        kept = first.clone()
        layer(2 * x)
        assert torch.equal(first, kept)  # returned results stay
        layer.project.weight.mul_(1.5)  # in place, as optimizers do
    same()
    layer.project.weight = torch.nn.Parameter(-layer.project.weight.detach())  # elsewhere
    same()
    seen = []
    layer.out.register_forward_hook(lambda *_: seen.append(1))
    same()
    assert len(seen) == 2 * (OFTEN + 1)
    layer.double()
    x = x.double()
    same()


@pytest.mark.gpu
def test_streams_and_threads(layer):
    layer = layer.cuda()
    faults = []

    def work(seed, stream):
        generator = torch.Generator("cuda").manual_seed(seed)
        with torch.no_grad(), torch.cuda.stream(stream):
            for _ in range(50):
                x = torch.randn(1, WIDTH, device="cuda", generator=generator)
                if not torch.equal(layer(x), layer._step(x, 6)):
                    faults.append(seed)

    streams = [torch.cuda.default_stream(), torch.cuda.default_stream(), torch.cuda.Stream()]
    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.gpu
def test_gradients_and_training_are_not_recorded(layer):
    layer = layer.cuda()
    x = torch.randn(1, WIDTH, device="cuda")
    for _ in range(2 * OFTEN):
        layer(x)
    with torch.no_grad():
        layer.train()
        for _ in range(2 * OFTEN):
            layer(x)
    assert recorded(layer) == 0


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")  # of torch's compiler
def test_beside_cuda_graphs_of_torch_compile():
    """CUDA graphs of torch.compile make torch free the workspaces of cuBLAS, while a recorded call uses one."""
    torch._dynamo.reset()
    layer = TTCLayer(4096, heads=16, horizon=6).cuda().to(torch.bfloat16).eval()
    other = torch.nn.Linear(4096, 4096).cuda().to(torch.bfloat16)
    compiled = torch.compile(other, mode="reduce-overhead")
    x = torch.randn(FEW, 4096, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        for _ in range(2 * OFTEN):
            assert torch.equal(layer(x), layer._step(x, 6))
        for _ in range(5):
            compiled(x)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        room = [torch.zeros(2**20, device="cuda") for _ in range(64)]  # where it may have been
        for _ in range(OFTEN):
            assert torch.equal(layer(x), layer._step(x, 6))
        torch.cuda.synchronize()
        assert not any(block.any() for block in room)
