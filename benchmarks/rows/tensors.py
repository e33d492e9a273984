"""What a call from PyTorch takes more than NumPy's, in microseconds; gradients not recorded.

Compiled functions of the same arguments that compute nothing are timed as well.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import linattn
from linattn import State
from linattn._cli.peers import Call, PyTorch
from linattn._cli.rows import Calls, Row

from .steps import NAMES, function, operands, state_of


def without_gradients(call: Call) -> Call:
    torch = importlib.import_module("torch")

    def run() -> Any:
        with torch.no_grad():
            return call()

    return run


def both(name: str, heads: int, d: int) -> tuple[Any, ...]:
    """linattn.torch; arrays and state; tensors and state in the same memory."""
    torch, module = (importlib.import_module(x) for x in ("torch", "linattn.torch"))
    given, state = operands(name, heads, d), state_of(name, heads, d)
    tensors = [torch.from_numpy(x) for x in given]
    same = State(*(None if x is None else torch.from_numpy(x) for x in state))
    return module, given, state, tensors, same


def step(name: str, in_place: bool, *sizes: int) -> Calls:
    module, given, state, tensors, same = both(name, *sizes)
    ours = partial(getattr(module, function(name)), *tensors, same, in_place=in_place)
    plain = partial(getattr(linattn, function(name)), *given, state, in_place=in_place)
    return Calls(without_gradients(ours), plain)


def forward(name: str, *sizes: int) -> Calls:
    """A sequence of one token."""
    module, given, _, tensors, _ = both(name, *sizes)
    ours = partial(getattr(module, name), *(x[:, None] for x in tensors))
    return Calls(
        without_gradients(ours), partial(getattr(linattn, name), *(x[:, None] for x in given))
    )


def compiled(name: str, what: str, *sizes: int) -> Calls:
    """A step under torch.compile, or a function of its arguments that computes nothing."""
    torch = importlib.import_module("torch")
    module, given, state, tensors, same = both(name, *sizes)
    fields = [x for x in same if x is not None]
    step = getattr(module, function(name))
    functions: dict[str, tuple[Any, ...]] = {
        "in place": (partial(step, in_place=True), same), "new state": (step, same),
        "an addition": (lambda q, *others: q + 1, *fields),
    }  # fmt: skip
    if what == "an empty operator":
        functions[what] = (empty(name, tensors, fields), *fields)
    form, *after = functions[what]
    call = partial(torch.compile(form, fullgraph=True), *tensors, *after)
    plain = partial(getattr(linattn, function(name)), *given, state, in_place=what != "new state")
    return Calls(without_gradients(call), plain)


def empty(name: str, tensors: list, fields: list) -> Callable[..., object]:
    """An operator of PyTorch in Python that takes these tensors and computes nothing."""
    torch = importlib.import_module("torch")
    given = [f"Tensor x{i}" for i in range(len(tensors))]
    written = [f"Tensor({x}!) {x}" for x, _ in zip("ab", fields, strict=False)]
    result = tensors[0].clone()
    if not hasattr(torch.ops.steps, name):
        label = f"steps::{name}"
        torch.library.define(label, f"({', '.join([*given, *written])}) -> Tensor")
        torch.library.impl(label, "CPU", lambda *args: result.detach())
        torch.library.register_fake(label, lambda x, *args: torch.empty_like(x))
    return getattr(torch.ops.steps, name)


WIDTHS = (8, 64)
KINDS = (
    *((f"step {what}", function, "+us", partial(step, name, in_place), name)
      for what, in_place in (("in place", True), ("with a new state", False)) for name in NAMES),
    *(("forward, one token", str, "+us", partial(forward, name), name) for name in NAMES),
    *((f"compiled step, {what}", function, "+us", partial(compiled, name, what), name)
      for what in ("in place", "new state") for name in NAMES),
    *((f"compiled: {what} of its arguments", function, "us", partial(compiled, name, what), name)
      for what in ("an addition", "an empty operator") for name in NAMES),
)  # fmt: skip
ROWS = [
    Row(f"{what}: {named(name)}, beside NumPy's", make, WIDTHS, [PyTorch], unit=unit)
    for what, named, unit, make, name in KINDS
]
