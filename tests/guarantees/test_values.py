"""Every operator computes what its NumPy twin does: values, states and gradients."""

import inspect
from itertools import product

import numpy as np
import pytest
from bounds import close, roundings
from cases import MAPS
from isas import ISAS
from operands import vanishes
from slow import each, grid, looped, slow
from states import assert_close, assert_same, flat
from table import (
    ALL,
    BLOCKS,
    COMPLEX,
    MAPPED,
    MORE,
    OTHER_BLOCKS,
    ROUNDINGS,
    SHARED,
    Case,
    apply,
    covering,
    first_of,
    wide,
)

import linattn
from linattn import feature_maps, reference

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = np.float16

EACH = each(ALL + BLOCKS)
FIRST, COVERING = first_of(ALL), covering(ALL + BLOCKS) + COMPLEX
#: n, d, m: within and around vectors, chunks and panels.
SIZES = [(1, 1, 1), (16, 4, 5), (33, 17, 16), (70, 5, 40), (129, 65, 33), (20, 530, 5)]
SIZES += [WIDE := (70, 200, 260)]
WITH_MAPS = [x for x in ALL if x.row is not None and x.row.mapped]


def states(case: Case, lead, dtype, **widths) -> dict:
    """An initial state, and a gradient of the last one."""
    if not case.held:
        return {}
    start, last = (case.state(lead, dtype=dtype, seed=x, **widths) for x in (1, 2))
    return {"initial_state": start, "grad_state": last}


def check(case: Case, operands, **more) -> None:
    """Output, state and gradients on the operands against the twin on them."""
    compare(case, operands, case.results(operands, **more), **more)


def compare(case: Case, operands, got, **more) -> None:
    """Each array is within roundings of the largest of its call."""
    expected = case.results(wide(operands), reference, **wide(more))
    dtype = operands["grad_out"].dtype
    assert all(x.dtype == dtype for x in got)
    count = len(flat(case.forward(operands))) if case.held else 1
    for part in (slice(count), slice(count, None)):
        atol = roundings(ROUNDINGS, *expected[part], dtype=dtype)
        assert_close(got[part], expected[part], atol=atol)


@grid(
    lambda case, size, dtype: (
        (
            case in (FIRST if dtype == "float64" or size in SIZES[4:] else COVERING)
            and (dtype == "float32" or size in SIZES[:4])
        )
        or (case in OTHER_BLOCKS and dtype == "float32" and size in SIZES[3:5])
    ),
    case=ALL + BLOCKS + OTHER_BLOCKS + COMPLEX,
    size=SIZES,
    dtype=["float32", "float64"],
)
def test_against_the_twin(case, size, dtype):
    n, d, m = size
    if size == WIDE and "k" not in case.letters:
        d = 5  # a state of its own for each channel, none of which is wide
    widths = {"d": d, "m": m}
    operands = case.operands((2,), n, dtype=dtype, **widths)
    check(case, operands)
    check(case, operands, **states(case, (2,), dtype, **widths))


def wrong_calls(case, operands, more):
    """The results of one thing wrong: an operand one token late, backwards, 0, or off by 500 times
    the bound; an option left out; a state that is ignored or backwards; a result that is lost."""
    wide = 1 + 500 * ROUNDINGS * np.finfo(operands["grad_out"].dtype).eps / 2
    for name, x in operands.items():
        late = [np.roll(x, 1, 1)] if case.letters.get(name, "n")[0] in "ns" else []
        for y in (*late, np.flip(x, -1), 0 * x, (wide * x).astype(x.dtype)):
            yield case.results(operands | {name: y}, **more), more
    for name, x in more.items():
        for f in (np.zeros_like, lambda y: np.flip(y, -1).copy()):
            yield case.results(operands, **more | {name: apply(f, x)}), more
    defaults = inspect.signature(getattr(linattn, case.name)).parameters
    for name in case.options.keys() - {"normalize"}:
        if name == "scale" and (defaults[name].default is None or _cancels(case)):
            continue
        if case.options[name] != defaults[name].default:
            options = {x: y for x, y in case.options.items() if x != name}
            yield case._replace(options=options).results(operands), {}
    right = case.results(operands, **more)
    for i, x in enumerate(right):
        yield [*right[:i], 0 * x, *right[i + 1 :]], more


def _cancels(case):
    """Whether a scale is divided by itself."""
    return case.row.normalizer and case.options.get("normalize", True)


@pytest.mark.unsanitized
@grid(
    lambda case, dtype: (
        case in FIRST[:4]
        or (dtype == "float32" and (case in FIRST or "activation" in case.options))
    ),
    case=ALL + BLOCKS,
    dtype=["float32", "float64"],
)
def test_wrong_versions_exceed_the_bound(case, dtype):
    operands = case.operands((2,), 20, dtype=dtype)
    for results, more in wrong_calls(case, operands, states(case, (2,), dtype)):
        with pytest.raises(AssertionError):
            compare(case, operands, results, **more)


@EACH
@pytest.mark.parametrize("name", ISAS)
def test_every_instruction_set(isa, name, case):
    isa(name)
    for n, d, m in ((37, 21, 18), (20, 3, 35)):
        operands = case.operands((2,), n, d=d, m=m, dtype="float32")
        more = states(case, (2,), "float32", d=d, m=m)
        check(case, operands, **more)
        check(case, operands, **{x: y for x, y in more.items() if x == "grad_state"})
        if case.held and not case.reverse:
            start = case.state((2,), dtype="float32", d=d, m=m)
            got = flat(case.one_step(operands, 0, start))
            expected = flat(case.forward(case.rows(operands, 0, 1), initial_state=start))
            for x, y in zip(got, expected, strict=True):
                close(x, y.reshape(x.shape), atol=roundings(2 * ROUNDINGS, *expected))


@each([x for x in ALL + BLOCKS + OTHER_BLOCKS if "g" in x.letters])
@looped(gates=["strong", "growing", "resets"])
@looped(dtype=["float32", "float64"])
def test_gates(case, gates, dtype):
    """Strong ones, ones that let the memory grow, and resets in the middle of a chunk."""
    operands = case.operands((2,), 75, d=6, m=5, gates=gates, dtype=dtype)
    check(case, operands, **states(case, (2,), dtype, d=6))


@each(WITH_MAPS)
@looped(phi=[*MAPS, feature_maps.DPFP(nu=2)])
def test_maps(case, phi):
    """Fused maps, and one that is an object, whose features sum to 1."""
    signed = case.options.get("normalize", True) and phi in ("identity", "l2norm", "relu")
    unnormalized = {"normalize": False} if signed and "causal" in case.name else {}
    case = case.having(**unnormalized, feature_map=phi)
    operands = case.operands((2,), 20, d=3)
    if "beta" in operands and not vanishes(phi):
        operands["k"] -= 2  # features of norm below 1, so that the memory does not grow
    if isinstance(phi, str):
        check(case, operands)
    else:
        width = phi.features(3)
        moved = {x: y for x, y in case.operands((2,), 20, d=width).items() if x not in "qk"}
        operands |= {x: moved[x] for x in moved if case.letters.get(x, "n").endswith("d")}
        plain = case.having(feature_map="identity")
        features = {x: phi(operands[x]) for x in "qk"}
        got, expected = case.results(operands), plain.results(operands | features)
        for x, y in list(zip(got, expected, strict=True))[: len(flat(case.call(operands)))]:
            close(x, y, atol=roundings(2 * ROUNDINGS, y))


@each(ALL + BLOCKS + MAPPED)
@looped(dtype=[np.float16, bfloat16])
@looped(gates=[np.float32, None])
def test_sixteen_bits(case, dtype, gates):
    """Computed in float32 and rounded once; states and sums over tokens stay in float32."""
    operands = case.operands((2,), 70, d=6, m=5, dtype=dtype)
    single = [x.name for x in case.row.operands if x.state_dtype] if case.row and gates else []
    operands |= {x: operands[x].astype(np.float32) for x in single if x in operands}
    single = {name: x.astype(np.float32) for name, x in operands.items()}
    assert case.call(operands).dtype == dtype
    ways = [{}]
    if case.held:
        for lead, more in (((2,), {}), ((2, 4), {"cu_seqlens": [0, 17, 17, 40, 70]})):
            ways.append(states(case, lead, "float32", d=6, m=5) | more)
    for more in ways:
        for x, y in zip(case.results(operands, **more), case.results(single, **more), strict=True):
            np.testing.assert_array_equal(x, y.astype(x.dtype))
    if case.held:
        start = ways[1]["initial_state"]
        o, state = case.one_step(operands, 0, start)
        expected, after = case.one_step(single, 0, start)
        np.testing.assert_array_equal(o, expected.astype(dtype))
        assert o.dtype == dtype
        assert_same(state, after)


@each(ALL + BLOCKS + MORE)
@looped(dtype=["float32", "float64"])
def test_leading_axes_broadcast(case, dtype):
    """Each operand in turn, then all but the first, are shared along an axis: their gradients are
    summed to their shapes."""
    operands, more = case.operands((2, 3), 20, dtype=dtype), states(case, (2, 3), dtype)
    forward = case.forward if case.held else case.call
    start = {x: y for x, y in more.items() if x == "initial_state"}
    names = [x for x in case.letters if x not in SHARED]
    groups = {(x,) for x in names} | {tuple(names[1:])}  # as groups of queries share keys
    for group, axis in product(groups if len(names) > 1 else [], (0, 1)):
        few = {x: operands[x].take([0], axis) for x in group}
        part = operands | few
        whole = operands | {x: np.broadcast_to(y, operands[x].shape).copy() for x, y in few.items()}
        assert_same(forward(part, **start), forward(whole, **start))
        if case.held:
            one, alone = (case.one_step(x, 0, more["initial_state"]) for x in (part, whole))
            assert_same(one, alone)
        got, alone = flat(case.backward(part, **more)), flat(case.backward(whole, **more))
        shared = [i for i, x in enumerate(case.letters) if x in group]
        for i, (x, y) in enumerate(zip(got, alone, strict=True)):
            y = y.sum(axis, keepdims=True) if i in shared else y
            close(x, y, atol=roundings(2 * ROUNDINGS, *alone))


@each([x for x in ALL if x.row and any(y.channels for y in x.row.operands)])
def test_one_number_for_all_channels(case):
    """A last axis of 1, and leading axes that the others lack: in kernel and twin alike."""
    arrays = case.operands((2,), 7, d=3, m=4)
    for name in (x.name for x in case.row.operands if x.channels):
        if case.letters[name] != "n":
            continue
        own, grad_out = arrays[name], arrays["grad_out"]
        for one in (own[..., None], np.stack([own, own / 2])[..., None], own[:1, :, None]):
            given = arrays | {name: one}
            given["grad_out"] = np.broadcast_to(grad_out, (*one.shape[:-3], *grad_out.shape))
            expected = case.backward(given, reference)
            for x, y in zip(case.backward(given), expected, strict=True):
                close(x, y, atol=1e-12 * abs(y).max(), rtol=1e-12)


@each(ALL + BLOCKS + COMPLEX)
def test_nothing_to_compute(case):
    """No heads, tokens, channels or states give empty or zero results, and the state stays."""
    for letter in "bnsdmf":
        if letter != "b" and not any(letter in y for x, y in case.letters.items() if x != "weight"):
            continue
        zero = {"s": 0} | ({"n": 0} if case.options.get("causal") else {})
        zero = (
            zero
            if letter == "s"
            else {"d" if letter == "f" else letter: 0}
            if letter != "b"
            else {}
        )
        lead = (0,) if letter == "b" else (2,)
        operands = case.operands(lead, **{"n": 5, "d": 4, "m": 3} | zero)
        if letter != "n":
            check(case, operands)
        results = case.results(operands)
        assert not any(np.isnan(x).any() for x in results)
        garbage = np.full_like(results[0], np.nan)
        np.testing.assert_array_equal(case.call(operands, out=garbage), results[0])
        for name, x in zip(case.letters, case.backward(operands), strict=True):
            assert x.shape == operands[name].shape
        if letter == "n" and case.held:
            start = case.state((2,), d=4, m=3)
            _, last = case.forward(operands, initial_state=start)
            assert_same(last, start)


@pytest.mark.parametrize("case", FIRST, ids=str)
@pytest.mark.parametrize("n", [512, *slow(5000)])
def test_long_sequences(case, n):
    operands = case.operands((), n, d=9, m=6, dtype="float32")
    expected = case.results(wide(operands))
    atol = roundings(ROUNDINGS * n**0.5, *expected, dtype="float32")
    assert_close(case.results(operands), expected, atol=atol)
