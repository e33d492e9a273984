"""One token of a layer between its projections: in one call, or differentiable.

Without a gradient, the tensors' memory goes to NumPy's function, which writes into new states or
into those of the caller.  With one, and where PyTorch has to see every operator (torch.compile,
vmap, autocast), the token goes through the operators that the function stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..._call.fused import MOST_PLANS, Fused, FusedState
from ..._core.checks import flag, shape_alone
from ..._core.gufuncs import internal_ufuncs
from ..._states.state_arrays import State
from ...operators import fused
from . import option_checks, private
from .conversions import check, check_in_place, dtype_of, promotion, values, work_dtype
from .direct import check_memory, direct, planned
from .operator import OPERATORS
from .tensor_pools import ROWS

_FIELDS = "state.conv", "state.s"  #: names in messages
_MOST_OPTIONS = 16  #: plans of other options for the same sizes


def by_heads(
    function: str, operands: tuple[Tensor, ...], state: tuple[Any, Any], **options: Any
) -> Any:
    """A fused step by name, into new states, or NotImplemented as of `direct`.

    Heads of values may be two axes of the memory, by heads of keys.
    """
    f = STEPS[function]

    def run(operands: Any, *, state: Any, **options: Any) -> tuple[Any, FusedState]:
        conv, s = state
        start = conv, s.reshape(s.shape[0], prod(s.shape[1:-2]), *s.shape[-2:])
        o, new = _run(f, operands, state=start, **options)
        return o, FusedState(new.conv, new.s.reshape(s.shape))

    return f.lent(run, f.defaults | dict(zip(f.first, operands, strict=True)) | options, state)


class Step:
    """A fused step of tensors."""

    def __init__(
        self, function: Callable[..., Any], numpy: Fused, composed: Callable[..., Any]
    ) -> None:
        self.name, self.numpy, self._composed = numpy.name, numpy, composed
        self.operands = tuple(x.name for x in numpy.operands)
        self._rates = {x.name for x in numpy.operands if x.state_dtype}
        takes = signature(function).parameters.values()
        known = {*self.operands, *numpy.options}
        self.defaults = {
            x.name: x.default for x in takes if x.name in known and x.default is not x.empty
        }
        #: Plans of calls that update a state (src/ext/tensor_update.h), by what the arguments do
        #: not tell: the sizes of the state, if numbers have to fit them.  Other
        #: threads may be reading them.
        self._plans: dict[Any, tuple[tuple[Any, ...], ...]] = {}
        self._noted: set[Any] = set()  #: what they are for
        self._by_sizes = "norm_groups" in numpy.options
        #: Those that are given by place.
        self.first = [x.name for x in takes if x.kind is x.POSITIONAL_OR_KEYWORD][:-1]

    def __call__(
        self, operands: tuple[Any, ...], state: Any, *, in_place: Any = False,
        state_indices: Any = None, **options: Any,
    ) -> tuple[Tensor, FusedState]:  # fmt: skip
        """The step, with operands and options by name in place of `Fused.step`'s."""
        if type(in_place) is not bool:
            in_place = flag(self.name, "in_place", in_place)
        given = options
        given.update(zip(self.first, operands, strict=True))
        updates = in_place is True or state_indices is not None
        if not (updates and isinstance(state, tuple) and len(state) == 2):
            return self._step(given, state, in_place, state_indices)
        plans = self._plans.get(self._sizes(state))
        if plans:
            states = state[1:] if state[0] is None else state[::-1]
            o = planned(plans, given, states, state_indices)
            if o is not NotImplemented:
                return o, state if type(state) is FusedState else FusedState(*state)
        result = self._step(given, state, in_place, state_indices)
        self._note(given, state)
        return result

    def _sizes(self, state: Any) -> Any:
        return state[1].shape[-3:] if self._by_sizes and isinstance(state[1], Tensor) else None

    def _note(self, given: dict[str, Any], state: Any) -> None:
        """Keep the plan of a call that PyTorch need not see."""
        if torch.compiler.is_compiling() or private.is_watched():
            return
        sizes, options = self._sizes(state), self.numpy.options
        there = tuple([x for x in self.operands if given[x] is not None])
        if not all(isinstance(given[x], Tensor) for x in there):
            return
        values = tuple([given[x] for x in options])
        axes = [given[x].ndim for x in there]
        noted = sizes, there, *axes, *map(repr, values)
        if noted in self._noted:  # and was not enough: operands need a conversion
            return
        shapes = {x: _shape(y) for x, y in given.items()}
        checked = self.numpy.checked(FusedState(*map(_shape, state)), shapes, pooled=True).plan
        left_out = tuple(x for x in self.operands if x not in there)
        gufunc = internal_ufuncs[f"_{checked.gufunc}"]
        plans = self._plans.get(sizes, ())
        if len(plans) >= _MOST_OPTIONS or len(self._plans) >= MOST_PLANS:
            self._plans, self._noted, plans = {}, set(), ()
        self._noted.add(noted)
        plan = (gufunc, there, left_out, options, values, checked.numbers)
        self._plans[sizes] = (*plans, plan)

    def _step(
        self, given: dict[str, Any], state: Any, in_place: Any, indices: Any
    ) -> tuple[Tensor, FusedState]:
        if isinstance(state, tuple) and len(state) == 2 and not torch.compiler.is_compiling():
            run = partial(_run, self, in_place=in_place)
            result = self.lent(run, given, state, indices)
            if result is not NotImplemented:
                return result
        given = self._without_integers(given)
        if indices is not None:
            return self._rows(given, state, in_place, indices)
        self._check(given, state, in_place)
        o, after = self._composed(**given, state=state, in_place=in_place)
        return o.to(promotion(x.dtype for x in self._tokens(given).values())), after

    def _tokens(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The operands that determine the dtype of the call."""
        names = (x for x in self.operands if x not in self._rates)
        return {x: y for x in names if (y := given[x]) is not None}

    def _without_integers(self, given: dict[str, Any]) -> dict[str, Any]:
        """The same with tokens of integers in the dtype that PyTorch's rules give."""
        tokens = {x: y for x, y in self._tokens(given).items() if isinstance(y, Tensor)}
        dtypes = {x.dtype for x in tokens.values()}
        if all(x.is_floating_point or x.is_complex for x in dtypes):
            return given
        kind = promotion(dtypes)
        return given | {x: y.to(kind) for x, y in tokens.items() if not y.is_floating_point()}

    def lent(
        self, run: Callable[..., Any], given: dict[str, Any], state: Any, indices: Any = None
    ) -> Any:
        """What ``run`` gives for arrays; NotImplemented if PyTorch has to see the step."""
        operands = tuple([given[x] for x in self.operands])
        if any([given[x] is None for x in self.first]):
            return NotImplemented
        more = {"state": FusedState(*state)}
        if indices is not None:
            more["state_indices"] = indices
        options = {x: y for x, y in given.items() if x not in self.operands}
        return direct(run, operands, more, options)

    def _rows(
        self, given: dict[str, Any], pool: Any, in_place: Any, indices: Any
    ) -> tuple[Tensor, FusedState]:
        """On rows of a pool: in place unless a gradient is recorded, else with a new pool."""
        if not (isinstance(pool, tuple) and len(pool) == 2 and isinstance(pool[1], Tensor)):
            raise TypeError(
                f"{self.name}: state is a {type(pool).__name__}; expected a linattn.FusedState of "
                "tensors"
            )
        indices = option_checks.state_indices(self.name, indices, pool[1])
        self._check(given, pool, in_place, indices)
        indices = ROWS(indices, indices.shape[0], pool[1].shape[0], self.name, "state", True)
        rows = FusedState(*(None if x is None else x.index_select(0, indices) for x in pool))
        o, after = self._step(given, rows, False, None)
        pairs = [*zip(pool, after, strict=True)]
        if torch.is_grad_enabled() and any(
            x is not None and (x.requires_grad or y.requires_grad) for x, y in pairs
        ):
            new = (x if x is None else x.index_copy(0, indices, y) for x, y in pairs)
            return o, FusedState(*new)
        fields = zip(_FIELDS, pool, strict=True)
        check_memory(self.name, {name: x for name, x in fields if x is not None})
        for x, y in pairs:
            if x is not None:
                x.index_copy_(0, indices, y)
        return o, FusedState(*pool)

    def _check(
        self, given: dict[str, Any], state: Any, in_place: Any, indices: Tensor | None = None
    ) -> None:
        """Refuse what NumPy's function refuses, and states that cannot be written."""
        named = {x: y for x in self.operands if (y := given[x]) is not None or x in self.first}
        if isinstance(state, tuple) and len(state) == 2:
            fields = zip(_FIELDS, state, strict=True)
            named |= {x: y for x, y in fields if y is not None or x == "state.s"}
        for key, x in named.items():
            check(self.name, key, x)
        if in_place:
            check_in_place(self.name, (*named.values(),))
        if torch.compiler.is_compiling():  # NumPy cannot read sizes that are symbols
            return
        shapes = {x: _shape(y) for x, y in given.items()}
        after = FusedState(*map(_shape, state)) if isinstance(state, tuple) else state
        call = self.numpy.checked(after, shapes, pooled=indices is not None)
        if indices is not None and (rows := values(indices)) is not None:
            call.rows(rows, written=False)


def _run(
    f: Step, operands: tuple[Any, ...], *, state: Any, in_place: Any = False,
    state_indices: Any = None, **options: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """NumPy's step, of arrays."""
    named = dict(zip(f.operands, operands, strict=True))
    o, new = f.numpy.step(state, in_place, state_indices, **named, **options)
    return o, state if in_place or state_indices is not None else new


def _shape(x: Any) -> Any:
    """An array of x's shape and dtype that takes no memory, if x is a tensor."""
    return shape_alone(x, dtype_of(x.dtype)) if isinstance(x, Tensor) else x


# --- the same, operator by operator ----------------------------------------------------------


def _gated_delta(
    x: Tensor, a: Tensor, b: Tensor, state: Any, *, A_log: Tensor, dt_bias: Tensor,
    lower_bound: float | None, beta_scale: float, weight: Tensor | None, bias: Tensor | None,
    activation: str | None, z: Tensor | None, norm_weight: Tensor | None, norm_eps: float,
    norm_activation: str, feature_map: Any, scale: float, in_place: Any,
) -> tuple[Tensor, FusedState]:  # fmt: skip
    conv, s = state
    n, d, m = s.shape[-3:]
    keys = (x.shape[-1] - n * m) // (2 * d)
    x = _broadcast(x, a[..., 0] if a.ndim > b.ndim else a, b, z)
    y, conv = _convolved(x, weight, conv, bias, activation, in_place)
    q, k, v = y.split((keys * d, keys * d, n * m), -1)
    if a.ndim > b.ndim:
        A_log, dt_bias = A_log[:, None], dt_bias.reshape(n, -1)
    g = OPERATORS["log_decay"].forward(
        (a.to(work_dtype(a.dtype)), A_log, dt_bias), lower_bound=lower_bound
    )
    beta = beta_scale * torch.sigmoid(b.to(work_dtype(b.dtype)))
    by_key = [_by_heads(q, keys, 1), _by_heads(k, keys, 1), _by_heads(v, keys, n // keys)]
    axis = -2 if a.ndim > b.ndim else -1
    o, after = OPERATORS["gated_delta"].step(
        (*by_key, g.unflatten(axis, (keys, -1)), beta.unflatten(-1, (keys, -1)), None),
        State(s.unflatten(-3, (keys, -1))),
        feature_map=feature_map, scale=scale, in_place=in_place,
    )  # fmt: skip
    o = o.flatten(-3, -2)
    if norm_weight is not None:
        o = functional.rms_norm(o.to(norm_weight.dtype), (m,), norm_weight, norm_eps)
    o = o.flatten(-2)
    if z is not None:
        o = o * (torch.sigmoid(z) if norm_activation == "sigmoid" else functional.silu(z))
    return o, FusedState(conv, s if in_place else after.s.flatten(-4, -3))


def _gated(
    x: Tensor, dt: Tensor, state: Any, *, A_log: Tensor, dt_bias: Tensor, D: Tensor | None,
    time_step_limit: tuple[float, float] | None, weight: Tensor | None, bias: Tensor | None,
    activation: str | None, z: Tensor | None, norm_weight: Tensor | None, norm_eps: float,
    norm_groups: int, scale: float, in_place: Any,
) -> tuple[Tensor, FusedState]:  # fmt: skip
    conv, s = state
    n, d, m = s.shape[-3:]
    keys = (x.shape[-1] - n * m) // (2 * d)
    x = _broadcast(x, dt, z)
    y, conv = _convolved(x, weight, conv, bias, activation, in_place)
    v, k, q = y.split((n * m, keys * d, keys * d), -1)
    kind = work_dtype(promotion((x.dtype, dt.dtype)))
    t = functional.softplus(dt.to(kind) + dt_bias.to(kind))
    t = t if time_step_limit is None else t.clamp(*time_step_limit)
    g = -torch.exp(A_log.to(kind)) * t
    v = _by_heads(v, n)
    o, after = OPERATORS["gated"].step(
        (
            _by_heads(q, keys, 1), _by_heads(k, keys, 1),
            (t[..., None].to(v.dtype) * v).unflatten(-2, (keys, -1)),
            g.unflatten(-1, (keys, -1)), None,
        ),
        State(s.unflatten(-3, (keys, -1))),
        feature_map="identity", scale=scale, in_place=in_place,
    )  # fmt: skip
    o = o.flatten(-3, -2)
    if D is not None:
        o = o + v * D[:, None].to(v.dtype)
    o = o.flatten(-2)
    if z is not None:
        o = o * functional.silu(z)
    if norm_weight is not None:
        by_group = o.to(norm_weight.dtype).unflatten(-1, (norm_groups, -1))
        o = functional.rms_norm(by_group, by_group.shape[-1:], None, norm_eps).flatten(-2)
        o = o * norm_weight
    return o, FusedState(conv, s if in_place else after.s.flatten(-4, -3))


def _broadcast(x: Tensor, *others: Tensor | None) -> Tensor:
    """x with the leading axes of the result."""
    leads = [y.shape[:-1] for y in (x, *others) if y is not None]
    return x.expand(*torch.broadcast_shapes(*leads), -1)


def _convolved(
    x: Tensor, weight: Tensor | None, conv: Any, bias: Tensor | None, activation: str | None,
    in_place: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    if weight is None:
        return x, None
    convolution, columns = OPERATORS["causal_conv1d"], weight.shape[-1] - 1
    more = conv.shape[-1] - columns
    if not more:
        return convolution.step((x, weight, bias), conv, activation=activation, in_place=in_place)
    y, _ = convolution.step(
        (x, weight, bias), conv.narrow(-1, more, columns), activation=activation
    )
    moved = torch.cat((conv[..., 1:], x[..., None].to(conv.dtype)), -1)
    return y, conv.copy_(moved) if in_place else moved


def _by_heads(x: Tensor, *heads: int) -> Tensor:
    return x.unflatten(-1, (*heads, -1))


#: By the name of the function.
STEPS = {
    x.name: x
    for x in (
        Step(fused.fused_gated_delta_step, fused.GATED_DELTA, _gated_delta),
        Step(fused.fused_gated_step, fused.GATED, _gated),
    )
}
