"""fla's own Triton kernels on CPU tensors, by Triton's interpreter: an oracle for the patch.

Import this before triton and fla.  The interpreter has no autotuner, makes loops of Python's
integers, which have no method ``to``, and no gather along an axis other than the first.
"""

from __future__ import annotations

import builtins
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
os.environ["FLA_TRITON_INTERPRET"] = "1"

import numpy as np
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

_depth = 0  # kernels that run


def _run(self, *args, **kwargs):
    """The first configuration in place of the fastest."""
    given = dict(zip(self.arg_names, args, strict=False)) | kwargs
    return self.fn.run(*args, **{**self.configs[0].kwargs, **kwargs} | {
        k: v for k, v in self.configs[0].kwargs.items() if k not in given})


Autotuner.run = _run


class _Range:
    """``range`` of kernels: scalars of Triton in place of integers."""

    def __new__(cls, *bounds):
        return _scalars(*bounds) if _depth else builtins.range(*bounds)


def _scalars(*bounds):
    for i in builtins.range(*(int(np.asarray(x.handle.data).item()) if isinstance(x, tl.tensor)
                              else int(x.value) if isinstance(x, tl.constexpr) else int(x)
                              for x in bounds)):
        yield tl.tensor(interpreter.TensorHandle(np.array([i], np.int32), tl.int32), tl.int32)


_call = interpreter.GridExecutor.__call__


def _interpreted(self, *args, **kwargs):
    global _depth
    self.fn.__globals__["range"] = _Range
    _depth += 1
    try:
        return _call(self, *args, **kwargs)
    finally:
        _depth -= 1


interpreter.GridExecutor.__call__ = _interpreted
