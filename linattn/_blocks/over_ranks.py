"""Recurrences over ranks that have a part of the tokens each, whatever connects them.

Each rank computes the effect of its tokens on the state, receives the effect of all ranks before
it, and then runs from its own state.  Gradients go the same way from the last rank to the first.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

import numpy as np

from .._core import checks
from .._core.gradient_sums import sum_all
from .._states import state_arrays
from .._states.state_arrays import State
from ..operators.registry import RECURRENCES
from .block_scan import Settings
from .calls import ALL, BlockedCall, Value
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
    checks.no_string(name, return_state)
    alike = {"return_state": bool(return_state), **(alike or {})}
    call = _Call(ranks, name, "forward", operands, options, key_lengths, alike,
                 initial_state=initial_state)  # fmt: skip
    if call.r.cross:
        return call.outputs_over_all()()
    o, with_end = call.outputs(initial_state)
    if not return_state:
        return _together(ranks, o)
    o, end = _together(ranks, with_end)
    return o, ranks.share(end, call.last)


def backward(
    ranks: Ranks, name: str, operands: tuple[Any, ...], grad_out: Any, *, key_lengths: Any = None,
    initial_state: State | None = None, grad_state: State | None = None, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients of this rank's operands and, if a state is given, of the first state."""
    call = _Call(ranks, name, "backward", operands, options, key_lengths, {}, grad_out,
                 initial_state=initial_state, grad_state=grad_state)  # fmt: skip
    if call.r.cross:
        return tuple(grad() for grad in call.gradients_over_all())
    *grads, start = _together(ranks, call.gradients(initial_state, grad_state))
    first = tuple(  # every rank has the same array where there are no tokens
        grad if row.has_tokens else ranks.total(grad)
        for grad, row in zip(grads, call.r.operands, strict=True)
        if grad is not None
    )
    if initial_state is None and grad_state is None:
        return first
    state = ranks.share(start, call.first)
    if initial_state is not None:
        state = State(*(
            None if x is None else sum_all((grad,), (x,))[0]
            for grad, x in zip(state, initial_state, strict=False)
        ))  # fmt: skip
    return *first, state


class _Call(BlockedCall):
    """A call on this rank's tokens, after all ranks have found that their calls agree.

    The rank has one block.  A value is a function without arguments, or what is known already.
    """

    def __init__(
        self, ranks: Ranks, name: str, method: str, operands: tuple[Any, ...],
        options: dict[str, Any], key_lengths: Any, alike: dict[str, Any], grad_out: Any = None,
        **states: State | None,
    ) -> None:  # fmt: skip
        super().__init__(RECURRENCES[name], method, options)
        self.ranks = ranks
        #: The ranks of the tokens that are scanned first and last.
        self.first, self.last = (-1, 0) if self.reverse else (0, -1)

        def local() -> tuple[Any, dict[str, Any]]:
            self.check(operands, grad_out, states)
            arrays = tuple(None if x is None else np.asarray(x) for x in operands)
            self._check_shapes(arrays)
            return arrays, self._agreement(arrays, key_lengths, states, alike)

        self.operands = _meet(ranks, self.name, local)
        self.grad_out = np.asarray(grad_out) if self.backward else None
        self.lengths = _lengths(ranks, self.name, self.operands[1], self.batch, key_lengths)
        self.settings = Settings(name, self.options, None, self.dtype)

    def each(self, function: Callable[..., Any], *values: Value, of: slice = ALL) -> Value:
        found: list[Any] = []  # functools.cache takes longer than the smallest calls

        def value() -> Any:
            if not found:
                given = [x() if callable(x) else x for x in values]
                found.append(function(self.settings, self.operands[of], self.lengths, *given))
            return found[0]

        return value

    def part(self, value: Value, i: int) -> Value:
        return lambda: value()[i]

    def scan(self, elements: Value, start: Value, *, backwards: bool = False) -> Value:
        element = _together(self.ranks, elements)
        later = backwards is not self.reverse  # whether the ranks after this one are scanned first
        before = (self.ranks.behind if later else self.ranks.before)(element)
        return start if before is None else before.after(start)

    def total(self, values: Value, of: slice) -> Value:
        state = _together(self.ranks, values)
        return State(*(None if x is None else self.ranks.total(x) for x in state))

    def _check_shapes(self, arrays: tuple[Any, ...]) -> None:
        """Refuses keys that leading axes share and factors that all tokens share: with one token a
        rank, their shape is that of factors of the token, and the gradients differ."""
        tokens = self.read.shape[-2:-1]
        for row, x in zip(self.r.operands, arrays, strict=True):
            expected = ""
            if self.r.cross and x.shape[:-2] != self.batch:
                expected = (
                    f"the leading axes {self.batch} in each of q, k and v where they are on "
                    "several ranks"
                )
            elif self.r.layout.elementwise and x.shape[-2:-1] != tokens:
                expected = f"{tokens[0]} tokens, this rank's: an array that is broadcast to them"
            if expected:
                raise checks.wrong_shape(self.name, row.name, x, expected)

    def _agreement(
        self, arrays: tuple[Any, ...], key_lengths: Any, states: Mapping[str, State | None],
        alike: Mapping[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """What has to be equal on all ranks: otherwise one would wait for another for ever."""
        own = self.r.layout.own_axes(arrays)
        shapes = {
            f"the shape of {row.name}":
                None if x is None else _but_tokens(x.shape, axes if row.has_tokens else 0)
            for row, x, axes in zip(self.r.operands, arrays, own, strict=True)
        }  # fmt: skip
        grad = self.typed[len(self.read.typed) :]
        known = {field: x for field, x in states.items() if x is not None}
        lengths = None
        if key_lengths is not None:
            lengths = checks.integers(self.name, "key_lengths", key_lengths).tolist()
        return {
            "the leading axes": self.batch, "(d, m)": self.read.core, **shapes,
            "the shape of grad_out": [_but_tokens(x.shape, 2) for x in grad],
            "dtype": [str(x.dtype) for x in self.typed], "key_lengths": lengths,
            **self.options, **alike, "an initial_state": "initial_state" in known,
            "a grad_state": "grad_state" in known,
            **{f"the checksum of {field}": _checksum(x) for field, x in known.items()},
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
