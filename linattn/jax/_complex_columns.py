"""`linear_scan` of complex numbers, whose kernel takes each channel as two real columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._call.complex_scan import SCAN
from .._call.recurrence import Recurrence
from .._core.layout import Call
from .._states import state_arrays
from .._states.state_arrays import State
from . import _recurrence, _traced_checks
from ._kernel import spread
from ._recurrence import is_complex


def forward(
    r: Recurrence, operands: Sequence[Any], *, cu_seqlens: Any = None,
    initial_state: State | None = None, return_state: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """`linear_scan` of real or complex arrays."""
    options |= {"cu_seqlens": cu_seqlens, "return_state": return_state}
    if not is_complex(operands):
        return _recurrence.forward(r, operands, initial_state=initial_state, **options)
    a, x, call = _read(r.name, operands)
    if initial_state is not None:
        packed = () if cu_seqlens is None else (len(cu_seqlens) - 1,)
        initial_state = _pairs_of(r.name, "initial_state", initial_state, call, *packed)
    result = _recurrence.forward(SCAN, (a, x), initial_state=initial_state, **options)
    if not return_state:
        return numbers(result)
    h, state = result
    return numbers(h), State(numbers(state.s))


def step(r: Recurrence, operands: Sequence[Any], state: State, **options: Any) -> tuple[Any, State]:
    """`linear_scan_step` of real or complex arrays."""
    if not is_complex(operands):
        return _recurrence.step(r, operands, state, **options)
    function = r.names["step"]
    a, x, call = _read(function, operands, tokens=False)
    before = _pairs_of(function, "state", state, call)
    h, after = _recurrence.step(SCAN, (a, x), before, **options)
    return numbers(h), State(numbers(after.s))


def _read(function: str, operands: Sequence[Any], tokens: bool = True) -> tuple[Any, Any, Call]:
    """The operands as pairs of columns, and the reading of their shapes."""
    dtype = jnp.result_type(*operands, jnp.complex64)
    arrays = [jnp.asarray(x, dtype) for x in operands]
    shapes = [_traced_checks.stand_in(x.real) for x in arrays]
    call = SCAN.layout.read(function, shapes, tokens=tokens)
    a, x = (pairs(spread((*x.shape[:-1], call.shape[-1]), x)) for x in arrays)
    return a, x, call


def pairs(x: Any) -> Any:
    """Complex numbers as two columns each."""
    both = jnp.stack([x.real, x.imag], -1)
    return both.reshape(*x.shape[:-1], 2 * x.shape[-1])


def numbers(x: Any) -> Any:
    """The complex numbers of pairs of columns."""
    both = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
    return jax.lax.complex(both[..., 0], both[..., 1])


def _pairs_of(function: str, name: str, state: Any, call: Call, *packed: int) -> State:
    """A state, checked, with pairs of columns."""
    core = (*packed, *call.core)
    if isinstance(state, tuple):
        state = State(*(None if x is None else jnp.asarray(x) for x in state))
        dtype = jnp.result_type(state.s, jnp.complex64)
        state = state._replace(s=state.s.astype(dtype))
    given = state
    if isinstance(state, tuple):
        given = State(*(
            None
            if x is None
            else np.broadcast_to(np.zeros((), x.dtype), _traced_checks.sizes(x.shape))
            for x in state
        ))  # fmt: skip
        dtype = given.s.dtype
    else:
        dtype = np.dtype(np.complex64)
    state_arrays.checked(function, name, given, call.batch, core, dtype, normalize=False)
    return State(pairs(state.s))
