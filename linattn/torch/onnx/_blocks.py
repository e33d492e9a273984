"""``block``: all tokens of a block write to the state, and then all of them read it.

A sequence in blocks becomes one of twice as many tokens, which each read their own state, as those
of LinearAttention and of the loop do.  The first half of a block has its keys, values, gates and
strengths and queries of 0, the second half the queries and 0 for everything that is written.
"""

from __future__ import annotations

from ._graph_call import Call
from ._ops import END, Value


class Blocks:
    """The blocks of a call, whose features have been computed.

    ``names`` are the operands that have an axis of tokens, the last but one.
    """

    def __init__(self, call: Call, names: list[str]) -> None:
        ops = self._ops = call.ops
        self._rank = len(call.lead) + 2  #: of the output
        self._n = ops.op.Shape(call.x.q, start=-2, end=-1)
        longest = ops.op.Max(self._n, ops.integers(1))
        self._size = ops.op.Min(ops.integers(call.named["block"]), longest)
        self._none = ops.integers(0)
        #: How many tokens the last block lacks.
        missing = ops.op.Mod(ops.op.Neg(self._n), self._size)
        for name in names:
            rank = len(call.named[name].shape) - call.own[name] + 2
            x = self._split(self._padded(getattr(call.x, name), rank, self._none, missing), rank)
            halves = (self._size, self._none) if name == "q" else (self._none, self._size)
            setattr(call.x, name, self._joined(self._padded(x, rank + 1, *halves), rank))

    def outputs(self, o: Value) -> Value:
        """Those of the tokens that read."""
        ops, rank = self._ops, self._rank
        x = self._split(o, rank, 2)
        x = ops.op.Slice(x, self._size, ops.integers(END), ops.integers(-2))
        return ops.op.Slice(self._joined(x, rank), self._none, self._n, ops.integers(-2))

    def _padded(self, x: Value, rank: int, before: Value, after: Value) -> Value:
        """x with rows of zeros before and after its own."""
        ops, lead = self._ops, self._ops.integers(*[0] * (rank - 2))
        pads = ops.op.Concat(lead, before, self._none, lead, after, self._none, axis=0)
        return ops.op.Pad(x, pads, ops.number(0))

    def _split(self, x: Value, rank: int, halves: int = 1) -> Value:
        """(..., blocks rows, w) as (..., blocks, rows, w), with so many halves of a block."""
        rows = self._size * self._ops.integers(halves)
        return self._reshaped(x, rank, self._ops.integers(-1), rows)

    def _joined(self, x: Value, rank: int) -> Value:
        """(..., blocks, rows, w) as (..., blocks rows, w)"""
        return self._reshaped(x, rank, self._ops.integers(-1))

    def _reshaped(self, x: Value, rank: int, *rows: Value) -> Value:
        ops = self._ops
        lead, width = ops.integers(*[0] * (rank - 2)), ops.op.Shape(x, start=-1)
        return ops.op.Reshape(x, ops.op.Concat(lead, *rows, width, axis=0))
