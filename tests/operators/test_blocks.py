"""``block``: what all tokens of a block read, beside what `table.BLOCKS` checks."""

from inspect import signature

import numpy as np
import pytest
from bounds import close, roundings
from slow import each, looped
from states import assert_close, assert_same, flat
from table import BLOCKS, FIRST, allowed, apply

import linattn
from linattn import feature_maps, reference
from linattn.operators.registry import RECURRENCES

LEAD, N = (2,), 11
EACH = each(BLOCKS)


def without(case, block=None):
    """The same call with another block, or none."""
    options = {x: y for x, y in case.options.items() if x != "block"}
    return case._replace(options=options if block is None else options | {"block": block})


@EACH
@looped(block=[2, 3, 4, N, 20])
def test_definition(case, block):
    """Each token reads what a query in place of its block's last one does."""
    operands = case.operands(LEAD, N)
    o = without(case, block).call(operands)
    for t in range(N):
        end = min(t // block * block + block, N)
        given = case.tokens(operands, 0, end)
        given["q"] = given["q"].copy()
        given["q"][:, -1] = operands["q"][:, t]
        expected = without(case).call(given)[:, -1]
        close(o[:, t], expected, atol=allowed(expected, o))


@EACH
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_blocks_of_one_token(case, dtype):
    """The bits of the call without blocks."""
    operands, states = case.operands(LEAD, N, dtype=dtype), {}
    if dtype != "float16":
        states = {x: case.state(LEAD, dtype=dtype) for x in ("initial_state", "grad_state")}
    result = without(case, 1).results(operands, **states)
    assert_same(result, without(case).results(operands, **states))


@EACH
def test_states(case):
    """Those of calls without blocks; after any number of tokens, and in the rows of a pool."""
    operands, pool, indices = case.operands((3,), N), case.state((5,)), [4, 0, 2]
    start = apply(lambda x: x[indices], pool)
    _, last = without(case).forward(operands, initial_state=start)
    _, expected = without(case).forward(operands, initial_state=start, state_at=[0, 2, 3, 8, N])
    o, end = case.forward(operands, initial_state=start)
    found, states = case.forward(operands, initial_state=start, state_at=[0, 2, 3, 8, N])
    close(found, o, atol=allowed(o, found))
    assert_close([end, states], [last, expected], atol=allowed(*flat([last, expected])))
    more = {"initial_state": start, "grad_state": states, "state_at": [0, 2, 3, 8, N]}
    grads = case.backward(operands, **more)
    expected = case.backward(operands, reference, **more)
    assert_close(list(grads), list(expected), atol=allowed(*flat(list(expected))))
    found, after = case.forward(operands, initial_state=pool, state_indices=indices)
    assert after is pool
    assert_same([found, *flat(apply(lambda x: x[indices], pool))], [o, *flat(end)])


def test_who_takes_blocks():
    names = {"causal", "gated", "delta", "gated_delta"}
    for case in FIRST:
        for name in case.row.names.values():
            takes = "block" in signature(getattr(linattn, name)).parameters
            assert takes == (case.name in names and name != case.step)
    assert {x.name for x in BLOCKS} == names
    assert not RECURRENCES["noncausal"].blocks


def test_with_a_bonus():
    """A token that reads before it writes has a state of its own."""
    q, u = np.ones((N, 4)), np.ones(4)
    with pytest.raises(ValueError, match=r"^gated: block is 2 and bonus is given"):
        linattn.gated(q, q, q, q[:, 0], bonus=u, block=2)
    with pytest.raises(ValueError, match=r"^gated_backward: block is 2 and bonus is given"):
        linattn.gated_backward(q, q, q, q[:, 0], q, bonus=u, block=2)
    o = linattn.gated(q, q, q, -q[:, 0], bonus=u, block=1)
    assert_same([o], [linattn.gated(q, q, q, -q[:, 0], bonus=u)])


def test_dask_arrays():
    da = pytest.importorskip("dask.array", reason="dask is not installed")
    x = np.ones((N, 4))
    with pytest.raises(TypeError, match=r"^causal: block is 2 and an operand is a dask array"):
        linattn.causal(da.asarray(x), x, x, block=2)
    with pytest.raises(TypeError, match=r"^causal_backward: block is 2 and an operand is a dask"):
        linattn.causal_backward(x, x, x, da.asarray(x), block=2)


# --- maps -----------------------------------------------------------------------


MAP_OBJECTS = {
    "dpfp": feature_maps.DPFP(2),
    "fused": feature_maps.Elementwise("elu"),
    "features": feature_maps.PositiveRandomFeatures.sample(4, 6, rng=0),
    "taylor": feature_maps.Taylor(),
}


@pytest.mark.parametrize("name", MAP_OBJECTS)
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_maps_that_are_objects(name, dtype):
    phi, rng = MAP_OBJECTS[name], np.random.default_rng(0)
    q, k, v, g = rng.standard_normal((4, 2, N, 4)).astype(dtype)
    options = {"feature_map": phi, "normalize": False, "key_lengths": [7, N], "block": 4}
    o = linattn.causal(q, k, v, **options)
    expected = reference.causal(*(x.astype(float) for x in (q, k, v)), **options)
    close(o, expected, atol=roundings(64, expected, dtype=np.dtype(dtype)))
    grads = linattn.causal_backward(q, k, v, g, **options)
    expected = reference.causal_backward(*(x.astype(float) for x in (q, k, v, g)), **options)
    for x, y in zip(grads, expected, strict=True):
        assert x.dtype == dtype
        close(x, y, atol=roundings(64, *expected, dtype=np.dtype(dtype)))


def test_maps_that_rescale():
    x, phi = np.ones((N, 4)), MAP_OBJECTS["features"]
    with pytest.raises(ValueError, match=r"^causal: feature_map is .*expected another map"):
        linattn.causal(x, x, x, feature_map=phi, block=2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_denominators_of_zero_within_a_block(dtype):
    """A token that sees no weight before its block ends spoils no gradient."""
    rng = np.random.default_rng(0)
    q, k, v, g = np.abs(rng.standard_normal((4, N, 4))).astype(dtype)
    k[:2] = 0
    options = {"feature_map": "relu", "eps": 0.0, "block": 3}
    assert np.isfinite(linattn.causal(q, k, v, **options)).all()
    grads = linattn.causal_backward(q, k, v, g, **options)
    expected = reference.causal_backward(*(x.astype(float) for x in (q, k, v, g)), **options)
    assert_close(grads, expected, atol=roundings(64, *expected, dtype=np.dtype(dtype)))


@pytest.mark.parametrize("dtype", ["int8", "int64", "bool"])
def test_integers(dtype):
    """Keys that write nothing may be infinite, which integers are not."""
    q, k, v = np.random.default_rng(0).integers(0, 2, (3, N, 4)).astype(dtype)
    o = linattn.causal(q, k, v, block=3)
    close(o, reference.causal(q, k, v, block=3), atol=allowed(o))
