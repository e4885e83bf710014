"""Mamba's kernels against the plain scan in float64, on the very numbers that the kernels got.

On a machine without a GPU they run in Triton's interpreter, which is chosen for good when triton is imported, hence in
a process of its own: TRITON_INTERPRET=1 python -m tests.nn.mixers.scan_cases prints the errors of all CASES.
"""

import json
import sys
import warnings

import torch

from ttcnet.nn.mixers.selective import plain_scan
from ttcnet.testing.memory import unwritten_is_nan

CASES = {  # batch, length, directions, channels, states; whether there are first and last states
    "first and last states": ((1, 81, 1, 60, 16), True),
    "an odd length": ((1, 63, 1, 20, 5), False),
    "two directions": ((2, 7, 2, 60, 16), False),
    "one token": ((2, 1, 2, 60, 5), True),
    "one state": ((1, 9, 2, 3, 1), True),
    "many states": ((1, 8, 1, 17, 60), True),
}
NAMES = ("u", "step", "A", "B", "C", "first")


def fused_scan(u, step, A, B, C, first=None, keep=False):
    """The operator, whatever the device and whether or not `selective_scan` would choose it."""
    y, last, _ = torch.ops.ttcnet.selective_scan(u, step, A, B, C, first, keep, torch.is_grad_enabled())
    return y, last if keep else None


def draw(shape, with_first, seed=0, device="cpu"):
    """Inputs that float32 holds exactly, with steps from zero to such that forget everything."""
    batch, length, ways, channels, n = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(*size, generator=generator)

    u, step = normal(batch, length, ways, channels), torch.rand(batch, length, ways, channels, generator=generator)
    step[:, 2::5] = 0  # as padding has it
    step[:, 3::7] *= 30
    A, B, C = -normal(ways, channels, n).exp(), normal(batch, length, ways, n), normal(batch, length, ways, n)
    tensors = [u, step, A, B, C, *([normal(batch, ways, channels, n)] if with_first else [])]
    return [x.to(device).requires_grad_() for x in tensors]


def differentiate(scan, tensors, dtype=torch.float32):
    """Outputs and gradients of all inputs by name; the last states count where there are first ones."""
    keep = len(tensors) == len(NAMES)
    tensors = [x.detach().to(dtype).requires_grad_() for x in tensors]
    y, last = scan(*tensors, keep=keep)
    outputs = {"y": y, "last": last} if keep else {"y": y}
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator).to(x) for x in outputs.values()]
    # a single token without a first state does not depend on A
    grads = torch.autograd.grad(list(outputs.values()), tensors, weights, allow_unused=True, materialize_grads=True)
    return outputs | dict(zip(NAMES, grads, strict=False))


def errors(shape, with_first, device="cpu"):
    """Largest error of everything by name, relative to its largest entry. Memory that a kernel does not write is
    NaN."""
    tensors = draw(shape, with_first, device=device)
    truth = differentiate(plain_scan, tensors, torch.float64)
    with unwritten_is_nan():
        assert torch.empty(3, device=device).isnan().all()
        found = differentiate(fused_scan, tensors)
    scales = {name: x.abs().max().clamp_min(1e-30) for name, x in truth.items()}
    return {name: ((found[name] - x).abs().max() / scales[name]).item() for name, x in truth.items()}


def check_operators(device="cpu"):
    """Torch's checks of an operator: schema, fakes of the same shapes and strides, autograd, dynamic shapes."""
    scan, backward = torch.ops.ttcnet.selective_scan, torch.ops.ttcnet.selective_scan_backward
    *inputs, first = draw((2, 3, 2, 3, 2), True, device=device)
    torch.library.opcheck(scan, (*inputs, None, False, True))
    torch.library.opcheck(scan, (*inputs, first, True, True))
    *inputs, first = (x.detach() for x in (*inputs, first))
    torch.library.opcheck(scan, (*inputs, first, True, False))
    y, last, entering = scan(*inputs, first, True, True)
    torch.library.opcheck(backward, (*inputs, entering, torch.randn_like(y), torch.randn_like(last), True))


def main():
    warnings.simplefilter("ignore")
    check_operators()
    json.dump({name: errors(*case) for name, case in CASES.items()}, sys.stdout)


if __name__ == "__main__":
    main()
