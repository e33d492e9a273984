"""Models with linattn's operators as ONNX files, for inference by ONNX Runtime and others.

Once this module is imported, ``torch.onnx.export(..., dynamo=True)`` knows every operator of
linattn.torch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

try:
    import onnxscript  # noqa: F401
except ImportError as error:
    raise ImportError(f"linattn.torch.onnx needs {error.name}: pip install 'linattn[onnx]'") from error

import onnx_ir as ir
import torch

from .._maps import FEATURES
from .._operator import OPERATORS, TensorOperator
from . import _others
from ._call import Call
from ._errors import NotExportedError
from ._ops import Ops
from ._recurrence import recurrence
from ._tokens import RULES

__all__ = ["export", "translations"]

#: How each operator is exported.
TRANSLATIONS: dict[str, Callable[[Call], Any]] = {
    **dict.fromkeys(RULES, recurrence),
    "noncausal": _others.noncausal,
    "softmax_attention": _others.softmax_attention,
    "linformer": _others.linformer,
    "log_decay": _others.log_decay,
    "causal_conv1d": _others.causal_conv1d,
}


def translations(contrib: bool = True) -> dict[Any, Callable[..., Any]]:
    def translate(operator: TensorOperator, step: bool) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            return TRANSLATIONS[operator.name](Call(operator, args, step, contrib))
        return run

    table: dict[Any, Any] = {}
    for operator in OPERATORS.values():
        table[operator.stateless.op] = translate(operator, False)
        if operator.fields:
            table[operator.stateful.op] = translate(operator, False)
            table[operator.new_step.op] = translate(operator, True)
    def features(x: Any, text: str, omega: Any) -> Any:
        double = x.dtype is ir.DataType.DOUBLE
        return _others.features(Ops(ir.DataType.DOUBLE if double else ir.DataType.FLOAT, contrib), x, text, omega)
    table[FEATURES.op] = features
    return table



def export(model: Any, args: Any = (), f: Any = None, *, opset_version: int = 27, contrib: bool = False, **options: Any) -> Any:
    save = {new: options.pop(old) for old, new in _SAVING.items() if old in options}
    standard = opset_version >= 27 and not contrib
    try:
        program = torch.onnx.export(model, args, opset_version=min(opset_version, 25), dynamo=True, custom_translation_table=translations(contrib or standard), **options)
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, NotExportedError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None
    if standard:
        for node in program.model.graph.all_nodes():
            if node.domain == "com.microsoft":
                node.domain, node.version = "", 27
        program.model.opset_imports.pop("com.microsoft", None)
    if opset_version > 25:
        program.model.opset_imports[""] = opset_version
    if f is not None:
        program.save(f, **save)
    return program

_SAVING = {"export_params": "include_initializers", "keep_initializers_as_inputs": "keep_initializers_as_inputs", "external_data": "external_data"}
