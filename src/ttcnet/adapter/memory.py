"""States of inserted mixers while a model generates, beside the base model's keys and values.

The base model's cache has a part for every decoder layer, which holds its keys and values, and which is reordered,
reset and copied with the cache, dynamic or static. So that is the place of the states of the mixers in that decoder
layer go: the part is given a class of its own kind that also looks after them. TTC layers remember nothing.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from ttcnet.errors import fail
from ttcnet.nn.mixers import KeysAndValues, Mixer, State


class Remembering(CacheLayerMixin):  # type: ignore[misc, unused-ignore]
    """A decoder layer's part of a cache, with the states of its mixers; named before its class among the bases."""

    states: list[State | None]  # one a mixer, made when first asked for
    behind: int  # tokens whose keys are here, and which the mixers have not seen yet

    def update(self, key_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        self.behind += key_states.shape[-2]
        return super().update(key_states, *args, **kwargs)  # type: ignore[safe-super, unused-ignore]

    def seen(self, mixers: list[Mixer], tokens: Tensor) -> list[State | None]:
        """The states from which `mixers` continue to `tokens` (batch, length, width), whose keys were just added."""
        if self.behind != tokens.shape[1]:
            rule = "must have been filled by this model with its inserted mixers enabled"
            missed = f"{self.behind - tokens.shape[1]} tokens that the mixers have not seen"
            fail("past_key_values", rule, missed, "Start again with a new cache.", "cache")
        self.behind = 0
        if not self.states:
            self.states = [mixer.new_state(tokens.shape[0], tokens.device, tokens.dtype) for mixer in mixers]
        return self.states

    def reset(self) -> None:
        super().reset()
        self.states, self.behind = [], 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        super().reorder_cache(beam_idx)  # type: ignore[safe-super, arg-type, unused-ignore]
        self._reorder(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)  # type: ignore[misc, unused-ignore]
        self._reorder(torch.as_tensor(indices))

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)  # type: ignore[misc, unused-ignore]
        assert self.keys is not None
        batch = self.keys.shape[0] // repeats
        self._reorder(torch.arange(batch).repeat_interleave(repeats))

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        above: Any = super()
        return bool(above.is_croppable) and all(isinstance(state, KeysAndValues) for state in self.states)

    def crop(self, tokens_to_remove: int) -> None:
        if not all(isinstance(state, KeysAndValues) for state in self.states):
            value = "a cache with states of inserted mixers"
            remedy = "Recurrent states hold all tokens: start a new cache; assisted generation is not supported."
            fail("past_key_values", "cannot forget tokens", value, remedy, "stateful", NotImplementedError)
        above: Any = super()
        before = self.get_seq_length()
        above.crop(tokens_to_remove)
        for state in self.states:
            assert isinstance(state, KeysAndValues)
            state.forget(before - self.get_seq_length())

    def _reorder(self, index: Tensor) -> None:
        for state in self.states:
            if state is not None:
                state.reorder(index)


def remember(past_key_values: Any, index: int) -> Remembering:
    """Part number `index` of a cache, to which keys have just been added."""
    part = past_key_values.layers[index]
    if not isinstance(part, Remembering):
        filled = int(part.get_seq_length())
        kind: Any = type(part)
        part.__class__ = _remembering(kind)
        part.states, part.behind = [], filled
    assert isinstance(part, Remembering)
    return part


@cache
def _remembering(kind: Any) -> Any:
    return type(f"Remembering{kind.__name__}", (Remembering, kind), {})
