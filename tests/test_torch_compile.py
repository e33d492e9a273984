"""torch.compile, in one graph, of functions that create maps and states."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import linattn  # noqa: E402
import linattn.torch as la  # noqa: E402
from linattn.torch import feature_maps as maps  # noqa: E402

OMEGA = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
WEIGHT = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(2))
OUTSIDE = maps.DPFP(2)
ARRAYS = linattn.feature_maps.DPFP(2)


@pytest.fixture(autouse=True)
def _forget_what_was_compiled():
    torch._dynamo.reset()


def both(function, *args, **options):
    """What a function gives, and what it gives compiled."""
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", **options)
    return function(*args), compiled(*args)


def assert_same(pair):
    torch.testing.assert_close(*pair, rtol=0, atol=0)


MAPS = {
    "DPFP": lambda: maps.DPFP(2),
    "DPFP by name": lambda: maps.DPFP(nu=1, normalize=False),
    "Elementwise": lambda: maps.Elementwise("relu"),
    "L2Norm": lambda: maps.L2Norm(),
    "Rebased": lambda: maps.Rebased(),
    "Taylor": lambda: maps.Taylor(0.3),
    "SumNormalized": lambda: maps.SumNormalized(maps.DPFP()),
    "get": lambda: maps.get("dpfp"),
    "PositiveRandomFeatures": lambda: maps.PositiveRandomFeatures(OMEGA, hyperbolic=True),
    "RandomFourierFeatures": lambda: maps.RandomFourierFeatures(OMEGA, 2.0),
    "GeneralizedRandomFeatures": lambda: maps.GeneralizedRandomFeatures(OMEGA),
    "FeedforwardKernel": lambda: maps.FeedforwardKernel([(WEIGHT, WEIGHT), (WEIGHT,)]),
    "made outside": lambda: OUTSIDE,
    "of arrays": lambda: linattn.feature_maps.DPFP(2),
    "of arrays, normalised": lambda: linattn.feature_maps.DPFP(2).normalized(),
    "of arrays, made outside": lambda: ARRAYS,
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_made_inside(name):
    make, x = MAPS[name], torch.randn(3, 5, 4)
    assert_same(both(lambda x: la.causal(x, x, x, feature_map=make()), x))
    if "arrays" not in name:
        assert_same(both(lambda x: make()(x), x))


@pytest.mark.parametrize("name", maps.NAMES)
def test_maps_by_name(name):
    assert_same(both(lambda x: la.causal(x, x, x, feature_map=name), torch.randn(3, 5, 4)))


def test_directions_that_are_computed():
    def function(x, omega):
        return la.causal(x, x, x, feature_map=maps.PositiveRandomFeatures(omega * 2))

    assert_same(both(function, torch.randn(3, 5, 4), OMEGA))


def test_learned_maps():
    def loss(x, w):
        phi = maps.FeedforwardKernel([(w, w)])
        return la.causal(x, x, x, feature_map=phi).square().sum() + phi.orthogonality(0.1)

    x, weights = torch.randn(3, 5, 4), [WEIGHT.clone().requires_grad_() for _ in range(2)]
    loss(x, weights[0]).backward()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(x, weights[1]).backward()
    torch.testing.assert_close(weights[1].grad, weights[0].grad)


STATES = {
    "causal": {},
    "step": {"operator": "step"},
    "not normalised": {"normalize": False},
    "packed": {"cu_seqlens": [0, 2, 5]},
    "packed, tensor": {"cu_seqlens": torch.tensor([0, 2, 5])},
    "dpfp": {"feature_map": "dpfp"},
    "positive": {"feature_map": maps.PositiveRandomFeatures(OMEGA)},
    "function": {"feature_map": torch.square},
    "delta": {"operator": "delta"},
}


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("dynamic", [None, True])
def test_initial_states(name, dynamic):
    options, x = STATES[name], torch.randn(3, 5, 4)
    assert_same(both(lambda x: la.initial_state(x, x, x, **options), x, dynamic=dynamic))


def test_initial_states_follow_the_batch():
    compiled = torch.compile(
        lambda x: la.initial_state(x, x, x, x[..., 0], operator="gated").s, fullgraph=True,
        backend="aot_eager",
    )  # fmt: skip
    assert [compiled(torch.ones(n, 5, 4)).shape[0] for n in (2, 3, 7)] == [2, 3, 7]


def test_a_step_from_its_own_state():
    def function(x):
        state = la.initial_state(x, x, x, operator="step")
        return la.step(x, x, x, state, in_place=True)

    assert_same(both(function, torch.randn(3, 4)))


@pytest.mark.parametrize("name", ["PerformerAttention", "FastWeightAttention", "LinearAttention",
                                  "FeedforwardKernelAttention", "GatedDeltaNet"])  # fmt: skip
def test_layers_from_their_first_state(name):
    layer = getattr(la.nn, name)(8, 2)
    with torch.no_grad():
        found, expected = both(lambda x: layer.step(x, layer.init_state(2)), torch.randn(2, 8))
    torch.testing.assert_close(found, expected)
