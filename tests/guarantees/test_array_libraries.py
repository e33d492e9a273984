"""Arrays of other libraries: one test for each row of the table in docs/howto/arrays.md."""

import numpy as np
import pytest

import linattn

pytestmark = pytest.mark.any_isa

A = np.random.default_rng(0).random((6, 4))
EXPECTED = linattn.causal(A, A, A)


def gufunc(x):
    return linattn.ufuncs.causal_elu(x, x, x, 1.0, 1e-6)


def plain(x):
    """The function gives a plain array of the right numbers."""
    o = linattn.causal(x, x, x)
    assert type(o) is np.ndarray
    np.testing.assert_allclose(o, EXPECTED, atol=1e-6, rtol=0)  # noqa: TID251
    return o


def test_lists_and_memory_maps(tmp_path):
    mapped = np.memmap(tmp_path / "x", dtype=float, mode="w+", shape=A.shape)
    mapped[...] = A
    for x in (A.tolist(), mapped):
        plain(x)
        np.testing.assert_array_equal(gufunc(x), EXPECTED)


def test_masked_arrays():
    x = np.ma.masked_less(A, 0.1)
    with pytest.raises(TypeError, match="masked array, whose mask would be ignored"):
        linattn.causal(x, x, x)
    o = gufunc(x)
    assert isinstance(o, np.ma.MaskedArray)
    np.testing.assert_array_equal(o.data, EXPECTED)  # of the masked numbers as well


def test_torch():
    torch = pytest.importorskip("torch")
    plain(torch.tensor(A))
    with pytest.raises(TypeError, match=r"use linattn\.torch\.causal, or q\.detach"):
        linattn.causal(torch.tensor(A, requires_grad=True), A, A)
    for x in (torch.tensor(A).bfloat16(), torch.empty(6, 4, device="meta")):
        with pytest.raises(
            TypeError, match=r"k is a Tensor that NumPy cannot read.*linattn\.torch"
        ):
            linattn.causal(A, x, A)


def test_jax():
    jnp = pytest.importorskip("jax.numpy")
    assert plain(jnp.asarray(A)).dtype in (np.float32, np.float64)
    assert type(gufunc(jnp.asarray(A))) is np.ndarray


def test_dask():
    da = pytest.importorskip("dask.array")
    x = da.from_array(A, chunks=(2, 4))
    o = linattn.causal(x, x, x)
    assert isinstance(o, da.Array)
    np.testing.assert_allclose(o.compute(), EXPECTED, atol=1e-13, rtol=0)  # noqa: TID251
    assert isinstance(gufunc(da.from_array(A)), da.Array)


@pytest.mark.slow
def test_xarray():
    xarray = pytest.importorskip("xarray")
    x = xarray.DataArray(A, dims=("n", "d"))
    plain(x)
    with pytest.raises(NotImplementedError, match="apply_ufunc"):
        gufunc(x)
    o = xarray.apply_ufunc(
        linattn.causal, x, x, x, input_core_dims=[["n", "d"]] * 3, output_core_dims=[["n", "d"]]
    )
    np.testing.assert_array_equal(o, EXPECTED)


@pytest.mark.slow
def test_pandas():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(A)
    plain(table)
    plain(table.set_index(np.arange(6)[::-1]))  # labels mean nothing
    assert isinstance(gufunc(table), pandas.DataFrame)
    np.testing.assert_array_equal(gufunc(table), EXPECTED)
    state = linattn.State(np.zeros((4, 4)), np.zeros(4))
    o, _ = linattn.step(*(pandas.Series(A[0]) for _ in range(3)), state)
    np.testing.assert_array_equal(o, linattn.step(A[0], A[0], A[0], state)[0])


class OnADevice:
    """As CuPy's arrays are: they take over NumPy's calls, and know none of ours."""

    dtype, ndim, shape = np.dtype(float), 2, (6, 4)

    def __array_ufunc__(self, *args, **options):
        return NotImplemented

    def __array_function__(self, *args, **options):
        return NotImplemented

    def __array__(self, *args, **options):
        raise TypeError("implicit conversion is not allowed")


def test_arrays_on_a_device():
    for call in (lambda x: linattn.causal(x, x, x), gufunc):
        with pytest.raises(TypeError, match="NotImplemented"):
            call(OnADevice())
