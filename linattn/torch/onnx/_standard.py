"""Models of opsets that PyTorch's exporter does not convert to."""

from __future__ import annotations

import onnx_ir as ir

from ._attention import DOMAIN

#: The last opset, and the first that has LinearAttention and CausalConvWithState.
LAST_OPSET = 27
#: The last one that onnxscript converts to.  Opset 26 and 27 add operators and types to it.
_CONVERTED = 25


def converted_opset(opset: int) -> int:
    """The opset that PyTorch's exporter is asked for."""
    return min(opset, _CONVERTED)


def finished(model: ir.Model, opset: int, *, standard: bool) -> None:
    """Gives a model its opset, and makes operators of ONNX Runtime those of ONNX.

    Both have the same inputs, outputs and attributes.
    """
    if opset > _CONVERTED:
        model.opset_imports[""] = opset
    if not standard:
        return
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN:
            node.domain, node.version = "", opset
    model.opset_imports.pop(DOMAIN, None)
