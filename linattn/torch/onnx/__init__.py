"""Models with linattn's operators as ONNX files, for inference by ONNX Runtime and others.

While this module is imported, ``torch.onnx.export(..., dynamo=True)`` knows every operator of
linattn.torch, and models that `linattn.torch.patch_transformers` patches are exported with them.
The causal, gated, delta and gated delta rules, ssd and the short convolution become LinearAttention
and CausalConvWithState: ONNX Runtime's own operators or, with `export`, those of ONNX's opset 27.
Every other operator becomes ONNX's standard ones, recurrences a loop over tokens (Scan).

With ``block`` the tokens of a block are there twice: first they write, then they read.

16-bit operands are computed in float32, as in linattn.  Calls with ``cu_seqlens`` or
``return_state="exact"`` and gradients cannot be exported and raise NotImplementedError.  A step
with ``in_place=True`` becomes one that returns its new state.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

try:
    from torch.onnx._internal.exporter._torchlib._torchlib_registry import onnx_impl
except ImportError as error:
    raise ImportError(f"linattn.torch.onnx needs {error.name}: pip install -e '.[onnx]'") from error

import torch

from . import _table
from ._errors import NotExportedError
from ._standard import LAST_OPSET, converted_opset, finished

if TYPE_CHECKING:
    from torch.onnx import ONNXProgram

__all__ = ["export", "translations"]

#: What `ONNXProgram.save` calls the options of torch.onnx.export that it takes.
_SAVING: Mapping[str, str] = MappingProxyType({
    "export_params": "include_initializers",
    "keep_initializers_as_inputs": "keep_initializers_as_inputs",
    "external_data": "external_data",
})  # fmt: skip


def translations(*, contrib: bool = True) -> dict[Callable[..., Any], Callable[..., Any]]:
    """Translations of linattn's operators, for the exporter of PyTorch.

    Parameters
    ----------
    contrib : bool, default True
        Use ONNX Runtime's operators LinearAttention and CausalConvWithState (domain
        ``com.microsoft``).  If False, use ONNX's standard operators alone.

    Returns
    -------
    dict
        The ``custom_translation_table`` of ``torch.onnx.export(..., dynamo=True)``.

    Notes
    -----
    Importing this module registers ``translations()``; the table is for calls that differ from it.

    Examples
    --------
    >>> import linattn.torch.onnx
    >>> program = torch.onnx.export(  # doctest: +SKIP
    ...     model, (x,), dynamo=True,
    ...     custom_translation_table=linattn.torch.onnx.translations(contrib=False),
    ... )
    """
    return _table.translations(contrib=contrib)


def export(
    model: Any,
    args: tuple[Any, ...] = (),
    f: str | os.PathLike[str] | None = None,
    *,
    opset_version: int = 27,
    contrib: bool = False,
    **options: Any,
) -> ONNXProgram:
    """Export a model to ONNX, for inference.

    It calls ``torch.onnx.export(..., dynamo=True)``, whose own converter of versions stops before
    opset 27, which has LinearAttention and CausalConvWithState.

    Parameters
    ----------
    model : torch.nn.Module or torch.export.ExportedProgram
        What to export.
    args : tuple
        Example inputs.
    f : path, optional
        The file to write.
    opset_version : int, default 27
        ONNX's opset, from 18 to 27.  From 27 on, rules that LinearAttention has become this
        operator; before, they become loops over tokens.
    contrib : bool, default False
        Use ONNX Runtime's own operators of these names (domain ``com.microsoft``) instead, with
        any opset.  Files then run in ONNX Runtime alone.
    **options
        Other keywords of torch.onnx.export, such as ``dynamic_shapes`` and ``input_names``.
        ``verbose=False`` also hides the warnings of the exporter.

    Returns
    -------
    torch.onnx.ONNXProgram

    Raises
    ------
    ValueError
        If ``opset_version`` is out of range, or ``dynamo`` is False.
    NotImplementedError
        If a call in the model cannot be exported: it has ``cu_seqlens`` or
        ``return_state="exact"``, or is a gradient.
    Exception
        Those of torch.onnx.export.

    Notes
    -----
    ONNX Runtime 1.32 runs opset 27's LinearAttention as a loop over tokens, which takes 10 to 20
    times as long as its own operator (d = 64): prefer ``contrib=True`` if your files are for ONNX
    Runtime.

    Examples
    --------
    >>> import torch
    >>> import linattn.torch.nn, linattn.torch.onnx
    >>> layer = linattn.torch.nn.LinearAttention(16, num_heads=2).eval()
    >>> tokens = torch.export.Dim.DYNAMIC
    >>> program = linattn.torch.onnx.export(
    ...     layer, (torch.ones(1, 10, 16),), dynamic_shapes=({1: tokens},), verbose=False
    ... )
    >>> [x.op_type for x in program.model.graph if "Attention" in x.op_type]
    ['LinearAttention']
    """
    if not 18 <= opset_version <= LAST_OPSET:
        raise ValueError(
            f"linattn.torch.onnx.export: opset_version is {opset_version}; expected 18 to "
            f"{LAST_OPSET}"
        )
    if not options.pop("dynamo", True):
        raise ValueError("linattn.torch.onnx.export: dynamo is False; expected True")
    saving = {new: options.pop(old) for old, new in _SAVING.items() if old in options}
    standard = opset_version == LAST_OPSET and not contrib
    silenced = _silenced() if options.get("verbose") is False else contextlib.nullcontext()
    try:
        with silenced:
            program = torch.onnx.export(
                model, args, opset_version=converted_opset(opset_version), dynamo=True,
                custom_translation_table=translations(contrib=contrib or standard)
                | options.pop("custom_translation_table", {}),
                **options,
            )  # fmt: skip
    except Exception as error:
        raise _cause(error) from None
    assert program is not None
    finished(program.model, opset_version, standard=standard)
    if f is not None:
        program.save(f, **saving)
    return program


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Without warnings, and without those that the exporter logs."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _cause(error: BaseException) -> BaseException:
    """What linattn has raised, or the exporter's own error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, NotExportedError):
        cause = cause.__cause__
    return error if cause is None else cause


for _op, _translation in translations().items():
    onnx_impl(_op, no_compile=True)(_translation)
