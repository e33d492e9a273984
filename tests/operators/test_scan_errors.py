"""Bad input of scans, mlstm and wkv, in all their forms; no tokens, no states; NaN and inf."""

import numpy as np
import pytest
from draws_scans import ROWS
from states import flat

import linattn
from linattn import State

SIZES = {"n": 5, "d": 4, "m": 3, "r": 2}
NAMES = [name + end for name in ROWS for end in ("", "_backward", "_step")]
#: Those that take complex numbers, and whose axes all broadcast.
SCAN = "linear_scan"


def row_of(name):
    return next((x, ROWS[x]) for x in ROWS if name.startswith(x))


def good(name, dtype="f8", **sizes):
    """Operands by name, with a gradient or a state."""
    rng, sizes = np.random.default_rng(0), SIZES | sizes
    _, row = row_of(name)
    if name.endswith("_step"):
        sizes.pop("n")
    dims = row.operands | ({"grad_out": "nm"} if name.endswith("_backward") else {})
    arrays = {
        x: rng.uniform(0.1, 0.9, [sizes[y] for y in letters if y in sizes]).astype(dtype)
        for x, letters in dims.items()
    }
    if name.endswith("_step"):
        fields = [rng.random([sizes[y] for y in letters]).astype(dtype) for letters in row.state]
        arrays["state"] = State(*map(np.asarray, fields))
    return arrays


def refuse(name, error, words, **changed):
    """The call fails, its message has the words, and what would be written to is as before."""
    given = good(name) | changed
    out = np.full((SIZES["n"], SIZES["m"]), 7.0)
    if not name.endswith(("_backward", "_step")):
        given.setdefault("out", out)
    state = given.get("state")
    fields = [x for x in (state if isinstance(state, State) else ()) if isinstance(x, np.ndarray)]
    before = [x.copy() for x in fields]
    if name.endswith("_step"):
        given["in_place"] = True
    with pytest.raises(error) as caught:
        getattr(linattn, name)(**given)
    for word in (f"{name}: ", *words):
        assert word in str(caught.value), f"{word!r} is not in {str(caught.value)!r}"
    assert (out == 7).all()
    for x, y in zip(fields, before, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", NAMES)
def test_shapes(name):
    """An axis of an operand that is too long, and leading axes that do not broadcast."""
    for operand, x in good(name).items():
        if operand == "state":
            continue
        for axis in range(x.ndim):
            if (name, operand, axis) == ("mlstm", "v", 1):  # any width
                continue
            wrong = np.concatenate([x, x], axis)
            first = operand == next(iter(row_of(name)[1].operands))
            words = [f"{operand} has shape {wrong.shape}"]
            if first or row_of(name)[0] == "mlstm":  # a later one does not fit
                words = [" has shape "]
            if row_of(name)[0] == SCAN and operand == "x":
                words = [f"which does not broadcast with x {wrong.shape}"]
            refuse(name, ValueError, words, **{operand: wrong})
    first, second = list(good(name))[:2]
    arrays = good(name)
    lead = {first: np.stack([arrays[first]] * 2), second: np.stack([arrays[second]] * 3)}
    refuse(name, ValueError, ["not broadcast"], **lead)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda x: x.astype(complex), "complex128"),
        (lambda x: x.astype(object), "object"),
        (lambda x: x.astype("U3"), "U3"),
        (lambda x: np.ma.masked_array(x, x > 0.5), "masked array"),
    ],
)
def test_types(name, make, word):
    for operand, x in good(name).items():
        if operand == "state" or (row_of(name)[0] == SCAN and word == "complex128"):
            continue
        refuse(name, TypeError, [f"{operand} ", word], **{operand: make(x)})


@pytest.mark.parametrize("name", NAMES)
def test_options(name):
    base = row_of(name)[0]
    for option in row_of(name)[1].flags:
        if option == "reverse" and name.endswith("_step"):
            continue
        for bad in (1, 0.0, None, "yes"):
            refuse(name, TypeError, [f"{option} is {bad!r}"], **{option: bad})
    for option in ("eps", "scale") if base == "mlstm" else ():
        refuse(name, TypeError, [f"{option} is 'x'"], **{option: "x"})
        refuse(name, ValueError, [f"{option} is nan"], **{option: np.nan})
    if base == "mlstm":
        refuse(name, ValueError, ["eps is -1.0", "number >= 0"], eps=-1.0)
        refuse(name, TypeError, ["normalize is 1"], normalize=1)
    if name.endswith("_step"):
        return
    refuse(name, ValueError, ["cu_seqlens ends with 4"], cu_seqlens=[0, 4])
    refuse(name, TypeError, ["cu_seqlens has dtype float64"], cu_seqlens=[0.0, 5.0])
    if base != SCAN:
        refuse(name, ValueError, ["key_lengths has values", "0 to 5"], key_lengths=6)
        refuse(name, TypeError, ["key_lengths has dtype float64"], key_lengths=2.0)


@pytest.mark.parametrize("name", NAMES)
def test_states(name):
    """A field of a wrong length, dtype or type, and no state at all."""
    fields = good(f"{row_of(name)[0]}_step")["state"]
    where = ["state"] if name.endswith("_step") else ["initial_state"]
    where += ["grad_state"] if name.endswith("_backward") else []
    for key in where:
        for field, x in zip(State._fields, fields, strict=True):
            if x is None:
                continue
            for wrong in (np.stack([x] * 2, -1), x.astype("f4"), x.tolist()):
                state = fields._replace(**{field: wrong})
                error = ValueError if getattr(wrong, "dtype", "") == "f8" else TypeError
                refuse(name, error, [f"{key}.{field} "], **{key: state})
        refuse(name, TypeError, [f"{key} is a ndarray"], **{key: fields.s})
    if name.endswith("_step"):
        refuse(name, TypeError, ["state is None", "linattn.initial_state"], state=None)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("letter", ["n", "m", "d", "r"])
def test_nothing_to_compute(name, letter):
    """No tokens, channels or states: results of those shapes, and a state that stays."""
    base, row = row_of(name)
    letters = "".join(row.operands.values())
    if letter not in letters or (letter == "n" and name.endswith("_step")):
        return
    arrays = good(name, **{letter: 0})
    result = getattr(linattn, name)(**arrays)
    shapes = [x.shape for x in flat([result])]
    if name.endswith("_backward"):
        assert shapes == [arrays[x].shape for x in row.operands]
    else:
        tokens = () if name.endswith("_step") else ((SIZES | {letter: 0})["n"],)
        assert shapes[0] == (*tokens, (SIZES | {letter: 0})["m"])
    assert all(not x.size or np.isfinite(x).all() for x in flat([result]))
    if letter == "n":
        state = good(f"{base}_step")["state"]
        if not name.endswith("_backward"):
            _, end = getattr(linattn, name)(**arrays, initial_state=state, return_state=True)
            for x, y in zip(flat([end]), flat([state]), strict=True):
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_what_is_not_finite_stays_behind_its_token(name, bad, dtype):
    """In every operand of tokens, at both ends of blocks."""
    arrays = good(name, dtype, n=70)
    f = getattr(linattn, name)
    expected = f(**arrays)
    for operand, letters in row_of(name)[1].operands.items():
        if letters[0] != "n":
            continue
        for t in (0, 15, 16, 33, 69):
            x = arrays[operand].copy()
            x[t] = bad
            o = f(**arrays | {operand: x})
            np.testing.assert_array_equal(o[:t], expected[:t])


@pytest.mark.parametrize("bad", [np.nan, np.inf, complex(0, np.nan)])
@pytest.mark.parametrize("reverse", [False, True])
def test_what_is_not_finite_in_complex_scans(bad, reverse):
    arrays = {x: y * np.exp(2j) for x, y in good(SCAN, n=70).items()}
    expected = linattn.linear_scan(**arrays, reverse=reverse)
    for operand in arrays:
        x = arrays[operand].copy()
        x[33] = bad
        h = linattn.linear_scan(**arrays | {operand: x}, reverse=reverse)
        kept = slice(34, None) if reverse else slice(33)
        np.testing.assert_array_equal(h[kept], expected[kept])


def test_complex_numbers_of_no_tokens_and_no_channels():
    for shape in ((0, 3), (5, 0), (2, 0, 3)):
        x = np.zeros(shape, complex)
        assert linattn.linear_scan(x, x).shape == shape
        assert [y.shape for y in linattn.linear_scan_backward(x, x, x)] == [shape, shape]
