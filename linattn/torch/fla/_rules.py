"""Makes fla's functions from their parameters.

To add an operator, write a `rule`: what its operands are, and the parameters of its forms.
``python tools/fla_stub.py`` then writes them down for type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Signature
from typing import Any, TypeVar

from ..._core.compiled import compiled
from . import _layout, _value_gates
from ._docs import documented
from ._keywords import ABSENT, HINTS, Given, refuse, take_packing
from ._parameters import USUAL, Result, Types, signature

F = TypeVar("F", bound=Callable[..., Any])
Forms = Mapping[str, str]  #: parameters (`_parameters`) of functions, by name
Former = Callable[[str, Given, Given], None]

IGNORED = {*HINTS, *ABSENT, "kwargs"}
#: The functions made here, by name.
FUNCTIONS: dict[str, Any] = {}


def family(
    operator: str, forms: Forms, *, former: Former | None = None, types: Types = USUAL
) -> Callable[[F], F]:
    """Make functions that are computed by the decorated one.

    It takes the name of the function, for errors, and its arguments by name, without those that
    are ignored.  ``former`` takes former keywords out of ``**kwargs``.  Docstrings are that of the
    decorated function, whose examples call the first form; ``operator`` and ``types`` are what
    `documented` takes.
    """

    def decorate(compute: F) -> F:
        returns, text, (first, *_) = compute.__annotations__["return"], compute.__doc__, forms
        for name, parameters in forms.items():
            signed = signature(parameters, types, returns)
            made = _compiled(name, signed, compute, former)
            made.__doc__ = text and text.replace(first, name)
            FUNCTIONS[name] = documented(operator, types)(made)
        return compute

    return decorate


def _compiled(name: str, signed: Signature, compute: Any, former: Former | None) -> Any:
    """A function of this signature."""
    items = {x: "**kwargs" if x == "kwargs" else f"{x!r}: {x}" for x in signed.parameters}
    ignored = ", ".join(items[x] for x in items if x in IGNORED)
    given = ", ".join(items[x] for x in items if x not in IGNORED)
    result = f"call(compute, {name!r}, {{{given}}}, {{{ignored}}}, former)"
    names = {"call": call, "compute": compute, "former": former}
    return compiled(name, signed, __package__, result, **names)


def call(compute: Any, name: str, given: Given, more: Given, former: Former | None = None) -> Any:
    """Compute a function of fla's; ``more`` are ignored or unsupported arguments."""
    if former is not None:
        former(name, given, more)
    if "cu_seq_lens_q" in given:
        take_packing(given, more)
    if more:
        refuse(name, more)
    if given.get("cu_seqlens") is not None:
        given["cu_seqlens"] = _layout.sequence_bounds(given["cu_seqlens"])
    return compute(name, given)


def rule(
    operator: Callable[..., Any],
    forms: Forms,
    *,
    channels: tuple[str, ...] = (),
    options: Callable[[str, Given], Given] | None = None,
    former: Former | None = None,
    more: tuple[str, ...] = (),
    types: Types = USUAL,
) -> Callable[[F], F]:
    """Make functions that call an operator of linattn.torch.

    The decorated function makes the operator's operands after q, k and v, and may replace
    arguments, q, k and v too.  Gates and strengths are [B, T, HV], ``channels`` [B, T, HV, K].
    ``options`` makes further keywords of the operator.  ``more`` are arguments that are
    returned after the state.
    """

    def decorate(extras: F) -> F:
        def compute(name: str, given: Given) -> Result:
            _layout.check_tokens(name, given)
            operands = extras(name, given)
            _layout.check_extras(name, given, operands, channels)
            further = {} if options is None else options(name, given)
            run = _layout.run if given.get("gv") is None else _value_gates.run
            result = run(name, operator, given, operands, **further)
            return (*result, *(given[x] for x in more)) if more else result

        compute.__doc__, compute.__module__ = extras.__doc__, extras.__module__
        family(operator.__name__, forms, former=former, types=types)(compute)
        return extras

    return decorate
