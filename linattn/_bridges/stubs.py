"""Writes stubs of functions that are made from tables, for type checkers.

``python -m linattn._bridges.stubs`` writes linattn/ufuncs.pyi, the gufuncs, and the functions of
each bridge and the names of maps, linattn/_signatures.  setup.py runs it after it has built the C
module, or `generic_stubs` if that module cannot be run.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

import linattn

from ..feature_maps import NAMES
from ..ufuncs import __all__ as gufuncs
from .bridge import Bridge, functions, signature_of
from .generic_stubs import HEAD, names, public, write
from .rows import BRIDGES


def stubs() -> dict[str, str]:
    """The text of each file."""
    listed = "".join(f'    "{name}",\n' for name in gufuncs)
    each = "".join(f"{name}: Final[np.ufunc]\n" for name in gufuncs)
    imports = "from typing import Final\n\nimport numpy as np\n"
    return {
        "ufuncs.pyi": f"{HEAD}{imports}\n__all__ = [\n{listed}]\n\n{each}",
        "_signatures/__init__.pyi": names(f"Literal{[*NAMES]}"),
        "_signatures/arrays.pyi": _signatures("", _of_arrays()),
        **{
            f"_signatures/{library}.pyi": _signatures(bridge.imports, _of_bridge(bridge))
            for library, bridge in BRIDGES.items()
        },
    }


def _of_arrays() -> dict[str, inspect.Signature]:
    """The operators; those for streams are not imported from the stub."""
    found = {name: getattr(linattn, name) for name in linattn.__all__}
    modules = {name: getattr(f, "__module__", "") for name, f in found.items()}
    return {
        name: inspect.signature(found[name])
        for name, module in modules.items()
        if module.startswith("linattn.operators.") and not module.endswith(".streaming")
    }


def _of_bridge(bridge: Bridge) -> dict[str, inspect.Signature]:
    made = {name: added for name, _, _, added in functions(bridge)}
    return {
        name: signature_of(getattr(linattn, name), bridge, added)
        for name, added in (made | dict.fromkeys(bridge.functions, ())).items()
    }


def _signatures(imports: str, signatures: Mapping[str, inspect.Signature]) -> str:
    """The text of functions with these signatures."""
    text = "\n".join(line for row in signatures.items() for line in _function(*row))
    used = sorted(set(re.findall(r"\w+", text)) & set(public("_types.py")))
    return (
        f"{HEAD}from typing import Any, Literal, overload\n\n{imports}\n\n"
        f"from linattn._types import {', '.join(used)}\n\n{text}\n"
    )


def _function(name: str, signature: inspect.Signature) -> Iterator[str]:
    """A function; with overloads if ``return_state`` decides what it returns."""
    option = signature.parameters.get("return_state")
    if option is None:
        yield f"def {name}{_unquoted(signature)}: ..."
        return
    either = signature.return_annotation
    exact = ", 'exact'" * (option.annotation == "ReturnState")
    alone, _, with_state = either.partition(" | ")
    for value, default, result in (
        ("Literal[False]", False, alone),
        (f"Literal[True{exact}]", option.empty, with_state),
        (option.annotation, option.empty, either),
    ):
        changed = option.replace(annotation=value, default=default)
        parameters = {**signature.parameters, "return_state": changed}
        overloaded = signature.replace(
            parameters=list(parameters.values()), return_annotation=result
        )
        yield f"@overload\ndef {name}{_unquoted(overloaded)}: ..."


def _unquoted(signature: inspect.Signature) -> str:
    """The text of a signature, without the quotes that Signature puts around annotations."""
    annotations = [x.annotation for x in signature.parameters.values()]
    text = str(signature)
    for annotation in (*annotations, signature.return_annotation):
        text = text.replace(repr(annotation), annotation)
    return text


if __name__ == "__main__":
    write(stubs())
