"""Products of bfloat16 operands (AVX512-BF16) beside linattn's float32 products: a trial.

Three measurements: the register tile that does most of the work, with operands in the first-level
cache; the packing of operands into pairs; and a whole form, causal without a map or a normaliser,
written for such products from the start (products.c), beside linattn.causal.
"""

from __future__ import annotations

import ctypes
import importlib
from functools import partial

import numpy as np
from adapters import ML_DTYPES

import linattn
from linattn._cli.bench import PLAIN
from linattn._cli.rows import Calls, Row

from .peak import FOLDER, compiled

#: (heads, n, d, tokens per chunk), the chunks being those of linattn.causal.
SHAPES = ((8, 1024, 64, 16), (8, 1024, 128, 32))
Array = np.ndarray


def library() -> ctypes.CDLL:
    return compiled("products", f"-I{FOLDER.parent / 'src' / 'kernel'}", "-DLA_DTYPE=f32")


def size(x: int) -> ctypes.c_ssize_t:
    return ctypes.c_ssize_t(x)


def at(x: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def tile(products: int, length: int) -> Calls:
    """The float32 tile and the tile of pairs, for sums of ``length`` products."""
    given = ctypes.c_long(products // length), ctypes.c_long(length)
    return Calls(*(partial(f, *given) for f in (library().tiles_float, library().tiles_pairs)))


def operands(*shape: int) -> Array:
    kind = importlib.import_module("ml_dtypes").bfloat16
    return np.random.default_rng(0).standard_normal((3, *shape)).astype(kind)


def packing(heads: int, n: int, d: int, tokens: int) -> Calls:
    """A chunk's keys and values and the state, packed."""
    _, k, v = operands(heads, n, d)
    count, sizes = ctypes.c_long(heads * n // tokens), (size(tokens), size(d))
    ours = partial(linattn.causal, k, k, v, out=np.empty_like(v), **PLAIN)
    pack = partial(library().pack_chunk, count, at(k), at(v), *sizes)
    return Calls(pack, ours, tokens=(heads * n,) * 2)


def whole(heads: int, n: int, d: int, tokens: int) -> Calls:
    q, k, v = operands(heads, n, d)
    theirs, run = np.empty_like(v), library().causal_pairs

    def pairs() -> Array:
        for each in zip(q, k, v, theirs, strict=True):
            run(*map(at, each), size(n), size(d), size(tokens))
        return theirs.astype(np.float64)

    ours = partial(linattn.causal, q, k, v, out=np.empty_like(v), **PLAIN)
    want = linattn.causal(*(x.astype(np.float64) for x in (q, k, v)), **PLAIN)
    return Calls(ours, pairs, want, (heads * n,) * 2, same=0.1)


ROWS = [
    *(Row(f"float32 tile / tile of pairs, sums of {length}", tile, (1_000_000, length),
          tiny=(100, length)) for length in (16, 32, 64, 128)),
    *(Row(f"{what}, d = {sizes[2]}", make, sizes, [ML_DTYPES], tiny=(1, 64, *sizes[2:]))
      for sizes in SHAPES for what, make in (("packing / linattn.causal", packing),
                                             ("linattn.causal / products of pairs", whole))),
]  # fmt: skip
