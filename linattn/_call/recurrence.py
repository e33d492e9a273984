"""Forward, backward and step of every recurrence, from its rows in operators.def.

A public function is a docstring and one call of `forward`, `backward` or `step`, which
`operators.functions` makes.  These are long because of their options, and stand together because
they read a call in the same way: they check the operands, choose the gufunc, read states and packed
sequences, apply maps that are objects, and sum gradients over broadcast axes.

A recurrence "fade" with one gate per token, or one per key channel, has these rows::

    LA_OP(fade, "q(n,d) k(n,d) v(n,m) g(n,d?) scale() | s(d,m) -> o(n,m)", ...)
    LA_OP(fade_backward, ...)
    LA_OP(fade_step, ...)

and in a module of its own ``FADE = Recurrence("fade")``.  ``fade(q, k, v, g, *, ...)`` returns
``FADE.forward((q, k, v, g), ...)``, its backward ``FADE.backward((q, k, v, g), grad_out, ...)``,
its step ``FADE.step((q, k, v, g), state, ...)``.  Numbers of the row other than scale and eps are
options that are True or False, passed by name.  An operand that may be left out is None in the
tuple, and gets no gradient then.  A gufunc's name consists of the operator's name, the suffixes of
channels and optional operands in their order, ``_state``, ``_backward`` and the map:
``fade_key_channels_state_backward_elu``.

Plain arrays, which need no check here, go to the gufunc first: such a call takes 2 us.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks, gradient_sums
from .._core.dtypes import gradient_dtype, result_dtype, work_dtype
from .._core.gufuncs import run, run_in_place
from .._core.layout import Call
from .._core.lazy import in_blocks, is_lazy, refuse, refuse_token
from .._linattn import EVEN_PIECES, fast_step, get_num_threads, pool_call
from .._states import state_arrays
from .._states.state_arrays import ExactState, State
from . import exact, mapped, pools, whole_blocks
from .kernels import Kernels

if TYPE_CHECKING:
    from typing import TypeAlias

    from .._types import Array, ArrayLike, Bool, DType, Map, ReturnState

    Operands: TypeAlias = tuple[Any, ...]


class Recurrence(Kernels):
    """Forward, backward and step of a recurrence; parameters are those of `Kernels`."""

    def forward(
        self,
        operands: Operands,
        *,
        feature_map: Map = "identity",
        scale: float | None = 1.0,
        normalize: Bool = False,
        eps: float = 0.0,
        key_lengths: ArrayLike | None = None,
        cu_seqlens: ArrayLike | None = None,
        initial_state: Any = None,
        state_indices: ArrayLike | None = None,
        return_state: ReturnState = False,
        state_at: ArrayLike | None = None,
        block: int | None = None,
        out: Array | None = None,
        **flags: Any,
    ) -> Any:
        """The output, and the state after the last token where it is asked for."""
        if type(return_state) is not bool:
            exact.wanted(self.name, return_state)
        if block is not None:
            block = self._block(self.name, operands, block)
        if scale is None:
            scale = self.default_scale(operands)
        with_rows = state_indices is not None or state_at is not None
        whole = key_lengths is None and cu_seqlens is None and not with_rows
        stateless = whole and initial_state is None and not return_state
        if whole and out is None and block is None:
            how = feature_map, scale, normalize, eps, flags
            if stateless:
                result = self._plain.call(self._stateless, operands, (), how)
            else:
                result = self._plain.forward(operands, initial_state, return_state, how)
            if result is not NotImplemented:
                return result
        carries = exact.wanted(self.name, return_state) and self.compensated
        if with_rows or self._in_blocks(operands):
            where = "with state_indices, state_at or arrays in blocks"
            exact.refuse(self.name, return_state, initial_state, where)
        if with_rows or mapped.outside(feature_map) or self._in_blocks(operands):
            return self._elsewhere(
                "forward", operands, feature_map, scale=scale, normalize=normalize, eps=eps,
                key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
                return_state=return_state, out=out, state_indices=state_indices, state_at=state_at,
                **given(block=block), **flags,
            )  # fmt: skip
        call = self.read(self.name, operands)
        key = self._key(self.name, call, feature_map, normalize, block)
        numbers = self._numbers("forward", call.typed, scale, eps, key[-1], flags, block)
        if out is not None:
            checks.out(self.name, out, call.shape, *call.typed)
        if stateless:
            return run(self._stateless[key], (*call.arrays, *numbers), (out,))[0]
        packing, indices = self._sequences(self.name, call, cu_seqlens, key_lengths)
        start = self._state(
            self.name, "initial_state", initial_state, packing, call, key[-1],
            call.state_dtype, wanted=bool(return_state),
        )  # fmt: skip
        arrays = *(call.arrays if call.alike else call.cast()), *numbers
        if self.compensated and (carries or type(initial_state) is ExactState):
            cores = self.cores(call.fit.sizes, key[-1], packing.r)
            carried = exact.Carried(self.name, call, packing, cores)
            o, state = carried.run(self._stateful[key], arrays, start, initial_state, out)
            return (o, state if carries else State(*state)) if return_state else o
        wanted = (None if return_state else ...,) * len(start)
        o, *end = run(self._stateful[key], (*arrays, *indices, *start), (out, *wanted))
        if return_state and initial_state is not None and self.half_states["forward"]:
            # NumPy may have widened it.
            end = [x.astype(y.dtype, copy=False) for x, y in zip(end, start, strict=True)]
        return (o, self._after(packing, end, key[-1])) if return_state else o

    def backward(
        self,
        operands: Operands,
        grad_out: ArrayLike,
        *,
        feature_map: Map = "identity",
        scale: float | None = 1.0,
        normalize: Bool = False,
        eps: float = 0.0,
        key_lengths: ArrayLike | None = None,
        cu_seqlens: ArrayLike | None = None,
        initial_state: Any = None,
        state_indices: ArrayLike | None = None,
        grad_state: Any = None,
        state_at: ArrayLike | None = None,
        block: int | None = None,
        **flags: Any,
    ) -> tuple[Any, ...]:
        """A gradient of each operand, and that of the initial state where there is a state."""
        if block is not None:
            block = self._block(self.names["backward"], (*operands, grad_out), block)
        if scale is None:
            scale = self.default_scale(operands)
        with_rows = state_indices is not None or state_at is not None
        with_state = initial_state is not None or grad_state is not None or with_rows
        whole = key_lengths is None and cu_seqlens is None and not with_rows
        stateless = whole and not with_state
        if block is None and whole and _same_rows(operands[0], grad_out):
            how = feature_map, scale, normalize, eps, flags
            grads = self._plain.backward(operands, grad_out, initial_state, grad_state, how)
            if grads is not NotImplemented:
                return grads
        options = {
            "grad_out": grad_out, "scale": scale, "normalize": normalize, "eps": eps,
            "key_lengths": key_lengths, "cu_seqlens": cu_seqlens, "initial_state": initial_state,
            "grad_state": grad_state, "state_indices": state_indices, "state_at": state_at,
        } | given(block=block)  # fmt: skip
        if with_rows or mapped.outside(feature_map) or self._in_blocks((*operands, grad_out)):
            return self._elsewhere("backward", operands, feature_map, **options, **flags)
        function = self.names["backward"]
        call = self.read(function, operands)
        key = self._key(function, call, feature_map, normalize, block)
        own = len(self.layout.output)
        grad_out = self.layout.in_one_chunk(function, "grad_out", grad_out, own)
        grad_out = self.cotangent(function, grad_out, call)
        typed = *call.typed, grad_out
        numbers = self._numbers("backward", typed, scale, eps, key[-1], flags, block)
        dtype = result_dtype(*typed)
        wide, dtypes = work_dtype(dtype), self._gradient_dtypes(operands, call, dtype)
        arrays = *call.arrays, grad_out
        if dtype.itemsize == 2 and self.layout.elementwise and call.is_spread:
            arrays = tuple(np.asarray(x, np.float32) for x in arrays)  # sums need more than 16 bits
            call = call._replace(arrays=arrays[:-1])
        if stateless:
            inputs = *arrays, *numbers
            grads = run(self._stateless_backward[key], inputs, dtype=dtype)
            return _summed(grads, call, dtypes)

        packing, indices = self._sequences(function, call, cu_seqlens, key_lengths)
        start, last = (
            self._state(function, field, state, packing, call, key[-1], wide, wanted=with_state)
            for field, state in (("initial_state", initial_state), ("grad_state", grad_state))
        )
        count = len(call.arrays)
        wanted = *(None,) * count, *(None if with_state else ...,) * len(start)
        inputs = *call.cast(arrays[-1]), *numbers, *indices, *start, *last
        grads = run(self._stateful_backward[key], inputs, wanted, dtype)
        sums, rest = list(grads[:count]), grads[count:]
        if packing is not None:
            sums = self.over_sequences(sums, operands)
        first = _summed(sums, call, dtypes)
        if not with_state:
            return first
        if initial_state is not None:
            rest = gradient_sums.sum_all(rest, start)
        return *first, self._after(packing, rest, key[-1])

    def _gradient_dtypes(self, operands: Operands, call: Call, dtype: DType) -> list[DType]:
        """The dtypes of the gradients of the operands that are given."""
        rows = [row for row, x in zip(self.operands, operands, strict=True) if x is not None]
        return [
            work_dtype(dtype) if row.state_dtype else gradient_dtype(x.dtype, dtype)
            for row, x in zip(rows, call.arrays, strict=True)
        ]

    def step(
        self,
        operands: Operands,
        state: Any,
        *,
        feature_map: Map = "identity",
        scale: float | None = 1.0,
        normalize: Bool = False,
        eps: float = 0.0,
        in_place: bool = False,
        state_indices: ArrayLike | None = None,
        **flags: Any,
    ) -> tuple[Array, Any]:
        """The output of one token, and the state after it."""
        if type(in_place) is not bool:
            in_place = checks.flag(self.names["step"], "in_place", in_place)
        if scale is None:
            scale = self.default_scale(operands)
        written = in_place or state_indices is not None
        if type(state) is State and state[2] is None and not flags:
            result = fast_step(
                self.step_op, operands, state[0], state[1], in_place, feature_map, normalize,
                scale, eps, state_indices,
            )  # fmt: skip
            if result is not NotImplemented:
                o, s, z = result
                return o, state if written else State(s, z)
        how = feature_map, scale, normalize, eps, flags
        result = self._plain.step(operands, state, written, state_indices, how)
        if result is not NotImplemented:
            return result
        if written:
            exact.refuse_in_place(self.names["step"], state)
        with_rows = state_indices is not None
        if with_rows or mapped.outside(feature_map) or is_lazy(operands):
            return self._elsewhere(
                "step", operands, feature_map, state=state, scale=scale, normalize=normalize,
                eps=eps, in_place=in_place, state_indices=state_indices, **flags,
            )  # fmt: skip
        function = self.names["step"]
        call = self.read(function, operands, tokens=False)
        key = self._step.key(function, call.variant, feature_map, normalize)
        numbers = self._numbers("step", call.typed, scale, eps, key[-1], flags)
        dtype, cores = call.state_dtype, self.cores(call.fit.sizes, key[-1])
        halves = self.half_states["step"]
        fields = self.checked_state(function, "state", state, cores, call.batch, dtype, halves)
        arrays = [*fields.values()]
        if in_place:
            state_arrays.updated(function, fields, call.batch, cores.values())
        else:
            shapes = [(*call.batch, *core) for core in cores.values()]
            arrays = [np.array(np.broadcast_to(*x)) for x in zip(arrays, shapes, strict=True)]
            state = self.state_of(arrays, key[-1])
        alike = all([x.dtype == dtype for x in arrays])
        inputs = *(call.arrays if alike else call.cast()), *numbers
        return run_in_place(self._step[key], inputs, None, arrays, dtype), state

    def forward_in_rows(
        self, call: Call, rows: Any, fields: list[Any], *, cu_seqlens: Any = None, out: Any = None,
        key_lengths: Any = None, scale: Any = 1.0, eps: Any = 0.0, normalize: Any = False,
        feature_map: Any = "identity", block: int | None = None, **flags: Any,
    ) -> Any:  # fmt: skip
        """As `Interface.forward_in_rows`: if all operands are plain and heads alone keep all
        threads busy."""
        if cu_seqlens is not None or mapped.outside(feature_map):
            return NotImplemented
        threads = get_num_threads()
        # So many heads for each thread keep all of them busy.
        if not call.alike or 1 < threads > math.prod(call.batch) / EVEN_PIECES:
            return NotImplemented
        key = self._key(self.name, call, feature_map, normalize, block)
        numbers = self._numbers("forward", call.typed, scale, eps, key[-1], flags, block)
        _, lengths = self._sequences(self.name, call, None, key_lengths)
        o = np.empty(call.shape, call.arrays[0].dtype) if out is None else out
        if out is not None:
            checks.out(self.name, out, call.shape, *call.typed)
        states = self.packed(fields, key[-1])
        result = pool_call(
            rows, self._stateful[key], *call.arrays, *numbers, *lengths, *states, o, *states
        )
        return result if result is NotImplemented else o

    def read(self, function: str, operands: Operands, *, tokens: bool = True) -> Call:
        if self.transition is None:
            return self.layout.read_for_gufunc(function, operands, tokens=tokens)
        return self.layout.read(function, operands, tokens=tokens)

    def _block(self, function: str, operands: Operands, block: Any) -> int | None:
        """``block``, checked; the gradient of the output follows the operands of one."""
        found = whole_blocks.checked(self.operands, function, operands[: len(self.operands)], block)
        if found is not None:
            refuse(function, operands, f"block is {block} and ")
        return found

    def _in_blocks(self, operands: Operands) -> bool:
        """Whether a call is lazy: in blocks."""
        return self.transition is not None and is_lazy(operands)

    # --- their parts ---------------------------------------------------------

    def _elsewhere(self, method: str, operands: Operands, feature_map: Map, **options: Any) -> Any:
        """The result for dask arrays, a pool, positions, or a map that no kernel applies."""
        rows = {x: options.pop(x, None) for x in ("state_indices", "state_at")}
        if any(x is not None for x in rows.values()):
            return pools.call(self, method, operands, feature_map=feature_map, **rows, **options)
        if not is_lazy((*operands, options.get("grad_out"))):
            return mapped.call(self, method, operands, feature_map, **options)
        if method == "step":
            refuse_token(self.names[method], operands)
        if not self.normalizer:
            del options["normalize"], options["eps"]
        return in_blocks(method, self, operands, feature_map=feature_map, **options)


def given(**named: Any) -> dict[str, Any]:
    """What is not None."""
    return {name: x for name, x in named.items() if x is not None}


def _same_rows(q: Any, grad_out: Any) -> bool:
    """Whether a gradient of the output surely has no leading axes of its own."""
    return (
        type(q) is type(grad_out) is np.ndarray
        and q.ndim > 1
        and q.shape[:-1] == grad_out.shape[:-1]
    )


def _summed(grads: Sequence[Any], call: Call, dtypes: Sequence[DType]) -> tuple[Any, ...]:
    """Each gradient in the shape that its operand came in."""
    sums = gradient_sums.sum_to(grads, call.summed, dtypes)
    return tuple(x.reshape(shape) for x, shape in zip(sums, call.given, strict=True))
