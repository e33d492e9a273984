"""One token of a layer: against the twins and the functions that it is made of."""

import ml_dtypes
import numpy as np
import pytest
from bounds import close
from fused_cases import LAYERS, Layer, bound, check, expected, make
from layouts import features_first, unaligned
from states import assert_same

import linattn

KINDS = "fused_gated_delta_step", "fused_gated_step"
DTYPES = np.float64, np.float32, np.float16, ml_dtypes.bfloat16
CALLS = [
    pytest.param(kind, layer, id=f"{kind}-{i}")
    for kind in KINDS
    for i, layer in enumerate(LAYERS)
    if not (layer.by_channel and kind == "fused_gated_step")
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "layer"), CALLS)
def test_against_the_twin(kind, layer, dtype):
    """In place too, with the same bits."""
    operands, state, options = make(kind, layer, dtype=dtype)
    before = [x.copy() for x in state]
    o, after = check(kind, operands, state, options, dtype)
    assert_same(state, before)  # not written to
    again, updated = getattr(linattn, kind)(*operands, state, **options, in_place=True)
    assert updated.s is state.s and updated.conv is state.conv
    assert_same((again, *state), (o, *after))


DELTA_OPTIONS = (
    {"z": None}, {"norm_weight": None}, {"z": None, "norm_weight": None}, {"bias": None},
    {"weight": None, "bias": None}, {"activation": None}, {"norm_activation": "sigmoid"},
    {"norm_eps": 0.5}, {"scale": 0.25}, {"beta_scale": 2.0}, {"lower_bound": -5.0},
    {"feature_map": "identity", "scale": 0.01}, {"feature_map": "elu", "beta_scale": 0.01},
)  # fmt: skip
GATED_OPTIONS = (
    {"z": None}, {"norm_weight": None}, {"z": None, "norm_weight": None}, {"bias": None},
    {"weight": None, "bias": None}, {"activation": None}, {"norm_groups": 3}, {"norm_groups": 6},
    {"norm_eps": 0.5}, {"scale": 0.25}, {"time_step_limit": (0.5, 0.75)}, {"D": None},
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes"),
    [*((KINDS[0], x) for x in DELTA_OPTIONS), *((KINDS[1], x) for x in GATED_OPTIONS)],
    ids=str,
)
def test_options(kind, changes):
    operands, state, options = make(kind, Layer(2, 6, 5, 7))
    if "weight" in changes:  # without a convolution
        state = state._replace(conv=None)
    check(kind, operands, state, options | changes, np.float64)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("layer", [(9, 9, 3, 5), (9, 9, 9, 9), (16, 16, 5, 5), (2, 18, 4, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_many_heads_without_a_convolution(kind, layer, dtype):
    """Parts of x of any length, each of which begins wherever the one before ends."""
    operands, state, options = make(kind, Layer(*layer), dtype=dtype)
    options |= {"weight": None, "bias": None}
    check(kind, operands, state._replace(conv=None), options, dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_operands_that_are_not_aligned(kind):
    """With a state of 16 bits in place, which NumPy takes no part in."""
    operands, state, options = make(kind, Layer(2, 6, 5, 7), lead=(3,), dtype=np.float32)
    half = linattn.FusedState(*(x.astype(np.float16) for x in state))
    again = linattn.FusedState(*(x.copy() for x in half))
    expected, _ = getattr(linattn, kind)(*operands, half, **options, in_place=True)
    found, _ = getattr(linattn, kind)(*map(unaligned, operands), again, **options, in_place=True)
    close(found, expected, **bound(expected, np.float32))
    for x, y in zip(again, half, strict=True):
        close(x, y, **bound(y, np.float16))


def test_one_bias_per_head_for_gates_per_channel():
    operands, state, options = make(KINDS[0], Layer(2, 4, 6, 5, by_channel=True))
    options["dt_bias"] = options["dt_bias"][:, 0].copy()
    check(KINDS[0], operands, state, options, np.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_layouts(kind):
    """Views, negative strides, and operands that broadcast."""
    layer = Layer(2, 6, 5, 7)
    operands, state, options = make(kind, layer, lead=(3, 2))
    o, after = getattr(linattn, kind)(*operands, state, **options)
    moved = [np.flip(np.repeat(x[::-1], 2, -1)[..., ::2][..., ::-1], -1)[::-1] for x in operands]
    columns = linattn.FusedState(*map(features_first, state))
    for x, y in zip((moved, columns), (operands, state), strict=True):
        assert_same(x, y)
    p, end = getattr(linattn, kind)(*moved, columns, **options)
    np.testing.assert_array_equal(p, o)
    np.testing.assert_array_equal(end.conv, after.conv)
    np.testing.assert_array_equal(end.s, after.s)

    one = linattn.FusedState(*(x[0, 0] for x in state))
    x, *gates = operands
    z = options.pop("z")[0, 0]
    p, end = getattr(linattn, kind)(x, *(y[0] for y in gates), one, z=z, **options)
    inputs = x, *(np.broadcast_to(y[0], y.shape) for y in gates)
    whole = linattn.FusedState(*(np.broadcast_to(y, (3, 2, *y.shape)) for y in one))
    q, _ = expected(kind, inputs, whole, options | {"z": np.broadcast_to(z, (3, 2, *z.shape))})
    close(p, q, **bound(q, np.float64))
    assert end.s.shape == (3, 2, *one.s.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_more_columns_of_the_convolution(kind):
    """A cache may keep more inputs than the filters read; they move along."""
    operands, state, options = make(kind, Layer(2, 6, 5, 7))
    o, after = getattr(linattn, kind)(*operands, state, **options)
    longer = state._replace(conv=np.concatenate([7 + 0 * state.conv[..., :2], state.conv], -1))
    p, end = getattr(linattn, kind)(*operands, longer, **options, in_place=True)
    close(p, o, **bound(o, np.float64))
    np.testing.assert_array_equal(end.conv[..., 2:], after.conv)
    np.testing.assert_array_equal(end.conv[..., 0], 7 + 0 * end.conv[..., 0])


@pytest.mark.parametrize("kind", KINDS)
def test_batches(kind):
    """None at all, and NaN in one entry."""
    layer = Layer(2, 6, 5, 7)
    operands, state, options = make(kind, layer, lead=(0, 3))
    o, after = getattr(linattn, kind)(*operands, state, **options)
    assert o.shape == (0, 3, 42) and after.s.shape == state.s.shape
    operands, state, options = make(kind, layer, lead=(3,))
    o, after = getattr(linattn, kind)(*operands, state, **options)
    operands[0][1], state.s[1] = np.nan, np.nan
    p, end = getattr(linattn, kind)(*operands, state, **options)
    for x, y in ((o, p), (after.s, end.s), (after.conv, end.conv)):
        np.testing.assert_array_equal(x[[0, 2]], y[[0, 2]])
    assert np.isnan(p[1]).all() and np.isnan(end.s[1]).all()


def test_threads_change_no_bit(threads):
    """More heads for each thread than it takes at a time."""
    operands, state, options = make(KINDS[0], Layer(16, 64, 128, 128), lead=(), dtype=np.float32)
    threads(1)
    expected = linattn.fused_gated_delta_step(*operands, state, **options)
    threads(3)
    assert_same(linattn.fused_gated_delta_step(*operands, state, **options), expected)


def test_as_the_functions_that_it_is_made_of():
    layer = Layer(2, 4, 8, 6)
    (x, a, b), state, options = make(KINDS[0], layer)
    o, after = linattn.fused_gated_delta_step(x, a, b, state, **options)
    y, conv = linattn.causal_conv1d_step(
        x, options["weight"], state.conv, options["bias"], activation="silu"
    )
    q, k = (y[:, i * 16 : i * 16 + 16].reshape(2, 2, 1, 8) for i in range(2))
    v, by_key = y[:, 32:].reshape(2, 2, 2, 6), (2, 2, 2)
    g = linattn.log_decay(a, options["A_log"], options["dt_bias"]).reshape(by_key)
    beta = (1 / (1 + np.exp(-b))).reshape(by_key)
    p, end = linattn.gated_delta_step(
        q, k, v, g, beta, linattn.State(state.s.reshape(2, 2, 2, 8, 6)), feature_map="l2norm"
    )
    p = p / np.sqrt((p**2).mean(-1, keepdims=True) + 1e-6) * options["norm_weight"]
    z = options["z"].reshape(p.shape)
    p = (p * z / (1 + np.exp(-z))).reshape(o.shape)
    close(o, p, **bound(p, np.float64))
    close(after.s.reshape(end.s.shape), end.s, **bound(end.s, np.float64))
    np.testing.assert_array_equal(after.conv, conv)


WRONG = {
    "no norm": {"norm_weight": None},
    "no gate": {"z": None},
    "another eps": {"norm_eps": 1e-3},
    "another scale": {"scale": 1.001, "norm_eps": 1.0},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_results_exceed_the_bound(kind, wrong):
    operands, state, options = make(kind, Layer(2, 6, 5, 7), dtype=np.float32)
    changes = WRONG[wrong]
    if "scale" in changes:
        options["norm_eps"] = 1.0
    o, _ = expected(kind, operands, state, options)
    p, _ = expected(kind, operands, state, options | changes)
    assert (abs(o - p) > bound(o, np.float32)["atol"]).any()


ERRORS = [
    ({"state": 3}, TypeError, "state is a int; expected a linattn.FusedState"),
    ({"x": None}, TypeError, "x is None; expected an array"),
    ({"A_log": None}, TypeError, "A_log is None; expected an array"),
    ({"dt_bias": None}, TypeError, "dt_bias is None; expected an array"),
    ({"s": [1.0]}, TypeError, r"state\.s is a list"),
    ({"s": np.zeros((6, 5))}, ValueError, r"state\.s has shape \(6, 5\)"),
    ({"s": np.zeros((2, 6, 5, 7), np.float32)}, TypeError, r"state\.s has dtype float32"),
    ({"s": np.zeros((3, 6, 5, 7))}, ValueError, r"state\.s has shape \(3, 6, 5, 7\)"),
    ({"conv": None}, ValueError, r"state\.conv is None and weight is given"),
    ({"conv": np.zeros((2, 62, 2))}, ValueError, r"state\.conv has shape \(2, 62, 2\)"),
    ({"weight": None}, ValueError, "bias is given without weight"),
    ({"weight": np.zeros((61, 4))}, ValueError, r"weight has shape \(61, 4\); expected \(62, w\)"),
    ({"bias": np.zeros(61)}, ValueError, r"bias has shape \(61,\); expected \(62,\)"),
    ({"x": np.zeros((2, 61))}, ValueError, r"x has shape \(2, 61\); expected \(\.\.\., 2 h d"),
    ({"x": np.zeros((2, 62), complex)}, TypeError, "x has dtype complex128"),
    ({"z": np.zeros((2, 41))}, ValueError, r"z has shape \(2, 41\); expected \(\.\.\., 42\)"),
    ({"z": np.zeros((3, 42))}, ValueError, r"z has shape \(3, 42\); expected leading axes"),
    ({"norm_weight": np.zeros(3)}, ValueError, r"norm_weight has shape \(3,\)"),
    ({"A_log": np.zeros(3)}, ValueError, r"A_log has shape \(3,\); expected \(6,\)"),
    ({"dt_bias": np.zeros(3)}, ValueError, r"dt_bias has shape \(3,\); expected \(6,\)"),
    ({"activation": "gelu"}, ValueError, "activation is 'gelu'"),
    ({"norm_eps": "a"}, TypeError, "norm_eps is 'a'; expected a real number"),
    ({"norm_eps": -1.0}, ValueError, "norm_eps is -1.0; expected a number >= 0"),
    ({"scale": np.inf}, ValueError, "scale is inf; expected a finite number"),
]
OF_DELTA = [
    ({"a": np.zeros((2, 5))}, ValueError, r"a has shape \(2, 5\); expected \(\.\.\., 6\)"),
    ({"a": np.zeros((2, 6, 4))}, ValueError, r"a has shape \(2, 6, 4\); expected \(\.\.\., 6, 5\)"),
    ({"b": np.zeros((2, 5))}, ValueError, r"b has shape \(2, 5\); expected \(\.\.\., 6\)"),
    ({"a": None}, TypeError, "a is None; expected an array"),
    ({"b": None}, TypeError, "b is None; expected an array"),
    ({"norm_activation": "relu"}, ValueError, "norm_activation is 'relu'"),
    ({"feature_map": "dpfp"}, ValueError, "feature_map is 'dpfp'; expected one of .* l2norm$"),
    ({"feature_map": abs}, TypeError, "feature_map is .*; expected one of .* l2norm$"),
    ({"beta_scale": None}, TypeError, "beta_scale is None"),
    ({"lower_bound": "a"}, TypeError, "lower_bound is 'a'"),
]
OF_GATED = [
    ({"dt": np.zeros((2, 5))}, ValueError, r"dt has shape \(2, 5\); expected \(\.\.\., 6\)"),
    ({"dt": None}, TypeError, "dt is None; expected an array"),
    ({"D": np.zeros(3)}, ValueError, r"D has shape \(3,\); expected \(6,\)"),
    ({"norm_groups": 4}, ValueError, "norm_groups is 4; expected a divisor of 6"),
    ({"time_step_limit": 1}, TypeError, "time_step_limit is 1; expected two numbers"),
    ({"time_step_limit": (1, 0)}, ValueError, r"time_step_limit is \(1, 0\)"),
]


@pytest.mark.parametrize("groups", [True, 1.0])
def test_groups_that_equal_those_of_an_earlier_call(groups):
    operands, state, options = make(KINDS[1], Layer(2, 6, 5, 7))
    linattn.fused_gated_step(*operands, state, **options | {"norm_groups": 1})
    with pytest.raises(TypeError, match=r"norm_groups is .*; expected an integer"):
        linattn.fused_gated_step(*operands, state, **options | {"norm_groups": groups})


@pytest.mark.parametrize(
    ("kind", "changes", "error", "message"),
    [
        *((kind, *x) for kind in KINDS for x in ERRORS),
        *((KINDS[0], *x) for x in OF_DELTA),
        *((KINDS[1], *x) for x in OF_GATED),
    ],
    ids=str,
)
def test_errors(kind, changes, error, message):
    """They name the function and the argument, and come before anything is written."""
    operands, state, options = make(kind, Layer(2, 6, 5, 2 + 5), lead=(2,))
    named = dict(zip(("x", "a", "b") if kind == KINDS[0] else ("x", "dt"), operands, strict=True))
    changes = dict(changes)
    before = [x.copy() for x in state]
    for field in ("conv", "s"):
        if field in changes:
            state = state._replace(**{field: changes.pop(field)})
    state = changes.pop("state", state)
    arguments = named | options | {"state": state, "in_place": True} | changes
    with pytest.raises(error, match=f"{kind}: .*{message}"):
        getattr(linattn, kind)(**arguments)
    if isinstance(state, linattn.FusedState):
        for x, y in zip(state, before, strict=True):
            if isinstance(x, np.ndarray) and x.shape == y.shape and x.dtype == y.dtype:
                np.testing.assert_array_equal(x, y)


def test_which_gates_have_channels():
    """Those with more axes than b, which the error says."""
    (x, a, b), state, options = make(KINDS[0], Layer(2, 4, 6, 5), lead=(3,))
    with pytest.raises(ValueError, match=r"a has .*; expected .*, as it has more axes than b$"):
        linattn.fused_gated_delta_step(x, a, b[0], state, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_in_place_is_true_or_false(kind):
    operands, state, options = make(kind, Layer(2, 6, 5, 7))
    with pytest.raises(TypeError, match=f"{kind}: in_place is 'no'; expected True or False"):
        getattr(linattn, kind)(*operands, state, **options, in_place="no")


@pytest.mark.parametrize("field", ["conv", "s"])
def test_states_that_cannot_be_updated(field):
    operands, state, options = make(KINDS[0], Layer(2, 6, 5, 7))
    getattr(state, field).flags.writeable = False
    with pytest.raises(ValueError, match=rf"state\.{field} is read-only"):
        linattn.fused_gated_delta_step(*operands, state, **options, in_place=True)
    short = state._replace(**{field: getattr(state, field)[:1]})
    with pytest.raises(ValueError, match=rf"state\.{field} has shape"):
        linattn.fused_gated_delta_step(*operands, short, **options, in_place=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"in_place": True}, {"state_indices": [1, 0]}], ids=str)
def test_fields_that_share_memory(kind, options):
    operands, state, more = make(kind, Layer(2, 6, 5, 7), lead=(2,))
    room = np.zeros(max(x.size for x in state))
    shared = linattn.FusedState(*(room[: x.size].reshape(x.shape) for x in state))
    with pytest.raises(ValueError, match=rf"^{kind}: state\.\w+ shares memory with state"):
        getattr(linattn, kind)(*operands, shared, **more, **options)
    assert not room.any()


def test_sizes_that_do_not_fit_the_kernel():
    """The internal gufunc refuses them as well, since it would read past its operands."""
    gufunc = linattn._core.gufuncs.internal_ufuncs["fused_gated_weight_step"]
    numbers = (1.0, 0.0, 1.0, 1.0, 1e-5, 1.0)
    one = np.ones(2)
    arrays = np.ones(9), np.ones((9, 4)), one, one, one
    with pytest.raises(ValueError, match="do not fit together"):
        gufunc(*arrays, *numbers, np.ones((2, 2, 3)), np.ones((9, 3)))
