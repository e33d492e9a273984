"""Products of bfloat16 operands (`linattn.set_products`), against those of float32, of one call."""

from __future__ import annotations

import importlib
from functools import partial

from adapters import ML_DTYPES

import linattn
from linattn._cli.bench import MODES
from linattn._cli.rows import Calls, Row

from .gated import SHAPES, arrays, either

#: Goals at width 64 and 128, with AVX512-BF16; other processors are slower than with float32.
GOALS = {64: 0.8, 128: 0.7}
BACKWARD_GOAL = 0.8


def of_operands(name: str, reverse: bool, heads: int, n: int, d: int) -> Calls:
    kind = importlib.import_module("ml_dtypes").bfloat16
    x = {key: y if key == "g" else y.astype(kind) for key, y in arrays(heads, n, d).items()}
    narrow, wide = (
        linattn.products(of)(either(name, reverse, x)) for of in ("bfloat16", "float32")
    )
    return Calls(narrow, wide, tokens=(heads * n,) * 2)


ROWS = [
    Row(f"{name}{'_backward' * reverse}, products of bfloat16 / of float32, d = {d}",
        partial(of_operands, name, reverse), sizes, [ML_DTYPES],
        BACKWARD_GOAL if reverse else GOALS[d])
    for d, sizes in SHAPES.items()
    for name in ("causal", "gated", "gated_delta") for reverse, _ in MODES
]  # fmt: skip
