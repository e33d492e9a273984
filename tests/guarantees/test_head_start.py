"""Long sequences of which two or three threads compute a range of tokens each, after carrying the
state to it (`src/ext/head_start.c`): the same bits as by one thread."""

import numpy as np
import pytest
from states import assert_same
from table import ATTENTION, apply

import linattn
from linattn import _linattn
from linattn._core import settings

N, D, M = 1600, 40, 33
COUNTS = (2, 3)
CAUSAL = ATTENTION[0]
GATED = [x for x in ATTENTION if x.name in ("gated", "ssd")]
BOTH = pytest.mark.parametrize("case", [CAUSAL, GATED[0], GATED[-1]], ids=str)


def make(case, lead=(), n=N, dtype="f4"):
    return case.operands(lead, n, d=D, m=M, dtype=dtype)


def start(case, lead=(), dtype="f4"):
    return case.state(lead, d=D, m=M, dtype=dtype)


@pytest.fixture
def check(threads):
    """compute(case, ...): the results of one thread, compared with those of two and three."""

    def compute(case, operands, ranges=True, counts=COUNTS, **options):
        threads(1)
        expected = case.forward(operands, **options)
        for count in counts:
            threads(count)
            _linattn.take_jobs()
            assert_same(case.forward(operands, **options), expected, f"{count} threads")
            jobs = _linattn.take_jobs()
            assert not ranges or jobs[-1:] == [(count, count)], "not shared by ranges"

    return compute


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("feature_map", ["elu", "exp", "l2norm", "dpfp"])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_causal(check, dtype, feature_map, normalize):
    case = CAUSAL._replace(options={"feature_map": feature_map, "normalize": normalize})
    operands = make(case, dtype=dtype)
    _, state = case.forward(make(case, n=5, dtype=dtype))
    for more in {"return_state": False}, {"return_state": "exact"}, {"initial_state": state}:
        check(case, operands, **more)


@pytest.mark.parametrize("case", GATED, ids=str)
@pytest.mark.parametrize("value", [0, -1e4, -np.inf, -90, 5, np.nan])
def test_gates(check, case, value):
    """Resets and other gates that end chunks and runs early."""
    operands, given = make(case), start(case)
    g = operands["g"]
    for few in (0, 3, 60, N):
        operands["g"] = g.copy()
        operands["g"][np.random.default_rng(few).random(g.shape) < few / N] = value
        check(case, operands, initial_state=given)
    check(case, operands, return_state="exact")


@BOTH
def test_lengths(check, case):
    """Keys that end anywhere, or do not exist at all; what follows them is not read."""
    for keys in (0, 1, 100, 700, 900, N):
        operands = make(case)
        for name in operands.keys() - {"q"}:
            operands[name][keys:] = np.nan
        check(case, operands, key_lengths=keys)
        _, state = case.forward(case.tokens(operands, 0, 5), key_lengths=min(keys, 5))
        check(case, operands, key_lengths=keys, initial_state=state)


@BOTH
def test_packed_sequences(check, case):
    """Each has ranges of its own; the shortest have but one, and empty ones none."""
    operands = make(case, n=4 * N)
    for cuts in ([0, 4 * N], [0, 0, 4 * N], [0, 30, 4 * N], [0, 2 * N, 4 * N]):
        options = {"cu_seqlens": cuts, "initial_state": start(case, (len(cuts) - 1,))}
        check(case, operands, ranges=False, counts=(2, 3, 4, 6), **options)


@BOTH
def test_heads_left_over(check, case):
    """Of seven heads, each of three threads computes two, and all of them the last one."""
    check(case, make(case, (7,), n=4000), ranges=False)


def test_grouped_queries(check):
    operands = make(CAUSAL, (2, 3))
    operands |= {x: operands[x][:, :1] for x in "kv"}
    check(CAUSAL, operands, ranges=False, counts=(2, 4, 6))


@BOTH
def test_products_of_bfloat16(check, case):
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    with linattn.products("bfloat16"):
        check(case, make(case, n=4 * N, dtype=dtype))


@BOTH
def test_a_state_in_place(threads, case):
    """The state after the tokens takes the place of the one before them."""
    operands, given = make(case, (1,)), start(case, (1,))
    threads(1)
    _, expected = case.forward(operands, initial_state=given)
    threads(2)
    pool = apply(np.copy, given)
    case.forward(operands, initial_state=pool, state_indices=[0])
    assert_same(pool, expected)


@BOTH
def test_instruction_sets_and_poison(check, isa, poison, case):
    """Without reading scratch that has not been written."""
    operands = make(case)
    for chosen in settings.available_isas():
        isa(chosen)
        for byte in (0xFF, 0x7F):
            poison(byte)
            check(case, operands)
