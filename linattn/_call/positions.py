"""``state_at``: the states after some of the tokens of a sequence.

The sequence is cut at these positions.  Each segment begins with the state that the one before it
leaves; a segment of one token is a step.  Gradients go from the last segment to the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._core import checks
from .._core.dtypes import result_dtype
from .._core.gufuncs import quiet
from .cut import Cut, GradientCut

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .._types import Array
    from .interface import Interface


@quiet
def forward(
    r: Interface, operands: tuple[Any, ...], state_at: Any, *, initial_state: Any,
    return_state: Any, out: Any, **options: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """The output, the states at the positions, and the state after the last token."""
    block = options.pop("block", None)
    if block is not None:  # states do not depend on it
        _, states, last = forward(
            r, operands, state_at, initial_state=initial_state, return_state=return_state,
            out=None, **options,
        )  # fmt: skip
        o = r.forward(operands, initial_state=initial_state, out=out, block=block, **options)
        return o, states, last
    cut = Cut(r, "forward", operands, state_at, options)
    if not return_state:
        raise ValueError(
            f"{cut.function}: state_at is given and return_state is {return_state!r}; expected "
            "True, as the states are returned"
        )
    dtype, o = cut.call.state_dtype, out
    if out is not None:
        checks.out(cut.function, out, cut.call.shape, *cut.call.typed)
    given = (*cut.operands, options.get("key_lengths"))
    if out is None or any(np.may_share_memory(out, x) for x in _arrays(given)):
        o = np.empty(cut.call.shape, result_dtype(*cut.call.typed))
    state = initial_state
    if state is not None:
        state = cut.checked("initial_state", state, dtype)
    cut.check_options(initial_state=state, return_state=True)
    states, step_options = _States(cut, dtype), cut.step_options()
    for begin, end in cut.segments:
        rows = o[r.layout.at(cut.rows(begin, end))]
        after = None
        if step_options is not None and end - begin == 1 and state is not None:
            after = _step(cut, states.at(end), begin, state, rows, step_options)
        state = _part(cut, begin, end, state, rows) if after is None else after
        states.keep(end, state)
    if out is not None and o is not out:
        out[...] = o
    return o if out is None else out, states.result(), state


def _part(cut: Cut, begin: int, end: int, state: Any, out: Array) -> Any:
    """The state after a segment, whose output is written."""
    _, state = cut.r.forward(
        cut.part(begin, end), initial_state=state, return_state=True, out=out,
        **cut.options(begin, end),
    )  # fmt: skip
    return state


class _States:
    """The states at the positions, one after the other, so that each is contiguous."""

    def __init__(self, cut: Cut, dtype: Any) -> None:
        self._cut = cut
        shape = len(cut.positions), *cut.call.batch
        self._stacks = [np.empty((*shape, *core), dtype) for core in cut.cores.values()]
        self._places: dict[int, list[int]] = {}
        for i, p in enumerate(cut.positions):
            self._places.setdefault(p, []).append(i)

    def at(self, position: int) -> Any:
        """The memory of the state at a position; None where it is not asked for."""
        if position not in self._places:
            return None
        return self._cut.state([x[self._places[position][0], ...] for x in self._stacks])

    def keep(self, position: int, state: Any) -> None:
        """Keep a state, unless it is in its place."""
        for i in self._places.get(position, ()):
            for stack, x in zip(self._stacks, self._cut.arrays(state), strict=True):
                if x.base is not stack or i != self._places[position][0]:
                    stack[i] = x

    def result(self) -> Any:
        """The states, with the axis of positions before the axes of their own."""
        cores = self._cut.cores.values()
        return self._cut.state([
            np.moveaxis(x, 0, x.ndim - 1 - len(core))
            for x, core in zip(self._stacks, cores, strict=True)
        ])  # fmt: skip


def _step(
    cut: Cut, after: Any, begin: int, before: Any, out: Array, options: dict[str, Any]
) -> Any:
    """The state after one token, written to ``after``; None if that is None."""
    if after is None:
        return None
    for x, y in zip(cut.arrays(after), cut.arrays(before), strict=True):
        x[...] = y
    o, _ = cut.r.step(cut.token(begin), after, in_place=True, **options)
    out[cut.r.layout.at(0)] = o
    return after


@quiet
def backward(
    r: Interface, operands: tuple[Any, ...], state_at: Any, *, grad_out: Any, initial_state: Any,
    grad_state: Any, **options: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """The gradients, given those of the states at the positions."""
    block = options.pop("block", None)
    cut = GradientCut(r, operands, grad_out, state_at, options)
    if grad_state is None:
        if block is not None:
            options["block"] = block
        more = {"initial_state": initial_state}
        return r.backward(operands, grad_out=grad_out, **more, **options)
    grad_state = cut.checked("grad_state", grad_state, cut.wide, len(cut.positions))
    cut.check_options(
        grad_out=cut.grad_out[r.layout.at(cut.rows(0, 0))],
        initial_state=initial_state,
        grad_state=None,
    )
    if block is not None:
        return _through_blocks(cut, state_at, block, initial_state, grad_state, options)
    starts = [initial_state]
    for begin, end in cut.segments[:-1]:
        _, state = r.forward(
            cut.part(begin, end), initial_state=starts[-1], return_state=True, out=None,
            **cut.options(begin, end),
        )  # fmt: skip
        starts.append(state)
    grads = []
    after: Any = None
    for (begin, end), start in zip(reversed(cut.segments), reversed(starts), strict=True):
        *part, after = r.backward(
            cut.part(begin, end), grad_out=cut.grad_out[r.layout.at(cut.rows(begin, end))],
            initial_state=start, grad_state=_sum(cut, after, grad_state, end),
            **cut.options(begin, end),
        )  # fmt: skip
        grads.append((cut.rows(begin, end), part))
    return *cut.joined(grads), after


def _through_blocks(
    cut: GradientCut, state_at: Any, block: int, initial_state: Any, grad_state: Any,
    options: dict[str, Any],
) -> tuple[Any, ...]:  # fmt: skip
    """The sums of the gradients through the output and of those through the states."""
    options, operands = {"initial_state": initial_state, **options}, tuple(cut.operands)
    none = cut.state([np.zeros((*cut.call.batch, *x), cut.wide) for x in cut.cores.values()])
    *o, first = cut.r.backward(
        operands, grad_out=cut.grad_out, grad_state=none, block=block, **options
    )
    *states, more = backward(
        cut.r, operands, state_at, grad_out=np.zeros_like(cut.grad_out), grad_state=grad_state,
        **options,
    )  # fmt: skip
    sums = [x + y for x, y in zip(o, states, strict=True)]
    start = [x + y for x, y in zip(cut.arrays(first), cut.arrays(more), strict=True)]
    return *cut.joined([(cut.rows(0, cut.n), sums)]), cut.state(start)


def _sum(cut: Cut, after: Any, grad_state: Any, end: int) -> Any:
    """The gradient with respect to the state at a position: that of later tokens, and those of the
    state itself."""
    totals = []
    later: Iterable[Any] = [None] * len(cut.cores) if after is None else cut.arrays(after)
    fields = zip(cut.arrays(grad_state), later, cut.cores.values(), strict=True)
    for x, total, core in fields:
        if x is None:  # log_scale is a part of z
            totals.append(total)
            continue
        own = (slice(None),) * len(core)
        here = [x[(..., i, *own)] for i, p in enumerate(cut.positions) if p == end]
        if total is None:
            total = np.zeros((*x.shape[: x.ndim - len(core) - 1], *core), x.dtype)
        totals.append(np.asarray(sum(here, total)))
    return cut.state(totals)


def _arrays(operands: Iterable[Any]) -> Iterable[Array]:
    return (x for x in operands if isinstance(x, np.ndarray))
