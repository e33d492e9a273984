"""Makes fla's functions from rules and declarations.

To add an operator, write its `Rule` and declare its chunk and recurrent forms with `function`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ..._core.compiled import compiled
from .._core import conversions
from . import _layout, _value_gates
from ._docs import documented
from ._keywords import ABSENT, HINTS, Given, refuse, states_v_first

F = TypeVar("F", bound=Callable[..., Any])
IGNORED = {*HINTS, *ABSENT, "kwargs"}


def named(*names: str) -> Callable[[str, Given], dict[str, Tensor]]:
    """Operands under the names of these arguments, unchanged."""
    return lambda function, given: {name: given[name] for name in names}


class Rule(NamedTuple):
    """An operator of linattn.torch and how its operands follow from fla's arguments.

    ``prepare``, ``extras`` and ``options`` take the function's name, for errors, and its arguments
    by name, whose q, k and v have been checked.
    """

    operator: Callable[..., Any]  #: of linattn.torch
    extras: Callable[[str, Given], dict[str, Tensor]] = named()  #: operands after q, k and v
    prepare: Callable[[str, Given], Given] | None = None  #: arguments that replace those given
    channels: tuple[str, ...] = ()  #: extras [B, T, HV, K]; the others are [B, T, HV]
    options: Callable[[str, Given], Given] = named()  #: further keywords of the operator
    v_first: bool = False  #: knows transpose_state_layout, the former name of state_v_first
    more: tuple[str, ...] = ()  #: prepared values that are returned after the state


def function(rule: Rule, returns: str | None = None, **types: Any) -> Callable[[F], F]:
    """Make a function of fla's from its signature and the first lines of its docstring.

    ``returns`` and ``types`` are what `templates.documented` takes.
    """

    def decorate(declared: F) -> F:
        made: Any = functools.update_wrapper(_compiled(declared, rule), declared)
        return documented(rule.operator.__name__, returns=returns, **types)(made)

    return decorate


def _compiled(declared: Callable[..., Any], rule: Rule) -> Any:
    """A function of this signature that calls the rule's operator."""
    name, signature = declared.__name__, inspect.signature(declared)
    items = {x: "**kwargs" if x == "kwargs" else f"{x!r}: {x}" for x in signature.parameters}
    ignored = ", ".join(items[x] for x in items if x in IGNORED)
    given = ", ".join(items[x] for x in items if x not in IGNORED)
    result = f"call(rule, {name!r}, {{{given}}}, {{{ignored}}})"
    return compiled(name, signature, declared.__module__, result, call=call, rule=rule)


def call(rule: Rule, name: str, given: Given, more: Given) -> Any:
    """Call a rule's operator with fla's arguments; ``more`` are ignored or unsupported ones."""
    state_v_first = rule.v_first and states_v_first(name, given, more)
    if more:
        refuse(name, more)
    q, k, v = _tokens(given)
    cu_seqlens = given.get("cu_seqlens")
    if cu_seqlens is not None:
        cu_seqlens = _layout.sequence_bounds(cu_seqlens)
    _layout.check_tokens(name, q, k, v, cu_seqlens)
    dtype = conversions.promotion((q.dtype, k.dtype, v.dtype))
    if rule.prepare is not None:
        given = given | rule.prepare(name, given)
        q, k, v = _tokens(given)
    extras = rule.extras(name, given)
    _layout.check_extras(name, k, v, extras, rule.channels)
    options = rule.options(name, given) | {
        "scale": given["scale"], "initial_state": given.get("initial_state"), "dtype": dtype,
        "output_final_state": given.get("output_final_state", False), "cu_seqlens": cu_seqlens,
        "reverse": given.get("reverse", False), "state_v_first": state_v_first,
    }  # fmt: skip
    if (gv := given.get("gv")) is None:
        result = _layout.run(name, rule.operator, q, k, v, extras, **options)
    else:
        result = _value_gates.run(name, rule.operator, q, k, v, extras, gv, **options)
    return (*result, *(given[x] for x in rule.more)) if rule.more else result


def _tokens(given: Given) -> tuple[Any, Any, Any]:
    return given["q"] if "q" in given else given["r"], given["k"], given["v"]
