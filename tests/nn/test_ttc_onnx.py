"""Layers and models in ONNX: a graph of elementary operations, the horizon among its inputs."""

import dataclasses

import pytest
import torch
from torch.export import Dim

from tests.raising import raises
from ttcnet.lqr import ops, plan, stationary_ops
from ttcnet.lqr.modulated import Family
from ttcnet.lqr.traceable import first_actions
from ttcnet.nn import TTCLayer
from ttcnet.testing.errors import cast
from ttcnet.testing.regimes import draw


@pytest.fixture(params=["token", "system"])
def layer(request):
    torch.manual_seed(0)
    return TTCLayer(12, heads=2, state_size=3, action_size=2, rank=2, horizon=4, context=request.param).eval()


@pytest.fixture
def x():
    return torch.randn(5, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("cheap", [1, 1e4])
@pytest.mark.parametrize(("n", "m", "per_head"), [(5, 3, False), (3, 5, True)])
def test_elementary_operations_plan_the_same(n, m, per_head, cheap):
    family = draw("trained", tokens=3, heads=2, n=n, m=m, per_head=per_head)
    family = cast(dataclasses.replace(family, r_inv=cheap * family.r_inv), torch.float32)
    exact = cast(family, torch.float64)
    for horizon in (1, 2, 17):
        truth = plan(exact, horizon)
        for fields, bound in ((exact, 1e-11), (family, 2e-5)):
            found = first_actions(Family(*vars(fields).values()), horizon)
            assert ((found - truth).norm(dim=-1) / truth.norm(dim=-1)).max() < bound, horizon


def test_onnx_files_have_no_operator_of_ours(layer, x, monkeypatch):
    for module in (ops, stationary_ops):
        monkeypatch.setattr(module, "is_in_onnx_export", lambda: True)
    program = torch.export.export(layer, (x, 6), dynamic_shapes=({0: Dim("tokens")}, Dim.DYNAMIC))
    assert "ttcnet" not in str(program.graph)
    for horizon in (1, 6, 30):
        assert torch.allclose(program.module()(x[:3], horizon), layer(x[:3], horizon), atol=1e-5), horizon


def run(path, *inputs):
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")
    session = onnxruntime.InferenceSession(path)
    names = [given.name for given in session.get_inputs()]
    found = session.run(None, {name: torch.as_tensor(value).numpy() for name, value in zip(names, inputs, strict=True)})
    return torch.from_numpy(found[0])


def exported(module, inputs, shapes, path):
    pytest.importorskip("onnxscript", reason="pip install onnx onnxscript")
    torch.onnx.export(module, inputs, path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    return str(path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's exporter
def test_a_layer_in_onnx(layer, x, tmp_path):
    path = exported(layer, (x, 6), ({0: Dim("tokens")}, Dim.DYNAMIC), tmp_path / "layer.onnx")
    for tokens, horizon in ((5, 6), (1, 1), (9, 2), (3, 40), (2, 300)):
        y = torch.randn(tokens, 12)
        assert torch.allclose(run(path, y, horizon), layer(y, horizon), atol=1e-5), (tokens, horizon)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's exporter
def test_a_model_in_onnx(tmp_path):
    from ttcnet.models import TTCNetConfig, TTCNetForCausalLM

    torch.manual_seed(0)
    model = TTCNetForCausalLM(TTCNetConfig.tiny(use_cache=False, ttc_state_size=4, ttc_rank=4)).eval()
    tokens = torch.randint(0, 256, (2, 7))
    path = exported(model, (tokens,), ({0: Dim("batch"), 1: Dim("length")},), tmp_path / "model.onnx")
    more = torch.randint(0, 256, (3, 11))
    assert torch.allclose(run(path, more), model(more).logits, atol=1e-5)


@pytest.mark.filterwarnings("ignore")  # of torch's exporter
def test_the_old_exporter_is_refused_with_a_sentence(layer, x, tmp_path):
    with raises("not-traceable", "plan"):
        torch.onnx.export(torch.nn.Sequential(layer), (x,), tmp_path / "layer.onnx", dynamo=False)
