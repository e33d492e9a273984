"""The functions of a recurrence: signatures and calls from its rows, docstrings by hand.

A module of operators declares a function by its name and its docstring::

    FADE = Recurrence("fade")
    function = Functions(FADE)


    @function
    def fade() -> None:
        \"\"\"A memory that fades. ...\"\"\"

which makes ``fade(q, k, v, g, *, scale=1.0, feature_map="identity", key_lengths=None, ...)``, one
call of ``FADE.forward((q, k, v, g), scale=scale, ...)``.  The name says which method it is.
Operands, flags and whether there is a scale, a map, a normaliser or lengths follow from the rows in
operators.def; ``linattn._bridges.stubs`` writes the signatures for type checkers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from inspect import Parameter
from typing import TYPE_CHECKING, Any, NamedTuple

from .._core.compiled import calling
from .._docs.templates import filled_like

if TYPE_CHECKING:
    from .._call.recurrence import Recurrence

#: Types and defaults of options; one whose default is None may be None.
OPTIONS = {
    "scale": ("float", 1.0),
    "feature_map": ("Map", "identity"),
    "normalize": ("Bool", True),
    "eps": ("float", 1e-6),
    "key_lengths": ("ArrayLike", None),
    "cu_seqlens": ("ArrayLike", None),
    "initial_state": ("State", None),
    "in_place": ("bool", False),
    "state_indices": ("ArrayLike", None),
    "return_state": ("ReturnState", False),
    "grad_state": ("State", None),
    "state_at": ("ArrayLike", None),
    "block": ("int", None),
    "out": ("Array", None),
    "activation": ("Activation", None),
}


class Form(NamedTuple):
    """What functions of one method have in common."""

    takes: dict[str, str]  #: types of parameters after the operands
    options: tuple[str, ...]  #: after those of the recurrence
    returns: str


FORMS = {
    "forward": Form(
        {},
        ("key_lengths", "cu_seqlens", "block", "initial_state", "state_indices", "return_state",
         "state_at", "out"),
        "Array | tuple[Array, State]",
    ),
    "backward": Form(
        {"grad_out": "ArrayLike"},
        ("key_lengths", "cu_seqlens", "block", "initial_state", "state_indices", "grad_state",
         "state_at"),
        "tuple[Any, ...]",
    ),
    "step": Form({"state": "State"}, ("in_place", "state_indices"), "tuple[Array, State]"),
}  # fmt: skip


class Functions:
    """A decorator that makes the functions of a recurrence.

    ``defaults`` are those of its options that differ from `OPTIONS`, the first in the signature;
    ``positional`` are operands that may be left out, but are not passed by keyword alone.
    """

    def __init__(self, r: Recurrence, *positional: str, **defaults: Any) -> None:
        self._r, self._positional, self._defaults = r, positional, defaults
        self._forward: Any = None

    def __call__(self, declared: Callable[[], None]) -> Any:
        name = declared.__name__
        (method,) = (x for x, y in self._r.names.items() if y == name)
        operands = [x.name for x in self._r.operands]
        made = calling(
            getattr(self._r, method), name, self._signature(method), declared.__module__, operands
        )
        made.__doc__ = declared.__doc__
        filled_like(self._forward)(made)
        self._forward = self._forward or made  # it is the first of them
        return made

    def _signature(self, method: str) -> inspect.Signature:
        form, cross = FORMS[method], self._r.cross
        returns = "Array" if cross and method == "forward" else form.returns
        required = {x.name: "ArrayLike" for x in self._r.operands if not x.optional} | form.takes
        place = Parameter.POSITIONAL_OR_KEYWORD
        positional = [
            Parameter(name, place, annotation=self._type(annotation))
            for name, annotation in required.items()
        ]
        positional += [
            Parameter(name, place, default=None, annotation="ArrayLike | None")
            for name in self._positional
        ]
        options = [*self._options(method)]
        return inspect.Signature(positional + options, return_annotation=self._type(returns))

    def _type(self, annotation: str) -> str:
        """A type, with that of the recurrence's states."""
        if self._r.one_array:
            return re.sub(r"\b(State|Any)\b", "Array", annotation)
        return re.sub(r"\bState\b", self._r.holder.__name__, annotation)

    def _options(self, method: str) -> Iterator[Parameter]:
        r = self._r
        has = {"scale": r.scaled, "feature_map": r.mapped, "key_lengths": r.keys}
        has["block"] = r.blocks
        has |= dict.fromkeys(("normalize", "eps"), r.normalizer)
        has |= dict.fromkeys(self._positional, False)
        if r.cross:
            has |= dict.fromkeys(("cu_seqlens", *(x for x in OPTIONS if "state" in x)), False)
        optional = {x.name: ("ArrayLike", None) for x in r.operands if x.optional}
        flags = dict.fromkeys(r.flags[method], ("Bool", False))
        rows = optional | flags | OPTIONS
        own = (*self._defaults, "scale", "feature_map", "normalize", "eps", *optional, *flags)
        for name in dict.fromkeys((*own, *FORMS[method].options)):
            if has.get(name, True):
                annotation, default = rows[name]
                default = self._defaults.get(name, default)
                if default is None and annotation != "Activation":  # which may be None
                    annotation = f"{self._type(annotation)} | None"
                yield Parameter(
                    name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation
                )
