"""The model `ttcnet` of lm_eval: its Hugging Face model, with an adapter and a horizon.

lm_eval finds the models of other packages once they are imported. To use its own command line with this one:

    python -m ttcnet.evaluate.lm_eval --model ttcnet --model_args pretrained=FOLDER,horizon=8 --tasks hellaswag
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from torch import Tensor
from transformers import AutoModelForCausalLM

from ttcnet.adapter.base_with_adapter import with_adapter
from ttcnet.command_options import usable
from ttcnet.errors import fail, not_finite
from ttcnet.machine.torch_settings import avoid_cudnn
from ttcnet.models.horizon_and_loops import horizon, horizon_of
from ttcnet.models.loading import Whole

from .answer_cache import AnswerCache

SHOWN = 60  # characters of a text that a message quotes


@register_model("ttcnet")
class TTCNetLM(HFLM):  # type: ignore[misc, unused-ignore]
    """Any causal language model of transformers.

    Args:
        pretrained: folder or name of the Hub, or a model.
        adapter: folder of an adapter for it.
        horizon: steps that TTC layers look ahead, while it answers; None is the model's own.
        device: by default cuda if there is one.
        options: of lm_eval's HFLM: batch_size, dtype, max_length, tokenizer, ...
    """

    _model: Any
    AUTO_MODEL_CLASS: Any

    def __init__(
        self,
        pretrained: Any,
        adapter: str | None = None,
        horizon: int | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        self.adapter, self.steps = adapter, horizon
        if device == "cuda:0" and not torch.cuda.is_available():
            device = None  # lm_eval passes it if the user named no device
        avoid_cudnn()
        options.setdefault("backend", "causal")  # else lm_eval wonders at kinds of models that it does not list
        super().__init__(pretrained, device=usable(device), **options)
        self.answer_cache: AnswerCache | None = None
        self.model.register_forward_hook(self._check, with_kwargs=True)
        with self.planning():
            self.horizon = horizon_of(self.model)

    def _create_model(self, *args: Any, **options: Any) -> None:
        if self.AUTO_MODEL_CLASS is AutoModelForCausalLM:
            self.AUTO_MODEL_CLASS = Whole  # which makes up no weights
        super()._create_model(*args, **options)
        if self.adapter is not None:
            self._model = with_adapter(self._model, self.adapter)
            self._config = self._model.config

    def _check(self, _: Any, args: tuple[Any, ...], given: dict[str, Any], output: Any) -> None:
        """Fail if scores are not finite: lm_eval would report NaN, or an accuracy made of it."""
        broken = (~output.logits.amax(-1).isfinite()).any(-1).nonzero()[:, 0]
        if len(broken):
            ids = args[0] if args else given["input_ids"]
            text = self.tok_decode(ids[broken[0]].tolist(), skip_special_tokens=True)
            not_finite(f"the text that ends in {text[-SHOWN:]!r}")

    def planning(self) -> Any:
        """A `with` block in which the model has the horizon of this evaluation."""
        return nullcontext() if self.steps is None else horizon(self.model, self.steps)

    def _model_call(self, *args: Any, **options: Any) -> Tensor:
        with self.planning():
            return super()._model_call(*args, **options)

    def _model_generate(self, *args: Any, **options: Any) -> Tensor:
        with self.planning():
            return super()._model_generate(*args, **options)

    def keep(self, answer_cache: AnswerCache) -> None:
        """Write all answers to a cache, and do not ask again for those that it has."""
        self.answer_cache = answer_cache
        self.set_cache_hook(answer_cache)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        return self._answers("loglikelihood", super().loglikelihood, requests, disable_tqdm)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        return self._answers("loglikelihood_rolling", super().loglikelihood_rolling, requests, disable_tqdm)

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        longest = max((request.args[1].get("max_gen_toks", 0) for request in requests), default=0)
        if longest >= self.max_length:
            rule = f"must be less than the {self.max_length} that the model takes in all"
            fail("max_tokens", rule, longest, "Pass less: --max-tokens, or max_gen_toks in the task.", "too-long")
        return self._answers("generate_until", super().generate_until, requests, disable_tqdm)

    def _answers(self, kind: str, ask: Callable[..., list[Any]], requests: list[Any], disable_tqdm: bool) -> list[Any]:
        """The answers to all requests, asking for those alone that the cache does not have."""
        if self.answer_cache is None:
            return ask(requests, disable_tqdm=disable_tqdm)
        answers = [self.answer_cache.take(kind, request.args) for request in requests]
        open_ones = [request for request, answer in zip(requests, answers, strict=True) if answer is None]
        new = iter(ask(open_ones, disable_tqdm=disable_tqdm) if open_ones else ())
        return [next(new) if answer is None else answer for answer in answers]
