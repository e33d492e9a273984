"""A recurrence as a function of JAX, from its description, with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._check import flag, number, unknown_map
from .._initial import NAME, recurrence_of, state_of
from .._mapped import outside
from .._operator import MAPS, Recurrence
from .._state import State
from .._types import Shape
from ..feature_maps import FeatureMap, PositiveRandomFeatures, get
from ..feature_maps._base import Fused
from . import _check
from ._call import (
    aligned,
    call,
    call_method,
    gradient,
    like,
    promoted,
    real,
    summed,
    total,
    with_lead,
    work_dtype,
)


class Form(NamedTuple):
    """What is known when a call is traced."""

    r: Recurrence
    names: tuple[str, ...]  # of the operands that there are
    ranks: tuple[int, ...]  # how many axes of each are its own
    variant: str
    feature_map: str
    normalize: bool
    numbers: tuple[float, ...]
    parts: bool  # with states, lengths or packed sequences
    tokens: bool  # or one token, as a step has it

    def name(self, backward: bool = False) -> str:
        """That of the gufunc."""
        kind = ("_keys" if self.r.cross else "_state") if self.parts else ""
        end = f"_{self.feature_map}" if self.r.mapped else ""
        end += "_sum" if self.r.normalizer and not self.normalize else ""
        return f"{self.r.name}{self.variant}{kind}{'_backward' * backward}{end}"


def forward(
    r: Recurrence, operands: dict[str, Any], *, feature_map: Any = "identity", scale: float,
    normalize: bool = False, eps: float = 0.0, key_lengths: Any = None, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, one: bool = False,
) -> Any:  # fmt: skip
    """The output, and the state after the last token where it is asked for.

    Errors are those of a step where there is ``one`` token.
    """
    name = r.names["step" if one else "forward"]
    names = [x for x, y in operands.items() if y is not None]
    arrays = _arrays(name, r, operands)
    phi = _resolved(name, feature_map, normalize)
    batch = _read(name, r, names, arrays)
    dtype, s = arrays[0].dtype, arrays[1].shape[-2]
    if key_lengths is not None:
        key_lengths = _check.key_lengths(name, key_lengths, s, batch)
    if not isinstance(phi, str):
        if key_lengths is not None:  # whatever stands behind is not to be mapped
            position, end = aligned(jnp.arange(s), key_lengths[..., None])
            there, k = aligned((position < end)[..., None], arrays[1])
            arrays[1] = jnp.where(there, k, 0)
        arrays = [x.astype(work_dtype(dtype)) for x in arrays]
        features = (
            real(name, f"feature_map({x})", phi(y)).astype(work_dtype(dtype))
            for x, y in zip("qk", arrays, strict=False)
        )
        arrays[:2], phi = features, "identity"
        _read(name, r, names, arrays)
    ranks, variant = _ranks(r, names, arrays)
    numbers = tuple(number(name, x, y, *arrays) for x, y in (("scale", scale), ("eps", eps)))
    parts = any(x is not None for x in (key_lengths, cu_seqlens, initial_state)) or return_state
    form = Form(
        r, tuple(names), ranks, variant, phi, normalize, numbers[: 1 + normalize], parts, True
    )
    indices, fields = _sequences(name, form, arrays, key_lengths, cu_seqlens), ()
    if parts and not r.cross:
        packed = None if cu_seqlens is None else indices[0].shape[0]
        fields = _state(name, form, arrays, batch, packed, initial_state)
    o, *end = _run(form, tuple(arrays), indices, fields)
    o = o.astype(dtype)
    if not return_state:
        return o
    if cu_seqlens is None:
        end = [x.reshape(x.shape[: -x_rank - 1] + x.shape[-x_rank:])
               for x, x_rank in zip(end, (2, 1), strict=False)]  # fmt: skip
    return o, State(*end)


def step(
    r: Recurrence, operands: dict[str, Any], state: State, **options: Any
) -> tuple[Any, State]:
    """The output of one token, and the state after it: a sequence of one."""
    names = [x for x, y in operands.items() if y is not None]
    arrays = _arrays(r.names["step"], r, operands)
    _read(r.names["step"], r, names, arrays, tokens=False)
    token = dict(zip(names, arrays, strict=True))
    axes = max(token[x].ndim for x in ("q", "k", "v"))
    whole = {}
    for name, x in token.items():
        extra = next((e for e in r.extras if e.name == name), None)
        if extra is None or (extra.channels and x.ndim >= axes) or extra.dims == "nd":
            whole[name] = x[..., None, :]
        else:
            whole[name] = x[..., None] if "n" in extra.dims else x
    given = {name: whole.get(name) for name in operands}
    o, after = forward(r, given, **options, initial_state=state, return_state=True, one=True)
    return o[..., 0, :], after


def initial_state(
    operands: tuple[Any, ...], operator: str, feature_map: Any, normalize: bool, cu_seqlens: Any
) -> State:
    """The state before the first token."""
    r, whole = recurrence_of(operator, len(operands) - 3)
    extras = r.extras[: len(operands) - 3]
    given = dict(zip(("q", "k", "v", *(e.name for e in extras)), operands, strict=True))
    arrays = promoted(NAME, given, [e.name for e in extras if e.state_dtype])
    for key, x in zip(given, arrays, strict=True):
        if not all(isinstance(size, int) for size in x.shape):
            raise TypeError(
                f"{NAME}: {key} has shape {x.shape}; expected sizes that are numbers, not symbols"
            )
    phi = _resolved(NAME, feature_map, normalize)
    k, dtype = arrays[1], work_dtype(arrays[0].dtype)

    def features(d: int) -> int:
        if isinstance(phi, str):
            return d
        one = k[..., :1, :] if whole else k[..., None, :]
        return int(jax.eval_shape(phi, one.astype(dtype)).shape[-1])

    return state_of(
        tuple(map(_check.stand_in, arrays)), operator, features,
        lambda shape, value, _: jnp.full(shape, value, dtype), normalize=normalize,
        cu_seqlens=cu_seqlens, rescaled=False, unmapped=None if isinstance(phi, str) else phi,
    )  # fmt: skip


def _resolved(name: str, feature_map: Any, normalize: Any) -> Any:
    """A name that kernels know, or a function of JAX's arrays."""
    flag(name, "normalize", normalize)
    if isinstance(feature_map, str) and not outside(feature_map):
        if feature_map not in MAPS:
            raise unknown_map(name, feature_map, ", or a function")
        return feature_map
    if isinstance(feature_map, (str, FeatureMap)):
        phi = get(feature_map)
        if isinstance(phi, Fused):
            return phi.name
        if normalize and isinstance(phi, PositiveRandomFeatures):
            raise ValueError(
                f"{name}: feature_map is {phi!r}; expected another map, or normalize=False: "
                "linattn.jax does not rescale its features"
            )
        return partial(_mapped, phi)
    if callable(feature_map):
        return feature_map
    raise unknown_map(name, feature_map, ", or a function")


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _mapped(phi: FeatureMap, x: Any) -> Any:
    shape = (*x.shape[:-1], phi.features(x.shape[-1]))
    return call_method(phi, "__call__", like(shape, x.dtype), (x,), "expand_dims")


def _mapped_forward(phi: FeatureMap, x: Any) -> Any:
    return _mapped(phi, x), x


def _mapped_backward(phi: FeatureMap, x: Any, grad: Any) -> Any:
    output = like(x.shape, x.dtype)
    return (call_method(phi, "input_gradient", output, (x, grad), "broadcast_all"),)


_mapped.defvjp(_mapped_forward, _mapped_backward)


# --- checks and shapes -----------------------------------------------------------------


def _arrays(name: str, r: Recurrence, operands: dict[str, Any]) -> list[Any]:
    """The operands that there are, in their dtypes."""
    wide = [extra.name for extra in r.extras if extra.state_dtype]
    return [x for x in promoted(name, operands, wide) if x is not None]


def _read(
    name: str, r: Recurrence, names: Sequence[str], arrays: Sequence[Any], tokens: bool = True
) -> Shape:
    """The leading axes, after the NumPy package's checks of shapes: of all tokens, or of one."""
    given = dict(zip(names, arrays, strict=True))
    every = ("q", "k", "v", *(extra.name for extra in r.extras))
    return r._read(name, tuple(_check.stand_in(given.get(x)) for x in every), tokens=tokens).batch


def _ranks(r: Recurrence, names: Sequence[str], arrays: list[Any]) -> tuple[tuple[int, ...], str]:
    """How many axes of each operand are its own, and the suffixes of the gufunc's name."""
    given = dict(zip(names, arrays, strict=True))
    axes = max(given[x].ndim for x in ("q", "k", "v"))
    ranks, variant = [2, 2, 2], ""
    for i, name in enumerate(names[3:], 3):
        extra = next(e for e in r.extras if e.name == name)
        channels = bool(extra.channels) and arrays[i].ndim >= axes
        if channels and arrays[i].shape[-1] == 1:
            arrays[i], channels = arrays[i][..., 0], False
        ranks.append(len(extra.dims) + channels)
        if arrays[i].ndim < ranks[-1]:
            arrays[i] = jnp.broadcast_to(arrays[i], given["q"].shape[-2:-1])
        if channels or extra.optional:
            variant += extra.suffix
    return tuple(ranks), variant


def _sequences(
    name: str, form: Form, arrays: Sequence[Any], key_lengths: Any, cu_seqlens: Any
) -> tuple[Any, ...]:
    """Indices (begin, end, keys), or keys alone; none where the gufunc asks for none."""
    if not form.parts or form.r.cross:
        return (key_lengths,) if form.parts else ()
    n = arrays[1].shape[-2]
    bounds = _check.cu_seqlens(name, cu_seqlens, n)
    begin, end = bounds[:-1], bounds[1:]
    keys = end - begin
    if key_lengths is not None:
        last, first, keys = aligned(key_lengths[..., None], begin, keys)
        keys = jnp.clip(last - first, 0, keys)
    return begin, end, keys


def _state(
    name: str, form: Form, arrays: Sequence[Any], batch: Shape, r: Any, state: Any
) -> tuple[Any, ...]:
    """The fields (..., r, f, m) of a state of r sequences, or of one that is not packed."""
    f, m = arrays[1].shape[-1], arrays[2].shape[-1]
    dtype = work_dtype(arrays[0].dtype)
    lead = 1 if r is None else r
    shapes = [(lead, f, m), (lead, f)]
    field = "state" if name == form.r.names["step"] else "initial_state"
    if state is None and field != "state":
        return tuple(jnp.zeros(shape, dtype) for shape in shapes[: 1 + form.normalize])
    core = (f, m) if r is None else (r, f, m)
    fields = _check.state(name, field, state, batch, core, dtype, form.normalize)
    if r is None:
        fields = tuple(jnp.expand_dims(x, -len(y)) for x, y in zip(fields, shapes, strict=False))
    return fields


# --- the call and its gradient -------------------------------------------------------------


def _padded(form: Form, arrays: Any, indices: Any, state: Any) -> tuple[Any, Any, Any, Any]:
    """All with the same number of leading axes, and those axes."""
    index_ranks = (0,) if form.r.cross else (1, 1, 1)
    groups = (
        (arrays, form.ranks), (indices, index_ranks[: len(indices)]), (state, (3, 2)[: len(state)]),
    )  # fmt: skip
    leads = [
        x.shape[: x.ndim - rank]
        for group, ranks in groups
        for x, rank in zip(group, ranks, strict=True)
    ]
    lead = jnp.broadcast_shapes(*leads)
    arrays, indices, state = (
        tuple(with_lead(x, rank, len(lead)) for x, rank in zip(group, ranks, strict=True))
        for group, ranks in groups
    )
    return arrays, indices, state, lead


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(form: Form, arrays: Any, indices: Any, state: Any) -> Any:
    arrays, indices, state, lead = _padded(form, arrays, indices, state)
    q, _, v = arrays[:3]
    outputs = [like((*lead, q.shape[-2], v.shape[-1]), v.dtype)]
    outputs += [like((*lead, *x.shape[len(lead) :]), x.dtype) for x in state]
    return call(form.name(), (*arrays, *indices, *state), form.numbers, len(arrays), outputs)


def _run_forward(form: Form, arrays: Any, indices: Any, state: Any) -> Any:
    return _run(form, arrays, indices, state), (arrays, indices, state)


def _run_backward(form: Form, saved: Any, grads: Any) -> Any:
    given, given_indices, given_state = saved
    arrays, indices, state, lead = _padded(form, given, given_indices, given_state)
    grad_out, *grad_state = grads
    dtype = arrays[0].dtype
    packed = (indices[0].shape[-1],) if state else ()
    outputs = []
    for i, x in enumerate(arrays):
        extra = None if i < 3 else next(e for e in form.r.extras if e.name == form.names[i])
        if extra is not None and "n" not in extra.dims:  # a sum over each sequence's tokens
            outputs.append(like((*lead, *packed, *x.shape[len(lead) :]), x.dtype))
        else:
            outputs.append(gradient(lead, x, given[i]))
    outputs += [like((*lead, *x.shape[len(lead) :]), x.dtype) for x in state]
    operands = (*arrays, grad_out.astype(dtype), *indices, *state, *grad_state)
    found = call(form.name(True), operands, form.numbers, len(arrays) + 1, outputs)
    first = []
    for i, (x, y) in enumerate(zip(found, given, strict=False)):
        extra = None if i < 3 else next(e for e in form.r.extras if e.name == form.names[i])
        if extra is not None and "n" not in extra.dims and packed:
            x = total(x, x.ndim - 2).squeeze(-2)
        first.append(summed(x, y.shape, y.dtype))
    rest = tuple(
        summed(x, y.shape, y.dtype) for x, y in zip(found[len(given) :], given_state, strict=True)
    )
    nothing = tuple(np.zeros(x.shape, jax.dtypes.float0) for x in given_indices)
    return tuple(first), nothing, rest


_run.defvjp(_run_forward, _run_backward)
