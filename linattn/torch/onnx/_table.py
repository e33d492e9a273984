"""How each operator of linattn.torch is exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._core.map_texts import FEATURES
from .._core.operator import OPERATORS, TensorOperator
from .._core.tensor_pools import ROWS
from . import _others
from ._errors import NotExportedError, unsupported
from ._graph_call import Call
from ._recurrence_nodes import recurrence
from ._tokens import RULES

#: By operator: what adds its nodes to the graph and returns its output and its state's fields.
TRANSLATIONS: dict[str, Callable[[Call], _others.Result]] = {
    **dict.fromkeys(RULES, recurrence),
    "noncausal": _others.noncausal,
    "softmax_attention": _others.softmax_attention,
    "linformer": _others.linformer,
    "log_decay": _others.log_decay,
    "causal_conv1d": _others.causal_conv1d,
}


def translations(*, contrib: bool) -> dict[Any, Callable[..., Any]]:
    """By operator of PyTorch, a function of its arguments in the graph."""
    table: dict[Any, Callable[..., Any]] = {FEATURES.op: _others.features, ROWS.op: _others.rows}
    for operator in OPERATORS.values():
        forms, gradients = [(operator.stateless, False)], [operator._stateless_backward]
        if operator.fields:
            forms += [(operator.stateful, False), (operator.new_step, True)]
            gradients.append(operator._stateful_backward)
        table |= {form.op: _translation(operator, step, contrib) for form, step in forms}
        table |= {x.op: _refused(operator.name, *_GRADIENT) for x in gradients}
        if operator.description.carries:
            table[operator.exact.op] = _refused(operator.name, *_EXACT)
    return table


#: What is refused, and what to do instead.
_GRADIENT = "a gradient", "a model that returns its output alone"
_EXACT = "an ExactState", "return_state=True"


def _refused(name: str, given: str, instead: str) -> Callable[..., Any]:
    def refuse(*args: Any) -> Any:
        raise unsupported(name, given, instead)

    return refuse


def _translation(operator: TensorOperator, step: bool, contrib: bool) -> Callable[..., Any]:
    def translate(*args: Any) -> Any:
        if operator.name not in TRANSLATIONS:
            raise NotExportedError(f"linattn.torch.onnx: {operator.name} has no form in ONNX")
        call = Call(operator, args, step, contrib)
        return call.results(*TRANSLATIONS[operator.name](call))

    return translate
