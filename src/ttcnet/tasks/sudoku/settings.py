"""Settings of a training run: the paper's, for TTC-Net and for the architectures that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from ttcnet.bounds import check_count, check_rates, check_seed
from ttcnet.errors import fail
from ttcnet.nn.options import SUPERVISION, check_context
from ttcnet.settings import check_type

if TYPE_CHECKING:
    from ttcnet.models import TTCNetConfig

ATTENTION = {"attention": {"qk_norm": True}}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "ttc": dict(mixer="attention", interleave="8:1", mixer_options=ATTENTION),
    "transformer": dict(mixer="attention", interleave=None, mixer_options=ATTENTION),
    "mlp": dict(mixer="attention", interleave="8:1", insert="mlp", mixer_options=ATTENTION),
    "mamba": dict(mixer="mamba", interleave=None),
    "mamba2": dict(mixer="mamba2", interleave=None),
    "gdn": dict(mixer="gdn", interleave=None),
    "samba": dict(mixer="samba", interleave=None, mixer_options={"samba": {"window": 27, "qk_norm": True}}),
}
AUGMENTATIONS = ("none", "relabel", "relabel+reveal", "all+reveal")
OF_INSERTED = ("ttc_heads", "interleave", "zero_init", "inserted_lr")  # fields that need inserted layers


@dataclass(frozen=True)
class SudokuTraining:
    """Settings of a run of `ttcnet sudoku train`. Sizes, batch and learning rates are the paper's.

    Args:
        architecture: one of ARCHITECTURES; "mlp" has an MLP of as many parameters in TTC's place.
        steps: number of batches.
        augmentation: see `Feed`; "none" is the paper's setting.
        ema: the share of the running average of the weights that is kept at each step; 0 for none. The average
            is saved as the model.
        heads: of attention, and of TTC layers.
        ttc_heads: of TTC layers, if not as many.
        loops: how many times the blocks are applied.
        recall: every loop starts from the normalised states plus the embeddings.
        loops_per_step: loops that a step of training takes; None is all of them. With fewer, a board stays for several
            steps, and each continues from the states that the last one reached, without their gradients; a share of the
            boards is new at every step. It needs `recall`.
        interleave: "8:1" inserts a layer into the last of every 8 blocks, counted in every loop; None is that, or the
            last of all if they are fewer.
        supervision: which outputs have a loss: those of every "block", of every "loop", or the last alone ("end").
        context: of TTC layers: "token", "head" or "system"; see `TTCLayer`.
        zero_init: inserted layers start with an output of zero.
        inserted_lr: the highest learning rate of inserted layers; None is `lr`. It falls in proportion.
        decay_bases: weight decay on the bases of TTC layers too.
        mlp_width: inside the MLP of a block; None is 8/3 of the width.
    """

    architecture: str = "ttc"
    steps: int = 20_000
    batch: int = 16
    lr: float = 5e-3
    final_lr: float = 5e-4
    warm_up: float = 0.1
    weight_decay: float = 0.1
    clip: float = 1.0
    dropout: float = 0.0
    augmentation: str = "none"
    ema: float = 0.999
    horizon: int = 4
    layers: int = 32
    width: int = 128
    heads: int = 4
    seed: int = 0
    ttc_heads: int | None = None
    loops: int = 1
    recall: bool = False
    loops_per_step: int | None = None
    interleave: str | None = None
    supervision: str = "block"
    context: str = "token"
    zero_init: bool = False
    inserted_lr: float | None = None
    decay_bases: bool = True
    mlp_width: int | None = None

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            check_type(hint, getattr(self, name), name)
        if self.architecture not in ARCHITECTURES:
            rule = f"must be one of {', '.join(ARCHITECTURES)}"
            fail("architecture", rule, repr(self.architecture), "Use one of those.", "unknown-name")
        if self.augmentation not in AUGMENTATIONS:
            rule = f"must be one of {', '.join(AUGMENTATIONS)}"
            fail("augmentation", rule, repr(self.augmentation), "Use one of those.", "unknown-name")
        for field in (
            "steps",
            "batch",
            "layers",
            "width",
            "heads",
            "ttc_heads",
            "loops",
            "loops_per_step",
            "mlp_width",
        ):
            if getattr(self, field) is not None and getattr(self, field) < 1:
                fail(field, "must be 1 or more", getattr(self, field), "Pass a larger number.", "too-small")
            check_count(field, getattr(self, field))
        for field in OF_INSERTED:
            if getattr(self, field) not in (None, False) and ARCHITECTURES[self.architecture]["interleave"] is None:
                rule = f"must be left out for {self.architecture}, which has no TTC layers"
                fail(field, rule, getattr(self, field), 'Leave it out, or pass architecture="ttc".', "conflict")
        if self.loops_per_step is not None:
            if self.loops % self.loops_per_step or self.batch % self.steps_per_board:
                rule = f"must divide loops = {self.loops} into a number of steps that divides batch = {self.batch}"
                fail("loops_per_step", rule, self.loops_per_step, "Pass such a number.", "conflict")
            if not self.recall:
                fail("loops_per_step", "needs recall", self.loops_per_step, "Pass recall too.", "conflict")
        if self.supervision not in SUPERVISION:
            rule = f"must be one of {', '.join(SUPERVISION)}"
            fail("supervision", rule, repr(self.supervision), "Use one of those.", "unknown-name")
        check_context(self.context)
        check_rates(self, "lr", "final_lr", "inserted_lr", zero=True)
        check_seed(self.seed)
        if not 0 <= self.ema < 1:
            fail("ema", "must lie in [0, 1)", self.ema, "Pass 0.999, say, or 0 for none.", "out-of-range")

    @property
    def steps_per_board(self) -> int:
        """Steps that a board stays."""
        return self.loops // (self.loops_per_step or self.loops)

    def model(self) -> TTCNetConfig:
        from ttcnet.models import TTCNetConfig  # late: wrong options are told at once

        options = dict(ARCHITECTURES[self.architecture])
        if options["interleave"] is not None:
            options["interleave"] = self.interleave or f"{min(8, self.layers * self.loops)}:1"
        return TTCNetConfig.sudoku(
            num_hidden_layers=self.layers,
            hidden_size=self.width,
            num_attention_heads=self.heads,
            intermediate_size=self.mlp_width,
            loops=self.loops,
            recall=self.recall,
            supervision=self.supervision,
            ttc_heads=self.ttc_heads,
            ttc_context=self.context,
            zero_init=self.zero_init,
            horizon=self.horizon,
            dropout=self.dropout,
            **options,
        )
