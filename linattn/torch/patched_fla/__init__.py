"""Layers and models of flash-linear-attention (fla), run by linattn on CPUs.

fla's kernels are Triton's, which runs on GPUs only.  `linattn.torch.patch_fla` replaces them for
tensors in the CPU's memory, in three ways:

- functions that fla dispatches to backends get a backend;
- autograd functions get another ``apply``;
- other functions are replaced in all loaded modules that have a name for them.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

from .. import fla
from .._patch.patching import Library, Patch, Place, for_cpus, names_in, own, parameters
from ._backend import Registered, registry_of
from ._places import MODULES, StandIn, operators


def patch_fla() -> Patch:
    """Make layers and models of flash-linear-attention compute with linattn on CPUs.

    The recurrences of `linattn.torch.fla`, Mamba, Mamba-2 and Mamba-3, and fla's fused modules:
    norms, activations, rotary embeddings, token shifts, short convolutions and losses.  Forward,
    backward, generation with fla's cache and packed sequences; float32, float64, bfloat16 and
    float16.  Models that are already built or imported later are patched as well, and so are names
    of fla's functions in your own modules.

    Calls with a tensor on another device go to fla's own functions.  A function whose signature
    differs from that of fla 0.6 is not patched, with a warning.

    Returns
    -------
    Patch
        ``undo()`` restores all functions.  So does leaving it as a context, unless fla was patched
        before or another context, in any thread, is still active.

    Raises
    ------
    ImportError
        If fla, or Triton, which it imports, is not installed, or linattn stands in for it
        (`linattn.torch.install_as`).

    Notes
    -----
    A layer that decodes a token writes to the state in fla's cache, if nothing else refers to that
    tensor or its memory and no gradient is recorded.

    You may call it twice.  What linattn does not support on CPUs raises an error that names it;
    kernels that are not replaced raise Triton's, "0 active drivers".

    Examples
    --------
    >>> import linattn.torch
    >>> with linattn.torch.patch_fla():  # doctest: +SKIP
    ...     tokens = model.generate(**inputs)
    """
    if sys.modules.get("fla") is fla:
        raise ImportError(
            "linattn.torch.patch_fla: the module fla is linattn's stand-in; expected the package: "
            "undo install_as first"
        )
    for name in ("triton", "fla.layers", "fla.ops.gated_oja_rule", "fla.ops.rwkv4"):
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Triton is not supported on current platform")
                importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f"linattn.torch.patch_fla needs {error.name}: pip install -e '.[fla]'"
            ) from error
    return Patch(LIBRARY)


# --- replacing --------------------------------------------------------------------------------


def _put() -> None:
    done = {x.name for x in LIBRARY.places}
    swaps: dict[int, Any] = {}
    for stand_in in (*MODULES, *operators()):
        if stand_in.full_name not in done:
            _replace(stand_in, swaps)
    _swap_names(swaps)


def _leave() -> None:
    places = (x for x in LIBRARY.places if isinstance(x.owner, ModuleType))
    _swap_names({id(x.ours): x.original for x in places})


LIBRARY = Library("fla", _put, _leave)


def _replace(stand_in: StandIn, swaps: dict[int, Any]) -> None:
    """Replace a function where it is defined, and note in ``swaps`` what to replace elsewhere."""
    try:
        owner: Any = importlib.import_module(stand_in.module)
        kind, _, attribute = stand_in.name.rpartition(".")
        owner = getattr(owner, kind) if kind else owner
        original = getattr(owner, attribute)
    except (ImportError, AttributeError):
        LIBRARY.warn(stand_in.full_name, " is not found", stacklevel=7)
        return
    if original is not None and (problem := _mismatch(original, stand_in)):
        LIBRARY.warn(stand_in.full_name, problem, stacklevel=7)
        return
    registry = registry_of(original)
    if registry is not None:
        place: Any = Registered(registry, stand_in.full_name, original, stand_in.function)
    else:
        ours: Any = for_cpus(original, stand_in.function)
        ours = staticmethod(ours) if attribute == "apply" else ours
        place = Place(owner, attribute, stand_in.full_name, own(owner, attribute), ours)
        if isinstance(owner, ModuleType) and original is not None:
            swaps[id(original)] = ours
    LIBRARY.replace(place)


def _swap_names(values: dict[int, Any]) -> None:
    """Replace values, given by their ids, in every loaded module that has a name for them."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and name.partition(".")[0] != "linattn":
            for attribute, value in names_in(module, values):
                setattr(module, attribute, value)


def _mismatch(original: Any, stand_in: StandIn) -> str:
    """How a function differs from the one that is known; empty if it does not."""
    try:
        if stand_in.name.endswith(".apply"):
            found = parameters(original.__self__.forward)[1:]  # without ctx
        else:
            found = parameters(original)
        known = parameters(stand_in.function, keyword_only=False)
    except (AttributeError, TypeError, ValueError):
        return " cannot be inspected"
    return "" if found == known else f"({', '.join(found)}) does not take ({', '.join(known)})"
