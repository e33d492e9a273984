"""Errors of what is in no table: other objects for arrays, settings, too much memory."""

from inspect import signature

import numpy as np
import pytest
from cases import BACKWARD, FORWARD
from every_call import every_call
from slow import crossed, slow
from states import assert_same

import linattn

pytestmark = pytest.mark.any_isa

OPERATORS = FORWARD + BACKWARD


def arguments(operator):
    """Good operands by name."""
    arrays = {"q": np.ones((5, 4)), "k": np.ones((5, 4)), "v": np.ones((5, 3))}
    return arrays | ({"grad_out": np.ones((5, 3))} if operator in BACKWARD else {})


class Table:
    """As pandas and xarray have it: values, ufuncs taken over, and no array of numbers itself."""

    def __init__(self, values, **attributes):
        self.values = values
        self.__dict__.update(attributes)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        return NotImplemented


@pytest.mark.parametrize("operator", OPERATORS)
def test_tables(operator):
    """Converted, whether or not they have a dtype; dask and its like take gufuncs over."""
    arrays = arguments(operator)
    expected = getattr(linattn, operator)(**arrays)
    for attributes in ({}, {"dtype": np.dtype("f8"), "shape": (5, 4), "ndim": 2}):
        tables = {name: Table(x, **attributes) for name, x in arrays.items()}
        result = getattr(linattn, operator)(**tables)
        assert_same(result, expected)
    with pytest.raises(TypeError, match=f"{operator}: q has dtype object"):
        getattr(linattn, operator)(**arrays | {"q": Table(np.ones((5, 4), object))})


def test_num_threads():
    before = linattn.get_num_threads()
    for bad in (0, -1, 10**9):
        with pytest.raises(ValueError, match=rf"{bad}"):
            linattn.set_num_threads(bad)
    for bad in (1.5, "2", None):
        with pytest.raises(TypeError):
            linattn.set_num_threads(bad)
    assert linattn.get_num_threads() == before


def test_isa():
    before = linattn.get_isa()
    for bad in ("mmx", f"{before}\0junk", "", "\ud800"):
        with pytest.raises(ValueError, match=rf"set_isa: name is .*{before}"):
            linattn.set_isa(bad)
    assert linattn.get_isa() == before


@pytest.mark.parametrize("operator", OPERATORS)
def test_result_too_large(operator):
    """More than any address space holds: the allocation fails at once."""
    x = np.broadcast_to(np.ones((1, 1), "f4"), (2**45, 8, 1))
    with pytest.raises(MemoryError):
        getattr(linattn, operator)(**dict.fromkeys(arguments(operator), x))


SCRATCH_TOO_LARGE = """
import linattn, numpy as np
one, beta = np.ones((1, 1), "{dtype}"), np.ones(1, "{dtype}")
out = np.full((1, 1), 7, "{dtype}")
x = np.broadcast_to(one, (1, 2**{bits}))
no = x[:0]  # of which there is nothing to compute, and no need of scratch
for f, *operands in (
    (linattn.causal, x, x, one),
    (linattn.noncausal, x, x, one),
    (linattn.delta, x, x, one, beta),
    (linattn.delta, x, x, one, one),
    (linattn.softmax_attention, x, x, one),
    (linattn.linformer, x, x, one, one, one),
    (linattn.causal_backward, no, no, no, no),
    (linattn.noncausal_backward, no, no, no, no),
    (linattn.delta_backward, no, no, no, beta[:0], no),
    (linattn.delta_backward, no, no, no, no, no),
):
    try:
        if len(operands[0]) == 0:
            assert all(x.size == 0 for x in f(*operands))
        else:
            f(*operands, out=out)
    except MemoryError:
        print("MemoryError")
    assert (out == 7).all()
"""


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("bits", [48, *slow(57), 59])
def test_scratch_too_large(interpreter, bits, dtype):
    """The kernel's own memory: MemoryError too, and sizes that overflow are not allocated small."""
    stdout, _ = interpreter(SCRATCH_TOO_LARGE.format(bits=bits, dtype=dtype))
    assert stdout.split() == ["MemoryError"] * 6


SCRATCH_OF_ALL = """
import linattn, numpy as np
linattn._linattn.force_stages(4)
linattn.set_num_threads({threads})
x = np.broadcast_to(np.ones((1, 1, 1), "f4"), ({heads}, {n}, 2**{bits}))
out = np.full(({heads}, {n}, {m}), 7, "f4")
try:
    linattn.causal(x, x, np.ones_like(out), out=out)
except MemoryError:
    print("MemoryError")
assert (out == 7).all()
"""


@pytest.mark.parametrize(
    ("threads", "heads", "n", "m", "bits"),
    [
        (1, 4, 1, 1, 53),
        *crossed(lambda *x: x[-1] == 53, [4], [4], [1], [1], range(50, 56)),
        *crossed(lambda *x: x[-1] == 49, [1024], [1], [512], [2**13], [48, 49, 51]),
    ],
)
def test_scratch_of_all_threads_too_large(interpreter, threads, heads, n, m, bits):
    """That of one may fit into an address space, that of all does not; nor do stages' records."""
    script = SCRATCH_OF_ALL.format(threads=threads, heads=heads, n=n, m=m, bits=bits)
    assert interpreter(script)[0].strip() == "MemoryError"


def test_operands_that_are_none():
    """Named, where the operand is not one that may be left out."""
    for call in every_call(5, 4, 4):
        if call.f is not getattr(linattn, call.name, None):  # a map or a gufunc
            continue
        names = [*signature(call.f).parameters]
        for i, x in enumerate(call.operands):
            if isinstance(x, np.ndarray):
                bad = [*call.operands[:i], None, *call.operands[i + 1 :]]
                with pytest.raises(TypeError, match=rf"^\w+: {names[i]} is (None|a NoneType)"):
                    call.f(*bad, **call.options)


RAGGED = [[1, 2], [3]]


def test_ragged_integers():
    x = np.ones((3, 2, 2))
    z = linattn.State(np.ones((3, 2, 2)), np.ones((3, 2)))
    mask = [[True], [True, False]]
    for name, call in (
        ("cu_seqlens", lambda: linattn.initial_state(x, x, x, cu_seqlens=RAGGED)),
        ("cu_seqlens", lambda: linattn.causal(
            x, x, x, cu_seqlens=RAGGED, initial_state=z, state_indices=[0])),
        ("state_at", lambda: linattn.causal(x, x, x, state_at=RAGGED, return_state=True)),
        ("state_indices", lambda: linattn.causal(x, x, x, state_indices=RAGGED, initial_state=z)),
        ("state_indices", lambda: linattn.step(x[0], x[0], x[0], z, state_indices=RAGGED)),
        ("mask", lambda: linattn.lengths_from_mask(mask)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"^\w+: {name} is not an array \("):
            call()


#: Integers that NumPy reads as objects or floats.
LARGE = [[2**65], [-(2**65)], [0, 2**63], [-1, 2**63], [0, 10**5000]]


@pytest.mark.parametrize("large", LARGE, ids=range(len(LARGE)))
def test_large_integers(large):
    """They are out of range, and no other type."""
    x, y = np.ones((len(large), 3, 4)), np.ones((3, 4))
    pool = linattn.State(np.ones((5, 4, 4)), np.ones((5, 4)))
    for message, call in (
        ("key_lengths has values from", lambda: linattn.causal(x, x, x, key_lengths=large)),
        ("key_lengths has values from", lambda: linattn.causal(x, x, x, key_lengths=large[-1])),
        ("cu_seqlens (begins|ends) with", lambda: linattn.causal(y, y, y, cu_seqlens=large)),
        ("state_at has values from", lambda: linattn.causal(
            y, y, y, state_at=large, return_state=True)),
        ("state_indices has values from", lambda: linattn.causal(
            x, x, x, state_indices=large, initial_state=pool)),
        ("state_indices has values from", lambda: linattn.step(
            x[:, 0], x[:, 0], x[:, 0], pool, state_indices=large)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"^\w+: {message} .*; expected"):
            call()


def test_empty_lists_of_integers():
    """They have no dtype of their own; arrays have one."""
    for lead, empty in (((0,), []), ((2, 0), [[], []]), ((2, 0), ((), ())), ((0, 2), [])):
        x = np.ones((*lead, 3, 4))
        if np.shape(empty) == lead:
            assert linattn.causal(x, x, x, key_lengths=empty).shape == x.shape
            continue
        with pytest.raises(ValueError, match=r"^causal: key_lengths has shape \(0,\); expected"):
            linattn.causal(x, x, x, key_lengths=empty)
    with pytest.raises(TypeError, match=r"^causal: key_lengths has dtype float64; expected int"):
        linattn.causal(x, x, x, key_lengths=np.empty((0, 2)))
