"""No kernel reads scratch that it has not written: what lies there changes no bit.  None writes
past it, or needs more than was measured for the longest sequence: a poisoned call then fails.

Scratch is filled with NaN, and with large numbers of either sign, as a maximum may drop a NaN.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from cases import MAPS
from every_call import every_call
from isas import ISAS
from slow import crossed
from states import assert_same, flat
from table import ALL, covering, first_of

import linattn
from linattn import feature_maps
from linattn._core.gufuncs import internal_ufuncs

pytestmark = pytest.mark.unsanitized

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

DTYPES = [np.float16, bfloat16, np.float32, np.float64] if bfloat16 else [
    np.float16, np.float32, np.float64]  # fmt: skip

# n, s, d, m: full and ragged for vectors of 2, 4, 8 and 16 numbers, for register tiles, for blocks
# of 64 rows and for pieces of 256.
SIZES = [
    (1, 1, 1, 1),
    (3, 5, 2, 7),
    (16, 64, 16, 32),
    (37, 21, 5, 6),
    (65, 70, 22, 33),
    (70, 131, 67, 18),
    (257, 129, 33, 1),
    (19, 6, 130, 69),
    (17, 5, 0, 3),
    (17, 5, 3, 0),
]
TAPS = (1, 2, 4, 9)
BYTES = (0xFF, 0x7F, 0xFE)  # NaN, large, negative and large


def operands(n: int, s: int, d: int, m: int, dtype: type) -> SimpleNamespace:
    """q (n, d), k (s, d), v (s, m) and so on; K and V of n rows for what is causal."""
    rng = np.random.default_rng([n, s, d, m])
    wide = np.float64 if dtype is np.float64 else np.float32
    shapes = {"q": (n, d), "k": (s, d), "v": (s, m), "K": (n, d), "V": (n, m), "g": (n, m)}
    x = {name: rng.standard_normal((2, *shape)).astype(dtype) for name, shape in shapes.items()}
    x["K"] = (x["K"] / np.sqrt(d)).astype(dtype)
    return SimpleNamespace(**x, n=n, s=s, d=d, m=m, wide=wide)


def mapped(x: SimpleNamespace) -> Iterator:
    """Every fused map, with states, lengths, packed sequences and shared keys."""
    cuts, sizes = [0, x.n // 3, x.n // 3, x.n], {"d": x.d, "m": x.m}
    rows = [y for y in first_of(ALL) if y.name in ("causal", "noncausal", "delta")]
    for case, phi, normalize in product(rows, MAPS, (True, False)):
        if not (normalize or case.row.normalizer):
            continue
        options = {"normalize": normalize} if case.row.normalizer else {}
        case = case.having(**options, feature_map=phi)
        arrays = case.operands((2,), x.n, s=x.s, **sizes, dtype=x.q.dtype)
        keys = {"key_lengths": (x.s if case.row.cross else x.n) // 2}
        if not case.held:
            yield case.results(arrays, **keys)
            continue
        own = {**sizes, "dtype": x.wide}
        state, several = (case.state(lead, **own) for lead in ((2,), (2, 3)))
        yield case.results(arrays, initial_state=state, grad_state=state, **keys)
        yield case.results(arrays, initial_state=several, cu_seqlens=cuts)
        yield case.call(arrays | {name: arrays[name][:1] for name in "kv"})
        yield case.one_step(arrays, 0, state)


def table(x: SimpleNamespace) -> Iterator:
    """Every operator: with states, a token, and sequences of every length, of which none may need
    more scratch than the longest."""
    cuts = [0, *np.cumsum(range(x.n))]
    while cuts[-1] > x.n:
        cuts.pop()
    rows = ((y, z) for y in covering(ALL) for z in (TAPS if "weight" in y.letters else (x.d,)))
    for case, d in rows:
        sizes, s = {"d": d, "m": x.m}, None if case.options.get("causal") else x.s
        arrays = case.operands((2,), x.n, s=s, **sizes, dtype=x.q.dtype)
        if not case.held:
            yield case.results(arrays)
            continue
        state, last = (case.state((2,), **sizes, dtype=x.wide, seed=y) for y in (1, 2))
        yield case.results(arrays, initial_state=state, grad_state=last)
        yield case.results(case.rows(arrays, 0, cuts[-1]), cu_seqlens=cuts)
        yield case.one_step(arrays, 0, state)


def map_objects(d: int) -> Iterator:
    if d == 0:  # no object has so few
        return
    yield from map(feature_maps.get, feature_maps.NAMES)
    yield feature_maps.get("softplus").normalized()
    yield feature_maps.DPFP(nu=3)
    yield from (feature_maps.Taylor(), feature_maps.Rebased())
    yield feature_maps.FeedforwardKernel.aoglu(2, d, 2)
    for f in (1, 5, 6, 34, 98):
        yield feature_maps.RandomFourierFeatures.sample(d, f)
        yield feature_maps.PositiveRandomFeatures.sample(d, f)
        for name in feature_maps.GeneralizedRandomFeatures.functions:
            yield feature_maps.GeneralizedRandomFeatures.sample(d, f, fn=name)


def objects(x: SimpleNamespace) -> Iterator:
    for phi in map_objects(x.d):
        y = phi(x.q)
        yield y
        yield phi.input_gradient(x.q, np.ones_like(y))
    # Logarithms and rows in their own internal_ufuncs, and a scale that moves: inputs of some size.
    for f, size in product((1, 5, 6, 34, 98) if x.d > 0 else (), (1, 9)):
        phi = feature_maps.PositiveRandomFeatures.sample(x.d, f)
        of_size = (size * x.q, size * x.k, x.v)
        along = (size * x.q, size * x.K, x.V)
        yield linattn.causal(*along, feature_map=phi, return_state=True)
        yield linattn.causal_backward(*along, x.g, feature_map=phi, key_lengths=x.n // 2)
        yield linattn.noncausal(*of_size, feature_map=phi, eps=0.0)
        yield linattn.noncausal_backward(*of_size, x.g, feature_map=phi, key_lengths=x.s // 2)


def elementwise(x: SimpleNamespace) -> Iterator:
    for task in map(internal_ufuncs.__getitem__, internal_ufuncs.names):
        if task.signature is None and x.q.dtype.kind == "f":
            yield task(*(x.q, x.q[::-1], x.q[:, ::-1], x.q, x.q)[: task.nin])


def every(x: SimpleNamespace) -> Iterator:
    """All kinds of calls."""
    if x.d > 0:  # no map has an object of no features
        yield from (call.results() for call in every_call(x.n, x.d, x.m, dtype=x.q.dtype))


FAMILIES = [mapped, table, objects, elementwise, every]


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize(
    ("family", "dtype"),
    crossed(
        lambda family, dtype: dtype == np.float32,
        FAMILIES,
        DTYPES,
    ),
    ids=lambda x: x.__name__ if x in FAMILIES else np.dtype(x).name,
)
def test_scratch_is_written_before_it_is_read(isa, poison, family, dtype, name):
    isa(name)
    for sizes in SIZES:
        x = operands(*sizes, dtype)
        poison(0)
        clean = list(map(flat, family(x)))
        for byte in BYTES:
            poison(byte)
            for i, (y, z) in enumerate(zip(map(flat, family(x)), clean, strict=True)):
                for a, b in zip(y, z, strict=True):
                    same = a.tobytes() == b.tobytes()
                    assert same, f"{sizes}, scratch of {byte:#x}: call {i} gives other numbers"


def test_large_scratch_is_used_again(threads):
    """By calls of other sizes, and by several callers at once: no call changes another's bits."""
    threads(2)
    rng = np.random.default_rng(0)
    q, k, v, g = rng.standard_normal((4, 1, 12000, 64), np.float32)
    k /= 8
    lengths = 12000, 3000, 9000, 12000

    def gradients(n):
        return linattn.causal_backward(*(x[:, :n] for x in (q, k, v, g)))

    expected = {n: gradients(n) for n in set(lengths)}
    with ThreadPoolExecutor(3) as callers:
        for n, found in zip(lengths * 3, callers.map(gradients, lengths * 3), strict=True):
            assert_same(found, expected[n])


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("n", [13, 130])
def test_rows_past_the_last_one_of_wide_states(isa, poison, name, n):
    """Column tiles read copies of a chunk's rows, in blocks of rows of which some do not exist."""
    isa(name)
    rng = np.random.default_rng(n)
    q, k = rng.standard_normal((2, n, 512), np.float32)
    v, g = rng.standard_normal((2, n, 33), np.float32)
    gates = -rng.exponential(0.1, n).astype("f4")
    calls = [
        lambda: linattn.causal_backward(q, k, v, g),
        lambda: linattn.causal_backward(v, g, q, k),
        lambda: linattn.gated_backward(q, k, v, gates, g),
        lambda: linattn.gated_backward(v, g, q, gates, k),
    ]
    poison(0)
    expected = [flat(call()) for call in calls]
    for byte in BYTES:
        poison(byte)
        for call, clean in zip(calls, expected, strict=True):
            assert_same(flat(call()), clean)
