"""Sizes of axes, of which some may be known only when the exported model runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from ._ops import Ops, Value


class Axis(NamedTuple):
    """An axis of a value, whose size has a name instead of a number."""

    value: Value
    place: int


Size = int | Axis


def sizes(x: Value) -> list[Size]:
    """The sizes of all axes of an argument of a translation."""
    return [y if isinstance(y, int) else Axis(x, i) for i, y in enumerate(x.shape)]


def lead(x: Value, own: int) -> list[Size]:
    """Those of the axes before x's own."""
    return sizes(x)[: len(x.shape) - own]


def broadcast(leads: Iterable[Sequence[Size]]) -> list[Size]:
    """The sizes that they broadcast to."""
    backwards = zip_longest(*(reversed(x) for x in leads), fillvalue=1)
    return [next((x for x in column if x != 1), 1) for column in backwards][::-1]


def same(x: Sequence[Size], y: Sequence[Size]) -> bool:
    """Whether sizes are known to be equal."""
    return list(map(_dim, x)) == list(map(_dim, y))


def _dim(x: Size) -> Any:
    return x.value.shape[x.place] if isinstance(x, Axis) else x


def shape(ops: Ops, given: Sequence[Size]) -> Value:
    """Sizes as a value of the graph."""
    numbers = [x for x in given if isinstance(x, int)]
    if len(numbers) == len(given):
        return ops.integers(*numbers)
    parts = [
        ops.integers(x)
        if isinstance(x, int)
        else ops.op.Shape(x.value, start=x.place, end=x.place + 1)
        for x in given
    ]
    return ops.op.Concat(*parts, axis=0)


def expand(ops: Ops, x: Value, now: Sequence[Size], to: Sequence[Size], own: int) -> Value:
    """x, whose leading axes have the sizes ``now``, with others that these broadcast to."""
    if same(now, to):
        return x
    padded = [*[1] * (len(to) - len(now)), *now]
    # 1 leaves an axis as it is, even one whose size is not known
    wanted = [1 if same([a], [b]) else b for a, b in zip(padded, to, strict=True)]
    return ops.op.Expand(x, shape(ops, [*wanted, *[1] * own]))
