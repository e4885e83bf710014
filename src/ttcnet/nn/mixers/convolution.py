"""The short convolution that recurrences have in front of them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import Memory, positive, store


class ShortConvolution(nn.Module):
    """Every channel filtered over the last `kernel` tokens, then SiLU: (batch, length, channels) to the same shape."""

    def __init__(self, channels: int, kernel: int, bias: bool) -> None:
        super().__init__()
        self.kernel = positive("kernel", kernel, "The paper's models use 4.")
        self.weight = nn.Parameter(torch.empty(channels, kernel))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def reset_parameters(self) -> None:
        bound = self.kernel**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, mask: Tensor | None = None, state: Memory | None = None) -> Tensor:
        length = x.shape[1]
        if state is None:
            inputs = F.pad(x, (0, 0, self.kernel - 1, 0))
        else:
            assert state.recent is not None
            inputs = self._after(state.recent.to(x.dtype), x, mask)
            state.recent = store(state.recent, self._last(inputs, mask))
        y = inputs[:, :length] * self.weight[:, 0]
        for k in range(1, self.kernel):
            y = torch.addcmul(y, inputs[:, k : k + length].to(y.dtype), self.weight[:, k].to(y.dtype))
        return F.silu(y if self.bias is None else y + self.bias)

    def _after(self, recent: Tensor, x: Tensor, mask: Tensor | None) -> Tensor:
        """x with the inputs of before right in front of the first real token of each sequence."""
        if mask is None:
            return torch.cat([recent, x], 1)
        first = mask.byte().argmax(1, keepdim=True)
        index = first + torch.arange(self.kernel - 1, device=mask.device)
        return F.pad(x, (0, 0, self.kernel - 1, 0)).scatter(1, index.unsqueeze(-1).expand_as(recent), recent)

    def _last(self, inputs: Tensor, mask: Tensor | None) -> Tensor:
        """The last kernel - 1 inputs up to the last real token of each sequence."""
        if mask is None:
            return inputs[:, inputs.shape[1] - self.kernel + 1 :]
        order = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        end = (order * mask).amax(1, keepdim=True)
        index = end + torch.arange(self.kernel - 1, device=mask.device)
        return inputs.gather(1, index.unsqueeze(-1).expand(-1, -1, inputs.shape[-1]))
