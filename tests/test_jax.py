"""linattn.jax: the NumPy package's results on JAX's arrays."""

import os
import subprocess
import sys
from functools import partial

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import numpy as np
import pytest
from bounds import close

import linattn
from linattn import State

jax = pytest.importorskip("jax", reason="JAX is not installed")

import jax.numpy as jnp  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

import linattn.jax as la  # noqa: E402
from linattn.jax import _call  # noqa: E402


@pytest.fixture(autouse=True)
def _wide():
    jax.config.update("jax_enable_x64", True)  # in all threads, those of devices as well
    yield
    jax.config.update("jax_enable_x64", False)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


N, D, M = 8, 4, 5
Q, K, V = draw(2, 3, N, D), draw(2, 3, N, D, seed=1), draw(2, 3, N, M, seed=2)
G, GATES = -abs(draw(2, 3, N, seed=3)), -abs(draw(2, 3, N, D, seed=4))
BETA, STRENGTHS = 1 / (1 + np.exp(G)), 1 / (1 + np.exp(draw(2, 3, N, M, seed=5)))
A, BONUS = draw(2, 3, N, D, seed=6) / 5, draw(3, D, seed=7)
LENGTHS = np.array([[8, 0, 3], [5, 8, 1]])
PHI = linattn.feature_maps.RandomFourierFeatures.sample(D, 6, rng=0)
CASES = [
    ("causal", (Q, K, V), {}),
    ("causal", (Q, K[:, :1], V[0]), {"scale": 0.5, "eps": 0.1}),
    ("causal", (Q, K, V), {"feature_map": "dpfp", "normalize": False}),
    ("causal", (Q, K, V), {"feature_map": PHI, "normalize": False}),
    ("causal", (Q, K, V), {"key_lengths": LENGTHS}),
    ("causal", (Q, K, V), {"cu_seqlens": np.array([0, 3, 3, 8])}),
    ("noncausal", (Q, K, V), {}),
    ("noncausal", (Q[..., :5, :], K, V), {"key_lengths": LENGTHS, "feature_map": "softplus"}),
    ("delta", (Q, K, V, BETA), {"feature_map": "l2norm"}),
    ("delta", (Q, K, V, STRENGTHS), {"feature_map": "l2norm"}),
    ("gated", (Q, K, V, G), {}),
    ("gated", (Q, K, V, GATES), {"bonus": BONUS}),
    ("gated_delta", (Q, K, V, G, BETA), {"feature_map": "l2norm"}),
    ("gated_delta", (Q, K, V, GATES, STRENGTHS), {"erase": A, "scale": 0.5}),
    ("dplr", (Q, K, V, A, A, GATES), {}),
    ("softmax_attention", (Q, K, V), {"causal": True}),
    ("softmax_attention", (Q[..., :5, :], K[0], V), {"scale": 0.3}),
    ("linformer", (Q, K, V, draw(N, 3), draw(3, N, 3)), {}),
    ("log_decay", (G, draw(3, 1), draw(3, 1, seed=1)), {}),
    ("log_decay", (G, draw(3, 1), draw(3, 1, seed=1)), {"lower_bound": -5.0}),
    ("causal_conv1d", (Q, draw(D, 3), draw(D)), {"activation": "silu"}),
    ("causal_conv1d", (Q, draw(D, 3)), {"cu_seqlens": np.array([0, 3, 3, 8])}),
]
IDS = [f"{name}-{i}" for i, (name, _, _) in enumerate(CASES)]
EACH = pytest.mark.parametrize(("name", "operands", "options"), CASES, ids=IDS)
SHARDED = [case for case in CASES if case[0] in ("causal", "delta", "gated", "gated_delta", "dplr")
           and not {"key_lengths", "cu_seqlens"} & set(case[2])
           and not any(x is STRENGTHS for x in case[1])
           and all(x.shape[:2] == (2, 3) for x in case[1])]  # fmt: skip


def leaves(x):
    return [y for y in jax.tree.leaves(x) if y is not None]


def compare(actual, expected, tolerance=1e-13):
    for x, y in zip(leaves(actual), leaves(expected), strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        close(np.asarray(x), np.asarray(y), atol=tolerance * max(abs(np.asarray(y)).max(), 1e-3))


@EACH
def test_results_and_gradients(name, operands, options):
    """Those of the arrays, in jit; the gradients by finite differences."""
    run = jax.jit(partial(getattr(la, name), **options))
    compare(run(*operands), getattr(linattn, name)(*operands, **options))
    check_grads(run, operands, order=1, modes=["rev"], eps=1e-6, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_dtypes(dtype):
    operands = [jnp.asarray(x, dtype) for x in (Q, K, V)]
    gates, beta = jnp.asarray(G, jnp.float32), jnp.asarray(BETA, dtype)
    o, state = la.gated_delta(*operands, gates, beta, feature_map="l2norm", return_state=True)
    assert o.dtype == dtype and state.s.dtype == jnp.float32
    expected, end = linattn.gated_delta(*map(np.asarray, (*operands, gates, beta)),
                                        feature_map="l2norm", return_state=True)  # fmt: skip
    np.testing.assert_array_equal(np.asarray(o, np.float32), np.asarray(expected, np.float32))
    np.testing.assert_array_equal(np.asarray(state.s), end.s)
    grads = jax.grad(
        lambda *x: la.gated_delta(*x, feature_map="l2norm").astype(jnp.float32).sum(),
        argnums=(0, 1, 2, 3, 4),
    )(*operands, gates, beta)
    assert [x.dtype for x in grads] == [dtype, dtype, dtype, jnp.float32, dtype]
    assert all(bool(jnp.isfinite(x).all()) for x in grads)


@pytest.mark.parametrize(("name", "operands", "options"), SHARDED,
                         ids=[f"{x[0]}-{i}" for i, x in enumerate(SHARDED)])  # fmt: skip
def test_states(name, operands, options):
    """Given, returned, their gradients, and tokens one by one."""
    f = linattn.feature_maps.get(options.get("feature_map", "elu")).features(D)
    normalized = name == "causal" and options.get("normalize", True)
    start = State(draw(2, 3, f, M), abs(draw(2, 3, f)) if normalized else None)
    more = {"initial_state": start, "return_state": True}
    run = getattr(la, name)
    compare(run(*operands, **options, **more),
            getattr(linattn, name)(*operands, **options, **more))  # fmt: skip
    check_grads(
        lambda state, *x: run(*x, **options, initial_state=state, return_state=True),
        (start, *operands), order=1, modes=["rev"], eps=1e-6, rtol=1e-5, atol=1e-5,
    )  # fmt: skip
    state, rows = start, []
    static = {x: y for x, y in options.items() if x not in ("bonus", "erase")}
    one = getattr(la, "step" if name == "causal" else f"{name}_step")
    step = jax.jit(partial(one, **static))
    for i in range(3):
        token = [x[..., i] if x.ndim == 3 else x[..., i, :] for x in operands]
        extra = {x: y if x == "bonus" else y[..., i, :] for x, y in options.items()
                 if x in ("bonus", "erase")}  # fmt: skip
        o, state = step(*token, state=state, **extra)
        rows.append(o)
    compare(jnp.stack(rows, -2), run(*operands, **options, initial_state=start)[..., :3, :], 1e-12)


@EACH
def test_vmap(name, operands, options):
    """Over all operands, and over one alone; gradients by sample."""
    if "cu_seqlens" in options and name == "causal_conv1d":
        options = {}
    run = partial(getattr(la, name), **options)
    stacked = [np.stack([x, 0.5 * x]) for x in operands]
    compare(jax.vmap(run)(*stacked),
            jnp.stack([run(*(x[i] for x in stacked)) for i in range(2)]), 1e-12)  # fmt: skip
    axes = (0, *(None for _ in operands[1:]))
    compare(jax.vmap(run, axes)(stacked[0], *operands[1:]),
            jnp.stack([run(x, *operands[1:]) for x in stacked[0]]), 1e-12)  # fmt: skip
    grad = jax.grad(lambda *x: run(*x).sum())
    compare(jax.jit(jax.vmap(grad))(*stacked),
            jnp.stack([grad(*(x[i] for x in stacked)) for i in range(2)]), 1e-11)  # fmt: skip


@pytest.mark.skipif(jax.device_count() < 4, reason="XLA was started with fewer host devices")
@pytest.mark.parametrize(("name", "operands", "options"), SHARDED,
                         ids=[f"{x[0]}-{i}" for i, x in enumerate(SHARDED)])  # fmt: skip
def test_shard_map_over_the_sequence(name, operands, options):
    """On four host devices, gradients included."""
    mesh = jax.make_mesh((4,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
    tokens = jax.sharding.PartitionSpec(None, None, "seq")
    keywords = {x: y for x, y in options.items() if isinstance(y, np.ndarray)}
    static = {x: y for x, y in options.items() if x not in keywords}
    specs = tuple(jax.sharding.PartitionSpec() if x == "bonus" else tokens for x in keywords)

    def local(*x):
        given = dict(zip(keywords, x[len(operands) :], strict=True))
        return getattr(la, name)(*x[: len(operands)], **static, **given, axis_name="seq")

    over = jax.jit(jax.shard_map(
        local, mesh=mesh, in_specs=(*(tokens for _ in operands), *specs), out_specs=tokens,
        check_vma=False,
    ))  # fmt: skip

    def alone(*x):
        given = dict(zip(keywords, x[len(operands) :], strict=True))
        return getattr(la, name)(*x[: len(operands)], **static, **given)

    every = (*operands, *keywords.values())
    compare(over(*every), alone(*every), 1e-12)
    argnums = tuple(range(len(every)))
    compare(jax.grad(lambda *x: (over(*x) ** 2).sum(), argnums)(*every),
            jax.grad(lambda *x: (alone(*x) ** 2).sum(), argnums)(*every), 1e-11)  # fmt: skip


@pytest.mark.parametrize(
    "state",
    [State(np.ones((4, 1)), np.ones(4)), State(np.ones((4, 5))), np.ones((4, 5))],
    ids=["s", "z", "array"],
)
def test_shard_map_refuses_states(state):
    def call(q, k, v):
        return la.causal(q, k, v, axis_name="t", initial_state=state)

    mesh = jax.make_mesh((1,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    tokens = jax.sharding.PartitionSpec(None, None, "t")
    whole = jax.shard_map(
        call, mesh=mesh, in_specs=(tokens,) * 3, out_specs=tokens, check_vma=False
    )
    with pytest.raises((TypeError, ValueError), match="causal: initial_state"):
        whole(Q, K, V)


def test_no_copy():
    """XLA gives its buffers to C as they are, those that are broadcast too, and adds none."""
    operands = Q, K[:, :1], V[:1]
    grad = jax.grad(lambda *x: la.causal(*x, normalize=False).sum())
    for run in (la.causal, partial(la.causal, return_state=True), grad):
        compiled = jax.jit(run).lower(*operands).compile()
        text = compiled.as_text()
        assert "custom-call" in text and " copy(" not in text and " transpose(" not in text
    compiled = jax.jit(la.causal).lower(*operands).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < Q.nbytes
    assert " broadcast(" not in compiled.as_text()


def test_without_64_bits():
    """JAX's default: indices are of 32 bits, and so is all else."""
    with jax.enable_x64(False):
        o = jax.jit(partial(la.causal, key_lengths=LENGTHS))(Q, K, V)
        assert o.dtype == jnp.float32
        expected = linattn.causal(*(x.astype(np.float32) for x in (Q, K, V)), key_lengths=LENGTHS)
        np.testing.assert_array_equal(np.asarray(o), expected)


def test_wrong_input():
    with pytest.raises(ValueError, match=r"causal: k has shape \(2, 3, 7, 4\)"):
        la.causal(Q, K[..., 1:, :], V)
    with pytest.raises(ValueError, match=r"feature_map is 'nosuch'"):
        la.causal(Q, K, V, feature_map="nosuch")
    with pytest.raises(TypeError, match="feature_map is 3"):
        la.causal(Q, K, V, feature_map=3)
    with pytest.raises(TypeError, match="q has dtype complex"):
        la.causal(Q * 1j, K, V)
    with pytest.raises(ValueError, match="does not rescale"):
        la.causal(Q, K, V, feature_map=linattn.feature_maps.PositiveRandomFeatures.sample(D, 6))
    with pytest.raises(ValueError, match="activation is 'relu'"):
        la.causal_conv1d(Q, draw(D, 3), activation="relu")
    with pytest.raises(ValueError, match="weight has shape"):
        la.causal_conv1d(Q, draw(D + 1, 3))


X = np.ones((2, 4, 3))
TOKEN = (Q[..., 0, :], K[..., 0, :], V[..., 0, :])
START = (np.zeros((D, M)), np.zeros(D))
BAD = {  # options, error, and what it says
    "length": ({"key_lengths": 99}, ValueError, "key_lengths has values from 99 to 99; expected"),
    "negative": ({"key_lengths": -1}, ValueError, "key_lengths has values from -1"),
    "lengths": ({"key_lengths": [1, 2, 3, 4]}, ValueError, "key_lengths has shape"),
    "more lengths": ({"key_lengths": [[[8]]]}, ValueError, "key_lengths has shape"),
    "real lengths": ({"key_lengths": 2.5}, TypeError, "key_lengths has dtype float64"),
    "short": ({"cu_seqlens": [0, 3]}, ValueError, "cu_seqlens ends with 3; expected n = 8"),
    "long": ({"cu_seqlens": [0, 300]}, ValueError, "cu_seqlens ends with 300"),
    "late": ({"cu_seqlens": [-3, 8]}, ValueError, "cu_seqlens begins with -3"),
    "decreasing": ({"cu_seqlens": [0, 5, 2, 8]}, ValueError, "cu_seqlens decreases from 5 to 2"),
    "no bounds": ({"cu_seqlens": np.zeros(0, int)}, ValueError, "cu_seqlens has shape"),
    "a matrix": ({"cu_seqlens": [[0, 8]]}, ValueError, "cu_seqlens has shape"),
    "real bounds": ({"cu_seqlens": [0.0, 8.0]}, TypeError, "cu_seqlens has dtype float64"),
    "state": (
        {"initial_state": State(np.zeros((3, 3)), START[1])}, ValueError, r"state\.s has shape",
    ),
    "more states": (
        {"initial_state": State(np.zeros((5, D, M)), START[1])}, ValueError, r"state\.s has shape",
    ),
    "no z": ({"initial_state": State(START[0])}, ValueError, "initial_state.z is None"),
    "log_scale": (
        {"initial_state": State(*START, START[1])}, ValueError, "initial_state.log_scale is given",
    ),
    "an array": ({"initial_state": START[0]}, TypeError, "initial_state is a ndarray"),
    "eps": ({"eps": np.nan}, ValueError, "eps is nan; expected a finite number"),
    "scale": ({"scale": np.inf}, ValueError, "scale is inf; expected a finite number"),
    "a word": ({"scale": "a"}, TypeError, "scale is 'a'; expected a real number"),
    "complex": ({"scale": 1j}, TypeError, "scale is 1j; expected a real number"),
    "normalize": ({"normalize": None}, TypeError, "normalize is None; expected True or False"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_what_numpy_refuses(bad):
    """The same errors, with values that are known when the call is traced, and within jit."""
    options, error, message = BAD[bad]
    for f in (linattn.causal, la.causal, jax.jit(partial(la.causal, **options))):
        with pytest.raises(error, match=f"^causal: .*{message}"):
            f(Q, K, V, **({} if hasattr(f, "lower") else options))


def test_what_is_refused_of_what_is_traced():
    """Shapes and dtypes, as nobody knows the values."""
    lengths = jax.jit(lambda x: la.causal(Q, K, V, key_lengths=x))
    bounds = jax.jit(lambda x: la.causal(Q, K, V, cu_seqlens=x))
    for call, x, error in (
        (lengths, [1, 2], ValueError), (lengths, 2.5, TypeError), (bounds, [[0, 8]], ValueError),
        (bounds, [], TypeError), (bounds, np.zeros(0, int), ValueError),
    ):  # fmt: skip
        with pytest.raises(error, match=r"^causal: (key_lengths|cu_seqlens) has "):
            call(jnp.asarray(x))
    compare(lengths(jnp.asarray([3, 8, 0])), la.causal(Q, K, V, key_lengths=[3, 8, 0]))
    compare(bounds(jnp.asarray([0, 3, 8])), la.causal(Q, K, V, cu_seqlens=[0, 3, 8]))
    with pytest.raises(TypeError, match=r"^causal: scale is .*; expected a real number"):
        jax.jit(lambda x: la.causal(Q, K, V, scale=x))(2.0)


OTHERS = {  # a call that both refuse, with the same words
    "taps": lambda at: at.causal_conv1d(X, X[0, :, :2]),
    "a bias": lambda at: at.causal_conv1d(X, X[0, :3], X[0, 0, :2]),
    "activation": lambda at: at.causal_conv1d(X, X[0, :3], activation=X),
    "bounds": lambda at: at.causal_conv1d(X, X[0, :3], cu_seqlens=[0, 5]),
    "inputs": lambda at: at.causal_conv1d(X, X[0, :3], initial_state=np.zeros((3, 9))),
    "no inputs": lambda at: at.causal_conv1d_step(X[0, 0], X[0, :3], np.zeros((3, 9))),
    "scale": lambda at: at.softmax_attention(X, X, X, scale=np.nan),
    "causal": lambda at: at.softmax_attention(X, X, X, causal=None),
    "keys": lambda at: at.softmax_attention(X, X[:, :2], X),
    "rows": lambda at: at.softmax_attention(X, X[:, :2], X[:, :2], causal=True),
    "E": lambda at: at.linformer(X, X, X, X[0, :2], X[0]),
    "F": lambda at: at.linformer(X, X, X, X[0], X[0, :, :2]),
    "linformer": lambda at: at.linformer(X, X, X, X[0], X[0], scale="a"),
    "A_log": lambda at: at.log_decay(X, X[0, :2], X),
    "lower_bound": lambda at: at.log_decay(X, X, X, lower_bound=np.inf),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_others_refuse(case):
    said = []
    for at in (linattn, la):
        with pytest.raises((TypeError, ValueError)) as caught:
            OTHERS[case](at)
        said.append(f"{caught.type.__name__}: {caught.value}")
    assert said[0] == said[1]


def test_lists_of_what_is_traced():
    bounds = jax.jit(lambda x: la.causal(Q, K, V, cu_seqlens=[0, x, 8]))
    compare(bounds(3), la.causal(Q, K, V, cu_seqlens=[0, 3, 8]))
    lengths = jax.jit(lambda x: la.noncausal(Q, K, V, key_lengths=[x, 2, 8]))
    compare(lengths(3), la.noncausal(Q, K, V, key_lengths=[3, 2, 8]))
    start = jax.jit(lambda x: la.causal(Q, K, V, initial_state=State([[x] * M] * D, [x] * D)))
    filled = State(np.full((D, M), 2.0), np.full(D, 2.0))
    compare(start(2.0), la.causal(Q, K, V, initial_state=filled))


SYMBOLS = {  # a call, and the axes after the heads of what it is given; n is the tokens'
    "causal": (lambda x: la.causal(x, x, x), ["nd"]),
    "states": (lambda x: la.causal(x, x, x, return_state=True), ["nd"]),
    "gradient": (jax.grad(lambda x: la.causal(x, x, x).sum()), ["nd"]),
    "lengths": (lambda x: la.causal(x, x, x, key_lengths=3), ["nd"]),
    "packed": (lambda x: la.gated(x, x, x, x, cu_seqlens=[0, 1, 4], return_state=True), ["nd"]),
    "dpfp": (lambda x: la.causal(x, x, x, feature_map="dpfp"), ["nd"]),
    "noncausal": (lambda x: la.noncausal(x, x, x, key_lengths=3), ["nd"]),
    "delta": (lambda x, beta: la.delta(x, x, x, beta), ["nd", "n"]),
    "gated": (lambda x, s: la.gated(x, x, x, x, initial_state=State(s)), ["nd", "dd"]),
    "gated_step": (lambda x, s: la.gated_step(x, x, x, x, State(s)), ["d", "dd"]),
    "gated_delta": (lambda x, g: la.gated_delta(x, x, x, g, g), ["nd", "n"]),
    "dplr": (lambda x, g: la.dplr(x, x, x, x, x, g), ["nd", "n"]),
    "softmax": (lambda x: la.softmax_attention(x, x, x), ["nd"]),
    "linformer": (lambda x: la.linformer(x, x, x, x, x), ["nd"]),
    "log_decay": (lambda x: la.log_decay(x, x, x), ["nd"]),
    "convolution": (lambda x: la.causal_conv1d(x, jnp.ones((D, 3)), return_state=True), ["nd"]),
}


@pytest.mark.parametrize("case", SYMBOLS)
def test_sizes_that_are_symbols(case):
    """As exports have them: of heads, and of tokens."""
    call, axes = SYMBOLS[case]
    heads, n = jax.export.symbolic_shape("h, n")
    sizes = {"n": n, "d": D}
    given = [jax.ShapeDtypeStruct((heads, *(sizes[x] for x in own)), X.dtype) for own in axes]
    checks = [jax.export.DisabledSafetyCheck.custom_call("linattn")]
    whole = jax.export.export(jax.jit(call), disabled_checks=checks)(*given)
    arrays = [abs(draw(2, *({"n": 4, "d": D}[x] for x in own))) for own in axes]
    compare(whole.call(*arrays), call(*arrays))


def test_a_state_of_symbols_is_refused():
    (heads,) = jax.export.symbolic_shape("h")
    x = jax.ShapeDtypeStruct((heads, 4, D), X.dtype)
    with pytest.raises(TypeError, match=r"^initial_state: q has shape \(h, 4, 4\); expected sizes"):
        jax.export.export(jax.jit(lambda x: la.initial_state(x, x, x)))(x)


def test_an_object_is_of_its_process():
    """A map that another process exported: an error, and no other map."""
    o = jax.ffi.ffi_call("linattn", jax.ShapeDtypeStruct(X.shape, X.dtype))
    with pytest.raises(jax.errors.JaxRuntimeError, match="object of the process that exported"):
        np.asarray(o(X, function=np.int64(1)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="takes and returns float32 or float64"):
        np.asarray(o(X.astype(int), function=np.int64(1)))


class Wrong(linattn.feature_maps.FeatureMap):
    _parameters = ("result",)

    def __init__(self, result):
        self.result = result

    def features(self, d):
        return d

    def __call__(self, x):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (KeyError("elsewhere"), "linattn: KeyError: 'elsewhere'"),
        (ValueError("!" + 999 * "\N{SNOWMAN}"), "linattn: ValueError: !\N{SNOWMAN}"),
        (np.ones((8, 1)), r"linattn: ValueError: .* returned \(8, 1\); expected \(2, 3, 8, 4\)"),
    ],
)
def test_errors_of_maps(result, expected):
    with pytest.raises(jax.errors.JaxRuntimeError, match=expected):
        np.asarray(la.causal(Q, K, V, feature_map=Wrong(result)))


@pytest.mark.skipif(jax.device_count() < 4, reason="XLA was started with fewer host devices")
def test_maps_on_several_devices():
    """None waits for another, as callbacks of JAX did with arrays of this size."""
    x = jnp.asarray(draw(2, 4000, D).repeat(8, 0), jnp.float32)
    mesh = jax.make_mesh((4,), ("heads",), axis_types=(jax.sharding.AxisType.Auto,))
    heads = jax.sharding.PartitionSpec("heads")
    run = partial(la.causal, feature_map=PHI, normalize=False)
    over = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(heads,) * 3, out_specs=heads,
                                 check_vma=False))  # fmt: skip
    expected = run(x, x, x)
    compare(over(x, x, x), expected)
    placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, heads))
    compare(jax.jit(run)(placed, placed, placed), expected)


ENDS = """
import jax, linattn, linattn.jax
phi = linattn.feature_maps.RandomFourierFeatures.sample(64, 64, rng=0)
x = jax.numpy.ones((8, 2000, 64))
mesh = jax.make_mesh((4,), ("heads",), axis_types=(jax.sharding.AxisType.Auto,))
heads = jax.sharding.PartitionSpec("heads")
run = jax.jit(jax.shard_map(
    lambda x: linattn.jax.causal(x, x, x, feature_map=phi, normalize=False),
    mesh=mesh, in_specs=heads, out_specs=heads, check_vma=False,
))
kept = run(x)
run(x)
"""


@pytest.mark.slow
def test_python_may_end_while_maps_run():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run(
        [sys.executable, "-c", ENDS], env=environment, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_without_the_handler(monkeypatch):
    """A warning, callbacks on one device, and an error where there are several."""

    def refuse(*args, **options):
        raise RuntimeError("no room for handlers")

    assert la.IN_C
    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    with pytest.warns(RuntimeWarning, match=r"^linattn.jax: .*no room for handlers"):
        assert not _call._register()
    expected = [la.causal(Q, K, V), la.delta(Q, K, V, BETA), la.causal_conv1d(Q, draw(D, 3))]
    maps = partial(la.causal, feature_map=PHI, normalize=False)
    gradient = jax.grad(lambda *x: maps(*x).sum(), (0, 1, 2))
    expected += [la.causal(Q, K, V, return_state=True), maps(Q, K, V), gradient(Q, K, V)]
    monkeypatch.setattr(_call, "IN_C", False)
    monkeypatch.setattr(jax, "local_device_count", lambda backend: 2)
    for call in (la.causal, maps):
        with pytest.raises(RuntimeError, match=r"^linattn.jax: .*has 2 devices on CPUs"):
            call(Q, K, V)
    monkeypatch.setattr(jax, "local_device_count", lambda backend: 1)
    found = [la.causal(Q, K, V), la.delta(Q, K, V, BETA), la.causal_conv1d(Q, draw(D, 3))]
    found += [la.causal(Q, K, V, return_state=True), maps(Q, K, V), gradient(Q, K, V)]
    compare(found, expected)


@pytest.fixture
def strict():
    """JAX told to refuse operands of fewer axes than another."""
    with jax.numpy_rank_promotion("raise"):
        yield


@EACH
def test_no_axes_are_promoted(strict, name, operands, options):
    run = partial(getattr(la, name), **options)
    jax.eval_shape(jax.grad(lambda *x: run(*x).sum(), tuple(range(len(operands)))), *operands)
    if name in ("causal", "noncausal", "delta", "gated", "gated_delta", "dplr"):
        jax.eval_shape(lambda *x: run(*x, key_lengths=LENGTHS[0]), *operands)


def test_no_axes_of_states_are_promoted(strict):
    state = State(draw(3, D, M))
    given = {"key_lengths": LENGTHS, "cu_seqlens": [0, 3, 8]}
    jax.eval_shape(partial(la.delta, **given), Q, K, V, BETA)
    jax.eval_shape(partial(la.delta, initial_state=state), Q, K, V, BETA)
    mesh = jax.make_mesh((1,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    local = partial(la.delta, initial_state=state, axis_name="t")
    whole = jax.sharding.PartitionSpec()
    run = jax.shard_map(local, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    compare(jax.jit(run)(Q, K, V, BETA), la.delta(Q, K, V, BETA, initial_state=state), 1e-12)


def test_dtypes_of_functions_and_of_8_bits():
    o = la.causal(Q, K, V, feature_map=lambda x: jnp.exp(x).astype(jnp.bfloat16))
    compare(o, la.causal(Q, K, V, feature_map="exp"), 1e-2)
    with pytest.raises(TypeError, match="causal: q has dtype float8_e4m3fn; expected"):
        la.causal(jnp.asarray(Q, jnp.float8_e4m3fn), K, V)


def test_what_steps_refuse():
    for call, error, message in (
        (lambda: la.step(*TOKEN, None), TypeError, "step: state is a NoneType"),
        (lambda: la.step(*TOKEN, State(START[0])), ValueError, "step: state.z is None"),
        (lambda: la.step(TOKEN[0], TOKEN[1][..., 1:], TOKEN[2], State(*START)), ValueError,
         r"step: k has shape \(2, 3, 3\)"),
        (lambda: la.delta_step(*TOKEN, 0.5, State(np.zeros((9, D, M)))), ValueError,
         r"delta_step: state\.s has shape \(9, 4, 5\)"),
        (lambda: la.delta_step(*TOKEN, np.ones(7), State(START[0])), ValueError,
         r"delta_step: beta has shape \(7,\)"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            call()


NUMBERS = np.array([1.0, 1e-6])
WRONG = {  # arguments, attributes, and what the error says
    "no name": ((X, X, X), {"numbers": NUMBERS, "opinions": 1}, "no such operator"),
    "another name": ((X, X, X), {"operator": "caus_elu", "numbers": NUMBERS}, "no such operator"),
    "a longer name": ((X, X, X), {"operator": "x" * 99, "numbers": NUMBERS}, "no such operator"),
    "a number": ((X, X, X), {"operator": 3, "numbers": NUMBERS}, "no such operator"),
    "no numbers": ((X, X, X), {"operator": "causal_elu"}, "no such operator"),
    "narrow numbers": (
        (X, X, X),
        {"operator": "causal_elu", "numbers": np.float32(NUMBERS)},
        "no such operator",
    ),
    "one number": ((X, X, X), {"numbers": NUMBERS[:1]}, "fewer numbers"),
    "no arrays": ((), {}, "not those of the operator"),
    "integers": ((X.astype(int), X, X), {}, "not those of the operator"),
    "two arrays": ((X, X), {}, "fewer operands"),
    "four arrays": ((X, X, X, X), {}, "more operands"),
    "two dtypes": ((X, X.astype("f4"), X), {}, "wrong dtype"),
    "shapes": ((X, X[:, 1:], X), {}, "shapes of operands do not fit"),
    "axes": ((X.reshape(31 * (1,) + X.shape), X, X), {}, "too many axes"),
    "keys": ((X, X, X, X[:, 0, 0]), {"operator": "noncausal_keys_elu"}, "wrong dtype"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_no_function_asks_of_the_handler(case):
    """An error in words, whatever the call is made of."""
    arrays, attributes, expected = WRONG[case]
    if "no such" not in expected:
        attributes = {"operator": "causal_elu", "numbers": NUMBERS} | attributes
    o = jax.ShapeDtypeStruct(X.shape, X.dtype)
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=f"INVALID_ARGUMENT: linattn: .*{expected}"
    ):
        np.asarray(jax.ffi.ffi_call("linattn", o)(*arrays, **attributes))


def test_results_of_the_handler_have_to_fit():
    for o, expected in (
        ((jax.ShapeDtypeStruct(X.shape, X.dtype),) * 2, "not those of the operator"),
        ((jax.ShapeDtypeStruct(X.shape, np.float32),), "wrong dtype"),
        ((jax.ShapeDtypeStruct((2, 4, 2), X.dtype),), "shapes of operands do not fit"),
        ((jax.ShapeDtypeStruct((1, 2, 4, 3), X.dtype),), "shapes of operands do not fit"),
    ):
        call = jax.ffi.ffi_call("linattn", o)
        with pytest.raises(jax.errors.JaxRuntimeError, match=expected):
            np.asarray(call(X, X, X, operator="causal_elu", numbers=NUMBERS)[0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_indices_of_the_handler(dtype):
    call = jax.ffi.ffi_call("linattn", jax.ShapeDtypeStruct(X.shape, X.dtype))
    lengths = np.array([3, 0], dtype)
    o = call(X, X, X, lengths, operator="noncausal_keys_elu", numbers=NUMBERS)
    np.testing.assert_array_equal(np.asarray(o), linattn.noncausal(X, X, X, key_lengths=lengths))


def test_no_sequences():
    """None of them, which have no tokens."""
    none = (x[..., :0, :] for x in (Q, K, V))
    o = jax.jit(partial(la.causal, cu_seqlens=np.array([0], np.int32)))(*none)
    assert o.shape == (2, 3, 0, V.shape[-1])


def test_functions_of_arrays_are_maps():
    o = la.causal(Q, K, V, feature_map=jax.nn.relu)
    compare(o, la.causal(Q, K, V, feature_map="relu"))
