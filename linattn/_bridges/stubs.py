"""Writes stubs of functions that are made from tables, for type checkers.

``python -m linattn._bridges.stubs`` writes linattn/ufuncs.pyi, the gufuncs, and linattn/_signatures, the
functions of each bridge and the names of maps.  setup.py runs it after it has built
the C module.  If that module cannot be run, it runs this file with ``--generic``, which leaves out
the types.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .bridge import Bridge

FOLDER = Path(__file__).parent
_LIBRARIES = ("dask", "jax", "mpi", "torch", "distributed")
_HEAD = "# Written by linattn/_bridges/stubs.py, which a build runs.\n"


def stubs() -> dict[str, str]:
    """The text of each file."""
    from linattn._bridges.rows.rows import BRIDGES
    from linattn.feature_maps import NAMES
    from linattn.ufuncs import __all__ as gufuncs

    listed = "".join(f'    "{name}",\n' for name in gufuncs)
    each = "".join(f"{name}: Final[np.ufunc]\n" for name in gufuncs)
    imports = "from typing import Final\n\nimport numpy as np\n"
    return {
        "ufuncs.pyi": f"{_HEAD}{imports}\n__all__ = [\n{listed}]\n\n{each}",
        "_signatures/__init__.pyi": _names(f"Literal{[*NAMES]}"),
        **{
            f"_signatures/{library}.pyi": _HEAD + _signatures(BRIDGES[library])
            for library in _LIBRARIES
        },
    }


def generic_stubs() -> dict[str, str]:
    """The same without types, from the sources only."""
    functions = (name for name in _public("__init__.py") if name[0].islower())
    each = "".join(f"{name}: Any\n" for name in functions)
    imports = "from typing import Any\n\n"
    gufuncs = "import numpy as np\n\ndef __getattr__(name: str) -> np.ufunc: ...\n"
    return {
        "ufuncs.pyi": _HEAD + gufuncs,
        "_signatures/__init__.pyi": _names("str"),
        **{f"_signatures/{library}.pyi": _HEAD + imports + each for library in _LIBRARIES},
    }


def write(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        file = FOLDER / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _public(file: str) -> list[str]:
    """The names in a module's __all__."""
    (names,) = (
        ast.literal_eval(x.value)
        for x in ast.parse((FOLDER / file).read_text(encoding="utf-8")).body
        if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "__all__"
    )
    return list(names)


def _names(maps: str) -> str:
    """The names that `linattn._types` imports."""
    return f"{_HEAD}from typing import Literal, TypeAlias\n\nMapName: TypeAlias = {maps}\n"


def _signatures(bridge: Bridge) -> str:
    """The functions of a bridge."""
    import linattn
    from linattn._bridges.rows.bridge import functions, signature_of

    made = [(name, added) for name, _, _, added in functions(bridge)]
    made += [(name, ()) for name in bridge.functions]
    text = "\n".join(
        line
        for name, added in made
        for line in _function(name, signature_of(getattr(linattn, name), bridge, added))
    )
    used = sorted(set(re.findall(r"\w+", text)) & set(_public("_types.py")))
    return (
        f"from typing import Any, Literal, overload\n\n{bridge.imports}\n\n"
        f"from linattn._types import {', '.join(used)}\n\n{text}\n"
    )


def _function(name: str, signature: inspect.Signature) -> Iterator[str]:
    """A function; with overloads if ``return_state`` decides what it returns."""
    option = signature.parameters.get("return_state")
    if option is None:
        yield f"def {name}{_unquoted(signature)}: ..."
        return
    either = signature.return_annotation
    alone, _, with_state = either.partition(" | ")
    for value, default, result in (
        ("Literal[False]", False, alone),
        ("Literal[True]", option.empty, with_state),
        ("bool", option.empty, either),
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
    write(generic_stubs() if "--generic" in sys.argv[1:] else stubs())
