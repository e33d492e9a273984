"""Operators without a loop over tokens, in ONNX's standard operators."""

from __future__ import annotations

from math import inf
from typing import Any

from . import _attention, _map_nodes, _shapes
from ._graph_call import Call
from ._ops import END, Ops, Value

#: The output, and the fields of the state after the last token.
Result = tuple[Value, dict[str, Value]]


def noncausal(call: Call) -> Result:
    """Sums over all keys, then one product for all queries."""
    ops, x = call.ops, call.x
    if _map_nodes.map_both(call):
        q, k, v = _rescaled(call)
    else:
        q, k, v = x.q, _existing(call, x.k, 0.0), _existing(call, x.v, 0.0)
    q = q * ops.number(x.scale)
    o = ops.op.MatMul(q, ops.op.MatMul(ops.swapped(k, len(call.named["k"].shape)), v))
    if x.normalize:
        den = ops.sum(q * ops.sum(k, -2, keep=True), keep=True)
        o = o / (den + ops.number(x.eps))
    return o, {}


def softmax_attention(call: Call) -> Result:
    """softmax(scale q k^T) v; keys j <= i where ``causal``."""
    ops, x = call.ops, call.x
    scale = call.width("d") ** -0.5 if x.scale is None else x.scale
    scores = ops.op.MatMul(x.q, ops.swapped(x.k, len(call.named["k"].shape))) * ops.number(scale)
    if getattr(x, "causal", False):
        ones = ops.op.Expand(ops.integer(1), ops.op.Shape(scores, start=-2))
        seen = ops.op.Equal(ops.op.Trilu(ones, upper=0), ops.integer(1))
        scores = ops.op.Where(seen, scores, ops.number(-inf))
    return ops.op.MatMul(ops.op.Softmax(scores, axis=-1), x.v), {}


def linformer(call: Call) -> Result:
    """Softmax attention of E^T k and F^T v."""
    ops, x = call.ops, call.x
    x.k, x.v = (
        ops.op.MatMul(ops.swapped(by, len(call.named[name].shape)), y)
        for by, name, y in ((x.E, "E", x.k), (x.F, "F", x.v))
    )
    return softmax_attention(call)


def log_decay(call: Call) -> Result:
    ops, x = call.ops, call.x
    rate, z = ops.op.Exp(x.A_log), x.x + x.dt_bias
    if x.lower_bound is None:
        return ops.op.Neg(rate * ops.softplus(z)), {}
    return ops.number(x.lower_bound) * ops.op.Sigmoid(rate * z), {}


def causal_conv1d(call: Call) -> Result:
    """CausalConvWithState, or a sum over shifted tokens."""
    if call.step:
        call.x.x = call.ops.add_axis(call.x.x, -2)
    shared = all(  # by the whole batch
        y is None or len(y.shape) == call.own[name]
        for name in ("weight", "bias") for y in [call.named[name]]
    )  # fmt: skip
    if (
        shared
        and len(call.lead) < 2
        and _attention.available(call.ops)
        and isinstance(call.sizes["f"], int)
    ):
        o, s = _convolution(call)
    else:
        o, s = _shifted(call)
        o = call.ops.silu(o) if call.x.activation == "silu" else o
    return call.ops.drop_axis(o, -2) if call.step else o, {"s": s}


def _convolution(call: Call) -> tuple[Value, Value]:
    """ONNX's operator: operands (batch, c, n), weights (c, 1, w)."""
    ops, x = call.ops, call.x
    s, missing = _state(call), not call.lead
    rows = _shapes.expand(ops, x.x, call.lead_of("x"), call.lead, 2)
    rows = ops.add_axis(rows, 0) if missing else rows
    o, s = ops.node(
        _attention.DOMAIN, "CausalConvWithState",
        [
            ops.transpose(rows, 0, 2, 1), ops.add_axis(x.weight, 1), x.bias,
            s if s is None or not missing else ops.add_axis(s, 0),
        ],
        2, activation=x.activation or "none",
    )  # fmt: skip
    o = ops.transpose(o, 0, 2, 1)
    return (ops.drop_axis(o, 0), ops.drop_axis(s, 0)) if missing else (o, s)


def _shifted(call: Call) -> tuple[Value, Value]:
    """``o_t = bias + sum_k weight_k x_{t+k-w+1}``, and the last w - 1 inputs."""
    ops, x = call.ops, call.x
    rank, taps, s = len(call.lead) + 2, call.width("f"), _state(call)
    if s is None:
        own = [taps - 1, call.sizes["m"]]
        before = ops.op.Expand(ops.number(0), _shapes.shape(ops, [*call.lead, *own]))
    else:
        before = ops.swapped(s, rank)
    rows = _shapes.expand(ops, x.x, call.lead_of("x"), call.lead, 2)
    inputs = ops.op.Concat(before, rows, axis=-2)
    o = None if x.bias is None else ops.add_axis(x.bias, -2)
    for k in range(taps):
        weight = ops.swapped(ops.cut(x.weight, k, k + 1, -1), len(call.named["weight"].shape))
        term = weight * ops.cut(inputs, k, k + 1 - taps or END, -2)
        o = term if o is None else o + term
    return o, ops.swapped(ops.cut(inputs, 1 - taps or END, END, -2), rank)


def _state(call: Call) -> Value | None:
    """The inputs before the first one, with all leading axes."""
    s = call.x.s if call.has_state else None
    return s if s is None else _shapes.expand(call.ops, s, call.lead_of("s"), call.lead, 2)


def _existing(call: Call, x: Value, past: float) -> Value:
    """Keys or values, and a number in place of those past ``key_lengths``."""
    exists = call.exists()
    if exists is None:
        return x
    return call.ops.op.Where(call.ops.add_axis(exists, -1), x, call.ops.number(past))


def _rescaled(call: Call) -> tuple[Value, Value, Value]:
    """Positive features of queries and keys, each times a number that cancels, and values.

    Features of keys are relative to the largest of each direction, those of a query to the largest
    exponent of its terms.
    """
    ops, x = call.ops, call.x
    k, v = _existing(call, x.k, -inf), _existing(call, x.v, 0.0)
    top = ops.op.ReduceMax(k, ops.integers(-2), keepdims=1)
    finite = ops.op.Max(top, ops.lowest())
    exponents = x.q + top
    q = ops.op.Exp(exponents - ops.op.Max(ops.largest(exponents), ops.lowest()))
    return q, ops.op.Exp(k - finite), v


def features(*args: Any) -> Value:
    """phi(x) of a map that operators do not apply themselves."""
    x, text, omega = args
    ops, phi = Ops(x), _map_nodes.described(text, omega)
    rows, directions = ops.read(x), ops.read(omega)
    return ops.result(_map_nodes.mapped(ops, "features", phi, directions, rows, x.shape[-1]))


def rows(indices: Value, *checks: Any) -> Value:
    """The rows of a pool; ONNX's operators check their range."""
    return Ops(indices).op.Identity(indices)
