"""What linattn.jax and its handler refuse, and the errors that say so."""

import re
import tomllib
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cases import D, K, M, Q, V, X, compare
from processes import output

import linattn
import linattn.jax as la
from linattn import State
from linattn.jax._platform import on_cpu

pytestmark = pytest.mark.usefixtures("wide")


def test_wrong_maps_and_dtypes():
    with pytest.raises(TypeError, match="q has dtype complex"):
        la.causal(Q * 1j, K, V)
    with pytest.raises(TypeError, match="v has dtype complex"):
        la.mlstm(Q, K, V * 1j, GATE, GATE)
    for phi, error, what in (
        ("nosuch", ValueError, "is 'nosuch'"),
        (3, TypeError, "is 3"),
        (linattn.feature_maps.Taylor, TypeError, r"is .*such as Taylor\(\)"),
        (linattn.feature_maps.PositiveRandomFeatures.sample(D, 6), ValueError, ".*not rescale"),
    ):
        with pytest.raises(error, match=f"feature_map {what}"):
            la.causal(Q, K, V, feature_map=phi)


TOKEN = (Q[..., 0, :], K[..., 0, :], V[..., 0, :])
START = MEMORY, _ = np.zeros((D, M)), np.zeros(D)
GATE = Q[..., 0]
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
    "ragged": ({"key_lengths": [[1], []]}, ValueError, r"key_lengths is not an array \("),
    "negative eps": ({"eps": -1.0}, ValueError, "eps is -1.0; expected a number >= 0"),
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
    "k": lambda at: at.causal(Q, K[..., 1:, :], V),
    "no state": lambda at: at.step(*TOKEN, None),
    "no sums": lambda at: at.step(*TOKEN, State(MEMORY)),
    "k of a step": lambda at: at.step(TOKEN[0], TOKEN[1][..., 1:], TOKEN[2], State(*START)),
    "s of a step": lambda at: at.delta_step(*TOKEN, 0.5, State(np.zeros((9, D, M)))),
    "beta of a step": lambda at: at.delta_step(*TOKEN, np.ones(7), State(MEMORY)),
    "numbers of mlstm": lambda at: at.mlstm(Q, K, V, GATE, GATE, scale="a"),
    "normalize of mlstm": lambda at: at.mlstm(Q, K, V, GATE, GATE, normalize=1),
    "f": lambda at: at.mlstm(Q, K, V, GATE, Q),
    "a state of mlstm": lambda at: at.mlstm(Q, K, V, GATE, GATE, initial_state=State(V)),
    "w": lambda at: at.wkv(V, V, V[0, 0, 0, 1:], V[0, 0, 0]),
    "no state of wkv": lambda at: at.wkv_step(V, V, V[0, 0, 0], V[0, 0, 0], None),
    "a": lambda at: at.linear_scan(V[..., :2] * 1j, V),
    "log": lambda at: at.linear_scan(V * 1j, V, log=1),
    "a state of a scan": lambda at: at.linear_scan(V * 1j, V, initial_state=State(V * 1j)),
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
    [(KeyError("elsewhere"), "linattn: KeyError: 'elsewhere'"),
     (ValueError("!" + 999 * "\N{SNOWMAN}"), "linattn: ValueError: !\N{SNOWMAN}"),
     (np.ones((8, 1)), r"linattn: ValueError: .* returned \(8, 1\); expected \(2, 3, 8, 4\)")],
)  # fmt: skip
def test_errors_of_maps(result, expected):
    with pytest.raises(jax.errors.JaxRuntimeError, match=expected):
        np.asarray(la.causal(Q, K, V, feature_map=Wrong(result)))


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
    "no arrays": ((), {}, "do not match the operator"),
    "integers": ((X.astype(int), X, X), {}, "do not match the operator"),
    "two arrays": ((X, X), {}, "fewer operands"),
    "four arrays": ((X, X, X, X), {}, "more operands"),
    "two dtypes": ((X, X.astype("f4"), X), {}, "wrong dtype"),
    "shapes": ((X, X[:, 1:], X), {}, "shapes of the operands do not match"),
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
        ((jax.ShapeDtypeStruct(X.shape, X.dtype),) * 2, "do not match the operator"),
        ((jax.ShapeDtypeStruct(X.shape, np.float32),), "wrong dtype"),
        ((jax.ShapeDtypeStruct((2, 4, 2), X.dtype),), "shapes of the operands do not match"),
        ((jax.ShapeDtypeStruct((1, 2, 4, 3), X.dtype),), "shapes of the operands do not match"),
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


SQUARES = linattn.feature_maps.Taylor()  # a map that runs in Python


@pytest.mark.parametrize("platform", ["cuda", "rocm", "tpu"])
@pytest.mark.parametrize(
    "f",
    [la.causal, jax.grad(lambda q, k, v: la.causal(q, k, v).sum()), jax.vmap(la.softmax_attention),
     partial(la.causal, feature_map=SQUARES)],
    ids=["forward", "gradient", "vmap", "map"],
)  # fmt: skip
def test_lowering_for_other_platforms(f, platform):
    traced = jax.jit(f).trace(Q, K, V)
    traced.lower(lowering_platforms=("cpu",))
    says = rf"linattn.jax: the arrays are on platform '{platform}'; expected 'cpu': move them with"
    for platforms in ((platform,), ("cpu", platform)):
        with pytest.raises(ValueError, match=says):
            traced.lower(lowering_platforms=platforms)


def test_arrays_on_other_platforms(monkeypatch):
    """Outside jit, where an array says what it is on."""
    x = jnp.asarray(Q)
    assert on_cpu(x) is x
    monkeypatch.setattr(type(x), "devices", lambda x: [SimpleNamespace(platform="gpu")])
    with pytest.raises(ValueError, match=r"'gpu'; expected 'cpu': .*jax\.default_device"):
        la.causal(Q, K, V)


OLDER = """
import jax
for jax.__version__, jax.__version_info__ in {}, {}:
    try:
        import linattn.jax
    except ImportError as error:
        print(error)
    print(jax.numpy.zeros(3).sum())
assert linattn.jax
"""


@pytest.mark.slow
def test_older_versions_of_jax():
    """Below the version that pyproject.toml promises, importing the bridge says what it needs."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    (oldest,) = re.findall(r"jax>=([\d.]+)", " ".join(project["optional-dependencies"]["jax"]))
    *first, last = map(int, oldest.split("."))
    older = ".".join(map(str, (*first, last - 1)))
    versions = (older, (*first, last - 1)), (oldest, (*first, last))
    told, *sums = output("-c", OLDER.format(*versions)).splitlines()
    assert told.startswith(f"linattn.jax needs jax {oldest} or newer and found {older}: pip")
    assert sums == ["0.0", "0.0"]
