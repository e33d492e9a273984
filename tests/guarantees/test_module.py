"""The extension: wrong arguments of its functions, its symbols, what it creates on first use."""

import ctypes
import re

import numpy as np
import pytest

from linattn import _linattn

NUMBERS = (
    "set_amx",
    "set_num_threads",
    "hold_threads",
    "poison_scratch",
    "force_stages",
    "delay_workers",
)


def test_overlaps_itself():
    """As a sort of all addresses tells."""
    rng, memory = np.random.default_rng(0), np.zeros(1000)
    found = set()
    for dtype in 800 * ["f2", "f4", "f8"]:
        shape, strides = rng.integers(rng.integers(2), 5, 3), rng.integers(-30, 31, 3)
        x = np.lib.stride_tricks.as_strided(memory[500:].view(dtype), shape, strides)
        places = np.einsum("a,ai->i", strides, np.indices(shape).reshape(3, -1))
        meet = np.diff(np.sort(places)).min(initial=99) < x.itemsize
        assert _linattn.overlaps_itself(x) == meet, (shape, strides, dtype)
        found.add(bool(meet))
    assert found == {True, False}
    with pytest.raises(TypeError, match="expected an array"):
        _linattn.overlaps_itself([1])


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_is_wanted(name):
    for wrong in ("4", None, 2.5):
        with pytest.raises(TypeError):
            getattr(_linattn, name)(wrong)
    with pytest.raises(OverflowError):
        getattr(_linattn, name)(2**70)


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("set_num_threads", -1, "n is -1; expected 1 to 1024 threads"),
        ("set_num_threads", 0, "n is 0; expected 1 to 1024 threads"),
        ("set_num_threads", 1025, "n is 1025; expected 1 to 1024 threads"),
        ("poison_scratch", -1, "byte is -1; expected 0, or 127 to 255"),
        ("delay_workers", -1, "ms is -1; expected 0 to 1000"),
        ("poison_scratch", 1, "byte is 1; expected 0, or 127 to 255"),
        ("poison_scratch", 256, "byte is 256; expected 0, or 127 to 255"),
    ],
)
def test_a_number_out_of_range(name, wrong, expected):
    with pytest.raises(ValueError, match=re.escape(expected)):
        getattr(_linattn, name)(wrong)


@pytest.mark.parametrize("name", ["set_isa", "make_ufunc"])
def test_a_name_is_wanted(name):
    for wrong in (3, None, b"x86-64-v3"):
        with pytest.raises(TypeError):
            getattr(_linattn, name)(wrong)


def test_set_isa_names_those_that_there_are():
    before = _linattn.get_isa()
    with pytest.raises(ValueError) as error:
        _linattn.set_isa("mmx")
    assert "'mmx'" in str(error.value) and str(_linattn.available_isas()) in str(error.value)
    assert _linattn.get_isa() == before


@pytest.mark.parametrize(("n", "held"), [(-1, 2), (0, 2), (3, 3), (5000, 1024)])
def test_hold_threads(threads, n, held):
    """For this thread, as many as there can be; none: as set."""
    threads(2)
    try:
        _linattn.hold_threads(n)
        assert _linattn.get_num_threads() == held
    finally:
        _linattn.hold_threads(0)


def test_force_stages():
    """A number that is too small ends it; it tells what was before."""
    assert _linattn.force_stages(10**6) == 0
    assert _linattn.force_stages(-1) == 10**6
    assert _linattn.force_stages(0) == 0


@pytest.mark.parametrize(("n", "got"), [(-5, 1), (0, 1), (3, 3), (10**6, 1024)])
def test_symbols(threads, n, got):
    """What threadpoolctl and the like call takes any number."""
    threads(2)
    library = ctypes.CDLL(_linattn.__file__)
    library.linattn_set_num_threads(n)
    assert library.linattn_get_num_threads() == _linattn.get_num_threads() == got


def test_too_many_releases():
    """A release that nobody held is none."""
    before = _linattn.get_isa()
    _linattn.release_isa()
    _linattn.hold_isa()
    _linattn.hold_isa()
    for _ in range(3):
        _linattn.release_isa()
    assert _linattn.get_isa() == before


def test_an_operator_is_imported_by_its_first_use(interpreter):
    script = """
import sys, linattn
module = "linattn.operators.attention"
assert module not in sys.modules and "linattn.ufuncs" not in sys.modules
assert {*linattn.__all__} <= {*dir(linattn)} and module not in sys.modules
assert linattn.causal is linattn.causal is sys.modules[module].causal
assert "linattn.operators.delta" not in sys.modules
assert all(hasattr(linattn, x) for x in linattn.__all__) and not hasattr(linattn, "casual")
print("late")
"""
    assert interpreter(script)[0].strip() == "late"


def test_a_gufunc_that_is_asked_for_while_it_is_made(interpreter):
    """By what the garbage collector calls, say: there is one all the same."""
    script = """
import gc
from linattn._linattn import make_ufunc, ufunc_names
inner = {}
def again(phase, info):
    if phase == "start" and name not in inner:
        inner[name] = None
        inner[name] = make_ufunc(name)
gc.callbacks.append(again)
used_up = [(i,) * n for n in range(1, 20) for i in range(2100)], [[] for _ in range(200)]
for i, name in enumerate(ufunc_names[:40]):
    inner[name] = None
    gc.set_threshold(0)
    gc.collect()
    del inner[name]
    gc.set_threshold(1 + i % 10)
    made = make_ufunc(name)
    gc.set_threshold(0)
    assert made is make_ufunc(name)
    assert name not in inner or inner[name] is made, name
print("one")
"""
    assert interpreter(script)[0].strip() == "one"


WITHOUT_BFLOAT16 = """
import sys
sys.modules["ml_dtypes"] = None
import numpy as np, linattn
before = linattn.ufuncs.causal_elu
del sys.modules["ml_dtypes"]
q = np.random.default_rng(0).random((5, 3), "f4")
assert linattn._linattn.fast_call(before, [[1.0]], q, q, 1.0, 1e-6, None) is NotImplemented
assert before(q.astype(int), q, q, 1.0, 1e-6).dtype == "f8"
"""


def test_bfloat16_made_known_late(interpreter):
    """Gufuncs that there are by then take it as well, and a second time changes nothing."""
    pytest.importorskip("ml_dtypes")
    script = f"""{WITHOUT_BFLOAT16}
import ml_dtypes
q = q.astype(ml_dtypes.bfloat16)
for _ in range(2):
    linattn._linattn.add_bfloat16(q.dtype)
    for f in (before, linattn.ufuncs.noncausal_elu):
        o = f(q, q, q, 1.0, 1e-6)
        assert o.dtype == q.dtype and np.isfinite(o.astype("f4")).all()
print("known")
"""
    assert interpreter(script)[0].strip() == "known"


def test_bfloat16_has_to_be_a_new_type(interpreter):
    """No dtype, and one that there is a loop for already."""
    with pytest.raises(TypeError):
        _linattn.add_bfloat16("no such type")
    script = f"""{WITHOUT_BFLOAT16}
wrong = 0
for f in (lambda: linattn._linattn.add_bfloat16(q.dtype), lambda: linattn.ufuncs.noncausal_elu):
    try:
        f()
    except TypeError:
        wrong += 1
print(wrong)
"""
    assert interpreter(script)[0].strip() == "2"


def test_numbers_of_python_follow_the_arrays():
    """As NumPy has it; by themselves they are float64."""
    gate = _linattn.make_ufunc("gate")
    for dtype in ("f2", "f4", "f8"):
        x = np.full(3, 2, dtype)
        for number in (2, 2.0):
            o = gate(x, number)
            assert o.dtype == gate(number, x).dtype == dtype
            np.testing.assert_array_equal(o, gate(x, x))
    for one in (2, 2.0, np.int8(2), np.uint64(2)):
        for other in (2, 2.0, np.arange(3)):
            assert gate(one, other).dtype == gate(other, one).dtype == "f8"
    assert gate(np.float32(2), 2, dtype="f8").dtype == "f8"
    with pytest.raises(TypeError, match="gate: no loop for these dtypes"):
        gate(1.0, 2.0, dtype="i4")


def test_no_loop_for_python_objects():
    q = np.ones((3, 2), "f4")
    for wrong in (1j, "a", object(), np.datetime64(1, "s"), q.astype(complex)):
        with pytest.raises(TypeError, match="causal_elu: no loop for these dtypes"):
            _linattn.make_ufunc("causal_elu")(q, wrong, q, 1.0, 1e-6)


def row(name):
    """What the table says of an operator, with each operand's description by its name."""
    table = dict(_linattn.operators[name])
    return table | {key: {x[0]: x[1:] for x in table[key]} for key in ("inputs", "outputs")}


def test_operators_say_what_may_be_left_out():
    gated = row("gated")
    assert [*gated["inputs"]] == ["q", "k", "v", "g", "bonus"]
    assert gated["inputs"]["v"] == ("nm", "", False, False, "")
    assert gated["inputs"]["g"] == ("n", "d", False, True, "_key_channels")  # held as states are
    assert gated["inputs"]["bonus"] == ("d", "", True, True, "_bonus")
    assert gated["outputs"] == {"o": ("nm", "", False, False, "")}
    assert gated["state"] == (("s", "dm"),)
    assert gated["numbers"] == ("scale",)
    assert gated["maps"] and gated["key_lengths"] and gated["public"]
    assert not gated["normalizer"] and not gated["elementwise"]
    assert gated["summary"] is gated["gradient_of"] is gated["step_of"] is None
    assert _linattn.operators["gated_delta"]["inputs"][4:] == (
        ("beta", "n", "m", False, False, "_channels"),
        ("erase", "nd", "", True, False, "_erase"),
    )  # fmt: skip


def test_gradients_are_as_their_operands():
    for name in ("causal", "noncausal", "delta", "gated", "gated_delta", "dplr", "causal_conv1d"):
        forward, backward = row(name), row(f"{name}_backward")
        assert backward["gradient_of"] == name
        assert backward["inputs"].pop("grad_out") == next(iter(forward["outputs"].values()))
        assert backward["inputs"] == forward["inputs"]
        assert [f"d{x}" for x in forward["inputs"]] == [*backward["outputs"]]
        for x, (*dims, _, _) in forward["inputs"].items():
            assert [*backward["outputs"][f"d{x}"][:3]] == dims
        for key in ("state", "numbers", "maps", "normalizer", "key_lengths", "public"):
            assert backward[key] == forward[key]


def test_a_step_is_a_recurrence_without_tokens():
    steps = {x: row(x)["step_of"] for x in _linattn.operators if row(x)["step_of"] is not None}
    assert steps.pop("step") == "causal"
    assert steps == {f"{x}_step": x for x in steps.values()}
    for name, recurrence in {"step": "causal", **steps}.items():
        one, all_tokens = row(name), row(recurrence)
        assert one["state"] == all_tokens["state"] != ()
        for key in ("inputs", "outputs"):
            without = {x: (dims.replace("n", ""), *y) for x, (dims, *y) in all_tokens[key].items()}
            assert one[key] == without
        assert not one["key_lengths"]


def test_operators_of_other_kinds():
    noncausal, conv, relu = row("noncausal"), row("causal_conv1d"), row("relu_backward")
    assert noncausal["inputs"]["k"][0] == "sd" and noncausal["numbers"] == ("scale", "eps")
    assert noncausal["state"] == () and noncausal["normalizer"] and noncausal["key_lengths"]
    assert row("causal")["state"] == (("s", "dm"), ("z", "d"))
    assert conv["inputs"]["weight"] == ("mf", "", False, False, "")
    assert conv["state"] == (("s", "md"),) and conv["numbers"] == ("silu",)
    assert not conv["maps"] and not conv["key_lengths"] and conv["public"]
    assert relu["elementwise"] and not relu["public"] and relu["summary"] == "grad_out phi'(x)"
    assert relu["gradient_of"] == "relu"


def test_every_gufunc_is_of_an_operator():
    """Those that are public are of public operators, and the others of the others."""
    kinds = {True: _linattn.ufunc_names, False: _linattn.internal_ufunc_names}
    for name, operator in _linattn.operators.items():
        stem = (operator["gradient_of"] or name).removesuffix("_step")
        assert any(x.removeprefix("_").startswith(stem) for x in kinds[operator["public"]])


def test_maps():
    assert {name for name, row in _linattn.maps.items() if row["signed"]} == {"identity", "l2norm"}
    assert [name for name, row in _linattn.maps.items() if row["rows"]] == ["l2norm"]


def test_nothing_changes_the_tables():
    for table in (_linattn.operators, _linattn.maps):
        for wrong in (table, next(iter(table.values()))):
            with pytest.raises(TypeError, match="does not support item assignment"):
                wrong["name"] = {}
