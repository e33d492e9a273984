"""Recurrences over ranks that have a part of the tokens each, whatever connects them.

Each rank computes the effect of its tokens on the state, receives the effect of all ranks before
it, and then runs from its own state.  Gradients go the same way from the last rank to the first.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np

from .._call.recurrence import RECURRENCES
from .._core import checks
from .._core.dtypes import state_dtype
from .._core.gradient_sums import sum_all
from .._states import state_arrays
from .._states.state_arrays import State
from . import block_scan
from .effects import AnyElement


class Ranks(Protocol):
    """The connection of the ranks; all of them call each method together."""

    rank: int

    def gather(self, x: Any) -> list[Any]:
        """The objects of all ranks."""

    def extremes(self, x: int) -> tuple[int, int]:
        """The smallest and the largest of all ranks' integers, which are below 2**53."""

    def before(self, element: AnyElement) -> AnyElement | None:
        """The effect of the ranks before this one on a state; None on the first."""

    def behind(self, element: AnyElement) -> AnyElement | None:
        """The effect of the ranks after it, from the last to the next; None on the last."""

    def total(self, x: Any) -> Any:
        """The sum of all ranks' arrays."""

    def share(self, x: Any, root: int) -> Any:
        """The object of rank ``root``; -1 is the last rank."""


def forward(
    ranks: Ranks, name: str, operands: tuple[Any, ...], *, key_lengths: Any = None,
    initial_state: State | None = None, return_state: bool = False,
    alike: dict[str, Any] | None = None, **options: Any,
) -> Any:  # fmt: skip
    """The outputs for this rank's tokens, and the state after the last token of all ranks.

    ``alike`` are further values that have to be equal on all ranks, by their names in an error.
    """
    alike = {"return_state": bool(return_state), **(alike or {})}
    call = _Call(ranks, name, "forward", operands, key_lengths, options, alike, initial_state)
    if call.r.cross:
        return block_scan.read(call.operands[0], call.total(), **call.options)
    start, _ = call.start(initial_state)
    result = _together(
        ranks,
        lambda: call.r.forward(
            call.operands, key_lengths=call.lengths, initial_state=start,
            return_state=return_state, **call.options,
        ),
    )  # fmt: skip
    return (result[0], ranks.share(result[1], call.last)) if return_state else result


def backward(
    ranks: Ranks, name: str, operands: tuple[Any, ...], grad_out: Any, *, key_lengths: Any = None,
    initial_state: State | None = None, grad_state: State | None = None, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of this rank's operands and, if a state is given, of the first state."""
    call = _Call(
        ranks, name, "backward", operands, key_lengths, options, {}, initial_state, grad_out,
        grad_state,
    )  # fmt: skip
    if call.r.cross:
        return _backward_over_all_keys(call, grad_out)
    grads = _backward_in_order(call, grad_out, initial_state, grad_state)
    rows = [row for row, x in zip(call.r.operands, call.operands, strict=True) if x is not None]
    first = tuple(  # every rank has the same array where there are no tokens
        grad if row.has_tokens else ranks.total(grad)
        for grad, row in zip(grads[:-1], rows, strict=True)
    )
    if initial_state is None and grad_state is None:
        return first
    state = ranks.share(grads[-1], call.first)
    if initial_state is not None:
        state = State(*(
            None if x is None else sum_all((grad,), (x,))[0]
            for grad, x in zip(state, initial_state, strict=False)
        ))  # fmt: skip
    return *first, state


def _backward_in_order(
    call: _Call, grad_out: Any, initial_state: State | None, grad_state: State | None
) -> tuple[Any, ...]:
    """The gradients of this rank's operands, and of the state before them."""
    ranks, r, operands, options = call.ranks, call.r, call.operands, call.options
    start, effect = call.start(initial_state)
    before = block_scan.with_all_axes(start, block_scan.empty_state(r, operands, **options))

    def run(grad: State | None) -> tuple[Any, ...]:
        grads: tuple[Any, ...] = r.backward(
            operands, grad_out, key_lengths=call.lengths, grad_state=grad, initial_state=before,
            **options,
        )  # fmt: skip
        return grads

    def local() -> tuple[Any, ...]:
        if block_scan.gradient_is_sum(r, **options):
            grad = np.asarray(grad_out)
            return None, block_scan.gradient_sum(operands[0], grad, **options)
        grads = run(None)
        return grads, effect.turned(grads[-1], before)

    grads, element = _together(ranks, local)
    behind = call.behind(element)
    last = grad_state if behind is None else behind.after(grad_state)
    found: tuple[Any, ...] = _together(
        ranks, lambda: run(last) if grads is None or last is not None else grads
    )
    return found


def _backward_over_all_keys(call: _Call, grad_out: Any) -> tuple[Any, ...]:
    """The gradients of this rank's queries, keys and values."""
    q, k, v = call.operands
    state = call.total()
    dq, grad = _together(
        call.ranks, lambda: block_scan.read_backward(q, state, grad_out, **call.options)
    )
    grad = State(*(None if x is None else call.ranks.total(x) for x in grad))
    return dq, *block_scan.sums_backward(k, v, grad, call.lengths, **call.options)


class _Call:
    """A call on this rank's tokens, after all ranks have found that their calls agree."""

    def __init__(
        self, ranks: Ranks, name: str, method: str, operands: tuple[Any, ...], key_lengths: Any,
        options: dict[str, Any], alike: dict[str, Any], initial_state: State | None,
        grad_out: Any = None, grad_state: State | None = None,
    ) -> None:  # fmt: skip
        r = self.r = RECURRENCES[name]
        self.ranks, self.name = ranks, r.names[method]
        self.options = options = block_scan.with_map(options)
        self.reverse = bool(options.get("reverse"))
        #: The ranks of the tokens that are scanned first and last.
        self.first, self.last = (-1, 0) if self.reverse else (0, -1)
        states = {"initial_state": initial_state, "grad_state": grad_state}

        def local() -> tuple[Any, dict[str, Any]]:
            call, cores = r.checked(self.name, tuple(operands), options)
            arrays = tuple(None if x is None else np.asarray(x) for x in operands)
            if r.cross:
                self._check_leading_axes(arrays, call.batch)
            if r.layout.elementwise:
                self._check_tokens(arrays, call.shape)
            grad: tuple[Any, ...] = ()
            if grad_out is not None:
                grad = (r.cotangent(self.name, grad_out, call),)
            dtype = state_dtype(*call.typed, *grad)
            given: dict[str, Any] = {
                "an initial_state": initial_state is not None,
                "a grad_state": grad_state is not None,
            }
            for field, state in states.items():
                if state is not None:
                    state_arrays.checked(self.name, field, state, call.batch, cores, dtype)
                    given[f"the checksum of {field}"] = _checksum(state)
            meta = self._agreement(call, arrays, grad, key_lengths, options | alike | given)
            return (arrays, call.batch), meta

        self.operands, batch = _meet(ranks, self.name, local)
        self.lengths = _lengths(ranks, self.name, self.operands[1], batch, key_lengths)

    def element(self, key: str, operands: tuple[Any, ...]) -> AnyElement:
        """The effect of this rank's tokens on the state of a recurrence."""
        return block_scan.element(key, operands, self.lengths, **self.options)

    def start(self, state: State | None) -> tuple[State | None, Any]:
        """The state before this rank's tokens, from the one before all, and their own effect."""
        element = _together(self.ranks, lambda: self.element(self.r.name, self.operands))
        before = self.ranks.behind(element) if self.reverse else self.ranks.before(element)
        return state if before is None else before.after(state), element

    def behind(self, element: AnyElement) -> AnyElement | None:
        """The effect on a gradient of the ranks that are scanned later."""
        return self.ranks.before(element) if self.reverse else self.ranks.behind(element)

    def total(self) -> State:
        """The sums over the keys of all ranks."""
        _, k, v = self.operands
        element: Any = _together(self.ranks, lambda: self.element("causal", (k, k, v)))
        z = None if element.z is None else self.ranks.total(element.z)
        return State(self.ranks.total(element.s), z)

    def _check_leading_axes(self, arrays: tuple[Any, ...], batch: tuple[int, ...]) -> None:
        for row, x in zip(self.r.operands, arrays, strict=True):
            if x.shape[:-2] != batch:
                raise ValueError(
                    f"{self.name}: {row.name} has shape {x.shape}; expected the leading axes "
                    f"{batch} in each of q, k and v where they are on several ranks"
                )

    def _check_tokens(self, arrays: tuple[Any, ...], shape: tuple[int, ...]) -> None:
        """Refuses factors that all tokens share: with one token a rank, their shape is that of
        factors of the token, and the gradients differ."""
        for row, x in zip(self.r.operands, arrays, strict=True):
            if x.shape[-2:-1] != shape[-2:-1]:
                raise ValueError(
                    f"{self.name}: {row.name} has shape {x.shape}; expected {shape[-2]} tokens, "
                    "this rank's: an array that is broadcast to them"
                )

    def _agreement(
        self, call: Any, arrays: tuple[Any, ...], grad: tuple[Any, ...], key_lengths: Any,
        options: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """What has to be equal on all ranks: otherwise one would wait for another for ever."""
        own = self.r.layout.own_axes(arrays)
        shapes = {
            f"the shape of {row.name}":
                None if x is None else _but_tokens(x.shape, axes if row.has_tokens else 0)
            for row, x, axes in zip(self.r.operands, arrays, own, strict=True)
        }  # fmt: skip
        lengths = None
        if key_lengths is not None:
            lengths = checks.integers(self.name, "key_lengths", key_lengths).tolist()
        return {
            "the leading axes": call.batch, "(d, m)": call.core, **shapes,
            "the shape of grad_out": [_but_tokens(x.shape, 2) for x in grad],
            "dtype": [str(x.dtype) for x in (*call.typed, *grad)],
            "key_lengths": lengths, **options,
        }  # fmt: skip


def _checksum(state: State) -> tuple[int, ...]:
    """A checksum of a state, which has to be equal on all ranks."""
    fields = (np.ascontiguousarray(x) for x in state if x is not None)
    return tuple(zlib.crc32(x.view(np.uint8).data if x.size else b"") for x in fields)


def _but_tokens(shape: tuple[int, ...], own: int) -> tuple[Any, ...]:
    """A shape with the letter n for tokens, the first of so many axes that do not lead."""
    return tuple("n" if i == len(shape) - own else size for i, size in enumerate(shape))


def _lengths(ranks: Ranks, name: str, k: Any, batch: tuple[int, ...], key_lengths: Any) -> Any:
    """The lengths, as numbers of this rank's keys."""
    if key_lengths is None:
        return None
    n = k.shape[-2]
    sizes = ranks.gather(n)
    whole = _together(
        ranks, lambda: state_arrays.checked_lengths(name, key_lengths, sum(sizes), batch)
    )
    return np.clip(whole - sum(sizes[: ranks.rank]), 0, n)


def _meet(ranks: Ranks, name: str, local: Callable[[], tuple[Any, Any]]) -> Any:
    """What ``local`` finds on this rank, or an error on all ranks if their calls differ."""

    def described() -> tuple[Any, dict[str, Any], int]:
        found, meta = local()
        mine = {"the function": name} | meta
        return found, mine, zlib.crc32(pickle.dumps(mine))

    found, mine, checksum = _together(ranks, described)
    least, most = ranks.extremes(checksum)
    if least != most:  # equal objects may differ in their bytes
        for rank, other in enumerate(ranks.gather(mine)):
            for what, value in mine.items():
                if other.get(what) != value:
                    raise ValueError(
                        f"{name}: {what} is {value} here and {other.get(what)} on rank {rank}; "
                        "expected the same on all ranks, which differ in their tokens alone"
                    )
    return found


def fail(ranks: Ranks, error: Exception) -> NoReturn:
    """Raises an error of this rank, and one on the others, which have begun the same call."""

    def local() -> NoReturn:
        raise error

    _together(ranks, local)
    raise error


def _together(ranks: Ranks, function: Callable[[], Any]) -> Any:
    """The function's result, or an error on all ranks if one of them has one."""
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
