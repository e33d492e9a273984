"""Maps that are objects: every operator against its twin."""

from itertools import pairwise

import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS, bound, check, check_delta, close, excess, roundings
from cases import DTYPES, Case, delta_case, make
from isas import ISAS
from map_cases import BACKWARD, FORWARD, POSITIVE, D, operands

import linattn
from linattn import feature_maps as maps
from linattn.reference import delta_rule as reference_delta
from linattn.reference import linear as reference
from linattn.reference import maps as twins

OPERATORS = ("causal", "noncausal", "causal_backward", "noncausal_backward")
MAPS = [
    maps.get("softplus"),
    maps.get("exp").normalized(),
    maps.DPFP(nu=2),
    maps.GeneralizedRandomFeatures.sample(D, 9),
    maps.FeedforwardKernel.aoglu(3, D, 2),
]
FOURIER = maps.RandomFourierFeatures.sample(D, 9)  # signed: for the plain sum, as documented
MORE = {"eps": 0.01, "scale": 0.7, "dtype": "float64"}


def case_of(operator, phi, **options):
    """The case whose operands `operands` makes."""
    return Case(operator, 40, D, D, lead=(2, 3), feature_map=phi, **options)


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("phi", [*MAPS, FOURIER], ids=str)
def test_against_the_twin(isa, name, dtype, phi):
    isa(name)
    for operator in OPERATORS:
        for normalize in (False,) if phi is FOURIER else (True, False):
            check(linattn, case_of(operator, phi, normalize=normalize, dtype=dtype, scale=0.7))


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_positive_features_against_the_twin(isa, name, dtype):
    """Without eps, which is relative to the largest term here."""
    isa(name)
    for phi in POSITIVE:
        for operator in OPERATORS:
            check(linattn, case_of(operator, phi, eps=0.0, dtype=dtype))


@pytest.mark.parametrize("operator", FORWARD)
@pytest.mark.parametrize("phi", MAPS, ids=str)
def test_key_lengths_and_broadcasting(operator, phi):
    q, k, v, g = operands()
    lengths = np.array([[33], [40]])
    if not isinstance(phi, maps.FeedforwardKernel):
        k = k[:, :1]
    for normalize in (True, False):
        options = {"normalize": normalize, "eps": 0.01, "scale": 0.7, "key_lengths": lengths}
        exact = {**options, "feature_map": twins.twin(phi)}
        results = [FORWARD[operator](q, k, v, feature_map=phi, **options)]
        results += BACKWARD[operator](q, k, v, g, feature_map=phi, **options)
        expected = [getattr(reference, operator)(q, k, v, **exact)]
        expected += getattr(reference, f"{operator}_backward")(q, k, v, g, **exact)
        # Of each case's own bound, the largest: keys that are left out only make it smaller, and
        # three heads of queries to one of keys are a sum of three.
        whole = np.broadcast_to(k, q.shape)
        allowed = [2 * bound(case_of(operator, phi, **MORE, normalize=normalize), (q, whole, v))[0]]
        allowed += bound(
            case_of(f"{operator}_backward", phi, **MORE, normalize=normalize), (q, whole, v, g)
        )
        for x, y, slack in zip(results, expected, allowed, strict=True):
            close(x, y, atol=6 * slack.max())


@pytest.mark.parametrize("phi", [*MAPS[2:], *POSITIVE], ids=str)
def test_states_and_steps(phi):
    q, k, v, _ = operands()
    o = linattn.causal(q, k, v, feature_map=phi)
    head = [x[..., :17, :] for x in (q, k, v)]
    first, state = linattn.causal(*head, feature_map=phi, return_state=True)
    rest = []
    for i in range(17, 40):
        token, state = linattn.step(*(x[..., i, :] for x in (q, k, v)), state, feature_map=phi)
        rest.append(token)
    (allowed,) = bound(case_of("causal", phi, dtype="float64"), (q, k, v))
    joined = np.concatenate([first, np.stack(rest, -2)], -2)
    assert excess(joined, o, 2 * allowed) <= 1  # either may be off


DELTA = [maps.DPFP(nu=2), maps.get("relu").normalized(), maps.PositiveRandomFeatures.sample(D, 9)]


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("phi", DELTA, ids=str)
def test_delta_rule(isa, name, phi):
    isa(name)
    for dtype in DTYPES:
        case = delta_case(12, D, D, (2, 3), feature_map=phi, dtype=dtype)
        check_delta(linattn, case)
        *tokens, _ = make(case)
        _, state = linattn.delta(*tokens, **case.options, return_state=True)
        token = [x[:, :, 0] for x in tokens]
        o, end = linattn.delta_step(*token, state, **case.options)
        options = {**case.options, "feature_map": twins.twin(phi)}
        expected, last = reference_delta.delta_step(*token, state, **options)
        close(o, expected, atol=roundings(DELTA_ROUNDINGS, expected, dtype=dtype))
        close(end.s, last.s, atol=roundings(DELTA_ROUNDINGS, last.s, dtype=dtype))


def test_names():
    q, k, v, g = operands()
    elu = linattn.causal(q, k, v)
    np.testing.assert_array_equal(linattn.causal(q, k, v, feature_map=maps.get("elu")), elu)
    named = linattn.noncausal(q, k, v, feature_map="dpfp")
    np.testing.assert_array_equal(linattn.noncausal(q, k, v, feature_map=maps.DPFP()), named)
    for bad in (3, None, np.exp):
        with pytest.raises(TypeError, match="causal: feature_map is"):
            linattn.causal(q, k, v, feature_map=bad)
        with pytest.raises(TypeError, match="noncausal_backward: feature_map is"):
            linattn.noncausal_backward(q, k, v, g, feature_map=bad)


def test_in_place_step():
    q, k, v, _ = operands(3)
    phi = POSITIVE[0]
    _, state = linattn.causal(q, k, v, feature_map=phi, return_state=True)
    copies = linattn.State(*(x.copy() for x in state))
    token = [x[..., 0, :] for x in (q, k, v)]
    o, after = linattn.step(*token, state, feature_map=phi)
    same, written = linattn.step(*token, copies, feature_map=phi, in_place=True)
    np.testing.assert_array_equal(o, same)
    assert written is copies
    for x, y in zip(copies, after, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("bounds", [[0, 4, 4, 30], [0, 30]])
def test_packed_sequences(bounds):
    """Each as if it were alone, states, lengths and gradients included."""
    q, k, v, g = operands(30, np.float64, 3.0)
    options = {"feature_map": POSITIVE[0], "eps": 0.0}
    first = linattn.State(
        np.ones((2, 3, len(bounds) - 1, 9, D)),
        np.ones((2, 3, len(bounds) - 1, 9)),
        np.zeros((2, 3, len(bounds) - 1, 9)),
    )
    packed = {"cu_seqlens": bounds, "key_lengths": [[25], [30]], **options}
    o, last = linattn.causal(q, k, v, initial_state=first, return_state=True, **packed)
    grads = linattn.causal_backward(q, k, v, g, initial_state=first, grad_state=last, **packed)
    out = np.empty_like(o)
    assert linattn.causal(q, k, v, initial_state=first, out=out, **packed) is out
    np.testing.assert_array_equal(out, o)
    for r, (start, stop) in enumerate(pairwise(bounds)):
        rows = (..., slice(start, stop), slice(None))
        one = [x[rows] for x in (q, k, v, g)]
        keys = {"key_lengths": np.clip([[25 - start], [30 - start]], 0, stop - start), **options}
        alone = [linattn.State(x.s[..., r, :, :], x.z[..., r, :], x.log_scale[..., r, :])
                 for x in (first, last)]  # fmt: skip
        expected, state = linattn.causal(
            *one[:3], initial_state=alone[0], return_state=True, **keys
        )
        np.testing.assert_array_equal(o[rows], expected)
        np.testing.assert_array_equal(last.s[..., r, :, :], state.s)
        np.testing.assert_array_equal(last.log_scale[..., r, :], state.log_scale)
        *wanted, of_state = linattn.causal_backward(
            *one, initial_state=alone[0], grad_state=alone[1], **keys
        )
        for x, y in zip(grads[:3], wanted, strict=True):
            np.testing.assert_array_equal(x[rows], y)
        np.testing.assert_array_equal(grads[3].s[..., r, :, :], of_state.s)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits(dtype):
    """Computed in float32, returned in the operands' dtype."""
    dtype = np.dtype(getattr(pytest.importorskip("ml_dtypes"), dtype, dtype))
    q, k, v, g = (x.astype(dtype) for x in operands(20, np.float32))
    wide = [x.astype(np.float32) for x in (q, k, v, g)]
    for phi in (POSITIVE[0], maps.DPFP()):
        assert phi(q).dtype == np.float32
        for name, f in FORWARD.items():
            o = f(q, k, v, feature_map=phi)
            np.testing.assert_array_equal(o, f(*wide[:3], feature_map=phi).astype(dtype))
            assert o.dtype == dtype
            out = np.empty_like(o)
            assert f(q, k, v, feature_map=phi, out=out) is out
            np.testing.assert_array_equal(out, o)
            grads = BACKWARD[name](q, k, v, g, feature_map=phi)
            assert all(x.dtype == dtype for x in grads)
    assert linattn.softmax_attention(q, k, v).dtype == dtype
    assert linattn.softmax_attention_backward(q, k, v, g)[2].dtype == dtype
    E = np.ones((20, 4), dtype)
    assert linattn.linformer(q, k, v, E, E, out=np.empty_like(q)).dtype == dtype
    assert linattn.linformer_backward(q, k, v, E, E, g)[4].dtype == dtype


@pytest.mark.parametrize("name", ISAS)
@pytest.mark.parametrize("phi", POSITIVE, ids=str)
def test_a_state_is_sums_of_features(isa, name, phi):
    """Those of phi itself, so that a state made of phi(k) is a place to start from."""
    isa(name)
    for dtype in (np.float32, np.float64):
        q, k, v, _ = operands(dtype=dtype)
        features = phi(k)
        sums = linattn.State(features.mT @ v, features.sum(-2))
        _, state = linattn.causal(q, k, v, feature_map=phi, return_state=True)
        terms = 200 * np.finfo(dtype).eps
        close(state.s, sums.s, rtol=0, atol=terms * abs(features.mT @ abs(v)).max())
        close(state.z, sums.z, rtol=terms, atol=0)
        close(state.log_scale, np.log(features).max(-2), rtol=0, atol=terms)
        o = linattn.causal(q, k, v, feature_map=phi, initial_state=sums, eps=0.0)
        expected = reference.causal(
            q, k, v, feature_map=twins.twin(phi), initial_state=sums, eps=0.0
        )
        close(o, expected, rtol=0, atol=terms * abs(v).max())
