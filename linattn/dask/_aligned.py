"""The operands of a call as blocks of the same tokens and heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from operator import itemgetter
from typing import Any

import dask.array as da
import numpy as np

from .._blocks import block_scan
from .._call.recurrence import Recurrence
from .._core import checks
from .._core.dtypes import gradient_dtype, real_dtype, result_dtype, state_dtype
from .._core.gradient_sums import repeats
from .._core.lazy import refuse_unknown
from .._states import state_arrays
from .._states.state_arrays import State
from . import _tasks
from ._graph import Graph


class Call:
    """A call's operands, checked and in chunks that fit together, and its tasks."""

    def __init__(
        self, r: Recurrence, method: str, operands: Sequence[Any], options: dict[str, Any],
        key_lengths: Any, cu_seqlens: Any = None, initial_state: State | None = None,
        grad_state: State | None = None, grad_out: Any = None,
    ) -> None:  # fmt: skip
        self.r = r
        self.name = r.names[method]
        self.options = options = block_scan.with_map(options)
        kept = type(None), int, float, complex  # numbers of Python's determine no dtype
        given = [
            x if isinstance(x, kept) or hasattr(x, "dtype") else np.asarray(x) for x in operands
        ]
        metas = tuple(
            x if isinstance(x, kept) else self._meta(row.name, x)
            for row, x in zip(r.operands, given, strict=True)
        )
        call, self.cores = r.checked(self.name, tuple(metas), options)
        self.shape, self.batch, typed = call.shape, call.batch, call.typed
        dtype = result_dtype(*typed)
        given = [_array(x, dtype) if isinstance(x, (int, float, complex)) else x for x in given]
        tokens = call.fit.sizes.get("s", call.fit.sizes["n"])
        self.cu_seqlens = None
        if cu_seqlens is not None:
            self.cu_seqlens = state_arrays.checked_bounds(self.name, cu_seqlens, tokens)
        if grad_out is not None:
            meta = self._meta("grad_out", grad_out)
            meta = r.cotangent(self.name, meta, call)
            grad_out = da.broadcast_to(da.asarray(grad_out), meta.shape)
            typed = *typed, meta
        self.dtype, self.state_dtype = result_dtype(*typed), state_dtype(*typed)
        if key_lengths is not None:
            key_lengths = self._lengths(key_lengths, tokens)
        self.given = given
        self._chunk([*(self._spread(x, call.fit.own) for x in given), grad_out, key_lengths])
        states = ("initial_state", initial_state), ("grad_state", grad_state)
        self.states = [self._state(*x) for x in states]
        sources = [*self.arrays, self.grad, self.lengths, *self.states[0], *self.states[1]]
        self.graph = Graph(self.name, sources, self.options, self.cu_seqlens)

    def _meta(self, name: str, x: Any) -> Any:
        """An array of that shape and dtype without memory, for checks."""
        refuse_unknown(self.name, name, x)
        return checks.shape_alone(x, x.dtype)

    def _lengths(self, key_lengths: Any, keys: int) -> Any:
        if not isinstance(key_lengths, da.Array):
            return da.asarray(
                state_arrays.checked_lengths(self.name, key_lengths, keys, self.batch)
            )
        state_arrays.checked_lengths(
            self.name, self._meta("key_lengths", key_lengths), keys, self.batch
        )
        return key_lengths

    def _spread(self, x: Any, own: Sequence[int]) -> Any:
        """An operand of a scan with those axes behind its leading ones; others as they are."""
        if x is None or not self.r.layout.elementwise:
            return x
        return da.broadcast_to(da.asarray(x), (*x.shape[: max(x.ndim - len(own), 0)], *own))

    def _chunk(self, arrays: list[Any]) -> None:
        """Sets the arrays in the same chunks, with all leading axes, some of length 1."""
        lead, rows = len(self.batch), self.r.operands
        ranks = [*self.r.layout.own_axes(arrays[:-2]), 2, 0]
        tokens = [*(row.dims[0] if row.has_tokens else "" for row in rows), "n", ""]
        arguments: list[Any] = []
        for i, (x, rank, letter) in enumerate(zip(arrays, ranks, tokens, strict=True)):
            if x is None:
                continue
            x = da.asarray(x)
            x = x[(None,) * (lead - (x.ndim - rank))]
            own = list(range(lead, lead + rank))
            names = [f"lead{j}" if x.shape[j] > 1 else f"one{i}.{j}" for j in range(lead)]
            for j in own:
                is_token = letter != "" and j == lead
                names.append(letter if is_token else f"own{i}.{j}")
                if not is_token and x.numblocks[j] > 1:
                    raise ValueError(
                        f"{self.name}: an operand of shape {x.shape} is in chunks of "
                        f"{x.chunks[j]} along axis {j}; expected one chunk along its width: "
                        "x.rechunk({-1: -1})"
                    )
            arrays[i] = x
            arguments += [x, names]
        _, unified = da.core.unify_chunks(*arguments, warn=False)  # n and s each have their own
        unified = iter(unified)
        arrays = [None if x is None else next(unified) for x in arrays]
        *self.arrays, self.grad, self.lengths = arrays
        q, k = self.arrays[:2]
        whole = [x for x in arrays if x is not None]
        self.lead = tuple(
            max((x.chunks[j] for x in whole), key=lambda c: (sum(c), len(c))) for j in range(lead)
        )
        self.tokens, self.keys = q.chunks[lead], k.chunks[lead]
        if self.cu_seqlens is not None and len(self.tokens) > 1:
            raise ValueError(
                f"{self.name}: tokens are in chunks of {self.tokens}; expected one chunk with "
                "cu_seqlens, whose sequences are its blocks already"
            )
        #: The blocks of tokens in the order in which they are scanned.
        self.order = range(len(self.tokens))[:: -1 if self.options.get("reverse") else 1]
        self.begin = np.cumsum([0, *self.keys])

    @property
    def _packed_cores(self) -> State:
        """The shapes of a state's arrays without leading axes, with that of sequences."""
        packed = () if self.cu_seqlens is None else (len(self.cu_seqlens) - 1,)
        return State(*(None if core is None else (*packed, *core) for core in self.cores))

    def _state(self, field: str, state: State | None) -> list[Any]:
        """The fields of a given state as dask arrays, in the chunks of the leading axes."""
        if state is None:
            return []
        metas = State(*(
            None if x is None else self._meta(f"{field}.{part}", x)
            for part, x in zip(State._fields, state, strict=False)
        ))  # fmt: skip
        cores = self._packed_cores
        state_arrays.checked(self.name, field, metas, self.batch, cores, self.state_dtype)
        return [self._spread_field(x, core) for x, core in zip(state, cores, strict=False)]

    def _spread_field(self, x: Any, core: Any) -> Any:
        if x is None or core is None:
            return None
        x = da.asarray(x)
        x = x[(None,) * (len(self.batch) - (x.ndim - len(core)))]
        chunks = [c if size > 1 else (1,) for c, size in zip(self.lead, x.shape, strict=False)]
        return x.rechunk((*chunks, *((size,) for size in core)))

    # --- keys of blocks ----------------------------------------------------------

    def positions(self) -> list[tuple[int, ...]]:
        """The positions of blocks along the leading axes."""
        return list(product(*(range(len(c)) for c in self.lead)))

    def block(self, i: int, position: tuple[int, ...], j: int) -> Any:
        """Operand i's block of the tokens j; an operand without tokens has one block for all."""
        x, row = self.arrays[i], self.r.operands[i]
        return None if x is None else _key(x, position, *([j] if row.has_tokens else []))

    def operands(self, position: tuple[int, ...], j: int) -> list[Any]:
        """The operands' blocks of the tokens j."""
        return [self.block(i, position, j) for i in range(len(self.arrays))]

    def grad_out(self, position: tuple[int, ...], j: int) -> Any:
        return _key(self.grad, position, j)

    def key_lengths(self, position: tuple[int, ...], j: int) -> Any:
        """The number of a block's tokens that have keys."""
        if self.lengths is None:
            return None
        clip = partial(_tasks.clip, int(self.begin[j]), self.keys[j])
        return self.graph.add(clip, _key(self.lengths, position))

    def state(self, which: int) -> Callable[[tuple[int, ...]], Any]:
        """The initial state (0) or the gradient of the last one (1), by position."""
        fields = self.states[which]
        if not fields:
            return lambda position: self.nothing()
        return lambda position: (
            self.graph.add(
                _tasks.state, *(None if x is None else _key(x, position) for x in fields)
            ), 0
        )  # fmt: skip

    def nothing(self) -> tuple[Any, int]:
        """No state."""
        return [None], 0

    # --- arrays of blocks --------------------------------------------------------

    def array(self, what: str, parts: dict[Any, Any], core: Sequence[Any], dtype: Any) -> Any:
        """Blocks by position as an array; ``core`` are the chunks of the axes that do not lead."""
        return self.graph.array(what, parts, (*self.lead, *core), dtype)

    def fields(self, states: dict[Any, Any]) -> list[Any]:
        """Blocks of each array of a state, from blocks of states; None for those it lacks."""
        return [
            None if core is None
            else {at: self.graph.add(itemgetter(i), x) for at, x in states.items()}
            for i, core in enumerate(self.cores)
        ]  # fmt: skip

    def as_state(self, fields: list[Any]) -> State:
        """A State of dask arrays."""
        arrays = zip(State._fields, fields, self._packed_cores, strict=True)
        return State(*(
            None if parts is None
            else self.array(name, parts, [(size,) for size in core], self.state_dtype)
            for name, parts, core in arrays
        ))  # fmt: skip

    def gradients(self, parts: list[dict[Any, Any]]) -> tuple[Any, ...]:
        """The gradients in the operands' given shapes, from those of blocks by position."""
        there = [(i, x) for i, x in enumerate(self.arrays) if x is not None]
        sums = {i: self._shared(i, parts[i]) for i, _ in there}
        return tuple(
            summed(self.graph.array(f"d{i}", sums[i], x.chunks, self._wide(i, self.part_dtype)),
                   self.given[i].shape, self._wide(i, self.dtype))
            for i, x in there
        )  # fmt: skip

    @property
    def part_dtype(self) -> Any:
        """The dtype of a task's gradients, which is not 16-bit if there is a sum to come."""
        lead = len(self.batch)
        shared = any(
            x is not None and (x.shape[:lead] != self.batch or x.size != given.size)
            for x, given in zip(self.arrays, self.given, strict=True)
        )
        return self.state_dtype if shared else self.dtype

    def _shared(self, i: int, parts: dict[Any, Any]) -> dict[Any, Any]:
        """Operand i's gradients by its own blocks, summed over the positions that share one."""
        blocks: dict[Any, list[Any]] = {}
        has_tokens = self.r.operands[i].has_tokens
        for (*position, j), part in parts.items():
            where = _place(self.arrays[i], tuple(position))
            blocks.setdefault((*where, j) if has_tokens else where, []).append(part)
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


def _place(x: Any, position: tuple[int, ...]) -> tuple[int, ...]:
    """The index of the block for a position; an axis of length 1 has one block for all."""
    return tuple(min(i, size - 1) for i, size in zip(position, x.numblocks, strict=False))


def _key(x: Any, position: tuple[int, ...], *more: int) -> Any:
    at = *_place(x, position), *more
    return x.name, *at, *(0 for _ in x.numblocks[len(at) :])
