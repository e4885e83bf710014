"""What a TTC-Net remembers while it generates: the states of its mixers. TTC layers have none."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ttcnet.errors import fail
from ttcnet.nn.mixers import Mixer, State


class MixerCache(Cache):  # type: ignore[misc, unused-ignore]
    """States of mixers, made when each is first asked for, and the number of tokens seen."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.states: dict[int, State | None] = {}
        self.seen, self.batch = 0, 0
        self.loops: int | None = None  # of the model that fills it: each loop has states of its own

    def state(self, index: int, mixer: Mixer, tokens: Tensor) -> State | None:
        """The state of mixer number `index`, for a batch such as `tokens` (batch, length, width)."""
        self.batch = tokens.shape[0]
        if index not in self.states:
            self.states[index] = mixer.new_state(tokens.shape[0], tokens.device, tokens.dtype)
        return self.states[index]

    def check_loops(self, loops: int) -> None:
        """That these are the loops that it was filled with."""
        if self.seen and self.loops not in (None, loops):
            remedy = f"Pass loops={self.loops}, or start with a new cache."
            fail("loops", f"must be the {self.loops} that past_key_values was made with", loops, remedy)
        self.loops = loops

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

    def crop(self, max_length: int) -> None:
        raise NotImplementedError("A MixerCache cannot forget tokens: recurrent states hold them all. Start a new one.")

    def reset(self) -> None:
        self.states.clear()
        self.seen = 0
