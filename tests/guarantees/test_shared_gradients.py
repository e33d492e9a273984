"""The gradient of an operand that heads share is the sum of theirs: summed wide, rounded once.

What each head adds is taken from a call on as many copies of the operand, in float32, and summed in
float64.  The kernels compute 16-bit operands in float32, so that a 16-bit gradient has to be that
sum, rounded: to the bit, where nothing follows the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from slow import looped, slow
from table import RULES, Case

import linattn
from linattn import feature_maps
from linattn.operators.registry import RECURRENCES

N, D, M = 3, 2, 2
HEADS = 65536
HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
DPFP = feature_maps.DPFP(1, normalize=False)
RANDOM = feature_maps.PositiveRandomFeatures.sample(D, 4, rng=0, temperature=0.1)
U = 2.0**-24  #: of float32


class Row(NamedTuple):
    """An operator, and its operands: draws of a shape by name, each behind its leading axes."""

    name: str
    draw: dict[str, tuple[int, ...]]
    options: dict[str, Any]
    #: Roundings of float32 beside the sum, relative to the largest sum of absolutes.
    after: int = 0

    def __str__(self) -> str:
        return "-".join([self.name, *self.draw, *map(str, self.options)])

    @property
    def rule(self) -> Case | None:
        return next((x for x in RULES if str(x) == self.options.get("rule")), None)

    @property
    def optional(self) -> set[str]:
        """Operands that may be left out, which are given by name."""
        if self.name not in RECURRENCES:
            return {"bias"}
        return {x.name for x in RECURRENCES[self.name].operands if x.optional}

    def operands(self, lead: tuple[int, ...], seed: int = 0) -> dict[str, np.ndarray]:
        """In float64, each with all leading axes, and grad_out."""
        if self.rule is not None:
            return self.rule.operands(lead, N, d=D, m=M, seed=seed)
        rng = np.random.default_rng(seed)
        return {x: rng.standard_normal((*lead, *shape)) for x, shape in self.draw.items()}

    def gradients(self, operands: dict[str, np.ndarray], module: Any = linattn) -> dict[str, Any]:
        """Gradients by the operands' names, of the initial state's too if there is one."""
        given, options = dict(operands), dict(self.options)
        options.pop("rule", None)
        grad = given.pop("grad_out")
        after = {x: given.pop(x) for x in self.optional if x in given}
        state = given.pop("state", None)
        if state is not None:
            z = (np.zeros((*state.shape[:-1],), state.dtype),) if options.get("normalize") else ()
            z = (0 * state,) if RECURRENCES[self.name].stacked else z
            options["initial_state"] = linattn.State(state, *z)
        f = getattr(module, f"{self.name}_backward")
        grads = list(f(*given.values(), grad, **after, **options))
        if state is not None:
            grads[-1] = grads[-1].s
        return dict(zip((x for x in operands if x != "grad_out"), grads, strict=True))


def _rows() -> list[Row]:
    rows = [
        Row(rule.name, rule.letters, rule.options | {"rule": str(rule)}) for rule in RULES
    ]  # fmt: skip
    qkv = {"q": (N, D), "k": (N, D), "v": (N, M), "grad_out": (N, M)}
    projected = qkv | {"E": (N, 2), "F": (N, 2)}
    projected["grad_out"] = projected.pop("grad_out")
    rows += [
        Row("noncausal", qkv, {}),
        Row("softmax_attention", qkv, {"causal": True}),
        Row("softmax_attention", qkv, {}),
        Row("linformer", projected, {}, 64),
        Row("causal", qkv, {"feature_map": DPFP, "normalize": False}, 64),
        Row("causal", qkv, {"feature_map": RANDOM}, 64),
        Row("causal_conv1d", {"x": (N, D), "weight": (D, 2), "bias": (D,), "grad_out": (N, D)},
            {}),
        Row("log_decay", {"x": (N, D), "A_log": (1, D), "dt_bias": (1, D), "grad_out": (N, D)}, {}),
    ]  # fmt: skip
    return rows


ROWS = _rows()
#: Those whose gradients of 16-bit operands are nothing but sums of what kernels give.
TORCH = [row for row in ROWS if str(row).startswith(("noncausal", "softmax", "causal_conv1d",
         "log_decay", "linformer"))] + ROWS[:1] + ROWS[-9:-8]  # fmt: skip


def shared(arrays: dict[str, np.ndarray], names: Any, axes: int) -> dict[str, np.ndarray]:
    """Those operands of the first head alone, along the last of so many leading axes."""
    at = (*(slice(None),) * (axes - 1), slice(1))
    return {name: x[at] if name in names else x for name, x in arrays.items()}


def alike(row: Row) -> dict[str, np.ndarray]:
    """Many heads, of which three are different: what they add keeps adding up."""
    return {
        name: np.resize(x, (HEADS, *x.shape[1:])) for name, x in row.operands((3,)).items()
    }  # fmt: skip


def expected(row: Row, operands: dict[str, np.ndarray], lead: tuple[int, ...]) -> dict[str, Any]:
    """The sums in float64 of what heads add in float32, and those of absolutes."""
    whole = {
        name: np.array(np.broadcast_to(x, (*lead, *x.shape[len(lead) :])), np.float32)
        for name, x in operands.items()
    }
    sums = {}
    for name, x in row.gradients(whole).items():
        axes = tuple(i for i in range(len(lead)) if operands[name].shape[i] != lead[i])
        wide = x.astype(np.float64)
        sums[name] = wide.sum(axes, keepdims=True), abs(wide).sum(axes, keepdims=True)
    return sums


def check(grads: dict[str, Any], sums: dict[str, Any], slack: int, unit: float) -> None:
    """Each gradient is off by half a unit in its last place, and so many u of the largest sum."""
    for name, grad in grads.items():
        total, terms = sums[name]
        got = np.asarray(grad).astype(np.float64)
        smallest = 2.0**-25 if grad.dtype == np.float16 else 0.0
        allowed = unit * abs(total) + (1 + unit) * slack * U * terms.max() + 2.0**-45 * terms
        assert got.shape == total.shape, name
        assert (abs(got - total) <= allowed + smallest).all(), (
            name,
            got.ravel()[:4],
            total.ravel()[:4],
        )


def sharings(row: Row) -> list[tuple[str, ...]]:
    """All but the first operand shared, as groups of queries share keys; and the first alone."""
    first, *rest = (x for x in row.draw if x != "grad_out")
    return [tuple(rest), (first,)]


@looped(dtype=HALVES)
@looped(row=ROWS)
def test_sums_of_16_bit_gradients_are_rounded_once(row, dtype):
    lead = (3, 5)
    for names in sharings(row):
        operands = shared(row.operands(lead), names, 2)
        half = {name: x.astype(dtype) for name, x in operands.items()}
        sums = expected(row, half, lead)
        for given in half, {name: _unplain(x) for name, x in half.items()}:
            grads = row.gradients(given)
            check(grads, sums, row.after, float(ml_dtypes.finfo(dtype).eps) / 2)
            for name in names if row.after == 0 else ():
                if grads[name].dtype == dtype:
                    np.testing.assert_array_equal(grads[name], sums[name][0].astype(dtype))


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
    if row.rule is not None:
        core = row.rule.core(D, M)
        state = np.random.default_rng(1).random((1, *core))
        arrays["state"] = np.tile(state, (HEADS, *(1 for _ in core)))
        rest.append("state")
    operands = {x: y.astype(np.float32) for x, y in shared(arrays, rest, 1).items()}
    grads, sums = row.gradients(operands), expected(row, operands, lead)
    check(grads, sums, row.after + 1, U)  # one where a head itself adds a rounded sum


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


# --- the bridges -------------------------------------------------------------------


@pytest.mark.any_isa
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("row", TORCH, ids=str)
def test_tensors(row, dtype):
    """The bits of the NumPy functions."""
    pytest.importorskip("torch")
    import linattn.torch
    from linattn.torch._core.direct import array, tensor

    operands = shared(row.operands((3, 5)), sharings(row)[0], 2)
    operands = {name: x.astype(dtype) for name, x in operands.items()}
    expected = row.gradients(operands)
    tensors = {x: tensor(y.copy()).requires_grad_(x != "grad_out") for x, y in operands.items()}
    _call(getattr(linattn.torch, row.name), row, tensors).backward(tensors["grad_out"])
    for name, x in expected.items():
        grad = array(tensors[name].grad)  # a tensor's gradient has its dtype
        np.testing.assert_array_equal(grad, x.astype(grad.dtype), err_msg=name)


def _call(f: Callable[..., Any], row: Row, operands: dict[str, Any]) -> Any:
    options = {x: y for x, y in row.options.items() if x != "rule"}
    after = {x: y for x, y in operands.items() if x in row.optional}
    given = [y for x, y in operands.items() if x not in (*after, "grad_out")]
    return f(*given, **after, **options)


@pytest.mark.slow
@pytest.mark.any_isa
@pytest.mark.parametrize("row", TORCH, ids=str)
def test_jax_arrays(row):
    """Pairs, in float32: 16 roundings deep for 65,536 heads."""
    jax = pytest.importorskip("jax")
    import linattn.jax

    def gradients(operands: dict[str, Any]) -> dict[str, Any]:
        names = [x for x in operands if x != "grad_out"]

        def f(*given: Any) -> Any:
            f = getattr(linattn.jax, row.name)
            return _call(f, row, dict(zip(names, given, strict=True)))

        vjp = jax.jit(lambda g, *x: jax.vjp(f, *x)[1](g))
        grads = vjp(operands["grad_out"], *(operands[x] for x in names))
        return dict(zip(names, grads, strict=True))

    # Kernels may round otherwise than XLA, which computes decays by itself.
    own = 0 if row.name not in ("log_decay", "linformer") else 64
    for dtype in HALVES:
        lead = (3, 5)
        operands = shared(row.operands(lead), sharings(row)[0], 2)
        half = {name: x.astype(dtype) for name, x in operands.items()}
        unit = float(ml_dtypes.finfo(dtype).eps) / 2
        check(gradients(half), expected(row, half, lead), own + 4, unit)
    operands = shared(alike(row), sharings(row)[0], 1)
    operands = {name: x.astype(np.float32) for name, x in operands.items()}
    check(gradients(operands), expected(row, operands, (HEADS,)), own + 16, U)


@pytest.mark.any_isa
@pytest.mark.parametrize("row", [ROWS[0], ROWS[5], ROWS[7], ROWS[-8]], ids=str)
def test_dask_arrays(row):
    """Blocks of tokens and of heads add what is not rounded yet."""
    da = pytest.importorskip("dask.array")
    lead = (2, 6)
    operands = shared(row.operands(lead), sharings(row)[0], 2)
    half = {name: x.astype(np.float16) for name, x in operands.items()}
    lazy = {
        name: da.from_array(x, chunks=(1, min(4, x.shape[1]), *x.shape[2:]))
        for name, x in half.items()
    }
    grads = {name: x.compute() for name, x in row.gradients(lazy).items()}
    check(grads, expected(row, half, lead), 64, 2.0**-11)
    assert grads["v"].dtype == np.float16
