"""What linattn replaces in other libraries at present."""

from __future__ import annotations

from ..patched_fla import LIBRARY as FLA
from ..transformers import LIBRARY as TRANSFORMERS

LIBRARIES = (TRANSFORMERS, FLA)


def patched() -> list[str]:
    """The functions of other libraries that linattn replaces at present.

    Returns
    -------
    list of str
        Sorted, such as ``"transformers.models.mamba2.modeling_mamba2.mamba2_chunk_scan"`` or
        ``"fla.ops.gla.chunk.chunk_gla"``; only of modules that are imported.
    """
    return sorted(name for library in LIBRARIES for name in library.names())
