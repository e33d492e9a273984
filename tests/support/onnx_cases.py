"""The onnx package's reference cases of an operator."""

import warnings

import pytest


def onnx_cases(module, operator):
    """The cases of one module; computing those of all modules takes seconds."""
    node = pytest.importorskip("onnx.backend.test.case.node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(f"{node.__name__}.{module}")
    return [x for x in node._NodeTestCases if x.model.graph.node[0].op_type == operator]
