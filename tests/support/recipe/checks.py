"""Tests of the recurrence ``fade`` in every library, run where the recipe has been followed."""

import inspect

import differential
import draws_operators
import numpy as np
import pytest
from bounds import close
from draws import Lot
from states import flat

import linattn
from linattn import State
from linattn import reference as twin
from linattn._bridges.generic_stubs import FOLDER

LEAD, N, D, M = (2, 3), 7, 5, 4
CHANNELS = pytest.mark.parametrize("channels", [(), (D,)], ids=["token", "channel"])


def operands(channels, dtype="float64"):
    """q, k, v and rate, then a cotangent."""
    rng = np.random.default_rng(0)
    cores = (N, D), (N, D), (N, M), (N, *channels), (N, M)
    return [rng.standard_normal((*LEAD, *core)).astype(dtype) for core in cores]


def states(*r):
    """An initial state, and the gradient of the final one."""
    return [State(x) for x in np.random.default_rng(1).standard_normal((2, *LEAD, *r, D, M))]


def assert_close(actual, expected):
    for x, y in zip(flat(actual), flat(expected), strict=True):
        assert x.shape == y.shape
        close(x, y, rtol=0, atol=1e-13 * abs(y).max())


@CHANNELS
@pytest.mark.parametrize(
    "options", [{}, {"cu_seqlens": [0, 3, 3, N], "key_lengths": [7, 5, 0], "scale": 0.5}]
)
def test_numpy(channels, options):
    *arrays, grad_out = operands(channels)
    start, last = states(*([3] if options else []))
    for f in ("fade", "fade_backward"):
        more = [grad_out] if f == "fade_backward" else []
        ends = {"initial_state": start} | ({"grad_state": last} if more else {"return_state": True})
        ours, theirs = getattr(linattn, f), getattr(twin, f)
        assert_close(ours(*arrays, *more, **options), theirs(*arrays, *more, **options))
        assert_close(
            ours(*arrays, *more, **ends, **options), theirs(*arrays, *more, **ends, **options)
        )


@CHANNELS
def test_steps(channels):
    arrays = operands(channels)[:-1]
    state = linattn.initial_state(*arrays[:3], operator="fade")
    rows = []
    for token in zip(*(np.moveaxis(x, 2, 0) for x in arrays), strict=True):
        row, state = linattn.fade_step(*token, state, in_place=True)
        rows.append(row)
    assert_close((np.stack(rows, -2), state), twin.fade(*arrays, return_state=True))


@CHANNELS
def test_torch(channels):
    torch = pytest.importorskip("torch")
    import linattn.torch

    *arrays, grad_out = operands(channels)
    tensors = [torch.tensor(x, requires_grad=True) for x in arrays]
    o = linattn.torch.fade(*tensors)
    o.backward(torch.tensor(grad_out))
    assert_close(o.detach().numpy(), twin.fade(*arrays))
    assert_close([x.grad.numpy() for x in tensors], twin.fade_backward(*arrays, grad_out))
    torch.library.opcheck(torch.ops.linattn.fade.default, (*tensors, 1.0, None, None))
    compiled = torch.compile(lambda *x: linattn.torch.fade(*x), backend="aot_eager")
    assert torch.equal(compiled(*tensors), o)


@CHANNELS
def test_dask(channels):
    da = pytest.importorskip("dask.array")
    *arrays, grad_out = operands(channels)
    cut = [da.from_array(x, chunks=(1, 3, 3, *x.shape[3:])) for x in (*arrays, grad_out)]
    assert_close(linattn.fade(*cut[:-1]).compute(), twin.fade(*arrays))
    grads = linattn.fade_backward(*cut)
    assert_close([x.compute() for x in grads], twin.fade_backward(*arrays, grad_out))


@CHANNELS
def test_jax(channels):
    jax = pytest.importorskip("jax")
    import linattn.jax

    *arrays, grad_out = operands(channels)
    with jax.enable_x64(True):
        o, vjp = jax.vjp(jax.jit(linattn.jax.fade), *arrays)
        grads = vjp(jax.numpy.asarray(grad_out))
    assert_close(np.asarray(o), twin.fade(*arrays))
    assert_close([np.asarray(x) for x in grads], twin.fade_backward(*arrays, grad_out))


@CHANNELS
def test_mpi(channels):
    pytest.importorskip("mpi4py")
    import linattn.mpi

    *arrays, grad_out = operands(channels)
    assert_close(linattn.mpi.fade(*arrays), twin.fade(*arrays))
    assert_close(
        linattn.mpi.fade_backward(*arrays, grad_out), twin.fade_backward(*arrays, grad_out)
    )


def test_docstrings_and_stubs():
    gufunc = linattn.ufuncs.fade_key_channels_state_backward
    assert "rate : (..., n, d)\n    How fast the memory fades" in gufunc.__doc__
    assert "drate : (..., n, d)\n    Gradient of rate." in gufunc.__doc__
    assert [*inspect.signature(gufunc).parameters][:4] == ["q", "k", "v", "rate"]
    assert "\nfade_key_channels_state_backward: Final" in (FOLDER / "ufuncs.pyi").read_text()
    for name in ("torch", "jax", "dask", "mpi"):
        assert "\ndef fade(" in (FOLDER / f"_signatures/{name}.pyi").read_text(), name


@pytest.mark.parametrize("family", [draws_operators.attention, draws_operators.step])
def test_random_calls(monkeypatch, family):
    def draw(seed, number):
        lot = Lot(seed, number)
        pick = lot.pick
        lot.pick = lambda choices: "fade" if "fade" in choices else pick(choices)
        return family(lot)

    monkeypatch.setattr(differential, "draw", draw)
    assert differential.main(["--cases", "100", "--poison"]) == 0
