"""Scans: against NumPy's product of the same traffic, SciPy, JAX, PyTorch and Transformers.

One thread, float32, unless said.  linear_scan has factors near 0.99, selective_scan negative rates
and a softplus of its time steps, as Mamba has them.
"""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Any

import numpy as np
from harness import Call, Pair, interleave, relative_error, threads
from report import Report, Row, options, say

import linattn
from linattn import State

#: (sequences, tokens, channels) of linear scans.
SHAPES = ((8, 4096, 64), (1, 65536, 1024))
#: Channels, states and tokens of one sequence of Falcon-Mamba-7B.
M, R, N = 5120, 16, 2048
#: Tokens of the comparisons with tensor code, which holds n m r numbers several times.
SHORT = 256
#: Channels of the stand-ins' comparisons: those of a Mamba of 130 million parameters.
NARROW = 1536
#: How far two results in float32 may lie apart, as a part of the largest entry.
SAME = 1e-4


def main() -> int:
    args = options(__doc__).parse_args()
    report = Report("Scans", args)
    rounds = 5 if args.quick else 15
    with threads(1):
        for shape in SHAPES[: 1 if args.quick else 2]:
            linear(report, shape, rounds)
        constant(report, rounds)
        selective(report, rounds)
        step(report, rounds)
    two_threads(report, rounds)
    with threads(1):
        if torch := optional("torch", args):
            associative_in_torch(report, torch, rounds)
            for backward in (False, True):
                transformers(report, torch, backward, 3)
                stand_in(report, torch, backward, 5)
        if jax := optional("jax", args):
            associative_in_jax(report, jax, rounds)
    return report.finish()


def optional(name: str, args: Any) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        say(args, f"{name}: {error}")
        return None


def factors(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """a and x."""
    rng = np.random.default_rng(0)
    a = 1 - 0.02 * rng.random(shape, np.float32)
    return a, rng.standard_normal(shape, np.float32)


def operands(n: int, m: int = M) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Those of selective_scan, and a cotangent."""
    rng = np.random.default_rng(0)
    x, z, dt, grad_out = rng.standard_normal((4, n, m), np.float32)
    B, C = rng.standard_normal((2, n, R), np.float32)
    A = -np.exp(rng.standard_normal((m, R), np.float32))
    D, dt_bias = rng.standard_normal((2, m), np.float32)
    named = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias - 3}
    return named, grad_out


def compare(
    report: Report, what: str, a: Call, b: Call, rounds: int, target: float | None = None,
    **more: Any,
) -> None:  # fmt: skip
    """A row of the time of a over that of b."""
    pair = interleave(a, b, rounds)
    report.add(Row(what, *figures(pair), target=target, detail=milliseconds(pair), **more))


def figures(pair: Pair) -> tuple[float, float, float]:
    return pair.ratio, pair.low, pair.high


def milliseconds(pair: Pair) -> str:
    return f"{pair.a * 1e3:.3g} against {pair.b * 1e3:.3g} ms"


def linear(report: Report, shape: tuple[int, ...], rounds: int) -> None:
    a, x = factors(shape)
    h = np.empty_like(x)
    scan = partial(linattn.linear_scan, a, x, out=h)
    product = partial(np.multiply, a, x, out=h)
    compare(report, f"linear_scan {shape} / np.multiply", scan, product, rounds, 1.2)
    backward = partial(linattn.linear_scan_backward, a, x, x)
    forward = partial(linattn.linear_scan, a, x)
    compare(report, f"linear_scan_backward {shape} / linear_scan", backward, forward, rounds, 4.0)


def constant(report: Report, rounds: int) -> None:
    """A filter of one coefficient: SciPy filters along the tokens' axis."""
    signal = importlib.import_module("scipy.signal")
    for shape in ((8, 4096, 64), (1, 1 << 20, 1)):
        _, x = factors(shape)
        theirs = partial(signal.lfilter, np.ones(1, "f4"), np.array([1, -0.99], "f4"), x, axis=-2)
        ours = partial(linattn.linear_scan, np.float32(0.99), x)
        error = agree(theirs(), ours())
        what = f"linear_scan {shape}, a number for a / scipy.signal.lfilter"
        compare(report, what, ours, theirs, rounds, 1.0, error=error)


def selective(report: Report, rounds: int) -> None:
    named, grad_out = operands(N)
    out = np.empty_like(grad_out)
    forward = partial(linattn.selective_scan, **named, softplus=True, out=out)
    backward = partial(linattn.selective_scan_backward, **named, grad_out=grad_out, softplus=True)
    shape = f"m = {M:,}, r = {R}, n = {N:,}"
    what = f"selective_scan_backward / selective_scan, {shape}"
    compare(report, what, backward, forward, max(3, rounds // 3), 4.0)
    turned = {
        key: y.T.copy().T if key in ("x", "dt", "z") else y for key, y in named.items()
    }  # fmt: skip
    channels = partial(
        linattn.selective_scan, **turned, softplus=True, out=np.empty((M, N), "f4").T
    )
    what = f"selective_scan of (channels, tokens) / of (tokens, channels), {shape}"
    compare(report, what, channels, forward, max(3, rounds // 3), 1.2)
    # The same recurrence with channels as heads of one value each, without z, D and the softplus.
    dt = 0.1 * abs(named["dt"])
    x, A, B, C = (named[key] for key in "xABC")
    plain = partial(linattn.selective_scan, x, dt, A, B, C, out=out)
    g, v = dt.T[:, :, None] * A[:, None], (dt * x).T[:, :, None].copy()
    heads = partial(linattn.gated, C, B, v, g, out=np.empty_like(v))
    error = agree(heads()[..., 0].T, plain())
    what = f"selective_scan / gated with channels as heads, gates given, {shape}"
    compare(report, what, plain, heads, max(3, rounds // 3), 1.0, error=error)


def step(report: Report, rounds: int) -> None:
    """A token of 8 sequences."""
    named, _ = operands(8)
    token = {key: y for key, y in named.items() if key not in ("A", "D", "dt_bias")}
    token |= {key: named[key] for key in ("A", "D", "dt_bias")}
    state = State(np.zeros((8, M, R), np.float32))
    copy = np.empty_like(state.s)
    ours = partial(linattn.selective_scan_step, **token, state=state, softplus=True, in_place=True)
    what = f"selective_scan_step of 8 sequences, m = {M:,}, r = {R} / copy of the states"
    compare(report, what, ours, partial(np.copyto, copy, state.s), rounds, 1.3)


def two_threads(report: Report, rounds: int) -> None:
    """On one sequence: channels are independent."""
    named, grad_out = operands(N)
    out = np.empty_like(grad_out)
    calls = {
        "selective_scan": partial(linattn.selective_scan, **named, softplus=True, out=out),
        "linear_scan": partial(linattn.linear_scan, named["dt"], named["x"], out=out),
        "selective_scan_backward": partial(
            linattn.selective_scan_backward, **named, grad_out=grad_out, softplus=True
        ),
    }
    for name, call in calls.items():

        def on(count: int, call: Call = call) -> None:
            with threads(count):
                call()

        what = f"{name} of one sequence, m = {M:,}, n = {N:,}: two threads / one"
        pair = interleave(partial(on, 2), partial(on, 1), max(3, rounds // 3), settle=True)
        report.add(Row(what, *figures(pair), target=0.6, detail=milliseconds(pair)))


# Others.


def combine(left: Any, right: Any) -> Any:
    """Two steps of the recurrence as one."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def associative_in_torch(report: Report, torch: Any, rounds: int) -> None:
    """Compiled, as PyTorch runs it."""
    scan = importlib.import_module("torch._higher_order_ops.associative_scan").associative_scan
    a, x = factors(SHAPES[0])
    theirs = torch.from_numpy(a), torch.from_numpy(x)
    ours = partial(linattn.linear_scan, a, x)

    def call() -> Any:
        with torch.no_grad():
            return scan(combine, theirs, dim=1, combine_mode="generic")[1]

    what = f"torch associative_scan / linear_scan {SHAPES[0]}"
    against(report, what, call, ours, max(3, rounds // 3), 5.0)


def associative_in_jax(report: Report, jax: Any, rounds: int) -> None:
    a, x = factors(SHAPES[0])
    scan = jax.jit(lambda a, x: jax.lax.associative_scan(combine, (a, x), axis=1)[1])
    theirs = jax.numpy.asarray(a), jax.numpy.asarray(x)
    ours = partial(linattn.linear_scan, a, x)
    what = f"jax.lax.associative_scan (all threads) / linear_scan {SHAPES[0]}"
    call = lambda: scan(*theirs).block_until_ready()  # noqa: E731
    against(report, what, call, ours, max(3, rounds // 3), 5.0)


def transformers(report: Report, torch: Any, backward: bool, rounds: int) -> None:
    """The function that Transformers' models call on CPUs, (batch, channels, tokens)."""
    module = importlib.import_module("transformers.models.mamba.modeling_mamba")
    named, grad_out = operands(SHORT)
    theirs = channels_first(torch, named, backward)
    cotangent = torch.from_numpy(grad_out.T[None].copy())

    def call() -> Any:
        y = module.mamba_selective_scan(
            theirs["x"], theirs["dt"], theirs["A"], theirs["B"], theirs["C"], D=theirs["D"],
            z=theirs["z"], delta_bias=theirs["dt_bias"], delta_softplus=True,
        )  # fmt: skip
        if not backward:
            return y[0].T
        return torch.autograd.grad(y, [*theirs.values()], cotangent)[0][0].T

    def ours() -> np.ndarray:
        y = linattn.selective_scan(**named, softplus=True)
        if not backward:
            return y
        return linattn.selective_scan_backward(**named, grad_out=grad_out, softplus=True)[0]

    kind = "forward + backward" if backward else "forward"
    what = f"mamba_selective_scan / selective_scan, {kind}, m = {M:,}, r = {R}, n = {SHORT}"
    against(report, what, call, ours, rounds, 20.0 if backward else 30.0)


def channels_first(torch: Any, named: dict[str, np.ndarray], requires_grad: bool) -> dict[str, Any]:
    """Tensors, (batch, channels, tokens)."""
    tensors = {key: torch.from_numpy(y.copy()) for key, y in named.items()}
    for key in ("x", "dt", "z", "B", "C"):
        tensors[key] = tensors[key].T[None].contiguous()
    return {key: y.requires_grad_(requires_grad) for key, y in tensors.items()}


def stand_in(report: Report, torch: Any, backward: bool, rounds: int) -> None:
    """The functions of mamba_ssm: a loop over tokens in PyTorch, and linattn's stand-in."""
    module = importlib.import_module("linattn.torch.mamba_ssm.ops.selective_scan_interface")
    named, grad_out = operands(SHORT, NARROW)
    tensors = channels_first(torch, named, backward)
    order = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias")
    cotangent = torch.from_numpy(grad_out.T[None].copy())

    def run(scan: Call) -> Any:
        y = scan(*(tensors[key] for key in order), delta_softplus=True)
        y = torch.autograd.grad(y, [*tensors.values()], cotangent)[0] if backward else y
        return y.numpy()

    kind = "forward + backward" if backward else "forward"
    what = f"selective_scan_ref / selective_scan_fn, {kind}, m = {NARROW:,}, r = {R}, n = {SHORT}"
    loop, ours = (partial(run, getattr(module, f"selective_scan_{x}")) for x in ("ref", "fn"))
    against(report, what, loop, ours, rounds, 10.0)


def against(
    report: Report, what: str, theirs: Call, ours: Call, rounds: int, target: float
) -> None:  # fmt: skip
    """A row of the time of another library over linattn's."""
    error = agree(np.asarray(theirs()), ours())
    compare(report, what, theirs, ours, rounds, target, at_least=True, error=error)


def agree(theirs: np.ndarray, ours: np.ndarray) -> float:
    """How far the results lie apart, after a check that they are the same."""
    error = relative_error(np.asarray(theirs), ours)
    if not error < SAME:
        raise AssertionError(f"these are not the same numbers: error {error}")
    return error


if __name__ == "__main__":
    sys.exit(main())
