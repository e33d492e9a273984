"""Docstrings and signatures of public gufuncs, from the names and shapes of their operands."""

from __future__ import annotations

import contextlib
import inspect
import re
from typing import Any

import numpy as np

from ._operator import MAPS

OPERANDS = {
    "q": "Queries.",
    "k": "Keys.",
    "v": "Values.",
    "beta": "Write strength of each token, or of each of its value channels.",
    "g": "Natural logarithm of the decay of each token, or of each of its key channels.",
    "bonus": "Weight of each key channel for a token's own key.",
    "erase": "Keys to erase at.",
    "a": "Keys that are read from the state before its decay.",
    "b": "Keys that what was read is written to.",
    "x": "Tokens.",
    "weight": "Filters, by tap.",
    "bias": "Added to each channel.",
    "silu": "1 applies x / (1 + exp(-x)), 0 does not.",
    "scale": "Multiplies phi(q).",
    "eps": "Added to the denominator.",
    "grad_out": "Gradient of a scalar with respect to the output.",
    "begin": "First token of each sequence; no two of them have one in common.",
    "end": "The token after the last of each sequence.",
    "keys": "How many of its tokens have a key.",
    "s0": "State before the first token.",
    "z0": "Sum of keys before the first token.",
    "grad_s": "Gradient with respect to the state after the last token.",
    "grad_z": "Gradient with respect to the sum of keys after the last token.",
    "o": "Output.",
    "y": "Output.",
    "s": "State after the last token.",
    "z": "Sum of keys after the last token.",
    "ds0": "Gradient of s0.",
    "dz0": "Gradient of z0.",
}
#: Functions of linattn that gufuncs are called after, the longer names first.
_FUNCTIONS = ("causal_conv1d", "gated_delta", "noncausal", "causal", "gated", "delta", "dplr")
_MAPPED = re.compile(rf"_({'|'.join(MAPS)})(_sum)?$")


def document(gufunc: np.ufunc) -> np.ufunc:
    """The gufunc, with a docstring and a signature in which its operands have names.

    NumPy before 2.2 takes neither; its own docstring ends with the names.
    """
    if "__doc__" in getattr(gufunc, "__dict__", ()):  # the package was imported before
        return gufunc
    doc, core = gufunc.__doc__ or "", gufunc.signature or ""
    names = doc.split("\n\n", 1)[1].replace(" -> ", ", ").split(", ")
    shapes = re.findall(r"\((.*?)\)", core)
    rows = [_row(*x) for x in zip(names, shapes, strict=True)]
    inputs, outputs = rows[: gufunc.nin], rows[gufunc.nin :]
    text = [
        f"{gufunc.__name__}({', '.join(names[: gufunc.nin])}, /, out=None, *, axes, dtype)",
        f"\n{_summary(gufunc.__name__)}\n",
        "Parameters\n----------", *inputs, "\nReturns\n-------", *outputs,
    ]  # fmt: skip
    with contextlib.suppress(TypeError):
        vars(gufunc).update(__doc__="\n".join(text), __signature__=_signature(gufunc, names))
    return gufunc


def _row(name: str, shape: str) -> str:
    """An operand as numpydoc has it."""
    dims = ", ".join(["...", *filter(None, shape.split(","))])
    what = OPERANDS.get(name) or f"Gradient of {name[1:]}."
    return f"{name} : ({dims})\n    {what}"


def _summary(name: str) -> str:
    """What the gufunc of that name computes, in a line."""
    stem = _MAPPED.sub("", name)
    rule = next((x for x in _FUNCTIONS if stem.startswith(x)), None)
    if stem == "state":
        return f"Sums over all keys of phi(k) v^T and of phi(k){_options(name)}."
    if rule is None:  # the step of causal
        return f"One token of `linattn.causal`{_options(name)}: the gufunc of `linattn.step`."
    end = next((x for x in ("_backward", "_step") if stem.endswith(x)), "")
    parts = ", r packed sequences with their states" if "_state" in stem else ""
    parts = ", key lengths" if "_keys" in stem else parts
    return f"The gufunc of `linattn.{rule}{end}`{parts}{_options(name)}."


def _options(name: str) -> str:
    """Map and normaliser, where a gufunc's name tells."""
    if (found := _MAPPED.search(name)) is None:
        return ""
    normalizer = ", without the normaliser" if found[2] else ""
    return f", feature map {found[1]}{normalizer}"


def _signature(gufunc: np.ufunc, names: list[str]) -> inspect.Signature:
    """NumPy's own, with the operands' names."""
    given = list(inspect.signature(gufunc).parameters.values())
    renamed: list[Any] = [
        p.replace(name=names[i]) if i < gufunc.nin else p for i, p in enumerate(given)
    ]
    return inspect.Signature(renamed)
