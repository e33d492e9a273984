"""Operators with map objects check operands and ignore padding as with fused maps."""

from itertools import product

import numpy as np
import pytest
from bounds import close
from slow import looped, slow
from states import assert_same, flat

import linattn
from linattn import State
from linattn import feature_maps as maps

D, M, N = 6, 5, 12
POSITIVE = maps.PositiveRandomFeatures.sample(D, 9, hyperbolic=True, rng=2)
F = POSITIVE.features(D)
MAPS = [
    maps.get("elu"),
    maps.get("exp").normalized(),
    maps.get("relu").normalized(eps=0.0),
    maps.DPFP(nu=2),
    maps.GeneralizedRandomFeatures.sample(D, 9),
    maps.RandomFourierFeatures.sample(D, 9),
    maps.FeedforwardKernel.aoglu(3, D, 2),
    POSITIVE,
]
OPERATORS = ["causal", "noncausal", "delta"]


def operands(operator, lead=(3,), dtype="float64"):
    """q, k and v by name, and what else the operator takes."""
    rng = np.random.default_rng(1)
    shapes = {"q": (N, D), "k": (N, D), "v": (N, M)}
    if operator.startswith("delta"):
        shapes["beta"] = (N,)
    if operator.endswith("_backward"):
        shapes["grad_out"] = (N, M)
    if operator.endswith("step"):
        shapes = {name: shape[1:] for name, shape in shapes.items()}
    return {
        name: rng.standard_normal((*lead, *shape)).astype(dtype) for name, shape in shapes.items()
    }


def state(lead=(), dtype="float64"):
    rng = np.random.default_rng(2)
    z, log_scale = 1 + rng.random((*lead, F)), rng.standard_normal((*lead, F))
    s = rng.standard_normal((*lead, F, M))
    return State(*(x.astype(dtype) for x in (s, z, log_scale)))


def call(operator, arrays, **options):
    return getattr(linattn, operator)(**arrays, feature_map=POSITIVE, **options)


def refuse(operator, error, *words, arrays=None, **options):
    with pytest.raises(error) as caught:
        call(operator, arrays or operands(operator), **options)
    assert type(caught.value) is error
    for word in (f"{operator}: ", *words):
        assert word in str(caught.value), f"{word!r} is not in {str(caught.value)!r}"


@looped(phi=MAPS)
@looped(operator=OPERATORS)
@pytest.mark.parametrize("dtype", [*slow("float16"), "float32", *slow("float64")])
@looped(poison=[np.nan, np.inf])
def test_padding_has_no_gradient(phi, operator, dtype, poison):
    """Whatever it holds: 0 to the bit in dk, dv and dbeta, and not seen by anything else."""
    lengths = np.array([0, 5, N])
    packings = [{}] if operator == "noncausal" else [{}, {"cu_seqlens": [0, 4, 4, 9, N]}]
    normalizers = [{}] if operator == "delta" else [{"normalize": x} for x in (True, False)]
    for packing, normalizer in product(packings, normalizers):
        arrays = operands(f"{operator}_backward", dtype=dtype)
        options = {"feature_map": phi, "key_lengths": lengths, **packing, **normalizer}
        with np.errstate(over="ignore"):  # signed features: a quotient may be beyond 16 bits
            clean = getattr(linattn, f"{operator}_backward")(**arrays, **options)
        past = np.arange(N) >= lengths[:, None]
        for name in {"k", "v", "beta"} & arrays.keys():
            arrays[name][past] = poison
        with np.errstate(all="ignore"):  # of a map on inf, whose features are not used
            grads = getattr(linattn, f"{operator}_backward")(**arrays, **options)
        for grad in grads[1:]:
            assert not grad[past].any()
        assert_same(grads, clean)


@pytest.mark.parametrize("phi", [maps.RandomFourierFeatures.sample(D, 9), POSITIVE], ids=str)
@pytest.mark.parametrize("operator", ["causal_backward", "noncausal_backward"])
def test_padding_of_shared_keys(phi, operator):
    """A key exists where it does for one of the heads that share it."""
    arrays = operands(operator, (2, 3))
    for lengths in (np.array([[1, 9, 4], [7, 0, 5]]), np.array([3, 0, 8]), np.array([[2], [6]])):
        every = np.broadcast_to(lengths, (2, 3))
        for shared in ((1, 3), (2, 1), (1, 1), (3,), (1,), ()):
            longest = every
            for axis in range(2):
                if len(shared) < 2 - axis or shared[axis - 2] == 1:
                    longest = longest.max(axis, keepdims=True)
            past = np.arange(N) >= longest.reshape(shared)[..., None]
            k = np.random.default_rng(4).standard_normal((*shared, N, D))
            k[past] = np.nan
            options = {"feature_map": phi, "normalize": phi is POSITIVE, "key_lengths": lengths}
            dk = getattr(linattn, operator)(**{**arrays, "k": k}, **options)[1]
            np.testing.assert_array_equal(dk[past], 0)
            assert dk[~past].all()


MIXED = [
    ("float32", "float64", "float32"),
    ("float16", "int16", "float16"),
    ("float32", "int64", "float32"),
    ("float16", "float16", "float32"),
    ("float32", "float32", "float64"),
    ("int8", "float16", "float16"),
]


@pytest.mark.parametrize("dtypes", MIXED, ids=str)
@pytest.mark.parametrize("operator", OPERATORS)
def test_dtypes_promote_as_with_a_fused_map(operator, dtypes):
    """dtypes of q, of k and v, and of what else there is."""
    for name in (operator, f"{operator}_backward"):
        arrays = operands(name)
        for key, x in arrays.items():
            dtype = dtypes[{"q": 0, "k": 1, "v": 1}.get(key, 2)]
            arrays[key] = np.rint(x).astype(dtype)
        expected = flat(getattr(linattn, name)(**arrays, feature_map="elu"))
        for phi in (maps.DPFP(), POSITIVE):
            result = flat(getattr(linattn, name)(**arrays, feature_map=phi))
            assert [x.dtype for x in result] == [x.dtype for x in expected]


def test_step_states():
    arrays, (s, z, log_scale) = operands("step"), state((3,))
    refuse("step", ValueError, "state.log_scale", state=State(s, z, log_scale * np.nan))
    refuse("step", ValueError, "state.log_scale", state=State(s, z), in_place=True)
    expected = call("step", arrays, state=state((3,)))
    assert_same(call("step", arrays, state=(s, z, log_scale)), expected)
    assert_same(call("step", arrays, state=state((3,)), in_place=True), expected)


@pytest.mark.parametrize("packing", [{}, {"cu_seqlens": [0, 5, N]}])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scales_that_are_not_finite(packing, bad):
    s, z, log_scale = state((3, *(2,) * len(packing)))
    given = State(s, z, np.where(z > 1.5, bad, log_scale))
    for operator in ("causal", "causal_backward"):
        refuse(operator, ValueError, "initial_state.log_scale", initial_state=given, **packing)


def test_a_state_without_scale_holds_plain_sums():
    """Of any size: what it means does not depend on how large its sums are."""
    arrays = operands("causal", ())
    plain = state()
    for power in (-200, -60, 0, 60, 200):
        factor = 2.0**power
        given = State(plain.s * factor, plain.z * factor)
        log_scale = np.zeros(F)  # |log_scale| < 33: s and z as they are
        expected = call("causal", arrays, eps=0.0, initial_state=State(*given[:2], log_scale))
        o = call("causal", arrays, eps=0.0, initial_state=given)
        close(o, expected, atol=1e-12, rtol=1e-10)
        grads = operands("causal_backward", ())
        ds = [call("causal_backward", grads, eps=0.0, initial_state=x)[-1]
              for x in (given, State(*given[:2], log_scale))]  # fmt: skip
        for x, y in zip(*(x[:2] for x in ds), strict=True):
            close(x, y, atol=1e-12 * abs(y).max(), rtol=1e-9)
    zeros = State(np.zeros((F, M)), np.zeros(F))
    assert_same(call("causal", arrays, initial_state=zeros), call("causal", arrays))


@pytest.mark.parametrize("bad", [1, None, "yes", np.ones(3)], ids=str)
def test_normalize_is_a_flag(bad):
    """Also where only `PositiveRandomFeatures` ask what it is."""
    words = "normalize is", "expected True or False"
    pool = {"initial_state": state((4,)), "state_indices": [0, 1, 2]}
    for operator in ("causal", "noncausal", "causal_backward", "noncausal_backward"):
        refuse(operator, TypeError, *words, normalize=bad)
    refuse("causal", TypeError, *words, normalize=bad, **pool)
    refuse("step", TypeError, *words, normalize=bad, state=state((3,)))
