"""A recurrence as a function of JAX, from its description, with its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .._call import exact, whole_blocks
from .._call.interface import Interface
from .._call.recurrence import Recurrence
from .._core.checks import flag, number, positive, switch
from .._core.dtypes import work_dtype
from .._core.layout import Call
from .._states.state_arrays import ExactState, State, checked_field, exact_state
from .._types import Cores, DType, ReturnState, Shape
from ..feature_maps import NAMES, FeatureMap, PositiveRandomFeatures, get
from ..feature_maps._feature_map import Fused
from ..feature_maps._names import unknown_map
from ..operators.initial import NAME, given, read, recurrence_of
from . import _traced_checks
from ._arrays import aligned, checked, like, promoted
from ._custom_calls import call_method
from ._kernel import Kernel, differentiable, run, run_exact, spread

#: Tokens of a block: as good as any longer one, and an integer of 32 bits.
_LONGEST = 2**31 - 1


def forward(
    r: Recurrence, operands: Sequence[Any], *, feature_map: Any = "identity",
    scale: float | None = 1.0, normalize: bool = False, eps: float = 0.0, key_lengths: Any = None,
    cu_seqlens: Any = None, initial_state: State | None = None, return_state: ReturnState = False,
    block: int | None = None, one: bool = False, **flags: bool,
) -> Any:  # fmt: skip
    """The output and, with `return_state`, the state after the last token.

    Errors are those of a step if there is ``one`` token.
    """
    name = r.names["step" if one else "forward"]
    carries = exact.wanted(name, return_state) and r.compensated
    carried = carries or (type(initial_state) is ExactState and not one)
    if block is not None:
        block = whole_blocks.checked(r.operands, name, operands, block)
    arrays = promoted_of(name, r, operands)
    phi = map_of(name, feature_map, normalize)
    call = read_of(name, r, arrays)
    _spread(r, arrays, call)
    dtype, keys = dtype_of(arrays), keys_of(r, arrays)
    if key_lengths is not None:
        key_lengths = _traced_checks.key_lengths(name, key_lengths, keys, call.batch)
    if not isinstance(phi, str):
        map_keys(name, arrays, phi, key_lengths)
        phi = "identity"
        call = read_of(name, r, arrays)
    numbers = _numbers(name, r, arrays, scale, eps, normalize, flags)
    stateful = bool(return_state) or any(
        x is not None for x in (key_lengths, cu_seqlens, initial_state)
    )
    dims = _dimensions(r, arrays, call)
    variant = call.variant + whole_blocks.suffix(block)
    blocks = () if block is None else (jnp.full((), min(block, _LONGEST)),)
    kernel = _kernel(r, (variant, phi, normalize), dims, numbers, stateful, len(blocks))
    indices: tuple[Any, ...] = (key_lengths,) * stateful
    state: tuple[Any, ...] = ()
    if kernel.state:
        indices = sequences_of(name, keys, key_lengths, cu_seqlens)[: 2 + r.keys]
        packed = () if cu_seqlens is None else (indices[0].shape[0],)
        sizes = kernel.sizes(tuple(arrays.values()))
        state = _state(
            name, r, sizes, call.batch, packed, initial_state, work_dtype(dtype_of(arrays)),
            normalize=normalize, given=one,
        )  # fmt: skip
    inputs = *arrays.values(), *blocks, *indices, *state
    if carried:
        cores = r.cores(sizes, normalize, *(packed or (1,)))
        lost = _lost(name, cores, call.batch, bool(packed), initial_state, state)
        o, *end = run_exact(kernel, *inputs, *lost)
    else:
        o, *end = run(kernel, *inputs)
    o = o.astype(dtype)
    if not return_state:
        return o
    if cu_seqlens is None:
        own = map(len, kernel.state * (1 + carried))
        end = [x.squeeze(-axes) for x, axes in zip(end, own, strict=True)]
    after = r.public(dict(zip(r.present[normalize], end, strict=False)))
    return o, _carrying(after, cores, end) if carries else after


def _numbers(
    name: str, r: Recurrence, arrays: dict[str, Any], scale: Any, eps: Any, normalize: bool,
    flags: dict[str, Any],
) -> tuple[float, ...]:  # fmt: skip
    """The numbers of a call, checked, in the table's order."""
    if scale is None:
        scale = r.default_scale((arrays["q"],))
    scale = number(name, "scale", scale, *arrays.values())
    eps = positive(name, "eps", eps, *arrays.values(), zero=True)
    switches = (switch(name, x, flags.get(x, False)) for x in r.flags["forward"])
    return *(scale,) * r.scaled, *(eps,) * normalize, *switches


def step(r: Recurrence, operands: Sequence[Any], state: State, **options: Any) -> tuple[Any, State]:
    """The output of one token and the state after it: a sequence of one token."""
    token = promoted_of(r.names["step"], r, operands)
    _spread(r, token, read_of(r.names["step"], r, token, tokens=False))
    arrays = [token.get(row.name) for row in r.operands]
    own = r.layout.own_axes(arrays, tokens=False)
    whole = [
        jnp.expand_dims(x, -1 - rank) if x is not None and row.has_tokens else x
        for row, x, rank in zip(r.operands, arrays, own, strict=True)
    ]
    o, after = forward(r, whole, **options, initial_state=state, return_state=True, one=True)
    return o.squeeze(-len(r.layout.output)), after


def initial_state(
    *operands: Any, operator: str, feature_map: Any, normalize: bool, cu_seqlens: Any
) -> State:
    """
    >>> import jax.numpy as jnp, linattn.jax
    >>> x = jnp.ones((2, 4))
    >>> linattn.jax.initial_state(x, x, x, operator="step").s.shape
    (2, 4, 4)
    """
    operands = given(*operands)
    r, whole = recurrence_of(operator, len(operands))
    arrays = promoted_of(NAME, r, operands)
    for key, x in arrays.items():
        if not all(isinstance(size, int) for size in x.shape):
            raise TypeError(
                f"{NAME}: {key} has shape {x.shape}; expected sizes that are numbers, not symbols"
            )
    phi = map_of(NAME, feature_map, normalize)
    dtype = work_dtype(dtype_of(arrays))

    def features(d: int) -> int:
        if isinstance(phi, str):
            return d
        k = arrays["k"]
        one = k[..., :1, :] if whole else k[..., None, :]
        return int(jax.eval_shape(phi, one.astype(dtype)).shape[-1])

    shapes = tuple(
        _traced_checks.stand_in(arrays.get(row.name)) for row in r.operands[: len(operands)]
    )
    unmapped = None if isinstance(phi, str) else phi
    _, call, lead = read(shapes, operator, unmapped, cu_seqlens)
    cores = r.cores(call.fit.sizes, normalize, *lead, features=features)
    state: State = r.public(r.start(partial(jnp.full, dtype=dtype), cores))
    return state


def map_of(name: str, feature_map: Any, normalize: Any) -> Any:
    """A name that kernels know, or a function of JAX's arrays."""
    flag(name, "normalize", normalize)
    if isinstance(feature_map, str) and feature_map in NAMES:
        feature_map = get(feature_map)
    if isinstance(feature_map, Fused):
        return feature_map.name
    if normalize and isinstance(feature_map, PositiveRandomFeatures):
        raise ValueError(
            f"{name}: feature_map is {feature_map!r}; expected another map, or normalize=False: "
            "linattn.jax does not rescale its features"
        )
    if isinstance(feature_map, FeatureMap):
        return partial(_mapped, feature_map)
    if callable(feature_map) and not isinstance(feature_map, type):
        return feature_map
    raise unknown_map(name, feature_map, ", or a function")


def _map_gradient(phi: FeatureMap, given: Any, grad: Any) -> Any:
    (x,) = given
    output = like(x.shape, x.dtype)
    return (call_method(phi, "input_gradient", output, (x, grad), "broadcast_all"),)


@differentiable(_map_gradient)
def _mapped(phi: FeatureMap, x: Any) -> Any:
    shape = (*x.shape[:-1], phi.features(x.shape[-1]))
    return call_method(phi, "__call__", like(shape, x.dtype), (x,), "expand_dims")


def map_keys(name: str, arrays: dict[str, Any], phi: Any, key_lengths: Any) -> None:
    """Replaces q and k by their features, in the dtype that the call computes in."""
    if key_lengths is not None:  # the map does not see what stands behind the last key
        position, end = aligned(jnp.arange(arrays["k"].shape[-2]), key_lengths[..., None])
        there, k = aligned((position < end)[..., None], arrays["k"])
        arrays["k"] = jnp.where(there, k, 0)
    work = work_dtype(dtype_of(arrays))
    for key, x in arrays.items():
        arrays[key] = x.astype(work)
    for key in "qk":
        features = checked(name, f"feature_map({key})", phi(arrays[key]))
        arrays[key] = features.astype(work)


# --- operands and shapes ---------------------------------------------------------------


def promoted_of(name: str, r: Recurrence, operands: Sequence[Any]) -> dict[str, Any]:
    """The operands that are given, by name, as arrays in their dtypes.

    The last ones may be missing where a state alone is asked for.
    """
    given = {row.name: x for row, x in zip(r.operands, operands, strict=False)}
    wide = [row.name for row in r.operands if row.state_dtype]
    found = promoted(name, given, wide, complex_too=r.layout.complex_too)
    arrays = zip(given, found, strict=True)
    return {key: x for key, x in arrays if x is not None}


def dtype_of(arrays: dict[str, Any]) -> Any:
    """That of the first operand, and of the output."""
    return next(iter(arrays.values())).dtype


def keys_of(r: Recurrence, arrays: dict[str, Any]) -> Any:
    """The number of keys: of all tokens, but for queries that see every key."""
    letter = "s" if r.cross else "n"
    row = next(row for row in r.operands if row.dims[0] == letter and len(row.dims) > 1)
    return arrays[row.name].shape[-len(row.dims)]


def read_of(name: str, r: Recurrence, arrays: dict[str, Any], tokens: bool = True) -> Call:
    """The NumPy package's reading of the operands' shapes: of all tokens, or of one."""
    given = [_traced_checks.stand_in(arrays.get(row.name)) for row in r.operands]
    return r.layout.read(name, given, tokens=tokens)


def sequences_of(name: str, n: int, key_lengths: Any, cu_seqlens: Any) -> tuple[Any, ...]:
    """Where sequences begin and end, and how many keys they have."""
    bounds = _traced_checks.cu_seqlens(name, cu_seqlens, n)
    begin, end = bounds[:-1], bounds[1:]
    keys = end - begin
    if key_lengths is not None:
        last, first, keys = aligned(key_lengths[..., None], begin, keys)
        keys = jnp.clip(last - first, 0, keys)
    return begin, end, keys


def _spread(r: Recurrence, arrays: dict[str, Any], call: Call) -> None:
    """Gives operands all axes of their own, where an operator broadcasts these."""
    if not r.layout.elementwise:
        return
    count = len(call.fit.own)
    # call.fit.own has numbers instead of symbols.
    own = jnp.broadcast_shapes(*(x.shape[-count:] for x in arrays.values()))
    for key, x in arrays.items():
        if x.shape[-count:] != own:
            arrays[key] = spread((*x.shape[:-count], *own), x)


def _dimensions(r: Recurrence, arrays: dict[str, Any], call: Call) -> tuple[str, ...]:
    """The dimensions of each operand; drops the axis of those with one number for all channels."""
    dims = []
    own = r.layout.own_axes([arrays.get(row.name) for row in r.operands])
    for i, (row, rank) in enumerate(zip(r.operands, own, strict=True)):
        if row.name not in arrays:
            continue
        if i in call.fit.narrow:
            arrays[row.name] = arrays[row.name][..., 0]
            rank -= 1
        dims.append((row.dims + row.channels)[:rank])
    return tuple(dims)


def _kernel(
    r: Recurrence, key: tuple[str, str, bool], dims: tuple[str, ...], numbers: tuple[float, ...],
    stateful: bool, blocks: int,
) -> Kernel:  # fmt: skip
    """The gufuncs for (variant, map, normalize), with states or lengths if `stateful`, and with so
    many operands that tell of blocks."""
    forward, backward = (
        (r._stateful, r._stateful_backward) if stateful
        else (r._stateless, r._stateless_backward)
    )  # fmt: skip
    indices = ("",) * stateful
    state: tuple[str, ...] = ()
    if stateful and not r.cross:
        indices = ("p",) * (2 + r.keys)
        state = tuple("p" + letters for letters in r.present[key[-1]].values())
    return Kernel(
        forward.names[key], backward.names[key], numbers, dims, r.layout.output,
        ("",) * blocks + indices, state,
    )  # fmt: skip


def _state(
    name: str, r: Interface, sizes: dict[str, int], batch: Shape, packed: tuple[int, ...],
    state: Any, dtype: DType, *, normalize: bool, given: bool,
) -> tuple[Any, ...]:  # fmt: skip
    """The arrays of a state, with an axis for sequences whether packed or not.

    Those of the state before all tokens if it is left out, unless it has to be `given`, as it is
    for a step.
    """
    if state is None and not given:
        cores = r.cores(sizes, normalize, *(packed or (1,)))
        return tuple(r.start(partial(jnp.full, dtype=dtype), cores).values())
    cores = r.cores(sizes, normalize, *packed)
    field = "state" if given else "initial_state"
    start = _traced_checks.state(
        name, field, state, cores, batch, dtype, one_array=r.one_array, holder=r.holder
    )
    return tuple(
        x if packed else jnp.expand_dims(x, -1 - len(core))
        for x, core in zip(start, cores.values(), strict=True)
    )


def _carrying(state: State, cores: Cores, after: Sequence[Any]) -> ExactState:
    """A state with what its fields have lost, which follows them."""
    return exact_state(state, jnp.concatenate(exact.joined(cores, after[len(cores) :]), -1))


def _lost(
    name: str, cores: Cores, batch: Shape, packed: bool, state: Any, fields: tuple[Any, ...]
) -> tuple[Any, ...]:
    """What each field of the initial state has lost, with an axis for sequences."""
    lost = None
    if type(state) is ExactState:
        field, dtype = "initial_state.lost", fields[0].dtype
        core = *cores["s"][not packed : -1], sum(exact.columns(cores))
        lost = checked(name, field, state.lost)
        shape = _traced_checks.sizes(batch), _traced_checks.sizes(core)
        checked_field(name, field, _traced_checks.stand_in(lost), *shape, dtype)
        lost = lost.astype(dtype) if packed else jnp.expand_dims(lost.astype(dtype), -len(core) - 1)
    parts = exact.parts(cores, lost)
    return tuple(jnp.zeros_like(x) if y is None else y for x, y in zip(fields, parts, strict=True))
