"""Sequences packed along n: the same as a loop over them, each with a state of its own."""

import numpy as np
import pytest
from states import tokens

import linattn


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
