"""Mamba-3 against what runs on CPUs without linattn: PyTorch, token by token or by chunks.

mamba_ssm's kernels need a GPU, and its reference is the loop over tokens.  All begin with the same
operands; one sequence, heads of 64 with 128 channels of keys, as by default.
"""

from __future__ import annotations

import importlib
import math
from functools import partial
from typing import Any

import numpy as np

from linattn._cli.bench import MODES
from linattn._cli.peers import PyTorch
from linattn._cli.rows import Calls, Row

CHUNK = 64


def operands(n: int, heads: int, width: int, values: int, rank: int) -> list[np.ndarray]:
    """Q, K, V, ADT, DT, Trap, biases, angles and, of several ranks, their weights; a cotangent."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) / math.sqrt(shape[-1])

    ranks = (rank,) if rank > 1 else ()
    dt = 0.1 * rng.random((1, heads, n), np.float32)
    return [
        *(normal(1, n, *ranks, 1, width) for _ in "qk"), normal(1, n, heads, values),
        -dt * rng.random((1, heads, n), np.float32), dt, normal(1, heads, n),
        *(normal(heads, *ranks, width) for _ in "qk"), normal(1, n, heads, width // 4),
        *(normal(heads, rank, values) for _ in (("v", "out") if ranks else ())),
        normal(1, n, heads, values),
    ]  # fmt: skip


def ours(torch: Any, *given: Any) -> Any:
    ops = "linattn.torch.mamba_ssm.ops"
    if len(given) == 9:
        return importlib.import_module(
            f"{ops}.triton.mamba3.mamba3_siso_combined"
        ).mamba3_siso_combined(*given)
    q, k, v, adt, dt, trap, q_bias, k_bias, angles, v_weight, out_weight = given
    return importlib.import_module(f"{ops}.tilelang.mamba3.mamba3_mimo").mamba3_mimo(
        q, k, v, adt, dt, trap, q_bias, k_bias, v_weight, None, out_weight, angles, None, None, 16,
        4, v.dtype,
    )  # fmt: skip


def in_pytorch(recur: Any, torch: Any, *given: Any) -> Any:
    """The definition with all but the recurrence in whole tensors."""
    q, k, v, g, dt, trap, q_bias, k_bias, angles, *weights = given
    rank, count = q_bias.shape[-2] if weights else 1, angles.shape[-1]
    q, k = (x.unflatten(1, (-1, 1)) if not weights else x for x in (q, k))
    q, k = (
        x + b.view(-1, rank, x.shape[-1]).transpose(0, 1) for x, b in ((q, q_bias), (k, k_bias))
    )
    theta = (angles.tanh() * math.pi * dt.mT[..., None]).cumsum(1)[:, :, None] % (2 * math.pi)
    turn = torch.polar(torch.ones_like(theta), theta)

    def turned(x: Any) -> Any:
        pairs = x.unflatten(-1, (2, -1)).mT if weights else x.unflatten(-1, (-1, 2))
        first = torch.view_as_real(torch.view_as_complex(pairs[..., :count, :].contiguous()) * turn)
        pairs = torch.cat([first, pairs[..., count:, :]], -2)
        return (pairs.mT if weights else pairs).flatten(-2)

    v = v.unsqueeze(2) * weights[0].transpose(0, 1) if weights else v.unsqueeze(2)
    mix = trap.sigmoid()
    # (heads, tokens, rank, ...)
    q, k, v = (x[0].permute(2, 0, 1, 3) for x in (turned(q), turned(k), v))
    y = recur(torch, q, k, v, g[0], (1 - mix[0]) * dt[0], mix[0] * dt[0])
    y = y.permute(1, 2, 0, 3)[None]
    return (y * weights[1].transpose(0, 1)).sum(2) if weights else y.squeeze(2)


def loop(torch: Any, q: Any, k: Any, v: Any, g: Any, late: Any, now: Any) -> Any:
    """mamba_ssm's reference: both writes of each token."""
    heads, n, _, width = k.shape
    s, out, decay = k.new_zeros(heads, v.shape[-1], width), [], g.exp()
    previous = s
    for t in range(n):
        write = v[:, t].mT @ k[:, t]
        at = (slice(None), t, None, None)
        s = decay[at] * (s + late[at] * previous) + now[at] * write
        out.append(q[:, t] @ s.mT)
        previous = write
    return torch.stack(out, 1)


def chunks(torch: Any, q: Any, k: Any, v: Any, g: Any, late: Any, now: Any) -> Any:
    """The writes of a token at once, and chunks of tokens as products, of n a multiple of 64."""
    rank, n = k.shape[2], k.shape[1]
    c = torch.cat([late[:, 1:], late.new_zeros(len(late), 1)], 1)
    x = v * (now + c)[..., None, None]
    part = min(CHUNK // rank, n)
    q, k, x, v = (y.unflatten(1, (-1, part)).flatten(2, 3) for y in (q, k, x, v))
    total = g.unflatten(1, (-1, part)).cumsum(-1)
    triangle = torch.ones(part, part, dtype=torch.bool).tril()
    decays = (total[..., :, None] - total[..., None, :]).masked_fill(~triangle, -torch.inf).exp()
    decays = decays.repeat_interleave(rank, -1).repeat_interleave(rank, -2)
    own = torch.eye(part).repeat_interleave(rank, 0).repeat_interleave(rank, 1)
    c = c.unflatten(1, (-1, part)).repeat_interleave(rank, -1)[..., None]
    scores = q @ k.mT
    y = (scores * decays) @ x - (scores * own * c) @ v
    last = total[..., -1:]
    by_rank = (last - total).exp().repeat_interleave(rank, -1)[..., None]
    writes, forget = (k * by_rank).mT @ x, last.exp()[..., None]
    s, states = torch.zeros_like(writes[:, 0]), []
    for i in range(writes.shape[1]):
        states.append(s)
        s = forget[:, i] * s + writes[:, i]
    y = y + (q * total.exp().repeat_interleave(rank, -1)[..., None]) @ torch.stack(states, 1)
    return y.flatten(1, 2).unflatten(1, (n, rank))


def calls(recur: Any, reverse: bool, *sizes: int) -> Calls:
    call_of = partial(PyTorch.call, operands=operands(*sizes), backward=reverse)
    given = [x.astype(np.float64) for x in operands(*sizes)]
    wanted = PyTorch.call(partial(in_pytorch, chunks), given, reverse)()
    return Calls(call_of(partial(in_pytorch, recur)), call_of(ours), wanted, same=1e-3)


SIZES = {"rank 1": (1024, 8, 128, 64, 1), "rank 4": (1024, 8, 128, 64, 4)}
ROWS = [
    Row(f"{name} / linattn, {mode}, {rank}, 8 heads, n = 1,024", partial(calls, recur, reverse),
        sizes, [PyTorch], 1.0, True, tiny=(64, 2, 8, 4, sizes[-1]))
    for name, recur in (("loop over tokens", loop), ("chunks of 64", chunks))
    for mode, reverse in ((mode, reverse) for reverse, mode in MODES)
    for rank, sizes in SIZES.items()
]  # fmt: skip
