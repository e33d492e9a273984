"""Calls in stages, which otherwise only long sequences are."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from linattn import _linattn


@contextlib.contextmanager
def forced(chunks: int) -> Iterator[None]:
    """Stages take groups of so many chunks at any length; with 0, linattn decides as always."""
    before = _linattn.force_stages(chunks)
    try:
        yield
    finally:
        _linattn.force_stages(before)
