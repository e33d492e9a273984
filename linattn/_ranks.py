"""Recurrences over ranks that have a stretch of the tokens each, whatever connects them.

Each rank computes what its stretch does to the state, the ranks before it tell what they do, and
it then runs from its own state; gradients go the same way from the last rank to the first.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np

from . import _blocks, _check, feature_maps
from ._gradients import sum_all
from ._operator import RECURRENCES, Recurrence
from ._state import State
from .attention import NONCAUSAL


class Ranks(Protocol):
    """What connects the ranks; every method is called by all of them together."""

    rank: int

    def gather(self, x: Any) -> list[Any]:
        """The objects of all ranks."""

    def extremes(self, x: int) -> tuple[int, int]:
        """The least and the largest of all ranks' integers, below 2**53."""

    def before(self, element: _blocks.Element) -> _blocks.Element | None:
        """What the ranks before this one do to a state; None on the first."""

    def behind(self, element: _blocks.Element) -> _blocks.Element | None:
        """The same of the ranks behind it, the last of them first; None on the last."""

    def total(self, x: Any) -> Any:
        """The sum of all ranks' arrays."""

    def share(self, x: Any, root: int) -> Any:
        """That of the rank ``root``, which may count from the last as -1."""


def forward(
    ranks: Ranks, name: str, operands: tuple[Any, ...], *, key_lengths: Any = None,
    initial_state: State | None = None, return_state: bool = False,
    alike: dict[str, Any] | None = None, **options: Any,
) -> Any:  # fmt: skip
    """A recurrence's outputs of this rank's tokens, and the state after the last token of all.

    What ``alike`` holds is the same on all ranks.
    """
    r = RECURRENCES[name]
    options = {"feature_map": "identity", **options}
    if r.cross:
        return noncausal(ranks, operands, key_lengths=key_lengths, alike=alike, **options)
    asked = {"return_state": bool(return_state)} | (alike or {})
    operands, lengths, start = _start(
        ranks, r, "forward", operands, key_lengths, initial_state, options, asked
    )
    result = _together(
        ranks,
        lambda: r.forward(
            operands, key_lengths=lengths, initial_state=start, return_state=return_state, **options
        ),
    )
    return (result[0], ranks.share(result[1], -1)) if return_state else result


def backward(
    ranks: Ranks, name: str, operands: tuple[Any, ...], grad_out: Any, *, key_lengths: Any = None,
    initial_state: State | None = None, grad_state: State | None = None, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Its gradients: those of this rank's operands, and that of the first state."""
    r = RECURRENCES[name]
    options = {"feature_map": "identity", **options}
    if r.cross:
        return noncausal_backward(ranks, operands, grad_out, key_lengths=key_lengths, **options)
    asked = {"a grad_state": grad_state is not None}
    operands, lengths, start = _start(
        ranks, r, "backward", operands, key_lengths, initial_state, options, asked,
        grad_out, grad_state,
    )  # fmt: skip

    def run(grad: State | None) -> tuple[Any, ...]:
        before = _blocks.empty_state(r, operands, **options)
        if start is not None:  # with all leading axes, as on the other ranks
            before = _blocks.after(before, _blocks.Element(None, *start[:2]))
        grads: tuple[Any, ...] = r.backward(
            operands, grad_out, key_lengths=lengths, grad_state=grad, initial_state=before,
            **options,
        )  # fmt: skip
        return grads

    def alone() -> tuple[Any, ...]:
        if _blocks.gradient_is_sum(r, **options):
            total = _blocks.gradient_sum(operands[0], np.asarray(grad_out), **options)
            return None, _blocks.Element(None, total.s)
        grads = run(None)
        element = _blocks.element(name, operands, lengths, **options)
        return grads, _blocks.turned(element, grads[-1])

    grads, element = _together(ranks, alone)
    behind = ranks.behind(element)
    last = grad_state if behind is None else _blocks.after(grad_state, behind)
    grads = _together(ranks, lambda: run(last) if grads is None or last is not None else grads)
    rows = [row for row, x in zip(r.operands, operands, strict=True) if x is not None]
    first = [  # every rank has the same array where there are no tokens
        grad if row.has_tokens else ranks.total(grad)
        for grad, row in zip(grads[:-1], rows, strict=True)
    ]
    if initial_state is None and grad_state is None:
        return tuple(first)
    state = ranks.share(grads[-1], 0)
    if initial_state is not None:
        given = tuple(x for x in initial_state if x is not None)
        state = State(*sum_all(state[: len(given)], given))
    return *first, state


def noncausal(
    ranks: Ranks, operands: tuple[Any, ...], *, key_lengths: Any = None,
    alike: dict[str, Any] | None = None, **options: Any,
) -> Any:  # fmt: skip
    """This rank's queries to the keys of all ranks."""
    operands, state, _ = _total(ranks, "forward", operands, key_lengths, options, alike)
    return _blocks.read(operands[0], state, **options)


def noncausal_backward(
    ranks: Ranks, operands: tuple[Any, ...], grad_out: Any, *, key_lengths: Any = None,
    **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Its gradients: those of this rank's operands."""
    operands, state, lengths = _total(
        ranks, "backward", operands, key_lengths, options, None, grad_out
    )
    q, k, v = operands
    dq, grad = _together(ranks, lambda: _blocks.read_backward(q, state, grad_out, **options))
    grad = State(*(None if x is None else ranks.total(x) for x in grad))
    return dq, *_blocks.sums_backward(k, v, grad, lengths, **options)


def _start(
    ranks: Ranks, r: Recurrence, method: str, operands: tuple[Any, ...], key_lengths: Any,
    initial_state: State | None, options: dict[str, Any], asked: dict[str, Any],
    grad_out: Any = None, grad_state: State | None = None,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The operands as arrays, this stretch's lengths, and the state before it."""
    name = r.names[method]

    def alone() -> Any:
        call = r._read(name, operands)
        _blocks.check_options(r, name, call, **options)
        _blocks.check(name, options["feature_map"], options.get("normalize", False))
        grad = () if grad_out is None else (_check.cotangent(name, grad_out, call.shape),)
        f = feature_maps.get(options["feature_map"]).features(call.core[0])
        dtype = _check.state_dtype(*call.typed, *grad)
        for field, state in (("initial_state", initial_state), ("grad_state", grad_state)):
            if state is not None:
                _check.state(name, field, state, call.batch, (f, call.core[1]), dtype,
                             options.get("normalize", False))  # fmt: skip
        arrays = tuple(None if x is None else np.asarray(x) for x in operands)
        given = {"an initial_state": initial_state is not None} | asked
        for field, state in (("initial_state", initial_state), ("grad_state", grad_state)):
            if state is not None:
                given[f"the checksum of {field}"] = _checksum(state)
        meta = _agreement(name, r, call, arrays, grad, key_lengths, options | given)
        return (arrays, call.batch), meta

    arrays, batch = _meet(ranks, name, alone)
    lengths = _lengths(ranks, name, arrays[1], batch, key_lengths)
    element = _together(ranks, lambda: _blocks.element(r.name, arrays, lengths, **options))
    before = ranks.before(element)
    start = initial_state if before is None else _blocks.after(initial_state, before)
    return arrays, lengths, start


def _total(
    ranks: Ranks, method: str, operands: tuple[Any, ...], key_lengths: Any,
    options: dict[str, Any], alike: dict[str, Any] | None, grad_out: Any = None,
) -> tuple[Any, State, Any]:  # fmt: skip
    """The operands as arrays, the sums over the keys of all ranks, this stretch's lengths."""
    name = NONCAUSAL.names[method]

    def alone() -> Any:
        call = NONCAUSAL._read(name, operands)
        _blocks.check_options(NONCAUSAL, name, call, **options)
        _blocks.check(name, options["feature_map"], options["normalize"])
        arrays = tuple(map(np.asarray, operands))
        for letter, x in zip("qkv", arrays, strict=True):
            if x.shape[:-2] != call.batch:
                raise ValueError(
                    f"{name}: {letter} has shape {x.shape}; expected the leading axes "
                    f"{call.batch} in each of q, k and v where they are on several ranks"
                )
        grad = () if grad_out is None else (_check.cotangent(name, grad_out, call.shape),)
        meta = _agreement(name, NONCAUSAL, call, arrays, grad, key_lengths, options | (alike or {}))
        return (arrays, call.batch), meta

    arrays, batch = _meet(ranks, name, alone)
    _, k, v = arrays
    lengths = _lengths(ranks, name, k, batch, key_lengths)
    element = _together(ranks, lambda: _blocks.element("causal", (k, k, v), lengths, **options))
    z = None if element.z is None else ranks.total(element.z)
    return arrays, State(ranks.total(element.s), z), lengths


def _agreement(
    name: str, r: Recurrence, call: Any, arrays: tuple[Any, ...], grad: tuple[Any, ...],
    key_lengths: Any, options: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """What has to be the same on all ranks, lest one of them wait for another in vain."""
    own = r.layout.own_axes(arrays)
    shapes = {
        f"the shape of {row.name}":
            None if x is None else _but_tokens(x.shape, axes if row.has_tokens else 0)
        for row, x, axes in zip(r.operands, arrays, own, strict=True)
    }  # fmt: skip
    lengths = None
    if key_lengths is not None:
        lengths = _check.integers(name, "key_lengths", key_lengths).tolist()
    return {
        "the leading axes": call.batch, "(d, m)": call.core, **shapes,
        "the shape of grad_out": [_but_tokens(x.shape, 2) for x in grad],
        "dtype": [str(x.dtype) for x in (*call.typed, *grad)],
        "key_lengths": lengths, **options,
    }  # fmt: skip


def _checksum(state: State) -> tuple[int, ...]:
    """What tells states of other numbers, which every rank has to have alike."""
    fields = (np.ascontiguousarray(x) for x in state if x is not None)
    return tuple(zlib.crc32(x.view(np.uint8).data if x.size else b"") for x in fields)


def _but_tokens(shape: tuple[int, ...], own: int) -> tuple[Any, ...]:
    """A shape with the letter n where it has tokens: first of so many axes that do not lead."""
    return tuple("n" if i == len(shape) - own else size for i, size in enumerate(shape))


def _lengths(ranks: Ranks, name: str, k: Any, batch: tuple[int, ...], key_lengths: Any) -> Any:
    """Lengths of all tokens as those of this stretch."""
    if key_lengths is None:
        return None
    n = k.shape[-2]
    sizes = ranks.gather(n)
    whole = _together(ranks, lambda: _check.key_lengths(name, key_lengths, sum(sizes), batch))
    return np.clip(whole - sum(sizes[: ranks.rank]), 0, n)


def _meet(ranks: Ranks, name: str, alone: Callable[[], tuple[Any, Any]]) -> Any:
    """What this rank finds alone, or an error on all ranks where their calls differ."""

    def described() -> tuple[Any, dict[str, Any], int]:
        found, meta = alone()
        mine = {"the function": name} | meta
        return found, mine, zlib.crc32(pickle.dumps(mine))

    found, mine, checksum = _together(ranks, described)
    least, most = ranks.extremes(checksum)
    if least != most:  # what is equal may differ in its bytes
        for rank, other in enumerate(ranks.gather(mine)):
            for what, value in mine.items():
                if other.get(what) != value:
                    raise ValueError(
                        f"{name}: {what} is {value} here and {other.get(what)} on rank {rank}; "
                        "expected the same on all ranks, which differ in their tokens alone"
                    )
    return found


def fail(ranks: Ranks, error: Exception) -> NoReturn:
    """An error of this rank alone, before the exchange at the beginning of every call."""

    def alone() -> NoReturn:
        raise error

    _together(ranks, alone)
    raise error


def _together(ranks: Ranks, function: Callable[[], Any]) -> Any:
    """The function's result, or an error on every rank where one of them has one."""
    result, error = None, None
    try:
        result = function()
    except Exception as found:
        error = found
    if ranks.extremes(0 if error is None else 1)[1]:
        texts = ranks.gather(None if error is None else f"{type(error).__name__}: {error}")
        if error is not None:
            raise error
        rank, text = next((i, x) for i, x in enumerate(texts) if x is not None)
        raise RuntimeError(f"linattn: rank {rank} has an error: {text}")
    return result
