"""Docstrings and signatures of public gufuncs, from the recurrences and their operands."""

from __future__ import annotations

import contextlib
import inspect
import re
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from ._operator import MAPS, RECURRENCES

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
    "dt": "Time steps.",
    "A": "Rates of the states.",
    "B": "What is written to the states.",
    "C": "What is read of the states.",
    "D": "Weight of x in the output.",
    "gate": "Its silu multiplies the output.",
    "dt_bias": "Added to dt.",
    "softplus": "1 takes the softplus of dt and its bias, 0 does not.",
    "log": "1 where a holds logarithms of the factors, 0 otherwise.",
    "reverse": "1 scans from the last token to the first, 0 from the first.",
    "w": "Decay of each channel: a token multiplies its state by e^-w.",
    "u": "Added to a token's own key as it is read.",
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
#: Those that mean something else, by the beginning of a gufunc's name.
OTHERS = {
    "linear_scan": {"a": "Factors, or their logarithms."},
    "wkv": {"s0": "num, den and max before the first token.", "s": "Those after the last token."},
}
#: Operators with states that are not in the registry of recurrences.
_NO_RECURRENCES = "causal_conv1d", "wkv"
_SEQUENCES = ", r packed sequences with their states"


def document(gufunc: np.ufunc) -> np.ufunc:
    """The gufunc, with a docstring and a signature in which its operands have names.

    NumPy before 2.2 takes neither; its own docstring ends with the names.
    """
    if "__doc__" in getattr(gufunc, "__dict__", ()):  # the package was imported before
        return gufunc
    doc, core = gufunc.__doc__ or "", gufunc.signature or ""
    names = doc.split("\n\n", 1)[1].replace(" -> ", ", ").split(", ")
    shapes = re.findall(r"\((.*?)\)", core)
    own = (texts for name, texts in OTHERS.items() if gufunc.__name__.lstrip("_").startswith(name))
    texts = OPERANDS | next(own, {})
    rows = [_row(*x, names, texts) for x in zip(names, shapes, strict=True)]
    inputs, outputs = rows[: gufunc.nin], rows[gufunc.nin :]
    text = [
        f"{gufunc.__name__}({', '.join(names[: gufunc.nin])}, /, out=None, *, axes, dtype)",
        f"\n{_summaries()[gufunc.__name__]}\n",
        "Parameters\n----------", *inputs, "\nReturns\n-------", *outputs,
    ]  # fmt: skip
    with contextlib.suppress(TypeError):
        vars(gufunc).update(__doc__="\n".join(text), __signature__=_signature(gufunc, names))
    return gufunc


def _row(name: str, shape: str, names: list[str], texts: dict[str, str]) -> str:
    """An operand as numpydoc has it."""
    dims = ", ".join(["...", *filter(None, shape.split(","))])
    what = f"Gradient of {name[1:]}." if name[1:] in names else texts.get(name)
    return f"{name} : ({dims})" + (f"\n    {what}" if what else "")


@cache
def _summaries() -> dict[str, str]:
    """What each public gufunc computes, in a line, by name."""
    found = {}
    for r in RECURRENCES.values():
        parts = ", key lengths" if r.cross else _SEQUENCES
        for method, has_parts, table in r.tables():
            of = f"The gufunc of `linattn.{r.names[method]}`{parts if has_parts else ''}"
            for (_, feature_map, normalize), name in table.names.items():
                options = _options(r.mapped, r.normalizer, feature_map, normalize)
                found[name.lstrip("_")] = f"{of}{options}."
    for feature_map, (end, normalize) in product(MAPS, (("", True), ("_sum", False))):
        options = _options(True, True, feature_map, normalize)
        found[f"state_{feature_map}{end}"] = (
            f"Sums over all keys of phi(k) v^T and of phi(k){options}."
        )
    for name, end, parts in product(_NO_RECURRENCES, ("", "_backward", "_step"), ("", "_state")):
        text = f"The gufunc of `linattn.{name}{end}`{_SEQUENCES if parts else ''}."
        found[name + parts + end] = text
    return found


def _options(mapped: bool, normalizer: bool, feature_map: str, normalize: bool) -> str:
    """Map and normaliser, as a summary ends."""
    without = ", without the normaliser" if normalizer and not normalize else ""
    return (f", feature map {feature_map}" if mapped else "") + without


def _signature(gufunc: np.ufunc, names: list[str]) -> inspect.Signature:
    """NumPy's own, with the operands' names."""
    given = list(inspect.signature(gufunc).parameters.values())
    renamed: list[Any] = [
        p.replace(name=names[i]) if i < gufunc.nin else p for i, p in enumerate(given)
    ]
    return inspect.Signature(renamed)
