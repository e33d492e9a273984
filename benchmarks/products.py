"""Products of bfloat16 operands (AVX512-BF16) beside linattn's float32 products: a trial.

Three measurements, one thread, processor time: the register tile that does most of the work, with
operands in the first-level cache; the packing of operands into pairs; and a whole form, causal
without a map or a normaliser, written for such products from the start (products.c), beside
linattn.causal.  Errors are root mean squares over the result's, against float64 on the same
numbers.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
from harness import Pair, interleave, threads
from peak import FLAGS
from report import Report, Row, options

import linattn

SOURCE = Path(__file__).with_name("products.c")
KERNELS = SOURCE.parent.parent / "src" / "kernel"

#: Of a tile's product, (16, K) (K, 64); TILE_ROWS and COLS of products.c.
ROWS, COLUMNS = 16, 64
#: (heads, n, d, tokens per chunk), the chunks being those of linattn.causal.
SHAPES = [(8, 1024, 64, 16), (8, 1024, 128, 32)]

Array = np.ndarray


def compiled() -> ctypes.CDLL:
    """Compile products.c for this processor."""
    library = Path(tempfile.mkdtemp()) / "products.so"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    more = [f"-I{KERNELS}", "-DLA_DTYPE=f32", str(SOURCE), "-o", str(library)]
    try:
        subprocess.run([*compiler, *FLAGS, *more], check=True)
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"products.c does not compile for this processor ({error})") from None
    return ctypes.CDLL(str(library))


def size(x: int) -> ctypes.c_ssize_t:
    return ctypes.c_ssize_t(x)


def at(x: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.ctypes.data)


def tile(library: ctypes.CDLL, length: int, rounds: int) -> Row:
    """Time of the float32 tile over that of the tile of pairs, for sums of ``length`` products."""
    repeats = 1_000_000 // length
    calls = [
        partial(call, ctypes.c_long(repeats), ctypes.c_long(length))
        for call in (library.tiles_float, library.tiles_pairs)
    ]
    pair = interleave(*calls, rounds, clock=time.process_time)
    products = repeats * ROWS * COLUMNS * length / 1e9
    speeds = f"{products / pair.b:.0f} against {products / pair.a:.0f} products a ns"
    return row(f"float32 tile / tile of pairs, sums of {length}", pair, speeds)


def packing(library: ctypes.CDLL, k: Array, v: Array, tokens: int, rounds: int) -> Row:
    """Time to pack a chunk's keys and values and the state, over that of linattn.causal."""
    heads, n, d = k.shape
    count = ctypes.c_long(heads * n // tokens)
    out = np.empty_like(v)
    pack = partial(library.pack_chunk, count, at(k), at(v), size(tokens), size(d))
    pair = interleave(pack, partial(linear, k, k, v, out), rounds, clock=time.process_time)
    return row(f"packing / linattn.causal, d = {d}", pair, per_token(pair, heads * n))


def whole(library: ctypes.CDLL, q: Array, k: Array, v: Array, tokens: int, rounds: int) -> Row:
    """Time of linattn.causal over that of the form in products.c."""
    heads, n, d = q.shape
    ours, theirs = np.empty_like(v), np.empty_like(v)

    def pairs() -> None:
        for arrays in zip(q, k, v, theirs, strict=True):
            library.causal_pairs(*map(at, arrays), size(n), size(d), size(tokens))

    pair = interleave(partial(linear, q, k, v, ours), pairs, rounds, clock=time.process_time)
    want = linear(*(x.astype(np.float64) for x in (q, k, v)), None)
    detail = f"{per_token(pair, heads * n)}; linattn's error {error(ours, want):.1e}"
    figure = row(f"linattn.causal / products of pairs, d = {d}", pair, detail)
    figure.error = error(theirs, want)
    return figure


def linear(q: Array, k: Array, v: Array, out: Array | None) -> Array:
    return linattn.causal(q, k, v, feature_map="identity", normalize=False, out=out)


def error(got: Array, want: Array) -> float:
    return float(np.sqrt(np.square(got - want).mean() / np.square(want).mean()))


def per_token(pair: Pair, tokens: int) -> str:
    a, b = (side / tokens * 1e9 for side in (pair.a, pair.b))
    return f"{a:.0f} against {b:.0f} ns a token and head"


def row(what: str, pair: Pair, detail: str) -> Row:
    return Row(what, pair.ratio, pair.low, pair.high, detail=detail)


def main() -> int:
    args = options(__doc__).parse_args()
    report = Report("Products of bfloat16 operands", args)
    library, rounds = compiled(), 5 if args.quick else 41
    rng = np.random.default_rng(0)
    with threads(1):
        for length in (16, 32, 64, 128):
            report.add(tile(library, length, rounds))
        for heads, n, d, tokens in SHAPES:
            q, k, v = rng.standard_normal((3, heads, n, d)).astype(ml_dtypes.bfloat16)
            report.add(packing(library, k, v, tokens, rounds))
            report.add(whole(library, q, k, v, tokens, rounds))
    return report.finish()


if __name__ == "__main__":
    raise SystemExit(main())
