"""States of 16 bits: read exactly, computed with in float32, rounded once as they are written."""

import numpy as np
import pytest
from fused_cases import LAYERS, make
from half_states import RULES, growth
from layouts import features_first
from slow import each, looped
from table import CASES, FIRST, apply, rows, same

import linattn
from linattn import FusedState
from linattn._linattn import operators

ml_dtypes = pytest.importorskip("ml_dtypes")
HALVES = [np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)]
LEAD = 3, 2
halves = looped(half=HALVES)
every_case = each([x for x in CASES if x.row.half_states["step"]])
KINDS = "fused_gated_delta_step", "fused_gated_step"


def narrow(state, half):
    return apply(lambda x: x.astype(half), state)


def wide(state):
    return apply(lambda x: x.astype(np.float32), state)


def strided(x):
    return np.repeat(np.repeat(x, 2, -1), 3, -2)[..., ::3, ::2] if x.ndim > 1 else x


def test_which():
    """Steps whose fields are sums; running maxima and the cells of an sLSTM stay in float32."""
    found = {x for x, row in operators.items() if row["half_states"]}
    assert found == {
        "step", "delta_step", "gated_step", "ssd_step", "gated_delta_step", "dplr_step",
        "momentum_delta_step", "selective_scan_step", "causal_conv1d", "causal_conv1d_step",
        "fused_gated_delta_step", "fused_gated_step",
    }  # fmt: skip


@every_case
@halves
@looped(dtype=["float32", "half"])
def test_bits(case, half, dtype):
    """Those of a step on the same numbers in float32, of any layout, in place and not."""
    for d, m in ((4, 5), (16, 64), (20, 150), (33, 16)):
        check_bits(case, half, dtype, d, m)


def check_bits(case, half, dtype, d, m):
    kind = half if dtype == "half" else dtype
    operands = case.operands(LEAD, 3, d=d, m=m, dtype=kind)
    state = narrow(case.state(LEAD, dtype="float32", d=d, m=m), half)
    for t in range(3):
        o, after = case.one_step(operands, t, wide(state))
        for layout in (np.array, features_first, strided):
            given = apply(layout, state)
            assert same(case.one_step(operands, t, given), (o, narrow(after, half)))
            assert same(given, state)
            assert same(case.one_step(operands, t, given, in_place=True)[0], o)
            assert same(apply(np.array, given), narrow(after, half))
        state = narrow(after, half)


@every_case
@halves
def test_positions_and_threads(threads, case, half):
    """Bits depend neither on the place in the batch nor on the number of threads."""
    operands = case.operands((40, 2), 1, d=32, m=48, dtype="float32")
    state = narrow(case.state((40, 2), dtype="float32", d=32, m=48), half)
    results = []
    for count in (1, 2, 5):
        threads(count)
        results.append(case.one_step(operands, 0, state))
    assert same(results[0], results[1])
    assert same(results[0], results[2])
    shared = {"weight", "bias", "A", "D", "dt_bias", "grad_out"}
    one = {x: y if x in shared and y.ndim < 3 else y[7:8] for x, y in operands.items()}
    alone = case.one_step(one, 0, rows(state, [7]))
    assert same(alone, (results[0][0][7:8], rows(results[0][1], [7])))


@every_case
@halves
def test_float64_tokens_are_refused(case, half):
    operands, state = case.operands(LEAD, 1), narrow(case.state(LEAD), half)
    before = apply(np.array, state)
    for more in ({}, {"in_place": True}):
        with pytest.raises(TypeError, match=f"has dtype {half}; expected float64$"):
            case.one_step(operands, 0, state, **more)
    assert same(state, before)
    wide, single = case.state(LEAD), case.operands(LEAD, 1, dtype="float32")
    with pytest.raises(TypeError, match=r"float64; expected float32, float16 or bfloat16$"):
        case.one_step(single, 0, wide)


@pytest.mark.parametrize("case", FIRST, ids=str)
@halves
def test_others_refuse_them(case, half):
    """Steps, and sequences but those of the convolution."""
    operands = case.operands(LEAD, 4, dtype="float32")
    state = narrow(case.state(LEAD, dtype="float32"), half)
    if not case.row.half_states["step"]:
        with pytest.raises(TypeError, match=f"has dtype {half}; expected float32$"):
            case.one_step(operands, 0, state)
    if not case.row.one_array:
        with pytest.raises(TypeError, match=f"initial_state.* has dtype {half}; expected float32$"):
            case.forward(operands, initial_state=state)


# --- the convolution ---------------------------------------------------------------------------


@halves
@pytest.mark.parametrize("taps", [1, 2, 4, 9])
@pytest.mark.parametrize("n", [1, 2, 50])
def test_convolution_of_sequences(half, taps, n):
    """The final state has the dtype of the first one; gradients are those of float32."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, n, 21)).astype(np.float32)
    weight = rng.standard_normal((21, taps)).astype(np.float32)
    state = rng.standard_normal((2, 21, taps - 1)).astype(half)
    for layout in (np.array, features_first):
        o, after = linattn.causal_conv1d(x, weight, initial_state=layout(state), return_state=True)
        expected, last = linattn.causal_conv1d(
            x, weight, initial_state=wide(state), return_state=True
        )
        assert same((o, after), (expected, last.astype(half)))
    single = linattn.causal_conv1d(x, weight, initial_state=state)
    assert same(single, expected)
    grads = linattn.causal_conv1d_backward(x, weight, o, initial_state=state)
    assert same(grads, linattn.causal_conv1d_backward(x, weight, o, initial_state=wide(state)))
    pool = np.concatenate((state, state[:1]))
    o, same_pool = linattn.causal_conv1d(
        x, weight, initial_state=pool, state_indices=[2, 1], return_state=True
    )
    swapped = linattn.causal_conv1d(x, weight, initial_state=pool[[2, 1]].copy())
    assert same_pool is pool
    assert o.dtype == np.float32
    assert same(pool[0], state[0])
    assert swapped.shape == o.shape


@halves
def test_convolution_through_numpy(half):
    """Operands that only NumPy can read give the same."""
    x = np.arange(12.0, dtype=np.float32).reshape(2, 6).astype(">f4")
    weight, state = np.ones((6, 3), np.float32), np.ones((2, 6, 2), half)
    result = linattn.causal_conv1d_step(x, weight, state)
    assert same(result, linattn.causal_conv1d_step(x.astype("f4"), weight, state))
    tokens = np.stack((x, x), 1)
    result = linattn.causal_conv1d(tokens, weight, initial_state=state, return_state=True)
    native = tokens.astype("f4")
    assert same(
        result, linattn.causal_conv1d(native, weight, initial_state=state, return_state=True)
    )


# --- fused steps -------------------------------------------------------------------------------


def fused_call(kind, operands, state, options, **more):
    return getattr(linattn, kind)(*operands, state, **options, **more)


@pytest.mark.parametrize(
    ("kind", "layer"), [(x, y) for x in KINDS for y in LAYERS if x == KINDS[0] or not y.by_channel]
)
@halves
def test_fused(kind, half, layer):
    """Either field may have 16 bits, in place and in rows of a pool."""
    operands, state, options = make(kind, layer, dtype=np.float32)
    for kinds in ((half, half), (half, np.float32), (np.float32, half)):
        given = FusedState(*[x.astype(y) for x, y in zip(state, kinds, strict=True)])
        o, after = fused_call(kind, operands, wide(given), options)
        expected = FusedState(*[x.astype(y) for x, y in zip(after, kinds, strict=True)])
        assert same(fused_call(kind, operands, given, options), (o, expected))
        pool = apply(lambda x: np.concatenate((x, x, x)), given)
        indices = [4, 1]
        result, _ = fused_call(kind, operands, pool, options, state_indices=indices)
        assert same(result, o)
        assert same(rows(pool, indices), expected)
        assert same(rows(pool, [2, 3]), given)
        own = apply(np.array, given)
        assert same(fused_call(kind, operands, own, options, in_place=True)[0], o)
        assert same(own, expected)


@pytest.mark.parametrize("kind", KINDS)
@halves
def test_fused_refuses_them_for_float64(kind, half):
    operands, state, options = make(kind, LAYERS[0])
    with pytest.raises(TypeError, match=rf"state\.s has dtype {half}; expected float64$"):
        fused_call(kind, operands, state._replace(s=state.s.astype(half)), options)


# --- errors ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [*HALVES, np.dtype("float32")], ids=str)
def test_errors_grow_no_faster_than_roundings(name, dtype):
    """4,096 steps against the twin in float64, each of which may add one rounding of the state."""
    found = growth(name, dtype)
    error = abs(found.o - found.exact)
    assert np.all(error <= found.worst)
    assert np.all(error <= found.random)


@pytest.mark.parametrize("name", RULES)
def test_the_bound_refuses_states_that_are_cut_off(name):
    """Numbers that are rounded towards 0 in place of the nearest."""
    found = growth(name, HALVES[1], cut=True)
    assert np.any(abs(found.o - found.exact) > found.random)
