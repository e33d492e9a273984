"""Gated recurrences: against those without gates, their backward, and other libraries.

One thread, float32, 8 heads, N = 4096, d = m = 64, and 16 heads, N = 2048, d = m = 128; keys of
norm 1, gates with mean -0.1.  "By channel" means one gate for each key channel, otherwise there is
one for each token.  The error of a result is its largest error over its largest entry, against
float64.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from core import ratio
from harness import best, interleave, relative_error, threads
from report import Report, Row, options, say

import linattn
from linattn import State

SHAPES = {64: (8, 4096, 64), 128: (16, 2048, 128)}
#: Operands besides q, k and v; the operator without gates, its operands; the targets against it.
RULES = {
    "gated": (("g",), "causal", (), (1.15, 1.6)),
    "gated_delta": (("g", "beta"), "delta", ("beta",), (1.15, 1.6)),
    "dplr": (("a", "b", "g"), "delta", ("beta",), (2.0, 2.0)),
}
PLAIN = {"causal": {"feature_map": "identity", "normalize": False}, "delta": {}}
KINDS = ((False, ""), (True, " by channel"))
#: What part of the time of ONNX Runtime linattn is to take, by d.
ONNX = {64: 0.5, 128: 0.35}
#: How many times linattn's time transformers are to take: forward, and forward + backward.
TRANSFORMERS = {
    "gated": ("mamba2_chunk_scan", 10.0, 12.0),
    "gated_delta": ("torch_chunk_gated_delta_rule", 10.0, 12.0),
    "gated_delta by channel": ("chunk_kimi_delta_attention", 50.0, 50.0),
}
#: What part of the tokens the slowest of them gets, whose time is the same for each.
PART = 4
#: How far two results in float32 may lie apart, as a part of the largest entry.
SAME = 1e-4


def main() -> int:
    args = options(__doc__).parse_args()
    report = Report("Gated recurrences", args)
    rounds = 5 if args.quick else 25
    sizes = [64] if args.quick else list(SHAPES)
    with threads(1):
        for d in sizes:
            against_no_gates(report, d, rounds)
        for d in sizes:
            backward(report, d, rounds)
        half(report, rounds)
        steps(report, rounds)
        convolution(report, rounds)
    two_threads(report, rounds)
    with threads(1):
        if onnx := optional("forms_onnx", args):
            for d in sizes:
                onnx_runtime(report, onnx, d, max(3, rounds // 3))
        if torch := optional("torch", args):
            convolution_in_torch(report, torch, rounds)
        sys.modules["fla"] = None  # type: ignore[assignment]  # else models call its GPU kernels
        if form := optional("forms_transformers", args):
            for d in sizes:
                transformers(report, form, d, 3)
    return report.finish()


def optional(name: str, args: Any) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        say(args, f"{name}: {error}")
        return None


def make(heads: int, n: int, d: int, by_channel: bool = False) -> dict[str, np.ndarray]:
    """The operands of every rule by name, and a cotangent."""
    rng = np.random.default_rng(0)
    q, k, v, c, kappa = rng.standard_normal((5, heads, n, d), dtype=np.float32)
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    kappa /= np.linalg.norm(kappa, axis=-1, keepdims=True)
    g = -0.1 * rng.standard_exponential((heads, n, *((d,) if by_channel else ())), np.float32)
    beta = rng.random((heads, n), dtype=np.float32)
    more = {"g": g, "beta": beta, "a": -kappa, "b": kappa * beta[..., None], "grad_out": c}
    return {"q": q, "k": k, "v": v, **more}


def taken(arrays: dict, name: str) -> list[np.ndarray]:
    """The operands that a rule takes."""
    return [arrays[x] for x in (*"qkv", *RULES[name][0])]


def named(shape: tuple[int, int, int]) -> str:
    heads, n, d = shape
    return f"{heads} heads, N = {n:,}, d = {d}"


def against_no_gates(report: Report, d: int, rounds: int) -> None:
    heads, n, _ = SHAPES[d]
    for name, (_, plain, more, targets) in RULES.items():
        for by_channel, kind in KINDS:
            arrays = make(*SHAPES[d], by_channel)
            out = np.empty_like(arrays["v"])
            others = [arrays[x] for x in (*"qkv", *more)]
            ratio(
                report,
                f"{name}{kind} / {plain}, d = {d}",
                partial(getattr(linattn, name), *taken(arrays, name), out=out),
                partial(getattr(linattn, plain), *others, out=out, **PLAIN[plain]),
                rounds,
                target=targets[by_channel],
                tokens=(heads * n,) * 2,
            )


def backward(report: Report, d: int, rounds: int) -> None:
    """Backward into existing arrays: page faults of new ones vary at random."""
    heads, n, _ = SHAPES[d]
    for name in RULES:
        for by_channel, kind in KINDS:
            arrays = make(*SHAPES[d], by_channel)
            operands, end = taken(arrays, name), "" if name == "dplr" else "_identity"
            variant = f"{name}{'_key_channels' if by_channel else ''}"
            forward, reverse = (
                getattr(linattn.ufuncs, f"{variant}{x}{end}") for x in ("", "_backward")
            )
            outs = tuple(map(np.empty_like, operands))
            ratio(
                report,
                f"{name}_backward / {name}{kind}, d = {d}",
                partial(reverse, *operands, arrays["grad_out"], 1.0, out=outs),
                partial(forward, *operands, 1.0, out=np.empty_like(arrays["v"])),
                rounds,
                target=3.5,
                tokens=(heads * n,) * 2,
            )


def half(report: Report, rounds: int) -> None:
    """16-bit tokens; gates are float32, as in every other row."""
    types = {"float16": np.float16}
    try:
        import ml_dtypes
    except ImportError:
        report.add(Row("bfloat16 / float32", target=1.0, skipped="no ml_dtypes"))
    else:
        types["bfloat16"] = ml_dtypes.bfloat16
    heads, n, _ = SHAPES[64]
    arrays = make(*SHAPES[64])
    for name in RULES:
        for label, dtype in types.items():
            narrow = {x: y if x == "g" else y.astype(dtype) for x, y in arrays.items()}
            calls = (
                partial(getattr(linattn, name), *taken(some, name), out=np.empty_like(some["v"]))
                for some in (narrow, arrays)
            )
            what = f"{label} {name} / float32"
            ratio(report, what, *calls, rounds, target=1.0, tokens=(heads * n,) * 2)


def steps(report: Report, rounds: int) -> None:
    """One token of 32 heads, in place."""
    for name in RULES:
        for by_channel, kind in KINDS:
            arrays = {x: y[:, 0] for x, y in make(32, 1, 64, by_channel).items()}
            state = State(np.zeros((32, 64, 64), np.float32))
            q, k, v = (arrays[x] for x in "qkv")
            ratio(
                report,
                f"{name}_step{kind} / step, 32 heads in place",
                partial(
                    getattr(linattn, f"{name}_step"), *taken(arrays, name), state, in_place=True
                ),
                partial(linattn.step, q, 1e-9 * k, v, state, in_place=True, **PLAIN["causal"]),
                rounds,
                target=1.3,
                tokens=(32, 32),
            )


def two_threads(report: Report, rounds: int) -> None:
    """One head cannot be shared out by heads."""
    n = 32768
    arrays = make(1, n, 64)
    out = np.empty_like(arrays["v"])

    def call(name: str, count: int) -> None:
        linattn.set_num_threads(count)
        getattr(linattn, name)(*taken(arrays, name), out=out)

    for name in RULES:
        with threads(2):
            ratio(
                report,
                f"{name}, one head of N = {n:,}, two threads / one",
                partial(call, name, 2),
                partial(call, name, 1),
                rounds,
                target=0.65,
                tokens=(n, n),
                threads=2,
            )


# The short convolution.


def filters(n: int = 4096, c: int = 2048) -> list[np.ndarray]:
    """x, weight, bias."""
    rng = np.random.default_rng(0)
    shapes = (1, n, c), (c, 4), (c,)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def convolution(report: Report, rounds: int) -> None:
    x, weight, bias = filters()
    out, copy = np.empty_like(x), np.empty_like(x)
    pair = interleave(
        lambda: linattn.causal_conv1d(x, weight, bias, activation="silu", out=out),
        lambda: np.copyto(copy, x),
        rounds,
    )
    what = "causal_conv1d with silu, 4,096 tokens of 2,048 channels, w = 4 / np.copyto"
    report.add(Row(what, *_figures(pair), target=1.3, detail=_milliseconds(pair)))


def convolution_in_torch(report: Report, torch: Any, rounds: int) -> None:
    """In PyTorch's layout, channels before tokens."""
    x, weight, bias = filters()
    theirs = torch.from_numpy(np.ascontiguousarray(x.swapaxes(1, 2)))
    taps, offset = torch.from_numpy(weight[:, None]), torch.from_numpy(bias)
    n, c = x.shape[1:]
    functions = torch.nn.functional

    def call() -> Any:
        with torch.no_grad():
            o = functions.conv1d(theirs, taps, offset, padding=weight.shape[1] - 1, groups=c)
            return functions.silu(o[..., :n])

    ours = partial(linattn.causal_conv1d, x, weight, bias, activation="silu")
    agree(call().numpy().swapaxes(1, 2), ours())
    pair = interleave(call, ours, max(3, rounds // 3))
    report.add(
        Row(
            "PyTorch's conv1d and silu / linattn, of the same", *_figures(pair),
            target=3.0, at_least=True, detail=_milliseconds(pair),
        )
    )  # fmt: skip


# Others.


def onnx_runtime(report: Report, onnx: Any, d: int, rounds: int) -> None:
    heads, n, _ = SHAPES[d]
    for name in ("gated", "gated_delta"):
        for by_channel, kind in KINDS:
            arrays = make(*SHAPES[d], by_channel)
            operands = taken(arrays, name)
            ours = partial(getattr(linattn, name), *operands, out=np.empty_like(arrays["v"]))
            beta = arrays["beta"] if name == "gated_delta" else None
            theirs = onnx.linear(*operands[:3], beta, arrays["g"], threads=1)
            want = getattr(linattn, name)(*(x.astype(np.float64) for x in operands))
            errors = agree(theirs(), ours(), want)
            pair = interleave(ours, theirs, rounds)
            report.add(
                Row(
                    f"linattn / ONNX Runtime, {name}{kind}, {named(SHAPES[d])}", *_figures(pair),
                    target=ONNX[d], error=errors[1],
                    detail=f"{_nanoseconds(pair, heads * n)}; ONNX Runtime's error {errors[0]:.0e}",
                )
            )  # fmt: skip


def transformers(report: Report, form: Any, d: int, rounds: int) -> None:
    """As its models run it, and, without a target, with the chunk lengths that are fastest here."""
    heads, n, _ = SHAPES[d]
    for name, (function, *targets) in TRANSFORMERS.items():
        by_channel = name.endswith("by channel")
        shape = (heads, n // PART if by_channel else n, d)
        arrays = make(*shape, by_channel)
        rule = mamba2 if name == "gated" else delta_rule
        operands = rule(arrays)[0]
        for reverse, target in zip((False, True), targets, strict=True):
            ours = partial(rule(arrays)[1], reverse)
            want = rule({x: y.astype(np.float64) for x, y in arrays.items()})[1](reverse)
            calls = form.calls(name, operands, reverse)
            own, *_ = calls
            times = {label: best(call, 0.2) for label, call in calls.items() if len(calls) > 1}
            fastest = min(times, key=times.get, default=own)
            for label in dict.fromkeys((own, fastest)):
                pairs = zip(calls[label](), ours(), want, strict=True)
                errors = np.max([agree(*three) for three in pairs], axis=0)
                pair = interleave(calls[label], ours, rounds)
                what = "forward + backward" if reverse else "forward"
                nanoseconds = _nanoseconds(pair, heads * shape[1])
                report.add(
                    Row(
                        f"{function} / {name}, {what}, {named(shape)}", *_figures(pair),
                        target=target if label == own else None, at_least=True, error=errors[0],
                        detail=f"{label}; {nanoseconds}; linattn's error {errors[1]:.0e}",
                    )
                )  # fmt: skip


def delta_rule(arrays: dict) -> tuple[list[np.ndarray], Callable[[bool], tuple]]:
    """Operands and cotangent, and linattn's call of them."""
    operands, c = taken(arrays, "gated_delta"), arrays["grad_out"]
    scale = operands[0].shape[-1] ** -0.5

    def call(backward: bool) -> tuple[np.ndarray, ...]:
        o = linattn.gated_delta(*operands, scale=scale)
        grads = linattn.gated_delta_backward(*operands, c, scale=scale) if backward else ()
        return o, *grads

    return [*operands, c], call


def mamba2(arrays: dict) -> tuple[list[np.ndarray], Callable[[bool], tuple]]:
    """Operands C, B, x and dt, and the call: the gate is -dt, and dt x is written."""
    C, B, x, dt = arrays["q"], arrays["k"], arrays["v"], -arrays["g"]
    c = arrays["grad_out"]

    def call(backward: bool) -> tuple[np.ndarray, ...]:
        v = dt[..., None] * x
        o = linattn.gated(C, B, v, -dt)
        if not backward:
            return (o,)
        dC, dB, dv, dg = linattn.gated_backward(C, B, v, -dt, c)
        return o, dC, dB, dt[..., None] * dv, (dv * x).sum(-1) - dg

    return [C, B, x, dt, c], call


def agree(theirs: Any, ours: np.ndarray, want: np.ndarray | None = None) -> tuple[float, float]:
    """The errors of both, after a check that they computed the same."""
    want = ours if want is None else want
    errors = relative_error(theirs, want), relative_error(ours, want)
    if not max(errors) < SAME:
        raise AssertionError(f"these are not the same numbers: errors {errors}")
    return errors


def _figures(pair: Any) -> tuple[float, float, float]:
    return pair.ratio, pair.low, pair.high


def _milliseconds(pair: Any) -> str:
    return f"{pair.a * 1e3:.2f} against {pair.b * 1e3:.2f} ms"


def _nanoseconds(pair: Any, tokens: int) -> str:
    return f"{pair.a / tokens * 1e9:.0f} against {pair.b / tokens * 1e9:.0f} ns a token and head"


if __name__ == "__main__":
    sys.exit(main())
