"""The calls that compare commits: one of each operator, from tests/support/every_call.py."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from every_call import Call, every_call

import linattn

D = 64


def calls(n: int, heads: int) -> dict[str, Call]:
    """Calls by operator, on float32 arrays (heads, n, D), with states if the operator has any."""
    found: dict[str, Call] = {}
    for call in every_call(n, D, D, lead=(heads,)):
        if call.name in linattn.__all__:
            found.setdefault(call.name, call)
    return found


#: All operators, from a table that costs nothing.
NAMES = tuple(calls(1, 1))
