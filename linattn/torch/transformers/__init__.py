"""Models of Hugging Face Transformers, run by linattn on CPUs.

Without a GPU the library computes linear attention in plain PyTorch, with functions of the modules
``transformers.models.*.modeling_*`` that it looks up at each call.
`linattn.torch.patch_transformers` replaces them, also for models that are already built.  An entry
in `sys.meta_path` patches modules that are imported later.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

from .._patch.patching import Library, Patch, Place, is_here, parameters
from ._packing import handing_on, is_exporting, keeping_apart, masking, refusing
from ._replaced import DROP_PACKING, MASK_PACKED, MIX_PACKED, SCAN_PACKED, STAND_INS, StandIn
from ._sources import digest

#: As in pyproject.toml.
_OLDEST = (5, 23)
#: What older versions call a layer's `cache`.
_CACHES = ("cache_params", "past_key_values")
_MODELS = re.compile(r"transformers\.models\.\w+\.modeling_\w+")
#: Keywords that models pass to all of their parts and that these functions ignore.
_PASSED_ON = {
    "cache_position",
    "cu_seq_lens_k",
    "is_causal",
    "max_length_k",
    "max_length_q",
    "num_items_in_batch",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "position_embeddings",
    "position_ids",
    "use_cache",
}


def patch_transformers() -> Patch:
    """Make the models of Transformers compute with linattn on CPUs.

    The chunked and recurrent forms of the gated delta rule (Qwen3-Next, Qwen3.5, OLMo Hybrid,
    ...), of Kimi's delta attention (Kimi Linear, ...) and of Mamba-2 (Bamba, Falcon-H1,
    Nemotron-H, Granite, Zamba2, ...), the scan of Mamba (and Falcon-Mamba, Jamba, Zamba),
    RecurrentGemma's RG-LRU, RWKV-4's attention, xLSTM's mLSTM, MiniMax's lightning attention, and
    the short convolution of these and of LFM2.  Results and gradients are the same within the
    rounding of float32.  Models that are already built or imported later are patched as well.

    Tensors on other devices, unsupported keywords and models that are being exported, other than
    by `linattn.torch.onnx`, fall back to the library's own functions.  A function whose signature
    differs from those of Transformers 5.23 and 5.24 is not patched, with a warning.

    Returns
    -------
    Patch
        ``undo()`` restores all functions.  So does leaving it as a context, unless the models
        were patched before or another context, in any thread, is still active.

    Raises
    ------
    ImportError
        If Transformers is not installed, or older than 5.23.

    Notes
    -----
    You may call it twice.  Packed sequences run on CPUs: ``cu_seq_lens_q`` or ``seq_idx``, as the
    library's DataCollatorWithFlattening gives them, separate the sequences of a row, also in
    softmax attention (``"sdpa"`` and ``"eager"``).  GLM-5 with its indexed attention, Inkling,
    RecurrentGemma, RWKV and xLSTM raise ValueError for them, as do Mamba and Falcon-Mamba with
    gradient checkpointing.

    States are float32, or float64 for tokens of float64.

    Examples
    --------
    >>> import linattn.torch
    >>> with linattn.torch.patch_transformers():  # doctest: +SKIP
    ...     tokens = model.generate(**inputs)
    """
    try:
        importlib.import_module("transformers")
    except ImportError as error:
        raise ImportError(
            f"linattn.torch.patch_transformers needs {error.name}: pip install -e '.[transformers]'"
        ) from error
    _check_version()
    return Patch(LIBRARY)


def _check_version() -> None:
    """Raise ImportError for a version whose models linattn does not know."""
    version = str(getattr(sys.modules["transformers"], "__version__", None))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or tuple(map(int, numbers.groups())) < _OLDEST:
        raise ImportError(
            f"linattn.torch.patch_transformers: transformers has version {version}; "
            f"expected {'.'.join(map(str, _OLDEST))} or later: pip install -e '.[transformers]'"
        )


# --- replacing --------------------------------------------------------------------------------


def _put() -> None:
    if _HOOK not in sys.meta_path:
        sys.meta_path.insert(0, _HOOK)
    for name, module in list(sys.modules.items()):
        if _MODELS.fullmatch(name):
            _patch(module)


def _leave() -> None:
    if _HOOK in sys.meta_path:
        sys.meta_path.remove(_HOOK)


LIBRARY = Library("transformers", _put, _leave)


def _patch(module: ModuleType) -> None:
    for name, stand_in in STAND_INS.items():
        _replace(module, name, functools.partial(_replacement, stand_in=stand_in), stand_in)
    for name, part in DROP_PACKING.items():
        _replace(module, f"{name}.forward", functools.partial(handing_on, part=part))
    scan = vars(module).get("mamba_selective_scan")
    separates = any(scan is place.ours for place in LIBRARY.places)
    for names, wrapper in (
        (SCAN_PACKED, keeping_apart if separates else refusing),
        (MASK_PACKED, masking),
        (MIX_PACKED, refusing),
    ):
        for name in names:
            _replace(module, f"{name}.forward", functools.partial(wrapper, name=name))


def _replace(
    module: ModuleType,
    name: str,
    make: Callable[..., Any],
    stand_in: StandIn | None = None,
) -> None:
    """Replace a function or method of the module by ``make`` of the original."""
    kind, _, attribute = name.rpartition(".")
    owner = getattr(module, kind, None) if kind else module
    original = None if owner is None else vars(owner).get(attribute)
    if not callable(original) or any(original is place.ours for place in LIBRARY.places):
        return
    full = f"{module.__name__}.{name}"
    if stand_in is not None and (problem := _mismatch(original, stand_in)):
        LIBRARY.warn(full, problem, stacklevel=8)
        return
    ours = make(original)
    LIBRARY.replace(Place(owner, attribute, full, original, ours))


def _mismatch(original: Callable[..., Any], stand_in: StandIn) -> str:
    """How a function differs from the one that is known; empty if it does not."""
    try:
        found, known = _parameters(original), _parameters(stand_in.function)
        if found != known:
            return f"({', '.join(found)}) does not take ({', '.join(known)})"
        if stand_in.sources and digest(original) not in stand_in.sources:
            return " has been changed"
    except (OSError, TypeError, ValueError):  # no signature, or no source
        return " cannot be inspected"
    return ""


def _parameters(function: Callable[..., Any]) -> list[str]:
    found = parameters(_plain(function))
    return [re.sub(rf"^({'|'.join(_CACHES)})\b", "cache", x) for x in found]


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """With the package kernels, functions of the library are modules that call them."""
    return function.forward if isinstance(function, torch.nn.Module) else function


def _replacement(original: Callable[..., Any], stand_in: StandIn) -> Callable[..., Any]:
    """The stand-in's function, or the original for calls that it does not support."""
    function = stand_in.function
    named = {*inspect.signature(function).parameters, *stand_in.packing, *_PASSED_ON}
    caches = {*_CACHES} & {*inspect.signature(_plain(original)).parameters}

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        options = {"cache" if name in caches else name: x for name, x in kwargs.items()}
        if (
            all(is_here(x) for x in args)
            and all(x is None or (name in named and is_here(x)) for name, x in options.items())
            and not is_exporting()
        ):
            result = function(*args, **options)
            if result is not NotImplemented:
                return result
        return original(*args, **kwargs)

    return run


# --- modules imported later -------------------------------------------------------------------


class _Hook(MetaPathFinder):
    """Finds models with the other finders, and patches each after its import."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if not _MODELS.fullmatch(fullname):
            return None
        others: Iterator[Any] = (x for x in sys.meta_path if not isinstance(x, _Hook))
        for finder in others:
            spec: ModuleSpec | None = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _PatchingLoader(spec.loader)
                return spec
        return None


class _PatchingLoader(Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader  # as without the hook
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        with LIBRARY.lock:
            if LIBRARY.is_active:  # not undone meanwhile
                _patch(module)


_HOOK = _Hook()
