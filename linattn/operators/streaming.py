"""Causal attention over sequences that do not fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .._core import checks
from .._states.state_arrays import State
from .attention import causal

if TYPE_CHECKING:
    from .._types import Array


def blocks(size: int, *arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Cut arrays into consecutive blocks of tokens.

    Parameters
    ----------
    size : int
        Tokens per block; the last block may have fewer.
    *arrays : array_like, shape (..., n, anything)
        Arrays with the same n, including `numpy.memmap`.  Blocks are views, so nothing is read
        before you use it.

    Yields
    ------
    tuple
        One view of each array.

    Raises
    ------
    TypeError
        If ``size`` is not an integer.
    ValueError
        If it is below 1, or the arrays differ in n.

    Notes
    -----
    No time and no memory beyond the views.

    Examples
    --------
    >>> import numpy as np, linattn
    >>> [block.shape for (block,) in linattn.blocks(4, np.zeros((10, 2)))]
    [(4, 2), (4, 2), (2, 2)]
    """
    size = checks.integer("blocks", "size", size)
    arrays = tuple(
        x if hasattr(x, "shape") else checks.array("blocks", f"arrays[{i}]", x)
        for i, x in enumerate(arrays)
    )
    for i, x in enumerate(arrays):
        if len(x.shape) < 2:
            raise checks.wrong_shape("blocks", f"arrays[{i}]", x, "(..., n, d)")
    lengths = {x.shape[-2] for x in arrays}
    if len(lengths) > 1:
        shapes = ", ".join(str(x.shape) for x in arrays)
        raise ValueError(f"blocks: arrays have shapes {shapes}; expected equal n, (..., n, d)")
    n = lengths.pop() if lengths else 0
    return (
        tuple(x[..., start : min(start + size, n), :] for x in arrays)
        for start in range(0, n, size)
    )


def stream(
    chunks: Iterable[tuple[Any, ...]],
    *,
    initial_state: State | None = None,
    progress: bool = False,
    total: int | None = None,
    **options: Any,
) -> Iterator[tuple[Array, State]]:
    """Causal attention chunk by chunk, in memory that does not grow with the sequence.

    Parameters
    ----------
    chunks : iterable of (q, k, v)
        Consecutive pieces of one sequence, for example from `blocks`.  Each is what `causal`
        takes, of any length.
    initial_state : State, optional
        The state before the first chunk.
    progress : bool, default False
        Show a progress bar; needs tqdm.
    total : int, optional
        Total number of tokens, for the bar.
    **options
        ``feature_map``, ``normalize``, ``eps`` and ``scale`` of `causal`.

    Yields
    ------
    o : ndarray, shape (..., n_chunk, m)
        The chunk's output.
    state : State
        The state after the chunk.  The last one continues the sequence.

    Raises
    ------
    ImportError
        If ``progress`` is True and tqdm is not installed.
    TypeError, ValueError
        If ``chunks`` is not iterable; if a chunk is not (q, k, v), or as `causal` raises them, when
        the chunk in question is reached.

    Notes
    -----
    The time of `causal` on the whole sequence, 4 n d m operations per head; the memory of one
    chunk and two states.

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 16-20, with chunks in place of
    tokens

    Examples
    --------
    >>> import numpy as np, linattn
    >>> x = np.ones((10, 2))
    >>> parts = [o for o, state in linattn.stream(linattn.blocks(4, x, x, x))]
    >>> np.allclose(np.concatenate(parts), linattn.causal(x, x, x))
    True
    """
    for name in options:
        if name not in ("feature_map", "normalize", "eps", "scale"):
            raise TypeError(
                f"stream: {name} is not an option; expected feature_map, normalize, eps or scale"
            )
    progress = checks.flag("stream", "progress", progress)
    items = _iterator("chunks", chunks, "an iterable of (q, k, v)")
    bar = _progress_bar(total) if progress else None
    return _stream(items, initial_state, bar, options)


def _stream(
    chunks: Iterator[tuple[Any, ...]], state: State | None, bar: Any, options: dict[str, Any]
) -> Iterator[tuple[Array, State]]:
    try:
        for i, chunk in enumerate(chunks):
            q, k, v = _operands(f"item {i} of chunks", chunk)
            o, state = causal(q, k, v, initial_state=state, return_state=True, **options)
            yield o, state
            if bar is not None:
                bar.update(o.shape[-2])
    finally:
        if bar is not None:
            bar.close()


def _operands(name: str, chunk: Any) -> tuple[Any, ...]:
    """q, k and v of a chunk."""
    operands = tuple(_iterator(name, chunk, "(q, k, v)"))
    if len(operands) != 3:
        raise ValueError(f"stream: {name} has length {len(operands)}; expected 3, (q, k, v)")
    return operands


def _iterator(name: str, x: Any, expected: str) -> Iterator[Any]:
    try:
        return iter(x)
    except TypeError:
        raise TypeError(f"stream: {name} is a {type(x).__name__}; expected {expected}") from None


def _progress_bar(total: int | None) -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("stream: progress=True needs tqdm; pip install tqdm") from None
    return tqdm(total=total, unit="token", unit_scale=True)
