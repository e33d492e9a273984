"""The short way to a gufunc: plain arrays, which need no check here, take 2 us."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from numpy import ndarray

from .._core import checks
from .._linattn import fast_call, pool_call

if TYPE_CHECKING:
    from .._core.layout import Layout
    from .tables import Table

    Operands = tuple[Any, ...]


class Plain:
    """Calls of a recurrence with plain arrays, which its gufuncs check themselves."""

    def __init__(self, layout: Layout, flags: Sequence[str], *, scaled: bool) -> None:
        operands = layout.operands
        self._flags, self._scaled = flags, scaled
        self._optional = any(x.optional for x in operands)
        self._required = sum(not x.optional for x in operands)  # those that are not come last
        self._marks = tuple(
            (i, x.channels, x.suffix, x.optional) for i, x in enumerate(operands) if x.suffix
        )
        # Only channels are told by the number of axes of the leading operands.
        self._compared = layout.leading if any(x.channels for x in operands) else 0

    def call(
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
            variant = self._variant_of(operands)
            if self._optional:
                if any([x is None for x in operands[: self._required]]):
                    return NotImplemented
                operands = present(operands)
        if variant is None or type(feature_map) is not str or type(normalize) is not bool:
            return NotImplemented
        key = variant, feature_map, normalize
        gufunc = table.get(key)
        if gufunc is None:
            if key not in table.names:
                return NotImplemented
            gufunc = table[key]
        outputs = outputs or (None,) * gufunc.nout
        switches: tuple[float | None, ...] = ()
        if flags:
            switches = tuple([checks.plain_switch(x, flags[x]) for x in self._flags if x in flags])
            if None in switches:
                return NotImplemented
        call = fast_call if rows is None else partial(pool_call, rows)
        if normalize:
            return call(gufunc, *operands, *more, scale, eps, *switches, *outputs)
        if not (checks.is_plain_number(eps) and eps >= 0):
            return NotImplemented
        if self._scaled:
            return call(gufunc, *operands, *more, scale, *switches, *outputs)
        return call(gufunc, *operands, *more, *switches, *outputs)

    def _variant_of(self, operands: Operands) -> str | None:
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


def present(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those that are not None."""
    return tuple([x for x in operands if x is not None])  # faster than of a generator
