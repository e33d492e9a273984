"""fla's recurrences on CPUs: its naive references, and linattn in place of its kernels.

Float32, one sequence.  Without linattn these references are all of fla's recurrences that run
without a GPU.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from functools import partial
from typing import Any

from adapters import FLA

from linattn._cli.bench import MODES
from linattn._cli.peers import Call
from linattn._cli.rows import Calls, Row


@functools.cache
def patched() -> Any:
    """fla's functions run on linattn from now on; its references stay."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a machine without a GPU
        importlib.import_module("fla.ops")
    return importlib.import_module("linattn.torch").patch_fla()


def calls(case: Any, reverse: bool, *sizes: int) -> Calls:
    patched()
    return Calls(*(call(case, name, reverse, *sizes) for name in (case.naive, case.function)))


def call(case: Any, name: str, reverse: bool, n: int, heads: int, width: int) -> Call:
    module = f"fla.ops.{case.package}{'.naive' if name == case.naive else ''}"
    function = getattr(importlib.import_module(module), name)
    operands = importlib.import_module("fla_naive").operands
    given = operands(case.operands, batch=1, n=n, heads=heads, width=width)
    options = case.given | (case.alone if name == case.function else {})
    for x in given:
        x.requires_grad_(reverse)

    def run() -> None:
        o = function(*given, **options)
        if reverse:
            o[0].sum().backward()

    return run


REFERENCES = [] if FLA.missing() else importlib.import_module("fla_naive").REFERENCES
ROWS = [
    Row(f"{case.function}: {case.naive} / linattn, {mode}", partial(calls, case, reverse),
        (1024, 4, 64), [FLA], 1, True, tiny=(64, 2, 8))
    for case in REFERENCES for reverse, mode in MODES
] or [Row("recurrences of fla", calls, peers=[FLA])]  # fmt: skip
