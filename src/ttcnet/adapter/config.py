"""Which layers are inserted into a pretrained model, and where."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from ttcnet.bounds import check_size
from ttcnet.errors import fail
from ttcnet.nn.options import (
    TTC,
    check_context,
    check_gain,
    check_homogeneous,
    check_insert,
    parse_interleave,
    say_context_of_before,
)

FORGETFUL = (TTC, "mlp")  # these work on one token at a time
LAYER = (
    "heads", "state_size", "action_size", "rank", "context", "horizon", "time_homogeneous", "dropout", "zero_init",
    "action_gain",
)  # fmt: skip
SIZES = {"heads": 1, "state_size": 1, "action_size": 1, "rank": 1, "horizon": 0}  # and the least that each may be


@dataclass(frozen=True)
class TTCAdapterConfig:
    """Says which layers are inserted, and where.

    Args:
        every: 8 inserts a layer into the last of every 8 decoder layers, between attention and MLP; "16:2" inserts 2
            into the last of every 16.
        insert: "ttc", or a mixer in its place, one of `ttcnet.nn.mixers.KINDS`, with as many parameters.
        heads: problems per token of a TTC layer; heads of a mixer in its place.
        state_size: n, the size of a problem's state.
        action_size: m, the size of its action; None means n.
        rank: number of basis matrices.
        context: how a token writes its problems: "token", from the whole token; "head", each from its head's own
            state, as in the paper's text; or "system", dense dynamics from the whole token. See `TTCLayer`.
        horizon: steps that a plan looks ahead; see `set_horizon`.
        time_homogeneous: the problem is the same at every step of the horizon (an ablation of the paper): "pure", or
            True as in earlier runs; see `TTCLayer`.
        dropout: dropout on the output of a layer in training.
        zero_init: the output of the layers starts at zero, so that the model starts unchanged.
        action_gain: initial weights of the norm of TTC's actions. A larger value lets the output learn faster than the
            rest of a layer.

    Examples:
        >>> TTCAdapterConfig(every="4:2", heads=8).places(8)
        {3: 2, 7: 2}
    """

    every: int | str = 8
    insert: str = TTC
    heads: int = 16
    state_size: int = 16
    action_size: int | None = None
    rank: int = 16
    horizon: int = 8
    time_homogeneous: bool | str = False
    dropout: float = 0.0
    zero_init: bool = True
    action_gain: float = 1.0
    context: str = "token"

    def __post_init__(self) -> None:
        for field, least in SIZES.items():
            if getattr(self, field) is not None or field != "action_size":
                check_size(field, getattr(self, field), least, f"Pass such a number, as {field}=16.")
        check_homogeneous(self.time_homogeneous)
        if not isinstance(self.zero_init, bool):
            fail("zero_init", "must be True or False", repr(self.zero_init), "Pass one of them.", "type")
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            remedy = "Pass the share to drop, such as 0.1."
            fail("dropout", "must lie in [0, 1)", repr(self.dropout), remedy, "out-of-range")
        check_context(self.context)
        check_gain(self.action_gain)
        check_insert(self.insert)
        parse_interleave("every", self.every)

    def places(self, layers: int) -> dict[int, int]:
        """How many layers are inserted into which of a model's decoder layers, counted from 0."""
        blocks, each = parse_interleave("every", self.every)
        if blocks > layers:
            remedy = f"Pass every={layers} or less."
            fail("every", f"must fit the model's {layers} decoder layers", repr(self.every), remedy, "too-large")
        return dict.fromkeys(range(blocks - 1, layers, blocks), each)

    @property
    def remembers(self) -> bool:
        """Whether the inserted layers carry something from token to token."""
        return self.insert not in FORGETFUL

    def layer_options(self, width: int) -> dict[str, Any]:
        """Options of the TTC layer that is inserted, or that sets the number of parameters."""
        return {"width": width} | {name: getattr(self, name) for name in LAYER}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any], source: str | None = None) -> TTCAdapterConfig:
        """The configuration that `to_dict` gave. If it was kept somewhere, `source`, it may be from before there was a
        choice of context: then it is "head", with a warning."""
        if source is not None and "context" not in values:
            say_context_of_before(source)
            values = values | {"context": "head"}
        known = [field.name for field in fields(cls)]
        for name in values:
            if name not in known:
                remedy = "Correct it, or use the version of ttcnet that wrote it."
                fail("TTCAdapterConfig", f"has the fields {', '.join(known)}", repr(name), remedy, "unknown-field")
        return cls(**values)
