"""One place that builds forward, backward and step of a recurrence.

A recurrence is a row of data, a `Recurrence`: its name, its operands besides q, k and v, and
whether it has a normaliser.  A public function is a docstring and one call of `forward`,
`backward` or `step`.  They check the operands, choose the gufunc, read states and packed
sequences, apply maps that are objects, and sum gradients over broadcast axes.

To add a recurrence "decay" with one gate a token, or one a key channel:

1. Its kernels are rows of operators.def: ``decay``, ``decay_backward`` and ``decay_step``, with
   the operands in the order ``q k v g [grad_out] scale [eps]``; begin, end, keys and the states
   follow by themselves.  The gradients come in the order of the operands.
2. In a module of its own, ``DECAY = Recurrence("decay", extras=(Operand("g", "n",
   "d"),))``.  A gufunc's name is made of the parts ``decay``, the suffixes of the extras
   in their order, ``_state``, ``_backward`` and the map: ``decay_channels_state_backward_elu``.
3. ``decay(q, k, v, g, *, ...)`` returns ``DECAY.forward((q, k, v, g), ...)``, its backward
   ``DECAY.backward((q, k, v, g), grad_out, ...)``, its step ``DECAY.step((q, k, v, g), state,
   ...)``.  An operand that may be left out is None in the tuple, and gets no gradient there.

What plain arrays need is done first, in few steps: such a call takes 2 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import ndarray

from . import _check, _gradients, _mapped, _state
from ._gufuncs import run, ufuncs
from ._layout import Operand
from ._linattn import fast_call, maps
from ._state import State

if TYPE_CHECKING:
    from typing import TypeAlias

    from ._types import Array, ArrayLike, Bool, DType, Map, Shape

    Operands: TypeAlias = tuple[Any, ...]
    Key: TypeAlias = tuple[str, str, bool]

MAPS = tuple(maps)  #: those that kernels apply themselves


class _Call(NamedTuple):
    """The operands of one call, checked."""

    arrays: tuple[Any, ...]  #: as gufuncs take them, without those left out
    given: tuple[Shape, ...]  #: their shapes as they came
    variant: str  #: the suffixes of the gufunc's name
    batch: Shape
    shape: Shape  #: of the output
    typed: tuple[Any, ...]  #: those arrays that say in what dtype all is computed

    @property
    def core(self) -> tuple[int, int]:
        """The shape of a state, (d, m)."""
        return self.arrays[0].shape[-1], self.shape[-1]


class Table(dict["Key", np.ufunc]):
    """The gufuncs of a form by variant, which has its place in the name, map and normaliser."""

    def __init__(self, names: dict[Key, str]) -> None:
        self.names = names

    def __missing__(self, key: Key) -> np.ufunc:
        gufunc = self[key] = ufuncs[self.names[key]]
        return gufunc


#: Every recurrence, by name.
RECURRENCES: dict[str, Recurrence] = {}


class Recurrence:
    """Forward, backward and step of a recurrence, from its description.

    Parameters
    ----------
    name : str
        Of the public function and of the kernel.
    step : str, optional
        Of the function for one token; ``name_step`` by default.
    extras : tuple of Operand
        Operands besides q, k and v, in their order.
    mapped : bool
        Whether a map is applied to q and k; without, no gufunc's name ends with one.
    normalizer : bool
        Whether outputs may be divided by the sum of the weights: gufuncs without that end with
        ``_sum``, and states have a ``z``.
    cross : bool
        Whether every query sees every key: there are s keys, no state, and no step.
    """

    def __init__(
        self,
        name: str,
        *,
        step: str = "",
        extras: tuple[Operand, ...] = (),
        mapped: bool = True,
        normalizer: bool = False,
        cross: bool = False,
    ) -> None:
        keys = "s" if cross else "n"
        self.name, self.extras, self.cross = name, extras, cross
        self.operands = (
            Operand("q", "nd"), Operand("k", f"{keys}d"), Operand("v", f"{keys}m"), *extras,
        )  # fmt: skip
        self.mapped, self.normalizer = mapped, normalizer
        self._optional = any(extra.optional for extra in extras)
        self._marks = tuple(
            (3 + i, extra.channels, extra.suffix, extra.optional) for i, extra in enumerate(extras)
        )
        self.names = {
            "forward": name, "backward": f"{name}_backward", "step": step or f"{name}_step",
        }  # fmt: skip
        form = "_keys" if cross else "_state"
        self._stateless = self._gufuncs(name + "{}")
        self._stateful = self._gufuncs(name + "{}" + form)
        self._stateless_backward = self._gufuncs(name + "{}_backward")
        self._stateful_backward = self._gufuncs(name + "{}" + form + "_backward")
        if not cross:
            stem, end, _ = self.names["step"].partition("_step")
            self._step = self._gufuncs(f"_{stem}{{}}{end}")
        RECURRENCES[name] = self

    def _gufuncs(self, form: str) -> Table:
        variants = [""]
        for extra in self.extras:
            if extra.suffix:
                variants += [variant + extra.suffix for variant in variants]
        choices = ((True, ""), (False, "_sum")) if self.normalizer else ((False, ""),)
        maps = {name: f"_{name}" for name in MAPS} if self.mapped else {"identity": ""}
        return Table({
            (variant, feature_map, normalize): f"{form.format(variant)}{named}{end}"
            for variant in variants
            for feature_map, named in maps.items()
            for normalize, end in choices
        })  # fmt: skip

    # --- calls ---------------------------------------------------------------

    def forward(
        self,
        operands: Operands,
        *,
        feature_map: Map,
        scale: float,
        normalize: Bool = False,
        eps: float = 0.0,
        key_lengths: ArrayLike | None = None,
        cu_seqlens: ArrayLike | None = None,
        initial_state: State | None = None,
        return_state: bool = False,
        out: Array | None = None,
    ) -> Any:
        """The output, and the state after the last token where it is asked for."""
        stateless = (
            key_lengths is None and cu_seqlens is None
            and initial_state is None and not return_state
        )  # fmt: skip
        if stateless and out is None:
            o = self._plain(self._stateless, operands, (), feature_map, scale, normalize, eps)
            if o is not NotImplemented:
                return o
        if _is_lazy(operands):
            from . import dask

            return dask.forward(
                self, operands, feature_map=feature_map, scale=scale,
                **self._normalizer(normalize, eps), key_lengths=key_lengths,
                cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state,
                out=out,
            )  # fmt: skip
        if _mapped.outside(feature_map):
            return _mapped.call(
                self, "forward", operands, feature_map,
                normalize=normalize, eps=eps, scale=scale, key_lengths=key_lengths,
                cu_seqlens=cu_seqlens, initial_state=initial_state, return_state=return_state,
                out=out,
            )  # fmt: skip
        call = self._read(self.name, operands)
        key = _check.lookup(self.name, self._stateless.names, call.variant, feature_map, normalize)
        inputs = *call.arrays, *_check.numbers(self.name, call.typed, scale, eps, key[-1])
        if out is not None:
            _check.out(self.name, out, call.shape, *call.typed)
        if stateless:
            return run(self._stateless[key], inputs, (out,))[0]

        packing, indices = self._sequences(self.name, call, cu_seqlens, key_lengths)
        start = self._state(self.name, "initial_state", initial_state, packing, call, key[-1])
        wanted = (None if return_state else ...,) * len(start)
        o, *end = run(self._stateful[key], (*inputs, *indices, *start), (out, *wanted))
        return (o, _state.result(packing, *end)) if return_state else o

    def backward(
        self,
        operands: Operands,
        grad_out: ArrayLike,
        *,
        feature_map: Map,
        scale: float,
        normalize: Bool = False,
        eps: float = 0.0,
        key_lengths: ArrayLike | None = None,
        cu_seqlens: ArrayLike | None = None,
        initial_state: State | None = None,
        grad_state: State | None = None,
    ) -> tuple[Any, ...]:
        """A gradient of each operand, and that of the initial state where there is a state."""
        with_state = initial_state is not None or grad_state is not None
        stateless = key_lengths is None and cu_seqlens is None and not with_state
        if stateless and _same_rows(operands[0], grad_out):
            grads = self._plain(
                self._stateless_backward, operands, (grad_out,), feature_map, scale, normalize, eps
            )
            if grads is not NotImplemented:
                return _gradients.sum_all(grads, _present(operands))
        if _is_lazy((*operands, grad_out)):
            from . import dask

            return dask.backward(
                self, operands, grad_out, feature_map=feature_map, scale=scale,
                **self._normalizer(normalize, eps), key_lengths=key_lengths,
                cu_seqlens=cu_seqlens, initial_state=initial_state, grad_state=grad_state,
            )  # fmt: skip
        if _mapped.outside(feature_map):
            return _mapped.call(
                self, "backward", operands, feature_map, grad_out=grad_out,
                normalize=normalize, eps=eps, scale=scale, key_lengths=key_lengths,
                cu_seqlens=cu_seqlens, initial_state=initial_state, grad_state=grad_state,
            )  # fmt: skip
        function = self.names["backward"]
        call = self._read(function, operands)
        key = _check.lookup(function, self._stateless.names, call.variant, feature_map, normalize)
        grad_out = _check.cotangent(function, grad_out, call.shape)
        typed = *call.typed, grad_out
        numbers = _check.numbers(function, typed, scale, eps, key[-1])
        inputs = *call.arrays, grad_out, *numbers
        dtype, extras = _check.result_dtype(*typed), _named(self.extras, operands)
        dtypes = [dtype] * 3 + [
            _check.state_dtype(*typed) if x.state_dtype else dtype for x in extras
        ]
        if stateless:
            grads = run(self._stateless_backward[key], inputs, dtype=dtype)
            return _summed(grads, call, dtypes)

        packing, indices = self._sequences(function, call, cu_seqlens, key_lengths)
        start, last = (
            self._state(function, field, state, packing, call, key[-1], grad_out)
            for field, state in (("initial_state", initial_state), ("grad_state", grad_state))
        )
        count = len(call.arrays)
        wanted = *(None,) * count, *(None if with_state else ...,) * len(start)
        inputs = *inputs, *indices, *start, *last
        grads = run(self._stateful_backward[key], inputs, wanted, dtype)
        sums, rest = list(grads[:count]), grads[count:]
        for i, extra in enumerate(extras):
            if "n" not in extra.dims:
                sums[3 + i] = _gradients.over_axis(sums[3 + i], -2)  # one a sequence
        first = _summed(sums, call, dtypes)
        if not with_state:
            return first
        if initial_state is not None:
            rest = _gradients.sum_all(rest, start)
        return *first, _state.result(packing, *rest)

    def step(
        self,
        operands: Operands,
        state: Any,
        *,
        feature_map: Map,
        scale: float,
        normalize: Bool = False,
        eps: float = 0.0,
        in_place: bool = False,
    ) -> tuple[Array, State]:
        """The output of one token, and the state after it."""
        if type(state) is State and state[2] is None and (state[1] is None) is not normalize:
            s, z, _ = after = state if in_place else _copy(state)
            outputs = (None, s, z) if normalize else (None, s)
            result = self._plain(
                self._step, operands, (), feature_map, scale, normalize, eps, outputs
            )
            if result is not NotImplemented:
                return result[0], after
        if _is_lazy(operands):
            raise TypeError(
                f"{self.names['step']}: an operand is a dask array; expected NumPy arrays, as one "
                "token has nothing to cut: call compute() first"
            )
        if _mapped.outside(feature_map):
            return _mapped.call(
                self, "step", operands, feature_map,
                state=state, normalize=normalize, eps=eps, scale=scale, in_place=in_place,
            )  # fmt: skip
        function = self.names["step"]
        call = self._read(function, operands, tokens=False)
        key = _check.lookup(function, self._step.names, call.variant, feature_map, normalize)
        inputs = *call.arrays, *_check.numbers(function, call.typed, scale, eps, key[-1])
        dtype = _check.state_dtype(*call.typed)
        fields = _check.state(function, "state", state, call.batch, call.core, dtype, key[-1])
        s, z, _ = fields
        if in_place:
            _check.in_place(function, fields, call.batch)
        else:
            s = np.array(np.broadcast_to(s, (*call.batch, *call.core)))
            if z is not None:
                z = np.array(np.broadcast_to(z, (*call.batch, call.core[0])))
            state = State(s, z)
        outputs = (None, s) if z is None else (None, s, z)
        return run(self._step[key], inputs, outputs)[0], state

    # --- their parts ---------------------------------------------------------

    def _normalizer(self, normalize: Any, eps: Any) -> dict[str, Any]:
        """The options that only a recurrence with a normaliser has."""
        return {"normalize": normalize, "eps": eps} if self.normalizer else {}

    def _plain(
        self,
        table: Table,
        operands: Operands,
        more: tuple[Any, ...],
        feature_map: Any,
        scale: Any,
        normalize: Any,
        eps: Any,
        outputs: tuple[Any, ...] = (),
    ) -> Any:
        """What a gufunc gives for plain arrays, which it checks itself; else NotImplemented."""
        variant: str | None = ""
        if self.extras:
            variant = self._variant(operands)
            if self._optional:
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
        if normalize:
            return fast_call(gufunc, *operands, *more, scale, eps, *outputs)
        if not _check.is_plain_number(eps):
            return NotImplemented
        return fast_call(gufunc, *operands, *more, scale, *outputs)

    def _variant(self, operands: Operands) -> str | None:
        """The variant for plain arrays of as many axes each; else None: for a closer look."""
        q, k, v = operands[:3]
        if not type(q) is type(k) is type(v) is ndarray or not q.ndim == k.ndim == v.ndim:
            return None
        variant = ""
        for i, channels, suffix, optional in self._marks:
            x = operands[i]
            if type(x) is not ndarray:  # of one token a number may be Python's own
                if not (x is None if optional else type(x) is float):
                    return None
            elif optional:
                variant += suffix
            elif channels and x.ndim >= q.ndim:
                if x.shape[-1] == 1:
                    return None
                variant += suffix
        return variant

    def _read(self, function: str, operands: Operands, *, tokens: bool = True) -> _Call:
        """The operands, checked: of all tokens, or of one."""
        if tokens:
            *arrays, shape = _check.qkv(function, *operands[:3], same_length=not self.cross)
        else:
            *arrays, shape = _check.token(function, *operands[:3])
        if not self.extras:
            given = tuple([x.shape for x in arrays])
            return _Call(tuple(arrays), given, "", shape[: -1 - tokens], shape, tuple(arrays))
        return self._read_extras(function, operands, tokens, arrays, shape)

    def _read_extras(
        self, function: str, operands: Operands, tokens: bool, arrays: list[Any], shape: Shape
    ) -> _Call:
        core = 2 if tokens else 1
        batch, variant = shape[:-core], ""
        given, typed = [x.shape for x in arrays], list(arrays)
        for extra, x in zip(self.extras, operands[3:], strict=False):  # a state needs not all
            if x is None and extra.optional:
                continue
            array, wide, batch = _check.extra(function, extra, x, arrays[:3], batch, tokens)
            arrays.append(array)
            if not extra.state_dtype:
                typed.append(array)
            given.append(np.shape(x))
            if wide or extra.optional:
                variant += extra.suffix
        shape = *batch, *shape[-core:]
        return _Call(tuple(arrays), tuple(given), variant, batch, shape, tuple(typed))

    def _sequences(
        self, function: str, call: _Call, cu_seqlens: Any, key_lengths: Any
    ) -> tuple[Any, tuple[Any, ...]]:
        """The packed sequences, None where there is no state, and operands that tell of them."""
        if self.cross:
            keys = call.arrays[1].shape[-2]
            return None, (_check.key_lengths(function, key_lengths, keys, call.batch),)
        n = call.shape[-2]
        packing = _state.sequences(function, n, call.batch, cu_seqlens, key_lengths)
        return packing, packing.indices

    def _state(
        self,
        function: str,
        name: str,
        state: Any,
        packing: _state.Sequences | None,
        call: _Call,
        normalize: bool,
        *more: Any,
    ) -> tuple[Any, ...]:
        """The arrays of a state of that name; none where there is no state."""
        if packing is None:
            return ()
        if state is None:  # left out
            return (..., ...) if normalize else (...,)
        dtype = _check.state_dtype(*call.typed, *more)
        return _state.operands(
            function, name, state, packing, call.batch, call.core, dtype, normalize
        )


def _is_lazy(operands: tuple[Any, ...]) -> bool:
    """Whether one is a dask array."""
    others = [x for x in operands if type(x) is not ndarray]
    return any(type(x).__module__.startswith("dask.") for x in others)


def _present(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those that are not None."""
    return tuple([x for x in operands if x is not None])  # faster than of a generator


def _named(extras: tuple[Operand, ...], operands: Operands) -> list[Operand]:
    """The extras that are not left out."""
    return [extra for extra, x in zip(extras, operands[3:], strict=True) if x is not None]


def _same_rows(q: Any, grad_out: Any) -> bool:
    """Whether a gradient of the output surely has no leading axes of its own."""
    return (
        type(q) is type(grad_out) is np.ndarray
        and q.ndim > 1
        and q.shape[:-1] == grad_out.shape[:-1]
    )


def _summed(grads: Sequence[Any], call: _Call, dtypes: Sequence[DType]) -> tuple[Any, ...]:
    """Each gradient in the shape that its operand came in."""
    sums = _gradients.sum_all(grads, call.arrays, dtypes)
    return tuple(x.reshape(shape) for x, shape in zip(sums, call.given, strict=True))


def _copy(state: Any) -> State:
    """A state of its own, where it holds plain arrays."""
    return State(*(np.array(x) if type(x) is np.ndarray else x for x in state))
