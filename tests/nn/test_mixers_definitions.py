"""Every recurrent mixer against its definition, token by token in float64, with the weights of the mixer."""

import math

import pytest
import torch
import torch.nn.functional as F

from ttcnet.nn.mixers import KINDS, build
from ttcnet.nn.mixers.mesa import mesa_scan
from ttcnet.nn.mixers.scans import decay_scan, delta_scan, linear_scan


def convolved(weight, bias, u):
    """SiLU of the causal convolution of each channel of u (length, channels)."""
    length, kernel = u.shape[0], weight.shape[1]
    y = torch.zeros_like(u)
    for t in range(length):
        for j in range(kernel):
            if t - j >= 0:
                y[t] = y[t] + weight[:, kernel - 1 - j] * u[t - j]
    return F.silu(y if bias is None else y + bias)


def normed(y, weight):
    return y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def part(parameter, way, ways):
    """The share of one direction in a parameter that holds all of them along its first dimension."""
    return parameter.unflatten(0, (ways, -1))[way]


def both(mixer, one, *inputs):
    """one(way, *inputs) for the first direction, and for the second with time reversed, added up."""
    y = one(0, *inputs)
    return y if mixer.causal else y + one(1, *(x.flip(0) for x in inputs)).flip(0)


def mamba(mixer, x):
    ways, n = mixer.directions, mixer.state_size
    u, gate = mixer.project(x).chunk(2, -1)

    def one(way, u):
        conv = mixer.convolution
        u = convolved(part(conv.weight, way, ways), part(conv.bias, way, ways), u)
        low, B, C = (u @ mixer.select[way]).split([mixer.rank, n, n], -1)
        step = F.softplus(low @ mixer.step[way] + mixer.step_bias[way])
        h, y = torch.zeros(mixer.inner, n, dtype=x.dtype), []
        for t in range(len(u)):
            h = torch.exp(-step[t][:, None] * mixer.A_log[way].exp()) * h + torch.outer(step[t] * u[t], B[t])
            y.append(h @ C[t] + mixer.D[way] * u[t])
        return torch.stack(y)

    return mixer.out(both(mixer, one, u) * F.silu(gate))


def mamba2(mixer, x):
    ways, n, heads = mixer.directions, mixer.state_size, mixer.heads
    gate, u, step = mixer.project(x).split(mixer.sizes, -1)

    def one(way, u, step):
        conv = mixer.convolution
        u = convolved(part(conv.weight, way, ways), part(conv.bias, way, ways), u)
        u, B, C = u.split([mixer.inner, n, n], -1)
        u = u.unflatten(-1, (heads, -1))
        step = F.softplus(step + part(mixer.step_bias, way, ways))
        A, D = -part(mixer.A_log, way, ways).exp(), part(mixer.D, way, ways)
        S, y = torch.zeros(heads, n, mixer.head_size, dtype=x.dtype), []
        for t in range(len(u)):
            S = torch.exp(step[t] * A)[:, None, None] * S + step[t][:, None, None] * B[t][:, None] * u[t][:, None]
            y.append(torch.einsum("hnp,n->hp", S, C[t]) + D[:, None] * u[t])
        return torch.stack(y).flatten(1)

    return mixer.out(normed(both(mixer, one, u, step) * F.silu(gate), mixer.norm))


def gdn(mixer, x):
    ways, heads = mixer.directions, mixer.heads
    u, gate, beta, step = mixer.project(x).split(mixer.sizes, -1)

    def one(way, u, beta, step):
        u = convolved(part(mixer.convolution.weight, way, ways), None, u)
        q, k, v = (z.unflatten(-1, (heads, -1)) for z in u.split(mixer.parts, -1))
        q, k, beta = unit(q) / math.sqrt(mixer.key_size), unit(k), beta.sigmoid()
        alpha = torch.exp(-part(mixer.A_log, way, ways).exp() * F.softplus(step + part(mixer.step_bias, way, ways)))
        S, y = torch.zeros(heads, mixer.key_size, mixer.head_size, dtype=x.dtype), []
        for t in range(len(u)):
            kk = k[t][:, :, None] * k[t][:, None, :]
            forget = torch.eye(mixer.key_size, dtype=x.dtype) - beta[t][:, None, None] * kk
            S = alpha[t][:, None, None] * forget @ S + beta[t][:, None, None] * k[t][:, :, None] * v[t][:, None, :]
            y.append(torch.einsum("hnp,hn->hp", S, q[t]))
        return torch.stack(y).flatten(1)

    y = both(mixer, one, u, beta, step).unflatten(-1, (heads, -1))
    return mixer.out(normed(y, mixer.norm).flatten(1) * F.silu(gate))


def retnet(mixer, x):
    """Retention as pairs of tokens, with complex numbers for the rotation."""
    heads, n = mixer.heads, mixer.key_size
    u, gate = mixer.project(x).split(mixer.sizes, -1)
    angle = 10_000.0 ** (-torch.arange(n // 2, dtype=x.dtype) / (n // 2))

    def one(way, u):
        q, k, v = (z.unflatten(-1, (heads, -1)) for z in u.split(mixer.parts, -1))
        q, k = (torch.complex(z[..., : n // 2], z[..., n // 2 :]) for z in (q, k))
        y = torch.zeros_like(v)
        for t in range(len(u)):
            for s in range(t + 1):
                turn = torch.polar(torch.ones_like(angle), (t - s) * angle)
                for h in range(heads):
                    score = (q[t, h] * k[s, h].conj() * turn).real.sum() / math.sqrt(n)
                    y[t, h] = y[t, h] + (1 - 2.0 ** (-5 - h)) ** (t - s) * score * v[s, h]
        return y.flatten(1)

    y = both(mixer, one, u).unflatten(-1, (heads, -1))
    return mixer.out(normed(y, mixer.norm).flatten(1) * F.silu(gate))


def mesanet(mixer, x):
    ways, heads, size = mixer.directions, mixer.heads, mixer.head_size
    u, v, beta, decay = mixer.project(x).split(mixer.sizes, -1)

    def one(way, u, v, beta, decay):
        u = convolved(part(mixer.convolution.weight, way, ways), None, u)
        q, k = (unit(z.unflatten(-1, (heads, -1))) for z in u.chunk(2, -1))
        v = v.unflatten(-1, (heads, -1))
        beta = torch.sigmoid(beta + part(mixer.beta_bias, way, ways))
        gamma = torch.sigmoid(decay + part(mixer.decay_bias, way, ways))
        ridge = torch.diag_embed(F.softplus(part(mixer.ridge, way, ways)) + 0.25)
        H = G = torch.zeros(heads, size, size, dtype=x.dtype)
        y = []
        for t in range(len(u)):
            bk = (beta[t][:, None] * k[t])[:, :, None]
            H = gamma[t][:, None, None] * H + bk * k[t][:, None, :]
            G = gamma[t][:, None, None] * G + bk * v[t][:, None, :]
            y.append(torch.einsum("hnp,hn->hp", G, torch.linalg.solve(H + ridge, q[t])))
        return torch.stack(y).flatten(1)

    y = both(mixer, one, u, v, beta, decay).unflatten(-1, (heads, -1))
    return mixer.out(normed(y, mixer.norm).flatten(1))


DEFINITIONS = dict(mamba=mamba, mamba2=mamba2, gdn=gdn, retnet=retnet, mesanet=mesanet)


@pytest.mark.parametrize("kind", DEFINITIONS)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
def test_outputs_and_gradients_follow_the_definition(kind, causal):
    torch.manual_seed(0)
    mixer = build(kind, 12, heads=3, causal=causal, inner=24).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    x = torch.randn(2, 10, 12, dtype=torch.float64, requires_grad=True)
    wanted = torch.stack([DEFINITIONS[kind](mixer, row) for row in x])
    found = mixer(x)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    weight, inputs = torch.randn_like(wanted), [x, *mixer.parameters()]
    names = ["x", *(name for name, _ in mixer.named_parameters())]
    grads = (torch.autograd.grad((y * weight).sum(), inputs) for y in (found, wanted))
    for name, one, two in zip(names, *grads, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


def scan_inputs(length, dtype, strength=1.0, correlated=False):
    """Inputs of the chunked scans, with decays from none to almost all."""
    torch.manual_seed(length)
    shape = (2, length, 3)
    q, k, v = (torch.randn(*shape, size, dtype=torch.float64) for size in (5, 5, 4))
    if correlated:
        k = k[:, :1] + 0.01 * k
    q, k = unit(q), unit(k)
    log_decay = -strength * torch.rand(shape, dtype=torch.float64).pow(6) * 20
    beta = torch.rand(shape, dtype=torch.float64).pow(0.1 if correlated else 1)
    state = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    return [x.to(dtype) for x in (q, k, v, log_decay, beta, state)]


def stepwise(kind, q, k, v, log_decay, beta, state, ridge):
    S, H, y = state, torch.zeros(2, 3, 5, 5, dtype=q.dtype), []
    for t in range(q.shape[1]):
        alpha, b = log_decay[:, t].exp()[..., None, None], beta[:, t, :, None]
        S, H = alpha * S, alpha * H
        target = {"decay": v[:, t], "mesa": b * v[:, t]}.get(kind)
        if kind == "delta":
            target = b * (v[:, t] - torch.einsum("bhnp,bhn->bhp", S, k[:, t]))
        S = S + k[:, t, :, :, None] * target[..., None, :]
        H = H + k[:, t, :, :, None] * (b * k[:, t])[..., None, :]
        query = q[:, t] if kind != "mesa" else torch.linalg.solve(H + torch.diag_embed(ridge), q[:, t])
        y.append(torch.einsum("bhnp,bhn->bhp", S, query))
    return torch.stack(y, 1), S


def chunked(kind, q, k, v, log_decay, beta, state, ridge, chunk):
    if kind == "decay":
        y, S = decay_scan(q, k, v.unsqueeze(3), log_decay.unsqueeze(3), state.unsqueeze(2), True, chunk)
        return y.squeeze(3), S.squeeze(2)
    if kind == "delta":
        return delta_scan(q, k, v, log_decay, beta, state, True, chunk)
    whole = torch.cat([torch.zeros(2, 3, 5, 5, dtype=q.dtype), state], -1)
    y, S = mesa_scan(q, k, v, log_decay, beta, ridge, whole, True, 30, chunk)
    return y, S[..., 5:]


@pytest.mark.parametrize("kind", ["decay", "delta", "mesa"])
@pytest.mark.parametrize(("length", "chunk"), [(1, 4), (8, 4), (9, 4), (60, 7), (63, 16), (64, 64)])
def test_chunks_of_any_size_give_the_same(kind, length, chunk):
    inputs = scan_inputs(length, torch.float64)
    ridge = torch.full((3, 5), 0.5, dtype=torch.float64)
    for one, two in zip(chunked(kind, *inputs, ridge, chunk), stepwise(kind, *inputs, ridge), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("kind", ["decay", "delta", "mesa"])
@pytest.mark.parametrize("regime", ["none", "plain", "extreme", "correlated"])
def test_float32_keeps_its_digits(kind, regime):
    """Decays are absent, plain or next to zero, or keys are nearly the same."""
    strength = {"none": 0.0, "plain": 1.0, "extreme": 10.0, "correlated": 0.01}[regime]
    exact = scan_inputs(300, torch.float64, strength, regime == "correlated")
    ridge = torch.full((3, 5), 0.5, dtype=torch.float64)
    wanted, _ = stepwise(kind, *exact, ridge)
    found, _ = chunked(kind, *(x.float() for x in exact), ridge.float(), 64)
    assert (found.double() - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("length", [1, 2, 3, 9, 10, 50])
def test_linear_scan(length):
    torch.manual_seed(0)
    a = torch.rand(2, length, 3, dtype=torch.float64)
    a[:, ::4] = 0  # a state that is forgotten at once has no quotient
    b, first = torch.randn(2, length, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    h, wanted = first, []
    for t in range(length):
        h = a[:, t] * h + b[:, t]
        wanted.append(h)
    torch.testing.assert_close(linear_scan(a, b, first), torch.stack(wanted, 1), rtol=1e-12, atol=1e-13)
    inputs = [x.requires_grad_() for x in (a, b, first)]
    assert torch.autograd.gradcheck(linear_scan, inputs)


def test_every_recurrent_kind_has_a_definition_here():
    assert set(KINDS) - set(DEFINITIONS) == {"attention", "mlp", "samba"}
