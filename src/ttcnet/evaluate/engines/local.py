"""A language model in this process: any of transformers, a TTC-Net, or a base with an adapter."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ttcnet.adapter.base_with_adapter import with_adapter
from ttcnet.command_options import usable
from ttcnet.errors import fail
from ttcnet.machine.processes import local_rank
from ttcnet.machine.torch_settings import avoid_cudnn
from ttcnet.models.decoding import Decoded, decode, ends_of
from ttcnet.models.loading import causal_lm, tokenizer_of
from ttcnet.nn import ttc_layers
from ttcnet.tasks.chat import prompt

from .base import CUT, Answer, Ask, Groups, Sampling, Watch, unwatched

SHARE = 0.7  # the share of free memory that a batch may take, by estimate


class Local:
    """`model` with `tokenizer`. Batches take as many rows as memory has room for, `most` at a time."""

    def __init__(self, model: Any, tokenizer: Any, most: int | None = None, name: str = "") -> None:
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.most = most or (512 if model.device.type == "cuda" else 32)
        self.ends = ends_of(model, tokenizer)
        pad = tokenizer.pad_token_id
        self.pad = pad if pad is not None else self.ends[0] if self.ends else 0
        self.plans = bool(ttc_layers(model))

    def facts(self) -> dict[str, str]:
        """What a resumed run compares: name, and a hash of the first values of all weights, so that another model under
        the same name is noticed."""
        total = hashlib.sha256()
        for name, weight in sorted(self.model.named_parameters()):
            total.update(f"{name} {tuple(weight.shape)} {weight.detach().flatten()[:8].tolist()}".encode())
        dtype = str(self.model.dtype).removeprefix("torch.")
        weights = total.hexdigest()[:16]
        return {"model": self.name, "kind": type(self.model).__name__, "dtype": dtype, "weights": weights}

    def check(self, asks: Sequence[Ask], max_tokens: int) -> None:
        room = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        longest = max(len(self.prompt(ask)) for ask in asks)
        if room is not None and longest + max_tokens > room:
            remedy = f"Pass --max-tokens {room - longest} or less." if room > longest else "Leave out long examples."
            rule = f"must leave room for prompts of up to {longest} tokens in the {room} that the model takes"
            fail("max-tokens", rule, max_tokens, remedy, "too-long")

    def answers(self, asks: Sequence[Ask], how: Sampling, watch: Watch = unwatched) -> Groups:
        if how.horizon is not None and not self.plans:
            fail("model", "must have TTC layers for a horizon", self.name, "Leave the horizon out.", "no-layers")
        prompts = [self.prompt(ask) for ask in asks]
        waiting = sorted(range(len(asks)), key=lambda number: -len(prompts[number]))  # long ones may not fit: first
        most = self.most
        while waiting:
            rows = min(most, self._fitting(len(prompts[waiting[0]]) + how.max_tokens), len(waiting))
            batch, decoded = waiting[:rows], None
            try:
                decoded = decode(
                    self.model, [prompts[number] for number in batch], [asks[number].seed for number in batch],
                    limit=how.max_tokens, temperature=how.temperature, ends=self.ends, pad=self.pad,
                    stopped=self._stopper(how.stop), watch=watch, names=[asks[number].name for number in batch],
                    horizon=how.horizon,
                )  # fmt: skip
            except torch.OutOfMemoryError:
                if rows == 1:
                    raise
            if decoded is None:  # after the exception, which holds tensors in memory
                torch.cuda.empty_cache()
                most = rows // 2
                continue
            waiting = waiting[rows:]
            yield [
                (number, self._answer(asks[number], len(prompts[number]), row))
                for number, row in zip(batch, decoded, strict=True)
            ]

    def prompt(self, ask: Ask) -> list[int]:
        """Make the tokens of a question, by the same chat template as fine-tuning."""
        return [*prompt(ask.messages, self.tokenizer), *self._prefix(ask)]

    def _prefix(self, ask: Ask) -> list[int]:
        return list(self.tokenizer(ask.prefix, add_special_tokens=False).input_ids) if ask.prefix else []

    def _answer(self, ask: Ask, prompt: int, row: Decoded) -> Answer:
        before = self._prefix(ask)  # decoded along, since a token may look otherwise at the beginning of a text
        text = self.tokenizer.decode([*before, *row.tokens], skip_special_tokens=True)
        text = text[len(self.tokenizer.decode(before, skip_special_tokens=True)) :]
        return Answer(text, prompt, len(row.tokens), "stop" if row.ended else CUT, row.mean_logprob)

    def _stopper(self, stop: tuple[str, ...]) -> Callable[[Tensor], Tensor] | None:
        def stopped(tail: Tensor) -> Tensor:
            texts = self.tokenizer.batch_decode(tail)
            return torch.tensor([any(end in text for end in stop) for text in texts], device=tail.device)

        return stopped if stop else None

    def _fitting(self, length: int) -> int:
        """How many rows of so many tokens fit, by a guarded estimate of the cache and of the scores; at least one."""
        config, size = self.model.config.get_text_config(), self.model.dtype.itemsize
        heads = getattr(config, "num_attention_heads", 1)
        head = getattr(config, "head_dim", None) or config.hidden_size // heads
        keys = 2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * head * size
        row = 2 * length * keys + 32 * config.vocab_size
        return max(1, int(SHARE * _free(self.model.device) / row))


def load(
    model: str,
    adapter_folder: Path | None = None,
    most: int | None = None,
    device: str | None = None,
    *,
    trust_remote_code: bool = False,
) -> Local:
    """The model in a folder, or of that name on the Hub, with an adapter if one is given; on a GPU if there is one and
    no other device is named, in bfloat16 there, on that of this process if there are several. Code that comes with it
    runs only if told so."""
    avoid_cudnn()
    place = usable(device)
    if place == "cuda":
        place = f"cuda:{local_rank() % torch.cuda.device_count()}"
    dtype = torch.bfloat16 if place.startswith("cuda") else torch.float32
    tokenizer = tokenizer_of(model, trust_remote_code=trust_remote_code)
    net = causal_lm(model, dtype, trust_remote_code=trust_remote_code)
    name = model
    if adapter_folder is not None:
        net, name = with_adapter(net, adapter_folder), f"{model} + {adapter_folder}"
    return Local(nn.Module.to(net, place), tokenizer, most, name)


def _free(device: torch.device) -> int:
    """Bytes that are free, or held by torch for reuse."""
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + idle
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 4 << 30
