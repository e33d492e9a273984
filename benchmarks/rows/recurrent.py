"""mLSTM and RWKV-4's attention beside `gated` and what Transformers computes on CPUs; sLSTM beside
a loop over tokens."""

from __future__ import annotations

from functools import partial

import numpy as np
from adapters import Transformers

import linattn
from linattn._cli.peers import PyTorch
from linattn._cli.rows import Calls, Row

SIZES = ((4, 2048, 64, 64), (4, 2048, 128, 128), (4, 2048, 256, 512))


def tokens(heads: int, n: int, d: int, m: int) -> list[np.ndarray]:
    """q, k, v, i, f, and a cotangent."""
    rng = np.random.default_rng(0)
    shapes = (n, d), (n, d), (n, m), (n,), (n,), (n, m)
    return [rng.standard_normal((1, heads, *x)).astype(np.float32) for x in shapes]


def against_gated(reverse: bool, *sizes: int) -> Calls:
    q, k, v, i, f, c = tokens(*sizes)
    g = -np.logaddexp(np.float32(0), -f)
    if reverse:
        return Calls(partial(linattn.mlstm_backward, q, k, v, i, f, c),
                     partial(linattn.gated_backward, q, k, v, g, c))  # fmt: skip
    return Calls(partial(linattn.mlstm, q, k, v, i, f), partial(linattn.gated, q, k, v, g))


def mlstm(*sizes: int) -> Calls:
    operands = tokens(*sizes)
    module = Transformers.module("xlstm")

    def form(torch, *x):
        return module.mlstm_chunkwise_native_autograd(*x)[0]

    ours = partial(linattn.mlstm, *operands[:-1])
    return Calls(Transformers.call(form, operands), ours)


def slstm_loop(torch, x, R, b):
    """sLSTM token by token, all gates and heads of a token in one product."""
    batch, n, gates, heads, d = x.shape
    sigmas, weights = torch.nn.functional.logsigmoid, R.permute(1, 3, 0, 2).flatten(-2)
    h = c = total = m = x.new_zeros(batch, heads, d)
    outputs = []
    for t in range(n):
        # matmul of rows, as in the xlstm package, would copy the weights for every sequence.
        read = torch.einsum("bhj,hjk->bhk", h, weights).view(batch, heads, gates, d)
        i, f, z, o = (x[:, t] + read.transpose(1, 2) + b).unbind(1)
        past = sigmas(f) + m
        m = torch.maximum(past, i) if t else i
        kept, write = torch.exp(past - m), torch.exp(i - m)
        c, total = kept * c + write * torch.tanh(z), kept * total + write
        h = torch.sigmoid(o) * c / total
        outputs.append(h)
    return torch.stack(outputs, 1)


def slstm(backward: bool, batch: int, n: int, heads: int, d: int) -> Calls:
    """A forward pass; or one and its gradients."""
    rng = np.random.default_rng(0)
    shapes = (batch, n, 4, heads, d), (4, heads, d, d), (4, heads, d), (batch, n, heads, d)
    x, R, b, c = (rng.standard_normal(y).astype(np.float32) for y in shapes)
    R /= np.float32(d**0.5)
    loop = PyTorch.call(slstm_loop, (x, R, b, c), backward)
    if not backward:
        return Calls(lambda: loop()[0], partial(linattn.slstm, x, R, b), same=1e-2)
    return Calls(
        loop, lambda: (linattn.slstm(x, R, b), *linattn.slstm_backward(x, R, b, c)), same=1e-2
    )


def channels(n: int, m: int) -> tuple[np.ndarray, ...]:
    """k, v, a cotangent; decay and u."""
    rng = np.random.default_rng(0)
    shapes = [(1, n, m)] * 3 + [(m,)] * 2
    return tuple(rng.standard_normal(x).astype(np.float32) for x in shapes)


def wkv_backward(n: int, m: int) -> Calls:
    k, v, c, decay, u = channels(n, m)
    w = np.exp(decay)
    return Calls(partial(linattn.wkv_backward, k, v, w, u, c), partial(linattn.wkv, k, v, w, u))


def wkv(n: int, m: int) -> Calls:
    k, v, c, decay, u = channels(n, m)
    module = Transformers.module("rwkv")

    def form(torch, *x):
        return module.rwkv_linear_attention_cpu(*x)[0]

    ours = partial(linattn.wkv, k, v, np.exp(decay), u)
    return Calls(Transformers.call(form, [decay, u, k, v, c]), ours, ours())


ROWS = [
    *(Row(f"{name}, d = {sizes[2]}, m = {sizes[3]}", make, sizes, needed, tiny=(2, 128, 16, 16))
      for sizes in SIZES for name, make, needed in (
          ("mlstm / gated", partial(against_gated, False), []),
          ("mlstm_backward / gated_backward", partial(against_gated, True), []),
          ("mlstm_chunkwise_native / mlstm", mlstm, [Transformers]))),
    *(Row(f"PyTorch loop / slstm{what}, batch {batch}, 4 heads, d = {d}", partial(slstm, backward),
          (batch, 512, 4, d), [PyTorch], tiny=(2, 8, 2, 8))
      for d in (64, 128, 256) for batch in (1, 16)
      for what, backward in (("", False), (" and slstm_backward", True))),
    Row("wkv_backward / wkv, m = 2,048", wkv_backward, (1024, 2048), tiny=(64, 16)),
    Row("rwkv_linear_attention_cpu / wkv, m = 2,048", wkv, (1024, 2048), [Transformers],
        tiny=(64, 16)),
]  # fmt: skip
