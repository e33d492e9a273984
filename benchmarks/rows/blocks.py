"""Tokens in blocks that see each other whole: against calls without blocks, and PyTorch's products.

PyTorch goes from block to block, as the state of the block before is all that it has to keep.
"""

from __future__ import annotations

from functools import partial

import linattn
from linattn._cli.bench import MODES
from linattn._cli.peers import PyTorch
from linattn._cli.rows import HEADS8, Calls, Row

from .gated import arrays, either, taken

BLOCKS = (4, 32)


def against_none(name: str, reverse: bool, block: int, *sizes: int) -> Calls:
    call = either(name, reverse, arrays(*sizes))
    return Calls(partial(call, block=block), call, tokens=(sizes[0] * sizes[1],) * 2)


def in_torch(block: int, *sizes: int) -> Calls:
    """The normaliser is a column of ones beside the values."""
    x = arrays(*sizes)

    def form(torch, q, k, v):
        a, b = (torch.nn.functional.elu(x) + 1 for x in (q, k))
        s, parts = 0, []
        v = torch.nn.functional.pad(v, (0, 1), value=1.0)
        for i in range(0, v.shape[-2], block):
            s = s + b[:, i : i + block].mT @ v[:, i : i + block]
            y = a[:, i : i + block] @ s
            parts.append(y[..., :-1] / (y[..., -1:] + 1e-6))
        return torch.cat(parts, -2)

    operands = [*taken(x, "causal"), x["grad_out"]]
    ours = partial(linattn.causal, *operands[:-1], block=block)
    return Calls(PyTorch.call(form, operands), ours, ours())


ROWS = [
    *(Row(f"{name}{'_backward' * reverse} in blocks of {block} / without",
          partial(against_none, name, reverse, block), HEADS8)
      for name in ("causal", "gated", "delta", "gated_delta") for reverse, _ in MODES
      for block in BLOCKS),
    *(Row(f"PyTorch by blocks of {block} / causal", partial(in_torch, block), HEADS8, [PyTorch])
      for block in BLOCKS),
]  # fmt: skip
