"""linattn.h: a status for any mistake in a call, before anything is written; the file itself."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import c_interface
import numpy as np
import pytest
from c_interface import API, MAX_NDIM, STATUS, Array, Operand, array, call, describe, make, status

import linattn

HUGE = 2 ** (8 * np.dtype(np.intp).itemsize - 2)

#: What is changed in the operands of causal_state_elu of float32, and the status.
PLACES = {x[0]: i for i, x in enumerate(describe("causal_state_elu"))}
NULL = ctypes.POINTER(ctypes.c_ssize_t)()


def change(name, **fields):
    def apply(operands):
        for field, value in fields.items():
            if isinstance(value, dict):  # items of shape or strides
                items = [getattr(operands[PLACES[name]], field)[i] for i in range(4)]
                for i, item in value.items():
                    items[i] = item
                value = c_interface.integers(items)
            setattr(operands[PLACES[name]], field, value)

    return apply


WRONG = {
    "no first operand": (change("q", dtype=0), "MISSING"),
    "no input": (change("v", dtype=0), "MISSING"),
    "no output": (change("o", dtype=0), "MISSING"),
    "an unknown dtype": (change("q", dtype=99), "BAD_DTYPE"),
    "a negative dtype": (change("q", dtype=-1), "BAD_DTYPE"),
    "indices first": (change("q", dtype=7), "BAD_DTYPE"),
    "a number first": (change("q", dtype=8), "BAD_DTYPE"),
    "complex": (change("q", dtype=5), "BAD_DTYPE"),
    "two dtypes": (change("k", dtype=4), "BAD_DTYPE"),
    "16 bits beside 32": (change("v", dtype=1), "BAD_DTYPE"),
    "a number for an array": (change("k", dtype=8), "BAD_DTYPE"),
    "a number for an output": (change("o", dtype=8), "BAD_DTYPE"),
    "a wide number": (change("scale", dtype=4), "BAD_DTYPE"),
    "indices of another dtype": (change("begin", dtype=3), "BAD_DTYPE"),
    "no data": (change("q", data=None), "BAD_POINTER"),
    "no data for an output": (change("s", data=None), "BAD_POINTER"),
    "an array past all memory": (change("q", data=2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 64),
                                 "BAD_POINTER"),
    "a number without data": (change("scale", dtype=3, data=None), "BAD_POINTER"),
    "few axes": (change("q", ndim=1), "BAD_SHAPE"),
    "no axes": (change("q", ndim=0), "BAD_SHAPE"),
    "a negative number of axes": (change("q", ndim=-1), "BAD_SHAPE"),
    "many axes": (change("q", ndim=MAX_NDIM + 1), "BAD_SHAPE"),
    "no shape": (change("q", shape=NULL), "BAD_SHAPE"),
    "an output of fewer axes": (change("o", ndim=3), "BAD_SHAPE"),
    "a negative size": (change("q", shape={2: -1}), "BAD_SHAPE"),
    "another size": (change("q", shape={2: 3}), "BAD_SHAPE"),
    "another width": (change("q", shape={3: 3}), "BAD_SHAPE"),
    "leading axes that do not broadcast": (change("k", shape={0: 1, 1: 2}), "BAD_SHAPE"),
    "an output to be broadcast": (change("o", shape={0: 1}), "BAD_SHAPE"),
    "more bytes than addresses": (change("q", shape={0: HUGE, 1: HUGE}), "BAD_SHAPE"),
    "more bytes than addresses in one axis": (change("q", shape={0: HUGE}), "BAD_SHAPE"),
    "a long stride": (change("q", strides={0: HUGE, 1: HUGE}), "BAD_POINTER"),
    "a long negative stride": (change("q", strides={0: -2 * HUGE}), "BAD_POINTER"),
    "strides too long for both ways": (
        change("q", strides={0: 2 * HUGE - 256, 1: -256}),
        "BAD_POINTER",
    ),
    "a stride to before all memory": (change("q", strides={0: -HUGE, 1: 0}), "BAD_POINTER"),
    "an unaligned stride": (change("q", strides={1: 6}), "BAD_ALIGNMENT"),
    "an output on itself": (change("o", strides={2: 0}), "OVERLAP"),
    "an output across itself": (change("o", strides={2: 4}), "OVERLAP"),
}  # fmt: skip


@pytest.fixture
def operands():
    """Operands of causal_state_elu, with two sequences, and its outputs."""
    inputs, outputs = make("causal_state_elu", np.random.default_rng(7))
    given = [array(x) for x in inputs + outputs]
    yield given, outputs
    assert all(np.isnan(x).all() for x in outputs)


@pytest.mark.parametrize("case", WRONG)
def test_mistakes(case, operands):
    """A status, with a text; nothing is written."""
    given, _ = operands
    apply, wanted = WRONG[case]
    apply(given)
    assert status("causal_state_elu", given) == wanted


def test_unaligned_data(operands):
    given, _ = operands
    for i, x in enumerate(given):
        if x.data is not None:
            x.data += 2
            assert status("causal_state_elu", given) == "BAD_ALIGNMENT", i
            x.data -= 2


def test_sequences_that_share_tokens(operands):
    given, _ = operands
    begin = np.zeros(2, np.intp)
    given[PLACES["begin"]] = array(begin)
    assert status("causal_state_elu", given) == "SHARED_TOKENS"


def test_outputs_on_each_other(operands):
    given, _ = operands
    given[PLACES["z"]].data = given[PLACES["s"]].data
    assert status("causal_state_elu", given) == "OVERLAP"


def test_wrong_calls(operands):
    given, _ = operands
    op, items = API.find(b"causal_state_elu"), (Array * len(given))(*given)

    def text(*args):
        return STATUS[API.call(*args)]

    for count in (-1, 0, len(given) - 1, len(given) + 1, 2**31 - 1):
        assert text(op, items, count, 0) == "BAD_COUNT"
    assert text(op, None, len(given), 0) == "BAD_COUNT"
    for threads in (-1, 1025, 2**31 - 1):
        assert text(op, items, len(given), threads) == "BAD_THREADS"
    for wrong in (-1, API.count(), 2**31 - 1, -(2**31)):
        assert text(wrong, items, len(given), 0) == "BAD_OPERATOR"
        assert API.name(wrong) is None
        assert API.operands(wrong) == API.place(wrong, b"q") == -1
        assert API.dtype(wrong, 0, 3) == 0
        assert API.operand(wrong, 0, Operand()) == API.operand(op, wrong, Operand()) == 2
        assert API.dtype(op, wrong, 3) == API.dtype(op, 0, wrong) == 0
    assert API.operand(op, 0, None) == 2
    for name in (b"", b"causal", b"_step_elu", b"relu", b"softmax", None):
        assert API.find(name) == -1
    assert API.place(op, b"beta") == API.place(op, None) == -1


def test_texts():
    texts = [API.status_text(i) for i in range(len(STATUS))]
    assert len({*texts}) == len(STATUS)
    for wrong in (-1, len(STATUS), 2**31 - 1):
        assert API.status_text(wrong) == b"unknown status"


def test_empty_arrays_need_no_memory():
    inputs, outputs = make("causal_elu", np.random.default_rng(8), n=0)
    given = [array(x) for x in inputs + outputs]
    for x in given:
        x.data, x.strides = (None, NULL) if x.dtype != 8 else (x.data, x.strides)
    assert status("causal_elu", given) == "OK"


def test_out_of_memory():
    """More than any machine has, by broadcasting."""
    one, o = np.float32(1), np.zeros((1, 1), np.float32)
    q = np.broadcast_to(one, (1, HUGE // 8))
    assert call("causal_elu", q, q, o, 1.0, 0.0, o.copy()) == "NO_MEMORY"


def test_get_include():
    folder = Path(linattn.get_include())
    assert folder.is_absolute() and [x.name for x in folder.iterdir()] == ["linattn.h"]


def asserts():
    """That linattn.h and tests/support/c_interface.py say the same, in C."""
    for ours, theirs in (("Api", "api"), ("Array", "array"), ("Operand", "operand")):
        struct, kind = getattr(c_interface, ours), f"linattn_{theirs}"
        yield f"sizeof({kind}) == {ctypes.sizeof(struct)}"
        for field, *_ in struct._fields_:
            yield f"offsetof({kind}, {field}) == {getattr(struct, field).offset}"
    numbers = {f"LINATTN_{np.dtype(x).name.upper()}": y for x, y in c_interface.DTYPES.items()}
    numbers["LINATTN_INDEX"] = numbers.pop(f"LINATTN_{np.dtype(np.intp).name.upper()}")
    numbers |= {f"LINATTN_{name}": i for i, name in enumerate(STATUS)}
    numbers |= {"LINATTN_LEFT_OUT": 0, "LINATTN_NUMBER": 8, "LINATTN_MAX_NDIM": MAX_NDIM}
    for name, number in numbers.items():
        yield f"{name} == {number}"


@pytest.mark.parametrize("language", ["c99", "c11", "c++11", "c++20"])
def test_header(language, tmp_path):
    """It compiles without a warning, alone, and has the values that programs were compiled for."""
    compiler = shutil.which("c++" if "+" in language else "cc")
    if compiler is None:
        pytest.skip(f"no compiler of {language}")
    program = tmp_path / ("header.cpp" if "+" in language else "header.c")
    lines = [f"typedef char fact_{i}[({x}) ? 1 : -1];" for i, x in enumerate(asserts())]
    program.write_text("\n".join(["#include <linattn.h>", *lines, ""]))
    subprocess.run(
        [compiler, f"-std={language}", "-pedantic", "-Wall", "-Wextra", "-Werror",
         "-Wno-unused-local-typedefs", "-fsyntax-only", "-I", linattn.get_include(), program],
        check=True,
    )  # fmt: skip


def test_statuses_are_those_of_the_header():
    text = (Path(linattn.get_include()) / "linattn.h").read_text(encoding="utf-8")
    (block,) = re.findall(r"enum \{\s+LINATTN_OK = 0,.*?\}", text, flags=re.S)
    found = re.findall(r"LINATTN_(\w+) = (\d+)", block)
    assert [(name, int(i)) for name, i in found] == [(x, i) for i, x in enumerate(STATUS)]
    assert len(text.splitlines()) < 140
