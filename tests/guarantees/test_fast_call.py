"""Calls that bypass NumPy: the gufunc's bits, or NotImplemented."""

import itertools

import numpy as np
import pytest
from states import assert_same

import linattn
from linattn import State
from linattn._core.gufuncs import run, ufuncs
from linattn._linattn import fast_call

STEP_ELU, STEP_SUM = ufuncs["_step_elu"], ufuncs["_step_elu_sum"]


def token(*lead, d=5, m=3, dtype="f4"):
    rng = np.random.default_rng(0)
    shapes = ((*lead, d), (*lead, d), (*lead, m), (*lead, d, m), (*lead, d))
    wide = [rng.random(shape).astype("f4" if dtype == "f2" else dtype) for shape in shapes]
    return [x.astype(dtype) for x in wide[:3]] + wide[3:]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("lead", [(), (1,), (7,), (3, 5), (600,)])
def test_is_the_gufunc(lead, dtype):
    q, k, v, s, z = token(*lead, dtype=dtype)
    states = [(s.copy(), z.copy()) for _ in range(2)]
    o, *after = fast_call(STEP_ELU, q, k, v, 0.5, 1e-3, None, *states[0])
    assert all(x is y for x, y in zip(after, states[0], strict=True))
    want = STEP_ELU(q, k, v, 0.5, 1e-3, out=(None, *states[1]))[0]
    assert o.dtype == want.dtype
    np.testing.assert_array_equal(o, want)
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("per_channel", [False, True])
def test_is_the_gufunc_with_strengths(per_channel):
    q, k, v, s, _ = token(4)
    beta = np.full(v.shape if per_channel else (4,), 0.25, "f4")
    one, other = s.copy(), s.copy()
    gufunc = ufuncs["_delta_channels_step_relu" if per_channel else "_delta_step_relu"]
    o, _ = fast_call(gufunc, q, k, v, beta, 2.0, None, one)
    np.testing.assert_array_equal(o, gufunc(q, k, v, beta, 2.0, out=(None, other))[0])
    np.testing.assert_array_equal(one, other)


def test_into_a_given_output():
    q, k, v, s, z = token(4)
    o = np.empty_like(v)
    assert fast_call(STEP_ELU, q, k, v, 1.0, 0.0, o, s, z)[0] is o


def read_only(x):
    x.flags.writeable = False
    return x


def gaps(x, axes):
    """As many leading axes of two, each with a gap behind it."""
    wide = np.zeros((3,) * axes + x.shape, x.dtype)[(slice(2),) * axes]
    wide[...] = x
    return wide


def misaligned(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    y = raw[1:].view(x.dtype).reshape(x.shape)
    y[...] = x
    return y


PLAIN = {
    "strides": lambda a: a | {"k": np.repeat(a["k"], 2, -1)[..., ::2]},
    "backwards": lambda a: a | {"k": a["k"][::-1, ::-1]},
    "broadcast": lambda a: a | {"k": a["k"][:1]},
    "fewer axes": lambda a: a | {"k": a["k"][0]},
    "a state at any stride": lambda a: a | {"s": a["s"].swapaxes(-1, -2).copy().swapaxes(-1, -2)},
}


@pytest.mark.parametrize("layout", PLAIN)
def test_any_layout(layout):
    names = ("q", "k", "v", "s", "z")
    a = PLAIN[layout](dict(zip(names, token(4), strict=True)))
    other = [a[x].copy() for x in names]
    o, *_ = fast_call(STEP_ELU, a["q"], a["k"], a["v"], 1.0, 1e-6, None, a["s"], a["z"])
    want = STEP_ELU(*other[:3], 1.0, 1e-6, out=(None, *other[3:]))
    assert_same((o, a["s"], a["z"]), want)


@pytest.mark.parametrize("swap", [(0, 1), (0, 2), (1, 2), (0, 3)])
def test_leading_axes_in_any_order(swap):
    """Merged or not, with a length of 1 among them, and broadcast."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.random((2, 3, 1, 4, 9, 5)).astype("f4").swapaxes(*swap) for _ in range(3))
    gufunc = linattn.ufuncs.causal_elu
    for operands in ((q, k, v), (q, k[:, :1], v), (q, k[0], v[:1]), (q[..., :1, :], k, v)):
        if operands[0].shape[-2] != 9:
            assert fast_call(gufunc, *operands, 1.0, 1e-6, None) is NotImplemented
            continue
        o = fast_call(gufunc, *operands, 1.0, 1e-6, None)
        np.testing.assert_array_equal(o, gufunc(*operands, 1.0, 1e-6))


ODD = {
    "a list": lambda a: a | {"q": a["q"].tolist()},
    "another dtype": lambda a: a | {"v": a["v"].astype("f8")},
    "byte order": lambda a: a | {x: a[x].astype(a[x].dtype.newbyteorder()) for x in "qkvsz"},
    "integers": lambda a: a | {x: a[x].astype(int) for x in "qkv"},
    "masked": lambda a: a | {"q": np.ma.array(a["q"])},
    "misaligned": lambda a: a | {"v": misaligned(a["v"])},
    "no axes": lambda a: a | {"q": np.float32(1)},
    "no state": lambda a: a | {"s": None},
    "repeated state": lambda a: a | {"s": np.broadcast_to(a["s"][0], a["s"].shape)},
    "read-only state": lambda a: a | {"s": read_only(a["s"])},
    "state of another d": lambda a: a | {"s": a["s"][:, :2].copy()},
    "q in the state": lambda a: a | {"q": a["z"]},
    "z in s": lambda a: a | {"z": a["s"].reshape(-1)[: a["z"].size].reshape(a["z"].shape)},
    "an integer": lambda a: a | {"scale": 1},
    "nan": lambda a: a | {"scale": float("nan")},
    "too large": lambda a: a | {"eps": 1e300},
    "negative": lambda a: a | {"eps": -1e-6},
}


@pytest.mark.parametrize("odd", ODD)
def test_leaves_to_numpy(odd):
    names = ("q", "k", "v", "s", "z")
    a = ODD[odd](dict(zip(names, token(4), strict=True)) | {"scale": 1.0, "eps": 1e-6})
    before = [np.array(x) for x in (a["s"], a["z"])]
    operands = (a["q"], a["k"], a["v"], a["scale"], a["eps"], None, a["s"], a["z"])
    assert fast_call(STEP_ELU, *operands) is NotImplemented
    np.testing.assert_array_equal(a["s"], before[0])
    np.testing.assert_array_equal(a["z"], before[1])


def test_axes_that_do_not_merge():
    """More of them than a call has room for: NumPy hands over one after another."""
    q = np.random.default_rng(0).random((3, 2)).astype("f4")
    many, f = gaps(q, 9), ufuncs["causal_elu"]
    assert fast_call(f, many, many, many, 1.0, 1e-6, None) is NotImplemented
    np.testing.assert_array_equal(
        f(many, many, many, 1.0, 1e-6), np.broadcast_to(f(q, q, q, 1.0, 1e-6), many.shape)
    )


@pytest.mark.parametrize("lead", [(3,), (1, 4), ()])
def test_an_output_of_other_axes(lead):
    """Those that the operands do not make of it are NumPy's to judge."""
    q, k, v, *_ = token(4, 7)
    out = np.zeros((*lead, 7, 3), "f4")
    assert fast_call(ufuncs["causal_elu"], q, k, v, 1.0, 1e-6, out) is NotImplemented
    assert not out.any()


def test_more_axes_than_numpy_has():
    """Of the state: the tokens have as many as there can be."""
    q = np.ones((1,) * 62 + (3, 2), "f4")
    begin, end = np.zeros((2, 1), np.intp)
    s = np.zeros((1, 2, 2), "f4")
    f = ufuncs["causal_state_elu_sum"]
    assert fast_call(f, q, q, q, 1.0, begin, end, end, s, None, None) is NotImplemented


def test_what_may_be_left_out():
    """Indices of one sequence that is all, states that are zero, states that no one wants."""
    f, backward = ufuncs["causal_state_elu"], ufuncs["causal_state_backward_elu"]
    q = np.random.default_rng(0).random((3, 9, 5)).astype("f4")
    begin, end, keys = np.array([0]), np.array([9]), np.array([[4], [9], [0]])
    s, z = np.zeros((1, 5, 5), "f4"), np.zeros((1, 5), "f4")
    for some in (keys, ...):
        rest = np.broadcast_to(end if some is ... else some, (3, 1))
        want = f(q, q, q, 1.0, 1e-6, begin, end, rest, s, z)
        given = q, q, q, 1.0, 1e-6, ..., ..., some, ..., ...
        for wanted in itertools.product((None, ...), repeat=2):
            found = fast_call(f, *given, None, *wanted)
            for x, y, asked in zip(found, want, (None, *wanted), strict=True):
                assert x is None if asked is ... else np.array_equal(x, y)
            for x, y in zip(run(f, given, (None, *wanted)), found, strict=True):
                assert x is y is None or np.array_equal(x, y)
        want = backward(q, q, q, q, 1.0, 1e-6, begin, end, rest, s, z, s, z)
        given = *given[:3], q, *given[3:], ..., ...
        found = fast_call(backward, *given, None, None, None, ..., ...)
        assert found[3:] == (None, None)
        assert_same(found[:3], want[:3])


@pytest.mark.parametrize("dtypes", ["f4 f8", ">f4", "i8", "f4 list"])
def test_what_is_left_out_of_odd_arrays(dtypes):
    """NumPy, which casts them, gets arrays for all that is left out."""
    first, *last = dtypes.split()
    q = (9 * np.random.default_rng(0).random((3, 9, 5))).astype(first)
    v = q.tolist() if last == ["list"] else q.astype(last[0] if last else first)
    begin, end = np.array([0, 4]), np.array([4, 9])
    for indices, r in ((..., ..., ...), 1), ((begin, end, ...), 2):
        all_of_it = (begin, end) if r == 2 else (np.array([0]), np.array([9]))
        want = ufuncs["delta_state_elu"](
            q, q, v, q[..., 0], 1.0, *all_of_it, np.full(r, 9), np.zeros((r, 5, 5), "f4")
        )
        given = q, q, v, q[..., 0], 1.0, *indices, ...
        o, _ = run(ufuncs["delta_state_elu"], given, (None, ...))
        np.testing.assert_array_equal(o, want[0])
        assert_same(run(ufuncs["delta_state_elu"], given), want)


def test_what_may_not_be_left_out():
    q, s = np.ones((9, 5), "f4"), np.zeros((2, 5, 5), "f4")
    assert fast_call(ufuncs["causal_elu"], q, ..., q, 1.0, 1e-6, None) is NotImplemented
    assert fast_call(ufuncs["causal_elu"], q, q, q, 1.0, 1e-6, ...) is NotImplemented
    f = ufuncs["causal_state_elu_sum"]
    given = ..., ..., ..., s, None, None
    assert fast_call(f, q, q, q, ..., *given) is NotImplemented
    assert fast_call(f, q, q, q, 1.0, *given[:4], ..., None) is NotImplemented
    with pytest.raises(ValueError, match="two sequences the same token"):
        fast_call(f, q, q, q, 1.0, *given)
    token = np.ones(5, "f4")
    assert fast_call(STEP_SUM, token, token, token, 1.0, None, ...) is NotImplemented
    keys = ufuncs["noncausal_keys_elu_sum"]
    assert fast_call(keys, q, q, q, 1.0, ..., None) is NotImplemented


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("number", [0.5, -1e30, 1e300, np.inf, 2])
def test_a_number_of_python_for_a_core_of_no_axes(dtype, number):
    q, k, v, s, _ = token(4, dtype=dtype)
    state = State(s)
    with np.errstate(all="ignore"):
        beta = np.full(4, number, dtype)
        o, after = linattn.delta_step(q, k, v, number, state)
        want, expected = linattn.delta_step(q, k, v, beta, state)
    np.testing.assert_array_equal(o, want)
    np.testing.assert_array_equal(after.s, expected.s)


def test_empty():
    for lead, d, m in [((0,), 3, 2), ((2, 0, 3), 3, 2), ((2,), 0, 2), ((2,), 3, 0)]:
        q, k, v, s, z = token(*lead, d=d, m=m)
        o, *_ = fast_call(STEP_ELU, q, k, v, 1.0, 1.0, None, s, z)
        assert o.shape == v.shape
        assert not o.any() or d


def test_wants_one_of_the_gufuncs():
    for args in ((), (np.add,), (np.add, 1, 2), (STEP_SUM,), (3, 4), (STEP_SUM, 1)):
        with pytest.raises(TypeError, match="expected one of linattn's gufuncs"):
            fast_call(*args)


def test_step_returns_the_state_it_was_given():
    q, k, v, s, z = token(4)
    state = State(s, z)
    _, after = linattn.step(q, k, v, state, in_place=True)
    assert after is state
    state = State(s)
    beta = np.ones(4, "f4")
    assert linattn.delta_step(q, k, v, beta, state, in_place=True)[1] is state
    with pytest.raises(ValueError, match=r"state\.z is None"):
        linattn.step(q, k, v, state, in_place=True)
    with pytest.raises(ValueError, match=r"state\.z is given"):
        linattn.step(q, k, v, State(s, z), in_place=True, normalize=False)
