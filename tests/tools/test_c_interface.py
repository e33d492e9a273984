"""linattn.h: operators with the bits of the gufuncs, for operands in any memory, and threads."""

import ctypes
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import c_interface
import numpy as np
import pytest
from c_interface import API, array, call, describe, families, make, status
from slow import grid, looped
from stages import forced

import linattn
from linattn import _linattn
from linattn._core.settings import one_isa

SUPPORT = Path(__file__).resolve().parents[1] / "support"
#: One name of each family.
ONE_EACH = [names[0] for names in families().values()]


def expected(name, inputs):
    found = getattr(linattn.ufuncs, name)(*inputs)
    return found if isinstance(found, tuple) else (found,)


def assert_same(actual, wanted):
    for x, y in zip(actual, wanted, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


def test_struct():
    """It begins with its size and the version, at the same place in every version."""
    assert (API.size, API.major, API.minor) == (ctypes.sizeof(c_interface.Api), 1, 0)
    assert c_interface.Api.size.offset == 0
    assert c_interface.Api.major.offset == ctypes.sizeof(ctypes.c_size_t)


def test_operators_are_those_recorded():
    """With the same operands: lines of a release stay while the major version does."""
    recorded = (SUPPORT / "c_operators.txt").read_text(encoding="utf-8").splitlines()
    assert recorded and not {*recorded} - {*families()}


def test_operators_are_the_gufuncs():
    names = [API.name(op).decode() for op in range(API.count())]
    assert sorted(names) == linattn.ufuncs.__all__
    assert [API.find(name.encode()) for name in names] == [*range(len(names))]
    for name in names:
        gufunc, operands = getattr(linattn.ufuncs, name), describe(name)
        dims = [x[1] for x in operands]
        text = [f"({x})" for x in dims]
        assert gufunc.signature == f"{','.join(text[: gufunc.nin])}->{','.join(text[gufunc.nin :])}"
        assert [x[2] for x in operands] == gufunc.nin * [False] + gufunc.nout * [True]
        for place, x in enumerate(operands):
            assert API.place(API.find(name.encode()), x[0].encode()) == place


@one_isa()
@pytest.mark.parametrize("dtype", c_interface.DTYPES, ids=str)
def test_bits_are_those_of_the_gufuncs(dtype):
    first = c_interface.DTYPES[dtype]
    taken = 0
    rng = np.random.default_rng(0)
    names = ONE_EACH if dtype != np.float32 else linattn.ufuncs.__all__
    for name in names:
        places = [API.dtype(API.find(name.encode()), i, first) for i in range(len(describe(name)))]
        if 0 in places or dtype == np.intp:
            assert not any(places) and (dtype.kind == "c" or dtype == np.intp)
            continue
        inputs, outputs = make(name, rng, dtype)
        assert call(name, *inputs, *outputs) == "OK", name
        assert_same(outputs, expected(name, inputs))
        taken += 1
    assert (taken > 0) == (dtype != np.intp)


@one_isa()
def test_any_layout():
    """Axes in another order, backwards, with gaps, broadcast; and no strides at all."""
    rng = np.random.default_rng(1)
    inputs, outputs = make("gated_identity", rng)
    wanted = expected("gated_identity", inputs)
    q, k, v, g, scale = inputs
    q = np.asfortranarray(q)
    k = np.repeat(k, 3, axis=-1)[..., ::3]
    v = v[..., ::-1, :].copy()[..., ::-1, :]
    out = np.full((7, 6, 3, 2), np.nan, np.float32).transpose(3, 2, 0, 1)
    assert call("gated_identity", q, k, v, g, scale, out) == "OK"
    assert_same([out], wanted)
    numbers = np.full((2, 1), scale, np.float32)  # one for each of the first axis
    g, wanted = g[0, 0], expected("gated_identity", (*inputs[:3], g[0, 0], scale))
    given = [array(x) for x in (*inputs[:3], g, numbers, *outputs)]
    for x in given:
        x.strides = None
    assert status("gated_identity", given) == "OK"
    assert_same(outputs, wanted)


def may_lack(name):
    return [x[4] for x in describe(name)]


@one_isa()
@looped(name=[x for x in ONE_EACH if any(may_lack(x))])
def test_left_out(name):
    """Of one sequence, states before it are zeros, and results are the others' bits."""
    rng = np.random.default_rng(2)
    inputs, outputs = make(name, rng, lead=(2,), r=1)
    lacks = may_lack(name)
    for i, x in enumerate(inputs):
        if lacks[i] and describe(name)[i][0] not in ("begin", "end", "keys"):
            no_key = name.startswith("wkv") and describe(name)[i][0] == "log_scale0"
            inputs[i] = np.full_like(x, -np.inf if no_key else 0)
    given = [None if lack else x for x, lack in zip(inputs + outputs, lacks, strict=True)]
    assert call(name, *given) == "OK"
    for x, y, lack in zip(outputs, expected(name, inputs), lacks[len(inputs) :], strict=True):
        np.testing.assert_array_equal(x, np.full_like(x, np.nan) if lack else y)


def fields(name):
    """Places of the fields of states that may be left out."""
    return [
        i for i, x in enumerate(describe(name)) if x[4] and x[0] not in ("begin", "end", "keys")
    ]


@one_isa()
@looped(name=[x for x in ONE_EACH if fields(x)])
def test_one_field_left_out(name):
    """An input is as zeros, and an output not computed; all others are as with it."""
    for place in fields(name):
        inputs, outputs = make(name, np.random.default_rng(2), lead=(2,), r=1)
        if place < len(inputs):
            no_key = name.startswith("wkv") and describe(name)[place][0] == "log_scale0"
            inputs[place] = np.full_like(inputs[place], -np.inf if no_key else 0)
        given, wanted = inputs + outputs, [*expected(name, inputs)]
        if place >= len(inputs):
            wanted[place - len(inputs)] = outputs[place - len(inputs)].copy()
        given[place] = None
        assert call(name, *given) == "OK"
        for x, y in zip(outputs, wanted, strict=True):
            np.testing.assert_array_equal(x, y, describe(name)[place][0])


def before_and_after(name):
    """Places of the state's fields before the tokens, and after them."""
    places = {x[0]: i for i, x in enumerate(describe(name))}
    return [(places[x], places[x[:-1]]) for x in places if x[-1] == "0" and x[:-1] in places]


@one_isa()
@grid(
    lambda name, lead, chunks: (
        chunks > 0 if lead == () else chunks == 0 and name.startswith("causal")
    ),
    name=[x for x in ONE_EACH if before_and_after(x)],
    lead=[(), (5,)],
    chunks=[0, 4],
)
def test_states_in_place(name, lead, chunks):
    """Or some of the fields, though the others are not; whole sequences, or parts of them."""
    rng = np.random.default_rng(3)
    inputs, outputs = make(name, rng, lead=lead, n=600, d=32, m=257, f=33, r=1)
    pairs = before_and_after(name)
    with forced(chunks):
        wanted = expected(name, inputs)
        for many, chosen in itertools.product((1, 8), (pairs, pairs[:1], pairs[-1:])):
            given = [x.copy() if isinstance(x, np.ndarray) else x for x in inputs + outputs]
            for i, j in chosen:
                given[j] = given[i]
            assert call(name, *given, threads=many) == "OK"
            assert_same(given[len(inputs) :], wanted)


@one_isa()
@looped(name=ONE_EACH)
def test_outputs_over_inputs(name):
    """An input that an output overwrites is read first."""
    rng = np.random.default_rng(4)
    inputs, outputs = make(name, rng, d=6, s=7)
    wanted = expected(name, inputs)
    i = next(i for i, x in enumerate(inputs) if isinstance(x, np.ndarray) and x.ndim > 1)
    size = max(inputs[i].size, outputs[0].size)
    memory = np.zeros(size + 3, np.float32)
    shared = memory[3:][: inputs[i].size].reshape(inputs[i].shape)
    shared[...] = inputs[i]
    inputs[i], outputs[0] = shared, memory[: outputs[0].size].reshape(outputs[0].shape)
    assert call(name, *inputs, *outputs) == "OK"
    assert_same(outputs, wanted)


def test_outputs_in_one_array():
    """As rows of q, k and v are in the outputs of one product."""
    inputs, outputs = make("causal_backward_elu", np.random.default_rng(5), m=4)
    wanted = expected("causal_backward_elu", inputs)
    for axis in range(5):
        whole = np.stack([np.zeros_like(x) for x in outputs], axis=axis)
        parts = np.moveaxis(whole, axis, 0)
        for each in ([*parts], [*np.moveaxis(whole[::-1, ..., ::-1], axis, 0)]):
            assert call("causal_backward_elu", *inputs, *each) == "OK"
            assert_same(each, wanted)


def test_outputs_that_share_memory():
    """Two views, as a sort of all addresses tells; some that do not are refused, too."""
    rng, memory = np.random.default_rng(6), np.zeros(4000, np.float32)
    k = v = np.zeros((3, 2, 4, 2), np.float32)
    found = {"OK": 0, "OVERLAP": 0}
    for _ in range(4000):
        steps = [4 * rng.integers(-40, 41, ndim) for ndim in (4, 3)]
        starts = rng.integers(1900, 2100, 2)
        views = [
            np.lib.stride_tricks.as_strided(memory[i:], shape, step)
            for i, shape, step in zip(starts, [(3, 2, 2, 2), (3, 2, 2)], steps, strict=True)
        ]
        places = [
            (i + np.einsum("a,ai->i", step // 4, np.indices(x.shape).reshape(x.ndim, -1)))
            for i, x, step in zip(starts, views, steps, strict=True)
        ]
        shared = np.unique(np.concatenate(places)).size < sum(x.size for x in places)
        answer = call("state_elu", k, v, *views)
        assert answer == "OVERLAP" if shared else answer in found, (starts, steps)
        found[answer] += 1
    assert min(found.values()) > 100


@one_isa()
def test_threads_at_once(threads):
    """Calls of several threads, each with its number, without the GIL; numbers are restored."""
    threads(2)
    name = "causal_elu"
    inputs, _ = make(name, np.random.default_rng(9), lead=(4, 2), n=300, d=32, m=32)
    (wanted,) = expected(name, inputs)
    barrier = threading.Barrier(4)

    def work(many):
        barrier.wait()
        for _ in range(5):
            out = np.full_like(wanted, np.nan)
            assert call(name, *inputs, out, threads=many) == "OK"
            np.testing.assert_array_equal(out, wanted)
            assert linattn.get_num_threads() == 2
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, (0, 1, 2, 3)))


def test_a_held_number_of_threads_is_held_again():
    _linattn.hold_threads(3)
    try:
        inputs, outputs = make("causal_elu", np.random.default_rng(9))
        assert call("causal_elu", *inputs, *outputs, threads=1) == "OK"
        assert linattn.get_num_threads() == 3
    finally:
        _linattn.hold_threads(0)


def test_no_number_of_threads_is_what_the_thread_holds(threads):
    inputs, outputs = make("causal_elu", np.random.default_rng(9), lead=(8,), n=2000, d=32, m=32)
    threads(2)
    _linattn.hold_threads(1)
    try:
        _linattn.take_jobs()
        assert call("causal_elu", *inputs, *outputs, threads=0) == "OK"
        assert _linattn.take_jobs() == []
    finally:
        _linattn.hold_threads(0)
    assert call("causal_elu", *inputs, *outputs, threads=0) == "OK"
    assert _linattn.take_jobs() != []
