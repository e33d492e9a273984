"""Arrays, and tuples of them, in a few words."""

from __future__ import annotations

from typing import Any


def shown_fields(state: Any) -> str:
    """A named tuple in one line: its arrays and tensors by their shapes and dtypes."""
    fields = zip(state._fields, state, strict=True)
    return f"{type(state).__name__}({', '.join(f'{name}={shown(x)}' for name, x in fields)})"


def shown(x: Any) -> str:
    """``x`` in a few words: arrays and tensors by shape and dtype."""
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        sizes = " x ".join(map(str, x.shape))
        return f"<{sizes} {x.dtype}>" if sizes else f"<{x.dtype}>"
    if type(x) in (list, tuple):
        return f"[{', '.join(map(shown, x))}]"
    return repr(x)
