"""The mathematics of group-relative policy optimization (Shao et al. 2024), on plain tensors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LEAST = 1e-4  # added to standard deviations


class Terms(NamedTuple):
    """Three numbers of every token: loss, whether the ratio was clipped, and divergence from the reference."""

    loss: Tensor
    clipped: Tensor
    divergence: Tensor


def advantages(rewards: Tensor, scale: bool = True) -> Tensor:
    """How much more reward each sample has than the mean of its group, (examples, samples); with `scale`, in standard
    deviations of the group. Zero if all samples of a group have the same reward.

    Examples:
        >>> advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0, 1.0]]), scale=False)
        tensor([[ 0.5000, -0.5000, -0.5000,  0.5000],
                [ 0.0000,  0.0000,  0.0000,  0.0000]])
    """
    centred = rewards - rewards.mean(1, keepdim=True)
    centred = centred.masked_fill(is_flat(rewards)[:, None], 0.0)  # to the bit, also if the mean is rounded
    return centred / (rewards.std(1, keepdim=True) + LEAST) if scale else centred


def is_flat(rewards: Tensor) -> Tensor:
    """Whether all samples of a group, (examples, samples), have the same reward: such a group teaches nothing."""
    return (rewards == rewards[:, :1]).all(1)


def terms(
    logprobs: Tensor,
    old: Tensor,
    advantage: Tensor,
    *,
    clip: float,
    clip_high: float | None = None,
    reference: Tensor | None = None,
    beta: float = 0.0,
) -> Terms:
    """The clipped loss of every token, -min(ratio A, clipped ratio A) + beta ratio KL. All tensors have the same shape.

    Args:
        logprobs: of the tokens under the policy that learns.
        old: under the policy that drew them.
        advantage: of the sample that a token belongs to.
        clip: how far below 1 a ratio counts, and how far above it if there is no `clip_high`.
        clip_high: how far above 1 it counts.
        reference: log-probabilities under the model that the policy must stay close to.
        beta: weight of the divergence from it, estimated by r - log r - 1 with r = reference / policy.
    """
    ratio = (logprobs - old).exp()
    clipped = ratio.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    loss = -torch.minimum(ratio * advantage, clipped * advantage)
    divergence = torch.zeros_like(loss)
    if reference is not None:
        log_ratio = reference - logprobs
        divergence = log_ratio.exp() - log_ratio - 1
        loss = loss + beta * ratio * divergence  # by the ratio, the gradient is that of the divergence
    return Terms(loss, (ratio * advantage > clipped * advantage).detach(), divergence)
