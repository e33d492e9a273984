"""The vocabulary of translations: nodes of the graph that is being exported."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import evaluator
from onnxscript.values import Opset

Value = Any  #: a value of the graph, with Python's arithmetic

#: The end of a cut that takes all that remains.
END = int(np.iinfo(np.int64).max)


class Ops:
    """Adds nodes to the graph, or to the body of a loop within `scan`.

    ``ops.op`` has ONNX's standard operators of the opset that is exported.  Values, and numbers
    made by `number`, are of one dtype: double for results like a double, else float.
    """

    def __init__(self, like: Value, contrib: bool = False) -> None:
        self.op = Opset("", self._recorder.opset.version)
        self.contrib, self._like = contrib, like.dtype
        wide = like.dtype is ir.DataType.DOUBLE
        self.dtype = ir.DataType.DOUBLE if wide else ir.DataType.FLOAT

    @property
    def _recorder(self) -> Any:
        """PyTorch's recorder of nodes, in force while it calls a translation."""
        return evaluator.default()

    def number(self, x: float) -> Value:
        return self.constant(np.array(x, self.dtype.numpy()))

    def constant(self, x: Any) -> Value:
        return self.op.Constant(value=ir.tensor(np.asarray(x)))

    def integers(self, *x: int) -> Value:
        return self.constant(np.array(x, np.int64))

    def integer(self, x: int) -> Value:
        return self.constant(np.array(x, np.int64))

    def lowest(self) -> Value:
        """The lowest finite number."""
        return self.number(float(np.finfo(self.dtype.numpy()).min))

    def largest(self, x: Value) -> Value:
        """The largest number of each row."""
        return self.op.ReduceMax(x, self.integers(-1), keepdims=1)

    def nothing(self) -> Value:
        """The empty tensor in place of an absent result."""
        return self.constant(np.zeros(0, np.float32))

    def cast(self, x: Value, dtype: ir.DataType) -> Value:
        return self.op.Cast(x, to=int(dtype))

    def read(self, x: Any) -> Any:
        """An argument of a translation, in the dtype of this vocabulary if it has real numbers."""
        if not isinstance(x, ir.Value) or x.dtype is None or not x.dtype.is_floating_point():
            return x
        return x if x.dtype is self.dtype else self.cast(x, self.dtype)

    def result(self, x: Value) -> Value:
        """x in the dtype of results."""
        return x if self._like is self.dtype else self.cast(x, self._like)

    def add_axis(self, x: Value, *axes: int) -> Value:
        return self.op.Unsqueeze(x, self.integers(*axes))

    def drop_axis(self, x: Value, *axes: int) -> Value:
        return self.op.Squeeze(x, self.integers(*axes))

    def sum(self, x: Value, axis: int = -1, *, keep: bool = False) -> Value:
        return self.op.ReduceSum(x, self.integers(axis), keepdims=int(keep))

    def cut(self, x: Value, begin: int, end: int, axis: int) -> Value:
        """x[begin:end] along an axis."""
        return self.op.Slice(x, *(self.integers(y) for y in (begin, end, axis)))

    def reshape(self, x: Value, *shape: int) -> Value:
        """x in another shape: 0 keeps an axis, -1 is what remains."""
        return self.op.Reshape(x, self.integers(*shape))

    def transpose(self, x: Value, *axes: int) -> Value:
        return self.op.Transpose(x, perm=axes)

    def outer(self, x: Value, y: Value) -> Value:
        """x y^T of rows."""
        return self.add_axis(x, -1) * self.add_axis(y, -2)

    def vecmat(self, x: Value, s: Value) -> Value:
        """s^T x of a row and a matrix."""
        return self.drop_axis(self.op.MatMul(self.add_axis(x, -2), s), -2)

    def pad_ones(self, x: Value, rank: int) -> Value:
        """x with one more column, of ones."""
        pads = self.integers(*[0] * (2 * rank - 1), 1)
        return self.op.Pad(x, pads, self.number(1))

    def swapped(self, x: Value, rank: int) -> Value:
        """x with its last two axes exchanged."""
        return self.transpose(x, *range(rank - 2), rank - 1, rank - 2)

    def softplus(self, x: Value) -> Value:
        """log(1 + e^x); ONNX Runtime's operator takes no double."""
        op, zero = self.op, self.number(0)
        if self.dtype is not ir.DataType.DOUBLE:
            return op.Softplus(x)
        return op.Max(x, zero) + op.Log(self.number(1) + op.Exp(op.Neg(op.Abs(x))))

    def silu(self, x: Value) -> Value:
        return x * self.op.Sigmoid(x)

    def node(
        self, domain: str, name: str, inputs: Sequence[Value | None], outputs: int,
        **attributes: Any,
    ) -> list[Value]:  # fmt: skip
        """The results of an operator that ``op`` does not have, or that holds a graph."""
        given = list(inputs)
        while given[-1] is None:
            given.pop()
        results = [self._value(given) for _ in range(outputs)]
        self._recorder.nodes.append(
            ir.Node(
                domain, name, given, ir.convenience.convert_attributes(attributes),
                outputs=results, version=1 if domain else self.op.version,
            )
        )  # fmt: skip
        return results

    def scan(
        self,
        token: Callable[..., tuple[Value, Sequence[Value]]],
        states: Sequence[Value],
        operands: Sequence[Value],
        axes: Sequence[int],
        *,
        out_axis: int,
        reverse: bool = False,
    ) -> tuple[Value, list[Value]]:
        """The outputs of all tokens, and the states after the last one.

        ``token(states, operands)`` adds the nodes of one token, and returns its output and the
        states after it; operands come without the axis of tokens, which is ``axes[i]``.
        """
        recorder, direction = self._recorder, int(reverse)
        body = type(recorder)(recorder.opset, {})
        inputs = [self._value([*states, *operands], ir.TensorType(self.dtype))
                  for _ in (*states, *operands)]  # fmt: skip
        with evaluator.default_as(body):
            o, after = token(inputs[: len(states)], inputs[len(states) :])
            # An output may not be an input, nor stand for two results.
            results = [self.op.Identity(x) for x in (*after, o)]
        _name([*inputs, *(x for node in body.nodes for x in node.outputs)])
        *last, outputs = self.node(
            "", "Scan", [*states, *operands], len(results),
            body=ir.Graph(inputs, results, nodes=body.nodes, name="token"),
            num_scan_inputs=len(operands), scan_input_axes=list(axes), scan_output_axes=[out_axis],
            scan_input_directions=[direction] * len(operands), scan_output_directions=[direction],
        )  # fmt: skip
        return outputs, last

    def _value(self, like: Sequence[Value | None], dtype: ir.TypeProtocol | None = None) -> Value:
        """A new value of the class that PyTorch gives to values."""
        kind = next(type(x) for x in like if x is not None)
        return kind(self._recorder.opset, type=dtype)


def _name(values: Sequence[Value]) -> None:
    """Gives the values of a loop's body names that no other value of a model has."""
    loop = next(_loops)
    for i, x in enumerate(values):
        x.name = f"loop{loop}_{i}"


_loops = itertools.count()
