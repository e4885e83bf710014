"""The TTC layer: plan before you predict."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from ttcnet.bounds import check_size, check_weights
from ttcnet.errors import fail
from ttcnet.lqr import ModulatedLQR, Solution, StationaryLQR, plan
from ttcnet.lqr.checks import FLOATS, not_traced
from ttcnet.lqr.checks import horizon as check_horizon
from ttcnet.lqr.plan import NAMES
from ttcnet.nn.options import check_context, check_gain, check_homogeneous, context_of

from .context import CONTEXTS, Affine, Context
from .plans import whole_plans
from .replay import Replays, as_built, may_replay
from .system import SystemContext

Problem = ModulatedLQR | StationaryLQR
KINDS: dict[str, type[Context] | type[SystemContext]] = {**CONTEXTS, SystemContext.kind: SystemContext}

# parts of the layer: their names and classes
PARTS: tuple[tuple[str, type[nn.Module]], ...] = (
    ("norm", nn.RMSNorm), ("project", nn.Linear), ("action_norm", nn.RMSNorm), ("out", nn.Linear),
)  # fmt: skip


class TTCLayer(nn.Module):
    """Test-time control: every token writes small optimal-control problems and takes their first optimal actions.

        x + W_out norm(plan(context(W norm(x))))          the last norm is left out with context "system"

    The layer works on one token at a time, so caches, packing and padding need no care.

    Args:
        width: size of a token.
        heads: problems per token, each with its own state.
        state_size: n, the size of a head's state.
        action_size: m, the size of a head's action; None means n.
        rank: number of basis matrices that B, and likewise Q, are combined from.
        context: how a token writes its problems. "token": the whole token writes the problem of every head. "head":
            each head writes its own from its own state alone, as in the paper's text. "system": the whole token writes
            dense dynamics, the same at every step, and actions are not normalised; for tokens that describe a system to
            act in.
        horizon: steps that a plan looks ahead, unless a call gives its own.
        dropout: dropout on the layer's output in training.
        zero_init: start W_out at zero, so that the layer starts as the identity. Use it in pretrained models.
        action_gain: initial weights of the norm of the actions. A larger value gives W_out more effect, and lets it
            learn faster than the rest of the layer.
        time_homogeneous: the problem is the same at every step of the horizon (an ablation of the paper). "pure"
            removes the decays and changes nothing else. True also changes the activation of a, as in earlier layers.
        eps: epsilon of the norms.
        backend: the backend of `ttcnet.lqr.plan`.
        device: device of the parameters; None is torch's default. On "meta" they take no memory: call
            `layer.to_empty(device=...)`, then `layer.reset_parameters()`.
        dtype: dtype of the parameters; None is torch's default. Plans are computed in float32 or float64 anyway.

    Examples:
        >>> import torch
        >>> from ttcnet.nn import TTCLayer
        >>> layer = TTCLayer(64, heads=4, horizon=8)
        >>> y = layer(torch.randn(2, 10, 64))                # the layer's own horizon
        >>> y = layer(torch.randn(2, 10, 64), horizon=16)    # look further
        >>> y, solution = layer(torch.randn(2, 10, 64), return_plan=True)
        >>> solution.h.shape                                 # batch, length, heads, steps 0..T, n
        torch.Size([2, 10, 4, 9, 16])
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        state_size: int = 16,
        action_size: int | None = None,
        rank: int = 16,
        context: str = "token",
        horizon: int = 8,
        dropout: float = 0.0,
        zero_init: bool = False,
        action_gain: float = 1.0,
        time_homogeneous: bool | str = False,
        eps: float = 1e-6,
        backend: str = "auto",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        action_size = state_size if action_size is None else action_size
        sizes = {"width": width, "heads": heads, "state_size": state_size, "action_size": action_size, "rank": rank}
        for field, value in sizes.items():
            check_size(field, value, 1, f"Pass a size, such as {field}=16.")
        check_weights(**sizes)
        self.width, self.heads, self.state_size, self.action_size = width, heads, state_size, action_size
        self.context_kind = check_context(context)
        if backend not in NAMES:
            fail("backend", f"must be one of {', '.join(NAMES)}", repr(backend), "See `ttcnet env`.", "unknown-name")
        if not eps > 0:
            fail("eps", "must be positive", eps, "Pass a small number, such as 1e-6.", "out-of-range")
        self.horizon = check_horizon(horizon)
        if not 0 <= dropout < 1:
            fail("dropout", "must lie in [0, 1)", dropout, "Pass the share to drop, such as 0.1.", "out-of-range")
        self.dropout, self.zero_init, self.action_gain = dropout, zero_init, check_gain(action_gain)
        self.eps, self.backend = eps, backend
        if dtype is not None and dtype not in FLOATS:
            remedy = "Pass one of these, or leave it out."
            fail("dtype", "must be float32, float64, float16 or bfloat16", dtype, remedy, "dtype")
        where: dict[str, Any] = {"device": device, "dtype": dtype}
        self.norm = nn.RMSNorm(width, eps=eps, **where)
        check_homogeneous(time_homogeneous)
        self.context = KINDS[context](heads, state_size, action_size, rank, time_homogeneous, **where)
        self.project = nn.Linear(width, self.context.inputs, bias=False, **where)
        self.action_norm = nn.RMSNorm(heads * action_size, eps=eps, **where)
        self.out = nn.Linear(heads * action_size, width, bias=False, **where)
        self._replays = Replays()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        nn.init.ones_(self.norm.weight)
        nn.init.constant_(self.action_norm.weight, self.action_gain)
        nn.init.normal_(self.project.weight, std=self.width**-0.5)
        self.context.reset_parameters()
        if self.zero_init:
            nn.init.zeros_(self.out.weight)
        else:
            nn.init.normal_(self.out.weight, std=self.out.in_features**-0.5)

    @overload
    def forward(self, x: Tensor, horizon: int | None = None, *, return_plan: Literal[False] = False) -> Tensor: ...

    @overload
    def forward(
        self, x: Tensor, horizon: int | None = None, *, return_plan: Literal[True]
    ) -> tuple[Tensor, Solution]: ...

    def forward(
        self, x: Tensor, horizon: int | None = None, *, return_plan: bool = False
    ) -> Tensor | tuple[Tensor, Solution]:
        """x (..., width) to the same shape.

        Args:
            x: tokens.
            horizon: steps to look ahead; None is the layer's own, 0 switches the layer off and returns x.
            return_plan: also return the plan, for analysis: its actions (..., heads, T, m), states and co-states
                (..., heads, T + 1, n) and cost (..., heads), detached, in float32 (float64 where the layer is). A
                MemoryError says how many bytes that would take where so many are not free.
        """
        horizon = self._steps(x, horizon)
        if horizon == 0:
            if return_plan:
                remedy = "Pass horizon=8, say, or return_plan=False."
                fail("horizon", "must be 1 or more to return a plan", 0, remedy, "too-small")
            return x
        if not return_plan:
            recordable = self.context_kind in CONTEXTS  # the solver of linear systems may wait for the GPU
            if recordable and may_replay(x, self) and (addresses := self._addresses()):
                return self._replays(lambda few: self._step(few, horizon), x, (horizon, self.backend, addresses))
            return self._step(x, horizon)
        problem = self.problem(x)
        solution = whole_plans(problem, horizon)  # first: it looks for memory before anything takes long
        y = x + self._answer(x, problem, horizon)
        lead = (*x.shape[:-1], self.heads)
        return y, Solution(
            **{name: value.view(*lead, *value.shape[2:]) for name, value in vars(solution).items() if value is not None}
        )

    def problem(self, x: Tensor) -> Problem:
        """The control problems that tokens x (..., width) plan: one a head, the tokens flattened to N."""
        return self.context(self.project(self.norm(x)).reshape(-1, self.context.inputs))

    def _steps(self, x: Tensor, horizon: int | None) -> int:
        not_traced()
        if x.ndim == 0 or x.shape[-1] != self.width:
            remedy = "Build the layer with the width of its tokens."
            fail("x", f"must have shape (..., {self.width})", tuple(x.shape), remedy, "shape")
        if not x.is_floating_point():
            remedy = "Convert it with x.float(); numbers of tokens go through an embedding first."
            fail("x", "must be a tensor of floating-point numbers", x.dtype, remedy, "dtype")
        return self.horizon if horizon is None else check_horizon(horizon)

    def _step(self, x: Tensor, horizon: int) -> Tensor:
        return x + self._answer(x, self.problem(x), horizon)

    def _addresses(self) -> tuple[int, ...]:
        """Addresses of the parameters; empty if a part of the layer was replaced, wrapped or hooked.

        Every token asks: so it looks into the modules' dictionaries, which takes a third of the time of attributes.
        """
        found, parts = list[int](), self._modules
        context = self.context
        built = [(parts[name], kind) for name, kind in PARTS]
        built += [(context, KINDS[self.context_kind]), *((part, Affine) for part in context._modules.values())]
        for part, kind in built:
            if part is None or not as_built(part, kind):
                return ()
            found += [weight.data_ptr() for weight in part._parameters.values() if weight is not None]
        return tuple(found)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        found = context_of(state_dict, prefix)
        if found not in (None, self.context_kind):
            remedy = f"Build the layer, or the model, with context {found!r}."
            rule = f"must be {found!r}, which these weights were trained with"
            fail("context", rule, repr(self.context_kind), remedy, "context")
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def _answer(self, x: Tensor, problem: Problem, horizon: int) -> Tensor:
        action = plan(problem, horizon, self.backend, check=False).flatten(1)
        weight = self.action_norm.weight
        if isinstance(problem, StationaryLQR):
            scaled = action * weight.to(action.dtype)
        else:
            scaled = nn.functional.rms_norm(action, weight.shape, weight.to(action.dtype), self.eps)
        answer = self.out(scaled.to(weight.dtype)).view(x.shape).to(x.dtype)
        return nn.functional.dropout(answer, self.dropout, self.training)

    def extra_repr(self) -> str:
        return f"{self.width}, heads={self.heads}, context={self.context_kind!r}, horizon={self.horizon}"


def ttc_layers(model: nn.Module) -> dict[str, TTCLayer]:
    """The TTC layers of a model, by name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, TTCLayer)}
