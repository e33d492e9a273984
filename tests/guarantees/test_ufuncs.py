"""The raw gufuncs are NumPy ufuncs, and code for that protocol can call them."""

import inspect
import pickle
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import table
from bounds import close
from cases import BACKWARD, DTYPES, FORWARD, MAPS, Case, make
from processes import output
from slow import each, looped
from states import assert_same, flat

import linattn
from linattn._linattn import make_ufunc, operators, ufunc_names

SIGNATURES = {
    "causal": "(n,d),(n,d),(n,m){}->(n,m)",
    "noncausal": "(n,d),(s,d),(s,m){}->(n,m)",
    "causal_backward": "(n,d),(n,d),(n,m),(n,m){}->(n,d),(n,d),(n,m)",
    "noncausal_backward": "(n,d),(s,d),(s,m),(n,m){}->(n,d),(s,d),(s,m)",
}
ALL = [
    Case(operator, 19, 6, 7, lead=(2, 3), feature_map=feature_map, normalize=normalize)
    for operator in FORWARD + BACKWARD
    for feature_map in MAPS
    for normalize in (True, False)
]


def names(case):
    return case.ufunc


@pytest.mark.parametrize("case", ALL, ids=names)
def test_is_a_ufunc(case):
    f = getattr(linattn.ufuncs, case.ufunc)
    assert isinstance(f, np.ufunc)
    assert f.__name__ == case.ufunc
    assert f.signature == SIGNATURES[case.operator].format(",()" * len(case.scalars))
    assert f.nout == (3 if case.backward else 1)
    assert f.__doc__ and case.feature_map in f.__doc__
    for dtype in DTYPES:
        assert np.dtype(dtype).char * f.nin + "->" + np.dtype(dtype).char * f.nout in f.types


def variants(case):
    """The case with each map, normalised and not, and a gufunc of it by a part of its name."""
    kind = "".join(
        x.suffix
        for x in case.row.operands
        if x.suffix and case.letters.get(x.name, "") not in ("" if x.optional else x.dims, "")
    )
    for phi in MAPS if case.row.mapped else ("",):
        for normalize in (True, False) if case.row.normalizer else (None,):
            more = {} if normalize is None else {"normalize": normalize}
            more |= {"feature_map": phi} if phi else {}
            end = (f"_{phi}" if phi else "") + ("_sum" if normalize is False else "")

            def gufunc(part, end=end):
                name = "step" if case.step == part[1:] else f"{case.name}{kind}{part}"
                return getattr(linattn.ufuncs, name + end)

            yield case.having(**more), gufunc


def numbers_of(case, *without):
    """What gufuncs take after the arrays: numbers, and flags as numbers."""
    without = {*without, *(["eps"] if case.options.get("normalize") is False else [])}
    defaults = inspect.signature(getattr(linattn, case.name)).parameters
    options = {x: case.options.get(x, y.default) for x, y in defaults.items()}
    options["silu"] = options.get("activation") == "silu"
    return [float(options[x]) for x in operators[case.name]["numbers"] if x not in without]


LEAD, SIZES = (2, 3), {"d": 6, "m": 7}


@looped(dtype=("float16", *DTYPES))
@each([x for x in table.ALL if x.row is not None] + table.COMPLEX)
def test_is_what_the_wrapper_calls(case, dtype):
    """In the documented order of operands."""
    lead = () if table.SHARED & {*case.letters} else LEAD  # else gradients are summed
    operands = case.operands(lead, 19, dtype=dtype, **SIZES)
    *given, grad_out = operands.values()
    for one, gufunc in variants(case):
        numbers = numbers_of(one)
        assert_same(gufunc("")(*given, *numbers), one.call(operands))
        if dtype != "float16":  # whose gradients of weights the wrapper rounds
            assert_same(gufunc("_backward")(*given, grad_out, *numbers), one.backward(operands))


@looped(dtype=DTYPES)
@each(table.CASES + table.COMPLEX)
def test_states_are_what_the_wrapper_calls(case, dtype):
    """Of r sequences, and of one token, whose state may be updated in place."""
    lead = () if table.SHARED & {*case.letters} else LEAD
    operands = case.operands(lead, 19, dtype=dtype, **SIZES)
    *given, grad_out = operands.values()
    bounds = [0], [19], *([[19]] if case.row.keys else [])

    def same(found, result):
        pairs = zip(found, flat(result), strict=True)
        assert_same([x.reshape(y.shape) for x, y in pairs], flat(result))

    for one, gufunc in variants(case):
        numbers = numbers_of(one)
        start, last = (one.state(lead, dtype=dtype, seed=x, **SIZES) for x in (1, 2))
        rows, more = ([np.expand_dims(x, len(lead)) for x in flat(y)] for y in (start, last))
        found = gufunc("_state")(*given, *numbers, *bounds, *rows)
        same(found, one.forward(operands, initial_state=start))
        found = gufunc("_state_backward")(*given, grad_out, *numbers, *bounds, *rows, *more)
        same(found, one.backward(operands, initial_state=start, grad_state=last))
        if case.reverse:
            continue
        token, fields = one.token(operands, 0).values(), flat(start)
        numbers = numbers_of(one, "reverse")
        expected = one.one_step(operands, 0, start)
        assert_same(gufunc("_step")(*token, *numbers, *fields), expected)
        gufunc("_step")(*token, *numbers, *fields, out=(None, *fields))
        assert_same(fields, expected[1])


def test_all_are_listed():
    assert {case.ufunc for case in ALL} <= set(dir(linattn.ufuncs))
    assert not any(name.startswith("_") for name in dir(linattn.ufuncs))
    for name in dir(linattn.ufuncs):
        f = getattr(linattn.ufuncs, name)
        assert isinstance(f, np.ufunc)
        assert f.__name__ == name
        assert f is getattr(linattn.ufuncs, name)
    with pytest.raises(AttributeError, match=r"'linattn\.ufuncs' has no attribute '_step_elu'"):
        _ = linattn.ufuncs._step_elu


@pytest.mark.parametrize("name", ["causal_elu", "gated_delta_backward_elu"])
def test_pickle(name):
    f = getattr(linattn.ufuncs, name)
    assert pickle.loads(pickle.dumps(f)) is f


def test_are_made_on_first_use():
    """Hundreds of them would take longer than all else of an import."""
    program = """
import numpy as np, linattn
made = lambda: [name for name, f in vars(linattn.ufuncs).items() if isinstance(f, np.ufunc)]
assert len(linattn._core.gufuncs.ufuncs) == len(linattn._core.gufuncs.internal_ufuncs) == 0
assert not made()
assert "delta_relu" in linattn._core.gufuncs.ufuncs and "relu" not in linattn._core.gufuncs.ufuncs
linattn.causal(np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3)))
assert list(linattn._core.gufuncs.ufuncs) == ["causal_elu"]
linattn.ufuncs.delta_relu
assert made() == ["delta_relu"]
"""
    output("-c", program)


def test_one_gufunc_for_all_threads():
    """Whoever asks for it first."""
    barrier = threading.Barrier(4)

    def make_all(_):
        barrier.wait()
        return [make_ufunc(name) for name in ufunc_names]

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(make_all, range(4))
    for other in others:
        assert all(x is y for x, y in zip(first, other, strict=True))
    with pytest.raises(KeyError, match="no_such"):
        make_ufunc("no_such")


@pytest.fixture
def causal():
    """A case, its operands, and what the gufunc makes of them."""
    case = Case("causal", 19, 6, 7, lead=(2, 3))
    operands = make(case)
    return operands, linattn.ufuncs.causal_elu(*operands, *case.scalars)


def test_dtype(causal):
    operands, expected = causal
    o = linattn.ufuncs.causal_elu(*operands, 1.0, 1e-6, dtype=np.float64)
    assert o.dtype == np.float64
    close(o, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(TypeError):
        linattn.ufuncs.causal_elu(*operands, 1.0, 1e-6, dtype=np.complex128)


def test_integers_are_promoted():
    q = np.arange(12).reshape(4, 3) % 5
    o = linattn.ufuncs.causal_relu(q, q, q, 1.0, 1e-6)
    assert o.dtype == np.float64
    floats = q.astype(float)
    np.testing.assert_array_equal(o, linattn.causal(floats, floats, floats, feature_map="relu"))


def test_a_scale_per_head(causal):
    operands, _ = causal
    scale, eps = np.array([0.5, 1, 2], "f4"), np.array([[1e-6], [0.1]], "f4")
    o = linattn.ufuncs.causal_elu(*operands, scale, eps)
    for b, h in np.ndindex(2, 3):
        one = [x[b, h] for x in operands]
        expected = linattn.causal(*one, scale=scale[h], eps=eps[b, 0])
        np.testing.assert_array_equal(o[b, h], expected)


WEAK = [
    1 / np.sqrt(6.0),
    np.float64(0.5),
    np.array(0.5),
    np.array([0.5, 0.25, 2.0]),
    1,
    np.int64(2),
]


@pytest.mark.parametrize("scale", WEAK, ids=repr)
def test_scalars_follow_the_tokens(causal, scale):
    """A NumPy float64, a 0-d array or an array of numbers makes no float64 result."""
    operands, _ = causal
    for dtype in ("f2", "f4", "f8"):
        tokens = [x.astype(dtype) for x in operands]
        o = linattn.ufuncs.causal_elu(*tokens, scale, np.float64(1e-6))
        wide = np.asarray(scale, np.float32 if dtype == "f2" else dtype)
        assert o.dtype == dtype
        same = linattn.ufuncs.causal_elu(*tokens, wide, wide.dtype.type(1e-6))
        np.testing.assert_array_equal(o, same)


def test_dask_array(causal):
    da = pytest.importorskip("dask.array")
    operands, expected = causal
    chunked = [da.from_array(x, chunks=(1, 2, -1, -1)) for x in operands]
    scalars = 1.0, 1e-6  # of which dask makes float64 arrays
    for lazy in (linattn.ufuncs.causal_elu(*chunked, *scalars), linattn.causal(*chunked)):
        assert isinstance(lazy, da.Array)
        o = lazy.compute(scheduler="threads")
        assert o.dtype == lazy.dtype == np.float32
        np.testing.assert_array_equal(o, expected)


def test_docstrings_name_the_operands():
    f = linattn.ufuncs.gated_delta_key_channels_state_backward_elu
    assert f.__doc__.startswith("gated_delta_key_channels_state_backward_elu(q, k, v, g, beta, ")
    assert "`linattn.gated_delta_backward`" in f.__doc__ and "feature map elu" in f.__doc__
    assert "g : (..., n, d)\n    Natural logarithm of the decay" in f.__doc__
    assert "ds0 : (..., r, d, m)" in f.__doc__.partition("Returns")[2]
    assert list(inspect.signature(f).parameters)[:5] == ["q", "k", "v", "g", "beta"]


def test_every_docstring_is_whole():
    """Every operand is told of, once, and the function that is called after names exists."""
    for name in linattn.ufuncs.__all__:
        f = getattr(linattn.ufuncs, name)
        told = re.findall(r"^(\w+) : \(.*\)$", f.__doc__, flags=re.M)
        assert len(told) == len(set(told)) == f.nargs, name
        assert len(re.findall(r"^    .+\.$", f.__doc__, flags=re.M)) == f.nargs, name
        for function in re.findall(r"`linattn\.(\w+)`", f.__doc__):
            assert hasattr(linattn, function), name
