"""A call of an operator of linattn in the graph that is being exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import onnx_ir as ir

from .._core.operator import TensorOperator
from . import _shapes
from ._errors import unsupported
from ._ops import Ops, Value


class Call:
    """The operands, options and state of a call, by name.

    16-bit operands are computed in float32, as in linattn, and results are rounded once.

    Parameters
    ----------
    operator : TensorOperator
    args : sequence
        As PyTorch's operator takes them.
    step : bool
        Whether the operands are of one token.
    domain : str
        Of LinearAttention and CausalConvWithState.
    """

    def __init__(
        self, operator: TensorOperator, args: Sequence[Any], step: bool, contrib: bool
    ) -> None:
        self.operator, self.step = operator, step
        d = operator.description
        self.name = d.step_name if step else d.name
        self.named = dict(zip(operator.step_names if step else operator.names, args, strict=False))
        self.values = args[operator.values]
        self.ops = Ops(self.values, contrib)
        if self.named.get("cu_seqlens") is not None:
            raise unsupported(self.name, "cu_seqlens", "padded sequences with key_lengths")
        shapes = {
            x: _shapes.sizes(y) for x in operator.operand_names if (y := self.named[x]) is not None
        }
        own = operator.own_axes({name: len(x) for name, x in shapes.items()}, step)
        #: How many axes of operands, of lengths and of a state's fields do not lead.
        self.own = dict(zip(operator.operand_names, own, strict=True))
        self.own["key_lengths"] = 0
        self.own |= {name: len(dims) for name, dims in d.fields.items()}
        #: The leading axes of all operands and the state, broadcast.
        self.lead = self.lead_of(*self.own)
        #: The sizes of the letters of the operands' axes; f is the number of features.
        self.sizes: dict[str, _shapes.Size] = operator.split(shapes, step)[1]
        if "d" in self.sizes:
            self.sizes.setdefault("f", self.sizes["d"])
        self.x = SimpleNamespace(**{name: self.ops.read(x) for name, x in self.named.items()})

    def lead_of(self, *names: str) -> list[_shapes.Size]:
        """The leading axes of operands or fields, broadcast."""
        given = {name: x for name in names if (x := self.named.get(name)) is not None}
        return _shapes.broadcast(_shapes.lead(x, self.own[name]) for name, x in given.items())

    def width(self, letter: str) -> int:
        """The size of a letter that a graph has to know."""
        size = self.sizes[letter]
        if not isinstance(size, int):
            raise unsupported(self.name, "a width that varies", "one that is a number")
        return size

    def has_channels(self, name: str) -> bool:
        """Whether an operand has a number for each channel, where it may have one for all."""
        x = next((x for x in self.operator.operands if x.name == name and x.channels), None)
        if x is None or self.named[name].shape[-1] == 1:
            return False
        return self.own[name] > len(x.letters(tokens=not self.step))

    def exists(self) -> Value | None:
        """Which keys come before ``key_lengths``, (..., n); None if all of them do."""
        lengths = self.named.get("key_lengths")
        if lengths is None:
            return None
        ops = self.ops
        keys = self.named.get("k", self.values)
        axis = len(keys.shape) - 2
        count = ops.drop_axis(ops.op.Shape(keys, start=axis, end=axis + 1), 0)
        places = ops.op.Range(ops.integer(0), count, ops.integer(1))
        return ops.op.Less(places, ops.add_axis(ops.cast(lengths, ir.DataType.INT64), -1))

    @property
    def has_state(self) -> bool:
        """Whether the operator takes and returns a state."""
        return bool(self.operator.fields) and self.operator.fields[0] in self.named

    def results(self, o: Value, state: Mapping[str, Value]) -> Any:
        """What the operator returns: its output, and the fields of its state if it has one."""
        o = self.ops.result(o)
        if not self.has_state:
            return o
        nothing = self.ops.nothing
        return o, *(state[x] if x in state else nothing() for x in self.operator.fields)
