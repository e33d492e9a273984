"""Long sequences, few of them, in stages that all threads share: the same bits as by one thread."""

import numpy as np
import pytest
from layouts import LAYOUTS
from slow import grid
from stage_calls import OPERANDS, WIDTHS, make, start
from states import assert_same

import linattn
from linattn import _linattn
from linattn._core import settings

EVERY = pytest.mark.parametrize("name", OPERANDS)


@grid(lambda name, dtype: dtype == "f4" or name == "gated", name=OPERANDS, dtype=["f2", "f4", "f8"])
def test_shapes(stages, name, dtype):
    f = getattr(linattn, name)
    wide = np.promote_types(dtype, "f4")
    for n in (0, 1, 15, 16, 17, 300):
        for d, m in WIDTHS:
            for lead in ((), (3,)):
                operands = make(name, lead, n, d, m, dtype)
                stages(f, *operands, return_state=True)
                given = start(name, lead, d, m, wide)
                stages(f, *operands, return_state=True, initial_state=given, scale=0.4)


def test_a_call_that_chooses_stages(threads):
    """Few sequences of many tokens."""
    for lead, n in (((), 5000), ((3,), 3000)):
        operands = make("causal", lead, n, 64, 64)
        threads(1)
        expected = linattn.causal(*operands, return_state=True)
        for count in (2, 5, 16):
            threads(count)
            assert_same(linattn.causal(*operands, return_state=True), expected)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("feature_map", ["elu", "exp", "l2norm", "dpfp"])
def test_maps(stages, feature_map, normalize):
    operands = make("causal", (), 200, 20, 20)
    stages(linattn.causal, *operands, normalize=normalize, feature_map=feature_map)


def test_grouped_queries(stages):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 3, 100, 16)).astype("f4")
    k, v = rng.standard_normal((2, 2, 1, 100, 16)).astype("f4")
    stages(linattn.causal, q, k, v, return_state=True)


@pytest.mark.parametrize("extra", [None, "bonus", "erase", "beta"])
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("name", ["gated", "gated_delta", "dplr"])
def test_decays(stages, name, channels, extra):
    """One per token or per channel, none, resets, growth, and such that end chunks."""
    rng = np.random.default_rng(1)
    operands = make(name, (2,), 300, 20, 33)
    options = {"initial_state": start(name, (2,), 20, 33), "return_state": True}
    at = OPERANDS[name].index("g")
    if channels:
        operands[at] = np.stack(20 * [operands[at]], -1) * rng.random(20, "f4")
    if (name, extra) == ("gated", "bonus"):
        options["bonus"] = rng.standard_normal(20).astype("f4")
    elif (name, extra) == ("gated_delta", "erase"):
        options["erase"] = operands[1][..., ::-1]
    elif (name, extra) == ("gated_delta", "beta"):
        operands[-1] = rng.random((2, 300, 33), "f4")
    elif extra:
        return
    g = operands[at]
    for few in (0, 2, 40):
        for value in (-np.inf, -1e4, -90, 0, 5, np.nan):
            operands[at] = g.copy()
            operands[at][rng.random(g.shape) < few / 300] = value
            stages(getattr(linattn, name), *operands, **options)


@EVERY
def test_lengths(stages, name):
    """Keys that end anywhere, or do not exist at all; what follows them is not read."""
    f = getattr(linattn, name)
    q, *others = make(name, (), 100, 16, 33)
    for keys in (0, 1, 15, 16, 50, 99):
        for x in others:
            x[keys:] = np.nan
        stages(f, q, *others, key_lengths=keys, return_state=True)
        given = start(name, (), 16, 33)
        stages(f, q, *others, key_lengths=keys, return_state=True, initial_state=given)


@EVERY
def test_packed_sequences(stages, name):
    """Of any lengths; empty ones hand their state through."""
    f = getattr(linattn, name)
    operands = make(name, (2,), 200, 16, 33)
    cuts = [0, 0, 3, 100, 100, 180, 200, 200]
    given = start(name, (2, len(cuts) - 1), 16, 33)
    stages(f, *operands, cu_seqlens=cuts, initial_state=given, return_state=True)


@EVERY
def test_layouts(stages, name):
    f = getattr(linattn, name)
    operands = make(name, (2,), 100, 17, 20)
    for layout in LAYOUTS.values():
        stages(f, *(layout(x) for x in operands), return_state=True)


@EVERY
def test_a_state_in_place(threads, name):
    """The state after the tokens takes the place of the one before them."""
    operands = make(name, (1,), 400, 16, 33)
    given = start(name, (1,), 16, 33)
    f = getattr(linattn, name)
    threads(1)
    _, expected = f(*operands, initial_state=given, return_state=True)
    fields = [np.concatenate([x, x]) for x in given if x is not None]
    pool = type(given)(*fields)
    threads(4)
    _linattn.force_stages(3)
    try:
        f(*operands, initial_state=pool, state_indices=[1], return_state=True)
    finally:
        _linattn.force_stages(0)
    for x, y in zip(pool, [x for x in expected if x is not None], strict=False):
        np.testing.assert_array_equal(x[1:], y)


@EVERY
def test_nothing_looks_ahead(threads, name):
    rng = np.random.default_rng(3)
    operands = make(name, (), 300, 8, 9)
    threads(3)
    _linattn.force_stages(2)
    try:
        clean = getattr(linattn, name)(*operands)
        for t in (1, 15, 16, 17, 33, 64, 99, 130, 299):
            future = [x.copy() for x in operands]
            for x in future:
                x[t:] = rng.choice([np.nan, np.inf, -np.inf, 1e38, 0], x[t:].shape)
            with np.errstate(all="ignore"):
                o = getattr(linattn, name)(*future)
            np.testing.assert_array_equal(o[:t], clean[:t])
    finally:
        _linattn.force_stages(0)


@EVERY
def test_instruction_sets_and_poison(stages, isa, name):
    """Without reading what no stage has written."""
    f = getattr(linattn, name)
    operands = make(name, (2,), 150, 20, 33)
    for chosen in settings.available_isas():
        isa(chosen)
        for byte in (0xFF, 0x7F, 0):
            _linattn.poison_scratch(byte)
            try:
                stages(f, *operands, return_state=True)
            finally:
                _linattn.poison_scratch(0)
