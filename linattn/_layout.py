"""Operands and their axes: which are an operand's own, and which lead."""

from __future__ import annotations

from typing import NamedTuple

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

    def has_channels(self, axes: int, longest: int) -> bool:
        """Whether an array of so many axes has channels; ``longest`` of q, k and v has the most."""
        return bool(self.channels) and axes >= longest

    def own_axes(self, axes: int, longest: int, *, tokens: bool = True) -> int:
        """How many axes of such an array do not lead: of all tokens, or of one."""
        one = len(self.dims) - ("n" in self.dims and not tokens)
        return one + self.has_channels(axes, longest)
