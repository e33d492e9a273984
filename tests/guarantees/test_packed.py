"""Sequences packed along n: the same as a loop over them, each with a state of its own."""

import itertools

import numpy as np
import pytest
from bounds import excess
from cases import MAPS
from states import assert_same, bound, check, flat, state, tokens

import linattn
from linattn import State
from linattn._core import settings
from linattn.reference import linear as ref

PACKINGS = [
    [0, 40],
    [0, 0, 40],
    [0, 40, 40],
    [0, 1, 2, 3, 40],
    [0, 15, 31, 31, 31, 32, 40],
    [0, 0, 0, 17, 17, 40, 40],
]


def case(lead, cu, d, m, *, grad=False, normalize=True, dtype="float32", positive=False):
    """Operands and states for packed sequences."""
    operands = tokens((*lead, cu[-1], d, m), dtype=dtype, positive=positive, cotangent=grad)
    core = (*lead, len(cu) - 1, d, m)
    options = {"initial_state": state(core, dtype=dtype, normalize=normalize)}
    if grad:
        options["grad_state"] = state(core, dtype=dtype, normalize=normalize, seed=1)
    else:
        options["return_state"] = True
    return operands, {**options, "normalize": normalize}


def loop(name, operands, cu, **options):
    """One call a sequence, put together again."""
    rows, states = [], []
    for r, (start, stop) in enumerate(itertools.pairwise(cu)):
        own = dict(options)
        for key in ("initial_state", "grad_state"):
            if own.get(key) is not None:
                s, z, _ = own[key]
                own[key] = State(s[..., r, :, :], None if z is None else z[..., r, :])
        result = getattr(linattn, name)(*(x[..., start:stop, :] for x in operands), **own)
        result = result if isinstance(result, tuple) else (result,)
        rows.append([x for x in result if not isinstance(x, State)])
        states.append([x for x in result if isinstance(x, State)])
    joined = [np.concatenate(x, -2) for x in zip(*rows, strict=True)]
    for end in zip(*states, strict=True):
        joined.append(np.stack([x.s for x in end], -3))
        if end[0].z is not None:
            joined.append(np.stack([x.z for x in end], -2))
    return joined


def test_one_sequence_changes_no_bit():
    operands, options = case((2,), [0, 40], 6, 19)
    o, end = linattn.causal(*operands, cu_seqlens=[0, 40], **options)
    first = State(options["initial_state"].s[:, 0], options["initial_state"].z[:, 0])
    plain, last = linattn.causal(*operands, **{**options, "initial_state": first})
    assert_same(o, plain)
    assert end.s.shape == (2, 1, 6, 19) and end.z.shape == (2, 1, 6)
    assert_same([end.s[:, 0], end.z[:, 0]], last)


def test_sequences_do_not_mix():
    cu = [0, 15, 31, 31, 40]
    operands, options = case((), cu, 6, 19, grad=True)
    grads = linattn.causal_backward(*operands, cu_seqlens=cu, **options)
    forward, first = operands[:3], options["initial_state"]
    o, end = linattn.causal(*forward, cu_seqlens=cu, initial_state=first, return_state=True)
    for r in range(4):
        own = slice(cu[r], cu[r + 1])
        rest, others = np.delete(np.arange(40), own), np.delete(np.arange(4), r)
        for which in range(4):
            bad = [x.copy() for x in operands]
            bad[which][own] = np.nan
            poisoned = linattn.causal_backward(*bad, cu_seqlens=cu, **options)
            assert_same([x[rest] for x in poisoned[:3]], [x[rest] for x in grads[:3]])
            assert_same([x[others] for x in flat(poisoned[3])], [x[others] for x in flat(grads[3])])
            o1, end1 = linattn.causal(
                *bad[:3], cu_seqlens=cu, initial_state=first, return_state=True
            )
            assert_same(o1[rest], o[rest])
            assert_same([x[others] for x in flat(end1)], [x[others] for x in flat(end)])


@pytest.mark.parametrize("name", ["causal", "causal_backward"])
def test_with_key_lengths(name):
    """A length counts along all of n: sequences behind it have no keys."""
    for cu in PACKINGS:
        operands, options = case((5,), cu, 6, 19, grad=name != "causal")
        lengths = np.array([0, 16, 31, 33, 40])
        check(name, operands, cu_seqlens=cu, key_lengths=lengths, **options)
        clean = getattr(linattn, name)(*operands, cu_seqlens=cu, key_lengths=lengths, **options)
        past = np.arange(40) >= lengths[:, None]
        for x in operands[1:3]:
            x[past] = np.nan
        poisoned = getattr(linattn, name)(*operands, cu_seqlens=cu, key_lengths=lengths, **options)
        assert_same(poisoned, clean)


def test_broadcast_states():
    """One state a sequence for all heads, and its gradient summed over them."""
    cu = [0, 15, 31, 31, 40]
    operands, _options = case((2, 3), cu, 6, 19, grad=True)
    for own in [(4,), (1, 4), (3, 4), (2, 1, 4), (1, 1, 4)]:
        first = state((*own, 6, 19))
        dense = State(
            np.broadcast_to(first.s, (2, 3, 4, 6, 19)).copy(),
            np.broadcast_to(first.z, (2, 3, 4, 6)).copy(),
        )
        results = [
            linattn.causal_backward(*operands, cu_seqlens=cu, initial_state=x)
            for x in (first, dense)
        ]
        assert_same(results[0][:3], results[1][:3])
        slack = bound("causal_backward", operands, cu_seqlens=cu, initial_state=dense)[3:]
        for x, y, given, s, core in zip(
            flat(results[0][3]), flat(results[1][3]), flat(first), slack, (3, 2), strict=True
        ):
            assert x.shape == given.shape
            assert excess(x, *(ref._sum_to(z.astype("f8"), given, core) for z in (y, s))) <= 1


def test_broadcast_operands():
    """Grouped queries in packed sequences."""
    cu = [0, 15, 31, 31, 40]
    q, k, v, g = tokens((2, 4, 40, 6, 19), cotangent=True)
    k, v = k[:, :1], v[:, :1]
    o, end = linattn.causal(q, k, v, cu_seqlens=cu, return_state=True)
    expected = loop("causal", (q, k, v), cu, return_state=True)
    assert_same([o, end], expected)
    grads = linattn.causal_backward(q, k, v, g, cu_seqlens=cu)
    assert [x.shape for x in grads] == [x.shape for x in (q, k, v)]


def test_many_sequences():
    """More sequences than tokens of most of them, unevenly long."""
    lengths = np.random.default_rng(1).integers(0, 12, 300)
    cu = np.concatenate(([0], lengths.cumsum()))
    operands, options = case((), cu.tolist(), 6, 9, grad=True)
    expected = loop("causal_backward", operands, cu, **options)
    assert_same(linattn.causal_backward(*operands, cu_seqlens=cu, **options), expected)


def test_gufuncs_bring_indices_into_range():
    """Sequences anywhere: nothing outside the arrays is touched, and no row is left unwritten."""
    q, k, v, g = tokens((21, 6, 19), cotangent=True)
    wild = [
        ([-5, 10], [10, 99]),
        ([2**62, -(2**62)], [2**62, 3]),
        ([12, 3], [5, 1]),
        ([4], [9]),
        ([0, 10], [10, 2**63 - 1]),
    ]
    for begin, end in wild:
        r = len(begin)
        s, z = np.zeros((r, 6, 19), "f4"), np.zeros((r, 6), "f4")
        out = np.full((23, 19), np.nan, "f4")
        states = [np.full_like(x, np.nan) for x in (s, z)]
        keys = np.full(r, 2**63 - 1)
        linattn.ufuncs.causal_state_elu(
            q, k, v, 1.0, 1e-6, begin, end, keys, s, z, out=(out[1:-1], *states)
        )
        assert np.isnan(out[[0, -1]]).all()
        assert not np.isnan(out[1:-1]).any() and not any(np.isnan(x).any() for x in states)
        start, stop = np.clip(begin, 0, 21), np.clip(end, 0, 21)
        inside = np.zeros(21, bool)
        for i, j in zip(start, stop, strict=True):
            if i < j:
                np.testing.assert_array_equal(
                    out[1:-1][i:j], linattn.causal(q[i:j], k[i:j], v[i:j])
                )
                inside[i:j] = True
        assert not out[1:-1][~inside].any()
        grads = linattn.ufuncs.causal_state_backward_elu(
            q, k, v, g, 1.0, 1e-6, begin, end, keys, s, z, s, z
        )
        assert not any(np.isnan(x).any() or x[~inside].any() for x in grads[:3])


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("step", [1, 2])
def test_zeros_for_tokens_of_no_sequence(dtype, step):
    """In one head of two, for every dtype, with gaps between the columns of a result."""
    wide = "f8" if dtype == "f8" else "f4"
    q, k, v, g = (x.astype(dtype) for x in tokens((2, 21, 6, 19), cotangent=True))
    decay = -np.abs(q[..., 0]).astype(dtype)
    begin, end = np.array([[0, 10], [3, 10]]), np.array([[10, 21], [5, 21]])
    keys = np.full((2, 2), 21)
    s = np.zeros((2, 2, 6, 19), wide)
    out = np.full((2, 21, 19 * step), np.nan, dtype)[..., ::step]
    o, _ = linattn.ufuncs.gated_state_elu(q, k, v, decay, 1.0, begin, end, keys, s, out=(out, None))
    assert o is out and not np.isnan(out).any()
    uncovered = np.r_[0:3, 5:10]
    assert not out[1, uncovered].any()
    assert out[0].any(-1).all() and np.delete(out[1], uncovered, 0).any(-1).all()
    *grads, _ = linattn.ufuncs.gated_state_backward_elu(
        q, k, v, decay, g, 1.0, begin, end, keys, s, s
    )
    for x in grads:
        assert not np.isnan(x).any() and not x[1, uncovered].any()


@pytest.mark.parametrize(
    ("begin", "end", "good"),
    [
        ([0, 4], [5, 8], False),
        ([4, 0], [8, 5], False),
        ([0, 0], [8, 8], False),
        ([0, 2, 1], [1, 8, 3], False),
        ([0, 2], [[8, 2], [3, 8]], False),  # in the second head alone
        ([4, 0], [8, 4], True),
        ([4, 3, 0], [8, 3, 4], True),  # empty ones have no token
        ([0, 9, -3], [8, 20, -1], True),
        ([5, 3], [2, 5], True),  # the first is none
    ],
)
def test_sequences_with_a_token_in_common(begin, end, good):
    """Two threads would write it: refused by the gufunc before it writes anything."""
    q = tokens((2, 8, 6, 6))[0]
    begin, end = np.broadcast_arrays(begin, end)
    s = np.zeros((begin.shape[-1], 6, 6), q.dtype)
    o = np.full_like(q, 7)
    call = linattn.ufuncs.causal_state_elu_sum
    if good:
        call(q, q, q, 1.0, begin, end, np.broadcast_to(8, begin.shape), s, out=(o, None))
        assert (o != 7).all()
    else:
        with pytest.raises(ValueError, match="causal_state: begin and end give two sequences"):
            call(q, q, q, 1.0, begin, end, np.broadcast_to(8, begin.shape), s, out=(o, None))
        assert (o == 7).all()


def test_a_short_sequence_beside_long_ones(threads):
    """Of what is cut into rows, which the short one has too few of."""
    x, weight = np.random.default_rng(0).random((40000, 3)), np.ones((3, 4))
    cu = [0, 100, 40000]
    expected = np.concatenate([linattn.causal_conv1d(part, weight) for part in (x[:100], x[100:])])
    for count in (1, 4):
        threads(count)
        np.testing.assert_array_equal(linattn.causal_conv1d(x, weight, cu_seqlens=cu), expected)


def test_threads_and_instruction_sets(threads, isa):
    cu = [0, 700, 700, 701, 1500, 3000]
    for lead in ((), (2,)):
        for name in ("causal", "causal_backward"):
            operands, options = case(lead, cu, 32, 64, grad=name != "causal")
            f = getattr(linattn, name)
            threads(1)
            expected = f(*operands, cu_seqlens=cu, **options)
            for count in range(2, 9):
                threads(count)
                assert_same(f(*operands, cu_seqlens=cu, **options), expected)
    for isa_name in settings.available_isas():
        isa(isa_name)
        for name in ("causal", "causal_backward"):
            for feature_map in MAPS[2:3]:
                for dtype in ("float32", "float64"):
                    operands, options = case(
                        (2,), PACKINGS[4], 9, 37, grad=name != "causal", dtype=dtype
                    )
                    check(
                        name, operands, cu_seqlens=PACKINGS[4], feature_map=feature_map, **options
                    )
