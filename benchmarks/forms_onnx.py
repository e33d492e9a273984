"""ONNX Runtime's CPU operator com.microsoft.LinearAttention: identity map, no normaliser.

Inference only, and parallel over heads alone. It takes heads packed along the last axis.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from harness import Call
from onnx import TensorProto, helper

#: By the operands besides queries, keys and values.
RULES = {
    (): "linear", ("beta",): "delta", ("decay",): "gated", ("decay", "beta"): "gated_delta"
}  # fmt: skip


def linear(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    beta: np.ndarray | None = None,
    decay: np.ndarray | None = None,
    *,
    threads: int,
) -> Call:
    """A call of the one-node model on (heads, n, d) arrays; its result is (heads, n, m).

    With ``beta`` (heads, n) its update rule is the delta rule, with ``decay`` (heads, n) or
    (heads, n, d) a gated one.  Operands and result are bound to the session once, so that a call
    is nothing but the operator.
    """
    heads, n, m = v.shape
    all_of_it = {"query": q, "key": k, "value": v, "decay": decay, "beta": beta}
    given = {name: x for name, x in all_of_it.items() if x is not None}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        _model(heads, tuple(given)), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
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


def _model(heads: int, given: tuple[str, ...]) -> bytes:
    def value(name: str):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", "n", name + "_width"])

    names = ("query", "key", "value", "past_state", "decay", "beta")
    node = helper.make_node(
        "LinearAttention",
        [name if name in given else "" for name in names],
        ["output", "state"],
        domain="com.microsoft",
        update_rule=RULES[given[3:]],
        q_num_heads=heads,
        kv_num_heads=heads,
        scale=1.0,
    )
    inputs = [value(name) for name in node.input if name]
    graph = helper.make_graph([node], "linear_attention", inputs, [value("output")])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return model.SerializeToString()
