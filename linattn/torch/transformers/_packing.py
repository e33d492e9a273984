"""Sequences packed in one row, and the forwards of models that are given them.

Models say in ``**kwargs`` how sequences are packed.  Some of their parts drop these keywords, and
some functions of the library ignore them, which mixes the sequences.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from .._core.seq_idx import bounds_of, numbers
from .._patch.patching import is_here

#: The keywords that say where packed sequences begin and end.
PACKING = ("cu_seqlens", "cu_seq_lens_q", "seq_idx")


class _Scanned(threading.local):
    """What a layer of Mamba tells its scan, in its thread."""

    bounds: Tensor | None = None  #: of the sequences in the row


SCANNED = _Scanned()
Forward = Callable[..., Any]


def is_exporting() -> bool:
    """Whether a model is being exported to a program that has to do without linattn.

    Programs of ONNX have their own forms of linattn's operators.
    """
    if not torch.compiler.is_exporting():
        return False
    return "linattn.torch.onnx" not in sys.modules or not torch.onnx.is_in_onnx_export()


def sequences(x: Tensor, packing: dict[str, Any]) -> Any:
    """The bounds of the sequences packed in the row x (1, n, ...); None for a single one."""
    cu_seqlens, cu_seq_lens_q, seq_idx = (packing.get(name) for name in PACKING)
    if cu_seqlens is None:
        cu_seqlens = cu_seq_lens_q
    if cu_seqlens is None and seq_idx is None:
        return None
    if x.shape[0] != 1:
        if cu_seq_lens_q is not None:  # which the library's own function would ignore
            raise ValueError(
                f"linattn.torch.patch_transformers: cu_seq_lens_q is given for {x.shape[0]} rows; "
                "expected all sequences in one row"
            )
        return NotImplemented
    if cu_seqlens is not None:
        return cu_seqlens
    bounds = bounds_of(seq_idx)  # type: ignore[arg-type]
    return bounds if seq_idx.numel() == x.shape[1] else NotImplemented  # type: ignore[union-attr]


def handing_on(original: Forward, part: str) -> Forward:
    """A forward that passes packing keywords on to a part of the module.

    The part is an attribute, or with a dot one of each of the module's layers.
    """
    layers, _, name = part.rpartition(".")

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        packing = {name: kwargs[name] for name in PACKING if kwargs.get(name) is not None}
        if not packing:
            return original(self, *args, **kwargs)
        if layers and any(getattr(x, "gradient_checkpointing", False) for x in self.modules()):
            raise ValueError(
                f"{type(self).__name__}: packed sequences are given with gradient checkpointing, "
                "which computes layers again without them; expected one of the two"
            )
        compiling = torch.compiler.is_compiling()
        thread = 0 if compiling else threading.get_ident()

        def add(module: Any, given: Any, named: dict[str, Any]) -> Any:
            here = compiling or threading.get_ident() == thread
            return (given, named | packing) if here else None

        owners = getattr(self, layers) if layers else [self]
        with ExitStack() as hooks:
            for owner in owners:
                hook = getattr(owner, name).register_forward_pre_hook(add, with_kwargs=True)
                hooks.enter_context(hook)
            return original(self, *args, **kwargs)

    return forward


def keeping_apart(original: Forward, name: str) -> Forward:
    """The forward of a layer of Mamba, with packed sequences for its scan and convolution.

    The layer hands all or some of the keywords to its convolution, and none to its scan.
    """

    @functools.wraps(original)
    def forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        packing = {x: kwargs.pop(x, None) for x in PACKING}
        if not _are_several(packing):
            return original(self, hidden_states, *args, **kwargs)
        ours = is_here(hidden_states) and not is_exporting()
        bounds = sequences(hidden_states, packing) if ours else NotImplemented
        if bounds is NotImplemented:
            raise _mixed(name)
        kwargs["seq_idx"] = numbers(bounds, hidden_states.shape[1])[None]
        run = torch.compiler.disable(_apart) if torch.compiler.is_compiling() else _apart
        return run(original, bounds, self, hidden_states, *args, **kwargs)

    return forward


def _apart(original: Forward, bounds: Tensor, *args: Any, **kwargs: Any) -> Any:
    SCANNED.bounds = bounds
    try:
        return original(*args, **kwargs)
    finally:
        SCANNED.bounds = None


def masking(original: Forward, name: str) -> Forward:
    """The forward of softmax attention, with a mask that keeps packed sequences apart.

    The library separates them in its masks by ``position_ids`` alone, but not in every model, nor
    beside a cache or a mask of padding.
    """
    _, *names = inspect.signature(original).parameters

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        kind, x = self.config._attn_implementation, given["hidden_states"]
        packing = {x: given.get(x) for x in PACKING}
        # Flash attention takes cu_seq_lens_q itself.
        if not _are_several(packing) or "flash" in kind or not is_here(x) or is_exporting():
            return original(self, *args, **kwargs)
        bounds, mask = sequences(x, packing), given.get("attention_mask")
        if bounds is NotImplemented:
            raise _mixed(name)
        number = numbers(bounds, x.shape[1])
        apart = number[:, None] == number
        if kind not in ("sdpa", "eager") or not _is_square(mask, x.shape[1]):
            raise ValueError(
                f"{name}: packed sequences are given with the attention implementation {kind!r} "
                f"and {'no mask' if mask is None else 'another mask than of these tokens'}; "
                "expected 'sdpa' or 'eager', and no tokens in the cache"
            )
        return original(self, **given | {"attention_mask": _masked(mask, apart, kind, x.dtype)})

    return forward


def _is_square(mask: Any, n: int) -> bool:
    """Whether a mask is that of n queries and the same n keys; None is the causal one."""
    return mask is None or (isinstance(mask, Tensor) and mask.shape[2:] == (n, n))


def _masked(mask: Tensor | None, apart: Tensor, kind: str, dtype: torch.dtype) -> Tensor:
    """The mask where apart (n, n) is True: boolean, or with eager attention what is added."""
    if mask is None:
        apart = apart.tril()[None, None]
        mask = apart if kind == "sdpa" else torch.zeros_like(apart, dtype=dtype)
    if mask.dtype is torch.bool:
        return mask & apart
    return mask.masked_fill(~apart, torch.finfo(mask.dtype).min)


def refusing(original: Forward, name: str) -> Forward:
    """A forward that raises an error for several packed sequences, which it would mix."""

    @functools.wraps(original)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if _are_several(kwargs):
            raise _mixed(name)
        return original(*args, **kwargs)

    return forward


def _are_several(packing: dict[str, Any]) -> bool:
    bounds = (packing.get("cu_seqlens"), packing.get("cu_seq_lens_q"))
    index = packing.get("seq_idx")
    several = any(x is not None and len(x) > 2 for x in bounds)
    return several or (index is not None and bool((index != index[..., :1]).any()))


def _mixed(name: str) -> ValueError:
    return ValueError(
        f"{name}: packed sequences are given, which it does not separate; expected one sequence "
        "per row"
    )
