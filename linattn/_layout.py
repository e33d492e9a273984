"""Operands, their axes and dtypes: the rules that all bridges share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ._types import Shape

#: What a gufunc is called in addition where an operand has its channels, by their letter.
_SUFFIXES = {"": "", "d": "_key_channels", "m": "_channels"}


class Operand(NamedTuple):
    """An operand of a recurrence.

    Its dimensions are letters: n tokens, s keys, d the width of q and k, m that of v.  A step has
    no n.
    """

    name: str
    dims: str  #: "n" a number a token, "nd" a row a token, "d" a row for all tokens
    channels: str = ""  #: one more dimension that it may have, told by the number of its axes
    optional: bool = False
    state_dtype: bool = False  #: held as states are: it has no say in the dtype of a call

    @property
    def suffix(self) -> str:
        """What a gufunc is called in addition where it has channels, or is not left out."""
        return f"_{self.name}" if self.optional else _SUFFIXES[self.channels]

    @property
    def has_tokens(self) -> bool:
        """Whether it has an axis of tokens, or of keys."""
        return self.dims[:1] in ("n", "s")

    def has_channels(self, axes: int, longest: int) -> bool:
        """Whether an array of so many axes has channels; ``longest`` of q, k and v has the most."""
        return bool(self.channels) and axes >= longest

    def own_axes(self, axes: int, longest: int, *, tokens: bool = True) -> int:
        """How many axes of such an array do not lead: of all tokens, or of one."""
        one = len(self.dims) - ("n" in self.dims and not tokens)
        return one + self.has_channels(axes, longest)


def own_axes(
    operands: Sequence[Operand], arrays: Sequence[Any], *, tokens: bool = True
) -> list[int]:
    """How many axes of each array do not lead; 0 for None, an operand that is left out.

    The tokens of an operand that has them are the first of these axes.
    """
    longest = max(x.ndim for x in arrays[:3] if x is not None)
    return [
        0 if x is None else row.own_axes(x.ndim, longest, tokens=tokens)
        for row, x in zip(operands, arrays, strict=False)
    ]


def repeats(wide: Shape, shape: Shape) -> tuple[int, ...]:
    """The axes of ``wide`` along which an array of ``shape`` was repeated."""
    extra = len(wide) - len(shape)
    return (
        *range(extra),
        *(i + extra for i, n in enumerate(shape) if n == 1 and wide[i + extra] != 1),
    )
