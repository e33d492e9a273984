"""Gated recurrences: against those without gates, their backward, and other libraries.

Keys of norm 1, gates with mean -0.1.  "By channel" means one gate for each key channel, otherwise
there is one for each token.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
from adapters import ML_DTYPES, Transformers

import linattn
from linattn import State
from linattn._cli.bench import MODES, PLAIN
from linattn._cli.peers import Call, PyTorch
from linattn._cli.rows import HEADS8, Calls, Row, draw

SHAPES = {64: HEADS8, 128: (16, 2048, 128)}
#: Operands besides q, k and v.
MORE = {
    "causal": (), "noncausal": (), "delta": ("beta",), "gated": ("g",),
    "gated_delta": ("g", "beta"), "dplr": ("a", "b", "g"),
    "momentum_delta": ("p", "g", "mu", "beta", "eta"), "mlstm": ("i", "f"),
}  # fmt: skip
#: The map in a kernel's name, if it is not the identity, and the numbers that it takes.
MAPS = {
    "causal": ("_elu", (1.0, 1e-6)), "noncausal": ("_elu", (1.0, 1e-6)),
    "dplr": ("", (1.0,)), "momentum_delta": ("", (1.0,)), "mlstm": ("", (1.0, 0.0)),
}  # fmt: skip
#: The operator without gates, and the goals against it: a gate per token, and by channel.
RULES = {
    "gated": ("causal", (1.15, 1.6)), "gated_delta": ("delta", (1.15, 1.6)),
    "dplr": ("delta", (2.0, 2.0)),
}  # fmt: skip
KINDS = ((False, ""), (True, " by channel"))


def arrays(heads: int, n: int, d: int, channels: bool = False) -> dict[str, np.ndarray]:
    """Operands by name, those of dplr, momentum_delta and mlstm included."""
    x = draw(heads, n, d, channels=channels)
    kappa = np.roll(x["k"], 1, 0 if heads > 1 else 1)
    x |= {"p": x["k"], "mu": 2 * x["g"], "eta": 1 - x["beta"]}
    x |= {"i": 10 * x["g"], "f": 4 + 10 * x["g"]} if not channels else {}
    return x | {"a": -kappa, "b": kappa * x["beta"][..., None]}


def taken(x: dict[str, np.ndarray], name: str) -> list[np.ndarray]:
    """The operands that a rule takes."""
    return [x[key] for key in (*"qkv", *MORE[name])]


def forward(name: str, x: dict[str, np.ndarray], **options: Any) -> partial:
    return partial(getattr(linattn, name), *taken(x, name), out=np.empty_like(x["v"]), **options)


def either(name: str, reverse: bool, x: dict[str, np.ndarray]) -> partial:
    """The operator, or its gradients."""
    if not reverse:
        return forward(name, x)
    return partial(getattr(linattn, f"{name}_backward"), *taken(x, name), x["grad_out"])


def against_plain(name: str, plain: str, channels: bool, *sizes: int) -> Calls:
    x = arrays(*sizes, channels)
    without = forward(plain, x, **(PLAIN if plain == "causal" else {}))
    return Calls(forward(name, x), without, tokens=(sizes[0] * sizes[1],) * 2)


def strong(name: str, reverse: bool, *sizes: int) -> Calls:
    """Gates of about -6, whose products are below the smallest normal number."""
    x = arrays(*sizes)
    tokens = (sizes[0] * sizes[1],) * 2
    return Calls(
        either(name, reverse, x | {"g": x["g"] - 6}), either(name, reverse, x), tokens=tokens
    )


def backward(name: str, channels: bool, *sizes: int) -> Calls:
    """Into existing arrays: page faults of new ones vary at random."""
    x = arrays(*sizes, channels)
    operands, variant = taken(x, name), f"{name}{'_key_channels' if channels else ''}"
    end, options = MAPS.get(name, ("_identity", (1.0,)))
    first, reverse = (getattr(linattn.ufuncs, f"{variant}{y}{end}") for y in ("", "_backward"))
    outs = tuple(map(np.empty_like, operands))
    return Calls(
        partial(reverse, *operands, x["grad_out"], *options, out=outs),
        partial(first, *operands, *options, out=np.empty_like(x["v"])),
        tokens=(sizes[0] * sizes[1],) * 2,
    )


def half(name: str, dtype: str, *sizes: int) -> Calls:
    """16-bit tokens; gates are float32, as in every other row."""
    kind = np.float16 if dtype == "float16" else importlib.import_module("ml_dtypes").bfloat16
    x = arrays(*sizes)
    narrow = {key: y if key == "g" else y.astype(kind) for key, y in x.items()}
    return Calls(forward(name, narrow), forward(name, x), tokens=(sizes[0] * sizes[1],) * 2)


def step(name: str, channels: bool, heads: int, d: int) -> Calls:
    """One token, in place."""
    x = {key: y[:, 0] for key, y in arrays(heads, 1, d, channels).items()}
    state = State(np.zeros((heads, d, d), np.float32))
    ours = partial(getattr(linattn, f"{name}_step"), *taken(x, name), state, in_place=True)
    plain = x["q"], 1e-9 * x["k"], x["v"], state
    return Calls(ours, partial(linattn.step, *plain, in_place=True, **PLAIN))


# The short convolution.


def filters(n: int, c: int) -> tuple[np.ndarray, ...]:
    """x, weight, bias."""
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(x, np.float32) for x in ((1, n, c), (c, 4), (c,)))


def convolution(n: int, c: int) -> Calls:
    x, weight, bias = filters(n, c)
    out, copy = np.empty_like(x), np.empty_like(x)
    ours = partial(linattn.causal_conv1d, x, weight, bias, activation="silu", out=out)
    return Calls(ours, partial(np.copyto, copy, x))


def convolution_in_torch(n: int, c: int) -> Calls:
    """In PyTorch's layout, channels before tokens."""
    x, weight, bias = filters(n, c)
    functions = importlib.import_module("torch.nn.functional")

    def form(torch, x, taps, bias):
        o = functions.conv1d(x, taps, bias, padding=weight.shape[1] - 1, groups=c)
        return functions.silu(o[..., :n]).mT

    theirs = [np.ascontiguousarray(x.mT), weight[:, None], bias, bias]
    ours = partial(linattn.causal_conv1d, x, weight, bias, activation="silu")
    return Calls(PyTorch.call(form, theirs), ours, ours())


# Transformers: operands are contiguous in its layout, (1, n, heads, d), and results are turned.


def mamba2(chunk: int, torch, C, B, x, dt):
    """With A = -1, so that dt is minus the gate."""
    function = Transformers.module("mamba2").mamba2_chunk_scan
    return function(x, dt, -torch.ones(x.shape[2]), B, C, chunk_size=chunk)


def delta_rule(family: str, name: str, chunk: int, torch, *operands):
    return getattr(Transformers.module(family), name)(*operands, chunk_size=chunk)[0]


qwen3 = partial(delta_rule, "qwen3_next", "torch_chunk_gated_delta_rule")
kimi = partial(delta_rule, "kimi_linear", "chunk_kimi_delta_attention")


#: Name, form, operator, gates by channel; chunk lengths, that of the models' configuration first;
#: what part of the tokens the slowest gets, whose time is the same for each; goals.
FORMS = (
    ("mamba2_chunk_scan / gated", mamba2, False, (256, 64, 128), 1, (10.0, 12.0)),
    ("torch_chunk_gated_delta_rule / gated_delta", qwen3, False, (64, 32), 1, (10.0, 12.0)),
    ("chunk_kimi_delta_attention / gated_delta by channel", kimi, True, (64,), 4, (50.0, 50.0)),
)  # fmt: skip


def in_transformers(form, channels: bool, chunks: tuple, reverse: bool, *sizes: int) -> Calls:
    x = arrays(*sizes, channels)
    operands, ours = (mamba2_operands if form is mamba2 else delta_operands)(x)
    wide = [y.astype(np.float64) for y in operands]
    theirs = [np.ascontiguousarray(y.swapaxes(0, 1))[None] for y in operands]
    calls = {f"chunk {c}": turned(PyTorch.call(partial(form, c), theirs, reverse)) for c in chunks}
    calls = calls if len(chunks) > 1 else next(iter(calls.values()))
    tokens = (sizes[0] * sizes[1],) * 2
    return Calls(calls, partial(ours, reverse, *operands), partial(ours, reverse, *wide), tokens)


def turned(call: Call) -> Call:
    """The results as views in linattn's layout."""
    return lambda: tuple(x[0].numpy().swapaxes(0, 1) for x in call())


def delta_operands(x: dict):
    operands = [*taken(x, "gated_delta"), x["grad_out"]]
    scale = operands[0].shape[-1] ** -0.5

    def call(reverse: bool, *operands: np.ndarray) -> tuple[np.ndarray, ...]:
        o = linattn.gated_delta(*operands[:-1], scale=scale)
        return o, *(linattn.gated_delta_backward(*operands, scale=scale) if reverse else ())

    return operands, call


def mamba2_operands(x: dict):
    """C, B, x and dt: the gate is -dt, and dt x is written."""

    def call(reverse: bool, C, B, x, dt, grad_out) -> tuple[np.ndarray, ...]:
        v = dt[..., None] * x
        o = linattn.gated(C, B, v, -dt)
        if not reverse:
            return (o,)
        dC, dB, dv, dg = linattn.gated_backward(C, B, v, -dt, grad_out)
        return o, dC, dB, dt[..., None] * dv, (dv * x).sum(-1) - dg

    return [x["q"], x["k"], x["v"], -x["g"], x["grad_out"]], call


def _of_transformers():
    """As its models run it, and, without a goal, with the chunk length that is fastest here."""
    for heads, n, d in SHAPES.values():
        for name, form, channels, chunks, part, goals in FORMS:
            sizes = heads, n // part, d
            for reverse, mode in MODES:
                what = f"{name}, {mode}, {heads} heads, N = {sizes[1]:,}, d = {d}"
                for tried, goal in ((chunks[:1], goals[reverse]), (chunks, None)):
                    if goal or len(chunks) > 1:
                        yield Row(
                            what if goal else f"{what}, fastest chunk",
                            partial(in_transformers, form, channels, tried, reverse),
                            sizes, [Transformers], goal, True,
                        )  # fmt: skip


ROWS = [
    *(Row(f"{name}{kind} / {plain}, d = {d}", partial(against_plain, name, plain, channels),
          sizes, goal=goals[channels])
      for d, sizes in SHAPES.items() for name, (plain, goals) in RULES.items()
      for channels, kind in KINDS),
    *(Row(f"{name}_backward / {name}{kind}, d = {d}", partial(backward, name, channels), sizes,
          goal=3.5)
      for d, sizes in SHAPES.items() for name in RULES for channels, kind in KINDS),
    *(Row(f"{name}{'_backward' * reverse} with strong gates / weak ones",
          partial(strong, name, reverse), goal=1.05)
      for name in ("gated", "gated_delta") for reverse in (False, True)),
    *(Row(f"momentum_delta / gated_delta, d = {d}",
          partial(against_plain, "momentum_delta", "gated_delta", False), sizes, goal=2.2)
      for d, sizes in SHAPES.items()),
    *(Row(f"{dtype} {name} / float32", partial(half, name, dtype), peers=[ML_DTYPES], goal=1.0)
      for name in RULES for dtype in ("float16", "bfloat16")),
    Row("causal_conv1d with silu, 4,096 tokens of 2,048 channels, w = 4 / np.copyto", convolution,
        (4096, 2048), goal=1.3),
    Row("PyTorch's conv1d and silu / linattn, of the same", convolution_in_torch, (4096, 2048),
        [PyTorch], 3.0, True),
    *_of_transformers(),
]  # fmt: skip
