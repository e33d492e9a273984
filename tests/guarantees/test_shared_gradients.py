"""The gradient of an operand that heads share is the sum of theirs: summed wide, then rounded.

What each head adds is taken from a call on as many copies of the operand, in float32, and summed in
float64.  The kernels compute 16-bit operands in float32, so that a 16-bit gradient has to be that
sum in float32, rounded: to the bit, where nothing follows the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from operands import given as as_given
from slow import looped, slow
from table import ALL, RULES, SHARED, Case

import linattn
from linattn import feature_maps

N, D, M = 3, 2, 2
HEADS = 65536
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
DPFP = feature_maps.DPFP(1, normalize=False)
RANDOM = feature_maps.PositiveRandomFeatures.sample(D, 4, rng=0, temperature=0.1)
U = 2.0**-24  #: of float32
NONCAUSAL = next(x for x in ALL if x.name == "noncausal")


QKV = {"q": "nd", "k": "nd", "v": "nm"}
ROWS = [
    *RULES,
    *(x for x in ALL if x.name in ("softmax_attention", "linformer") or x == NONCAUSAL),
    Case("causal", QKV, {"feature_map": DPFP, "normalize": False}),
    Case("causal", QKV, {"feature_map": RANDOM}),
    next(x for x in ALL if "bias" in x.letters),
    Case("log_decay", {"x": "nm", "A_log": "sm", "dt_bias": "sm"}, {}),
]
#: Those whose gradients of 16-bit operands are nothing but sums of what kernels give.
PLAIN = "noncausal", "softmax_attention", "causal_conv1d", "log_decay", "linformer"
TORCH = [x for x in ROWS if x.name in PLAIN] + ROWS[:1] + RULES[-1:]


def drawn(row: Case, lead: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Operands in float64, each with all leading axes, and grad_out."""
    sizes = {"d": D, "m": M, "s": 1 if row.name == "log_decay" else N}
    arrays, rng = row.operands(lead, N, **sizes), np.random.default_rng(1)
    own = {x: rng.standard_normal((*lead, *y.shape)) for x, y in arrays.items() if x in SHARED}
    return arrays | own


def roundings(row: Case) -> int:
    """Those of float32 beside the sum, relative to the largest sum of absolutes."""
    mapped = not isinstance(row.options.get("feature_map", ""), str)
    return 64 if mapped or row.name == "linformer" else 0


def gradients(row: Case, operands: dict[str, Any]) -> dict[str, Any]:
    """Gradients by the operands' names, of the initial state's too if there is one."""
    given, options = dict(operands), dict(row.options)
    grad, state = given.pop("grad_out"), given.pop("state", None)
    if state is not None:
        z = 0 * state if row.row.stacked else 0 * state[..., 0]
        options["initial_state"] = linattn.State(
            state, z if row.row.stacked or options.get("normalize") else None
        )
    args, named = as_given(row.name, given)
    grads = list(getattr(linattn, f"{row.name}_backward")(*args, grad, **named, **options))
    if state is not None:
        grads[-1] = grads[-1].s
    return dict(zip((x for x in operands if x != "grad_out"), grads, strict=True))


def shared(arrays: dict[str, np.ndarray], names: Any, axes: int) -> dict[str, np.ndarray]:
    """Those operands of the first head alone, along the last of so many leading axes."""
    at = (*(slice(None),) * (axes - 1), slice(1))
    return {name: x[at] if name in names else x for name, x in arrays.items()}


def alike(row: Case) -> dict[str, np.ndarray]:
    """Many heads, of which three are different: what they add keeps adding up."""
    return {name: np.resize(x, (HEADS, *x.shape[1:])) for name, x in drawn(row, (3,)).items()}


def expected(row: Case, operands: dict[str, np.ndarray], lead: tuple[int, ...]) -> dict[str, Any]:
    """The sums in float64 of what heads add in float32, and those of absolutes."""
    whole = {
        name: np.array(np.broadcast_to(x, (*lead, *x.shape[len(lead) :])), np.float32)
        for name, x in operands.items()
    }
    sums = {}
    for name, x in gradients(row, whole).items():
        axes = tuple(i for i in range(len(lead)) if operands[name].shape[i] != lead[i])
        wide = x.astype(np.float64)
        sums[name] = wide.sum(axes, keepdims=True), abs(wide).sum(axes, keepdims=True)
    return sums


def check(grads: dict[str, Any], sums: dict[str, Any], slack: int, unit: float) -> None:
    """Each gradient is off by half a unit in its last place, and so many u of the largest sum; one
    of 16 bits was rounded to float32 before."""
    for name, grad in grads.items():
        total, terms = sums[name]
        got = np.asarray(grad).astype(np.float64)
        smallest = 2.0**-25 if grad.dtype == np.float16 else 0.0
        allowed = unit * abs(total) + (1 + unit) * slack * U * terms.max() + 2.0**-45 * terms
        allowed += U * abs(total) * (grad.dtype.itemsize == 2)
        assert got.shape == total.shape, name
        assert (abs(got - total) <= allowed + smallest).all(), (
            name,
            got.ravel()[:4],
            total.ravel()[:4],
        )


def sharings(row: Case) -> list[tuple[str, ...]]:
    """All but the first operand shared, as groups of queries share keys; and the first alone."""
    first, *rest = row.letters
    return [tuple(rest), (first,)]


@looped(dtype=HALVES)
@looped(row=ROWS)
def test_sums_of_16_bit_gradients(row, dtype):
    lead = (3, 5)
    for names in sharings(row):
        operands = shared(drawn(row, lead), names, 2)
        half = {name: x.astype(dtype) for name, x in operands.items()}
        sums = expected(row, half, lead)
        for given in half, {name: _unplain(x) for name, x in half.items()}:
            grads = gradients(row, given)
            check(grads, sums, roundings(row), float(ml_dtypes.finfo(dtype).eps) / 2)
            for name in names if roundings(row) == 0 else ():
                if grads[name].dtype == dtype:
                    total = sums[name][0].astype(np.float32)
                    np.testing.assert_array_equal(grads[name], total.astype(dtype))


def _unplain(x: np.ndarray) -> np.ndarray:
    """The same numbers where a call has to go by way of NumPy."""
    raw = np.empty(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    raw[...] = x
    assert not raw.flags.aligned
    return raw


@pytest.mark.parametrize("row", [*ROWS[:3], *slow(*ROWS[3:])], ids=str)
def test_sums_over_many_heads_are_exact_to_the_last_place(row):
    """One after another they would be off by hundreds of u, as heads are much alike."""
    rest, lead = [*sharings(row)[0]], (HEADS,)
    arrays = alike(row)
    if row in RULES:
        core = row.core(D, M)
        state = np.random.default_rng(1).random((1, *core))
        arrays["state"] = np.tile(state, (HEADS, *(1 for _ in core)))
        rest.append("state")
    operands = {x: y.astype(np.float32) for x, y in shared(arrays, rest, 1).items()}
    grads, sums = gradients(row, operands), expected(row, operands, lead)
    check(grads, sums, roundings(row) + 1, U)  # one where a head itself adds a rounded sum


def test_what_overflows_in_a_head_alone_is_no_nan():
    q = np.array([300, -300, 1.5], np.float16).reshape(3, 1, 1)
    one, g = np.ones((1, 1), np.float16), np.array([400, 400, 1], np.float16).reshape(3, 1, 1)
    for f in linattn.causal_backward, linattn.noncausal_backward:
        dv = f(q, one, one, g, feature_map="identity", normalize=False)[2]
        assert dv.dtype == np.float16 and dv == 1.5


def test_weights_of_a_map_have_sums_over_batches():
    """A float32 weight that a batch shares."""
    phi = feature_maps.FeedforwardKernel.glu(1, 2, rng=0)
    x, grad = np.random.default_rng(0).random((2, HEADS, 1, 1, 2)).astype(np.float32)
    _, [(dw, dg)] = phi.backward(x, grad)
    for got, i in ((dw, 0), (dg, 1)):
        each = [phi.backward(x[j : j + 64], grad[j : j + 64])[1][0][i] for j in range(0, HEADS, 64)]
        total = np.sum(each, 0, dtype=np.float64)
        assert (abs(got - total) <= 16 * U * np.sum(np.abs(each), 0, dtype=np.float64)).all()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100])
def test_sums_do_not_depend_on_the_layout(count):
    from linattn._core.gradient_sums import summed

    x = np.random.default_rng(0).standard_normal((2, count, 3, 4)).astype(np.float32)
    y = summed(x, (2, 1, 3, 4), x.dtype)
    for z in (np.asfortranarray(x), x[:, :, ::-1].copy()[:, :, ::-1], np.repeat(x, 2, 3)[..., ::2]):
        np.testing.assert_array_equal(summed(z, (2, 1, 3, 4), x.dtype), y)
    assert summed(x[:, :0], (2, 1, 3, 4), x.dtype).shape == (2, 1, 3, 4)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_sum_of_sixteen_bits_is_the_rounded_sum_of_float32(dtype):
    """Above a tie of 16 bits by so little that it is the tie in float32, whatever NumPy's casts of
    float64 do."""
    grad = np.array([[[1], [ml_dtypes.finfo(dtype).eps / 2]], [[2.0**-24], [0]]], np.float32)
    ones = {"x": np.ones((2, 2, 1)), "weight": np.ones((1, 1)), "bias": np.ones(1)}
    for more in (np.float32, dtype):
        given = {name: x.astype(more) for name, x in ones.items()}
        *_, dbias = linattn.causal_conv1d_backward(**given, grad_out=grad.astype(more))
        assert dbias.dtype == more
        assert dbias.astype(dtype) == 1


# --- the bridges -------------------------------------------------------------------


@pytest.mark.any_isa
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("row", TORCH, ids=str)
def test_tensors(row, dtype):
    """The bits of the NumPy functions."""
    pytest.importorskip("torch")
    import linattn.torch
    from linattn.torch._core.direct import array, tensor

    operands = shared(drawn(row, (3, 5)), sharings(row)[0], 2)
    operands = {name: x.astype(dtype) for name, x in operands.items()}
    expected = gradients(row, operands)
    tensors = {x: tensor(y.copy()).requires_grad_(x != "grad_out") for x, y in operands.items()}
    _call(getattr(linattn.torch, row.name), row, tensors).backward(tensors["grad_out"])
    for name, x in expected.items():
        grad = array(tensors[name].grad)  # a tensor's gradient has its dtype
        np.testing.assert_array_equal(grad, x.astype(grad.dtype), err_msg=name)


def _call(f: Callable[..., Any], row: Case, operands: dict[str, Any]) -> Any:
    args, named = as_given(row.name, {x: y for x, y in operands.items() if x != "grad_out"})
    return f(*args, **named, **row.options)


@pytest.mark.slow
@pytest.mark.any_isa
@pytest.mark.parametrize("row", TORCH, ids=str)
def test_jax_arrays(row):
    """Pairs, in float32: 16 roundings deep for 65,536 heads."""
    jax = pytest.importorskip("jax")
    import linattn.jax

    def vjp(operands: dict[str, Any]) -> dict[str, Any]:
        names = [x for x in operands if x != "grad_out"]

        def f(*given: Any) -> Any:
            f = getattr(linattn.jax, row.name)
            return _call(f, row, dict(zip(names, given, strict=True)))

        pulled = jax.jit(lambda g, *x: jax.vjp(f, *x)[1](g))
        grads = pulled(operands["grad_out"], *(operands[x] for x in names))
        return dict(zip(names, grads, strict=True))

    # Kernels may round otherwise than XLA, which computes decays by itself.
    own = 0 if row.name not in ("log_decay", "linformer") else 64
    for dtype in HALVES:
        lead = (3, 5)
        operands = shared(drawn(row, lead), sharings(row)[0], 2)
        half = {name: x.astype(dtype) for name, x in operands.items()}
        unit = float(ml_dtypes.finfo(dtype).eps) / 2
        check(vjp(half), expected(row, half, lead), own + 4, unit)
    operands = shared(alike(row), sharings(row)[0], 1)
    operands = {name: x.astype(np.float32) for name, x in operands.items()}
    check(vjp(operands), expected(row, operands, (HEADS,)), own + 16, U)


@pytest.mark.any_isa
@pytest.mark.parametrize("row", [ROWS[0], ROWS[5], ROWS[7], ROWS[-8]], ids=str)
def test_dask_arrays(row):
    """Blocks of tokens and of heads add what is not rounded yet."""
    da = pytest.importorskip("dask.array")
    lead = (2, 6)
    operands = shared(drawn(row, lead), sharings(row)[0], 2)
    half = {name: x.astype(np.float16) for name, x in operands.items()}
    lazy = {
        name: da.from_array(x, chunks=(1, min(4, x.shape[1]), *x.shape[2:]))
        for name, x in half.items()
    }
    grads = {name: x.compute() for name, x in gradients(row, lazy).items()}
    check(grads, expected(row, half, lead), 64, 2.0**-11)
    assert grads["v"].dtype == np.float16
