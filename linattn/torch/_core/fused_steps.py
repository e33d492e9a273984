"""One token of a layer between its projections: in one call, or differentiable.

Without a gradient, the tensors' memory goes to NumPy's function, which writes into new states or
into those of the caller.  With one, and where PyTorch has to see every operator (torch.compile,
vmap, autocast), the token goes through the operators that the function stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from ..._call.fused import FusedState, gated_call, gated_delta_call
from ..._core.checks import shape_alone
from ..._states.state_arrays import State
from . import option_checks
from .conversions import check, check_in_place, dtype_of, promotion, values, work_dtype
from .direct import check_memory, direct
from .operator import OPERATORS
from .tensor_pools import ROWS


def by_heads(
    function: str, operands: tuple[Tensor, ...], state: tuple[Any, Any], **options: Any
) -> Any:
    """A fused step by name, into new states, or NotImplemented as of `direct`.

    Heads of values may be two axes of the memory, by heads of keys.
    """

    def run(operands: Any, *, state: Any, **options: Any) -> tuple[Any, FusedState]:
        conv, s = state
        start = conv, s.reshape(s.shape[0], -1, *s.shape[-2:])
        o, new = _step(_FUNCTIONS[function], operands, state=start, **options)
        return o, FusedState(new.conv, new.s.reshape(s.shape))

    return _lent(_FUNCTIONS[function], run, operands, state, options)


def gated_delta(
    x: Any, a: Any, b: Any, state: Any, *, in_place: Any = False, state_indices: Any = None,
    **options: Any,
) -> tuple[Tensor, FusedState]:  # fmt: skip
    """`linattn.fused_gated_delta_step` of tensors."""
    return _call(_GATED_DELTA, (x, a, b), state, options, in_place, state_indices)


def gated(
    x: Any, dt: Any, state: Any, *, in_place: Any = False, state_indices: Any = None,
    **options: Any,
) -> tuple[Tensor, FusedState]:  # fmt: skip
    """`linattn.fused_gated_step` of tensors."""
    return _call(_GATED, (x, dt), state, options, in_place, state_indices)


_FIELDS = "state.conv", "state.s"  #: names in messages


class _Function(NamedTuple):
    name: str
    operands: tuple[str, ...]
    tensors: tuple[str, ...]  #: options that are tensors or None, of which the first are rates
    rates: int
    prepare: Callable[..., Any]  #: NumPy's checks
    composed: Callable[..., Any]  #: the same of differentiable operators


def _call(
    f: _Function, operands: tuple[Any, ...], state: Any, options: dict[str, Any], in_place: Any,
    indices: Any,
) -> tuple[Tensor, FusedState]:  # fmt: skip
    if isinstance(state, tuple) and len(state) == 2 and not torch.compiler.is_compiling():
        more = {"in_place": in_place}
        result = _lent(f, partial(_step, f), operands, state, options | more, indices)
        if result is not NotImplemented:
            return result
    operands, options = _without_integers(f, operands, options)
    if indices is not None:
        return _rows(f, operands, state, options, in_place, indices)
    _check(f, operands, state, options, in_place)
    o, after = f.composed(*operands, state, in_place=in_place, **options)
    tokens = (*operands, *(y for x in f.tensors[f.rates :] if (y := options.get(x)) is not None))
    return o.to(promotion(x.dtype for x in tokens)), after


def _without_integers(
    f: _Function, operands: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The operands and options, with integers in the dtype that PyTorch's rules give."""
    given = [*operands, *(options.get(x) for x in f.tensors[f.rates :])]
    dtypes = {x.dtype for x in given if isinstance(x, Tensor)}
    if all(x.is_floating_point or x.is_complex for x in dtypes):
        return operands, options
    kind = promotion(dtypes)

    def cast(x: Any) -> Any:
        return x.to(kind) if isinstance(x, Tensor) and not x.is_floating_point() else x

    tokens = {x: cast(options[x]) for x in f.tensors[f.rates :] if x in options}
    return tuple([cast(x) for x in operands]), options | tokens


def _lent(
    f: _Function, run: Any, operands: tuple[Any, ...], state: Any, options: dict[str, Any],
    indices: Any = None,
) -> Any:  # fmt: skip
    """What ``run`` gives for arrays; NotImplemented if PyTorch has to see the step."""
    if any([x is None for x in operands]):
        return NotImplemented
    given = {x: options.get(x) for x in f.tensors} | {"state": FusedState(*state)}
    if indices is not None:
        given["state_indices"] = indices
    return direct(run, operands, given, {x: y for x, y in options.items() if x not in f.tensors})


def _step(
    f: _Function, operands: tuple[Any, ...], *, state: Any, in_place: Any = False,
    state_indices: Any = None, **options: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """NumPy's function, whose state is of arrays already."""
    call = f.prepare(*operands, state, pooled=state_indices is not None, **options)
    o, new = call.run(in_place, state_indices)
    return o, state if in_place or state_indices is not None else new


def _rows(
    f: _Function, operands: tuple[Any, ...], pool: Any, options: dict[str, Any], in_place: Any,
    indices: Any,
) -> tuple[Tensor, FusedState]:  # fmt: skip
    """A call on rows of a pool: in place unless a gradient is recorded, else with a new pool."""
    if not (isinstance(pool, tuple) and len(pool) == 2 and isinstance(pool[1], Tensor)):
        raise TypeError(
            f"{f.name}: state is a {type(pool).__name__}; expected a linattn.FusedState of tensors"
        )
    indices = option_checks.state_indices(f.name, indices, pool[1])
    _check(f, operands, pool, options, in_place, indices)
    indices = ROWS(indices, indices.shape[0], pool[1].shape[0], f.name, "state", True)
    rows = FusedState(*(None if x is None else x.index_select(0, indices) for x in pool))
    o, after = _call(f, operands, rows, options, False, None)
    pairs = [*zip(pool, after, strict=True)]
    if torch.is_grad_enabled() and any(
        x is not None and (x.requires_grad or y.requires_grad) for x, y in pairs
    ):
        return o, FusedState(*(x if x is None else x.index_copy(0, indices, y) for x, y in pairs))
    fields = zip(_FIELDS, pool, strict=True)
    check_memory(f.name, {name: x for name, x in fields if x is not None})
    for x, y in pairs:
        if x is not None:
            x.index_copy_(0, indices, y)
    return o, FusedState(*pool)


def _check(
    f: _Function, operands: tuple[Any, ...], state: Any, options: dict[str, Any], in_place: Any,
    indices: Tensor | None = None,
) -> None:  # fmt: skip
    """Refuse what NumPy's function refuses, and states that cannot be written."""
    named = dict(zip(f.operands, operands, strict=True))
    named |= {x: y for x in f.tensors if (y := options.get(x)) is not None}
    if isinstance(state, tuple) and len(state) == 2:
        fields = zip(_FIELDS, state, strict=True)
        named |= {x: y for x, y in fields if y is not None or x == "state.s"}
    for key, x in named.items():
        check(f.name, key, x)
    if in_place:
        check_in_place(f.name, (*named.values(),))
    if torch.compiler.is_compiling():  # NumPy cannot read sizes that are symbols
        return
    shapes = {x: _shape(y) for x, y in options.items()}
    after = FusedState(*map(_shape, state)) if isinstance(state, tuple) else state
    call = f.prepare(*map(_shape, operands), after, pooled=indices is not None, **shapes)
    if indices is not None and (rows := values(indices)) is not None:
        call.rows(rows, written=False)


def _shape(x: Any) -> Any:
    """An array of x's shape and dtype that takes no memory, if x is a tensor."""
    return shape_alone(x, dtype_of(x.dtype)) if isinstance(x, Tensor) else x


# --- the same, operator by operator ----------------------------------------------------------


def _gated_delta(
    x: Tensor, a: Tensor, b: Tensor, state: Any, *, A_log: Tensor, dt_bias: Tensor,
    lower_bound: float | None = None, beta_scale: float = 1.0, weight: Tensor | None = None,
    bias: Tensor | None = None, activation: str | None = "silu", z: Tensor | None = None,
    norm_weight: Tensor | None = None, norm_eps: float = 1e-6, norm_activation: str = "silu",
    feature_map: Any = "l2norm", scale: float = 1.0, in_place: Any = False,
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
    x: Tensor, dt: Tensor, state: Any, *, A_log: Tensor, dt_bias: Tensor, D: Tensor | None = None,
    time_step_limit: tuple[float, float] | None = None, weight: Tensor | None = None,
    bias: Tensor | None = None, activation: str | None = "silu", z: Tensor | None = None,
    norm_weight: Tensor | None = None, norm_eps: float = 1e-5, norm_groups: int = 1,
    scale: float = 1.0, in_place: Any = False,
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


_GATED_DELTA = _Function(
    "fused_gated_delta_step", ("x", "a", "b"),
    ("A_log", "dt_bias", "weight", "bias", "z", "norm_weight"), 2, gated_delta_call, _gated_delta,
)  # fmt: skip
_GATED = _Function(
    "fused_gated_step", ("x", "dt"),
    ("A_log", "dt_bias", "D", "weight", "bias", "z", "norm_weight"), 3, gated_call, _gated,
)  # fmt: skip
_FUNCTIONS = {f.name: f for f in (_GATED_DELTA, _GATED)}
