"""The configuration of TTC-Net models."""

from __future__ import annotations

from inspect import signature
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from ttcnet.bounds import check_size
from ttcnet.errors import fail
from ttcnet.nn.mixers import KINDS
from ttcnet.nn.options import SUPERVISION, check_context, check_homogeneous, say_context_of_before

from .pattern import TTC, BlockSpec, blocks_of, interleaved

SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings", "loops", "ttc_heads", "ttc_state_size", "ttc_action_size", "ttc_rank",
)  # fmt: skip


@strict
class TTCNetConfig(PreTrainedConfig):  # type: ignore[misc, unused-ignore]
    """The layers and sizes of a TTC-Net. Names follow transformers where it has them.

    Attributes:
        vocab_size: number of tokens.
        hidden_size: width of a token.
        num_hidden_layers: number of blocks; follows from `pattern` if that is given.
        loops: how many times the blocks are applied, one stack after the other, with the same weights, unless a call
            gives another number.
        recall: every loop starts from the normalised states of the last one plus the embeddings, so that states neither
            grow nor forget the input. Otherwise it starts from the states alone.
        num_attention_heads: heads of every mixer.
        intermediate_size: width of the MLP inside; None is 8/3 of hidden_size.
        mixer: the mixer of all blocks, one of `ttcnet.nn.mixers.KINDS`, where `pattern` does not say.
        interleave: "8:1" inserts 1 layer into the last of every 8 blocks; None inserts none. Blocks count in every
            loop: with 1 block, "8:1" is every eighth loop.
        insert: which layer that is: "ttc", or a mixer in its place.
        pattern: the layers one by one instead; see `ttcnet.models.pattern`.
        mixer_options: options of mixers by kind, such as {"attention": {"qk_norm": True}}. A mixer in TTC's place
            is named with a plus ("+gdn"), and has as many parameters as a TTC layer unless `inner` is given.
        causal: tokens see the past alone. Otherwise they see each other, and positions are learned.
        max_position_embeddings: learned positions, where not causal.
        grid: where not causal, side of a square grid of boxes, such as 9 for Sudoku: row, column and box of a token are
            embedded beside its position. None embeds the position alone.
        zero_init: inserted layers start with an output of zero.
        supervision: where labels are given, which outputs have a loss: those of every "block", of every "loop", or the
            last alone ("end"). None is every block for cells, and the end for a language model.
        ttc_heads: heads of a TTC layer; None is num_attention_heads.
        ttc_state_size: state size of a TTC head.
        ttc_action_size: its action size; None is the state size.
        ttc_rank: number of basis matrices.
        ttc_context: how a token writes its problems: "token", from the whole token; "head", each from its head's own
            state, as in the paper's text; or "system", dense dynamics from the whole token. See `TTCLayer`.
        ttc_time_homogeneous: no time modulation (an ablation of the paper): "pure", or True as in earlier models; see
            `TTCLayer`.
        horizon: steps that TTC layers look ahead, unless a call gives another.
        dropout: share of each branch dropped in training before it is added.
        norm_eps: of all norms.
        initializer_range: standard deviation of embeddings and of the head at the start; layers have their own.
        use_cache: return a cache for generation, unless a call decides otherwise.
        tie_word_embeddings: the head of a language model shares the weights of the embedding.
    """

    model_type = "ttcnet"
    auto_map: ClassVar[dict[str, str]] = {}  # no code comes with a model; TRL asks
    keys_to_ignore_at_inference = ["past_key_values", "block_logits"]  # noqa: RUF012

    vocab_size: int = 32000
    hidden_size: int = 1024
    num_hidden_layers: int = 16
    loops: int = 1
    recall: bool = False
    num_attention_heads: int = 16
    intermediate_size: int | None = None
    mixer: str = "attention"
    interleave: str | None = "8:1"
    insert: str = "ttc"
    pattern: list[str] | None = None
    mixer_options: dict[str, Any] | None = None
    causal: bool = True
    max_position_embeddings: int = 2048
    grid: int | None = None
    zero_init: bool = False
    supervision: str | None = None
    ttc_heads: int | None = None
    ttc_state_size: int = 16
    ttc_action_size: int | None = None
    ttc_rank: int = 16
    ttc_context: str = "token"
    ttc_time_homogeneous: bool | str = False
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
            if not isinstance(self.pattern, list) or not all(isinstance(name, str) for name in self.pattern):
                remedy = "Pass ['attention', 'ttc'], say."
                fail("pattern", "must be a list of names", repr(self.pattern), remedy, "type")
            self.num_hidden_layers = len(blocks_of(self.pattern))
            self.interleave = None
        if self.mixer_options is None:
            self.mixer_options = {}
        check_labels(kwargs)
        super().__post_init__(**kwargs)
        check(self)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Read a configuration as transformers does. If it is from before contexts could be chosen, its context is
        "head"."""
        if "ttc_context" not in config_dict and "ttc_rank" in config_dict:
            names = [config_dict.get("interleave") and TTC, *(config_dict.get("pattern") or ())]
            config_dict = config_dict | {"ttc_context": "head"}
            if any(name and (name == TTC or name.startswith("+")) for name in names):
                say_context_of_before("The configuration")
        given, known = kwargs.get("ttc_context"), config_dict.get("ttc_context")
        if None not in (given, known) and given != known:
            remedy = "Leave it out, or build a new model from a TTCNetConfig."
            fail("ttc_context", f"must be {known!r}, which the model was saved with", repr(given), remedy, "context")
        return super().from_dict(config_dict, **kwargs)

    @property
    def blocks(self) -> list[BlockSpec]:
        """The layers of every block."""
        layers = self.num_hidden_layers
        return blocks_of(self.pattern or interleaved(self.interleave, layers, self.mixer, self.insert, self.loops))

    @property
    def attends(self) -> bool:
        """Whether tokens are mixed by attention alone, in every block and with one window."""
        mixers = {spec.mixer for spec in self.blocks}
        inserted = {kind for spec in self.blocks for kind in spec.inserted} - {TTC, "mlp"}
        return self.causal and mixers == {"attention"} and inserted <= mixers and len(self._windows) == 1

    @property
    def sliding_window(self) -> int | None:
        """The window of attention, by the name that transformers has for it; None is no limit."""
        return next(iter(self._windows)) if self.attends else None

    @sliding_window.setter
    def sliding_window(self, window: int | None) -> None:
        given = self.mixer_options or {}
        self.mixer_options = given | {kind: given.get(kind, {}) | {"window": window} for kind in self._attention}

    @property
    def _windows(self) -> set[int | None]:
        return {(self.mixer_options or {}).get(kind, {}).get("window") for kind in self._attention}

    @property
    def _attention(self) -> set[str]:
        """The names of attention in `mixer_options`."""
        kinds = {spec.mixer for spec in self.blocks} | {f"+{kind}" for spec in self.blocks for kind in spec.inserted}
        return kinds & {"attention", "+attention"}

    @classmethod
    def tiny(cls, **changes: Any) -> TTCNetConfig:
        """A model for tests and first steps: 4 blocks of width 64."""
        sizes: dict[str, Any] = dict(
            vocab_size=256, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, interleave="4:1"
        )
        return cls(**(sizes | changes))

    @classmethod
    def base(cls, **changes: Any) -> TTCNetConfig:
        """A model for experiments on one GPU: 12 blocks of width 1024, one with a TTC layer."""
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


def check_labels(given: dict[str, Any]) -> None:
    """Fail if a configuration is given too many labels, before transformers names each."""
    if (labels := given.get("num_labels")) is not None:
        check_size("num_labels", labels, 0, "Pass the number of classes.")


def check(config: TTCNetConfig) -> None:
    """Fail if the configuration makes no model."""
    for field in (*SIZES, "horizon", "grid"):
        optional = field in ("intermediate_size", "ttc_heads", "ttc_action_size", "grid")
        if getattr(config, field) is not None or not optional:
            least = 0 if field == "horizon" else 1
            check_size(field, getattr(config, field), least, "Pass such a number.")
    if config.hidden_size % config.num_attention_heads:
        rule = f"must divide hidden_size = {config.hidden_size}"
        fail("num_attention_heads", rule, config.num_attention_heads, "Pass a number of heads that does.", "conflict")
    if not 0 <= config.dropout < 1:
        fail("dropout", "must lie in [0, 1)", config.dropout, "Pass the share to drop, such as 0.1.", "out-of-range")
    if not config.norm_eps > 0:
        fail("norm_eps", "must be positive", config.norm_eps, "Pass a small number, such as 1e-6.", "out-of-range")
    if config.pad_token_id is not None and not 0 <= config.pad_token_id < config.vocab_size:
        rule = f"must be a token below vocab_size = {config.vocab_size}"
        fail("pad_token_id", rule, config.pad_token_id, "Pass one, or None.", "out-of-range")
    for field, known in (("mixer", KINDS), ("insert", (TTC, *KINDS))):
        if getattr(config, field) not in known:
            remedy = "Use one of those."
            fail(field, f"must be one of {', '.join(known)}", repr(getattr(config, field)), remedy, "unknown-name")
    check_context(config.ttc_context)
    check_homogeneous(config.ttc_time_homogeneous)
    if config.supervision not in (None, *SUPERVISION):
        rule = f"must be one of {', '.join(SUPERVISION)}, or None"
        fail("supervision", rule, repr(config.supervision), "Use one of those.", "unknown-name")
    _check_loops(config)
    _check_grid(config)
    _check_options(config)


def _check_loops(config: TTCNetConfig) -> None:
    for spec in config.blocks:
        for name, every in zip(spec.layer_names, (spec.every, *spec.each), strict=True):
            if every > config.loops:
                remedy = f"Pass loops={every} or more, or leave {name.partition('@')[0]} without a number."
                fail("pattern", f"must name passes among the {config.loops} loops", repr(name), remedy, "out-of-range")


def _check_grid(config: TTCNetConfig) -> None:
    side = config.grid
    if side is None:
        return
    if round(side**0.5) ** 2 != side:
        fail("grid", "must be a square number, a grid of boxes", side, "Pass 9 for Sudoku, or None.", "out-of-range")
    if config.causal:
        fail("grid", "needs causal=False", side, "Pass causal=False, or grid=None.", "conflict")
    if config.max_position_embeddings > side * side:
        rule = f"must be at most the {side * side} cells of the grid"
        fail("max_position_embeddings", rule, config.max_position_embeddings, f"Pass {side * side}.", "too-large")


def _check_options(config: TTCNetConfig) -> None:
    given = config.mixer_options or {}
    if not isinstance(given, dict) or not all(isinstance(options, dict) for options in given.values()):
        remedy = 'Pass {"attention": {"qk_norm": True}}, say.'
        fail("mixer_options", "must be dictionaries by kind of mixer", repr(given), remedy, "type")
    used = {spec.mixer for spec in config.blocks}
    used |= {f"+{kind}" for spec in config.blocks for kind in spec.inserted if kind != TTC}
    for name, options in given.items():
        if name.removeprefix("+") not in KINDS:
            rule = f"must be of {', '.join(KINDS)}, or of those with a plus"
            fail("mixer_options", rule, repr(name), "Rename it.", "unknown-field")
        if name not in used:
            remedy = f"The model has {', '.join(sorted(used))}: name one of those, or leave the options out."
            fail("mixer_options", "must be of a mixer that the model has", repr(name), remedy, "unknown-field")
        known = [*signature(KINDS[name.removeprefix("+")].__init__).parameters][2:]
        for option in options:
            if option not in known or option == "causal":
                rule = f"of {name} must be among {', '.join(x for x in known if x != 'causal')}"
                fail("mixer_options", rule, repr(option), "Correct it, or leave it out.", "unknown-field")
