"""Forward, backward and step of every recurrence, from its rows in operators.def.

A public function is a docstring and one call of `forward`, `backward` or `step`.  These are long
because of their options, and stand together because they read a call in the same way: they check
the operands, choose the gufunc, read states and packed sequences, apply maps that are objects, and
sum gradients over broadcast axes.

A recurrence "fade" with one gate a token, or one a key channel, has these rows::

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

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy import ndarray

from .._core import checks, gradient_sums
from .._core.dtypes import result_dtype, state_dtype
from .._core.gufuncs import Table, run
from .._core.layout import Call, Layout
from .._linattn import fast_call, fast_step, maps, operators, pool_call
from .._states import state_arrays
from .._states.state_arrays import State
from . import mapped, pools
from .lazy import in_blocks, is_lazy, refuse_token

if TYPE_CHECKING:
    from typing import TypeAlias

    from .._types import Array, ArrayLike, Bool, DType, Map

    Transition: TypeAlias = Literal["matrix", "decay", "elementwise", "identity"]
    Operands: TypeAlias = tuple[Any, ...]

MAPS = tuple(maps)  #: those that kernels apply themselves


#: Every recurrence, by name.
RECURRENCES: dict[str, Recurrence] = {}


class Recurrence:
    """Forward, backward and step of a recurrence.

    Parameters
    ----------
    name : str
        Of the public function and of the kernel in operators.def, which has all else.
    transition : {'matrix', 'decay', 'elementwise', 'identity'}
        What a block of tokens multiplies a state by, so that sequences can be cut into blocks
        (`_blocks.block_scan`): any matrix, the exponentials of the sums of g, a factor for each number
        of the state, or nothing.
    public : dict
        The names of operands that are called otherwise in operators.def.
    function : str, optional
        The public function that also calls another recurrence; only that one is registered.
    """

    def __init__(
        self,
        name: str,
        *,
        transition: Transition = "matrix",
        public: Mapping[str, str] = MappingProxyType({}),
        function: str = "",
    ) -> None:
        row, self.name, self.transition = operators[name], function or name, transition
        self.layout = Layout.of(name, public)
        self.operands, self._read = self.layout.operands, self.layout.read
        self.extras = self.operands[self.layout.leading :]
        self.mapped, self.normalizer = row["maps"], row["normalizer"]
        self.keys = row["key_lengths"]  #: whether it takes key_lengths
        self.cross = not row["state"]  #: whether every query sees every key: there is no step
        self.scaled = "scale" in row["numbers"]
        self._optional = any(x.optional for x in self.operands)
        self._required = sum(not x.optional for x in self.operands)  # those that are not come last
        self._marks = tuple(
            (i, x.channels, x.suffix, x.optional) for i, x in enumerate(self.operands) if x.suffix
        )
        # Only channels are told by the number of axes of the leading operands.
        self._compared = self.layout.leading if any(x.channels for x in self.operands) else 0
        step = next((x for x, y in operators.items() if y["step_of"] == name), f"{name}_step")
        names = {"forward": name, "backward": f"{name}_backward", "step": step}
        #: Options that are True or False, by method: the numbers of the table but scale and eps.
        self.flags = {method: _flags(kernel) for method, kernel in names.items()}
        self.names = {method: x.replace(name, self.name) for method, x in names.items()}
        form = "_keys" if self.cross else "_state"
        self._stateless = self._gufuncs(name + "{}")
        self._stateful = self._gufuncs(name + "{}" + form)
        self._stateless_backward = self._gufuncs(name + "{}_backward")
        self._stateful_backward = self._gufuncs(name + "{}" + form + "_backward")
        if not self.cross:
            stem, end, _ = step.partition("_step")
            self._step = self._gufuncs(f"_{stem}{{}}{end}")
            self.step_op = [*operators].index(step)  #: as `fast_step` takes it
        if not function:
            RECURRENCES[name] = self

    def _gufuncs(self, form: str) -> Table:
        variants = [""]
        for _, _, suffix, _ in self._marks:
            variants += [variant + suffix for variant in variants]
        choices = ((True, ""), (False, "_sum")) if self.normalizer else ((False, ""),)
        ends = {name: f"_{name}" for name in MAPS} if self.mapped else {"identity": ""}
        return Table({
            (variant, feature_map, normalize): f"{form.format(variant)}{named}{end}"
            for variant in variants
            for feature_map, named in ends.items()
            for normalize, end in choices
        })  # fmt: skip

    def tables(self) -> Iterator[tuple[str, bool, Table]]:
        """Its gufuncs: the method, whether they take lengths and states, and their names."""
        yield "forward", False, self._stateless
        yield "forward", True, self._stateful
        yield "backward", False, self._stateless_backward
        yield "backward", True, self._stateful_backward
        if not self.cross:
            yield "step", False, self._step

    one_array = False  #: whether a state is an array, not a `State`
    cotangent = staticmethod(checks.cotangent)

    # --- calls ---------------------------------------------------------------

    def forward(
        self,
        operands: Operands,
        *,
        feature_map: Map = "identity",
        scale: float = 1.0,
        normalize: Bool = False,
        eps: float = 0.0,
        key_lengths: ArrayLike | None = None,
        cu_seqlens: ArrayLike | None = None,
        initial_state: State | None = None,
        state_indices: ArrayLike | None = None,
        return_state: bool = False,
        state_at: ArrayLike | None = None,
        out: Array | None = None,
        **flags: Bool,
    ) -> Any:
        """The output, and the state after the last token where it is asked for."""
        with_rows = state_indices is not None or state_at is not None
        with_state = initial_state is not None or return_state or with_rows
        stateless = key_lengths is None and cu_seqlens is None and not with_state
        if stateless and out is None:
            o = self._plain(
                self._stateless, operands, (), feature_map, scale, normalize, eps, flags
            )
            if o is not NotImplemented:
                return o
        if with_rows or mapped.outside(feature_map) or is_lazy(operands):
            return self._elsewhere(
                "forward", operands, feature_map, scale=scale, normalize=normalize, eps=eps,
                key_lengths=key_lengths, cu_seqlens=cu_seqlens, initial_state=initial_state,
                return_state=return_state, out=out, state_indices=state_indices, state_at=state_at,
                **flags,
            )  # fmt: skip
        call = self._read(self.name, operands)
        key = checks.lookup(self.name, self._stateless.names, call.variant, feature_map, normalize)
        numbers = self._numbers("forward", call.typed, scale, eps, key[-1], flags)
        if out is not None:
            checks.out(self.name, out, call.shape, *call.typed)
        if stateless:
            return run(self._stateless[key], (*call.arrays, *numbers), (out,))[0]

        packing, indices = self._sequences(self.name, call, cu_seqlens, key_lengths)
        start = self._state(self.name, "initial_state", initial_state, packing, call, key[-1])
        wanted = (None if return_state else ...,) * len(start)
        arrays = call.arrays if call.alike else call.cast()
        inputs = *arrays, *numbers, *indices, *start
        o, *end = run(self._stateful[key], inputs, (out, *wanted))
        if not return_state:
            return o
        return o, state_arrays.result(packing, *end, axes=len(self.layout.state))

    def backward(
        self,
        operands: Operands,
        grad_out: ArrayLike,
        *,
        feature_map: Map = "identity",
        scale: float = 1.0,
        normalize: Bool = False,
        eps: float = 0.0,
        key_lengths: ArrayLike | None = None,
        cu_seqlens: ArrayLike | None = None,
        initial_state: State | None = None,
        state_indices: ArrayLike | None = None,
        grad_state: State | None = None,
        state_at: ArrayLike | None = None,
        **flags: Bool,
    ) -> tuple[Any, ...]:
        """A gradient of each operand, and that of the initial state where there is a state."""
        with_rows = state_indices is not None or state_at is not None
        with_state = initial_state is not None or grad_state is not None or with_rows
        stateless = key_lengths is None and cu_seqlens is None and not with_state
        if stateless and _same_rows(operands[0], grad_out):
            grads = self._plain(
                self._stateless_backward, operands, (grad_out,), feature_map, scale, normalize, eps,
                flags,
            )  # fmt: skip
            if grads is not NotImplemented:
                return gradient_sums.sum_all(grads, _present(operands))
        if with_rows or mapped.outside(feature_map) or is_lazy((*operands, grad_out)):
            return self._elsewhere(
                "backward", operands, feature_map, grad_out=grad_out, scale=scale,
                normalize=normalize, eps=eps, key_lengths=key_lengths, cu_seqlens=cu_seqlens,
                initial_state=initial_state, grad_state=grad_state,
                state_indices=state_indices, state_at=state_at, **flags,
            )  # fmt: skip
        function = self.names["backward"]
        call = self._read(function, operands)
        key = checks.lookup(function, self._stateless.names, call.variant, feature_map, normalize)
        grad_out = checks.cotangent(function, grad_out, call.shape)
        typed = *call.typed, grad_out
        numbers = self._numbers("backward", typed, scale, eps, key[-1], flags)
        dtype = result_dtype(*typed)
        rows = [row for row, x in zip(self.operands, operands, strict=True) if x is not None]
        dtypes = [state_dtype(*typed) if x.state_dtype else dtype for x in rows]
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
            self._state(function, field, state, packing, call, key[-1], grad_out)
            for field, state in (("initial_state", initial_state), ("grad_state", grad_state))
        )
        count = len(call.arrays)
        wanted = *(None,) * count, *(None if with_state else ...,) * len(start)
        inputs = *call.cast(arrays[-1]), *numbers, *indices, *start, *last
        grads = run(self._stateful_backward[key], inputs, wanted, dtype)
        sums, rest = list(grads[:count]), grads[count:]
        if packing is not None:
            for i, row in enumerate(rows):
                if "n" not in row.dims:  # one a sequence
                    sums[i] = gradient_sums.over_axis(sums[i], -1 - len(row.dims))
        first = _summed(sums, call, dtypes)
        if not with_state:
            return first
        if initial_state is not None:
            rest = gradient_sums.sum_all(rest, start)
        return *first, state_arrays.result(packing, *rest, axes=len(self.layout.state))

    def step(
        self,
        operands: Operands,
        state: Any,
        *,
        feature_map: Map = "identity",
        scale: float = 1.0,
        normalize: Bool = False,
        eps: float = 0.0,
        in_place: bool = False,
        state_indices: ArrayLike | None = None,
        **flags: Bool,
    ) -> tuple[Array, State]:
        """The output of one token, and the state after it."""
        written = in_place or state_indices is not None
        if type(state) is State and state[2] is None and not flags:
            result = fast_step(
                self.step_op, operands, state[0], state[1], in_place, feature_map, normalize,
                scale, eps, state_indices,
            )  # fmt: skip
            if result is not NotImplemented:
                o, s, z = result
                return o, state if written else State(s, z)
        if type(state) is State and state[2] is None and (state[1] is None) is not normalize:
            s, z, _ = after = state if written else state_arrays.copy(state)
            outputs = (None, s, z) if normalize else (None, s)
            result = self._plain(
                self._step, operands, (), feature_map, scale, normalize, eps, flags, outputs,
                state_indices,
            )  # fmt: skip
            if result is not NotImplemented:
                return result[0], after
        with_rows = state_indices is not None
        if with_rows or mapped.outside(feature_map) or is_lazy(operands):
            return self._elsewhere(
                "step", operands, feature_map, state=state, scale=scale, normalize=normalize,
                eps=eps, in_place=in_place, state_indices=state_indices, **flags,
            )  # fmt: skip
        function = self.names["step"]
        call = self._read(function, operands, tokens=False)
        key = checks.lookup(function, self._step.names, call.variant, feature_map, normalize)
        numbers = self._numbers("step", call.typed, scale, eps, key[-1], flags)
        inputs = *call.arrays, *numbers
        dtype = state_dtype(*call.typed)
        fields = state_arrays.checked(
            function, "state", state, call.batch, call.core, dtype, key[-1]
        )
        s, z, _ = fields
        if in_place:
            state_arrays.in_place(function, fields, call.batch, len(call.core))
        else:
            s = np.array(np.broadcast_to(s, (*call.batch, *call.core)))
            if z is not None:
                z = np.array(np.broadcast_to(z, (*call.batch, *call.core[:-1])))
            state = State(s, z)
        outputs = (None, s) if z is None else (None, s, z)
        return run(self._step[key], inputs, outputs)[0], state

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
        return in_blocks(method, self.name, operands, feature_map=feature_map, **options)

    def _plain(
        self,
        table: Table,
        operands: Operands,
        more: tuple[Any, ...],
        feature_map: Any,
        scale: Any,
        normalize: Any,
        eps: Any,
        flags: dict[str, Any],
        outputs: tuple[Any, ...] = (),
        rows: Any = None,
    ) -> Any:
        """What a gufunc gives for plain arrays, which it checks itself; else NotImplemented.

        ``rows`` are those of a pool of states, which a step updates.
        """
        variant: str | None = ""
        if self._marks:
            variant = self._variant(operands)
            if self._optional:
                if any([x is None for x in operands[: self._required]]):
                    return NotImplemented
                operands = _present(operands)
        if variant is None or type(feature_map) is not str or type(normalize) is not bool:
            return NotImplemented
        key = variant, feature_map, normalize
        gufunc = table.get(key)
        if gufunc is None:
            if key not in table.names:
                return NotImplemented
            gufunc = table[key]
        outputs = outputs or (None,) * gufunc.nout
        switches: tuple[float, ...] = ()
        if flags:
            if not all([type(x) is bool for x in flags.values()]):
                return NotImplemented
            switches = tuple([float(flags[x]) for x in self.flags["forward"] if x in flags])
        call = fast_call if rows is None else partial(pool_call, rows)
        if normalize:
            return call(gufunc, *operands, *more, scale, eps, *switches, *outputs)
        if not (checks.is_plain_number(eps) and eps >= 0):
            return NotImplemented
        if self.scaled:
            return call(gufunc, *operands, *more, scale, *switches, *outputs)
        return call(gufunc, *operands, *more, *switches, *outputs)

    def _numbers(
        self,
        method: str,
        typed: tuple[Any, ...],
        scale: Any,
        eps: Any,
        normalize: bool,
        flags: dict[str, Any],
    ) -> tuple[Any, ...]:
        """The numbers of a call, in the table's order: scale, eps, then flags."""
        function, names = self.names[method], self.flags[method]
        first = checks.numbers(function, typed, scale, eps, normalize) if self.scaled else ()
        return (*first, *checks.flags(function, names, flags, typed)) if names else first

    def _variant(self, operands: Operands) -> str | None:
        """The variant for plain arrays of as many axes each; else None: for a closer look."""
        axes = getattr(operands[0], "ndim", 0)  # the gufunc refuses it if it is no array
        for x in operands[1 : self._compared]:
            if type(x) is not ndarray or x.ndim != axes:
                return None
        variant = ""
        for i, channels, suffix, optional in self._marks:
            x = operands[i]
            if type(x) is not ndarray:  # of one token a number may be Python's own
                if not (x is None if optional else type(x) is float):
                    return None
            elif optional:
                variant += suffix
            elif channels and x.ndim >= axes:
                if x.shape[-1] == 1:
                    return None
                variant += suffix
        return variant

    def _sequences(
        self, function: str, call: Call, cu_seqlens: Any, key_lengths: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """The packed sequences, None where there is no state, and operands that tell of them."""
        if self.cross:
            keys = call.fit.sizes["s"]
            return None, (state_arrays.checked_lengths(function, key_lengths, keys, call.batch),)
        fit = call.fit
        packing = state_arrays.sequences(
            function, fit.sizes["n"], fit.batch, cu_seqlens, key_lengths
        )
        return packing, packing[: 2 + self.keys]

    def _state(
        self,
        function: str,
        name: str,
        state: Any,
        packing: state_arrays.Sequences | None,
        call: Call,
        normalize: bool,
        *more: Any,
    ) -> tuple[Any, ...]:
        """The arrays of a state of that name; none where there is no state."""
        if packing is None:
            return ()
        if state is None:  # left out
            return (..., ...) if normalize else (...,)
        dtype = state_dtype(*call.typed, *more)
        return state_arrays.operands(
            function, name, state, packing, call.batch, call.core, dtype, normalize
        )


def _flags(name: str) -> tuple[str, ...]:
    """The options of an operator that are True or False."""
    numbers = operators[name]["numbers"] if name in operators else ()
    return tuple(x for x in numbers if x not in ("scale", "eps"))


def _present(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those that are not None."""
    return tuple([x for x in operands if x is not None])  # faster than of a generator


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
