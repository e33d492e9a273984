"""One token of each recurrence, in ONNX's standard operators.

Each function takes the vocabulary, the token's operands by name (None where they are left out) and
the state's fields, and returns the output and the fields after it.  Queries are scaled already,
gates and strengths have an axis of channels, and features are mapped.  The equations are those of
`linattn.reference.linear`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from math import inf, log
from types import MappingProxyType
from typing import Any, NamedTuple

from . import _shapes
from ._graph_call import Call
from ._ops import Ops, Value

Fields = tuple[Value, ...]
_BITS = 96  #: as in src/kernel/rescaling.h


def causal(ops: Ops, x: Any, s: Value, z: Value | None = None) -> tuple[Value, Fields]:
    s = s + ops.outer(x.k, x.v)
    o = ops.vecmat(x.q, s)
    if z is None:
        return o, (s,)
    z = z + x.k
    return o / (ops.sum(x.q * z, keep=True) + ops.number(x.eps)), (s, z)


def rescaled(ops: Ops, x: Any, s: Value, z: Value, log_scale: Value) -> tuple[Value, Fields]:
    """Causal with positive random features: q and k are their logarithms.

    s and z are divided by a power of 2 for each feature, which log_scale, the largest logarithm of
    a key's feature so far, determines.
    """
    top = ops.op.Max(log_scale, x.k)
    power, bits = _power(ops, top), ops.number(_BITS)
    kept = ops.op.Pow(ops.number(2), (_power(ops, log_scale) - power) * bits)
    shift = power * ops.number(_BITS * log(2))
    write = ops.op.Exp(x.k - shift)
    s, z = ops.add_axis(kept, -1) * s + ops.outer(write, x.v), kept * z + write
    largest = ops.largest(x.q + top)
    largest = ops.op.Where(ops.op.IsInf(largest), ops.number(0), largest)
    q = ops.op.Exp(x.q + shift - largest) * ops.number(x.scale)
    o = ops.vecmat(q, s) / (ops.sum(q * z, keep=True) + ops.number(x.eps))
    return o, (s, z, top)


def delta(ops: Ops, x: Any, s: Value) -> tuple[Value, Fields]:
    s = _replaced(ops, s, x.k, x)
    return ops.vecmat(x.q, s), (s,)


def gated(ops: Ops, x: Any, s: Value) -> tuple[Value, Fields]:
    write = ops.outer(x.k, x.v)
    before, s = s, _kept(ops, x.g, s) + write
    if x.bonus is not None:  # it reads before it writes
        return ops.vecmat(x.q, before + ops.add_axis(x.bonus, -1) * write), (s,)
    return ops.vecmat(x.q, s), (s,)


def ssd(ops: Ops, x: Any, s: Value) -> tuple[Value, Fields]:
    g, strength = (ops.add_axis(y, -1) for y in (x.g, x.strength))
    s = _kept(ops, g, s) + ops.outer(x.k, strength * x.v)
    o = ops.vecmat(x.q, s)
    return o if x.D is None else o + x.D * x.v, (s,)


def gated_delta(ops: Ops, x: Any, s: Value) -> tuple[Value, Fields]:
    s = _replaced(ops, _kept(ops, x.g, s), x.k if x.erase is None else x.erase, x)
    return ops.vecmat(x.q, s), (s,)


def dplr(ops: Ops, x: Any, s: Value) -> tuple[Value, Fields]:
    read = ops.vecmat(x.a, s)
    s = _kept(ops, x.g, s) + ops.outer(x.b, read) + ops.outer(x.k, x.v)
    return ops.vecmat(x.q, s), (s,)


def momentum_delta(ops: Ops, x: Any, s: Value, z: Value) -> tuple[Value, Fields]:
    g, mu, beta, eta = (ops.add_axis(y, -1) for y in (x.g, x.mu, x.beta, x.eta))
    z = _kept(ops, mu, z) - ops.outer(eta * x.k, x.v - ops.vecmat(x.p, s))
    s = _kept(ops, g, s) - ops.add_axis(beta, -1) * z
    return ops.vecmat(x.q, s), (s, z)


def linear_scan(ops: Ops, x: Any, s: Value) -> tuple[Value, Fields]:
    s = (ops.op.Exp(x.a) if x.log else x.a) * s + x.x
    return s, (s,)


def selective_scan(ops: Ops, x: Any, s: Value) -> tuple[Value, Fields]:
    s = ops.op.Exp(ops.add_axis(x.dt, -1) * x.A) * s + ops.outer(x.dt * x.x, x.B)
    return ops.sum(s * ops.add_axis(x.C, -2)), (s,)


def mlstm(
    ops: Ops, x: Any, s: Value, z: Value | None = None, *, log_scale: Value
) -> tuple[Value, Fields]:
    past = log_scale - ops.softplus(ops.op.Neg(x.f))  # plus log sigma(f)
    gate, write, top = _weights(ops, past, x.i)
    rows = ops.add_axis(gate, -1), ops.add_axis(write, -1)
    s = ops.add_axis(rows[0], -1) * s + ops.outer(rows[1] * x.k, x.v)
    o, floor = ops.vecmat(x.q, s), ops.op.Exp(ops.op.Neg(top))
    if z is None:
        return o / ops.add_axis(floor, -1), (s, top)
    z = rows[0] * z + rows[1] * x.k
    den = ops.op.Max(ops.op.Abs(ops.sum(x.q * z)), floor) + ops.number(x.eps)
    return o / ops.add_axis(den, -1), (s, z, top)


def wkv(ops: Ops, x: Any, s: Value, z: Value, log_scale: Value) -> tuple[Value, Fields]:
    a, b, _ = _weights(ops, log_scale, x.u + x.k)
    below = a * z + b
    none = ops.op.Equal(below, ops.number(0))
    o = ops.op.Where(none, ops.number(0), (a * s + b * x.v) / below)
    a, b, top = _weights(ops, log_scale - x.w, x.k)
    return o, (a * s + b * x.v, a * z + b, top)


def slstm(
    ops: Ops, x: Any, h: Value, c: Value, n: Value, m: Value
) -> tuple[Value, Fields]:  # fmt: skip
    op, zero = ops.op, ops.number(0)
    read = op.MatMul(x.R, ops.add_axis(ops.add_axis(h, -3), -1))
    gates = x.x + ops.drop_axis(read, -1) + x.b
    i, f, z, o = (ops.drop_axis(y, -3) for y in op.Split(gates, axis=-3, num_outputs=4))
    past = m - ops.softplus(op.Neg(f))
    past = op.Where(op.Equal(n, zero), ops.number(-inf), past)
    kept, write, top = _weights(ops, past, i)
    c, n = kept * c + write * op.Tanh(z), kept * n + write
    h = op.Sigmoid(o) * op.Where(op.Equal(n, zero), zero, c / n)
    return h, (h, c, n, top)


def _kept(ops: Ops, g: Value, s: Value) -> Value:
    """exp(g) s, g a number or a row of key channels."""
    return ops.add_axis(ops.op.Exp(g), -1) * s


def _replaced(ops: Ops, s: Value, erase: Value, x: Any) -> Value:
    """s + k (beta (v - s^T erase))^T"""
    return s + ops.outer(x.k, x.beta * (x.v - ops.vecmat(erase, s)))


def _weights(ops: Ops, x: Value, y: Value) -> tuple[Value, Value, Value]:
    """e^(x - top), e^(y - top) and top, the larger of x and y; 0 for -inf."""
    top = ops.op.Max(x, y)
    finite = ops.op.Max(top, ops.lowest())
    return ops.op.Exp(x - finite), ops.op.Exp(y - finite), top


def _power(ops: Ops, top: Value) -> Value:
    """The power of 2**_BITS by which sums are divided; 0 where no key has come."""
    power = ops.op.Round(top * ops.number(1 / (_BITS * log(2))))
    return ops.op.Where(ops.op.IsInf(top), ops.number(0), power)


def _scan_operands(call: Call) -> None:
    """Factors and inputs of as many tokens."""
    for name, other in (("a", "x"), ("x", "a")):
        x, n = call.named[name], _shapes.sizes(call.named[other])
        if not call.step and x.shape[-2] == 1 and n[-2] != 1:
            lead = _shapes.lead(x, 2)
            expanded = _shapes.shape(call.ops, [*[1] * len(lead), n[-2], 1])
            setattr(call.x, name, call.ops.op.Expand(getattr(call.x, name), expanded))


def _time_steps(call: Call) -> None:
    ops, x = call.ops, call.x
    for name in ("dt_bias", "D"):
        if getattr(x, name) is not None and not call.step:
            setattr(x, name, ops.add_axis(getattr(x, name), -2))
    if x.dt_bias is not None:
        x.dt = x.dt + x.dt_bias
    if x.softplus:
        x.dt = ops.softplus(x.dt)
    x.skip = None if x.D is None else x.D * x.x  # also of tokens past the last key


def _skip_and_gate(ops: Ops, x: Any, o: Value) -> Value:
    o = o if x.skip is None else o + x.skip
    return o if x.z is None else o * ops.silu(x.z)


def _default_scale(call: Call) -> None:
    if call.x.scale is None:
        call.x.scale = call.width("d") ** -0.5


def _strengths(call: Call) -> Value | None:
    """Values times their strengths, and gates with an axis of channels; returns the skip."""
    ops, x = call.ops, call.x
    skip = x.D if x.D is None or call.step else ops.add_axis(x.D, -2)
    skip = None if skip is None else skip * x.v
    x.v = ops.add_axis(x.strength, -1) * x.v
    x.g = ops.add_axis(x.g, -1)
    return skip


def _decays(call: Call) -> None:
    """A decay for each token, as tokens past ``key_lengths`` have none."""
    if not call.step:
        x = call.named["k"]
        rows = _shapes.shape(call.ops, [_shapes.sizes(x)[-2], 1])
        call.x.w = call.ops.op.Expand(call.ops.add_axis(call.x.w, -2), rows)


class Rule(NamedTuple):
    """What is known of a recurrence."""

    token: Callable[..., tuple[Value, Fields]]
    update: str = ""  #: the update_rule of LinearAttention, without optional operands
    updates: Callable[[Call], Value | None] | None = None
    #: gives it the operands that it has, and returns what is added to its output
    apart: tuple[str, ...] = ()  #: optional operands that this takes
    past: Mapping[str, float] = MappingProxyType({})
    #: what operands are past ``key_lengths``, 0 by default
    before: Callable[[Call], None] | None = None  #: computes operands of all tokens at once
    after: Callable[[Ops, Any, Value], Value] | None = None  #: the same for the output
    by_token: tuple[str, ...] = ()  #: operands that ``before`` gives an axis of tokens

    @property
    def fields(self) -> list[str]:
        """The fields of its state, which follow the vocabulary and the operands."""
        return [*signature(self.token).parameters][2:]


#: By operator.
RULES = {
    "causal": Rule(causal, "linear"),
    "delta": Rule(delta, "delta"),
    "gated": Rule(gated, "gated"),
    "ssd": Rule(ssd, "gated", _strengths, ("D",)),
    "gated_delta": Rule(gated_delta, "gated_delta"),
    "dplr": Rule(dplr),
    "momentum_delta": Rule(momentum_delta),
    "linear_scan": Rule(linear_scan, before=_scan_operands),
    "selective_scan": Rule(selective_scan, before=_time_steps, after=_skip_and_gate),
    "mlstm": Rule(mlstm, past={"i": -inf, "f": inf}, before=_default_scale),
    "slstm": Rule(slstm),
    "wkv": Rule(wkv, past={"k": -inf}, before=_decays, by_token=("w",)),
}
#: Causal with features that are rescaled as it goes.
RESCALED = Rule(rescaled, past={"k": -inf})
