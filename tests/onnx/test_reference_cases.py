"""The onnx package's reference cases of LinearAttention, opset 27, all update rules."""

import numpy as np
import onnx
import pytest
from onnx_cases import onnx_cases

import linattn

pytest.importorskip("onnx.reference.ops.op_linear_attention")


CASES = onnx_cases("linear_attention", "LinearAttention")


def array(x):
    """An array of what a data set holds: float16 and the like as they are."""
    return onnx.numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else np.asarray(x)


def heads(x, count):
    """(B, T, H D) as (B, H, T, D)."""
    return x.reshape(*x.shape[:2], count, -1).swapaxes(1, 2)


def grouped(x, groups):
    """One key head for a group of queries."""
    return x if groups == 1 else x[:, :, None]


def rule(node):
    """Its update rule; the gated delta rule where none is named."""
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return given.get("update_rule", b"gated_delta").decode()


def evaluate(node, inputs):
    given = dict(zip([name for name in node.input if name], inputs, strict=True))
    names = ("query", "key", "value", "past_state", "decay", "beta")
    q, k, v, past, decay, beta = (
        given.get(name) for name in [*node.input, *[""] * (len(names) - len(node.input))]
    )
    options = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    count, own = options["q_num_heads"], options["kv_num_heads"]
    groups = count // own
    d = q.shape[-1] // count
    q = heads(q, count)
    if groups > 1:
        q = q.reshape(q.shape[0], own, groups, *q.shape[2:])
    k, v = (grouped(heads(x, own), groups) for x in (k, v))
    scale = options.get("scale", 0.0) or d**-0.5
    if past is not None:
        wide = np.float64 if past.dtype == np.float64 else np.float32
        past = linattn.State(grouped(past.astype(wide), groups))
    more = {"scale": scale, "initial_state": past, "return_state": True}
    if decay is not None:
        wide = np.float64 if decay.dtype == np.float64 else np.float32
        decay = grouped(heads(decay.astype(wide), own), groups)
        decay = decay[..., 0] if decay.shape[-1] == 1 else decay
    if beta is not None:
        beta = grouped(heads(np.broadcast_to(beta, (*beta.shape[:2], own)), own), groups)[..., 0]
    if rule(node) == "linear":
        o, state = linattn.causal(q, k, v, feature_map="identity", normalize=False, **more)
    elif rule(node) == "delta":
        o, state = linattn.delta(q, k, v, beta, **more)
    elif rule(node) == "gated":
        o, state = linattn.gated(q, k, v, decay, **more)
    else:
        o, state = linattn.gated_delta(q, k, v, decay, beta, **more)
    o = o.reshape(o.shape[0], count, *o.shape[-2:]).swapaxes(1, 2)
    s = state.s[:, :, 0] if groups > 1 else state.s
    return o.reshape(*o.shape[:2], -1), s


def test_there_are_cases_of_every_rule():
    rules = {rule(case.model.graph.node[0]) for case in CASES}
    assert rules == {"linear", "gated", "delta", "gated_delta"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_linear_attention(case):
    (node,) = case.model.graph.node
    for inputs, outputs in case.data_sets:
        actual = evaluate(node, list(map(array, inputs)))
        for x, y in zip(actual, map(array, outputs), strict=False):
            assert x.shape == y.shape
            # As onnx judges its own backends; 16 bits round their results once more.
            rtol = max(case.rtol, 2 * float(np.finfo(np.float16).eps) * (y.dtype.itemsize == 2))
            bound = case.atol + rtol * abs(y.astype(np.float64)) + 1e-5
            assert (abs(x.astype(np.float64) - y.astype(np.float64)) <= bound).all()
