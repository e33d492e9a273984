"""linattn beside the CPU kernels of inference engines, with the same states (see ../engines.py).

linattn is called through linattn.torch.  Tokens are bfloat16 if the engine takes nothing else, and
states are float32.  Like their kernels, a step writes a new state, but for ggml's, whose graph
writes to memory of its own: beside it linattn's step works in place.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from engines import GGML, MLX, VLLM, Engine, ExecuTorch, Zentorch
from report import CORES

import linattn
from linattn._cli.bench import onnx
from linattn._cli.peers import Call, ONNXRuntime
from linattn._cli.rows import Calls, Row

from .gated import MORE
from .tensors import without_gradients

Tensor = Any
#: Rows of a pool of states that no sequence uses.
UNUSED = 3


class Draw:
    """Random tensors of a dtype."""

    def __init__(self, dtype: str) -> None:
        self.torch = importlib.import_module("torch")
        self.module = importlib.import_module("linattn.torch")
        self.generator, self.dtype = self.torch.Generator().manual_seed(0), dtype

    def __call__(self, *shape: int) -> Tensor:
        return self.wide(*shape).to(getattr(self.torch, self.dtype))

    def wide(self, *shape: int) -> Tensor:
        return self.torch.randn(shape, generator=self.generator)

    def tokens(self, n: int, heads: int, d: int, channels: bool) -> dict[str, Tensor]:
        """Keys of norm 1, log decays and strengths; a and b of dplr."""
        q, k, v = (self(1, n, heads, d) for _ in range(3))
        unit = partial(self.torch.nn.functional.normalize, dim=-1)
        k, removal = (unit(x.float()).to(x.dtype) for x in (k, self(1, n, heads, d)))
        g = -0.1 * self.wide(1, n, heads, *[d] * channels).exp()
        beta = self.wide(1, n, heads).sigmoid().to(q.dtype)
        return {"q": q, "k": k, "v": v, "g": g, "beta": beta,
                "a": -removal, "b": removal * beta[..., None]}  # fmt: skip


def case(ours: Any, operands: dict[str, Tensor], theirs: Call, half: bool = True) -> Calls:
    """Calls that return tensors, of which PyTorch records no gradients, and float64's result."""
    want = ours(**{name: x.double() for name, x in operands.items()})
    same = 0.1 if half else 1e-5
    return Calls(*map(without_gradients, (partial(ours, **operands), theirs)), want, same=same)


def recurrence(
    engine: type[Engine], name: str, dtype: str, channels: bool, n: int, heads: int, d: int
) -> Calls:
    """A rule on a sequence that continues a state."""
    draw = Draw(dtype)
    drawn, s = draw.tokens(n, heads, d, channels), draw.wide(1, heads, d, d)
    x = {key: drawn[key] for key in (*"qkv", *MORE[name])}

    def ours(s: Tensor, **x: Tensor) -> Tensor:
        turned = {key: y.transpose(1, 2) for key, y in x.items()}
        given = {"scale": d**-0.5, "initial_state": linattn.State(s), "return_state": True}
        return getattr(draw.module, name)(**turned, **given)[0].transpose(1, 2)

    def one_token(s: Tensor, **x: Tensor) -> Tensor:
        given = {"scale": d**-0.5, "state": linattn.State(s), "in_place": engine is GGML}
        turned = {key: y[:, 0] for key, y in x.items()}
        return getattr(draw.module, f"{name}_step")(**turned, **given)[0][:, None]

    theirs = getattr(engine, name)(x, s)
    return case(one_token if n == 1 else ours, x | {"s": s}, theirs, dtype != "float32")


def in_onnx(name: str, channels: bool, *sizes: int) -> Calls:
    """Without a state before; linattn on arrays."""
    calls = onnx(name, *sizes, more=MORE[name], channels=channels)
    return calls._replace(a=calls.b, b=calls.a)


def mamba2(engine: type[Engine], dtype: str, n: int, heads: int, width: int, r: int) -> Calls:
    """Mamba-2's chunk scan, with D x in vLLM, with a softplus of dt in ggml."""
    draw = Draw(dtype)
    combined = draw.module.mamba_ssm.ops.triton.ssd_combined.mamba_chunk_scan_combined
    x, B, C = (draw(1, n, *s) for s in ((heads, width), (1, r), (1, r)))
    dt, A, s = draw.wide(1, n, heads) - 2, -draw.wide(heads).exp(), draw.wide(1, heads, width, r)
    operands = {"x": x, "dt": dt, "A": A, "B": B, "C": C / r}

    def ours(s: Tensor, **x: Tensor) -> Tensor:
        more = {"initial_states": s, "return_final_states": True, "chunk_size": 256}
        return combined(**x, **more, dt_softplus=engine is GGML)[0]

    if engine is GGML:
        theirs = GGML.scan(operands | {"A": A[:, None]}, s)
        return case(ours, operands | {"s": s}, theirs, half=False)
    operands |= {"dt": draw.torch.nn.functional.softplus(dt), "D": draw.wide(heads)}
    given = [y.squeeze(0) if y.ndim > 1 else y for y in operands.values()]
    run, packed = VLLM.op("mamba_chunk_scan_fwd_cpu"), VLLM.ints(0, n)
    out, state = x[0].clone(), s.clone()

    def theirs() -> Tensor:
        state.copy_(s)
        run(out, state, *given, None, packed)
        return out[None]

    return case(ours, operands | {"s": s}, theirs)


def selective(n: int, m: int, r: int) -> Calls:
    """Mamba's scan, with a softplus of dt."""
    draw = Draw("float32")
    x, dt, B, C = (draw(n, y) for y in (m, m, r, r))
    operands = {"x": x, "dt": dt - 3, "A": -draw(m, r).exp(), "B": B, "C": C}
    s = draw(m, r)

    def ours(s: Tensor, **x: Tensor) -> Tensor:
        given = {"initial_state": linattn.State(s), "return_state": True, "softplus": True}
        return draw.module.selective_scan(**x, **given)[0]

    shaped = {
        "x": x[None, ..., None], "dt": operands["dt"][None], "A": operands["A"],
        "B": B[None, :, None], "C": C[None, :, None],
    }  # fmt: skip
    run = GGML.scan(shaped, s[None, :, None])
    return case(ours, operands | {"s": s}, lambda: run()[0, ..., 0], half=False)


def convolution(n: int, c: int, width: int) -> Calls:
    """vLLM's short convolution with silu: (tokens, channels) in memory."""
    draw, run = Draw("bfloat16"), VLLM.op("causal_conv1d_fwd_cpu")
    operands = {"x": draw(n, c), "weight": draw(c, width), "bias": draw(c)}
    packed = VLLM.op("causal_conv1d_weight_pack")(operands["weight"])
    given = (
        operands["x"].t(), packed, operands["bias"],
        draw(1, width - 1, c).zero_().transpose(1, 2), VLLM.ints(0, n), VLLM.ints(0),
        draw.torch.tensor([False]), True, -1, True,
    )  # fmt: skip
    ours = partial(draw.module.causal_conv1d, activation="silu")
    return case(ours, operands, lambda: run(*given).t())


# One token of each of some sequences.  vLLM's states are rows of a pool; linattn's are such rows
# (`pooled`), or arrays of the batch.


def step(pooled: bool, rows: int, heads: int, d: int) -> Calls:
    """vLLM's decode step from raw gates, q and k not yet normalised."""
    draw = Draw("bfloat16")
    x, a, b = draw(rows, 3 * heads * d), draw(rows, heads), draw(rows, heads)
    q, k, v = x.view(1, rows, 3, heads, d).unbind(2)
    A_log, dt_bias, pool = draw.wide(heads), draw(heads), draw.wide(rows + UNUSED, heads, d, d)
    at = VLLM.ints(*range(UNUSED, UNUSED + rows))
    place = {"state_indices": at} if pooled else {"in_place": True}

    def ours(pool: Tensor, **x: Tensor) -> Tensor:
        given = {"scale": d**-0.5, "state": linattn.FusedState(None, pool)} | place
        return draw.module.fused_gated_delta_step(**x, **given)[0]

    theirs = partial(
        VLLM.op("fused_sigmoid_gating_delta_rule_update_cpu"), A_log, dt_bias, q, k, v, a, b,
        pool.clone(), at, VLLM.ints(*range(rows + 1)), True,
    )  # fmt: skip
    state = pool if pooled else pool[UNUSED:].clone()
    operands = {"x": x, "a": a, "b": b, "A_log": A_log, "dt_bias": dt_bias.float(), "pool": state}
    return case(ours, operands, lambda: theirs()[:, 0].flatten(1))


def fla_step(rows: int, heads: int, d: int) -> Calls:
    """The same by the name of fla's function, into a new state."""
    draw = Draw("bfloat16")
    q, k, v = (draw(rows, 1, heads, d) for _ in range(3))
    a, b, s = draw(rows, 1, heads), draw(rows, 1, heads), draw.wide(rows, heads, d, d)
    A_log, dt_bias = draw.wide(heads), draw(heads)
    operands = {"q": q, "k": k, "v": v, "g": a, "beta": b, "A_log": A_log, "initial_state": s}
    flags = ("qk_l2norm", "gate", "beta_sigmoid")
    given = {f"use_{x}_in_kernel": True for x in flags} | {"output_final_state": True}
    run = importlib.import_module("linattn.torch.fla").fused_recurrent_gated_delta_rule
    theirs = partial(
        VLLM.op("fused_sigmoid_gating_delta_rule_update_cpu"), A_log, dt_bias,
        *(y.transpose(0, 1) for y in (q, k, v)), a[:, 0], b[:, 0], s.clone(),
        VLLM.ints(*range(rows)), VLLM.ints(*range(rows + 1)), True,
    )  # fmt: skip
    return case(lambda **x: run(**x, **given)[0], operands | {"dt_bias": dt_bias.float()}, theirs)


def convolution_step(pooled: bool, rows: int, c: int, width: int) -> Calls:
    """vLLM's update of the last inputs, (sequences, width - 1, channels) in memory, as here."""
    draw, run = Draw("bfloat16"), VLLM.op("causal_conv1d_update_cpu")
    x, weight, bias = draw(rows, c), draw(c, width), draw(c)
    pool, at = draw(rows, width - 1, c).transpose(1, 2), VLLM.ints(*range(rows))
    update = importlib.import_module("linattn.torch.causal_conv1d").causal_conv1d_update

    def ours(state: Tensor, **x: Tensor) -> Tensor:
        if pooled:
            return update(**x, conv_state=state, activation="silu", conv_state_indices=at)
        given = {"state": state, "activation": "silu", "in_place": True}
        return draw.module.causal_conv1d_step(**x, **given)[0]

    theirs = partial(
        run, x, pool.clone(), VLLM.op("causal_conv1d_weight_pack")(weight), bias, True, None, at,
        -1, True,
    )  # fmt: skip
    by_tap = weight.t().contiguous().t()
    return case(ours, {"x": x, "weight": by_tap, "state": pool, "bias": bias}, theirs)


#: Engine, operator, dtype, whether gates are per channel; and the steps among them.
RULES = (
    (VLLM, "gated_delta", "bfloat16", False), (Zentorch, "gated_delta", "bfloat16", False),
    (ExecuTorch, "gated_delta", "float32", False), (GGML, "gated_delta", "float32", False),
    (MLX, "gated_delta", "float32", False), (GGML, "gated", "float32", True),
    (GGML, "dplr", "float32", True),
)  # fmt: skip
STEPS = RULES[2:5]
ONNX = ("causal", False), ("delta", False), *(
    (name, channels) for name in ("gated", "gated_delta") for channels in (False, True)
)  # fmt: skip


def what(name: str, dtype: str, channels: bool, n: int, heads: int, d: int) -> str:
    tokens, many = f"{n:,} token{'s' * (n > 1)}", f"{heads} head{'s' * (heads > 1)} of {d}"
    return f"{name}{' by channel' * channels}, {dtype}, {tokens}, {many}"


def with_all_threads(rows: list[Row]) -> Iterator[Row]:
    """vLLM's rows a second time, with a thread for each processor."""
    for row in rows:
        yield row
        if VLLM in row.peers and CORES > 1:
            yield replace(row, threads=CORES)


ROWS = [*with_all_threads([
    *(Row(f"{what(*rule, *sizes)} / {engine.name}", partial(recurrence, engine, *rule), sizes,
          [engine], tiny=(min(128, sizes[0]), 2, 64))
      for rules, sizes in ((RULES, (2048, 16, 64)), (RULES, (2048, 16, 128)), (STEPS, (1, 32, 128)))
      for engine, *rule in rules),
    *(Row(f"{what(name, 'float32', channels, n, heads, d)} / ONNX Runtime",
          partial(in_onnx, name, channels), (heads, n, d), [ONNXRuntime], goal,
          threads=1 + (heads == 1))
      for heads, n, d, goal in ((8, 4096, 64, 0.5), (16, 2048, 128, 0.35), (1, 32768, 64, 0.5))
      for name, channels in ONNX if heads > 1 or name in ("causal", "delta")),
    *(Row(f"Mamba-2, {dtype}, 2,048 tokens, 24 heads of 64, state 128 / {engine.name}",
          partial(mamba2, engine, dtype), (2048, 24, 64, 128), [engine], tiny=(256, 2, 64, 128))
      for engine, dtype in ((VLLM, "bfloat16"), (VLLM, "float32"), (GGML, "float32"))),
    Row("selective_scan, float32, 2,048 tokens, m = 1,536, r = 16 / ggml", selective,
        (2048, 1536, 16), [GGML], tiny=(64, 32, 16)),
    Row("causal_conv1d with silu, bfloat16, 2,048 tokens of 4,096 channels / vLLM", convolution,
        (2048, 4096, 4), [VLLM], tiny=(64, 64, 4)),
    *(Row(f"gated_delta_step from raw gates, bfloat16, {rows} x 32 heads of {d}, {place} / vLLM",
          partial(step, place == "pool"), (rows, 32, d), [VLLM], tiny=(2, 2, 64))
      for d, counts in ((64, (1, 8)), (128, (1, 8, 32))) for rows in counts
      for place in ("pool", "in place")),
    *(Row(f"fused_recurrent_gated_delta_rule, bfloat16, {rows} x 32 heads of 128, new state / vLLM",
          fla_step, (rows, 32, 128), [VLLM], tiny=(2, 2, 64)) for rows in (1, 8, 32)),
    *(Row(f"{name} with silu, bfloat16, {rows} x 4,096 channels / vLLM",
          partial(convolution_step, pooled), (rows, 4096, 4), [VLLM], tiny=(2, 64, 4))
      for rows in (1, 8, 32)
      for pooled, name in ((False, "causal_conv1d_step"), (True, "causal_conv1d_update"))),
])]  # fmt: skip
