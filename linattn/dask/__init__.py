"""linattn on dask arrays in blocks, along the tokens and along the leading axes.

The functions take what the NumPy functions take, dask arrays among it, and give lazy dask arrays:
nothing is computed until they are.  `linattn.causal` and its like come here by themselves where
they are given dask arrays.

Leading axes are independent.  Along n, each block's effect on the state is computed by itself,
the effects are put together in a scan of 2 log16(blocks) steps, and each block then runs from its
own state; the gradient goes the same way from the last block to the first.  So a worker holds its
blocks and some states, and tasks are pure functions: retries, spilling and persisting are safe.

Nothing is checked that is not known before it is computed: ``key_lengths`` in a dask array below 0
count as 0, and those above the number of keys as that number.  Chunk sizes have to be known.

``out`` is refused, as results are lazy, and so are chunks along the width, ``beta`` a value
channel, `linattn.feature_maps.PositiveRandomFeatures` with ``normalize=True``, and ``cu_seqlens``
where the tokens are in more than one chunk.

What it costs, in passes over the tokens: ``causal`` 0.4 of a pass more than in one piece; ``gated``
one more; ``delta``, ``gated_delta`` and ``dplr`` two more, one of them as wide as there are
features, as the effect of a block on a state is a matrix there: it pays from three workers on.  So
do the gradients, which run twice, but for ``causal`` without the normaliser.  The threads of one
machine share a sequence without that, so a worker is best a machine with all its threads.  A block
wants 10^5 tokens and more beside a task's milliseconds, and a width of one chunk.

dask's nanny sets ``MALLOC_TRIM_THRESHOLD_`` to 65536, and glibc then hands every array's memory
back and takes it anew: a block takes a fifth longer, and far more where new memory is dear, as on
some virtual machines. Where memory allows, set both of these before a cluster starts::

    dask.config.set({"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**30,
                     "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 2**25})
"""

from __future__ import annotations

import inspect
from functools import wraps
from importlib import import_module
from typing import Any

try:
    import dask.array as da
except ImportError as error:
    raise ImportError(f"linattn.dask needs {error.name}: pip install 'linattn[dask]'") from error

from .._bridge_docs import RESCALING, Bridge, like
from .._operator import Recurrence
from . import _in_order, _over_all

_attention, _delta, _gated, _gated_delta, _dplr = (
    import_module(f"linattn.{name}")  # the package has functions of these names
    for name in ("attention", "delta", "gated", "gated_delta", "dplr")
)

__all__ = [
    "causal",
    "causal_backward",
    "delta",
    "delta_backward",
    "dplr",
    "dplr_backward",
    "gated",
    "gated_backward",
    "gated_delta",
    "gated_delta_backward",
    "noncausal",
    "noncausal_backward",
]


_DASK = Bridge(
    words=RESCALING | {"ndarray": "dask array"},
    also_raises="""
    TypeError
        If an array for the result is given.
    ValueError
        If an array has unknown chunk sizes, or an operand several chunks along its width.
        If ``cu_seqlens`` is given and tokens are in several chunks.
        If ``normalize`` is True and the map one of PositiveRandomFeatures.
        If ``beta`` is one number a value channel.""",
    notes="What a sequence in several chunks costs besides: see `linattn.dask`.",
)
_EXAMPLE = """
    >>> import dask.array as da, linattn.dask
    >>> x = da.ones((6, 2), chunks=(3, 2))
    >>> o = {call}
    >>> o.compute().shape
    (6, 2)"""
_BACKWARD = _EXAMPLE.replace(">>> o =", ">>> dq, *others =").replace("o.compute", "dq.compute")


def _lazily(function: Any) -> Any:
    """A function of the package whose first operand becomes a dask array."""

    @wraps(function)
    def lazy(first: Any, *others: Any, **options: Any) -> Any:
        return function(da.asarray(first), *others, **options)

    whole = inspect.signature(function)
    taken = [x for name, x in whole.parameters.items() if name != "out"]
    lazy.__signature__ = whole.replace(parameters=taken)  # type: ignore[attr-defined]
    lazy.__module__ = __name__
    lazy.__doc__ = f"`linattn.{function.__name__}` of dask arrays, lazy."
    example = _BACKWARD if function.__name__.endswith("_backward") else _EXAMPLE
    return like(function, _DASK._replace(example=example))(lazy)


causal, causal_backward = map(_lazily, (_attention.causal, _attention.causal_backward))
noncausal, noncausal_backward = map(_lazily, (_attention.noncausal, _attention.noncausal_backward))
delta, delta_backward = map(_lazily, (_delta.delta, _delta.delta_backward))
gated, gated_backward = map(_lazily, (_gated.gated, _gated.gated_backward))
gated_delta, gated_delta_backward = map(
    _lazily, (_gated_delta.gated_delta, _gated_delta.gated_delta_backward)
)
dplr, dplr_backward = map(_lazily, (_dplr.dplr, _dplr.dplr_backward))


def forward(r: Recurrence, operands: tuple[Any, ...], *, out: Any = None, **options: Any) -> Any:
    """`Recurrence.forward` on dask arrays."""
    if out is not None:
        raise TypeError(f"{r.name}: out is given; expected None with dask arrays, which are lazy")
    return (_over_all if r.cross else _in_order).forward(r, operands, **options)


def backward(
    r: Recurrence, operands: tuple[Any, ...], grad_out: Any, **options: Any
) -> tuple[Any, ...]:
    """`Recurrence.backward` on dask arrays."""
    return (_over_all if r.cross else _in_order).backward(r, operands, grad_out, **options)
