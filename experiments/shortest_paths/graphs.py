"""Tokens of `shortest_paths`: a graph, a start and a goal, and the next node on the shortest path.

A graph has six nodes and an edge from each to each. Lengths are log-normal, so that the direct edge is rarely the
shortest way.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from experiments.shared.stacks import Tokens

NODES = 6
SPREAD = 1.5  # standard deviation of the logarithm of a length
LONG = 3  # edges: paths of as many or more are those that look ahead most


class Questions(NamedTuple):
    """Graphs with lengths (N, NODES, NODES), a start and a goal for each (N,)."""

    lengths: Tensor
    start: Tensor
    goal: Tensor


def draw(count: int, seed: int) -> Questions:
    """Questions; the same for a seed on every machine."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.exp(SPREAD * torch.randn(count, NODES, NODES, generator=random, dtype=torch.float64))
    lengths.diagonal(dim1=1, dim2=2).zero_()
    start = torch.randint(NODES, (count,), generator=random)
    goal = (start + torch.randint(1, NODES, (count,), generator=random)) % NODES
    return Questions(lengths, start, goal)


def solve(questions: Questions) -> tuple[Tensor, Tensor]:
    """The next node on the shortest path (N,), and the number of its edges (N,), by Floyd and Warshall."""
    distances, steps = questions.lengths.clone(), torch.ones(questions.lengths.shape, dtype=torch.long)
    nodes, count = torch.arange(NODES), torch.arange(len(distances))
    steps[:, nodes, nodes] = 0
    for k in nodes:
        through = distances[:, :, k, None] + distances[:, k, None, :]
        shorter = through < distances
        steps = torch.where(shorter, steps[:, :, k, None] + steps[:, k, None, :], steps)
        distances = torch.where(shorter, through, distances)
    ways = questions.lengths[count, questions.start] + distances[count, :, questions.goal]
    ways[count, questions.start] = torch.inf
    return ways.argmin(1), steps[count, questions.start, questions.goal]


def tokens(count: int, seed: int, *, long: bool = False, device: str = "cpu") -> Tokens:
    """Features: the logarithms of all lengths, start and goal; targets: the next node, each of mean 0 and variance 1.

    Args:
        long: only questions whose shortest path has LONG edges or more, about one in five of `count`.
    """
    questions = draw(count, seed)
    following, edges = solve(questions)
    nodes = torch.arange(NODES)
    lengths = questions.lengths[:, nodes[:, None] != nodes].log() / SPREAD
    start, goal, y = (_marked(place) for place in (questions.start, questions.goal, following))
    keep = edges >= (LONG if long else 1)
    x = torch.cat([lengths, start, goal], 1)
    return Tokens(x[keep].float().to(device), y[keep].float().to(device))


def _marked(node: Tensor) -> Tensor:
    """One number for each node, the largest for this one (N, NODES), of mean 0 and variance 1 over nodes."""
    return ((node[:, None] == torch.arange(NODES)).double() - 1 / NODES) / ((NODES - 1) ** 0.5 / NODES)
