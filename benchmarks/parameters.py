"""How many parameters each layer has, with its default sizes and in TTC's place."""

from __future__ import annotations

import torch

from ttcnet.nn import TTCLayer, mixers


def parameter_rows() -> list[dict[str, str]]:
    """Parameters of every mixer with its default sizes, and in TTC's place with as many as TTC."""
    rows = []
    for width, heads in ((128, 4), (1024, 16), (4096, 16)):
        with torch.device("meta"):
            target = sum(parameter.numel() for parameter in TTCLayer(width, heads=heads).parameters())
        rows.append(_row("ttc", width, heads, target, "", target))
        for kind in mixers.KINDS:
            options = mixers.matched(kind, width, target, heads=heads)
            count = mixers.parameters(kind, width, **options)
            own = mixers.parameters(kind, width, heads=heads)
            rows.append(_row(kind, width, heads, own, f"{count:,} ({100 * (count / target - 1):+.1f} %)", target))
    return rows


def _row(kind: str, width: int, heads: int, own: int, matched: str, target: int) -> dict[str, str]:
    as_ttc = f"{target:,}" if kind == "ttc" else matched
    return {
        "layer": kind,
        "width": str(width),
        "heads": str(heads),
        "default sizes": f"{own:,}",
        "in TTC's place": as_ttc,
    }
