"""Long sequences, few of them, in stages that all threads share (`src/ext/stages.c`): the same bits
as by one thread, forward and backward."""

import numpy as np
import pytest
from layouts import LAYOUTS
from slow import grid
from states import assert_same
from table import apply

import linattn
from linattn import _linattn
from linattn._core import settings

OPERANDS = {"causal": "qkv", "gated": "qkvg", "delta": "qkvB", "gated_delta": "qkvgB",
            "dplr": "qkvabg"}  # fmt: skip
WIDTHS = [(1, 1), (5, 9), (16, 33), (70, 130), (64, 64)]
EVERY = pytest.mark.parametrize("name", OPERANDS)
BOTH = pytest.mark.parametrize("backward", [False, True])


def make(name, lead, n, d, m, dtype="f4"):
    """Operands of an operator."""
    rng = np.random.default_rng(n + d)
    operands = {
        "q": rng.standard_normal((*lead, n, d)),
        "k": rng.standard_normal((*lead, n, d)) / np.sqrt(d),
        "v": rng.standard_normal((*lead, n, m)),
        "B": rng.random((*lead, n)),
        "a": rng.standard_normal((*lead, n, d)) / d,
        "b": rng.standard_normal((*lead, n, d)),
        "g": -np.exp(rng.standard_normal((*lead, n)) - 2),
    }
    return [operands[x].astype(dtype) for x in OPERANDS[name]]


def start(name, lead, d, m, dtype="f4"):
    """A state that is not zero."""
    return getattr(linattn, name)(*make(name, lead, 7, d, m, dtype), return_state=True)[1]


def call(name, backward, operands, **options):
    """The function, its operands and its options, with a gradient of the last state if there is a
    first one."""
    f, rng = getattr(linattn, name), np.random.default_rng(0)
    options |= {"return_state": True}
    if not backward:
        return f, operands, options

    def normal(x):
        return rng.standard_normal(x.shape).astype(x.dtype)

    with np.errstate(all="ignore"):
        o, state = f(*operands, **options)
    del options["return_state"]
    if "initial_state" in options:
        options["grad_state"] = apply(normal, state)
    return getattr(linattn, f"{name}_backward"), [*operands, normal(o)], options


def check(stages, name, backward, operands, *, counts=((2, 1), (3, 4), (8, 50)), **options):
    f, operands, options = call(name, backward, operands, **options)
    stages(f, *operands, counts=counts, **options)


@BOTH
@grid(lambda name, dtype: dtype == "f4" or name == "gated", name=OPERANDS, dtype=["f2", "f4", "f8"])
def test_shapes(stages, name, dtype, backward):
    """Sums of more than 16 chunks are compensated; of no tokens, states are handed through."""
    wide = np.promote_types(dtype, "f4")
    for n in (0, 1, 15, 16, 17, 300, 700):
        for d, m in WIDTHS if n < 700 else [(16, 33)]:
            for lead in ((), (3,)):
                operands = make(name, lead, n, d, m, dtype)
                check(stages, name, backward, operands)
                given = start(name, lead, d, m, wide)
                check(stages, name, backward, operands, initial_state=given, scale=0.4)


@grid(
    lambda made, count: count != 5 or not made[1],
    made=[("causal", False), *((name, True) for name in OPERANDS)],
    count=[2, 5, 16],
)
def test_a_call_that_chooses_stages(threads, made, count):
    """Few sequences of many tokens, of which the threads share each pass."""
    for lead, n in (((), 5000), ((3,), 3000)):
        f, operands, options = call(*made, make(made[0], lead, n, 64, 64))
        threads(1)
        expected = f(*operands, **options)
        threads(count)
        _linattn.take_jobs()
        assert_same(f(*operands, **options), expected)
        jobs = _linattn.take_jobs()
        if made[1] and (not lead or count == 16):
            assert len(jobs) == 2
            assert all(lanes == count < items for items, lanes in jobs)


@BOTH
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("feature_map", ["elu", "exp", "l2norm", "dpfp"])
def test_maps(stages, feature_map, normalize, backward):
    operands = make("causal", (), 200, 20, 20)
    check(stages, "causal", backward, operands, normalize=normalize, feature_map=feature_map)


def test_grouped_queries(stages):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 3, 100, 16)).astype("f4")
    k, v = rng.standard_normal((2, 2, 1, 100, 16)).astype("f4")
    stages(linattn.causal, q, k, v, return_state=True)


def test_denominators_near_zero(stages):
    """Rows that are lifted, since the inverse of their denominator is too large."""
    q, k, v, grad_out = np.random.default_rng(0).standard_normal((4, 200, 20)).astype("f4")
    q[::7] *= 1e-30
    stages(linattn.causal_backward, q, k, v, grad_out, feature_map="identity", eps=0)


KINDS = [("gated", None), ("gated", "bonus"), ("gated_delta", None), ("gated_delta", "erase"),
         ("gated_delta", "beta"), ("dplr", None)]  # fmt: skip
#: Those whose quick test of gradients has a gate a token.
BY_TOKEN = [("gated", None), ("gated_delta", "beta")]


@grid(
    lambda kind, channels, backward: not backward or channels == (kind not in BY_TOKEN),
    kind=KINDS,
    channels=[False, True],
    backward=[False, True],
)
def test_decays(stages, kind, channels, backward):
    """One per token or per channel, none, resets, growth, and such that end chunks."""
    (name, extra), n, rng = kind, 700 if backward else 300, np.random.default_rng(1)
    operands = make(name, (2,), n, 20, 33)
    options = {"initial_state": start(name, (2,), 20, 33)}
    at = OPERANDS[name].index("g")
    if channels:
        operands[at] = np.stack(20 * [operands[at]], -1) * rng.random(20, "f4")
    if extra == "bonus":
        options["bonus"] = rng.standard_normal(20).astype("f4")
    elif extra == "erase":
        options["erase"] = operands[1][..., ::-1]
    elif extra == "beta":
        operands[-1] = rng.random((2, n, 33), "f4")
    g = operands[at]
    options["counts"] = ((2, 1), (3, 4), (8, 9 if backward else 50))
    for few in (0, 2, 40, 700)[: 4 if backward else 3]:
        for value in (-np.inf, -1e4, -90, 0, 5, np.nan):
            operands[at] = g.copy()
            operands[at][rng.random(g.shape) < few / n] = value
            check(stages, name, backward, operands, **options)


@EVERY
@BOTH
def test_values_that_are_not_finite(stages, name, backward):
    rng = np.random.default_rng(2)
    for at in range(3):
        operands = make(name, (), 300, 18, 21)
        operands[at].flat[rng.integers(0, operands[at].size, 3)] = np.nan, np.inf, -np.inf
        check(stages, name, backward, operands)


@EVERY
@BOTH
def test_lengths(stages, name, backward):
    """Keys that end anywhere, or do not exist at all; what follows them is not read."""
    for keys in (0, 1, 15, 16, 50, 99):
        operands = make(name, (), 100, 16, 33)
        for x in operands[1:]:
            x[keys:] = np.nan
        for given in ({}, {"initial_state": start(name, (), 16, 33)}):
            check(stages, name, backward, operands, key_lengths=keys, **given)


@EVERY
@BOTH
def test_packed_sequences(stages, name, backward):
    """Of any lengths; empty ones hand their state, or its gradient, through."""
    cuts = [0, 0, 3, 100, 100, 180, 200, 200]
    given = start(name, (2, len(cuts) - 1), 16, 33)
    operands = make(name, (2,), 200, 16, 33)
    check(stages, name, backward, operands, cu_seqlens=cuts, initial_state=given)


@EVERY
@BOTH
def test_layouts(stages, name, backward):
    f, operands, options = call(name, backward, make(name, (2,), 100, 17, 20))
    for layout in LAYOUTS.values():
        stages(f, *(layout(x) for x in operands), **options)


@EVERY
def test_a_state_in_place(threads, name):
    """The state after the tokens takes the place of the one before them."""
    operands = make(name, (1,), 400, 16, 33)
    given, f = start(name, (1,), 16, 33), getattr(linattn, name)
    threads(1)
    _, expected = f(*operands, initial_state=given, return_state=True)
    pool = apply(lambda x: np.concatenate([x, x]), given)
    threads(4)
    _linattn.force_stages(3)
    try:
        f(*operands, initial_state=pool, state_indices=[1], return_state=True)
    finally:
        _linattn.force_stages(0)
    assert_same(apply(lambda x: x[1:], pool), expected)


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
@BOTH
def test_instruction_sets_and_poison(stages, isa, name, backward):
    """Without reading what no stage has written."""
    operands = make(name, (2,), 150, 20, 33)
    for chosen in settings.available_isas():
        isa(chosen)
        for byte in (0xFF, 0x7F, 0):
            _linattn.poison_scratch(byte)
            try:
                check(stages, name, backward, operands)
            finally:
                _linattn.poison_scratch(0)


@pytest.mark.usefixtures("stages")
@pytest.mark.parametrize("name", ["gated", "gated_delta", "dplr"])
@pytest.mark.parametrize(("gate", "passes"), [(-0.01, 2), (-5.0, 2), (-40.0, 1)])
def test_more_groups_than_there_is_memory_for(threads, name, gate, passes):
    """Strong decays make short chunks: then the first pass ends early, and one thread computes."""
    operands = make(name, (), 600, 32, 32)
    operands[OPERANDS[name].index("g")] = np.full((600, 32), gate, "f4")
    f, given, _ = call(name, True, operands)
    threads(1)
    expected = f(*given)
    threads(2)
    _linattn.force_stages(8)
    _linattn.take_jobs()
    found = f(*given)
    jobs = _linattn.take_jobs()
    _linattn.force_stages(0)
    assert_same(found, expected)
    assert len(jobs) == passes
