"""The dtype of results, and casts that are refused since they lose information, in every bridge."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from operands import dims, make

import linattn
from linattn import State
from linattn.operators.registry import RECURRENCES

torch = pytest.importorskip("torch")
jnp = pytest.importorskip("jax.numpy")

import linattn.jax  # noqa: E402
import linattn.torch.distributed  # noqa: E402
from linattn.torch import fla  # noqa: E402

pytestmark = pytest.mark.any_isa

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32)


@pytest.fixture(scope="module")
def process():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def operands(name: str, dtypes: Any, shape: tuple[int, ...] = (2, 3, 4)) -> list[Any]:
    """q, k and v of these dtypes; the rest in that of q."""
    *lead, n, d = shape
    axes, rng = {"n": n, "s": n, "d": d, "m": d}, np.random.default_rng(0)
    drawn = make(dims(name), axes, rng, lead=tuple(lead)).values()
    dtype = dtypes[0] if dtypes[0].is_floating_point else torch.float32
    dtypes = itertools.chain(dtypes, itertools.repeat(dtype))
    sizes = itertools.chain([3, 3, 3], itertools.repeat(1))  # integers are not all 0
    return [torch.tensor(a * x).to(y) for a, x, y in zip(sizes, drawn, dtypes, strict=False)]


@pytest.mark.parametrize("name", [x for x, r in RECURRENCES.items() if r.transition])
def test_distributed_functions_promote_as_the_operators_do(process, name):
    for dtypes in itertools.product(DTYPES, repeat=2):
        given = operands(name, (dtypes[0], *dtypes))
        expected = getattr(linattn.torch, name)(*given)
        o = getattr(linattn.torch.distributed, name)(*given)
        assert o.dtype is expected.dtype, dtypes
        unit = {2: 2.0**-6, 4: 1e-5, 8: 1e-12}[o.dtype.itemsize]
        torch.testing.assert_close(o, expected, rtol=unit, atol=unit)


def test_distributed_maps_are_computed_as_the_operators_compute_them(process):
    """Features of 16-bit tokens have 32 bits."""
    q, k, v = operands("causal", (torch.bfloat16,) * 3)
    for phi in "dpfp", lambda x: x.exp():
        o = linattn.torch.distributed.causal(q, k, v, feature_map=phi)
        assert o.dtype is torch.bfloat16
        torch.testing.assert_close(o, linattn.torch.causal(q, k, v, feature_map=phi))


def test_the_layouts_of_fla_have_the_dtype_of_tokens():
    """Whichever of q, k and v it is that is wide; gates and strengths have no say."""
    for dtypes in itertools.product(DTYPES, repeat=2):
        q, k, v, beta = operands("delta", (dtypes[0], *dtypes), (1, 3, 2, 4))
        o, _ = fla.chunk_delta_rule(q, k, v, beta)
        expected = linattn.torch.delta(*(x.transpose(1, 2) for x in (q, k, v, beta)), scale=0.5)
        causal = linattn.torch.causal(q, k, v)  # which has no strengths
        assert o.dtype is causal.dtype, dtypes
        unit = {2: 2.0**-6, 4: 1e-5, 8: 1e-12}[o.dtype.itemsize]
        expected = expected.to(o.dtype)
        torch.testing.assert_close(o.transpose(1, 2), expected, rtol=unit, atol=unit)
        if q.dtype is torch.bfloat16:
            wide, _ = fla.chunk_delta_rule(q, k, v, beta.float())
            assert wide.dtype is o.dtype


def test_the_convolution_of_fla_has_the_dtype_of_its_tokens():
    weight = torch.full((4, 2), 0.3)
    for dtype in DTYPES:
        x = torch.arange(12).reshape(1, 3, 4).to(dtype)
        y, _ = fla.causal_conv1d(x, weight)
        one, _ = fla.causal_conv1d_update(x[:, 0], torch.zeros(1, 4, 2), weight=weight)
        assert y.dtype is one.dtype is (dtype if dtype.is_floating_point else torch.float32)
        expected = linattn.torch.causal_conv1d(x, weight).to(y.dtype)
        torch.testing.assert_close(y, expected)


# --- complex numbers ---------------------------------------------------------------


def _calls():
    x = np.ones((2, 3, 2), np.float32)
    token, beta = x[:, 0], np.ones((2, 3), np.float32)
    weight, inputs = np.ones((2, 4), np.float32), np.ones((2, 2, 3))
    z, complexes = np.ones((2, 2)), (np.complex64, np.complex128)
    for kind in complexes:
        s, one = np.ones((2, 2, 2), kind), np.ones(beta.shape, kind)
        for state in State(s, z.astype(kind)), State(s, z), State(abs(s), z.astype(kind)):
            yield "causal", (x, x, x), {"initial_state": state}
            yield "step", (token, token, token, state), {}
        yield "delta", (x, x, x, beta), {"initial_state": State(s)}
        yield "delta", (x, x, x, one), {}
        yield "delta_step", (token, token, token, beta[:, 0], State(s)), {}
        yield "gated", (x, x, x, one), {}
        yield "gated", (x, x, x, beta), {"bonus": one[:, :2]}
        yield "gated_delta", (x, x, x, one, beta), {}
        yield "gated_delta", (x, x, x, beta, beta), {"erase": x.astype(kind)}
        yield "dplr", (x, x, x, x.astype(kind), x, beta), {}
        yield "causal_conv1d", (x, weight), {"initial_state": inputs.astype(kind)}
        yield "causal_conv1d", (x, weight, np.ones(2, kind)), {}
        yield "causal_conv1d_step", (token, weight, inputs.astype(kind)), {}
        yield "log_decay", (x, kind(1), 0.0), {}
        yield "softmax_attention", (x, x.astype(kind), x), {}
        yield "causal", (x, x, x), {"scale": kind(1)}
        yield "causal", (x, x, x), {"eps": kind(1)}


def _to(convert: Any, x: Any) -> Any:
    if isinstance(x, State):
        return State(*(None if y is None else convert(y) for y in x))
    return convert(x) if isinstance(x, np.ndarray) else x


@pytest.mark.parametrize("module", ["linattn", "torch", "jax", "dask"])
@pytest.mark.filterwarnings("error")
def test_imaginary_parts_are_never_dropped(module):
    if module == "dask":
        convert = pytest.importorskip("dask.array").asarray
    else:
        convert = {"linattn": np.asarray, "torch": torch.from_numpy, "jax": jnp.asarray}[module]
    functions = {"torch": linattn.torch, "jax": linattn.jax}.get(module, linattn)
    for name, given, options in _calls():
        if module == "jax" and any(
            getattr(y, "dtype", None) == np.complex128 for x in (*given, *options.values())
            for y in (x if isinstance(x, State) else (x,))
        ):  # fmt: skip
            continue  # which JAX has not
        if module == "dask" and (name.endswith("step") or "conv" in name or "log" in name):
            continue
        given = tuple(_to(convert, x) for x in given)
        options = {key: _to(convert, x) for key, x in options.items()}
        with pytest.raises(TypeError, match=r"expected|complex"):
            getattr(functions, name)(*given, **options)


def test_cotangents_of_states_are_real():
    x, s = np.ones((2, 3, 2)), np.ones((2, 2, 2), complex)
    with pytest.raises(TypeError, match=r"grad_state\.s has dtype complex128; expected float64"):
        linattn.delta_backward(x, x, x, x[..., 0], x, grad_state=State(s))
    with pytest.raises(TypeError, match="grad_state has dtype complex128; expected float64"):
        linattn.causal_conv1d_backward(x, x[0, :2], x, grad_state=s[..., :1])


def test_maps_of_jax_are_real():
    x = jnp.ones((3, 2))
    with pytest.raises(TypeError, match="complex64; expected real numbers"):
        linattn.jax.causal(x, x, x, feature_map=lambda x: x * 1j)
