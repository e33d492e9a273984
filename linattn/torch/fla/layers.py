"""``fla.layers``: only ``utils``, with what layers outside fla take from it."""

from __future__ import annotations

from .._core.made_modules import make_modules
from . import _sequences

make_modules(
    __name__, {"utils": {name: getattr(_sequences, name) for name in _sequences.OF_LAYERS}}
)
__all__: list[str] = []
