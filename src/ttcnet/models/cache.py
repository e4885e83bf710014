"""The memory of a TTC-Net while it generates: the states of its mixers. TTC layers have none."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache
from transformers.generation.configuration_utils import GenerationMode

from ttcnet.errors import fail
from ttcnet.nn.mixers import Mixer, State


class MixerCache(Cache):  # type: ignore[misc, unused-ignore]
    """States of mixers, made when each is first asked for, and the number of tokens seen."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.states: dict[int, State | None] = {}
        self.seen, self.batch = 0, 0
        self.loops: int | None = None  # loops of the model that fills it: each loop has states of its own

    def state(self, index: int, mixer: Mixer, tokens: Tensor) -> State | None:
        """The state of mixer number `index`, for a batch such as `tokens` (batch, length, width)."""
        self.batch = tokens.shape[0]
        if index not in self.states:
            self.states[index] = mixer.new_state(tokens.shape[0], tokens.device, tokens.dtype)
        return self.states[index]

    def __len__(self) -> int:
        return len(self.states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch = len(beam_idx)
        for state in self.states.values():
            if state is not None:
                state.reorder(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.reorder_cache(torch.arange(self.batch).repeat_interleave(repeats))

    @property
    def is_croppable(self) -> bool:
        return False

    def crop(self, tokens_to_remove: int) -> None:
        remedy = "Recurrent states hold all tokens: start a new cache."
        fail("past_key_values", "cannot forget tokens", "a MixerCache", remedy, "stateful", NotImplementedError)

    def reset(self) -> None:
        self.states.clear()
        self.seen = 0


def check_generation(settings: Any, mode: Any) -> None:
    """Fail if `generate` is asked for something that states of mixers cannot do."""
    if settings.cache_implementation not in (None, "dynamic", "dynamic_full"):
        remedy = "Leave it out: states of mixers have a cache of their own."
        fail("cache_implementation", "must be None", repr(settings.cache_implementation), remedy, "stateful")
    if mode == GenerationMode.ASSISTED_GENERATION:
        rule, remedy = "must be without an assistant: mixers that remember cannot go back", "Leave it out."
        fail("generate", rule, "assistant_model, prompt_lookup_num_tokens or the like", remedy, "stateful")


def check_loops_of_cache(cache: Any, loops: int) -> None:
    """Fail if a cache, ours or transformers', was filled with another number of loops."""
    if cache is None:
        return
    before = getattr(cache, "loops", None)
    if before is not None and before != loops and cache.get_seq_length():
        remedy = f"Pass loops={before}, or start with a new cache."
        fail("loops", f"must be the {before} that past_key_values was made with", loops, remedy, "cache")
    cache.loops = loops
