"""Gradients of few long sequences, in stages that all threads share: the same bits as by one."""

import numpy as np
import pytest
from layouts import LAYOUTS
from slow import crossed, grid, slow
from stage_calls import OPERANDS, WIDTHS, make, start, with_gradients
from states import assert_same

import linattn
from linattn import _linattn
from linattn._core import settings

NAMES = ["causal", "gated", "delta", "gated_delta", "dplr"]
EVERY = pytest.mark.parametrize("name", NAMES)


def gradients(name):
    return getattr(linattn, f"{name}_backward")


@grid(lambda name, dtype: dtype == "f4" or name == "gated", name=NAMES, dtype=["f2", "f4", "f8"])
def test_shapes(stages, name, dtype):
    """Sums of more than 16 chunks are compensated."""
    rng = np.random.default_rng(0)
    wide = np.promote_types(dtype, "f4")
    for n in (1, 15, 16, 17, 300, 700):
        for d, m in WIDTHS if n < 700 else [(16, 33)]:
            for lead in ((), (3,)):
                operands = make(name, lead, n, d, m, dtype)
                plain, _ = with_gradients(name, operands, rng)
                stages(gradients(name), *plain)
                options = {"initial_state": start(name, lead, d, m, wide), "scale": 0.4}
                given, grad_state = with_gradients(name, operands, rng, **options)
                stages(gradients(name), *given, grad_state=grad_state, **options)


@EVERY
def test_no_tokens(stages, name):
    """The gradient of the state is handed through."""
    options = {"initial_state": start(name, (2,), 16, 33)}
    operands = make(name, (2,), 0, 16, 33)
    given, grad_state = with_gradients(name, operands, np.random.default_rng(0), **options)
    stages(gradients(name), *given, grad_state=grad_state, **options)


@EVERY
@pytest.mark.parametrize("count", [2, *slow(5), 16])
def test_a_call_that_chooses_stages(threads, name, count):
    """Few sequences of many tokens, of which the threads share each pass."""
    for lead, n in (((), 5000), ((3,), 3000)):
        given, _ = with_gradients(name, make(name, lead, n, 64, 64), np.random.default_rng(0))
        threads(1)
        expected = gradients(name)(*given)
        threads(count)
        _linattn.take_jobs()
        assert_same(gradients(name)(*given), expected)
        jobs = _linattn.take_jobs()
        if not lead or count == 16:
            assert len(jobs) == 2
            assert all(lanes == count < items for items, lanes in jobs)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("feature_map", ["elu", "exp", "l2norm", "dpfp"])
def test_maps(stages, feature_map, normalize):
    options = {"normalize": normalize, "feature_map": feature_map}
    operands = make("causal", (), 200, 20, 20)
    given, _ = with_gradients("causal", operands, np.random.default_rng(0), **options)
    stages(linattn.causal_backward, *given, **options)


def test_denominators_near_zero(stages):
    """Rows that are lifted, since the inverse of their denominator is too large."""
    q, k, v, grad_out = np.random.default_rng(0).standard_normal((4, 200, 20)).astype("f4")
    q[::7] *= 1e-30
    stages(linattn.causal_backward, q, k, v, grad_out, feature_map="identity", eps=0)


@pytest.mark.parametrize(
    ("name", "channels", "extra"),
    crossed(
        lambda name, channels, extra: channels == bool(extra),
        ["gated"], [False, True], [None, "bonus"],
    )
    + crossed(
        lambda name, channels, extra: channels == (extra != "beta"),
        ["gated_delta"], [False, True], [None, "erase", "beta"],
    )
    + crossed(lambda name, channels, extra: channels, ["dplr"], [False, True], [None]),
)  # fmt: skip
def test_decays(stages, name, channels, extra):
    """One per token or per channel, none, resets, growth, and such that end chunks."""
    rng = np.random.default_rng(1)
    operands = make(name, (2,), 700, 20, 33)
    options = {"initial_state": start(name, (2,), 20, 33)}
    at = OPERANDS[name].index("g")
    g = operands[at]
    if (name, extra) == ("gated", "bonus"):
        options["bonus"] = rng.standard_normal(20).astype("f4")
    elif (name, extra) == ("gated_delta", "erase"):
        options["erase"] = operands[1][..., ::-1]
    elif (name, extra) == ("gated_delta", "beta"):
        operands[-1] = rng.random((2, 700, 33), "f4")
    if channels:
        g = np.stack(20 * [g], -1) * rng.random(20, "f4")
    for few in (0, 2, 40, 700):
        for value in (-np.inf, -1e4, -90, 0, 5, np.nan):
            operands[at] = g.copy()
            operands[at][rng.random(g.shape) < few / 700] = value
            given, grad_state = with_gradients(name, operands, rng, **options)
            counts = ((2, 1), (3, 4), (8, 9))
            f = gradients(name)
            stages(f, *given, counts=counts, grad_state=grad_state, **options)


@EVERY
def test_values_that_are_not_finite(stages, name):
    rng = np.random.default_rng(2)
    for at in range(3):
        operands = make(name, (), 300, 18, 21)
        operands[at].flat[rng.integers(0, operands[at].size, 3)] = np.nan, np.inf, -np.inf
        given, _ = with_gradients(name, operands, rng)
        stages(gradients(name), *given)


@EVERY
def test_lengths(stages, name):
    """Keys that end anywhere, or do not exist at all."""
    rng = np.random.default_rng(0)
    operands = make(name, (), 100, 16, 33)
    for keys in (0, 1, 15, 16, 50, 99):
        for given in ({}, {"initial_state": start(name, (), 16, 33)}):
            options = given | {"key_lengths": keys}
            some, grad_state = with_gradients(name, operands, rng, **options)
            for x in some[1 : len(OPERANDS[name])]:
                x[keys:] = np.nan
            stages(gradients(name), *some, grad_state=grad_state, **options)


@EVERY
def test_packed_sequences(stages, name):
    """Of any lengths; empty ones hand their gradient through."""
    cuts = [0, 0, 3, 100, 100, 180, 200, 200]
    given = start(name, (2, len(cuts) - 1), 16, 33)
    options = {"cu_seqlens": cuts, "initial_state": given}
    operands = make(name, (2,), 200, 16, 33)
    some, grad_state = with_gradients(name, operands, np.random.default_rng(0), **options)
    stages(gradients(name), *some, grad_state=grad_state, **options)


@EVERY
def test_layouts(stages, name):
    operands = make(name, (2,), 100, 17, 20)
    given, _ = with_gradients(name, operands, np.random.default_rng(0))
    for layout in LAYOUTS.values():
        stages(gradients(name), *(layout(x) for x in given))


@EVERY
def test_instruction_sets_and_poison(stages, isa, name):
    """Without reading what no stage has written."""
    given, _ = with_gradients(name, make(name, (2,), 150, 20, 33), np.random.default_rng(0))
    for chosen in settings.available_isas():
        isa(chosen)
        for byte in (0xFF, 0x7F, 0):
            _linattn.poison_scratch(byte)
            try:
                stages(gradients(name), *given)
            finally:
                _linattn.poison_scratch(0)


@pytest.mark.usefixtures("stages")
@pytest.mark.parametrize("name", ["gated", "gated_delta", "dplr"])
@pytest.mark.parametrize(("gate", "passes"), [(-0.01, 2), (-5.0, 2), (-40.0, 1)])
def test_more_groups_than_there_is_memory_for(threads, name, gate, passes):
    """Strong decays make short chunks: then the first pass ends early, and one thread computes."""
    operands = make(name, (), 600, 32, 32)
    operands[OPERANDS[name].index("g")] = np.full((600, 32), gate, "f4")
    given, _ = with_gradients(name, operands, np.random.default_rng(0))
    threads(1)
    expected = gradients(name)(*given)
    threads(2)
    _linattn.force_stages(8)
    _linattn.take_jobs()
    found = gradients(name)(*given)
    jobs = _linattn.take_jobs()
    _linattn.force_stages(0)
    assert_same(found, expected)
    assert len(jobs) == passes
