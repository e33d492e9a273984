"""Recurrences: LinearAttention where ONNX's operator has the rule, else a loop over tokens.

The loop is ONNX's Scan, whose body is one token of `_tokens`.  A step is the body alone.
"""

from __future__ import annotations

from types import SimpleNamespace

from ...operators.registry import RECURRENCES
from . import _attention, _map_nodes, _shapes
from ._blocks import Blocks
from ._graph_call import Call
from ._ops import Value
from ._tokens import RESCALED, RULES, Rule

#: Operands that every token reads with, also past ``key_lengths``.
READING = {"q", "C", "z"}


def recurrence(call: Call) -> tuple[Value, dict[str, Value]]:
    """The output of a recurrence, and the fields of its state after the last token."""
    rule = _prepared(call, RULES[call.operator.name])
    in_blocks = call.named.get("block") is not None
    blocks = Blocks(call, [*_tokens(call, rule)]) if in_blocks else None
    if _attention.fits(call, rule):
        o, last = _attention.linear_attention(call, rule)
    else:
        o, last = _loop(call, rule)
    if rule.after is not None:
        o = rule.after(call.ops, call.x, o)
    return o if blocks is None else blocks.outputs(o), last


def _prepared(call: Call, rule: Rule) -> Rule:
    """Computes what a token takes; returns the rule that it then follows."""
    ops, x = call.ops, call.x
    for operand in call.operator.operands:
        axes = len(operand.letters(tokens=not call.step))
        if operand.channels and call.own[operand.name] == axes:  # one number for all of them
            setattr(x, operand.name, ops.add_axis(getattr(x, operand.name), -1))
    if getattr(x, "feature_map", "identity") != "identity" and _map_nodes.map_both(call):
        rule = RESCALED
    if rule.before is not None:
        rule.before(call)
    exists = call.exists()
    if exists is not None:
        for name, axis in _tokens(call, rule).items():
            if name not in READING:
                there = exists if axis == -1 else ops.add_axis(exists, -1)
                past = ops.number(rule.past.get(name, 0.0))
                setattr(x, name, ops.op.Where(there, getattr(x, name), past))
    return rule


def _tokens(call: Call, rule: Rule) -> dict[str, int]:
    """The axis of tokens of each operand that has one."""
    return {
        y.name: -1 if y.dims == "n" and not y.channels else -max(len(y.dims), 2)
        for y in call.operator.operands
        if (y.has_tokens or y.name in rule.by_token) and getattr(call.x, y.name) is not None
    }


def _loop(call: Call, rule: Rule) -> tuple[Value, dict[str, Value]]:
    """The recurrence token by token, or of one token."""
    ops, x = call.ops, call.x
    if getattr(x, "scale", None) is not None and rule is not RESCALED:
        x.q = x.q * ops.number(x.scale)
    fields = [name for name in rule.fields if name != "z" or getattr(x, "normalize", True)]
    first = [_first(call, name) for name in fields]
    if call.step:
        o, last = rule.token(ops, x, **dict(zip(fields, first, strict=True)))
        return o, dict(zip(fields, last, strict=True))
    tokens = _tokens(call, rule)

    def token(states: list[Value], operands: list[Value]) -> tuple[Value, tuple[Value, ...]]:
        own = vars(x) | dict(zip(tokens, operands, strict=True))
        return rule.token(ops, SimpleNamespace(**own), **dict(zip(fields, states, strict=True)))

    axis = -len(call.operator.description.layout.output)
    o, end = ops.scan(
        token, first, [getattr(x, name) for name in tokens], list(tokens.values()),
        out_axis=axis, reverse=getattr(x, "reverse", False),
    )  # fmt: skip
    return o, dict(zip(fields, end, strict=True))


def _first(call: Call, name: str) -> Value:
    """A field of the state before the first token, with all leading axes."""
    ops, given = call.ops, getattr(call.x, name, None)
    if given is None:
        own = [call.sizes[letter] for letter in call.operator.description.fields[name]]
        first = RECURRENCES[call.operator.name].first if name == "log_scale" else 0.0
        return ops.op.Expand(ops.number(first), _shapes.shape(ops, [*call.lead, *own]))
    return _shapes.expand(ops, given, call.lead_of(name), call.lead, call.own[name])
