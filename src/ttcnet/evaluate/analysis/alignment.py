"""Do plans run along the reasoning that follows? The paper's monotone-path similarity between the states that a TTC
layer means to pass through and the tokens of a chain of thought; of the same question, and of two.

    sim(H, X) = max over paths p of the mean over (i, j) in p of cos(H_i, X_j)

A path starts at (1, 1), ends at (T, L), and goes on by (1, 0), (0, 1) or (1, 1).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ttcnet.tasks.statistics import Mean

DRAWS = 10_000


def path_mean(scores: Tensor) -> Tensor:
    """The highest mean of scores (..., T, L) along a monotone path from the first cell to the last: (...).

    A path has T + L - 1 cells, less one for every diagonal step. So the best sum is kept for every cell and every
    number of diagonal steps on the way there, which makes T L min(T, L) sums, and means are compared at the end. The
    best sum alone would not do: of two paths, the longer one may have the higher sum and the lower mean.
    """
    *lead, T, L = scores.shape
    K = min(T, L)
    scores = scores.reshape(-1, T, L)
    # (pairs, T, T + L - 1): row i moved right by i, so that a column holds the cells i + j = const
    slanted = F.pad(scores, (0, T), value=-torch.inf).flatten(1)[:, : T * (T + L - 1)].unflatten(1, (T, T + L - 1))
    columns = slanted.unbind(-1)
    before = scores.new_full((len(scores), T, K), -torch.inf)
    last = before.clone()
    last[:, 0, 0] = columns[0][:, 0]
    for column in columns[1:]:
        down = F.pad(last[:, :-1], (0, 0, 1, 0), value=-torch.inf)
        diagonal = F.pad(before[:, :-1, :-1], (1, 0, 1, 0), value=-torch.inf)
        before, last = last, column[..., None] + torch.maximum(torch.maximum(last, down), diagonal)
    cells = T + L - 1 - torch.arange(K, device=scores.device)
    return (last[:, -1] / cells).amax(-1).view(lead)


def similarity(plans: Tensor, states: Tensor) -> Tensor:
    """Of plans (..., T, size) with tokens (L, size): (...)."""
    return path_mean(F.normalize(plans, dim=-1) @ F.normalize(states, dim=-1).mT)


def summary(matrix: Tensor) -> dict[str, Mean]:
    """Means over same-question pairs and over all others, and their difference.

    matrix (N, N): the plan of one question, by row, with the text of another, by column. Intervals are by drawing
    questions again with replacement, plan and text together; a question that is drawn twice is no pair of two.
    """
    values = matrix.double().cpu()
    questions = len(values)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(questions, (DRAWS, questions), generator=generator)
    counts = torch.zeros(DRAWS + 1, questions, dtype=values.dtype)
    counts[0] = 1  # every question once
    counts[1:].scatter_add_(1, drawn, torch.ones_like(drawn, dtype=values.dtype))
    pairs = questions**2 - counts.square().sum(1)
    counts, pairs = counts[pairs > 0], pairs[pairs > 0]
    own = values.diagonal()
    same = counts @ own / questions
    random = ((counts @ (values - own.diag())) * counts).sum(1) / pairs
    return {name: _mean(each) for name, each in (("same", same), ("random", random), ("difference", same - random))}


def _mean(drawn: Tensor) -> Mean:
    low, high = torch.quantile(drawn[1:], torch.tensor([0.025, 0.975], dtype=drawn.dtype)).tolist()
    return Mean(drawn[0].item(), low, high)
