"""A long sequence is computed in segments that depend on its length alone."""

import numpy as np
import pytest
from cases import MAPS, SIGNED
from layouts import LAYOUTS
from states import assert_same, check, state, tokens

import linattn
from linattn import _linattn


@pytest.fixture(autouse=True)
def short():
    """Segments from 512 tokens on."""
    before = _linattn.long_sequence(512)
    yield
    _linattn.long_sequence(before)


LENGTHS = (511, 512, 513, 575, 576, 1000, 1087)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("normalize", [True, False])
def test_against_the_twin(normalize, dtype):
    for n in LENGTHS:
        for lead, d, m in [((), 5, 9), ((2,), 16, 33), ((1, 2), 1, 1), ((3,), 5, 9)]:
            operands = tokens((*lead, n, d, m), dtype=dtype)
            check("causal", operands, normalize=normalize)
            start = state((*lead, d, m), dtype=dtype, normalize=normalize)
            check("causal", operands, normalize=normalize, return_state=True)
            check(
                "causal", operands,
                normalize=normalize, return_state=True, initial_state=start, scale=0.4, eps=0.01,
            )  # fmt: skip


@pytest.mark.parametrize("feature_map", MAPS)
def test_maps(feature_map):
    for normalize in (True, False):
        operands = tokens((700, 16, 33), positive=feature_map in SIGNED)
        check("causal", operands, feature_map=feature_map, normalize=normalize, return_state=True)


def test_segments_are_what_is_computed():
    """Other bits than those of one run through all tokens, or nothing here tests anything."""
    operands = tokens((1000, 16, 33))
    cut = linattn.causal(*operands)
    _linattn.long_sequence(10**6)
    whole = linattn.causal(*operands)
    assert (cut[:64] == whole[:64]).all()
    assert (cut != whole).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("normalize", [True, False])
def test_any_company(threads, normalize, dtype):
    """Alone, among others, packed, with lengths, by the gufunc: the same bits."""
    for n in LENGTHS:
        operands = tokens((5, n, 16, 33), dtype=dtype)
        start = state((5, 16, 33), dtype=dtype, normalize=normalize)
        options = {"normalize": normalize, "initial_state": start, "return_state": True}
        threads(1)
        o, end = linattn.causal(*operands, **options)
        for count in (1, 2, 7):
            threads(count)
            for head in (0, 3):
                own = [x[head] for x in operands]
                alone = {**options, "initial_state": _of(start, lambda x, i=head: x[i])}
                last = _of(end, lambda x, i=head: x[i])
                for more in ({}, {"key_lengths": n}):
                    assert_same(linattn.causal(*own, **alone, **more), (o[head], last))
                alone["initial_state"] = _of(alone["initial_state"], lambda x: x[None])
                packed = linattn.causal(*own, cu_seqlens=[0, n], **alone)
                assert_same(packed, (o[head], _of(last, lambda x: x[None])))
        plain = linattn.causal(*operands, normalize=normalize)
        for head in range(5):
            own = [x[head] for x in operands]
            assert_same(linattn.causal(*own, normalize=normalize), plain[head])


def _of(whole, f):
    return type(whole)(*(None if x is None else f(x) for x in whole))


def test_lengths(threads):
    """Keys that end anywhere, between segments too; none in some."""
    for n in (513, 1087):
        operands = tokens((n, 16, 33))
        for keys in (0, 1, 63, 64, 65, 128, n - 1):
            threads(1)
            expected = linattn.causal(*operands, key_lengths=keys, return_state=True)
            padded = [operands[0], *(x.copy() for x in operands[1:])]
            for x in padded[1:]:
                x[keys:] = np.nan
            threads(8)
            assert_same(linattn.causal(*padded, key_lengths=keys, return_state=True), expected)


def test_state_changes_no_bit():
    for n in LENGTHS:
        operands = tokens((2, n, 16, 33))
        o, end = linattn.causal(*operands, return_state=True)
        assert_same(o, linattn.causal(*operands))
        zeros = state((2, 16, 33))
        for x in zeros[:2]:
            x[...] = 0
        assert_same(linattn.causal(*operands, initial_state=zeros, return_state=True), (o, end))


def test_layouts():
    operands = tokens((2, 700, 17, 20))
    expected = linattn.causal(*operands, return_state=True)
    for name, layout in LAYOUTS.items():
        given = [layout(x) for x in operands]
        copies = [x.copy() for x in given]
        assert_same(linattn.causal(*given, return_state=True), expected, name)
        for x, y in zip(given, copies, strict=True):
            np.testing.assert_array_equal(x, y)
        if name in ("read_only", "byte_swapped"):
            continue
        out = layout(np.zeros_like(expected[0]))
        memory = out
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        before = memory.tobytes()
        o, end = linattn.causal(*operands, return_state=True, out=out)
        assert o is out
        assert_same((o, end), expected, name)
        out[...] = 0
        assert memory.tobytes() == before, f"{name}: what lies around it has changed"


def test_broadcasting():
    """Operands and states of fewer heads."""
    for leads in [((2,), (), ()), ((), (2,), (1,)), ((), (), (2,)), ((1,), (1, 1), ())]:
        rng = np.random.default_rng(2)
        operands = [
            rng.standard_normal((*lead, 700, w)).astype("f4")
            for lead, w in zip(leads, (6, 6, 19), strict=True)
        ]
        lead = np.broadcast_shapes(*leads)
        dense = [np.broadcast_to(x, (*lead, *x.shape[-2:])).copy() for x in operands]
        for given in ({}, {"initial_state": state((6, 19))}):
            assert_same(
                linattn.causal(*operands, return_state=True, **given),
                linattn.causal(*dense, return_state=True, **given),
            )


def test_out_may_overlap_an_input():
    operands = tokens((2, 700, 20, 20))
    expected = linattn.causal(*operands)
    for which in range(3):
        given = [x.copy() for x in operands]
        o = linattn.causal(*given, out=given[which])
        assert o is given[which]
        np.testing.assert_array_equal(o, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half(dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    operands = tokens((2, 700, 16, 33), dtype=dtype)
    o, end = linattn.causal(*operands, return_state=True)
    single, last = linattn.causal(*(x.astype("f4") for x in operands), return_state=True)
    assert o.dtype == dtype
    assert_same(o, single.astype(dtype))
    assert_same(end, last)


def test_nothing_to_do():
    for lead, d, m in [((0,), 5, 3), ((2, 0), 5, 3), ((), 0, 3), ((), 5, 0)]:
        operands = tokens((*lead, 700, d, m))
        o, end = linattn.causal(*operands, return_state=True)
        assert o.shape == (*lead, 700, m) and not o.any()
        assert end.s.shape == (*lead, d, m) and end.z.shape == (*lead, d)
