"""Maps that are objects: every operator against its twin."""

import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS, check, check_delta, close, roundings
from cases import DTYPES, Case, delta_case, make
from isas import ISAS
from map_cases import POSITIVE, D, operands

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
    q, k, v, _ = operands()
    elu = linattn.causal(q, k, v)
    np.testing.assert_array_equal(linattn.causal(q, k, v, feature_map=maps.get("elu")), elu)
    for name, phi in ("dpfp", maps.DPFP()), ("l2norm", maps.L2Norm()):
        for f, options in (
            (linattn.causal, {"normalize": False}), (linattn.noncausal, {"normalize": False}),
            (linattn.delta, {"beta": v[..., 0]}),
        ):  # fmt: skip
            named = f(q, k, v, feature_map=name, **options)
            np.testing.assert_array_equal(f(q, k, v, feature_map=phi, **options), named)


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
