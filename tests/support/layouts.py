"""The same numbers in every memory layout that NumPy allows."""

import numpy as np

WITH_GAPS = 3  #: of the last axes: the memory of all would be hundreds of times as large


def _inside(x: np.ndarray, index) -> np.ndarray:
    """x as the view `index` of an array with longer last axes; the rest is NaN and must not be
    read."""
    lead = max(x.ndim - WITH_GAPS, 0)
    larger = (*x.shape[:lead], *(3 * size + 2 for size in x.shape[lead:]))
    other = 77 if x.dtype.kind in "biu" else np.nan
    view = np.full(larger, other, x.dtype)[index][tuple(slice(size) for size in x.shape)]
    assert view.shape == x.shape
    view[...] = x
    return view


def backwards(x: np.ndarray) -> np.ndarray:
    """All axes backwards, the last ones with gaps."""
    steps = [-1] * max(x.ndim - WITH_GAPS, 0) + [-2] * min(x.ndim, WITH_GAPS)
    return _inside(x, tuple(slice(None, None, step) for step in steps))


def token_major(x: np.ndarray) -> np.ndarray:
    """A (B, H, n, d) view of (B, n, H, d) memory."""
    if x.ndim < 3:
        return x
    return x.swapaxes(-2, -3).copy().swapaxes(-2, -3)


def features_first(x: np.ndarray) -> np.ndarray:
    """An (..., n, d) view of (..., d, n) memory of its own."""
    if x.ndim < 2:
        return x
    return x.swapaxes(-1, -2).copy().swapaxes(-1, -2)


def features_first_backwards(x: np.ndarray) -> np.ndarray:
    """The same with the last row first in memory."""
    return features_first(x[..., ::-1, :])[..., ::-1, :] if x.ndim > 1 else x


def unaligned(x: np.ndarray) -> np.ndarray:
    view = np.ndarray(x.shape, x.dtype, buffer=bytearray(x.nbytes + 1), offset=1)
    view[...] = x
    return view


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "token_major": token_major,
    "fortran": lambda x: x.copy(order="F"),
    "features_first": features_first,
    "features_first_backwards": features_first_backwards,
    "padded_rows": lambda x: _inside(x, (..., slice(1, None))),
    "every_second_column": lambda x: _inside(x, (..., slice(1, None, 2))),
    "every_second_row": lambda x: _inside(x, (..., slice(None, None, 2), slice(None))),
    "rows_backwards": lambda x: x[..., ::-1, :].copy()[..., ::-1, :],
    "columns_backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "all_backwards": backwards,
    "unaligned": unaligned,
    "byte_swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "read_only": read_only,
}
