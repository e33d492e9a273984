"""What changes no bit of any operator's results, and what no operator writes to."""

from itertools import product

import numpy as np
import pytest
from layouts import LAYOUTS
from slow import each, grid, looped
from states import assert_same, flat
from table import ALL, ATTENTION, BLOCKS, CASES, FIRST, MORE, SHARED, apply, covering

from linattn import reference

EACH = each(ALL + BLOCKS + MORE)
COVERING = covering(ALL + BLOCKS + MORE)
HELD = each(CASES + MORE)
POISON = (np.nan, np.inf, -np.inf)
#: Those that an output or a state may have.
WRITTEN = [x for x in LAYOUTS if x not in ("byte_swapped", "read_only")]
MATRICES = {"fortran", "features_first", "every_second_row", "rows_backwards"}


def laid(x, layout):
    if (layout in MATRICES and x.ndim < 2) or (layout == "token_major" and x.ndim < 3):
        return x.copy()
    return LAYOUTS[layout](x)


@each([x for x in ATTENTION if x.letters["v"][-1] == "m"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_columns_of_wide_values(case, dtype):
    """Long chunks of wide values are copied; of a few columns, they are not."""
    operands = case.operands((), 140, d=200, m=290, dtype=dtype)
    some = slice(100, 137)
    few = {x: y[..., some] if case.letters.get(x, "m")[-1] == "m" else y
           for x, y in operands.items()}  # fmt: skip
    np.testing.assert_array_equal(case.call(operands)[..., some], case.call(few))
    grads, of_few = (case.backward(x) for x in (operands, few))
    np.testing.assert_array_equal(grads[2][..., some], of_few[2])


@grid(
    lambda case, dtype: case in (COVERING if dtype == "float32" else FIRST),
    case=ALL + BLOCKS + MORE,
    dtype=["float16", "float32", "float64"],
)
def test_layouts(case, dtype):
    """Of each operand alone, then of all of them and the states; none is written to."""
    operands = case.operands((2, 3), 20, d=6, m=5, dtype=dtype)
    expected, more = case.results(operands), {}
    if case.held and dtype != "float16":
        start = case.state((2, 3), dtype=dtype, d=6, m=5)
        more = {"initial_state": start, "grad_state": start}
    from_state = case.results(operands, **more)
    for layout in LAYOUTS:
        for name in operands:
            given = operands | {name: laid(operands[name], layout)}
            assert_same(case.results(given), expected, f"{layout} {name}")
        given = {x: laid(y, layout) for x, y in operands.items()}
        before = {x: y.tobytes() for x, y in given.items()}
        states = more
        if layout == "byte_swapped" and case.complex:
            continue  # states would have to be swapped as well
        if layout != "byte_swapped":
            states = {x: apply(lambda y, of=layout: laid(y, of), z) for x, z in more.items()}
        assert_same(case.results(given, **states), from_state, layout)
        assert {x: y.tobytes() for x, y in given.items()} == before, layout


@EACH
def test_zero_strides(case):
    """An expanded row, column or number, as autograd hands over for the gradient of a sum."""
    operands = case.operands((3,), 37, d=17, m=20, dtype="float32")
    for name, x in operands.items():
        one = slice(1)
        for part in (x[:1], x[(one,) * x.ndim], x[..., :1], x[:, :1] if x.ndim > 1 else x):
            given = np.broadcast_to(part, x.shape)
            expected = case.results(operands | {name: given.copy()})
            assert_same(case.results(operands | {name: given}), expected, name)


@grid(
    lambda case, sizes: case in (FIRST if sizes[0] == () else COVERING),
    case=ALL + BLOCKS + MORE,
    sizes=[
        ((), 700, 40, 70),
        ((), 60, 8, 300),
        ((), 300, 16, 400),
        ((), 40, 500, 33),
        ((3,), 300, 20, 33),
        ((13,), 9, 5, 6),
        ((64,), 20, 8, 8),
    ],
)
def test_threads(case, threads, sizes):
    lead, n, d, m = sizes
    operands = case.operands(lead, n, d=d, m=m, dtype="float32")
    views = {x: laid(y, "token_major") for x, y in operands.items()}
    packed = {"cu_seqlens": [0, n // 3, n // 3, n]}
    if case.held:
        state = case.state((*lead, 3), d=d, m=m, dtype="float32")
        packed |= {"initial_state": state, "grad_state": state}
    for options in ({}, packed) if case.held else ({},):
        threads(1)
        expected = case.results(operands, **options)
        for count, given in ((2, operands), (3, views), (8, operands)):
            threads(count)
            assert_same(case.results(given, **options), expected, f"{count} threads")


@EACH
@looped(dtype=["float32", "float64"])
def test_position_in_the_batch(case, dtype):
    """A head among others has the bits that it has alone."""
    operands = case.operands((2, 3), 37, d=6, m=5, dtype=dtype)
    results = case.results(operands)
    own = {x: y if x in SHARED else y[1, 2] for x, y in operands.items()}
    alone = case.results(own)
    for x, y in zip(results, alone, strict=True):
        if x.ndim == y.ndim + 2:
            np.testing.assert_array_equal(x[1, 2], y)


@EACH
def test_what_is_not_finite_stays_in_its_head(case):
    """Every operand of one head holds it; the results of the others have the same bits."""
    operands = case.operands((4,), 20)
    expected = case.results(operands)
    for name, value in product([x for x in operands if x not in SHARED], POISON):
        wild = operands[name].copy()
        wild[1] = value
        for x, y in zip(case.results(operands | {name: wild}), expected, strict=True):
            if x.shape[:1] == (4,):
                assert_same(x[[0, 2, 3]], y[[0, 2, 3]], f"{name} {value}")


CAUSAL = [x for x in ALL + MORE if x.held or x.options.get("causal")]


@each(CAUSAL)
@pytest.mark.parametrize(
    ("dtype", "d", "m", "gates"), [("float32", 4, 5, "resets"), ("float64", 72, 20, "weak")]
)
def test_later_tokens(case, dtype, d, m, gates):
    """Whatever they hold, the outputs before them have the same bits."""
    n, values = 70, (np.nan, np.inf, -np.inf, 1e30, -60, 5)
    operands = case.operands((), n, d=d, m=m, dtype=dtype, gates=gates)
    expected = case.call(operands)
    names = [name for name, letters in case.letters.items() if letters[0] in "ns"]
    for value, name, t in product(values, names, (0, 4, 15, 16, 33, 48, n - 1)):
        wild = operands[name].copy()
        wild[slice(n - t) if case.reverse else slice(t, None)] = value
        o = case.call(operands | {name: wild})
        kept = slice(n - t, None) if case.reverse else slice(t)
        assert_same(o[kept], expected[kept], f"{name} {t} {value}")


@HELD
@looped(value=[np.nan, np.inf])
def test_earlier_cotangents(case, value):
    """They change no bit of the gradients of later tokens; that of a state, none of a query's."""
    n = 70
    operands, start = case.operands((), n), case.state(())
    more = {"initial_state": start, "grad_state": start}
    expected = case.backward(operands, **more)
    for t in (0, 15, 16, 33, n - 2):
        wild = operands | {"grad_out": operands["grad_out"].copy()}
        wild["grad_out"][n - 1 - t if case.reverse else t] = value
        kept = slice(n - 1 - t) if case.reverse else slice(t + 1, None)
        for name, x, y in zip(case.letters, case.backward(wild, **more), expected, strict=False):
            if case.letters[name][0] == "n":
                assert_same(x[kept], y[kept], f"{name} {t}")
    wild = more | {"grad_state": apply(lambda x: np.full_like(x, value), start)}
    if "q" in case.letters:
        np.testing.assert_array_equal(case.backward(operands, **wild)[0], expected[0])


@grid(
    lambda case, value: case in (COVERING if np.isnan(value) else FIRST),
    case=CASES + MORE,
    value=[np.nan, np.inf, -np.inf],
)
def test_poison_stays(case, value):
    """Where it leaves the twin's output as it was, it changes no bit; a NaN is never lost."""
    operands = case.operands((), 70, d=5, m=17)
    clean, twin_clean = case.call(operands), case.call(operands, reference)
    for name, letters in case.letters.items():
        if letters[0] not in "ns":
            continue
        for t in (0, 4, 15, 16, 33, 69):
            bad = operands | {name: operands[name].copy()}
            bad[name][t] = value
            o, twin = case.call(bad), case.call(bad, reference)
            unmoved = twin == twin_clean
            token = name in ("q", "k", "v", "x", "B", "C", "z", "b", "beta", "erase")
            if not token or case.name == "wkv":  # it may say where chunks begin, and their scale
                unmoved[: t + 1] &= not case.reverse
                unmoved[t:] &= case.reverse
            np.testing.assert_array_equal(o[unmoved], clean[unmoved], err_msg=f"{name} {t}")
            if np.isnan(value):
                assert not np.isfinite(o[np.isnan(twin)]).any(), f"{name} {t}"


@EACH
def test_out_may_overlap_an_operand(case):
    """It may be one, lie a row before or after it, or be all that have its shape."""
    operands = case.operands((2,), 70, d=6, m=6)
    expected = case.call(operands)
    for name in case.letters:
        given = {x: y.copy() for x, y in operands.items()}
        if given[name].size < expected.size:
            continue
        out = given[name].reshape(-1)[: expected.size].reshape(expected.shape)
        assert case.call(given, out=out) is out
        np.testing.assert_array_equal(out, expected, err_msg=name)
    alike = [x for x in case.letters if operands[x].shape == expected.shape]
    for name, shift in product(alike, (1, -1)):
        memory = np.zeros((2, 72, *expected.shape[2:]), expected.dtype)
        memory[:, 1:71] = operands[name]
        out = memory[:, 1 + shift : 71 + shift]
        case.call(operands | {name: memory[:, 1:71]}, out=out)
        np.testing.assert_array_equal(out, expected, err_msg=f"{name} {shift}")
    if alike:
        shared = operands[alike[0]]
        expected = case.call(operands | dict.fromkeys(alike, shared))
        out = shared.copy()
        case.call(operands | dict.fromkeys(alike, out), out=out)
        np.testing.assert_array_equal(out, expected)


@EACH
@looped(dtype=["float16", "float64"])
def test_out_of_any_layout(case, dtype):
    """What lies around it stays as it was."""
    operands = case.operands((2, 3), 20, dtype=dtype)
    expected = case.call(operands)
    for layout in WRITTEN:
        out = LAYOUTS[layout](np.zeros_like(expected))
        memory = out
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        before = memory.copy()
        assert case.call(operands, out=out) is out, layout
        np.testing.assert_array_equal(out, expected, err_msg=layout)
        out[...] = 0
        assert memory.tobytes() == before.tobytes(), layout


@HELD
@looped(dtype=["float32", "float64"], sizes=[(4, 5), (20, 150)])
def test_layouts_of_a_step(case, dtype, sizes):
    """Of its operands and of the state, which may be updated in place."""
    if sizes != (4, 5) and (case not in ATTENTION or dtype == "float64"):
        return
    widths = dict(zip("dm", sizes, strict=True))
    operands = case.operands((2, 3), 1, dtype=dtype, **widths)
    start = case.state((2, 3), dtype=dtype, **widths)
    o, state = case.one_step(operands, 0, start)
    for layout in WRITTEN:
        given = {x: laid(y, layout) for x, y in operands.items()}
        moved = apply(lambda x, of=layout: laid(x, of), start)
        before = [x.copy() for x in flat(moved)]
        assert_same(case.one_step(given, 0, moved), (o, state), layout)
        assert_same(flat(moved), before, layout)
        got, after = case.one_step(given, 0, moved, in_place=True)
        assert all(x is y for x, y in zip(flat(after), flat(moved), strict=True)), layout
        assert_same((got, after), (o, state), layout)


@pytest.mark.parametrize("case", FIRST, ids=str)
@pytest.mark.parametrize(("heads", "d", "m", "dtype"), [(300, 33, 40, "f8"), (70, 64, 130, "f4")])
def test_threads_of_steps(case, threads, heads, d, m, dtype):
    sizes = {"d": d, "m": m, "dtype": dtype}
    operands, start = case.operands((heads,), 1, **sizes), case.state((heads,), **sizes)
    threads(1)
    expected = case.one_step(operands, 0, start)
    for count in (2, 3):
        threads(count)
        assert_same(case.one_step(operands, 0, start), expected)
