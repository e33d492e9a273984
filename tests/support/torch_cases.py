"""The one table of what linattn.torch has: a row an operator, and how it is called.

A row makes its operands from a seed, and `call` hands them to linattn.torch as tensors, or to
linattn as arrays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import linattn

N, D, M, LEAD = 9, 4, 5, (2, 3)


class Row(NamedTuple):
    name: str  # of the function
    operands: tuple[str, ...]
    options: dict[str, Any] = {}  # noqa: RUF012  # never changed
    state: str = ""  # "s", "sz", "sz-scale": what a state holds; "conv": an array
    step: str = ""  # of the function for one token

    def __str__(self) -> str:
        text = "-".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.name}{'-' * bool(text)}{text}".replace(" ", "")


def lengths() -> torch.Tensor:
    return torch.tensor([[9, 0, 3], [5, 8, 1]])


POSITIVE = linattn.feature_maps.PositiveRandomFeatures.sample(D, 6, rng=1)
QKV = ("q", "k", "v")
ROWS = [
    Row("causal", QKV, {}, "sz", "step"),
    Row("causal", QKV, {"normalize": False, "scale": 0.5, "feature_map": "relu"}, "s", "step"),
    Row("causal", QKV, {"feature_map": "dpfp"}, "sz", "step"),
    Row("causal", QKV, {"feature_map": POSITIVE, "eps": 0.1}, "sz-scale", "step"),
    Row("causal", QKV, {"key_lengths": lengths()}, "sz"),
    Row("noncausal", QKV),
    Row("noncausal", QKV, {"key_lengths": lengths(), "feature_map": "softplus"}),
    Row("delta", (*QKV, "beta"), {"feature_map": "l2norm"}, "s", "delta_step"),
    Row("delta", (*QKV, "beta_m"), {"feature_map": "l2norm"}, "s", "delta_step"),
    Row("gated", (*QKV, "g"), {"scale": 0.5}, "s", "gated_step"),
    Row("gated", (*QKV, "g_d"), {"feature_map": "elu"}, "s", "gated_step"),
    Row("gated", (*QKV, "g_d", "bonus"), {}, "s", "gated_step"),
    Row("gated_delta", (*QKV, "g", "beta"), {"feature_map": "l2norm"}, "s", "gated_delta_step"),
    Row("gated_delta", (*QKV, "g_d", "beta_m", "erase"), {"scale": 0.5}, "s", "gated_delta_step"),
    Row("dplr", (*QKV, "a", "b", "g"), {}, "s", "dplr_step"),
    Row("dplr", (*QKV, "a", "b", "g_d"), {"scale": 0.5}, "s", "dplr_step"),
    Row("softmax_attention", QKV, {"causal": True}),
    Row("softmax_attention", QKV, {"scale": 0.3}),
    Row("linformer", (*QKV, "E", "F")),
    Row("log_decay", ("x", "A_log", "dt_bias")),
    Row("log_decay", ("x", "A_log", "dt_bias"), {"lower_bound": -5.0}),
    Row("causal_conv1d", ("c", "weight"), {"activation": "silu"}, "conv", "causal_conv1d_step"),
    Row("causal_conv1d", ("c", "weight", "bias"), {}, "conv", "causal_conv1d_step"),
]  # fmt: skip
RECURRENT = [row for row in ROWS if row.state]
STEPS = [row for row in ROWS if row.step]
#: Shapes; those in capitals below are of all tokens.
SHAPES = {
    "q": (*LEAD, N, D), "k": (*LEAD, N, D), "v": (*LEAD, N, M),
    "beta": (*LEAD, N), "beta_m": (*LEAD, N, M), "g": (*LEAD, N), "g_d": (*LEAD, N, D),
    "bonus": (3, D), "erase": (*LEAD, N, D), "a": (*LEAD, N, D), "b": (*LEAD, N, D),
    "E": (N, 3), "F": (3, N, 3), "x": (*LEAD, N), "A_log": (3, 1), "dt_bias": (3, 1),
    "c": (*LEAD, N, D), "weight": (D, 3), "bias": (D,),
}  # fmt: skip
OPTIONAL = ("bonus", "erase", "bias")
KEYWORDS = {"bonus": "bonus", "erase": "erase"}


def make(row: Row, dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, torch.Tensor]:
    """Operands by their names, drawn from the seed."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in row.operands:
        x = rng.standard_normal(SHAPES[name])
        if name in ("g", "g_d"):
            x = -abs(x)
        elif name in ("beta", "beta_m"):
            x = 1 / (1 + np.exp(-x))
        elif name in ("a", "b", "erase"):
            x /= 4 * np.linalg.norm(x, axis=-1, keepdims=True)
        arrays[name] = torch.tensor(x, dtype=dtype)
    return arrays


def state(row: Row, dtype: torch.dtype = torch.float64, seed: int = 1) -> Any:
    """A state to begin with: fields by their names."""
    rng = np.random.default_rng(seed)
    if row.state == "conv":
        return {"s": torch.tensor(rng.standard_normal((*LEAD, D, 2)), dtype=dtype)}
    f = {"dpfp": 2 * D, "sz-scale": 6}.get(row.options.get("feature_map"), D) if isinstance(
        row.options.get("feature_map"), str) else 6 if row.state == "sz-scale" else D  # fmt: skip
    s = {"s": rng.random((*LEAD, f, M)), "z": 1 + rng.random((*LEAD, f))}
    if row.state == "sz-scale":
        s["log_scale"] = rng.standard_normal((*LEAD, f))
    if row.state == "s":
        del s["z"]
    return {name: torch.tensor(x, dtype=dtype) for name, x in s.items()}


def pack(row: Row, fields: dict[str, Any]) -> Any:
    """Fields as a state of that operator."""
    return fields["s"] if row.state == "conv" else linattn.State(**fields)


def fields(row: Row, x: Any) -> dict[str, Any]:
    """A state's fields that there are."""
    if row.state == "conv":
        return {"s": x}
    return {name: y for name, y in x._asdict().items() if y is not None}


def call(
    module: Any, row: Row, operands: dict[str, Any], step: bool = False, **options: Any
) -> Any:
    """The operator, or its step, of a module, linattn or linattn.torch."""
    function: Callable[..., Any] = getattr(module, row.step if step else row.name)
    options = row.options | options
    keywords = {KEYWORDS[x]: y for x, y in operands.items() if x in KEYWORDS}
    positional = [y for x, y in operands.items() if x not in KEYWORDS]
    if step:
        place = 2 if row.state == "conv" else len(positional)
        positional.insert(place, options.pop("state"))
    if module is linattn:
        options = {x: y.numpy() if isinstance(y, torch.Tensor) else y for x, y in options.items()}
    return function(*positional, **keywords, **options)


def arrays(operands: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: x.detach().numpy() for name, x in operands.items()}


def token(row: Row, operands: dict[str, torch.Tensor], i: int) -> dict[str, torch.Tensor]:
    """The operands of token i."""
    whole = ("bonus", "weight", "bias")
    by_row = ("beta", "g")
    return {
        name: x if name in whole else x[..., i] if name in by_row else x[..., i, :]
        for name, x in operands.items()
    }


def outputs(result: Any) -> list[torch.Tensor]:
    """All tensors of a result, states unpacked."""
    if isinstance(result, tuple):
        return [y for x in result for y in outputs(x)]
    return [] if result is None else [result]


@pytest.fixture(autouse=True)
def _forget_what_was_compiled():
    torch._dynamo.reset()  # the same lambda for every row would be too many versions of one


#: Tests of every row, of those with states, and of those with a step.
EACH = pytest.mark.parametrize("row", ROWS, ids=str)
EACH_RECURRENT = pytest.mark.parametrize("row", RECURRENT, ids=str)
EACH_STEP = pytest.mark.parametrize("row", STEPS, ids=str)


def leaves(tensors):
    return {name: x.clone().requires_grad_() for name, x in tensors.items()}


def assert_same(actual, expected):
    """Bit for bit, tensors with arrays or tensors."""
    for x, y in zip(outputs(actual), outputs(expected), strict=True):
        np.testing.assert_array_equal(x.detach().numpy(), np.asarray(y))
