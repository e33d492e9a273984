"""Docstrings and signatures of public gufuncs, made from the recurrences and their operands."""

from __future__ import annotations

import contextlib
import inspect
import re
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from .._call.tables import MAPS
from .._linattn import operands
from .registry import RECURRENCES

_SEQUENCES = ", r packed sequences with their states"


def document(gufunc: np.ufunc) -> np.ufunc:
    """The gufunc, with a docstring and a signature that name its operands.

    NumPy before 2.2 accepts neither; its own docstring ends with the names.
    """
    if "__doc__" in getattr(gufunc, "__dict__", ()):  # the package was imported before
        return gufunc
    doc, core = gufunc.__doc__ or "", gufunc.signature or ""
    names = doc.split("\n\n", 1)[1].replace(" -> ", ", ").split(", ")
    shapes = re.findall(r"\((.*?)\)", core)
    rows = [_row(*x, names) for x in zip(names, shapes, strict=True)]
    inputs, outputs = rows[: gufunc.nin], rows[gufunc.nin :]
    text = [
        f"{gufunc.__name__}({', '.join(names[: gufunc.nin])}, /, out=None, *, axes, dtype)",
        f"\n{_summaries()[gufunc.__name__]}\n",
        "Parameters\n----------", *inputs, "\nReturns\n-------", *outputs,
    ]  # fmt: skip
    with contextlib.suppress(TypeError):
        vars(gufunc).update(__doc__="\n".join(text), __signature__=_signature(gufunc, names))
    return gufunc


def _row(name: str, shape: str, names: list[str]) -> str:
    """An operand in numpydoc's form."""
    dims = ", ".join(["...", *filter(None, shape.split(","))])
    what = f"Gradient of {name[1:]}." if name[1:] in names else operands.get(name)
    return f"{name} : ({dims})" + (f"\n    {what}" if what else "")


@cache
def _summaries() -> dict[str, str]:
    """By name: one line that says what each public gufunc computes."""
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
    return found


def _options(mapped: bool, normalizer: bool, feature_map: str, normalize: bool) -> str:
    """The end of a summary: map and normaliser."""
    without = ", without the normaliser" if normalizer and not normalize else ""
    return (f", feature map {feature_map}" if mapped else "") + without


def _signature(gufunc: np.ufunc, names: list[str]) -> inspect.Signature:
    """NumPy's signature, with the operands' names."""
    given = list(inspect.signature(gufunc).parameters.values())
    renamed: list[Any] = [
        p.replace(name=names[i]) if i < gufunc.nin else p for i, p in enumerate(given)
    ]
    return inspect.Signature(renamed)
