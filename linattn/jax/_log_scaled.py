"""`mlstm` as a function of JAX: states under a log scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._call.scaled import Scaled
from .._core.checks import flag, number, positive
from .._core.dtypes import work_dtype
from .._states.state_arrays import State
from . import _traced_checks
from ._arrays import aligned, like
from ._custom_calls import call
from ._kernel import Kernel, differentiable, run, spread
from ._operands import dtype_of, keys_of, promoted_of, read_of, sequences_of


def forward(
    r: Scaled, operands: Sequence[Any], *, key_lengths: Any = None, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, one: bool = False,
    **options: Any,
) -> Any:  # fmt: skip
    """The output and, with `return_state`, the state after the last token.

    Errors are those of a step if there is ``one`` token.
    """
    name = r.names["step" if one else "forward"]
    arrays = promoted_of(name, r, operands)
    read = read_of(name, r, arrays)
    normalize = flag(name, "normalize", options.get("normalize", True))
    compute = _RUNS[r.name](name, arrays, **options)
    keys = keys_of(r, arrays)
    if key_lengths is not None:
        key_lengths = _traced_checks.key_lengths(name, key_lengths, keys, read.batch)
    indices = sequences_of(name, keys, key_lengths, cu_seqlens)
    packed = () if cu_seqlens is None else (indices[0].shape[0],)
    dtype = work_dtype(dtype_of(arrays))
    sizes = {
        letter: size
        for row in r.operands
        for letter, size in zip(row.dims, arrays[row.name].shape[-len(row.dims) :], strict=True)
    }
    if initial_state is None and not one:
        start = r.state(
            lambda shape, value: jnp.full(shape, value, dtype),
            r.cores(sizes, normalize, *(packed or (1,))),
        )
    else:
        field = "state" if one else "initial_state"
        cores = r.cores(sizes, normalize, *packed)
        start = _traced_checks.state(name, field, initial_state, read.batch, cores, dtype)
        if not packed:
            start = _each(lambda x, rank: jnp.expand_dims(x, -1 - rank), start, r)
    o, end = compute(indices, start)
    if not return_state:
        return o
    return o, end if packed else _each(lambda x, rank: x.squeeze(-1 - rank), end, r)


def _each(f: Callable[[Any, int], Any], state: State, r: Scaled) -> State:
    """``f(array, axes of its own)`` of each array of a state."""
    pairs = zip(state, r.fields.values(), strict=True)
    return State(*(None if x is None else f(x, len(letters)) for x, letters in pairs))


# --- mlstm --------------------------------------------------------------------------------


class _Numbers(NamedTuple):
    scale: float
    eps: float
    normalize: bool


def _mlstm(
    name: str, arrays: Mapping[str, Any], *, scale: Any, normalize: Any, eps: Any
) -> Callable[..., Any]:
    if scale is None:
        scale = max(arrays["q"].shape[-1], 1) ** -0.5
    numbers = _Numbers(
        number(name, "scale", scale, *arrays.values()),
        positive(name, "eps", eps, *arrays.values(), zero=True),
        bool(normalize),
    )

    def compute(indices: Sequence[Any], start: State) -> tuple[Any, State]:
        s, z, log_scale = start
        if z is None:
            z = jnp.zeros(s.shape[:-1], s.dtype)
        o, s, z, log_scale = _run_mlstm(numbers, *arrays.values(), *indices, s, z, log_scale)
        return o, State(s, z if numbers.normalize else None, log_scale)

    return compute


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run_mlstm(numbers: _Numbers, *given: Any) -> tuple[Any, ...]:
    """The output, s, z and log_scale, from operands, indices and the fields of a state."""
    dims = "nd", "nd", "nm", "n", "n", *("p",) * 3, "pdm", "pd", "p"
    (q, k, v, i, f, *indices, s, z, m), lead = Kernel("", "", (), dims, "").padded(given)
    g, write, top, last, *_ = _gates(None, i, f, *indices, m)
    outputs = [
        like((*lead, *v.shape[-2:]), v.dtype),
        like((*lead, *s.shape[-3:]), s.dtype),
        like((*lead, *z.shape[-2:]), s.dtype),
    ]
    found = call("mlstm_state", (q, k, v, g, write, top, *indices, s, z), numbers, 6, outputs)
    return *found, spread((*lead, last.shape[-1]), last)


def _forward(numbers: _Numbers, *given: Any) -> Any:
    return _run_mlstm(numbers, *given), given


def _backward(numbers: _Numbers, given: Any, grads: Any) -> Any:
    return jax.vjp(partial(_by_gated, numbers), *given)[1](grads)


_run_mlstm.defvjp(_forward, _backward)


def _by_gated(numbers: _Numbers, *given: Any) -> tuple[Any, ...]:
    """The same in differentiable functions: `gated` with one more value channel, of ones, for z.

    The running maximum is a constant here, as in `operators.mlstm_gradients`.  What does depend
    on it is multiplied by 1, whose gradient `_gates` takes for that of the maximum.
    """
    q, k, v, i, f, *indices, s, z, m = given
    wide = s.dtype
    g, write, top, last, unit, unit_first, unit_last = _gates(None, i, f, *indices, m)
    dtype, v = v.dtype, v.astype(wide)
    values, weights = aligned(v, write[..., None])
    lead = jnp.broadcast_shapes(values.shape[:-1], weights.shape[:-1])
    values, weights = (spread((*lead, x.shape[-1]), x) for x in (values, weights))
    values = values * weights
    start = s
    if numbers.normalize:
        values = jnp.concatenate([values, weights], -1)
        rows = jnp.broadcast_shapes(s.shape[:-1], z.shape)
        start = jnp.concatenate([spread((*rows, s.shape[-1]), s), spread(rows, z)[..., None]], -1)
    start, unit_first = aligned(start, unit_first[..., None, None])
    arrays = q.astype(wide), k.astype(wide), values, g, *indices, start * unit_first
    kernel = Kernel(
        "gated_state_identity", "gated_state_backward_identity", numbers[:1],
        ("nd", "nd", "nm", "n"), "nm", ("p",) * 3, ("pdm",),
    )  # fmt: skip
    o, end = run(kernel, *arrays)
    unit_last = spread(end.shape[:-2], unit_last)[..., None, None]
    end = end / unit_last
    floor, unit = (spread(o.shape[:-1], x)[..., None] for x in (jnp.exp(-top), unit))
    if numbers.normalize:
        size = jnp.abs(o[..., -1:])
        den = jnp.where(size < floor, floor, size)
        den = den + numbers.eps * unit if numbers.eps else den
        o = o[..., :-1] / jnp.maximum(den, jnp.finfo(wide).tiny)
        s, z = end[..., :-1], end[..., -1]
    else:
        o, s, z = o / floor, end, jnp.zeros((*end.shape[:-2], z.shape[-1]), wide)
    return o.astype(dtype), s, z, spread(end.shape[:-2], last)


def _gates_gradient(static: None, given: Any, grads: Any) -> Any:
    """Those of i, f and the first maximum, as in `linattn.operators.mlstm_gradients`."""
    _, f, begin, end, keys, _ = given
    g, write, *_ = _gates(None, *given)
    dg, dwrite, _, dlast, dm, dfirst, dunit_last = grads
    there = _there(begin, keys, g.shape[-1])
    exist = spread(g.shape, there)
    kept = (g > -jnp.inf) & (g >= jnp.log(write))
    r, first = _through_maximum(kept, dm, dlast + dunit_last, begin, end)
    di = jnp.where(write == 0, 0, dwrite * write) + jnp.where(kept, 0, r)
    da = jnp.where(exist, dg, 0) + jnp.where(kept & exist, r, 0)
    df = da * jax.nn.sigmoid(-jnp.where(exist, spread(g.shape, f), 0))
    return di, df, None, None, None, dfirst + first


@differentiable(_gates_gradient)
def _gates(
    static: None, i: Any, f: Any, begin: Any, end: Any, keys: Any, m: Any
) -> tuple[Any, ...]:
    """g, write, the maxima and the last one; and ones for each maximum, the first and the last."""
    dims = "n", "n", "p", "p", "p", "p"
    arrays, lead = Kernel("", "", (), dims, "").padded((i, f, begin, end, keys, m))
    tokens, each = (*lead, i.shape[-1]), (*lead, m.shape[-1])
    outputs = [*(like(tokens, m.dtype),) * 3, like(each, m.dtype)]
    found = call("mlstm_gates_state", arrays, (), 2, outputs)
    return *found, jnp.ones(tokens, m.dtype), *(jnp.ones(each, m.dtype),) * 2


_SCAN = Kernel(
    "linear_scan_state", "linear_scan_state_backward", (0.0, 1.0), ("nm", "nm"), "nm", ("p", "p"),
    ("pm",),
)  # fmt: skip


def _through_maximum(kept: Any, dm: Any, top: Any, begin: Any, end: Any) -> tuple[Any, Any]:
    """``r_t = dm_t + r_{t+1}`` where token t + 1 has kept the maximum, and what of it goes to the
    first one."""
    n = kept.shape[-1]
    if isinstance(n, int) and n == 0:
        return dm, top
    rates = jnp.concatenate([kept[..., 1:], jnp.ones_like(kept[..., :1])], -1).astype(dm.dtype)
    rates = rates.at[..., end - 1].set(1)  # an end of 0 is that of an empty sequence
    h, after = run(_SCAN, rates[..., None], dm[..., None], begin, end, top[..., None])
    emptied = spread(top.shape, begin == end)
    passed = emptied | kept[..., jnp.minimum(begin, n - 1)]
    return h[..., 0], jnp.where(passed, after[..., 0], 0)


def _there(begin: Any, keys: Any, n: Any) -> Any:
    """Which tokens have a key."""
    position = jnp.arange(n)
    i = jnp.searchsorted(begin, position, side="right") - 1  # of sequences that are not empty
    inside, own = aligned(position - begin[i], keys[..., i])
    return inside < own


_RUNS: dict[str, Callable[..., Any]] = {"mlstm": _mlstm}
