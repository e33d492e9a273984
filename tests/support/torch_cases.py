"""The calls of the tests of linattn.torch: rows of the table of cases, and rows of its own.

`make` draws the operands of a row from a seed; `call` passes them to linattn.torch as tensors or to
linattn as arrays.
"""

import io
from typing import Any

import numpy as np
import pytest
import torch
from operands import OPERANDS, REGISTRY, STEPS, dims, tokens
from slow import grid
from table import ALL, Case

import linattn
import linattn.torch

N, D, M, LEAD = 9, 4, 5, (2, 3)
LENGTHS = torch.tensor([[9, 0, 3], [5, 8, 1]])
POSITIVE = linattn.feature_maps.PositiveRandomFeatures.sample(D, 6, rng=1)


class Row(Case):
    @property
    def output(self) -> str:
        return "n" if self.name == "log_decay" else super().output

    @property
    def step(self) -> str:
        """The function for one token, if these options have one."""
        whole = self.options.keys() & {"key_lengths", "reverse", "block"}
        return "" if whole else STEPS.get(self.name, "")


def own(name: str, more: str = "", **options: Any) -> Row:
    return Row(name, dims(name, more), options)


#: Those with options that the table lacks: maps, lengths, scales.
OWN = [
    own("causal", feature_map="dpfp"),
    own("causal", feature_map=POSITIVE, eps=0.1),
    own("causal", key_lengths=LENGTHS),
    own("noncausal", key_lengths=LENGTHS, feature_map="softplus"),
    own("gated", "g", feature_map="elu"),
    own("ssd", key_lengths=LENGTHS),
    own("gated_delta", feature_map="l2norm"),
    own("momentum_delta", key_lengths=LENGTHS),
    own("causal", block=3),
    own("delta", "beta", block=3),
    own("gated", "g", block=3),
    own("gated_delta", "beta", block=3),
    own("softmax_attention", scale=0.3),
    own("log_decay"),
    own("log_decay", lower_bound=-5.0),
]
_BY_NAME = {name: [Row(*x) for x in ALL if x.name == name] for name in OPERANDS}
#: Of each operator the first case and the last, and decays by their logarithms.
ROWS = [
    *(x for y in _BY_NAME.values() for x in {str(z): z for z in (*y[:1], *y[-1:])}.values()),
    *(x for x in _BY_NAME["linear_scan"] if x.options.get("log")),
    *OWN,
]
#: Options that an operator's step has not.  PyTorch 2.9 does not trace properties of named tuples.
_LACKING = {
    name: {*REGISTRY[name].flags["forward"]} - {*REGISTRY[name].flags["step"]} for name in STEPS
}
RECURRENT = [row for row in ROWS if row.held]
STEPPED = [row for row in ROWS if row.step]


def _tensors(arrays: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(x, dtype=dtype) for name, x in arrays.items() if x is not None}


def make(row: Row, dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, torch.Tensor]:
    """Operands by their names, drawn from the seed."""
    drawn = row.operands(LEAD, N, d=D, m=M, s=N, seed=seed)
    for name in {"bonus", "A_log", "dt_bias"} & drawn.keys():  # those of heads alone
        drawn[name] = drawn[name][0][..., None] if row.name == "log_decay" else drawn[name][0]
    if "F" in drawn:
        drawn["F"] = drawn["F"] * np.arange(1, 4)[:, None, None]
    return _tensors({name: drawn[name] for name in row.letters}, dtype)


def state(row: Row, dtype: torch.dtype = torch.float64, seed: int = 1) -> dict[str, torch.Tensor]:
    """The fields of an initial state by name."""
    options = {name: x for name, x in row.options.items() if name != "key_lengths"}
    found = Case(row.name, row.letters, options).state(LEAD, d=D, m=M, seed=seed)
    return _tensors(fields(found), dtype)


def pack(row: Row, fields: dict[str, Any]) -> Any:
    """Fields as a state of that operator."""
    return REGISTRY[row.name].public(fields)


def fields(x: Any) -> dict[str, Any]:
    """The fields of a state that are not None."""
    found = x._asdict() if isinstance(x, tuple) else {"s": x}
    return {name: y for name, y in found.items() if y is not None}


def call(
    module: Any, row: Row, operands: dict[str, Any], step: bool = False, **options: Any
) -> Any:
    """Call the operator, or its step, of linattn or linattn.torch."""
    options = row.options | options
    if step:
        options = {name: x for name, x in options.items() if name not in _LACKING[row.name]}
    if module is linattn:
        options = {x: y.numpy() if isinstance(y, torch.Tensor) else y for x, y in options.items()}
    return getattr(module, STEPS[row.name] if step else row.name)(**operands, **options)


def arrays(operands: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: x.detach().numpy() for name, x in operands.items()}


def token(row: Row, operands: dict[str, torch.Tensor], i: int) -> dict[str, torch.Tensor]:
    """The operands of token i."""
    return {name: tokens(row.letters[name], x, i) for name, x in operands.items()}


def one_token(name: str) -> tuple[tuple[torch.Tensor, ...], linattn.State]:
    """The operands of a rule's step by position, of two heads, and a state."""
    q, k, v = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(3))
    more = {
        "causal": (), "delta": (k[:, 0],), "gated": (-v[:, 0].abs(),),
        "gated_delta": (-v[:, 0].abs(), k[:, 0]), "dplr": (-k, k, -v.abs()),
    }[name]  # fmt: skip
    state = linattn.State(torch.ones(2, 4, 4), torch.ones(2, 4) if name == "causal" else None)
    return (q, k, v, *more), state


def forms(row):
    """Of all tokens, from a state and of one token: a call of its tensors, and these by name."""

    def form(operands, start, **options):
        def run(given):
            own = {name: given[f"state.{name}"] for name in start}
            more = {holder: pack(row, own)} if own else {}
            o = call(
                linattn.torch, row, {name: given[name] for name in operands}, **more, **options
            )
            return o[0] if isinstance(o, tuple) else o

        holder = "state" if "step" in options else "initial_state"
        return run, operands | {f"state.{name}": x for name, x in start.items()}

    operands = make(row)
    yield form(operands, {})
    if row.held:
        yield form(operands, state(row))
    if row.step:
        for in_place in (False, True):
            given = token(row, operands, 0)
            yield form(given, state(row), step=True, in_place=in_place)


def outputs(result: Any) -> list[torch.Tensor]:
    """All tensors of a result, states unpacked."""
    if isinstance(result, tuple):
        return [y for x in result for y in outputs(x)]
    return [] if result is None else [result]


#: Tests of every row, of those with states, and of those with a step.
EACH = pytest.mark.parametrize("row", ROWS, ids=str)
EACH_RECURRENT = pytest.mark.parametrize("row", RECURRENT, ids=str)
EACH_STEP = pytest.mark.parametrize("row", STEPPED, ids=str)
#: Quick for a sum, a rule, a scan and gates.
EACH_KIND_OF_STEP = grid(
    lambda row: (
        str(row) in [str(_BY_NAME[x][0]) for x in ("causal", "dplr", "selective_scan", "slstm")]
    ),
    row=STEPPED,
)


def leaves(tensors):
    return {name: x.clone().requires_grad_() for name, x in tensors.items()}


def reloaded(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program, saved and loaded."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def assert_same(actual, expected):
    """Assert that tensors equal arrays or tensors to the bit."""
    for x, y in zip(outputs(actual), outputs(expected), strict=True):
        np.testing.assert_array_equal(x.detach().numpy(), np.asarray(y))
