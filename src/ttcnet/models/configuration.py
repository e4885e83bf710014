"""The configuration of TTC-Net models."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ttcnet.lqr.checks import fail

from .pattern import BlockPlan, blocks_of, interleaved


@strict
class TTCNetConfig(PreTrainedConfig):  # type: ignore[misc, unused-ignore]
    """What a TTC-Net is made of. Names follow transformers where it has them.

    Args:
        vocab_size: number of tokens.
        hidden_size: width of a token.
        num_hidden_layers: number of blocks; follows from `pattern` where that is given.
        num_attention_heads: heads of every mixer.
        intermediate_size: width of the MLP inside; None is 8/3 of hidden_size.
        mixer: the mixer of all blocks, one of `ttcnet.nn.mixers.KINDS`, where `pattern` does not say.
        interleave: "8:1" inserts 1 TTC layer into the last of every 8 blocks; None inserts none.
        pattern: the layers one by one instead; see `ttcnet.models.pattern`.
        mixer_options: options of mixers by kind, such as {"attention": {"qk_norm": True}}. What stands in TTC's place
            ("+gdn") goes by its name with the plus, and has as many parameters as a TTC layer unless `inner` is given.
        causal: tokens see the past alone. Otherwise they see each other, and positions are learned.
        max_position_embeddings: learned positions, where not causal.
        grid: where not causal, side of a square grid of boxes, such as 9 for Sudoku: row, column and box of a token are
            embedded beside its position. None embeds the position alone.
        ttc_heads: heads of a TTC layer; None is num_attention_heads.
        ttc_state_size: state and action size of a TTC head.
        ttc_rank: number of basis matrices.
        ttc_time_homogeneous: no time modulation (an ablation of the paper).
        horizon: steps that TTC layers look ahead, where a call does not say otherwise.
        dropout: share of each branch dropped in training before it is added.
    """

    model_type = "ttcnet"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    vocab_size: int = 32000
    hidden_size: int = 1024
    num_hidden_layers: int = 16
    num_attention_heads: int = 16
    intermediate_size: int | None = None
    mixer: str = "attention"
    interleave: str | None = "8:1"
    pattern: list[str] | None = None
    mixer_options: dict[str, Any] | None = None
    causal: bool = True
    max_position_embeddings: int = 2048
    grid: int | None = None
    ttc_heads: int | None = None
    ttc_state_size: int = 16
    ttc_rank: int = 16
    ttc_time_homogeneous: bool = False
    horizon: int = 8
    dropout: float = 0.0
    norm_eps: float = 1e-6
    initializer_range: float = 0.02
    use_cache: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.pattern is not None:
            self.num_hidden_layers = len(blocks_of(self.pattern))
            self.interleave = None
        if self.ttc_heads is None:
            self.ttc_heads = self.num_attention_heads
        if self.mixer_options is None:
            self.mixer_options = {}
        super().__post_init__(**kwargs)
        self._check()

    def _check(self) -> None:
        for field in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "horizon"):
            least = 0 if field == "horizon" else 1
            if getattr(self, field) < least:
                fail(field, f"must be {least} or more", getattr(self, field), "Pass a larger number.")
        if self.hidden_size % self.num_attention_heads:
            rule = f"must divide hidden_size = {self.hidden_size}"
            fail("num_attention_heads", rule, self.num_attention_heads, "Pass a number of heads that does.")
        if not 0 <= self.dropout < 1:
            fail("dropout", "must lie in [0, 1)", self.dropout, "Pass the share to drop, such as 0.1.")
        if self.grid is not None and round(self.grid**0.5) ** 2 != self.grid:
            fail("grid", "must be a square number, a grid of boxes", self.grid, "Pass 9 for Sudoku, or None.")
        if self.grid is not None and self.causal:
            fail("grid", "needs causal=False", self.grid, "Pass causal=False, or grid=None.")
        _ = self.blocks

    @property
    def blocks(self) -> list[BlockPlan]:
        """What every block is made of."""
        return blocks_of(self.pattern or interleaved(self.interleave, self.num_hidden_layers, self.mixer))

    @classmethod
    def tiny(cls, **changes: Any) -> TTCNetConfig:
        """For tests and first steps: 4 blocks of width 64."""
        sizes: dict[str, Any] = dict(
            vocab_size=256, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, interleave="4:1"
        )
        return cls(**(sizes | changes))

    @classmethod
    def base(cls, **changes: Any) -> TTCNetConfig:
        """For experiments on one GPU: 12 blocks of width 1024, one with a TTC layer."""
        sizes: dict[str, Any] = dict(hidden_size=1024, num_hidden_layers=12, num_attention_heads=16, interleave="8:1")
        return cls(**(sizes | changes))

    @classmethod
    def paper(cls, **changes: Any) -> TTCNetConfig:
        """The size of the paper's language models: 32 blocks of width 4096, a TTC layer in every eighth."""
        sizes: dict[str, Any] = dict(vocab_size=128256, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32)
        sizes |= dict(intermediate_size=14336, interleave="8:1", tie_word_embeddings=False, ttc_heads=16)
        return cls(**(sizes | changes))

    @classmethod
    def sudoku(cls, **changes: Any) -> TTCNetConfig:
        """The paper's Sudoku model: 32 blocks of width 128 over 81 cells, T = 4."""
        sizes: dict[str, Any] = dict(
            vocab_size=10, hidden_size=128, num_hidden_layers=32, num_attention_heads=4, interleave="8:1"
        )
        sizes |= dict(causal=False, max_position_embeddings=81, grid=9, horizon=4, num_labels=9, use_cache=False)
        return cls(**(sizes | changes))
