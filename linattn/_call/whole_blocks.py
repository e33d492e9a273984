"""``block``: all tokens of a block read the state after the last one of them.

The call becomes one of twice as many tokens, without blocks.  The tokens of a block first write,
with queries whose outputs are dropped, and then read, with keys that write nothing::

    block=3, token     0  1  2  3  4
    written at place   0  1  2  6  7       token + begin of its block
    read at place      3  4  5  8  9       token + end of its block

So states, lengths, packed sequences, positions and gradients are those of calls without blocks.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._core import checks, lazy
from .._core.dtypes import result_dtype
from .._states import state_arrays
from ..feature_maps import get
from . import cut, mapped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._core.layout import Call, Operand
    from .._types import Array
    from .recurrence import Recurrence


class Places(NamedTuple):
    """Where tokens write and read, in a sequence of twice as many."""

    write: Any
    read: Any


def places(tokens: Any, first: Any, last: Any, block: int) -> Places:
    """Those of tokens of sequences from ``first`` to ``last``: arrays or tensors."""
    begin = tokens - (tokens - first) % block
    return Places(tokens + begin, tokens + (begin + block).clip(max=last))


def checked(rows: Sequence[Operand], function: str, operands: Sequence[Any], block: Any) -> int:
    """``block``, and that there is no operand which says what a token reads besides the state."""
    block = checks.integer(function, "block", block)
    for row, x in zip(rows, operands, strict=True):
        if block > 1 and x is not None and not row.has_tokens:
            raise ValueError(
                f"{function}: block is {block} and {row.name} is given; expected block=None, as "
                f"tokens read before they write with {row.name}"
            )
    return block


@cache
def silent_key(feature_map: str) -> float:
    """What fills a key whose features are 0."""
    return 0.0 if not get(feature_map)([[0.0]]).any() else -np.inf


def call(
    r: Recurrence, method: str, operands: tuple[Any, ...], block: Any, *, feature_map: Any,
    **options: Any,
) -> Any:  # fmt: skip
    """``r.method(operands, feature_map=feature_map, **options)`` in blocks of so many tokens."""
    function = r.names[method]
    block = checked(r.operands, function, operands, block)
    if block == 1:
        return getattr(r, method)(operands, feature_map=feature_map, **options)
    lazy.refuse(function, (*operands, options.get("grad_out")), f"block is {block} and ")
    numbers = {name: options[name] for name in ("scale", "eps", "normalize")}
    read, _ = r.checked(function, operands, {"feature_map": feature_map} | numbers)
    if mapped.outside(feature_map):
        return mapped.call(r, method, operands, feature_map, block=block, **options)
    doubled = _Doubled(r, function, read, block, silent_key(feature_map))
    options = doubled.options(options) | {"feature_map": feature_map}
    run = doubled.forward if method == "forward" else doubled.backward
    return run(**options)


class _Doubled:
    """The call of twice as many tokens, and its results at the places of the tokens."""

    def __init__(self, r: Recurrence, function: str, read: Call, block: int, fill: float) -> None:
        self._r, self._function, self._call = r, function, read
        self._n, self._block, self._fill = read.fit.sizes["n"], block, fill
        self._places = self._placed(np.array(0), np.array(self._n))
        given, fit = iter(read.arrays), read.fit
        arrays: list[Any] = [None if shape is None else next(given) for shape in fit.shapes]
        for i in fit.narrow:
            arrays[i] = arrays[i][..., None]
        if arrays[1].dtype.kind in "biu":  # which may lack what fills it
            arrays[1] = arrays[1].astype(result_dtype(*read.typed))
        self._arrays = arrays
        #: The axis of tokens of each operand.
        self._axes = [
            0 if x is None else x.ndim - own
            for x, own in zip(arrays, r.layout.own_axes(arrays), strict=True)
        ]

    def _placed(self, first: Array, last: Array) -> Places:
        return places(np.arange(self._n), first, last, min(self._block, max(self._n, 1)))

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a call, checked."""
        function, n, options = self._function, self._n, dict(options)
        if options["cu_seqlens"] is not None:
            bounds = state_arrays.checked_bounds(function, options["cu_seqlens"], n)
            after = np.searchsorted(bounds, np.arange(n), "right")
            self._places = self._placed(bounds[after - 1], bounds[after])
            options["cu_seqlens"] = 2 * bounds
        after = np.concatenate(([0], self._places.write + 1))  # place by tokens that have written
        if options["key_lengths"] is not None:
            lengths = options["key_lengths"]
            lengths = state_arrays.checked_lengths(function, lengths, n, self._call.batch)
            options["key_lengths"] = after[lengths]
        if options["state_at"] is not None:
            options["state_at"] = after[cut.positions(function, options["state_at"], n)]
        # A denominator of 0 that nobody sees would still make the gradients of others NaN.
        tiny = float(np.finfo(self._call.state_dtype).tiny)
        return options | {"eps": max(float(options["eps"]), tiny)}

    def forward(self, *, out: Any, **options: Any) -> Any:
        """The output, and the state if it is asked for."""
        if out is not None:
            checks.out(self._function, out, self._call.shape, *self._call.typed)
        result = self._r.forward(self._operands(), **options)
        o, *state = result if isinstance(result, tuple) else (result,)
        if out is None:
            out = o.take(self._places.read, -2)
        else:
            out[...] = o[..., self._places.read, :]
        return (out, *state) if state else out

    def backward(self, *, grad_out: Any, **options: Any) -> tuple[Any, ...]:
        """The gradients of the operands that are given, and that of a state."""
        grad_out = self._r.cotangent(self._function, grad_out, self._call)
        grad_out = self._spread(grad_out, grad_out.ndim - 2, self._places.read)
        grads = self._r.backward(self._operands(), grad_out, **options)
        own = [
            grads[j].take(self._at(i), self._axes[i])
            for j, i in enumerate(i for i, x in enumerate(self._arrays) if x is not None)
        ]
        return *own, *grads[len(own) :]

    def _at(self, i: int) -> Array:
        """The places of an operand: q is what reads."""
        at: Array = self._places.write if i else self._places.read
        return at

    def _operands(self) -> tuple[Any, ...]:
        """The operands at their places."""
        pairs = enumerate(zip(self._arrays, self._axes, strict=True))
        return tuple(
            None if x is None else self._spread(x, axis, self._at(i), self._fill if i == 1 else 0.0)
            for i, (x, axis) in pairs
        )

    def _spread(self, x: Any, axis: int, at: Array, fill: float = 0.0) -> Array:
        """An array of twice as many tokens, with those of x at these places."""
        shape = *x.shape[:axis], 2 * self._n, *x.shape[axis + 1 :]
        y: Any = np.full(shape, fill, x.dtype) if fill else np.zeros(shape, x.dtype)
        y[(*(slice(None),) * axis, at)] = x
        return y
