"""The descriptions of all operators: recurrences from their registry, the others by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ..._call.recurrence import Recurrence
from ..._core.layout import ALL_KEYS, Layout, Operand
from ..._states.state_arrays import State
from ...operators.decay import log_decay, log_decay_backward
from ...operators.linformer import LAYOUT as LINFORMER_LAYOUT
from ...operators.linformer import linformer, linformer_backward
from ...operators.softmax import softmax_attention, softmax_attention_backward
from . import map_texts


class Description(NamedTuple):
    """An operator's operands, options and states, and its NumPy functions.

    Dimensions are letters, as in `Operand`: n is tokens, f the number of features.
    """

    name: str
    layout: Layout
    options: tuple[str, ...]  #: those of the schema, which follow the operands
    forward: Callable[..., Any]  #: ``forward(operands, **options)``
    backward: Callable[..., Any]  #: ``backward(operands, grad_out, **options)``
    step: Any = None  #: ``step(operands, state, **options)``
    step_name: str = ""
    plain_step: int | None = None  #: the step's number, as C takes it, if C may take it at once
    fields: Mapping[str, str] = MappingProxyType({})  #: the dimensions of a state's arrays
    one_array: bool = False  #: whether a state is an array
    holder: type[Any] = State  #: else the named tuple that it is
    carries: bool = False  #: whether an `ExactState` has anything to carry
    lengths: bool = False  #: whether it takes ``key_lengths``
    blocks: bool = False  #: whether it takes ``block``
    cast: bool = True  #: whether autocast converts the operands
    half_states: Mapping[str, bool] = MappingProxyType({})  #: as of `Interface`
    sizes: Callable[[dict[str, Any], dict[str, int]], dict[str, int]] = lambda named, sizes: {}
    #: sizes of further letters, from the arguments and the sizes of the operands' letters
    example: str = "x, x, x"  #: operands, made from x (n, d)


_SWITCHES = {"activation": "str? activation"}  #: options that are not True or False


def of_recurrence(r: Recurrence) -> Description:
    options = ["str feature_map", "Tensor? omega"] if r.mapped else []
    options += ["bool normalize", "float eps"] if r.normalizer else []
    options += [f"float{'?' * r.root_scale} scale"] if r.scaled else []
    options += [_SWITCHES.get(name, f"bool {name}") for name in r.flags["forward"]]
    forward: Any
    forward, backward, step = r.forward, r.backward, _step(r)
    if not r.mapped:
        forward, backward, step = (
            partial(method, feature_map="identity") for method in (forward, backward, step)
        )
    fields = dict(r.fields)
    if r.mapped:
        fields = {field: letters.replace("d", "f") for field, letters in fields.items()}
        if r.normalizer:
            fields["log_scale"] = fields["z"]
    return Description(
        r.name, r.layout, tuple(options), forward, backward, step, r.names["step"],
        plain_step=r.step_op if r.plain_step else None,
        fields={} if r.cross else fields, one_array=r.one_array, holder=r.holder,
        carries=r.compensated and not r.cross, lengths=r.keys, blocks=r.blocks,
        half_states=r.half_states,
        sizes=_features if r.mapped else lambda named, sizes: r.layout.sized(sizes),
    )  # fmt: skip


def _step(r: Recurrence) -> Any:
    """The step, which ignores the options that it lacks: the order in which tokens are scanned."""
    lacking = {*r.flags["forward"]} - {*r.flags["step"]}
    if not lacking:
        return r.step
    return lambda operands, state, **options: r.step(
        operands, state, **{key: x for key, x in options.items() if key not in lacking}
    )


def _features(named: dict[str, Any], sizes: dict[str, int]) -> dict[str, int]:
    omega, d = named.get("omega"), sizes["d"]
    if omega is None:
        return {"f": d}
    return {"f": map_texts.features(named["feature_map"], d, omega.shape[-1])}


def _spread(function: Any) -> Any:
    """A function that takes its operands as one tuple."""

    def call(operands: Any, grad_out: Any = None, **options: Any) -> Any:
        return function(*operands, *() if grad_out is None else (grad_out,), **options)

    return call


SOFTMAX = Description(
    "softmax_attention", ALL_KEYS, ("bool causal", "float? scale"),
    _spread(softmax_attention), _spread(softmax_attention_backward),
)  # fmt: skip
LINFORMER = Description(
    "linformer", LINFORMER_LAYOUT, ("float? scale",), _spread(linformer),
    _spread(linformer_backward), example="x, x, x, x, x",
)  # fmt: skip
LOG_DECAY = Description(
    "log_decay", Layout((Operand("x", ""), Operand("A_log", ""), Operand("dt_bias", "")), ""),
    ("float? lower_bound",), _spread(log_decay), _spread(log_decay_backward),
    cast=False, example="x, 0.0, 0.0",
)  # fmt: skip
OTHERS = SOFTMAX, LINFORMER, LOG_DECAY
