"""Do plans run along the reasoning that follows? `ttcnet analyse alignment` computes the paper's monotone-path
similarity between the states that a TTC layer plans and the tokens of a chain of thought, of the same question and of
others:

    sim(H, X) = max over paths p of the mean over (i, j) in p of cos(H_i, X_j)

A path starts at (1, 1), ends at (T, L), and moves by (1, 0), (0, 1) or (1, 1).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from ttcnet.environment import provenance
from ttcnet.errors import fail, not_finite
from ttcnet.extras import require
from ttcnet.models.horizon_and_loops import horizon_of
from ttcnet.storage.reading import rows
from ttcnet.storage.writing import replacing
from ttcnet.tasks.statistics import Mean
from ttcnet.terminal.console import tell
from ttcnet.terminal.progress_bars import Bar

from ..engines.local import load
from .trajectories import Questions, generated, questions, trajectories, written

PLANS = ("plan", "start")  # aligned with the text: planned states; for comparison, their first state at every step
DRAWS = 10_000  # draws of the bootstrap


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
    """The similarity of plans (..., T, size) with tokens (L, size): (...)."""
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


def report(
    model: str,
    data: str,
    *,
    adapter: str | None = None,
    horizon: int | None = None,
    limit: int | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> dict[str, Any]:
    """How similar plans are to chains of thought of the same question and of others, layer by layer and on average."""
    if limit is not None and limit < 2:
        fail("limit", "must be 2 or more", limit, "One question's plan meets another's text.", "too-small")
    found = generated(Path(data), horizon) if Path(data).is_dir() else written(rows(data))
    texts = list(found)  # before a model is loaded
    console = Console(stderr=True)
    tell(f"Loading {model} ...")
    folder = None if adapter is None else Path(adapter)
    engine = load(model, folder, device=device, trust_remote_code=trust_remote_code)
    net, tokenizer = engine.model, engine.tokenizer
    own = horizon_of(net)
    if own is None:
        remedy = "Pass a whole ttc_* model, or --adapter."
        fail("model", "must have TTC layers", type(net).__name__, remedy, "no-layers")
    steps = own if horizon is None else horizon
    if steps < 1:
        fail("horizon", "must be 1 or more to have a plan", steps, "Pass --horizon 8, say.", "too-small")
    asked = questions(texts, tokenizer, limit, getattr(net.config, "max_position_embeddings", None))
    if asked.left_out.total():
        counts = ", ".join(f"{count} {why}" for why, count in asked.left_out.items())
        tell(f"{len(asked.questions)} questions; rows left out: {counts}.")
    matrices = measure(net, asked, steps, console)
    every = {kind: torch.stack([found[kind] for found in matrices.values()]).mean(0) for kind in PLANS}
    return {
        "all layers": _summaries(every),
        "layers": [{"module": name} | _summaries(found) for name, found in matrices.items()],
        "questions": len(asked.questions),
        "left out": asked.left_out,
        "horizon": steps,
        "model": model,
        "adapter": adapter,
        "data": data,
    } | provenance()


@torch.no_grad()
def measure(model: Any, asked: Questions, steps: int, console: Console) -> dict[str, dict[str, Tensor]]:
    """Compare the plan of every question with the text of every question: similarities (N, N), for every layer and
    each of PLANS."""
    count = len(asked.questions)
    with Bar(console=console) as progress:
        found = list(progress.track(trajectories(model, asked.questions, steps), count, description="planning"))
        for number, each in enumerate(found, 1):
            if not all(part.isfinite().all() for path in each.values() for part in path):
                not_finite(f"question {number}")
        task = progress.add_task("aligning", total=count * len(found[0]))
        matrices: dict[str, dict[str, Tensor]] = {}
        for name in found[0]:
            plans = torch.stack([each[name].plan for each in found])
            starts = torch.stack([each[name].start for each in found])[:, None].expand_as(plans)
            texts = []
            for each in found:
                texts.append(similarity(torch.stack([plans, starts]), each[name].states))
                progress.advance(task)
            matrices[name] = dict(zip(PLANS, torch.stack(texts, -1), strict=True))
    return matrices


def _summaries(matrices: dict[str, Tensor]) -> dict[str, Any]:
    return {kind: {name: asdict(found) for name, found in summary(matrix).items()} for kind, matrix in matrices.items()}


def place(module: str) -> str:
    """The number of the block that a layer is in."""
    return next((part for part in module.split(".") if part.isdecimal()), module)


def table(found: dict[str, Any]) -> list[str]:
    """The table as lines of text."""

    def cells(entry: dict[str, Any]) -> str:
        shown = [entry["plan"][name] for name in ("same", "random", "difference")] + [entry["start"]["difference"]]
        return "".join(f"  {each['mean']:7.3f} ({each['low']:6.3f} to {each['high']:6.3f})" for each in shown)

    heads = ("same question", "random pairs", "difference", "and without planning")
    lines = ["block " + "".join(f"  {head:>26}" for head in heads)]
    lines += [f"{place(entry['module']):>6}{cells(entry)}" for entry in found["layers"]]
    return [*lines, f"{'all':>6}{cells(found['all layers'])}"]


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the similarity of same-question and of random pairs, by layer, with intervals."""
    require("matplotlib", "plot", "Drawing the alignment").use("Agg")
    pyplot = require("matplotlib.pyplot", "plot", "Drawing the alignment")
    entries = [*found["layers"], found["all layers"] | {"module": "all"}]
    figure, axes = pyplot.subplots(figsize=(4 + 1.2 * len(entries), 3.6), layout="constrained")
    looks: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("plan", "same", "same question", dict(color="tab:blue", marker="o")),
        ("plan", "random", "random pairs", dict(color="tab:gray", marker="o")),
        ("start", "same", "same question, without planning", dict(color="tab:blue", marker="x", alpha=0.5)),
        ("start", "random", "random pairs, without planning", dict(color="tab:gray", marker="x", alpha=0.5)),
    )
    for number, (kind, name, label, look) in enumerate(looks):
        values = [entry[kind][name] for entry in entries]
        means = [value["mean"] for value in values]
        below = [value["mean"] - value["low"] for value in values]
        above = [value["high"] - value["mean"] for value in values]
        places = [index + 0.14 * (number - 1.5) for index in range(len(entries))]
        axes.errorbar(places, means, [below, above], label=label, ls="", capsize=3, **look)
    axes.set_xticks(range(len(entries)), [place(entry["module"]) for entry in entries])
    axes.set(xlabel="block", ylabel="similarity", title=f"{found['questions']} questions, T = {found['horizon']}")
    figure.legend(loc="outside right upper", fontsize="small")
    with replacing(path) as new:
        figure.savefig(new, dpi=150)
    pyplot.close(figure)
