"""Tensor and context parallelism by two and four processes: logits and gradients are those of one, in float64."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import ttcnet.adapter as adapter
from tests.train import jobs
from tests.train.conftest import ADAPTER
from tests.train.tiny import WORDS, model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of transformers
ROUNDING = 1e-12
COLUMNS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
ROWS = ("self_attn.o_proj", "mlp.down_proj")


def planner():
    """A model whose inserted layers have something to say."""
    net = adapter.insert(model(num_key_value_heads=4), adapter.TTCAdapterConfig(**ADAPTER, zero_init=False))
    return net.double().eval()


def tokens():
    return torch.randint(0, len(WORDS), (2, 16), generator=torch.Generator().manual_seed(1))


def worth(logits, places=slice(None)):
    """A number that depends on all logits."""
    weights = torch.randn(2, 16, len(WORDS), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return (logits * weights[:, places]).sum()


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def gradients(net):
    return {name: whole(parameter.grad) for name, parameter in net.named_parameters()}


def alone():
    """Logits and gradients of one process."""
    net = planner()
    logits = net(tokens()).logits
    worth(logits).backward()
    return logits.detach(), gradients(net)


def near(found, expected):
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=ROUNDING * expected.abs().max().item())


def same(logits, net):
    expected, slopes = alone()
    near(logits, expected)
    found = gradients(net)
    assert found.keys() == slopes.keys()
    for name, x in slopes.items():
        near(found[name], x)
    inserted = [x for name, x in slopes.items() if ".inserted." in name]
    assert inserted
    assert all(x.abs().max() > 0 for x in inserted)


def joined():
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def by_parallelize_module():
    _, count = joined()
    net = planner()
    mesh = init_device_mesh("cpu", (count,))
    plan = dict.fromkeys(COLUMNS, ColwiseParallel()) | dict.fromkeys(ROWS, RowwiseParallel())
    for layer in net.model.layers:
        parallelize_module(layer, mesh, plan)
    logits = net(tokens()).logits
    worth(logits).backward()
    assert isinstance(net.model.layers[0].mlp.up_proj.weight, DTensor)
    same(whole(logits).detach(), net)


def by_tp_plan(folder):
    joined()
    net = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto", dtype=torch.float64)
    logits = net(tokens()).logits
    worth(whole(logits)).backward()
    same(whole(logits).detach(), net)


class Gather(torch.autograd.Function):
    """The parts of all processes, one after the other; the gradients of all processes for the own part."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim, parts = (
            dim,
            [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())],
        )
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous()
        dist.all_reduce(g)
        return g.chunk(dist.get_world_size(), ctx.dim)[dist.get_rank()], None


def gathered(module, query, key, value, attention_mask, **options):
    """Attention of this process's part of a sequence to all of it."""
    key, value = Gather.apply(key, 2), Gather.apply(value, 2)
    first, length = dist.get_rank() * query.shape[2], key.shape[2]
    mask = torch.arange(length) <= torch.arange(first, first + query.shape[2]).unsqueeze(1)
    return sdpa_attention_forward(module, query, key, value, mask[None, None], **options | dict(is_causal=False))


def by_parts_of_the_sequence():
    rank, count = joined()
    net, ids = planner(), tokens()
    AttentionInterface.register("gathered", gathered)
    AttentionMaskInterface.register("gathered", lambda *_, **__: None)
    net.set_attn_implementation("gathered")
    size = ids.shape[1] // count
    own = slice(rank * size, (rank + 1) * size)
    logits = net(ids[:, own], position_ids=torch.arange(ids.shape[1])[None, own], use_cache=False).logits
    worth(logits, own).backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    same(Gather.apply(logits.detach(), 1), net)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("how", [by_parallelize_module, by_parts_of_the_sequence])
def test_several_processes_are_one(how, count, tmp_path):
    assert jobs.job(count, how, seconds=240, said=tmp_path / "said") == [0] * count, (tmp_path / "said").read_text()


@pytest.mark.parametrize("count", [2, 4])
def test_tp_plan_of_transformers(count, tmp_path):
    planner().save_pretrained(tmp_path / "model")
    codes = jobs.job(count, by_tp_plan, str(tmp_path / "model"), seconds=240, said=tmp_path / "said")
    assert codes == [0] * count, (tmp_path / "said").read_text()
