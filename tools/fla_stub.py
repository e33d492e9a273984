"""Writes linattn/torch/fla/__init__.pyi, the functions of linattn.torch.fla for type checkers.

``python tools/fla_stub.py`` after a change of their parameters.  tests/fla/test_package.py compares
the stub with the functions.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from linattn.torch import fla

STUB = Path(fla.__file__).with_suffix(".pyi")
HEAD = '''"""Written by tools/fla_stub.py."""

# fmt: off
# ruff: noqa: E501

from typing import Any

from torch import Tensor

from ._parameters import Pair, Result, ThreeResults
from ._states import LogLinearAttentionState as LogLinearAttentionState
from .convolution import ShortConvolution as ShortConvolution
from .convolution import causal_conv1d as causal_conv1d
from .convolution import causal_conv1d_update as causal_conv1d_update

'''


def stub() -> str:
    """The text of the stub, a line for each function."""
    made = [(name, getattr(fla, name)) for name in sorted(fla.__all__)]
    listed = "".join(f'    "{name}",\n' for name, _ in made)
    return f"{HEAD}__all__ = [\n{listed}]\n\n" + "".join(
        f"def {name}{inspect.signature(f)}: ...\n".replace("'", "")
        for name, f in made
        if inspect.isfunction(f) and f.__module__ == fla.__name__
    )


if __name__ == "__main__":
    STUB.write_text(stub())
