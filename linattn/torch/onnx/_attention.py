"""LinearAttention: operands (..., n, d) as (batch, n, heads d), and back.

The first leading axis is the batch, the others are heads.  Trailing ones that only queries have
are groups, which share a head of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import onnx_ir as ir

from . import _shapes
from ._graph_call import Call
from ._ops import Ops, Value
from ._shapes import Size
from ._tokens import Rule

#: The domain of ONNX Runtime's operators, of which opset 27 has two under the same names.
DOMAIN = "com.microsoft"


def available(ops: Ops) -> bool:
    """Whether LinearAttention and CausalConvWithState may be used, for this dtype."""
    return ops.contrib and ops.dtype is ir.DataType.FLOAT


def fits(call: Call, rule: Rule) -> bool:
    """Whether LinearAttention computes this call."""
    if not rule.update or not available(call.ops) or call.has_channels("beta"):
        return False
    optional = (y.name for y in call.operator.operands if y.optional and y.name not in rule.apart)
    left_out = all(getattr(call.x, name) is None for name in optional)
    static = (*call.lead[1:], call.sizes["d"], call.sizes["m"])
    return left_out and all(isinstance(x, int) for x in static)


def linear_attention(call: Call, rule: Rule) -> tuple[Value, dict[str, Value]]:
    """The output, and the fields of the state after the last token.

    The normaliser is one more value channel, of ones.
    """
    ops, x = call.ops, call.x
    more = None if rule.updates is None else rule.updates(call)
    normalize, m = getattr(x, "normalize", False), call.width("m")
    v, s = x.v, x.s if call.has_state else None
    if normalize:
        v = ops.pad_ones(v, len(call.named["v"].shape))
        s = None if s is None else ops.op.Concat(s, ops.add_axis(x.z, -1), axis=-1)
    heads = _Heads(call)
    scale = x.scale
    given = {"g": None, "beta": None} | vars(x) | {"v": v}
    names = "q", "k", "v", "g", "beta"
    q, k, v, *rates = (heads.pack(ops, given[name], name) for name in names)
    o, last = ops.node(
        DOMAIN, "LinearAttention",
        [q, k, v, heads.pack_state(ops, s), *rates], 2,
        q_num_heads=heads.q_heads, kv_num_heads=heads.kv_heads, update_rule=rule.update,
        scale=scale or 1.0,
    )  # fmt: skip
    if scale == 0:  # which stands for the default there
        o = o * ops.number(0)
    o, s = heads.unpack(ops, o), heads.unpack_state(ops, last)
    if not normalize:
        return o if more is None else o + more, {"s": s}
    den = ops.cut(o, m, m + 1, -1) + ops.number(x.eps)
    z = ops.drop_axis(ops.cut(s, m, m + 1, -1), -1)
    return ops.cut(o, 0, m, -1) / den, {"s": ops.cut(s, 0, m, -1), "z": z}


class _Heads:
    """The leading axes of a call as LinearAttention has them."""

    def __init__(self, call: Call) -> None:
        self.call, self.lead, d = call, call.lead, call.width("d")
        m = call.width("m") + bool(getattr(call.x, "normalize", False))
        #: Of each operand's last axis.
        self.widths = {"q": d, "k": d, "v": m, "g": d if call.has_channels("g") else 1, "beta": 1}
        written = call.lead_of(*(name for name in call.own if name != "q"))
        written = [*[1] * (len(self.lead) - len(written)), *written]
        first = len(self.lead)  # of the axes that only queries have
        while first > 1 and written[first - 1] == 1:
            first -= 1
        #: The leading axes of keys, values, gates, strengths and states.
        self.kv_lead: list[Size] = [*self.lead[:first], *[1] * (len(self.lead) - first)]
        self.q_heads, self.kv_heads = _count(self.lead), _count(self.kv_lead)

    def pack(self, ops: Ops, x: Value | None, name: str) -> Value | None:
        """(..., n, d) as (batch, n, heads d)."""
        if x is None:
            return None
        call, lead = self.call, self.lead if name == "q" else self.kv_lead
        if call.step:
            x = ops.add_axis(x, -2)
        factors = ("strength",) if name == "v" else ()
        x = _shapes.expand(ops, x, call.lead_of(name, *factors), lead, 2)
        if len(lead) < 2:
            return x if lead else ops.add_axis(x, 0)
        if len(lead) > 2:
            x = ops.reshape(x, 0, _count(lead), -1, self.widths[name])
        return ops.reshape(ops.transpose(x, 0, 2, 1, 3), 0, 0, -1)

    def unpack(self, ops: Ops, o: Value) -> Value:
        """(batch, n, heads m) as (..., n, m)."""
        if not self.lead:
            o = ops.drop_axis(o, 0)
        elif len(self.lead) > 1:
            o = ops.transpose(ops.reshape(o, 0, 0, self.q_heads, -1), 0, 2, 1, 3)
            o = self._split(ops, o, self.lead, -1, self.widths["v"])
        return ops.drop_axis(o, -2) if self.call.step else o

    def pack_state(self, ops: Ops, s: Value | None) -> Value | None:
        """(..., d, m) as (batch, heads, d, m)."""
        if s is None:
            return None
        s = _shapes.expand(ops, s, self.call.lead_of("s"), self.kv_lead, 2)
        missing = 2 - len(self.kv_lead)
        if missing > 0:
            return ops.add_axis(s, *range(len(self.kv_lead), 2))
        if missing == 0:
            return s
        return ops.reshape(s, 0, self.kv_heads, self.widths["k"], self.widths["v"])

    def unpack_state(self, ops: Ops, s: Value) -> Value:
        """(batch, heads, d, m) as (..., d, m), with all leading axes."""
        if len(self.lead) < 2:
            return ops.drop_axis(s, *range(len(self.lead), 2))
        s = self._split(ops, s, self.kv_lead, self.widths["k"], self.widths["v"])
        return _shapes.expand(ops, s, self.kv_lead, self.lead, 2)

    def _split(self, ops: Ops, x: Value, lead: Sequence[Any], *own: int) -> Value:
        """(batch, heads, *own) with an axis for each of the leading ones."""
        return x if len(lead) == 2 else ops.reshape(x, 0, *lead[1:], *own)


def _count(lead: Sequence[Size]) -> int:
    """How many heads the axes after the first are."""
    return prod(x for x in lead[1:] if isinstance(x, int))
