"""ONNX Runtime's CPU operator com.microsoft.LinearAttention: identity map, no normaliser.

Inference only, and parallel over heads alone. It takes heads packed along the last axis.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from harness import Call
from onnx import TensorProto, helper


def linear(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, beta: np.ndarray | None = None, *, threads: int
) -> Call:
    """A call of the one-node model on (heads, n, d) arrays; its result is (heads, n, m).

    With ``beta`` (heads, n) its update rule is the delta rule.
    Operands and result are bound to the session once, so that a call is nothing but the operator.
    """
    heads, n, m = v.shape
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        _model(heads, beta is not None), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    given = {"query": q, "key": k, "value": v} | ({} if beta is None else {"beta": beta})
    packed = {
        name: np.ascontiguousarray(x.swapaxes(0, 1)).reshape(1, n, -1) for name, x in given.items()
    }
    for name, array in packed.items():
        binding.bind_cpu_input(name, array)
    out = np.empty((1, n, heads * m), np.float32)
    binding.bind_output("output", "cpu", 0, out.dtype, out.shape, out.ctypes.data)
    result = out.reshape(n, heads, m).swapaxes(0, 1)

    def call() -> np.ndarray:
        session.run_with_iobinding(binding)
        return result

    return call


def _model(heads: int, delta: bool) -> bytes:
    def value(name: str):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "n", name + "_width"])

    node = helper.make_node(
        "LinearAttention",
        ["query", "key", "value", *(["", "", "beta"] if delta else [])],
        ["output", "state"],
        domain="com.microsoft",
        update_rule="delta" if delta else "linear",
        q_num_heads=heads,
        kv_num_heads=heads,
        scale=1.0,
    )
    inputs = [value(name) for name in node.input if name]
    graph = helper.make_graph([node], "linear_attention", inputs, [value("output")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model.SerializeToString()
