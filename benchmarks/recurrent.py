"""mLSTM and RWKV-4's attention beside `gated` and what Transformers computes on CPUs.

``python benchmarks/recurrent.py`` prints ratios of times, one thread, minima of interleaved runs.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from transformers.models.rwkv.modeling_rwkv import rwkv_linear_attention_cpu
from transformers.models.xlstm.modeling_xlstm import mlstm_chunkwise_native_autograd

import linattn


def minima(*calls, rounds: int = 8) -> list[float]:
    """The least time of each call, in seconds."""
    best = [np.inf] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def mlstm(d: int, m: int, heads: int = 4, n: int = 2048) -> str:
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, heads, n, d)).astype(np.float32)
    v, c = rng.standard_normal((2, 1, heads, n, m)).astype(np.float32)
    i, f = rng.standard_normal((2, 1, heads, n)).astype(np.float32)
    g = -np.logaddexp(np.float32(0), -f)
    tensors = [torch.from_numpy(x) for x in (q, k, v, i, f)]
    ours, gated, back, gated_back = minima(
        lambda: linattn.mlstm(q, k, v, i, f),
        lambda: linattn.gated(q, k, v, g),
        lambda: linattn.mlstm_backward(q, k, v, i, f, c),
        lambda: linattn.gated_backward(q, k, v, g, c),
    )
    with torch.no_grad():
        (native,) = minima(lambda: mlstm_chunkwise_native_autograd(*tensors), rounds=3)
    return (
        f"mlstm, d = {d}, m = {m}: {ours / heads / n * 1e9:.0f} ns a token; "
        f"/ gated {ours / gated:.2f}; "
        f"backward / gated's {back / gated_back:.2f}; native chunkwise / mlstm {native / ours:.1f}"
    )


def wkv(m: int = 2048, n: int = 1024) -> str:
    rng = np.random.default_rng(0)
    k, v, c = rng.standard_normal((3, 1, n, m)).astype(np.float32)
    decay, u = rng.standard_normal((2, m)).astype(np.float32)
    w = np.exp(decay)
    tensors = [torch.from_numpy(x) for x in (decay, u, k, v)]
    ours, back, native = minima(
        lambda: linattn.wkv(k, v, w, u),
        lambda: linattn.wkv_backward(k, v, w, u, c),
        lambda: rwkv_linear_attention_cpu(*tensors),
        rounds=4,
    )
    return (
        f"wkv, m = {m}: {ours / k.size * 1e9:.2f} ns a number; "
        f"backward / forward {back / ours:.2f}; "
        f"Transformers / wkv {native / ours:.1f}"
    )


if __name__ == "__main__":
    linattn.set_num_threads(1)
    torch.set_num_threads(1)
    for sizes in ((64, 64), (128, 128), (256, 512)):
        print(mlstm(*sizes), flush=True)
    print(wkv())
