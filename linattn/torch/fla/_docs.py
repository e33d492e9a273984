"""The docstrings of fla's functions, made from their signatures."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

from ._keywords import ABSENT
from ._parameters import GATES, USUAL, Types, described

F = TypeVar("F", bound=Callable[..., Any])

#: What functions return that do not say it.
_RETURNS = """o : Tensor, [B, T, HV, V]
final_state : Tensor, [N, HV, K, V], or None
    float32 or float64; None without ``output_final_state``.
"""
#: What those return that could return attention scores.
_PARALLEL = """o : Tensor, [B, T, HV, V]
attentions : None
    fla's attention scores, which are never computed.
"""
#: Values of required parameters in examples, by their types; x is [1, 3, 2, 4].
_VALUES = {
    GATES: "x[..., 0]",
    "Tensor, [B, T, H]": "x[..., 0]",
    "Tensor, [H, K]": "x[0, 0]",
    "int": "1",
}
_EXAMPLE = """>>> import torch
>>> from linattn.torch import fla
>>> x = torch.ones(1, 3, 2, 4)
>>> {} = fla.{}
>>> o.shape
torch.Size([1, 3, 2, 4])"""


def documented(operator: str, types: Types = USUAL) -> Callable[[F], F]:
    """Add the sections that all functions share to a docstring, which may have others.
    ``operator`` is the function of `linattn.torch` that it calls; ``types`` are what
    `described` takes.
    """

    def decorate(f: F) -> F:
        if f.__doc__ is None:  # python -OO
            return f
        parameters = inspect.signature(f).parameters
        table = {name: described(name, types) for name in parameters}
        rows = "".join(
            f"{'**' * (name == 'kwargs')}{name} : {kind}\n    {text}\n"
            for name, (kind, text) in table.items()
        )
        unknown = ", or a keyword is unknown" if "kwargs" in parameters else ""
        refusal = "NotImplementedError\n    If a keyword is not supported.\n"
        text = inspect.cleandoc(f.__doc__)
        summary, *own = re.split(r"^(\w+)\n-+\n", text, flags=re.MULTILINE)
        sections = dict(zip(own[::2], own[1::2], strict=True))
        usual = _PARALLEL if "output_attentions" in parameters else _RETURNS
        returns = sections.get("Returns", usual).strip()
        f.__doc__ = (
            f"{summary.strip()}\n\n"
            f"`linattn.torch.{operator}` in the layouts of `linattn.torch.fla`.\n"
            f"\nParameters\n----------\n{rows}"
            f"\nReturns\n-------\n{returns}\n"
            f"\nRaises\n------\nTypeError\n    If an operand is not a tensor{unknown}.\n"
            "ValueError\n    If shapes do not match, or options contradict each other.\n"
            f"{refusal if {*ABSENT, 'kwargs'} & parameters.keys() else ''}"
            f"\nExamples\n--------\n{sections.get('Examples') or _example(f, types, returns)}"
        )
        return f

    return decorate


def _example(f: Callable[..., Any], types: Types, returns: str) -> str:
    """A call of the function with its required arguments."""
    parameters = inspect.signature(f).parameters
    values = ", ".join(
        _VALUES.get(described(name, types)[0], "x") for name, parameter in parameters.items()
        if parameter.default is parameter.empty and name != "kwargs"
    )  # fmt: skip
    state = ", output_final_state=True" * ("output_final_state" in parameters)
    results = re.findall(r"^\w+ : ", returns, re.MULTILINE)
    left = ", ".join(["o", *["_"] * (len(results) - 1)])
    return _EXAMPLE.format(left, f"{f.__name__}({values}{state})")
