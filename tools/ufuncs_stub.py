"""Prints linattn/ufuncs.pyi, whose names the tables in src/kernel make: after a change there,
``python tools/ufuncs_stub.py > linattn/ufuncs.pyi``.  With --check it says whether that is needed.
"""

import sys
from pathlib import Path

import linattn

STUB = Path(__file__).resolve().parent.parent / "linattn" / "ufuncs.pyi"

HEAD = """# Written by tools/ufuncs_stub.py.
from typing import Final

import numpy as np
"""


def text() -> str:
    """The stub."""
    names = linattn.ufuncs.__all__
    listed = "".join(f'    "{name}",\n' for name in names)
    each = "".join(f"{name}: Final[np.ufunc]\n" for name in names)
    return f"{HEAD}\n__all__ = [\n{listed}]\n\n{each}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(None if STUB.read_text() == text() else __doc__)
    print(text(), end="")
