"""Mixers against published implementations: transformers (whole layers, weights copied) and flash-linear-attention.

Of the latter only the plain PyTorch references are read, file by file: the package itself needs triton to import.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from ttcnet.nn.mixers import KINDS, build
from ttcnet.nn.mixers.mesa import mesa_scan
from ttcnet.nn.mixers.scans import decay_scan, delta_scan

WIDTH, HEADS, LENGTH = 32, 4, 75


def perturbed(mixer):
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return mixer


def tokens():
    torch.manual_seed(1)
    return torch.randn(2, LENGTH, WIDTH)


def compare(mixer, other, tolerance=2e-5, **inputs):
    """Outputs, and gradients of the input, which pass through everything. Their float32 is the limit."""
    x = tokens()
    one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, wanted = mixer(one), other(two, **inputs)
    assert (found - wanted).abs().max() < tolerance * wanted.abs().max()
    weight = torch.randn_like(wanted)
    (found * weight).sum().backward()
    (wanted * weight).sum().backward()
    assert (one.grad - two.grad).abs().max() < tolerance * two.grad.abs().max()


def copied(layer, weights):
    """`layer` of transformers with these weights, every one of them given and of the right shape."""
    missing, extra = layer.load_state_dict(weights, strict=False)
    assert not missing
    assert not extra
    return layer


def test_mamba_equals_transformers():
    transformers = pytest.importorskip("transformers", reason="needs the extra models")
    from transformers.models.mamba.modeling_mamba import MambaMixer

    mixer = perturbed(build("mamba", WIDTH, heads=HEADS))
    config = transformers.MambaConfig(hidden_size=WIDTH, state_size=16, num_hidden_layers=1, expand=2)
    weights = {
        "in_proj.weight": mixer.project.weight,
        "conv1d.weight": mixer.convolution.weight[:, None],
        "conv1d.bias": mixer.convolution.bias,
        "x_proj.weight": mixer.select[0].T,
        "dt_proj.weight": mixer.step[0].T,
        "dt_proj.bias": mixer.step_bias[0],
        "A_log": mixer.A_log[0],
        "D": mixer.D[0],
        "out_proj.weight": mixer.out.weight,
    }
    compare(mixer, copied(MambaMixer(config, layer_idx=0), weights))


def test_mamba2_equals_transformers():
    transformers = pytest.importorskip("transformers", reason="needs the extra models")
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    mixer = perturbed(build("mamba2", WIDTH, heads=HEADS, state_size=24))
    config = transformers.Mamba2Config(
        hidden_size=WIDTH,
        state_size=24,
        num_hidden_layers=1,
        expand=2,
        num_heads=HEADS,
        head_dim=2 * WIDTH // HEADS,
        n_groups=1,
        chunk_size=32,
        layer_norm_epsilon=1e-5,
    )
    weights = {
        "in_proj.weight": mixer.project.weight,
        "conv1d.weight": mixer.convolution.weight[:, None],
        "conv1d.bias": mixer.convolution.bias,
        "dt_bias": mixer.step_bias,
        "A_log": mixer.A_log,
        "D": mixer.D,
        "norm.weight": mixer.norm,
        "out_proj.weight": mixer.out.weight,
    }
    compare(mixer, copied(Mamba2Mixer(config, layer_idx=0), weights))


def test_gated_delta_net_equals_qwen3_next():
    transformers = pytest.importorskip("transformers", reason="needs the extra models")
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    mixer = perturbed(build("gdn", WIDTH, heads=HEADS, inner=48))
    config = transformers.Qwen3NextConfig(
        hidden_size=WIDTH,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_num_value_heads=HEADS,
        linear_num_key_heads=HEADS,
        linear_key_head_dim=6,
        linear_value_head_dim=12,
        linear_conv_kernel_dim=4,
        rms_norm_eps=1e-5,
    )
    qkv, gate, beta, alpha = mixer.project.weight.split(mixer.sizes)
    rows = [part.unflatten(0, (HEADS, -1)) for part in (*qkv.split(mixer.parts), gate)]  # theirs go head by head
    weights = {
        "in_proj_qkvz.weight": torch.cat(rows, 1).flatten(0, 1),
        "in_proj_ba.weight": torch.stack([beta, alpha], 1).flatten(0, 1),
        "conv1d.weight": mixer.convolution.weight[:, None],
        "dt_bias": mixer.step_bias,
        "A_log": mixer.A_log,
        "norm.weight": mixer.norm,
        "out_proj.weight": mixer.out.weight,
    }
    compare(mixer, copied(Qwen3NextGatedDeltaNet(config, layer_idx=0), weights))


def test_the_gated_delta_rule_equals_transformers():
    pytest.importorskip("transformers", reason="needs the extra models")
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen

    q, k, v, log_decay, beta, state = scan_inputs()
    found, last = delta_scan(q * q.shape[-1] ** -0.5, k, v, log_decay, beta, state, keep=True)
    for rule in (qwen.torch_chunk_gated_delta_rule, qwen.torch_recurrent_gated_delta_rule):
        wanted, final = rule(q, k, v, log_decay, beta, initial_state=state, output_final_state=True)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(last, final, rtol=1e-4, atol=1e-5)


def test_attention_equals_qwen3():
    """Rotary positions, query-key norm and causal order, all at once."""
    transformers = pytest.importorskip("transformers", reason="needs the extra models")
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RotaryEmbedding

    mixer = perturbed(build("attention", WIDTH, heads=HEADS, qk_norm=True))
    config = transformers.Qwen3Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        head_dim=WIDTH // HEADS,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        attn_implementation="eager",
    )
    q, k, v = mixer.project.weight.chunk(3)
    weights = {
        "q_proj.weight": q,
        "k_proj.weight": k,
        "v_proj.weight": v,
        "o_proj.weight": mixer.out.weight,
        "q_norm.weight": mixer.query_norm,
        "k_norm.weight": mixer.key_norm,
    }
    layer = copied(Qwen3Attention(config, layer_idx=0), weights)
    turn = Qwen3RotaryEmbedding(config)(tokens(), torch.arange(LENGTH)[None])
    order = torch.full((1, 1, LENGTH, LENGTH), -torch.inf).triu(1)
    compare(mixer, lambda x: layer(x, position_embeddings=turn, attention_mask=order)[0])


def test_mlp_equals_llama():
    transformers = pytest.importorskip("transformers", reason="needs the extra models")
    from transformers.models.llama.modeling_llama import LlamaMLP

    mixer = perturbed(build("mlp", WIDTH, heads=HEADS))
    layer = LlamaMLP(transformers.LlamaConfig(hidden_size=WIDTH, intermediate_size=mixer.inner))
    gate, up = mixer.project.weight.chunk(2)
    weights = {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": mixer.out.weight}
    compare(mixer, copied(layer, weights))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_transformers_has_loaded_are_left_alone(kind):
    """It marks them, and then lets the model initialise the missing weights."""
    pytest.importorskip("transformers", reason="needs the extra models")
    from transformers.initialization import guard_torch_init_functions

    mixer = perturbed(build(kind, WIDTH, heads=HEADS))
    before = {name: parameter.detach().clone() for name, parameter in mixer.named_parameters()}
    missing = next(iter(before))
    for name, parameter in mixer.named_parameters():
        parameter._is_hf_initialized = name != missing
    with guard_torch_init_functions():
        mixer.reset_parameters()
    changed = [name for name, parameter in mixer.named_parameters() if not torch.equal(parameter, before[name])]
    assert changed == [missing]


def scan_inputs():
    torch.manual_seed(2)
    q, k = (F.normalize(torch.randn(2, LENGTH, HEADS, 8), dim=-1) for _ in range(2))
    log_decay, beta = F.logsigmoid(2 + torch.randn(2, LENGTH, HEADS)), torch.rand(2, LENGTH, HEADS)
    return q, k, torch.randn(2, LENGTH, HEADS, 8), log_decay, beta, torch.randn(2, HEADS, 8, 8)


def naive(name):
    """fla/ops/<name>/naive.py, without importing fla."""
    package = importlib.util.find_spec("fla")
    if package is None or importlib.util.find_spec("einops") is None:
        pytest.skip("needs the packages fla-core and einops")
    path = Path(package.submodule_search_locations[0]) / "ops" / name / "naive.py"
    spec = importlib.util.spec_from_file_location(f"fla_naive_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_gated_delta_rule_equals_fla():
    q, k, v, log_decay, beta, state = scan_inputs()
    found, last = delta_scan(q * q.shape[-1] ** -0.5, k, v, log_decay, beta, state, keep=True)
    rules = naive("gated_delta_rule")
    for rule in (rules.naive_recurrent_gated_delta_rule, rules.naive_chunk_gated_delta_rule):
        wanted, final = rule(q, k, v, beta=beta, g=log_decay, initial_state=state, output_final_state=True)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(last, final, rtol=1e-4, atol=1e-5)


def test_retention_equals_fla():
    q, k, v, *_ = scan_inputs()
    rate = torch.log1p(-(2.0 ** -(5.0 + torch.arange(HEADS)))).expand(2, LENGTH, HEADS)
    found, _ = decay_scan(q * q.shape[-1] ** -0.5, k, v.unsqueeze(3), rate.unsqueeze(3), chunk=16)
    wanted = naive("retention").naive_retention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    torch.testing.assert_close(found.squeeze(3), wanted, rtol=1e-4, atol=1e-5)


def test_mesa_equals_fla():
    q, k, v, log_decay, beta, _ = scan_inputs()
    ridge = 0.25 + torch.rand(HEADS, 8)
    found, _ = mesa_scan(q, k, v, log_decay, beta, ridge, chunk=16)
    wanted, *_ = naive("mesa_net").naive_mesa_net_exact(q, k, v, log_decay, ridge, beta)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
