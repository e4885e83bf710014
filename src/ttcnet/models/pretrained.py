"""Shared by all models of ttcnet, beyond transformers' conventions."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor, nn

from ttcnet.nn import Inserted, TTCLayer
from ttcnet.nn.mixers import Mixer
from ttcnet.storage.writing import open_up

from .hub import HUB_OPTIONS, upload, write_card

ALIGNMENT = 64  # bytes: where torch starts the tensors that it makes in main memory


class Conventions:
    """Added by models with our layers to transformers' PreTrainedModel; named before it among the bases.

    Layers start with their own initial values, and a model is saved, and goes to the Hub, with a card.
    """

    config: Any
    uses_cache: bool  # config.use_cache when the model was made: transformers' Trainer sets it to False for good

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
        self.uses_cache = config.use_cache

    def _initialize_weights(self, module: nn.Module, *_: Any) -> None:
        # transformers would skip modules without parameters of their own, since it takes models from elsewhere to
        # overwrite loaded weights; but torch's initialisers, as it patches them, leave loaded weights alone
        super()._initialize_weights(module, False)  # type: ignore[misc]

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, Mixer | TTCLayer):
            module.reset_parameters()
        elif isinstance(module, Inserted):
            module.reset_outputs()
        else:
            super()._init_weights(module)  # type: ignore[misc]

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model as transformers does. On the same machine it computes the same as when it was saved, to the
        bit."""
        loaded = super().from_pretrained(*args, **kwargs)  # type: ignore[misc]
        align(loaded[0] if isinstance(loaded, tuple) else loaded)  # or with a report of the loaded weights
        return loaded

    def card(self) -> str:
        raise NotImplementedError

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Tensor] | None = None,
        push_to_hub: bool = False,
        **kwargs: Any,
    ) -> None:
        """Save as transformers does, and write a model card if the folder has none. `use_cache` in config.json is the
        value that the model was made or loaded with."""
        hub = {name: kwargs.pop(name) for name in HUB_OPTIONS if name in kwargs}
        now, self.config.use_cache = self.config.use_cache, self.uses_cache
        try:
            super().save_pretrained(  # type: ignore[misc]
                save_directory, is_main_process=is_main_process, state_dict=state_dict, **kwargs
            )
        finally:
            self.config.use_cache = now
        if is_main_process and Path(save_directory).is_dir():
            for path in Path(save_directory).glob("*.safetensors"):
                open_up(path)  # safetensors writes files that only their owner may read
            write_card(self.card(), save_directory)
        if is_main_process and push_to_hub:
            upload(save_directory, **{"repo_id": Path(save_directory).name} | hub)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Upload the model with its card. Options: commit_message, private, token, revision, create_pr, and those of
        save_pretrained."""
        hub = {name: kwargs.pop(name) for name in HUB_OPTIONS if name in kwargs}
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, **kwargs)
            return upload(folder, repo_id=repo_id, **hub)


def align(model: nn.Module) -> None:
    """Move weights in main memory to where torch would have put them.

    transformers leaves loaded weights in the mapping of their file, where they start at multiples of 8 bytes. On some
    CPUs, AMD's among them, MKL adds up in another order where a matrix does not start at a multiple of 16 bytes.
    """
    for tensor in chain(model.parameters(), model.buffers()):
        held = tensor.data
        if type(held) is Tensor and held.device.type == "cpu" and held.data_ptr() % ALIGNMENT:
            tensor.data = held.clone()
