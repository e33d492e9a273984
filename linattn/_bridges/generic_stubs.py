"""Writes stubs without types, from the sources alone: run by setup.py where the built module does
not run, as a file, which imports nothing of the package.
"""

from __future__ import annotations

import ast
from pathlib import Path

FOLDER = Path(__file__).parent.parent
LIBRARIES = ("arrays", "dask", "jax", "mpi", "torch", "distributed")
HEAD = "# Written by linattn/_bridges/stubs.py, which a build runs.\n"


def generic_stubs() -> dict[str, str]:
    """The text of each file: functions of any arguments."""
    functions = (name for name in public("__init__.py") if name[0].islower())
    each = "".join(f"{name}: Any\n" for name in functions)
    imports = "from typing import Any\n\n"
    gufuncs = "import numpy as np\n\ndef __getattr__(name: str) -> np.ufunc: ...\n"
    return {
        "ufuncs.pyi": HEAD + gufuncs,
        "_signatures/__init__.pyi": names("str"),
        **{f"_signatures/{library}.pyi": HEAD + imports + each for library in LIBRARIES},
    }


def write(texts: dict[str, str]) -> None:
    for name, text in texts.items():
        file = FOLDER / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")


def public(file: str) -> list[str]:
    """The names in a module's __all__."""
    (names,) = (
        ast.literal_eval(x.value)
        for x in ast.parse((FOLDER / file).read_text(encoding="utf-8")).body
        if isinstance(x, ast.Assign) and ast.unparse(x.targets[0]) == "__all__"
    )
    return list(names)


def names(maps: str) -> str:
    """The names that `linattn._types` imports."""
    return f"{HEAD}from typing import Literal, TypeAlias\n\nMapName: TypeAlias = {maps}\n"


if __name__ == "__main__":
    write(generic_stubs())
