"""Long sequences of which two or three threads compute a range of tokens each, after carrying the
state to it (`src/ext/head_start.c`): the same bits as by one thread."""

import numpy as np
import pytest
from states import assert_same

import linattn
from linattn import _linattn
from linattn._core import settings

N, D, M = 1600, 40, 33
GATES = {"tokens": (N,), "channels": (N, D)}
COUNTS = (2, 3)


def draw(*shape, dtype="f4", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def make(lead=(), n=N, d=D, m=M, dtype="f4"):
    return [draw(*lead, n, width, dtype=dtype, seed=i) for i, width in enumerate((d, d, m))]


def gates(*shape):
    return -np.exp(draw(*shape, seed=3) - 2)


@pytest.fixture
def check(threads):
    """compute(call, ...): the results of one thread, compared with those of two and three."""

    def compute(f, *operands, ranges=True, counts=COUNTS, **options):
        threads(1)
        with np.errstate(all="ignore"):
            expected = f(*operands, **options)
            for count in counts:
                threads(count)
                _linattn.take_jobs()
                assert_same(f(*operands, **options), expected, f"{count} threads")
                jobs = _linattn.take_jobs()
                assert not ranges or jobs[-1:] == [(count, count)], "not shared by ranges"

    return compute


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("feature_map", ["elu", "exp", "l2norm", "dpfp"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_causal(check, dtype, feature_map, normalize):
    operands = make(dtype=dtype)
    options = {"feature_map": feature_map, "normalize": normalize}
    check(linattn.causal, *operands, **options)
    check(linattn.causal, *operands, return_state="exact", **options)
    state = linattn.causal(*make(n=5, dtype=dtype), return_state=True, **options)[1]
    check(linattn.causal, *operands, initial_state=state, return_state=True, **options)


@pytest.mark.parametrize("bonus", [False, True])
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("value", [0, -1e4, -np.inf, -90, 5, np.nan])
def test_gates(check, kind, bonus, value):
    """Resets and other gates that end chunks and runs early."""
    operands, options = (
        make(),
        {"return_state": True, "initial_state": linattn.State(draw(D, M), None)},
    )
    if bonus:
        options["bonus"] = draw(D, seed=5)
    for few in (0, 3, 60, N):
        g = gates(*GATES[kind])
        g[np.random.default_rng(few).random(g.shape) < few / N] = value
        check(linattn.gated, *operands, g, **options)
    check(linattn.gated, *operands, g, return_state="exact")


@pytest.mark.parametrize("name", ["causal", "gated"])
def test_lengths(check, name):
    """Keys that end anywhere, or do not exist at all; what follows them is not read."""
    for keys in (0, 1, 100, 700, 900, N):
        operands = [*make(), gates(N)][: 3 + (name == "gated")]
        for x in operands[1:]:
            x[keys:] = np.nan
        f = getattr(linattn, name)
        check(f, *operands, key_lengths=keys, return_state=True)
        state = f(*(x[:5] for x in operands), key_lengths=min(keys, 5), return_state=True)[1]
        check(f, *operands, key_lengths=keys, return_state=True, initial_state=state)


@pytest.mark.parametrize("name", ["causal", "gated"])
def test_packed_sequences(check, name):
    """Each has ranges of its own; the shortest have but one, and empty ones none."""
    operands = [*make(n=4 * N), gates(4 * N)][: 3 + (name == "gated")]
    for cuts in ([0, 4 * N], [0, 0, 4 * N], [0, 30, 4 * N], [0, 2 * N, 4 * N]):
        count = len(cuts) - 1
        given = linattn.State(draw(count, D, M), draw(count, D) if name == "causal" else None)
        options = {"cu_seqlens": cuts, "initial_state": given, "return_state": True}
        check(getattr(linattn, name), *operands, ranges=False, counts=(2, 3, 4, 6), **options)


@pytest.mark.parametrize("name", ["causal", "gated"])
def test_heads_left_over(check, name):
    """Of seven heads, each of three threads computes two, and all of them the last one."""
    operands = [*make((7,), n=4000), gates(7, 4000)][: 3 + (name == "gated")]
    check(getattr(linattn, name), *operands, ranges=False, return_state=True)


def test_grouped_queries(check):
    q = draw(2, 3, N, 16)
    k, v = draw(2, 2, 1, N, 16, seed=1)
    check(linattn.causal, q, k, v, ranges=False, counts=(2, 4, 6), return_state=True)


@pytest.mark.parametrize("name", ["causal", "gated"])
def test_products_of_bfloat16(check, name):
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    operands = [*make(n=4 * N), gates(4 * N)][: 3 + (name == "gated")]
    with linattn.products("bfloat16"):
        check(getattr(linattn, name), *(x.astype(dtype) for x in operands), return_state=True)


@pytest.mark.parametrize("name", ["causal", "gated"])
def test_a_state_in_place(threads, name):
    """The state after the tokens takes the place of the one before them."""
    operands = [*make((1,)), gates(1, N)][: 3 + (name == "gated")]
    f = getattr(linattn, name)
    given = linattn.State(draw(1, D, M), draw(1, D) if name == "causal" else None)
    threads(1)
    _, expected = f(*operands, initial_state=given, return_state=True)
    threads(2)
    pool = linattn.State(*(None if x is None else x.copy() for x in given))
    f(*operands, initial_state=pool, state_indices=[0], return_state=True)
    assert_same(pool, expected)


@pytest.mark.parametrize("name", ["causal", "gated"])
def test_instruction_sets_and_poison(check, isa, name):
    """Without reading scratch that has not been written."""
    operands = [*make(), gates(N)][: 3 + (name == "gated")]
    for chosen in settings.available_isas():
        isa(chosen)
        for byte in (0xFF, 0x7F):
            _linattn.poison_scratch(byte)
            try:
                check(getattr(linattn, name), *operands, return_state=True)
            finally:
                _linattn.poison_scratch(0)
