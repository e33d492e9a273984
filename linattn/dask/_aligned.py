"""The operands of a call as blocks of the same tokens and heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import product
from operator import itemgetter
from typing import Any, cast

import dask.array as da
import numpy as np

from .._blocks.block_scan import Settings
from .._blocks.calls import ALL, KEYS, QUERIES, BlockedCall, Value
from .._call.recurrence import Recurrence
from .._core import checks
from .._core.dtypes import gradient_dtype, real_dtype, result_dtype
from .._core.gradient_sums import repeats
from .._core.lazy import refuse_unknown
from .._states import state_arrays
from .._states.state_arrays import State
from . import _tasks
from ._graph import Graph

GROUP = 16  #: blocks whose states one task finds: one a block would take longer than the sums


#: Operands that determine no dtype: numbers of Python's.
_KEPT = type(None), int, float, complex


class Call(BlockedCall):
    """A call's operands, checked and in chunks that fit together, and its tasks.

    A value is a function of the index of a block: its position along the leading axes, then its
    place among the tokens.  It returns the key of a task, or the task itself where this is short.
    """

    def __init__(
        self, r: Recurrence, method: str, operands: Sequence[Any], options: dict[str, Any],
        key_lengths: Any, cu_seqlens: Any = None, grad_out: Any = None, **states: State | None,
    ) -> None:  # fmt: skip
        super().__init__(r, method, options)
        *given, grad_out = (
            x if isinstance(x, _KEPT) or hasattr(x, "dtype") else np.asarray(x)
            for x in (*operands, grad_out)
        )
        metas = tuple(self._meta(row.name, x) for row, x in zip(r.operands, given, strict=True))
        state_metas = {
            field: None if state is None
            else State(*map(self._meta, (f"{field}.{part}" for part in State._fields), state))
            for field, state in states.items()
        }  # fmt: skip
        self.check(metas, self._meta("grad_out", grad_out), state_metas, cu_seqlens)
        fit, dtype = self.read.fit, result_dtype(*self.read.typed)
        self.given = [
            _array(x, dtype) if isinstance(x, (int, float, complex)) else x for x in given
        ]
        if self.backward:
            grad_out = da.broadcast_to(da.asarray(grad_out), self.typed[-1].shape)
        if key_lengths is not None:
            key_lengths = self._lengths(key_lengths, fit.sizes.get("s", fit.sizes["n"]))
        self._chunk([*(self._spread(x, fit.own) for x in self.given), grad_out, key_lengths])
        dtype = self._part_dtype() if self.backward else self.dtype
        self.settings = Settings(r.name, self.options, self.cu_seqlens, dtype)
        fields = {field: self._state_arrays(x) for field, x in states.items()}
        self.states = {field: _state_value(x) for field, x in fields.items()}
        values, self.grad_out = [_value(x) for x in self.arrays], _value(self.grad)
        self.operands = cache(lambda at: [x(at) for x in values])
        sources = [*self.arrays, self.grad, self.lengths, *(x for y in fields.values() for x in y)]
        self.graph = Graph(self.name, sources, self.options, self.cu_seqlens)

    def _meta(self, name: str, x: Any) -> Any:
        """An array of that shape and dtype without memory, for checks."""
        if isinstance(x, _KEPT):
            return x
        refuse_unknown(self.name, name, x)
        return checks.shape_alone(x, x.dtype)

    def _lengths(self, key_lengths: Any, keys: int) -> Any:
        """key_lengths as a dask array; values that are not known yet are not checked."""
        lazy = isinstance(key_lengths, da.Array)
        known = self._meta("key_lengths", key_lengths) if lazy else key_lengths
        lengths = state_arrays.checked_lengths(self.name, known, keys, self.batch)
        return key_lengths if lazy else da.asarray(lengths)

    def _spread(self, x: Any, own: Sequence[int]) -> Any:
        """An operand of a scan with those axes behind its leading ones; others as they are."""
        if x is None or not self.r.layout.elementwise:
            return x
        return da.broadcast_to(da.asarray(x), (*x.shape[: max(x.ndim - len(own), 0)], *own))

    def _chunk(self, arrays: list[Any]) -> None:
        """Sets the arrays in the same chunks, with all leading axes, some of length 1."""
        leading, rows = [f"lead{j}" for j in range(len(self.batch))], self.r.operands
        ranks = [*self.r.layout.own_axes(arrays[:-2]), 2, 0]
        tokens = [*(row.dims[0] if row.has_tokens else "" for row in rows), "n", ""]
        arguments: list[Any] = []
        for i, (x, rank, letter) in enumerate(zip(arrays, ranks, tokens, strict=True)):
            if x is None:
                continue
            x = da.asarray(x)
            x = x[(None,) * (len(leading) - (x.ndim - rank))]
            own = [letter, *range(1, rank)] if letter else [*range(rank)]
            for j, chunks in enumerate(x.chunks[len(leading) :]):
                if own[j] != letter and len(chunks) > 1:
                    raise ValueError(
                        f"{self.name}: an operand of shape {x.shape} is in chunks of {chunks} "
                        f"along axis {len(leading) + j}; expected one chunk along its width: "
                        "x.rechunk({-1: -1})"
                    )
            arguments += [x, [*leading, *(y if y == letter else f"{i}.{y}" for y in own)]]
        chunks, found = da.core.unify_chunks(*arguments, warn=False)  # n and s each have their own
        unified = iter(found)
        *self.arrays, self.grad, self.lengths = (
            None if x is None else next(unified) for x in arrays
        )
        self.lead = tuple(chunks[x] for x in leading)
        self.tokens = chunks["n"]
        self.keys = chunks.get("s", self.tokens)
        self.begin = np.cumsum([0, *self.keys])
        if self.cu_seqlens is not None and len(self.tokens) > 1:
            raise ValueError(
                f"{self.name}: tokens are in chunks of {self.tokens}; expected one chunk with "
                "cu_seqlens, whose sequences are its blocks already"
            )
        self.positions = list(product(*(range(len(c)) for c in self.lead)))
        #: The blocks of tokens in the order in which they are scanned.
        self.order = range(len(self.tokens))[:: -1 if self.reverse else 1]

    def _state_arrays(self, state: State | None) -> list[Any]:
        """The fields of a given state as dask arrays, in the chunks of the leading axes."""
        found: list[Any] = []
        for field, x in zip(State._fields, state or (), strict=False):
            if x is not None:
                x, core = da.asarray(x), self.cores[field]
                x = x[(None,) * (len(self.batch) - (x.ndim - len(core)))]
                lead = (c if n > 1 else (1,) for c, n in zip(self.lead, x.shape, strict=False))
                x = x.rechunk((*lead, *core))
            found.append(x)
        return found

    # --- tasks of blocks ---------------------------------------------------------

    def each(self, function: Callable[..., Any], *values: Value, of: slice = ALL) -> Value:
        run = partial(_tasks.run, function, self.settings)

        @cache
        def value(at: tuple[int, ...]) -> Any:
            lengths = None if of is QUERIES else self._block_lengths(at)
            given = [x and x(at) for x in values]
            return self.graph.add(run, self.operands(at)[of], lengths, *given)

        return value

    def part(self, value: Value, i: int) -> Value:
        return cache(lambda at: self.graph.add(itemgetter(i), value(at)))

    def total(self, values: Value, of: slice) -> Value:
        count = len(self.keys if of is KEYS else self.tokens)

        @cache
        def of_all(position: tuple[int, ...]) -> Any:
            parts = [values((*position, j)) for j in range(count)]
            return self.graph.reduce(parts, _tasks.add)

        return lambda at: of_all(at[:-1])

    def scan(self, elements: Value, start: Value, *, backwards: bool = False) -> Value:
        order, found = self.order[:: -1 if backwards else 1], dict[Any, Any]()
        for position in self.positions:
            blocks = [(*position, j) for j in order]
            states = self._states(start(blocks[0]), [elements(at) for at in blocks[:-1]])
            found |= dict(zip(blocks, states, strict=True))
        return found.__getitem__

    def _states(self, start: Any, elements: list[Any]) -> list[Any]:
        """The states: `start`, and one after each element."""
        add, starts = self.graph.add, [start]
        full = range(0, len(elements) - GROUP + 1, GROUP)
        if full:
            wholes = [add(_tasks.whole, *elements[i : i + GROUP]) for i in full]
            starts = self._states(start, wholes)
        found: list[Any] = []
        for i, state in enumerate(starts):
            group = elements[i * GROUP : (i + 1) * GROUP - 1]
            key = add(_tasks.states, state, *group)
            found += [(itemgetter(j), key) for j in range(len(group) + 1)]
        return found

    def _block_lengths(self, at: tuple[int, ...]) -> Any:
        """The number of a block's tokens that have keys."""
        if self.lengths is None:
            return None
        j = at[-1]
        return _tasks.clip, int(self.begin[j]), self.keys[j], _key(self.lengths, at)

    # --- arrays of blocks --------------------------------------------------------

    def blocks(self, value: Value) -> dict[Any, Any]:
        """A value by the index of the block."""
        tokens = range(len(self.tokens))
        return {at: value(at) for at in ((*x, j) for x in self.positions for j in tokens)}

    def output(self, parts: dict[Any, Any]) -> Any:
        """The output, from blocks."""
        chunks = *self.lead, self.tokens, self.read.shape[-1:]
        return self.graph.array("o", parts, chunks, self.dtype)

    def fields(self, states: Value, j: int) -> dict[str, Any]:
        """Blocks of each array of the states at the tokens j, by field."""
        places = {x: State._fields.index(x) for x in self.cores}
        return {
            x: {at: self.graph.add(itemgetter(i), states((*at, j))) for at in self.positions}
            for x, i in places.items()
        }

    def as_state(self, fields: Mapping[str, Any]) -> State:
        """A State of dask arrays."""
        chunks = {x: (*self.lead, *((n,) for n in core)) for x, core in self.cores.items()}
        return State(**{
            x: self.graph.array(x, parts, chunks[x], self.state_dtype)
            for x, parts in fields.items()
        })  # fmt: skip

    def gradient_blocks(self, grads: Sequence[Value]) -> list[Any]:
        """The gradients of each operand by its own blocks; None for those left out."""
        places = range(len(self.arrays))
        return [None if self.arrays[i] is None else self._shared(i, grads[i]) for i in places]

    def summed_gradients(self, parts: list[Any]) -> tuple[Any, ...]:
        """The gradients in the operands' given shapes, from blocks."""
        return tuple(
            summed(self.graph.array(f"d{i}", parts[i], x.chunks,
                                    self._wide(i, self.settings.dtype)),
                   self.given[i].shape, self._wide(i, self.dtype))
            for i, x in enumerate(self.arrays) if x is not None
        )  # fmt: skip

    def _part_dtype(self) -> Any:
        """The dtype of a task's gradients, which is not 16-bit if there is a sum to come."""
        lead = len(self.batch)
        shared = any(
            x is not None and (x.shape[:lead] != self.batch or x.size != given.size)
            for x, given in zip(self.arrays, self.given, strict=True)
        )
        return self.state_dtype if shared else self.dtype

    def _shared(self, i: int, grad: Value) -> dict[Any, Any]:
        """Operand i's gradients by its own blocks, summed over the positions that share one."""
        has_tokens, x = self.r.operands[i].has_tokens, cast(da.Array, self.arrays[i])
        tokens = range(x.numblocks[len(self.lead)] if has_tokens else len(self.tokens))
        blocks: dict[Any, list[Any]] = {}
        for at in ((*position, j) for position in self.positions for j in tokens):
            blocks.setdefault(_key(x, at)[1:], []).append(grad(at))
        return {at: self.graph.reduce(same, _tasks.add) for at, same in blocks.items()}

    def _wide(self, i: int, dtype: Any) -> Any:
        """The dtype of operand i's gradient where others have ``dtype``."""
        if self.r.operands[i].state_dtype:
            return self.state_dtype
        return gradient_dtype(self.given[i].dtype, dtype)


def _array(x: complex, dtype: Any) -> Any:
    """A number of Python's in the dtype of a call, or in that of its real parts."""
    return np.asarray(x, dtype if isinstance(x, complex) else real_dtype(dtype))


def summed(x: Any, shape: Sequence[int], dtype: Any) -> Any:
    """x summed over what was broadcast, in that shape, then rounded to ``dtype``."""
    axes = tuple(j for j in repeats(x.shape, tuple(shape)) if x.shape[j] != 1)
    if axes:
        x = da.reduction(
            x, _tasks.total, _tasks.total, axis=axes, keepdims=True,
            dtype=np.complex128 if x.dtype.kind == "c" else np.float64,
        )  # fmt: skip
    x = x.reshape(tuple(shape)) if x.shape != tuple(shape) else x
    return x if x.dtype == dtype else x.map_blocks(_tasks.rounded, dtype, dtype=dtype)


def _key(x: Any, at: tuple[int, ...]) -> Any:
    """The key of x's block for an index; an axis in one block has this one for all."""
    places = (*at, *(0,) * x.ndim)
    return x.name, *[min(i, n - 1) for i, n in zip(places, x.numblocks, strict=False)]


def _value(x: Any) -> Value:
    """The blocks of an array as a value; None for none."""
    return lambda at: None if x is None else _key(x, at)


def _state_value(fields: list[Any]) -> Value:
    """The same of a state's arrays."""
    if not fields:
        return lambda at: None
    return lambda at: (State, *(None if x is None else _key(x, at) for x in fields))
