"""Scans: against NumPy's product of the same traffic, SciPy, JAX, PyTorch and Transformers.

linear_scan has factors near 0.99, selective_scan negative rates and a softplus of its time steps,
as Mamba has them.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import numpy as np
from adapters import JAX, SCIPY, Transformers

import linattn
from linattn import State
from linattn._cli.bench import MODES
from linattn._cli.peers import PyTorch
from linattn._cli.rows import Calls, Row

#: Channels, states and tokens of one sequence of Falcon-Mamba-7B.
M, R, N = 5120, 16, 2048
#: Tokens of the comparisons with tensor code, which holds n m r numbers several times.
SHORT = 256
#: Channels of the stand-ins' comparisons: those of a Mamba of 130 million parameters.
NARROW = 1536
#: Of selective_scan in the order of mamba_ssm's functions.
ORDER = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias")


def factors(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    """a and x."""
    rng = np.random.default_rng(0)
    a = 1 - 0.02 * rng.random(shape, np.float32)
    return a, rng.standard_normal(shape, np.float32)


def operands(n: int, m: int, r: int = R) -> dict[str, np.ndarray]:
    """Those of selective_scan, and a cotangent."""
    rng = np.random.default_rng(0)
    x, z, dt, grad_out = rng.standard_normal((4, n, m), np.float32)
    B, C = rng.standard_normal((2, n, r), np.float32)
    A = -np.exp(rng.standard_normal((m, r), np.float32))
    D, dt_bias = rng.standard_normal((2, m), np.float32)
    return {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias - 3,
            "grad_out": grad_out}  # fmt: skip


def forward(x: dict[str, np.ndarray], **more: Any) -> partial:
    given = {key: y for key, y in x.items() if key != "grad_out"}
    return partial(linattn.selective_scan, **given, softplus=True, **more)


def linear(*shape: int) -> Calls:
    a, x = factors(*shape)
    h = np.empty_like(x)
    return Calls(partial(linattn.linear_scan, a, x, out=h), partial(np.multiply, a, x, out=h))


def linear_backward(*shape: int) -> Calls:
    a, x = factors(*shape)
    return Calls(partial(linattn.linear_scan_backward, a, x, x), partial(linattn.linear_scan, a, x))


def constant(*shape: int) -> Calls:
    """A filter of one coefficient: SciPy filters along the tokens' axis."""
    _, x = factors(*shape)
    filtered = importlib.import_module("scipy.signal").lfilter
    coefficients = np.ones(1, np.float32), np.array([1, -0.99], np.float32)
    ours = partial(linattn.linear_scan, np.float32(0.99), x)
    return Calls(ours, partial(filtered, *coefficients, x, axis=-2), ours())


def backward(n: int, m: int) -> Calls:
    x = operands(n, m)
    return Calls(partial(linattn.selective_scan_backward, **x, softplus=True), forward(x))


def step(rows: int, m: int) -> Calls:
    """A token of some sequences."""
    x = operands(rows, m)
    del x["grad_out"]
    state = State(np.zeros((rows, m, R), np.float32))
    ours = partial(linattn.selective_scan_step, **x, state=state, softplus=True, in_place=True)
    return Calls(ours, partial(np.copyto, np.empty_like(state.s), state.s))


# Others.


def combine(left: Any, right: Any) -> Any:
    """Two steps of the recurrence as one."""
    return left[0] * right[0], right[0] * left[1] + right[1]


def in_jax(_, a, x):
    return importlib.import_module("jax.lax").associative_scan(combine, (a, x), axis=1)[1]


def associative(*shape: int) -> Calls:
    a, x = factors(*shape)
    ours = partial(linattn.linear_scan, a, x)
    return Calls(JAX.call(in_jax, [a, x, x]), ours, ours())


def of_transformers(torch, x, dt, A, B, C, D, z, dt_bias):
    """The function that its models call on CPUs."""
    scan = Transformers.module("mamba").mamba_selective_scan
    return scan(x, dt, A, B, C, D=D, z=z, delta_bias=dt_bias, delta_softplus=True)


def of_stand_in(name: str, torch, *operands):
    """A function of linattn's stand-in for mamba_ssm: a loop over tokens in PyTorch, or linattn."""
    module = importlib.import_module("linattn.torch.mamba_ssm.ops.selective_scan_interface")
    return getattr(module, name)(*operands, delta_softplus=True)


def tensor_code(form, ours, reverse: bool, n: int, m: int) -> Calls:
    """Forms that take (batch, channels, tokens); ``ours`` is linattn's form, or NumPy's call."""
    x = operands(n, m)
    turned = ("x", "dt", "z", "B", "C", "grad_out")
    given = [x[key].T[None].copy() if key in turned else x[key] for key in (*ORDER, "grad_out")]

    def call() -> tuple[np.ndarray, ...]:
        y = forward(x)()
        grads = linattn.selective_scan_backward(**x, softplus=True) if reverse else ()
        return tuple(z.T[None] if i in (0, 1, 2, 4, 5, 7) else z for i, z in enumerate((y, *grads)))

    call_of = partial(PyTorch.call, operands=given, backward=reverse)
    wanted = call()[:2]

    def first(call):
        return lambda: call()[:2]

    return Calls(first(call_of(form)), first(call_of(ours) if ours else call), wanted)


def slstm_loop(torch, x, R, b, packages=False):
    """sLSTM token by token, all gates and heads of a token in one product.

    That of the loops in the packages xlstm and flashrnn copies the weights for every sequence.
    """
    batch, _, gates, heads, d = x.shape
    sigmas, weights = torch.nn.functional.logsigmoid, R.permute(1, 3, 0, 2).flatten(-2)
    h = c = total = m = x.new_zeros(batch, heads, d)
    outputs = []
    for t, xt in enumerate(x.unbind(1)):
        if packages:
            read = h.unsqueeze(2).matmul(weights)
        else:
            read = torch.einsum("bhj,hjk->bhk", h, weights)
        read = read.view(batch, heads, gates, d)
        i, f, z, o = (xt + read.transpose(1, 2) + b).unbind(1)
        past = sigmas(f) + m
        m = torch.maximum(past, i) if t else i
        kept, write = torch.exp(past - m), torch.exp(i - m)
        c, total = kept * c + write * torch.tanh(z), kept * total + write
        h = torch.sigmoid(o) * c / total
        outputs.append(h)
    return torch.stack(outputs, 1)


def slstm(backward: bool, batch: int, n: int, heads: int, d: int, packages: bool = False) -> Calls:
    """A forward pass; or one and its gradients."""
    rng = np.random.default_rng(0)
    shapes = (batch, n, 4, heads, d), (4, heads, d, d), (4, heads, d), (batch, n, heads, d)
    x, R, b, c = (rng.standard_normal(y).astype(np.float32) for y in shapes)
    R /= np.float32(d**0.5)
    loop = PyTorch.call(partial(slstm_loop, packages=packages), (x, R, b, c), backward)
    if not backward:
        return Calls(lambda: loop()[0], partial(linattn.slstm, x, R, b), same=1e-2)
    return Calls(
        loop, lambda: (linattn.slstm(x, R, b), *linattn.slstm_backward(x, R, b, c)), same=1e-2
    )


SHAPE = f"m = {M:,}, r = {R}, n = {N:,}"
ROWS = [
    *(Row(name.format(shape), make, shape, goal=goal) for shape in ((8, 4096, 64), (1, 65536, 1024))
      for name, make, goal in (("linear_scan {} / np.multiply", linear, 1.2),
                               ("linear_scan_backward {} / linear_scan", linear_backward, 4.0))),
    *(Row(f"linear_scan {shape}, a number for a / scipy.signal.lfilter", constant, shape, [SCIPY],
          1.0) for shape in ((8, 4096, 64), (1, 1 << 20, 1))),
    Row(f"selective_scan_backward / selective_scan, {SHAPE}", backward, (N, M), goal=4.0),
    Row(f"selective_scan_step of 8 sequences, m = {M:,}, r = {R} / copy of the states", step,
        (8, M), goal=1.3),
    *(Row(f"mamba_selective_scan / selective_scan, {mode}, m = {M:,}, r = {R}, n = {SHORT}",
          partial(tensor_code, of_transformers, None, reverse), (SHORT, M), [Transformers],
          20.0 if reverse else 30.0, True) for reverse, mode in MODES),
    *(Row(f"selective_scan_ref / selective_scan_fn, {mode}, m = {NARROW:,}, r = {R}, n = {SHORT}",
          partial(tensor_code, partial(of_stand_in, "selective_scan_ref"),
                  partial(of_stand_in, "selective_scan_fn"), reverse), (SHORT, NARROW), [PyTorch],
          10.0, True) for reverse, mode in MODES),
    *(Row(f"{loop} / slstm{what}, batch {batch}, 4 heads, d = {d}",
          partial(slstm, backward, packages=packages), (batch, n, 4, d), [PyTorch], goal, packages)
      for loop, packages, n, goal in (("PyTorch loop", False, 512, None),
                                      ("loop of flashrnn", True, 128, 10.0))
      for d in (64, 128, 256) for batch in (1, 16)
      for what, backward in (("", False), (" and slstm_backward", True))),
    Row("jax.lax.associative_scan / linear_scan (8, 4096, 64)", associative, peers=[JAX], goal=5.0,
        least=True),
]  # fmt: skip
