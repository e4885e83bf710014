"""The trunk reads a prefix: attention blocks, trained to predict A and B after every transition. All arms use the
same."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.in_context_control import systems as world
from experiments.shared.stacks import Reader, Settings, Stack, Tokens
from ttcnet.errors import fail
from ttcnet.nn import mixers
from ttcnet.storage import tensor_file

WEIGHTS = "trunk.safetensors"
AT_ONCE = 1024  # prefixes


@dataclass(frozen=True)
class Reading(Settings):
    """Settings of the trunks: `pool` is the number of prefixes, the same for all. If there is one trunk, all seeds of
    all arms use it."""

    steps: int = 3000
    batch: int = 64
    pool: int = 65_536
    judged: int = 2048
    seeds: int = 1
    rates: tuple[float, ...] = (3e-3,)
    weight_decay: float = 0.01
    blocks: int = 3
    attention_heads: int = 4


class Blocks(nn.Module):
    """Causal attention and MLPs over transitions (N, K, width). Positions are not encoded."""

    def __init__(self, width: int, blocks: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2 * blocks))
        self.mixers = nn.ModuleList(
            mixer
            for _ in range(blocks)
            for mixer in (
                mixers.build("attention", width, heads=heads, rotary=False),
                mixers.build("mlp", width, heads=heads),
            )
        )
        self.norm = nn.RMSNorm(width)

    def forward(self, x: Tensor, horizon: int | Tensor = 0) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):  # the others have no rule for vmap
            for norm, mixer in zip(self.norms, self.mixers, strict=True):
                x = x + mixer(norm(x))
        return self.norm(x)


class Trunks(Stack):
    """The trunks of all seeds."""

    settings: Reading

    def _pool(self) -> Tokens:
        return prefixes(self.settings.pool, 1000, self.device)

    def _layer(self, size: dict[str, int]) -> nn.Module:
        return Blocks(size["width"], self.settings.blocks, self.settings.attention_heads)

    @torch.no_grad()
    def unexplained(self) -> list[list[float]]:
        """The unexplained variance of A and B, by seed and by the number of transitions."""
        fresh = prefixes(self.settings.judged, 1, self.device)
        found = torch.cat([self.answer(self.weights, x, 0) for x in fresh.x.split(AT_ONCE)], 1) * self.scale
        errors = (found - fresh.y).square().mean((1, 3))
        return (errors / (fresh.y - fresh.y.mean(0)).square().mean()).tolist()

    def written(self, folder: Path) -> dict[str, Any]:
        """Writes the weights, and returns figures of their quality."""
        scaled = {name: x.clone().contiguous() for name, x in self.weights.items()}
        for name in ("read.weight", "read.bias"):  # so that a trunk predicts A and B themselves
            scaled[name] *= self.scale[0] if scaled[name].ndim == 2 else self.scale[0].unsqueeze(-1)
        tensor_file.save(folder / WEIGHTS, scaled, {"settings": asdict(self.settings)})
        parameters = self.flat.shape[1]
        return {"parameters": parameters, "rate": self.settings.rates[0], "unexplained": self.unexplained()}


def prefixes(count: int, seed: int, device: str) -> Tokens:
    """Tokens of prefixes (N, K, features), and A and B for each of them."""
    systems = world.draw(count, seed)
    x = world.transition_tokens(*world.prefixes(systems, seed + 1))
    y = world.matrices(systems).flatten(1).float()
    return Tokens(x.to(device), y.to(device).unsqueeze(1).expand(-1, x.shape[1], -1))


class Trunk:
    """The trained trunk of one seed, frozen."""

    def __init__(self, folder: Path, settings: Reading, seed: int, device: str) -> None:
        path = folder / WEIGHTS
        if not path.exists():
            remedy = f"Remove {folder} and give the command again: it trains them anew."
            fail("out", f"must hold {WEIGHTS} of the trunks", folder, remedy, "no-model")
        place = (seed - settings.first_seed) % settings.seeds
        weights = {name: x[place] for name, x in tensor_file.load(path)[0].items()}
        layer = Blocks(settings.width, settings.blocks, settings.attention_heads)
        net = Reader(weights["embed.weight"].shape[1], settings.width, world.STATES * world.BOTH, layer)
        net.load_state_dict(weights)
        self.net = net.to(device).requires_grad_(False)

    @torch.no_grad()
    def contexts(self, tokens: Tensor) -> Tensor:
        """The output after every transition, (N, K, width)."""
        return torch.cat([self.net.layer(self.net.embed(x), 0) for x in tokens.split(AT_ONCE)])

    @torch.no_grad()
    def matrices(self, contexts: Tensor) -> Tensor:
        """The predicted A and B, (..., n, n + m) in float64."""
        return self.net.read(contexts).double().unflatten(-1, (world.STATES, world.BOTH))
