"""Models that call linattn.torch, exported to ONNX, and what ONNX Runtime computes of them."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch_cases import Row, call, make, outputs, pack, state, token

import linattn
import linattn.torch
import linattn.torch.onnx as linattn_onnx

RUNTIME = tuple(int(x) for x in onnxruntime.__version__.split(".")[:2])


class Target(NamedTuple):
    """What a model is exported as."""

    name: str
    options: dict[str, Any]
    operator: str = ""  #: the domain of LinearAttention; "-" where there is none
    dtype: torch.dtype = torch.float32


TARGETS = [
    Target("standard", {"opset_version": 27}),
    Target("contrib", {"opset_version": 20, "contrib": True}, "com.microsoft"),
    Target("loops", {"opset_version": 20}, "-"),
    Target("double", {"opset_version": 27}, "-", torch.float64),
]


class Call(NamedTuple):
    """A row of `torch_cases`, over all tokens with a state or, with ``step``, of one token."""

    row: Row
    step: bool = False

    def __str__(self) -> str:
        return f"{self.row}{'-step' * self.step}"

    def inputs(self, dtype: torch.dtype) -> dict[str, Any]:
        operands = make(self.row, dtype)
        if self.step:
            operands = token(self.row, operands, 3)
        return {"operands": operands} | ({"state": state(self.row, dtype)} if self.row.held else {})

    def run(self, module: Any, inputs: dict[str, Any]) -> Any:
        options: dict[str, Any] = {}
        if self.row.held:
            start = pack(self.row, inputs["state"])
            options = {"state": start} if self.step else {
                "initial_state": start, "return_state": True,
            }  # fmt: skip
        return call(module, self.row, inputs["operands"], self.step, **options)

    def expected(self, inputs: dict[str, Any]) -> list[np.ndarray]:
        """The results of NumPy's functions, in float64."""
        wide = {key: {name: np.asarray(x.double()) for name, x in given.items()}
                for key, given in inputs.items()}  # fmt: skip
        return outputs(self.run(linattn, wide))


class Calls(torch.nn.Module):
    """A model that makes all of the calls."""

    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, inputs: list[dict[str, Any]]) -> list[Any]:
        pairs = zip(self.calls, inputs, strict=True)
        return [outputs(one.run(linattn.torch, given)) for one, given in pairs]


class Function(torch.nn.Module):
    """A model of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def exported(model: torch.nn.Module, args: tuple[Any, ...], **options: Any) -> Any:
    """The model as onnx has it, checked."""
    program = linattn_onnx.export(model.eval(), args, verbose=False, **options)
    proto = program.model_proto
    onnx.checker.check_model(proto, full_check=True)
    return proto


def run(proto: Any, args: Any) -> list[np.ndarray]:
    """The results of ONNX Runtime."""
    opset = next(x.version for x in proto.opset_import if x.domain == "")
    if opset > 26 and RUNTIME < (1, 32):
        pytest.skip(f"ONNX Runtime below 1.32 has no opset {opset}")
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, feed(proto, args))


def feed(proto: Any, args: Any) -> dict[str, np.ndarray]:
    names = [x.name for x in proto.graph.input]
    arrays = [np.asarray(x) for x in tree_leaves(args) if x is not None]
    return dict(zip(names, arrays, strict=True))


def nodes(graph: Any) -> Iterator[Any]:
    """Those of a graph and of the graphs in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes(attribute.g)


def kinds(proto: Any) -> set[str]:
    return {f"{node.domain}:{node.op_type}".lstrip(":") for node in nodes(proto.graph)}
