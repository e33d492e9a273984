"""`state_indices`: states in the rows of a pool give the same bits as states of their own."""

from itertools import product

import numpy as np
import pytest
from bounds import close, roundings
from fused_cases import LAYERS, ROUNDINGS, make, wide
from memory import traced
from ml_dtypes import bfloat16
from slow import each, looped, slow
from states import flat
from table import CASES, COMPLEX, FIRST, MORE, apply, rows, same

import linattn
from linattn import FusedState, State, reference
from linattn.operators.registry import RECURRENCES
from linattn.reference import fused

P, B, H, N = 7, 3, 2, 5
INDICES = np.array([5, 0, 3])
OTHERS = np.setdiff1d(np.arange(P), INDICES)

HALVES = [x for x in CASES if x.row.half_states["step"]]
every_case = each(CASES + MORE)
every_recurrence = pytest.mark.parametrize("case", FIRST, ids=str)


@every_case
@looped(dtype=["float32", "float64", "float16"], half=[None, np.float16, bfloat16])
def test_steps(case, dtype, half):
    """States may have 16 bits where a step may write them."""
    if half and (dtype == "float64" or case not in HALVES):
        return
    operands = case.operands((B, H), N, dtype=dtype)
    pool = apply(lambda x: x.astype(half or x.dtype), case.state((P, H), dtype=dtype))
    before, own = apply(np.array, pool), rows(pool, INDICES)
    for t in range(N):
        o, after = case.one_step(operands, t, pool, state_indices=INDICES)
        expected, own = case.one_step(operands, t, own)
        assert after is pool
        assert same(o, expected)
        assert same(rows(pool, INDICES), own)
        assert same(rows(pool, OTHERS), rows(before, OTHERS))


@every_recurrence
@looped(lead=[(B,), (1,), (1, H), (B, 1), (0, H), (B, 2, H)])
def test_leading_axes(case, lead):
    indices = INDICES[: lead[0]].astype(np.int32)
    operands, pool = case.operands(lead, 1), case.state((P, *lead[1:]))
    own = rows(pool, indices)
    o, _ = case.one_step(operands, 0, pool, state_indices=indices)
    expected, own = case.one_step(operands, 0, own)
    assert same(o, expected)
    assert same(rows(pool, indices), own)


@every_recurrence
def test_layouts(case):
    """Rows of a larger array, other orders of axes, every second row, from the last one on."""

    def wide(x):
        return np.concatenate((x, x), -1)[..., : x.shape[-1]] if x.ndim > 2 else x.copy()

    def spread(x):
        return np.repeat(x, 2, 0)[::2]

    operands, pool = case.operands((B, H), 1), case.state((P, H))
    own = rows(pool, INDICES)
    expected, own = case.one_step(operands, 0, own)
    for layout in (wide, spread, np.asfortranarray, lambda x: x[::-1].copy()[::-1]):
        given = apply(layout, pool)
        o, after = case.one_step(operands, 0, given, state_indices=[*map(int, INDICES)])
        assert after is given
        assert same(o, expected)
        assert same(rows(given, INDICES), own)
        assert same(rows(given, OTHERS), rows(pool, OTHERS))


@every_case
def test_sequences(case):
    operands, pool = case.operands((B, H), N), case.state((P, H))
    before, own = apply(np.array, pool), rows(pool, INDICES)
    expected, last = case.forward(operands, initial_state=own)
    o = case.forward(operands, initial_state=pool, state_indices=INDICES, return_state=False)
    assert same(o, expected)
    assert same(pool, before)
    o, after = case.forward(operands, initial_state=pool, state_indices=INDICES)
    assert after is pool
    assert same(o, expected)
    assert same(rows(pool, INDICES), last)
    assert same(rows(pool, OTHERS), rows(before, OTHERS))


@every_case
def test_packed_sequences(case):
    bounds = [0, 2, 2, N]
    operands, pool = case.operands((H,), N), case.state((H, P))
    before, own = apply(np.array, pool), rows(pool, INDICES, 1)
    expected, last = case.forward(operands, initial_state=own, cu_seqlens=bounds)
    o, after = case.forward(operands, initial_state=pool, state_indices=INDICES, cu_seqlens=bounds)
    assert after is pool
    assert same(o, expected)
    assert same(rows(pool, INDICES, 1), last)
    assert same(rows(pool, OTHERS, 1), rows(before, OTHERS, 1))


@every_case
def test_gradients(case):
    operands, pool = case.operands((B, H), N), case.state((P, H))
    before, last = apply(np.array, pool), case.state((B, H), seed=3)
    own = rows(pool, INDICES)
    for more in ({}, {"grad_state": last}):
        expected = case.backward(operands, initial_state=own, **more)
        grads = case.backward(operands, initial_state=pool, state_indices=INDICES, **more)
        assert same(grads, expected)
    assert same(pool, before)


@every_recurrence
def test_rows_that_are_only_read_may_repeat(case):
    """One prefix, continued in several ways."""
    operands, pool, indices = case.operands((B, H), N), case.state((P, H)), np.array([4, 4, 1])
    options = {"initial_state": pool, "state_indices": indices}
    o = case.forward(operands, **options, return_state=False)
    own = rows(pool, indices)
    assert same(o, case.forward(operands, initial_state=own)[0])
    assert same(case.backward(operands, **options), case.backward(operands, initial_state=own))


def test_threads(threads):
    """Rows of large pools, by several threads: the same bits."""
    rng = np.random.default_rng(0)
    indices = rng.permutation(100)[:70]
    q, k, v = (rng.standard_normal((70, 4, 64)).astype(np.float32) for _ in range(3))
    pool = State(rng.standard_normal((100, 4, 64, 64)).astype(np.float32))
    own = rows(pool, indices)
    expected = linattn.step(q, k, v, own, normalize=False)
    others = np.setdiff1d(np.arange(100), indices)
    for count in (1, 3):
        threads(count)
        given = apply(np.array, pool)
        o, _ = linattn.step(q, k, v, given, normalize=False, state_indices=indices)
        assert same([o, rows(given, indices)], expected)
        assert same(rows(given, others), rows(pool, others))


@every_recurrence
@pytest.mark.parametrize("options", [{}, {"state_at": [2, N]}], ids=str)
def test_indices_in_the_output(case, options):
    """They are read before anything is written."""
    operands = case.operands((B, H), N)
    pool, again = case.state((P, H)), case.state((P, H))
    o, state = case.forward(operands, initial_state=pool, state_indices=INDICES, **options)
    out = np.empty_like(o)
    indices = out.reshape(-1).view(np.int64)[:B]
    indices[:] = INDICES
    found = case.forward(operands, initial_state=again, state_indices=indices, out=out, **options)
    assert found[0] is out
    assert same((out, found[1], again), (o, state, pool))


def test_operands_in_the_pool():
    """They are read before anything is written."""
    rng = np.random.default_rng(0)
    pool = State(rng.standard_normal((P, 4, 4)))
    q, k, v = pool.s[INDICES[0], :3], *(rng.standard_normal((B, 4)) for _ in range(2))
    expected = linattn.step(q.copy(), k, v, rows(pool, INDICES), normalize=False)
    o, _ = linattn.step(q, k, v, pool, normalize=False, state_indices=INDICES)
    assert same([o, rows(pool, INDICES)], expected)


@pytest.mark.any_isa
def test_dask_arrays():
    dask = pytest.importorskip("dask.array")
    q = dask.ones((B, N, 4), chunks=(B, 2, 4))
    pool = State(np.ones((P, 4, 4)), np.ones((P, 4)))
    with pytest.raises(TypeError, match="causal: state_indices is given and an operand is a dask"):
        linattn.causal(q, q, q, initial_state=pool, state_indices=INDICES)
    with pytest.raises(TypeError, match="causal: state_at is given and an operand is a dask"):
        linattn.causal(q, q, q, state_at=[1], return_state=True)


@each(CASES + COMPLEX)
def test_steps_against_the_twin(case):
    operands, pool = case.operands((B, H), 1), case.state((P, H))
    twin = getattr(reference, case.step)
    expected = twin(
        **case.token(operands, 0), state=pool, state_indices=INDICES, **case.step_options
    )
    result = case.one_step(operands, 0, pool, state_indices=INDICES)
    for x, y in zip(flat(result), flat(expected), strict=True):
        close(x, y, roundings(64, x, y))


# --- without copies -------------------------------------------------------------


@every_case
@pytest.mark.parametrize("count", [3, *slow(1)])
def test_sequences_in_place(threads, case, count):
    """Heads enough for all threads: states are updated in their rows, with the same bits."""
    lead, widths, indices = (3, 8), {"d": 20, "m": 70}, np.array([4, 1, 3])
    threads(count)
    for n, lengths in product((0, 1, 3, 40, 130), (None, [[2], [0], [5]])):
        if lengths is not None and (n < 5 or not case.row.keys):
            continue
        keys = {} if lengths is None else {"key_lengths": lengths}
        operands = case.operands(lead, n, dtype="float32", **widths)
        pool = case.state((5, 8), dtype="float32", **widths)
        before, own = apply(np.array, pool), rows(pool, indices)
        expected = case.forward(operands, initial_state=own, **keys)
        o, _ = case.forward(operands, initial_state=pool, state_indices=indices, **keys)
        assert same([o, rows(pool, indices)], expected)
        assert same(rows(pool, [0, 2]), rows(before, [0, 2]))
        one = {"initial_state": before, "state_indices": indices[:1]}
        first = {
            name: x[:1] if x.ndim > len(case.letters.get(name, "nm")) else x
            for name, x in operands.items()
        }
        o, _ = case.forward(first, **one)
        assert same(
            [o, rows(before, indices[:1])], case.forward(first, initial_state=rows(own, [0]))
        )


@pytest.mark.parametrize("case", [x for x in FIRST if x.name in RECURRENCES], ids=str)
@pytest.mark.parametrize("n", [None, 2])
def test_no_state_is_allocated(case, n):
    """Neither by a step nor by a sequence."""
    operands = case.operands((4, 16), n or 1, dtype="float32", d=64, m=64)
    pool = case.state((6, 16), dtype="float32", d=64, m=64)
    options = {"state_indices": np.array([4, 1, 3, 0])}

    def call():
        if n is None:
            case.one_step(operands, 0, pool, **options)
        else:
            case.forward(operands, initial_state=pool, **options)

    peak, _ = traced(call)
    tokens = sum(x.nbytes for x in operands.values())  # which the test takes from the sequence
    assert peak < 2 * tokens + 2**13


# --- fused steps ----------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fused_gated_delta_step", "fused_gated_step"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layer", [LAYERS[1], LAYERS[4]], ids=["heads", "without inputs"])
def test_fused_steps(kind, dtype, layer):
    operands, _, options = make(kind, layer, (B,), dtype)
    _, pool, _ = make(kind, layer, (P,), dtype, seed=1)
    step, before = getattr(linattn, kind), FusedState(*map(np.array, pool))
    own = FusedState(*(x[INDICES] for x in pool))
    expected, own = step(*operands, own, **options, in_place=True)
    o, after = step(*operands, pool, **options, state_indices=INDICES)
    assert after.s is pool.s and after.conv is pool.conv
    assert same(o, expected)
    for x, y, z in zip(pool, own, before, strict=True):
        assert same([x[INDICES], x[OTHERS]], [y, z[OTHERS]])
    twin, given = getattr(fused, kind), FusedState(*map(wide, before))
    options = {name: wide(x) for name, x in options.items()}
    _, after = twin(*map(wide, operands), given, **options, state_indices=INDICES)
    for x, y in zip(pool, after, strict=True):
        close(x, y, roundings(ROUNDINGS, y, dtype=np.float32))
