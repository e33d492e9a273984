"""The table of calls for the tests of linattn.torch, one row per call.

`make` draws the operands of a row from a seed; `call` passes them to linattn.torch as tensors or to
linattn as arrays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import operands as operand_table
import pytest
import torch
from slow import first_of_each, grid

import linattn

N, D, M, LEAD = 9, 4, 5, (2, 3)


class Row(NamedTuple):
    name: str  # of the function
    more: str = ""  # operands with channels, and those given that may be left out
    options: dict[str, Any] = {}  # noqa: RUF012  # never changed
    state: str = ""  # "s", "sz", "sz-scale", "hcnm": what a state holds; "conv": an array

    def __str__(self) -> str:
        options = [f"{name}={value}" for name, value in self.options.items()]
        return "-".join([self.name, *self.more.split(), *options]).replace(" ", "")

    @property
    def dims(self) -> dict[str, str]:
        """Dimensions by operand."""
        return operand_table.dims(self.name, self.more)

    @property
    def operands(self) -> tuple[str, ...]:
        return tuple(self.dims)

    @property
    def step(self) -> str:
        """The function for one token, if these options have one."""
        whole = self.options.keys() & {"key_lengths", "reverse", "block"}
        return "" if whole else STEPS.get(self.name, "")


def lengths() -> torch.Tensor:
    return torch.tensor([[9, 0, 3], [5, 8, 1]])


POSITIVE = linattn.feature_maps.PositiveRandomFeatures.sample(D, 6, rng=1)
STEPS = operand_table.STEPS
ROWS = [
    Row("causal", "", {}, "sz"),
    Row("causal", "", {"normalize": False, "scale": 0.5, "feature_map": "relu"}, "s"),
    Row("causal", "", {"feature_map": "dpfp"}, "sz"),
    Row("causal", "", {"feature_map": POSITIVE, "eps": 0.1}, "sz-scale"),
    Row("causal", "", {"key_lengths": lengths()}, "sz"),
    Row("noncausal"),
    Row("noncausal", "", {"key_lengths": lengths(), "feature_map": "softplus"}),
    Row("delta", "", {"feature_map": "l2norm"}, "s"),
    Row("delta", "beta", {"feature_map": "l2norm"}, "s"),
    Row("gated", "", {"scale": 0.5}, "s"),
    Row("gated", "g", {"feature_map": "elu"}, "s"),
    Row("gated", "g bonus", {}, "s"),
    Row("linear_scan", "", {"reverse": True}),  # no step goes backwards
    Row("linear_scan", "", {"log": True}, "s"),
    Row("selective_scan", "", {}, "s"),
    Row("selective_scan", "D z dt_bias", {"softplus": True}, "s"),
    Row("gated_delta", "", {"feature_map": "l2norm"}, "s"),
    Row("gated_delta", "g beta erase", {"scale": 0.5}, "s"),
    Row("dplr", "", {}, "s"),
    Row("dplr", "g", {"scale": 0.5}, "s"),
    Row("momentum_delta", "", {"scale": 0.5}, "sz"),
    Row("momentum_delta", "", {"key_lengths": lengths()}, "sz"),
    Row("softmax_attention", "", {"causal": True}),
    Row("softmax_attention", "", {"scale": 0.3}),
    Row("linformer"),
    Row("log_decay"),
    Row("log_decay", "", {"lower_bound": -5.0}),
    Row("causal_conv1d", "", {"activation": "silu"}, "conv"),
    Row("causal_conv1d", "bias", {}, "conv"),
    Row("slstm", "", {}, "hcnm"),
]
RECURRENT = [row for row in ROWS if row.state]
STEPPED = [row for row in ROWS if row.step]
SIZES = {"n": N, "s": N, "d": D, "m": M, "r": 3}
#: Leading axes of the operands that do not have those of the tokens.
LEADS = {
    "bonus": (3,), "E": (), "F": (3,), "A_log": (3, 1), "dt_bias": (3, 1), "weight": (), "bias": (),
}  # fmt: skip


def make(row: Row, dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, torch.Tensor]:
    """Operands by their names, drawn from the seed."""
    rng = np.random.default_rng(seed)
    leads = LEADS | ({"dt_bias": (3,)} if row.dims.get("dt_bias") else {})
    drawn = operand_table.make(row.dims, SIZES, rng, lead=LEAD, leads=leads)
    return {name: torch.tensor(x, dtype=dtype) for name, x in drawn.items()}


def state(row: Row, dtype: torch.dtype = torch.float64, seed: int = 1) -> Any:
    """The fields of an initial state by name."""
    rng = np.random.default_rng(seed)
    if row.state == "conv":
        return {"s": torch.tensor(rng.standard_normal((*LEAD, M, D - 1)), dtype=dtype)}
    if row.state == "hcnm":
        drawn = {x: 0.5 + rng.random((*LEAD, 2, D)) for x in row.state}
        return {name: torch.tensor(x, dtype=dtype) for name, x in drawn.items()}
    f = {"dpfp": 2 * D, "sz-scale": 6}.get(row.options.get("feature_map"), D) if isinstance(
        row.options.get("feature_map"), str) else 6 if row.state == "sz-scale" else D  # fmt: skip
    sizes = {"d": f, "f": f, "m": M}
    core = (sizes[x] for x in operand_table.REGISTRY[row.name].layout.state)
    s = {"s": rng.random((*LEAD, *core)), "z": 1 + rng.random((*LEAD, f))}
    if operand_table.REGISTRY[row.name].stacked:
        s["z"] = rng.random(s["s"].shape)
    if row.state == "sz-scale":
        s["log_scale"] = rng.standard_normal((*LEAD, f))
    if row.state == "s":
        del s["z"]
    return {name: torch.tensor(x, dtype=dtype) for name, x in s.items()}


def pack(row: Row, fields: dict[str, Any]) -> Any:
    """Fields as a state of that operator."""
    return operand_table.REGISTRY[row.name].public(fields)


def fields(row: Row, x: Any) -> dict[str, Any]:
    """The fields of a state that are not None."""
    if row.state == "conv":
        return {"s": x}
    return {name: y for name, y in x._asdict().items() if y is not None}


def call(
    module: Any, row: Row, operands: dict[str, Any], step: bool = False, **options: Any
) -> Any:
    """Call the operator, or its step, of linattn or linattn.torch."""
    function: Callable[..., Any] = getattr(module, STEPS[row.name] if step else row.name)
    options = row.options | options
    positional, keywords = operand_table.given(row.name, operands)
    if step:
        positional = (*positional, options.pop("state"))
    if module is linattn:
        options = {x: y.numpy() if isinstance(y, torch.Tensor) else y for x, y in options.items()}
    return function(*positional, **keywords, **options)


def arrays(operands: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: x.detach().numpy() for name, x in operands.items()}


def token(row: Row, operands: dict[str, torch.Tensor], i: int) -> dict[str, torch.Tensor]:
    """The operands of token i."""
    return {name: operand_table.tokens(row.dims[name], x, i) for name, x in operands.items()}


def outputs(result: Any) -> list[torch.Tensor]:
    """All tensors of a result, states unpacked."""
    if isinstance(result, tuple):
        return [y for x in result for y in outputs(x)]
    return [] if result is None else [result]


#: Tests of every row, of those with states, and of those with a step.
EACH = pytest.mark.parametrize("row", ROWS, ids=str)
EACH_ONCE = pytest.mark.parametrize("row", first_of_each(ROWS, map(str, ROWS), unpack=False))
EACH_RECURRENT = pytest.mark.parametrize("row", RECURRENT, ids=str)
EACH_STEP = pytest.mark.parametrize("row", STEPPED, ids=str)
EACH_KIND_OF_STEP = grid(
    lambda row: str(row) in ("causal", "dplr", "selective_scan", "slstm"), row=STEPPED
)


def leaves(tensors):
    return {name: x.clone().requires_grad_() for name, x in tensors.items()}


def assert_same(actual, expected):
    """Assert that tensors equal arrays or tensors to the bit."""
    for x, y in zip(outputs(actual), outputs(expected), strict=True):
        np.testing.assert_array_equal(x.detach().numpy(), np.asarray(y))
