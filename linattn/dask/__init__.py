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

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

try:
    import dask.array as da
except ImportError as error:
    raise ImportError(f"linattn.dask needs {error.name}: pip install 'linattn[dask]'") from error

from .._bridge import recurrences
from .._bridges import DASK
from .._operator import Recurrence
from . import _in_order, _over_all

if TYPE_CHECKING:
    from .._signatures.dask import *  # noqa: F403


def _lazily(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a recurrence whose first operand becomes a dask array."""

    def lazy(operands: tuple[Any, ...], *more: Any, **options: Any) -> Any:
        operands = da.asarray(operands[0]), *operands[1:]
        return method(operands, *more, **{"feature_map": "identity", **options})

    return lazy


_functions = recurrences(
    DASK, forward=lambda r: _lazily(r.forward), backward=lambda r: _lazily(r.backward)
)
globals().update(_functions)
__all__ = [*_functions]


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
