"""Gated linear attention against its twin: sizes, layouts, states, packed sequences, tokens."""

from itertools import pairwise

import numpy as np
import pytest
from bounds import close, roundings
from cases import DTYPES, MAPS
from gated_calls import GATES, both, same, states
from gates import KINDS, ROUNDINGS, Case, check, compare, make
from layouts import LAYOUTS
from states import flat

import linattn
from linattn import State
from linattn.reference import gated_attention as ref
from linattn.reference import maps

SIZES = [
    *((n, 16, 32) for n in (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 129)),
    *((37, d, m) for d, m in [(1, 1), (3, 5), (15, 17), (17, 3), (31, 65), (65, 33), (100, 4)]),
    *((n, 72, 69) for n in (31, 33, 97)),
    *((n, 200, 40) for n in (63, 65, 130)),
    (5, 0, 3), (5, 3, 0), (300, 4, 4), (19, 500, 20),
]  # fmt: skip


def rows(arrays, begin, end):
    """The operands of the tokens [begin, end)."""
    return {
        name: x if name == "bonus" else x[..., begin:end] if name == "g" and x.ndim < 3
        else x[..., begin:end, :]
        for name, x in arrays.items()
    }  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@KINDS
def test_sizes(dtype, channels, bonus):
    for n, d, m in SIZES:
        case = Case(n, d, m, channels=channels, bonus=bonus, dtype=dtype)
        first, last = states(case)
        check(linattn, case, initial_state=first, grad_state=last)


@pytest.mark.parametrize("gates", GATES)
@KINDS
def test_gates(gates, channels, bonus):
    """Weak, strong, growing, and resets in the middle of a chunk."""
    for dtype in DTYPES:
        for n, d, m in [(33, 5, 6), (130, 16, 16), (97, 72, 20), (200, 200, 4)]:
            check(linattn, Case(n, d, m, (2,), channels, bonus, gates, dtype=dtype))


@pytest.mark.parametrize("feature_map", MAPS)
@KINDS
def test_maps(feature_map, channels, bonus):
    for dtype in DTYPES:
        for n, d, m in [(5, 3, 2), (70, 65, 7)]:
            check(linattn, Case(n, d, m, (2,), channels, bonus, "weak", feature_map, dtype))


@KINDS
def test_map_objects(channels, bonus):
    """DPFP: gates, bonus and states have as many channels as there are features."""
    phi, twin = linattn.feature_maps.DPFP(nu=2), maps.DPFP(nu=2)
    case = Case(40, 24, 5, (2,), channels, bonus, dtype="float64")
    arrays = make(case)
    arrays |= {name: arrays[name][..., :6] for name in "qk"}
    first, _ = states(case)
    result = both(linattn, case._replace(feature_map=phi), arrays, initial_state=first)
    expected = both(ref, case._replace(feature_map=twin), arrays, initial_state=first)
    for name, x in result.items():
        close(x, expected[name], atol=1e-13 * abs(expected[name]).max(), rtol=1e-12)


@KINDS
def test_sixteen_bits(channels, bonus):
    """Computed in float32, rounded once; gates and their gradient stay float32."""
    case = Case(70, 16, 24, (2,), channels, bonus)
    wide = make(case)
    kept = ("g", "bonus")
    half = {name: x if name in kept else x.astype("f2") for name, x in wide.items()}
    single = {name: x.astype("f4") for name, x in half.items()}
    result, expected = both(linattn, case, half), both(linattn, case, single)
    for name, x in result.items():
        y = expected[name]
        assert x.dtype == ("f4" if name in ("dg", "dbonus", "s") else "f2")
        np.testing.assert_array_equal(x, y.astype(x.dtype), err_msg=name)
    narrow = {**half, "g": half["g"].astype("f2")}
    assert linattn.gated(*(narrow[name] for name in "qkvg")).dtype == np.float16


@pytest.mark.parametrize("dtype", ["float64", "int64", "float16"])
@pytest.mark.parametrize("name", ["gated", "gated_delta", "dplr"])
def test_gates_have_no_say_in_the_dtype_of_states(name, dtype):
    """With states and without, and in gradients."""
    x = np.eye(3, dtype=np.float32)
    g, one, start = np.zeros(3, dtype), np.ones(3, np.float32), State(2 * x)
    more = {"gated": (g,), "gated_delta": (g, one), "dplr": (-x, x, g)}[name]
    forward, backward = (getattr(linattn, name + end) for end in ("", "_backward"))
    for given in ({}, {"initial_state": start}):
        o, state = forward(x, x, x, *more, **given, return_state=True)
        assert {o.dtype, state.s.dtype} == {np.dtype("f4")}
        grads = backward(x, x, x, *more, x, **given)
        assert {y.dtype for y in flat(grads)} == {np.dtype("f4")}


@pytest.mark.parametrize("name", LAYOUTS)
@KINDS
def test_layouts(name, channels, bonus):
    """No bit depends on strides, alignment or byte order."""
    for dtype in DTYPES:
        case = Case(37, 17, 21, (2, 3), channels, bonus, dtype=dtype)
        arrays = make(case)
        moved = {key: LAYOUTS[name](x) for key, x in arrays.items()}
        same(both(linattn, case, moved), both(linattn, case, arrays))
        out = LAYOUTS[name](np.zeros_like(arrays["v"]))
        if out.dtype.isnative and out.flags.writeable:
            del moved["grad_out"], arrays["grad_out"]
            assert linattn.gated(**moved, out=out) is out
            np.testing.assert_array_equal(out, linattn.gated(**arrays))


def test_out_overlaps_an_operand():
    arrays = make(Case(50, 16, 16, channels=True))
    del arrays["grad_out"]
    expected = linattn.gated(**arrays)
    for name in "qkvg":
        given = {key: x.copy() for key, x in arrays.items()}
        linattn.gated(**given, out=given[name])
        np.testing.assert_array_equal(given[name], expected)


def test_broadcasting():
    """Leading axes of every operand, and gradients summed back to each."""
    rng = np.random.default_rng(0)
    n, d, m = 20, 4, 3
    shapes = {"q": (2, 1, 3, n, d), "k": (1, 3, n, d), "v": (n, m)}
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    for shape in [(n,), (5, 1, n), (1, 1, 1, n, d), (2, 5, 1, n, 1)]:
        for bonus in [None, (d,), (3, d), (2, 1, 1, d)]:
            arrays["g"] = -rng.exponential(size=shape)
            lead = np.broadcast_shapes((2, 1, 3), shape[:-2] if len(shape) > 4 else shape[:-1])
            arrays["grad_out"] = rng.standard_normal((*lead, n, m))
            arrays.pop("bonus", None)
            if bonus:
                arrays["bonus"] = rng.standard_normal(bonus)
            result, expected = (both(f, Case(n, d, m), arrays) for f in (linattn, ref))
            for name, x in result.items():
                close(x, expected[name], atol=1e-13 * abs(expected[name]).max(), rtol=1e-12)


@KINDS
def test_a_cut_anywhere(channels, bonus):
    """A sequence resumed from its state, and its gradients from those of the state."""
    case = Case(45, 9, 8, (2,), channels, bonus, "strong")
    arrays = make(case)
    first, last = states(case)
    for cut in range(case.n + 1):
        begin, end = rows(arrays, 0, cut), rows(arrays, cut, case.n)
        o0, state = _forward(case, begin, first)
        late = both(linattn, case, end, initial_state=state, grad_state=last)
        early = both(linattn, case, begin, initial_state=first, grad_state=State(late["ds"]))
        joined = {"s": late["s"], "ds": early["ds"]}
        for name in ("o", "dq", "dk", "dv", "dg"):
            axis = -1 if name == "dg" and not channels else -2
            joined[name] = np.concatenate([early[name], late[name]], axis)
        if bonus:
            joined["dbonus"] = early["dbonus"] + late["dbonus"]
        np.testing.assert_array_equal(early["o"], o0)
        compare(case, arrays, joined, initial_state=first, grad_state=last)


def _forward(case, arrays, first):
    given = {name: x for name, x in arrays.items() if name != "grad_out"}
    return linattn.gated(**given, scale=case.scale, initial_state=first, return_state=True)


@KINDS
def test_packed_sequences(channels, bonus):
    case = Case(90, 7, 6, (2,), channels, bonus, dtype="float64")
    arrays = make(case)
    cuts = np.array([0, 1, 1, 17, 50, 50, 90])
    first, last = states(case, (len(cuts) - 1,))
    more = {"cu_seqlens": cuts, "initial_state": first, "grad_state": last}
    packed = both(linattn, case, arrays, **more)
    total = 0
    for r, (begin, end) in enumerate(pairwise(cuts)):
        alone = both(
            linattn, case, rows(arrays, begin, end),
            initial_state=State(first.s[:, r]), grad_state=State(last.s[:, r]),
        )  # fmt: skip
        total += alone.pop("dbonus", 0)
        here = {"s": packed["s"][:, r], "ds": packed["ds"][:, r]}
        here |= {
            name: packed[name][:, begin:end] for name in ("o", "dq", "dk", "dv", "dg")
        }  # fmt: skip
        same(alone, here)
    if bonus:
        close(packed["dbonus"], total, atol=roundings(16, total))


@KINDS
def test_key_lengths(channels, bonus):
    """What lies past them may hold anything, gates too, and its gradient is 0."""
    case = Case(40, 5, 6, (4,), channels, bonus, "strong")
    arrays = make(case)
    lengths = np.array([0, 13, 16, 40])
    first, last = states(case)
    more = {"key_lengths": lengths, "initial_state": first, "grad_state": last}
    bad = {name: x.copy() for name, x in arrays.items()}
    for head, length in enumerate(lengths):
        for name in "kvg":
            bad[name][head, length:] = np.nan
    result = both(linattn, case, bad, **more)
    compare(case, arrays, result, **more)
    for head, length in enumerate(lengths):
        assert not any(result[name][head, length:].any() for name in ("dk", "dv", "dg"))


@pytest.mark.parametrize("feature_map", MAPS)
@KINDS
def test_step(feature_map, channels, bonus):
    """Token by token, in place or not, it is the same as all at once."""
    for dtype in DTYPES:
        for d, m in [(5, 3), (64, 64), (17, 70)]:
            case = Case(20, d, m, (2,), channels, bonus, "resets", feature_map, dtype)
            arrays = make(case)
            options = {"scale": case.scale, "feature_map": feature_map}
            if bonus:
                options["bonus"] = arrays["bonus"]
            result = both(linattn, case, arrays)
            state = State(np.zeros((2, d, m), dtype))
            mine = State(np.zeros((2, d, m), dtype))
            o = np.empty_like(result["o"])
            for i in range(case.n):
                one = [arrays[name][:, i] for name in "qkvg"]
                o[:, i], state = linattn.gated_step(*one, state, **options)
                same, kept = linattn.gated_step(*one, mine, **options, in_place=True)
                np.testing.assert_array_equal(o[:, i], same)
                assert kept is mine
            np.testing.assert_array_equal(state.s, mine.s)
            compare(case, arrays, {**result, "o": o, "s": state.s})


def test_step_at_any_stride():
    arrays = make(Case(1, 9, 7, (2,), True, True))
    one = [arrays[name][:, 0] for name in "qkvg"]
    s = np.random.default_rng(0).standard_normal((2, 9, 7)).astype("f4")
    expected, end = linattn.gated_step(*one, State(s), bonus=arrays["bonus"])
    turned = State(np.ascontiguousarray(s.mT).mT)
    o, state = linattn.gated_step(*one, turned, bonus=arrays["bonus"], in_place=True)
    close(o, expected, atol=roundings(2 * ROUNDINGS["o"], expected))
    close(state.s, end.s, atol=roundings(2 * ROUNDINGS["s"], end.s))


@KINDS
def test_an_infinite_memory_stays_infinite(channels, bonus):
    """However much of it is forgotten, in a step at any stride and over chunks."""
    case = Case(40, 16, 64, (), channels, bonus)
    arrays = make(case)
    arrays["g"] = arrays["g"] - 1
    del arrays["grad_out"]
    start = np.ones((16, 64), "f4")
    start[3, 5] = np.inf
    one = {name: x if name == "bonus" else x[0] for name, x in arrays.items()}
    with np.errstate(all="ignore"):
        for memory in (start, np.asfortranarray(start)):
            _, after = linattn.gated_step(**one, state=State(memory))
            np.testing.assert_array_equal(np.isinf(after.s), np.isinf(start))
        _, end = linattn.gated(**arrays, initial_state=State(start), return_state=True)
    np.testing.assert_array_equal(np.isinf(end.s), np.isinf(start))


def test_step_takes_a_number():
    """A Python number has no dtype of its own."""
    q, k, v = (np.ones(3, "f4") for _ in range(3))
    o, state = linattn.gated_step(q, k, v, -0.5, State(np.zeros((3, 3), "f4")))
    assert o.dtype == state.s.dtype == np.float32


def test_gates_have_no_say_in_the_dtype():
    """As scale has none: a gate is converted to what the tokens are computed in."""
    arrays = make(Case(20, 4, 3, bonus=True))
    wide = {**arrays, "g": arrays["g"].astype("f8"), "bonus": arrays["bonus"].astype("f8")}
    same(both(linattn, Case(20, 4, 3), wide), both(linattn, Case(20, 4, 3), arrays))
    given = {name: x for name, x in wide.items() if name != "grad_out"}
    out = np.empty_like(arrays["v"])
    assert linattn.gated(**given, out=out) is out
    o = linattn.gated(*(given[name] for name in "qkv"), np.zeros(20, int))
    assert o.dtype == np.float32


def test_ufuncs():
    """What the wrapper calls, in the documented order of operands."""
    case = Case(19, 6, 7, (2,), False, True)
    arrays = make(case)
    q, k, v, g, c, u = arrays.values()
    wide = np.repeat(g[..., None], 6, -1)
    for name in MAPS:
        options = {"feature_map": name, "scale": 0.5}
        ufunc = getattr(linattn.ufuncs, f"gated_{name}")
        assert isinstance(ufunc, np.ufunc)
        assert "g : (..., n" in ufunc.__doc__
        np.testing.assert_array_equal(ufunc(q, k, v, g, 0.5), linattn.gated(q, k, v, g, **options))
        one = getattr(linattn.ufuncs, f"gated_key_channels_bonus_{name}")
        np.testing.assert_array_equal(
            one(q, k, v, wide, u, 0.5), linattn.gated(q, k, v, wide, bonus=u, **options)
        )
        grads = getattr(linattn.ufuncs, f"gated_bonus_backward_{name}")(q, k, v, g, u, c, 0.5)
        expected = linattn.gated_backward(q, k, v, g, c, bonus=u, **options)
        for x, y in zip(grads, expected, strict=True):
            np.testing.assert_array_equal(x, y)
