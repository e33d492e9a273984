"""The delta rule: against causal attention and PyTorch; keys of norm 1."""

from __future__ import annotations

from functools import partial

from adapters import by_chunk, compiled_wy, wy

from linattn._cli.bench import MODES
from linattn._cli.peers import PyTorch
from linattn._cli.rows import Calls, Row

from .gated import against_plain, backward, step

FORMS = {
    "PyTorch, chunked": (wy, (32, 64), 4.0),
    "torch.compile, chunked": (compiled_wy, (32, 64), 4.0),
}


def in_torch(name: str, *given: int) -> Calls:
    form, chunks, _ = FORMS[name]
    return by_chunk(PyTorch, [("", form)], chunks, *given, name="delta", more=("beta",))


ROWS = [
    Row("delta / causal, both identity, unnormalised",
        partial(against_plain, "delta", "causal", False), goal=1.6),
    Row("delta_backward / delta", partial(backward, "delta", False), goal=3.5),
    Row("delta_step / step, 32 heads in place", partial(step, "delta", False), (32, 64), goal=1.5),
    *(Row(f"{name} / linattn, {mode}", partial(in_torch, name, reverse), peers=[PyTorch],
          goal=FORMS[name][2], least=True) for reverse, mode in MODES for name in FORMS),
]  # fmt: skip
