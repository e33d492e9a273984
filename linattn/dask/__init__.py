"""linattn on dask arrays, in blocks along the tokens and along the leading axes.

The functions take what the NumPy functions take and return lazy dask arrays: nothing is computed
until they are.  `linattn.causal` and the other NumPy functions come here by themselves when you
pass them dask arrays.

Leading axes are independent.  Along n, each block computes what it does to the state, a scan of
2 log16(blocks) steps puts these effects together, and each block then runs from its own state;
the gradient goes the same way from the last block to the first.  A worker holds its blocks and a
few states.  Tasks are pure functions, so retries, spilling and persisting are safe.

`linattn.softmax_attention`, `linattn.causal_conv1d` and their gradients also take dask arrays, in
chunks along the leading axes alone.

Values that are not known before the computation are not checked: ``key_lengths`` in a dask array
are clipped to 0 and to the number of keys.  Chunk sizes have to be known.

Not supported: `linattn.slstm`; ``out``, as results are lazy; ``block``, ``state_at`` and
``state_indices``; chunks along the width; ``beta`` per value channel;
`linattn.feature_maps.PositiveRandomFeatures` with ``normalize=True``; ``cu_seqlens`` with tokens in
more than one chunk.

The cost, in passes over the tokens, relative to one block: ``causal`` 0.4 of a pass more;
``gated``, ``mlstm`` and ``wkv`` one more; ``linear_scan`` and ``selective_scan`` two more;
``delta`` and the rules like it two more, one of them as wide as there are features, since a
block's effect on a state is a matrix there: that pays from three workers on.
Gradients run twice, except for ``causal`` without the normaliser.  The threads of one machine share
a sequence at no such cost, so make each worker a machine with all its threads.  Blocks of 10^5
tokens and more hide the milliseconds that a task takes.

dask's nanny sets ``MALLOC_TRIM_THRESHOLD_`` to 65536, which makes glibc return the memory of every
array to the system: a block takes a fifth longer, or far longer where new memory is slow, as on
some virtual machines.  If you have the memory, set both of these before a cluster starts::

    dask.config.set({"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**30,
                     "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 2**25})
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

try:
    import dask.array  # noqa: F401
except ImportError as error:
    raise ImportError(f"linattn.dask needs {error.name}: pip install -e '.[dask]'") from error

from .._bridges.bridge import recurrences
from .._bridges.rows import DASK
from ._calls import backward, forward

if TYPE_CHECKING:
    from .._signatures.dask import *  # noqa: F403


_functions = recurrences(
    DASK, forward=lambda r: partial(forward, r), backward=lambda r: partial(backward, r)
)
globals().update(_functions)
__all__ = [*_functions]
