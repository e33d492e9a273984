"""``fla.utils``: what scripts take from it on CPUs."""

from __future__ import annotations

from ._sequences import tensor_cache

__all__ = ["tensor_cache"]
