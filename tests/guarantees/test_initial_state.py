"""initial_state returns the state that an operator starts from, in arrays that steps can write."""

import importlib

import numpy as np
import pytest
from bounds import close
from operands import REGISTRY, STEPS, dims, make, tokens
from slow import grid
from states import assert_same, flat

import linattn
from linattn import feature_maps

N, D, M = 7, 5, 3
OUTPUTS = {name: REGISTRY[name].layout.output for name in STEPS}
EACH = pytest.mark.parametrize("name", STEPS)


def operands(name, dtype="float32", lead=(2, 1), others_lead=(1, 3)):
    """q, k, v and the rest; the rest has leading axes of its own."""
    letters, rng = dims(name), np.random.default_rng(3)
    leads = {x: others_lead for x in letters if x not in "qkv"}
    sizes = {"n": N, "d": D, "m": M}
    return [x.astype(dtype) for x in make(letters, sizes, rng, lead=lead, leads=leads).values()]


def one(name, arrays, i):
    """Token i of all operands."""
    return [tokens(x, y, i) for x, y in zip(dims(name).values(), arrays, strict=False)]


def kinds(state):
    return [x is None or (x.shape, x.dtype) for x in state]


def begun(name, arrays, *, cuts=None, **options):
    """The state, with which a call has the bits that it has without, and the output."""
    f, packed = getattr(linattn, name), {} if cuts is None else {"cu_seqlens": cuts}
    state = linattn.initial_state(*arrays, operator=name, **packed, **options)
    options |= packed | {"return_state": True}
    o, end = f(*arrays, **options, initial_state=state)
    assert_same((o, end), f(*arrays, **options))
    assert kinds(state) == kinds(end)
    return state, o


@EACH
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("cuts", [None, [0, 2, 2, N]])
def test_it_is_what_an_operator_begins_with(name, dtype, cuts):
    state, _ = begun(name, operands(name, dtype), cuts=cuts)
    for x in flat(state):
        assert not x.any() or (name == "wkv" and (x == -np.inf).all())


@EACH
@pytest.mark.parametrize("in_place", [True, False])
def test_steps_begin_with_it(name, in_place):
    arrays = operands(name, "float64")
    step = STEPS[name]
    state = linattn.initial_state(*one(name, arrays, 0), operator=step)
    same = linattn.initial_state(*arrays, operator=name)
    assert [x is None or x.shape for x in state] == [x is None or x.shape for x in same]
    whole = getattr(linattn, name)(*arrays)
    for i in range(N):
        o, state = getattr(linattn, step)(*one(name, arrays, i), state, in_place=in_place)
        close(o, tokens(OUTPUTS[name], whole, i), rtol=1e-12, atol=1e-12)


@EACH
def test_operands_after_v_may_be_left_out(name):
    arrays = operands(name, lead=(2, 3), others_lead=(2, 3))
    short = linattn.initial_state(*arrays[:3], operator=name)
    full = linattn.initial_state(*arrays, operator=name)
    for x, y in zip(short, full, strict=True):
        assert x is y is None or (x.shape == y.shape and x.dtype == y.dtype)


def test_what_follows_v_has_its_say_in_the_dtype():
    q, k, v, beta = operands("delta")
    state = linattn.initial_state(q, k, v, beta.astype("float64"), operator="delta")
    assert state.s.dtype == "float64"
    q, k, v, g = operands("gated")  # a gate has none
    assert linattn.initial_state(q, k, v, g.astype("f8"), operator="gated").s.dtype == "float32"


POSITIVE = (
    "dpfp",
    feature_maps.DPFP(2),
    feature_maps.PositiveRandomFeatures.sample(D, 6, rng=0),
    feature_maps.PositiveRandomFeatures.sample(D, 6, rng=0, hyperbolic=True),
)
SIGNED = (feature_maps.RandomFourierFeatures.sample(D, 6, rng=0),)


@pytest.mark.parametrize(
    ("phi", "normalize"),
    [(phi, True) for phi in POSITIVE] + [(phi, False) for phi in POSITIVE + SIGNED],
)
def test_maps_with_other_numbers_of_features(phi, normalize):
    arrays, options = operands("causal", "float64"), {"feature_map": phi, "normalize": normalize}
    state, o = begun("causal", arrays, **options)
    for i in range(N):
        token = one("causal", arrays, i)
        got, state = linattn.step(*token, state, **options, in_place=True)
        close(got, o[..., i, :], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"operator": "noncausal"}, ValueError, ("noncausal", "gated_delta_step")),
        ({"operator": "delta", "others": 2}, TypeError, ("2 operands after v", "beta")),
        ({"operator": "causal", "others": 1}, TypeError, ("none",)),
        ({"operator": "step", "cu_seqlens": [0, N]}, TypeError, ("cu_seqlens", "one token")),
        ({"operator": "dplr", "feature_map": "dpfp"}, TypeError, ("feature_map", "no map")),
        ({"cu_seqlens": [0, 3]}, ValueError, ("cu_seqlens", f"n = {N}")),
        ({"operator": np.ones(3)}, TypeError, ("operator is array", "causal, step")),
        ({"feature_map": "tanh"}, ValueError, ("feature_map is 'tanh'",)),
        ({"feature_map": np.ones(3)}, TypeError, ("feature_map is array",)),
        ({"normalize": 1}, TypeError, ("normalize is 1; expected True or False",)),
        ({"mask": True}, TypeError, ("mask",)),
    ],
)
def test_refusals(change, error, words):
    arrays = operands("causal")
    others = [arrays[0]] * change.pop("others", 0)
    with pytest.raises(error) as caught:
        linattn.initial_state(*arrays, *others, **change)
    for word in ("initial_state", *words):
        assert word in str(caught.value), caught.value


def test_shapes_are_checked():
    q, k, v = operands("causal")
    with pytest.raises(ValueError, match=r"initial_state: k has shape .* as q has shape"):
        linattn.initial_state(q, k[..., 1:, :], v)


def tensors():
    return pytest.importorskip("torch", reason="PyTorch is not installed").as_tensor


def jax_arrays():
    return pytest.importorskip("jax.numpy", reason="JAX is not installed").asarray


OTHERS = pytest.mark.parametrize(
    ("library", "made"), [("linattn.torch", tensors), ("linattn.jax", jax_arrays)]
)


@pytest.mark.any_isa
@OTHERS
@EACH
@grid(
    lambda dtype, bounds: dtype == "float16" and bounds is None,
    dtype=["float16", "float32"],
    bounds=[None, [0, 2, 2, N]],
)
def test_other_libraries_have_the_same(library, made, name, dtype, bounds):
    of, arrays = made(), operands(name, dtype)
    module = importlib.import_module(library)
    given = [of(x) for x in arrays]
    expected = linattn.initial_state(*arrays, operator=name, cu_seqlens=bounds)
    state = module.initial_state(*given, operator=name, cu_seqlens=bounds)
    for x, y in zip(state, expected, strict=True):
        assert x is y is None or (type(x) is type(given[0]) and x.shape == y.shape)
        assert x is None or str(x.dtype).endswith("float32")
        assert x is None or np.array_equal(np.asarray(x), y)
    token = [of(x) for x in one(name, arrays, 0)]
    step = STEPS[name]
    state = module.initial_state(*token, operator=step)
    o, _ = getattr(module, step)(*token, state)
    close(
        np.asarray(o),
        tokens(OUTPUTS[name], getattr(linattn, name)(*arrays), 0),
        rtol=1e-2,
        atol=1e-2,
    )


@pytest.mark.any_isa
@OTHERS
def test_other_libraries_refuse_the_same(library, made):
    of, arrays = made(), operands("causal")
    f = importlib.import_module(library).initial_state
    q, k, v = map(of, arrays)
    with pytest.raises(ValueError, match="noncausal"):
        f(q, k, v, operator="noncausal")
    with pytest.raises(TypeError, match="1 operands after v; expected those of causal: none"):
        f(q, k, v, v)
    with pytest.raises(TypeError, match="one token"):
        f(q, k, v, operator="step", cu_seqlens=[0, N])
    with pytest.raises(TypeError, match="no map"):
        f(q, k, v, operator="dplr", feature_map="dpfp")
    with pytest.raises(ValueError, match="as q has shape"):
        f(q, k[..., 1:, :], v)


@pytest.mark.any_isa
@OTHERS
def test_functions_as_maps_of_other_libraries(library, made):
    of, arrays = made(), operands("causal")
    module = importlib.import_module(library)
    given = [of(x) for x in arrays]
    options = {"feature_map": lambda x: (x * x)[..., [0, 1, 2, 3, 4, 0, 1]]}
    state = module.initial_state(*given, **options)
    _, end = module.causal(*given, **options, return_state=True)
    assert [x is None or x.shape for x in state] == [x is None or x.shape for x in end]


@pytest.mark.any_isa
def test_tensors_that_have_only_shapes():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import linattn.torch as la

    x = torch.empty(2, 5, 4, device="meta", dtype=torch.bfloat16)
    s, z, _ = la.initial_state(x, x, x)
    assert s.device.type == z.device.type == "meta" and s.dtype is torch.float32
    phi = la.feature_maps.PositiveRandomFeatures.sample(4, 6, rng=0)
    x = torch.ones(2, 5, 4)
    state = la.initial_state(x, x, x, feature_map=phi)
    _, end = la.causal(x, x, x, feature_map=phi, return_state=True)
    assert [y.shape for y in state] == [y.shape for y in end]
    assert (state.log_scale == -torch.inf).all()


def test_errors_of_such_states():
    x = np.ones((N, M))
    with pytest.raises(TypeError, match="4 operands after k; expected those of wkv: v, w, u"):
        linattn.initial_state(x, x, x[0], x[0], x[0], operator="wkv")
    with pytest.raises(TypeError, match="cu_seqlens is given; expected None, as wkv_step"):
        linattn.initial_state(x[0], x[0], operator="wkv_step", cu_seqlens=[0, N])
