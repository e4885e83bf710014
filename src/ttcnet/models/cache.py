"""What a TTC-Net remembers while it generates: the states of its mixers. TTC layers have none."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from ttcnet.nn.mixers import Mixer, State


class MixerCache(Cache):  # type: ignore[misc, unused-ignore]
    """States of mixers, made when each is first asked for, and the number of tokens seen."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.states: dict[int, State | None] = {}
        self.seen, self.batch = 0, 0

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
        raise NotImplementedError("A MixerCache cannot forget tokens: recurrent states hold them all. Start a new one.")

    def reset(self) -> None:
        self.states.clear()
        self.seen = 0
