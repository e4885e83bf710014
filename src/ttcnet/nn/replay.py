"""Computations of a layer on few tokens, recorded on a GPU and replayed: one launch in place of dozens.

Generating text asks a layer for one token at a time. A GPU is done with that at once and waits for the host, which
starts every small step separately. A CUDA graph starts them all together. Its results are the same, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ttcnet.lqr.kernels.nvrtc import new_stream

FEW = 64  # tokens; with more of them the GPU takes longer than the host
OFTEN = 3  # calls of one kind before it is recorded
KEPT = 16  # kinds

Compute = Callable[[Tensor], Tensor]
_lock = Lock()  # one thread at a time copies in, replays and copies out


@cache
def _recording(index: int, stream: int) -> tuple[torch.cuda.Stream, torch.cuda.CUDAGraph]:
    """The stream on which calls of another stream are recorded, and a graph whose memory all recordings share, because
    they never run at the same time.

    The recording stream is one that nobody else knows. Then the workspace of cuBLAS, which belongs to a stream, comes
    from that memory as well, and stays there when torch frees all workspaces, as CUDA graphs of torch.compile make it
    do; otherwise a recorded call would write to memory that is another's by then. The graph itself does
    nothing: torch gives memory back, for good, with the last graph that uses it, and this one stays.
    """
    with torch.cuda.device(index):
        aside, owner = torch.cuda.ExternalStream(new_stream(index), device=index), torch.cuda.CUDAGraph()
        with torch.cuda.stream(aside):
            owner.capture_begin(capture_error_mode="thread_local")
            torch.zeros(1, device="cuda")
            owner.capture_end()
    return aside, owner


def may_replay(x: Tensor, layer: nn.Module) -> bool:
    """Whether a call can be replayed: without gradients, with few tokens, on a GPU, and of an unchanged layer."""
    if torch.compiler.is_compiling() or not x.is_cuda or type(x) is not Tensor or x.numel() > FEW * x.shape[-1]:
        return False
    if layer.training or torch.is_grad_enabled() or torch.is_autocast_enabled("cuda") or x.numel() == 0:
        return False
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        return False
    return not torch.cuda.is_current_stream_capturing()


def as_built(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module is unchanged since it was built: not wrapped (LoRA, quantised, sharded), and without hooks."""
    return type(module) is kind and not (
        module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__
    )


class Replays:
    """Recorded calls, by kind. A copy of it starts empty, so that a layer that has one can be copied and pickled."""

    def __init__(self) -> None:
        self._seen: dict[object, int] = {}
        self._recorded: dict[object, _RecordedCall] = {}

    def __reduce__(self) -> tuple[type[Replays], tuple[()]]:
        return Replays, ()

    def __call__(self, compute: Compute, x: Tensor, kind: object) -> Tensor:
        """compute(x), recorded for `kind`: all that it depends on besides the contents of tensors, such as their
        addresses."""
        index = x.get_device()
        stream = torch._C._cuda_getCurrentRawStream(index)
        kind = (kind, x.shape, x.dtype, index, stream)
        with _lock:
            call = self._recorded.get(kind)
            if call is None:
                self._seen[kind] = self._seen.get(kind, 0) + 1
                if self._seen[kind] < OFTEN:
                    return compute(x)
                if len(self._recorded) >= KEPT:
                    self._seen.clear()
                    self._recorded.clear()
                call = self._recorded[kind] = _RecordedCall(compute, x, *_recording(index, stream))
            return call.replay(x)


class _RecordedCall:
    """A call as a CUDA graph. It was made before without one, because the first call of a kind also sets things up."""

    def __init__(self, compute: Compute, x: Tensor, aside: torch.cuda.Stream, owner: torch.cuda.CUDAGraph) -> None:
        # no inference tensors: the next call may come from outside of inference mode, and could not write to them
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(x.device):
            self.x = x.clone()
            self.graph = torch.cuda.CUDAGraph()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                self.graph.capture_begin(owner.pool(), capture_error_mode="thread_local")
                try:
                    self.y = compute(self.x)
                finally:
                    self.graph.capture_end()

    def replay(self, x: Tensor) -> Tensor:
        self.x.copy_(x)
        self.graph.replay()
        return self.y.clone()
