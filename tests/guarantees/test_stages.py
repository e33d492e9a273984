"""Long sequences, few of them, in the stages of `src/ext/stages.c`: the same bits as by one thread,
forward and backward.  Two or three threads take whole groups in turn, more of them share each; of
the delta rule with momentum, whose gradients alone have stages, two share each."""

import subprocess
import sys

import numpy as np
import pytest
from layouts import LAYOUTS
from slow import grid
from stages import forced
from states import assert_same
from table import ALL, ATTENTION, FIRST, apply, first_of

from linattn import _linattn
from linattn._core import settings

STAGED = {"causal", "delta", "gated", "ssd", "gated_delta", "dplr", "mlstm"}
CASES = [x for x in FIRST if x.name in STAGED]
MLSTM = CASES[-1]
MOMENTUM = next(x for x in FIRST if x.name == "momentum_delta")
#: What has stages: cases, and whether their gradients are meant.
MADE = [*((x, backward) for x in CASES for backward in (False, True)), (MOMENTUM, True)]
NONCAUSAL = [x for x in ALL if x.name == "noncausal"]
CAUSAL, GATED = CASES[0], [x for x in ATTENTION if "g" in x.letters and "mu" not in x.letters]
WIDTHS = [(0, 9), (5, 0), (1, 1), (5, 9), (16, 33), (70, 130), (64, 64), (200, 9)]
#: Recurrences that may have a gate per key channel.
BY_CHANNEL = [x for x in first_of(GATED) if x.name != "ssd"]
EVERY = pytest.mark.parametrize("case", CASES, ids=str)
BOTH = pytest.mark.parametrize("backward", [False, True])


def each_of(made):
    """A test of each case and of each gradient."""
    ids = [f"{case}{', backward' * backward}" for case, backward in made]
    return pytest.mark.parametrize(("case", "backward"), made, ids=ids)


def make(case, lead, n, d, m, dtype="f4"):
    return case.operands(lead, n, d=d, m=m, dtype=dtype)


def start(case, lead, d, m, dtype="f4"):
    """A state that is not zero."""
    return case.state(lead, d=d, m=m, dtype=dtype)


def call(case, backward, options):
    """The function, and its options with a gradient of the last state if there is a first one."""
    if backward and "initial_state" in options:
        options = options | {"grad_state": apply(np.negative, options["initial_state"])}
    forward = case.forward if case.held else case.call
    return case.backward if backward else forward, options


def check(stages, case, backward, operands, **options):
    f, options = call(case, backward, options)
    stages(f, operands, **options)


@grid(
    lambda made, dtype: dtype == "f4" or made[0].name == "gated",
    made=MADE,
    dtype=["f2", "f4", "f8"],
)
def test_shapes(stages, made, dtype):
    """Sums of more than 16 chunks are compensated; of no tokens, states are handed through."""
    wide = np.promote_types(dtype, "f4")
    for n in (0, 1, 15, 16, 17, 300, 700):
        for d, m in WIDTHS if n < 700 else [(16, 33)]:
            for lead in ((), (3,)):
                operands = make(made[0], lead, n, d, m, dtype)
                check(stages, *made, operands)
                given = start(made[0], lead, d, m, wide)
                check(stages, *made, operands, initial_state=given)


@grid(
    lambda made, count: count != 5 or not made[1],
    made=MADE[:-1],
    count=[2, 5, 16],
)
def test_a_call_that_chooses_stages(threads, made, count):
    """Few sequences of some tokens, of which the threads, or three each, share each pass."""
    for lead, n in (((), 1024), ((), 5000), ((3,), 3000)):
        operands = make(made[0], lead, n, 64, 64)
        f, options = call(*made, {})
        threads(1)
        expected = f(operands, **options)
        threads(count)
        _linattn.take_jobs()
        assert_same(f(operands, **options), expected)
        jobs, passes = _linattn.take_jobs(), 1 + made[1]
        ends = [(3, 3)] if lead and made == (MLSTM, True) else []  # the gradients of its gates
        if not lead or count == 16:
            lanes = count if n > 1024 else min(count, 3)
            assert [x[1] for x in jobs[:passes]] == [lanes] * passes and jobs[passes:] == ends
            assert all(x[0] > lanes for x in jobs[:passes])


@pytest.mark.parametrize("count", [2, 5, 16])
def test_panels_of_momentum(threads, count):
    """From two threads per head on, they carry some of its 16 or more panels of columns each; of a
    single panel, one thread computes all."""
    for lead, n, m, passes in (
        ((), 1100, 256, 2), ((2,), 1100, 256, 1 if count == 2 else 2), ((), 15000, 8, 0)
    ):  # fmt: skip
        operands = make(MOMENTUM, lead, n, 16, m)
        threads(1)
        expected = MOMENTUM.backward(operands)
        threads(count)
        _linattn.take_jobs()
        assert_same(MOMENTUM.backward(operands), expected)
        assert [x[1] for x in _linattn.take_jobs()] == [count] * passes


def test_blocks_of_momentum(stages):
    """Of sequences as long as they please, so that each has its own; the last one without keys."""
    cuts, given = [0, 10, 3000, 3100, 4500], start(MOMENTUM, (4,), 9, 40)
    operands = make(MOMENTUM, (), 4500, 9, 40)
    check(stages, MOMENTUM, True, operands, cu_seqlens=cuts, initial_state=given)
    check(stages, MOMENTUM, True, operands, key_lengths=2900)


@each_of([*((x, False) for x in CASES), (MOMENTUM, True)])
def test_heads_left_over(threads, case, backward):
    """Of seven heads, each of three threads computes two, and all of them share the last one."""
    f, _ = call(case, backward, {})
    operands = make(case, (7,), 2000, 64, 33)
    threads(1)
    expected = f(operands)
    threads(3)
    _linattn.take_jobs()
    assert_same(f(operands), expected)
    (items, lanes), *_ = _linattn.take_jobs()
    assert lanes == 3 < items


@BOTH
def test_an_empty_sequence_beside_long_ones(threads, backward):
    """It hands its state, or the gradient of it, through stages that the call chooses."""
    case, cuts = GATED[0], [0, 0, 20000, 20000, 40000]
    operands, given = make(case, (1,), 40000, 16, 16), start(case, (1, len(cuts) - 1), 16, 16)
    f, options = call(case, backward, {"initial_state": given})
    threads(1)
    expected = f(operands, cu_seqlens=cuts, **options)
    threads(16)
    assert_same(f(operands, cu_seqlens=cuts, **options), expected)


@BOTH
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("feature_map", ["elu", "exp", "l2norm", "dpfp"])
def test_maps(stages, feature_map, normalize, backward):
    case = CAUSAL._replace(options={"normalize": normalize, "feature_map": feature_map})
    check(stages, case, backward, make(case, (), 200, 20, 20))


def test_grouped_queries(stages):
    operands = make(CAUSAL, (2, 3), 100, 16, 16)
    operands |= {x: operands[x][:, :1] for x in "kv"}
    check(stages, CAUSAL, False, operands)


def test_denominators_near_zero(stages):
    """Rows that are lifted, since the inverse of their denominator is too large."""
    case = CAUSAL._replace(options={"feature_map": "identity", "eps": 0.0})
    operands = make(case, (), 200, 20, 20)
    operands["q"][::7] *= 1e-30
    check(stages, case, True, operands)


@grid(
    lambda case, backward: (
        not backward
        or case in CASES
        or (case.letters["g"] == "nd" and case.letters.get("beta") != "nm")
    ),
    case=GATED,
    backward=[False, True],
)
def test_decays(stages, case, backward):
    """One per token or per channel, none, resets, growth, and such that end chunks."""
    n, rng = 700 if backward else 300, np.random.default_rng(1)
    operands = make(case, (2,), n, 20, 33)
    g, given = operands["g"], start(case, (2,), 20, 33)
    counts = ((2, 1), (3, 4), (8, 9 if backward else 50))
    for few in (0, 2, 40, 700)[: 4 if backward else 3]:
        for value in (-np.inf, -1e4, -90, 0, 5, np.nan):
            operands["g"] = g.copy()
            operands["g"][rng.random(g.shape) < few / n] = value
            check(stages, case, backward, operands, initial_state=given, counts=counts)


@BOTH
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("case", NONCAUSAL, ids=str)
def test_noncausal(stages, case, dtype, backward):
    """Runs of 8 chunks, fewer and more of keys than of queries, and key lengths."""
    rng = np.random.default_rng(5)
    for n, s in ((0, 9), (1, 1300), (700, 0), (700, 3), (1300, 700), (1300, 4000)):
        for d, m in ((1, 1), (33, 9), (16, 70)) if n < 1300 else [(16, 33)]:
            operands = make(case, (2,), n, d, m, dtype)
            operands |= {
                x: rng.standard_normal((2, s, width)).astype(dtype)
                for x, width in (("k", d), ("v", m))
            }
            check(stages, case, backward, operands)
            check(stages, case, backward, operands, key_lengths=[s // 3, 0])


@BOTH
def test_noncausal_of_any_numbers(stages, backward):
    """Rows that are lifted, since the inverse of their denominator is too large; inf and NaN."""
    case = NONCAUSAL[0]._replace(options={"feature_map": "identity", "eps": 0.0})
    operands = make(case, (), 1200, 20, 20)
    operands["q"][::7] *= 1e-30
    check(stages, case, backward, operands)
    for name in "qkv":
        operands[name][100, 3], operands[name][900, 4] = np.nan, np.inf
        check(stages, case, backward, operands)


def test_noncausal_by_groups_of_queries(stages):
    operands = make(NONCAUSAL[0], (2, 3), 600, 16, 16)
    operands |= {x: operands[x][:, :1] for x in "kv"}
    check(stages, NONCAUSAL[0], False, operands)


@BOTH
@pytest.mark.parametrize("count", [2, 5, 16])
def test_noncausal_chooses_stages(threads, backward, count):
    """A pass over the keys, one over the queries, and of gradients another over the keys."""
    case = NONCAUSAL[0]
    operands = make(case, (), 5000, 64, 64)
    f, _ = call(case, backward, {})
    threads(1)
    expected = f(operands)
    threads(count)
    _linattn.take_jobs()
    assert_same(f(operands), expected)
    assert [x[1] for x in _linattn.take_jobs()] == [count] * (2 + backward)


@BOTH
@pytest.mark.parametrize("name", "if")
@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"eps": 0.25}], ids=str)
def test_gates_of_mlstm(stages, options, name, backward):
    """Resets, gates so far apart that little or all is forgotten, and equal ones; what is reset may
    not be finite."""
    rng = np.random.default_rng(4)
    case = MLSTM._replace(options=options)
    operands = make(case, (2,), 300, 20, 33)
    operands["k"][0, 7, 3] = np.inf
    gates, given = operands[name], start(case, (2,), 20, 33)
    for few in (2, 40, 300):
        for value in (-np.inf, -1e4, -90, 0, 90, 1e4, np.nan):
            operands[name] = gates.copy()
            operands[name][rng.random(gates.shape) < few / 300] = value
            check(stages, case, backward, operands, initial_state=given)


@each_of(MADE)
def test_values_that_are_not_finite(stages, case, backward):
    rng = np.random.default_rng(2)
    for name in "qkv":
        operands = make(case, (), 300, 18, 21)
        operands[name].flat[rng.integers(0, operands[name].size, 3)] = np.nan, np.inf, -np.inf
        check(stages, case, backward, operands)


@each_of(MADE)
def test_lengths(stages, case, backward):
    """Keys that end anywhere, or do not exist at all; what follows them is not read."""
    for keys in (0, 1, 15, 16, 50, 99):
        operands = make(case, (), 100, 16, 33)
        for name in operands.keys() - {"q", "grad_out"}:
            operands[name][keys:] = np.nan
        for given in ({}, {"initial_state": start(case, (), 16, 33)}):
            check(stages, case, backward, operands, key_lengths=keys, **given)


@each_of(MADE)
def test_packed_sequences(stages, case, backward):
    """Of any lengths; empty ones hand their state, or its gradient, through."""
    cuts = [0, 0, 3, 100, 100, 180, 200, 200]
    given = start(case, (2, len(cuts) - 1), 16, 33)
    operands = make(case, (2,), 200, 16, 33)
    check(stages, case, backward, operands, cu_seqlens=cuts, initial_state=given)


@each_of([*MADE, (NONCAUSAL[0], False), (NONCAUSAL[0], True)])
def test_layouts(stages, case, backward):
    operands = make(case, (2,), 100, 17, 20)
    for layout in LAYOUTS.values():
        check(stages, case, backward, {x: layout(y) for x, y in operands.items()})


@EVERY
@pytest.mark.parametrize("count", [2, 4])
def test_a_state_in_place(threads, case, count):
    """The state after the tokens takes the place of the one before them."""
    operands, given = make(case, (1,), 400, 16, 33), start(case, (1,), 16, 33)
    threads(1)
    _, expected = case.forward(operands, initial_state=given)
    pool = apply(lambda x: np.concatenate([x, x]), given)
    threads(count)
    with forced(3):
        case.forward(operands, initial_state=pool, state_indices=[1])
    assert_same(apply(lambda x: x[1:], pool), expected)


@EVERY
def test_nothing_looks_ahead(threads, case):
    rng = np.random.default_rng(3)
    operands = make(case, (), 300, 8, 9)
    threads(3)
    with forced(2):
        clean = case.call(operands)
        for t in (1, 15, 16, 17, 33, 64, 99, 130, 299):
            future = {x: y.copy() for x, y in operands.items()}
            for x in future.values():
                x[t:] = rng.choice([np.nan, np.inf, -np.inf, 1e38, 0], x[t:].shape)
            np.testing.assert_array_equal(case.call(future)[:t], clean[:t])


@each_of([*MADE, (NONCAUSAL[0], False), (NONCAUSAL[0], True)])
def test_instruction_sets_and_poison(stages, isa, poison, case, backward):
    """Without reading what no stage has written; at some widths, rows are padded far."""
    counts = ((2, 1), (3, 4), (8, 3))
    for d, dtype in ((20, "f4"), (5, "f8"), (256, "f8"), (512, "f4")):
        operands = make(case, (2,) if d < 256 else (), 150, d, 33, dtype)
        for chosen in settings.available_isas():
            isa(chosen)
            for byte in (0xFF, 0x7F, 0) if d == 20 else (0xFF,):
                poison(byte)
                check(stages, case, backward, operands, counts=counts)


CROWDED = """
import time
import numpy as np, linattn
q, k, v = np.random.default_rng(0).standard_normal((3, 4096, 64), dtype=np.float32)
call = lambda: linattn.causal_backward(q, k, v, v, cu_seqlens=[0, 100, 4096])
linattn.set_num_threads(1)
expected = call()
linattn.set_num_threads(4)
end, right = time.monotonic() + 3, True
while time.monotonic() < end:
    right = right and all(map(np.array_equal, call(), expected))
print(right)
"""


def test_threads_far_behind_others():
    """In processes that take the processors from each other, until memory for groups ends."""
    options = {"stdout": subprocess.PIPE, "text": True}
    programs = [subprocess.Popen([sys.executable, "-c", CROWDED], **options) for _ in range(3)]
    try:
        assert [x.communicate(timeout=120)[0].strip() for x in programs] == ["True"] * 3
    finally:
        for program in programs:
            program.kill()


@pytest.mark.parametrize("case", [*CASES, MOMENTUM], ids=str)
@pytest.mark.parametrize("count", [3, 6, 8])
def test_threads_that_stay_away(threads, case, count):
    """Between their pieces, so that others take their groups over; sequences of any length."""
    cuts = [0, 100, 100, 1500]
    operands = make(case, (1,), 1500, 16, 33)
    threads(1)
    expected = case.backward(operands, cu_seqlens=cuts)
    threads(count)
    with forced(1 if case.name == "causal" else 8):
        _linattn.delay_workers(1)
        try:
            assert_same(case.backward(operands, cu_seqlens=cuts), expected)
        finally:
            _linattn.delay_workers(0)


@pytest.mark.parametrize("case", BY_CHANNEL, ids=str)
@pytest.mark.parametrize(("gate", "passes"), [(-0.01, 2), (-5.0, 2), (-40.0, 1)])
def test_more_groups_than_there_is_memory_for(threads, case, gate, passes):
    """Strong decays make short chunks: then the first pass ends early, and one thread computes."""
    operands = make(case, (), 600, 32, 32)
    operands["g"] = np.full((600, 32), gate, "f4")
    threads(1)
    expected = case.backward(operands)
    threads(2)
    with forced(8):
        _linattn.take_jobs()
        found = case.backward(operands)
        jobs = _linattn.take_jobs()
    assert_same(found, expected)
    assert len(jobs) == passes
