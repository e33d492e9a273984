"""Every operator on arrays next to memory that must not be accessed.

Run as a script: an access out of bounds ends the process.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

import linattn
from linattn import State, feature_maps

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = np.float16

PAGE = mmap.PAGESIZE
SIZES = [(1, 1, 1), (3, 5, 17), (16, 16, 16), (17, 33, 3), (33, 8, 65), (33, 8, 0), (33, 0, 8)]
#: A row, or a column, that is any part of a vector.
NARROW = [(19 - d, d, m) for d, m in zip(range(1, 17), range(16, 0, -1), strict=True)]
#: A view of memory that holds the same numbers in another order; each undoes itself.
LAYOUTS = {
    "by rows": lambda x: x,
    "by columns": lambda x: x.swapaxes(-1, -2) if x.ndim > 1 else x,
    "rows backwards": lambda x: x[..., ::-1, :] if x.ndim > 1 else x[::-1],
    "columns backwards": lambda x: x[..., ::-1],
    "backwards by columns": lambda x: LAYOUTS["by columns"](np.flip(x)),
}
libc = ctypes.CDLL(None, use_errno=True)


def guarded(x: np.ndarray, at_end: bool, layout: str) -> np.ndarray:
    """A copy of x that ends, or begins, at a page without access."""
    x = LAYOUTS[layout](x)
    pages = -(-x.nbytes // PAGE)  # none where x is empty: then nothing may be touched
    memory = mmap.mmap(-1, (pages + 2) * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (0, pages + 1):
        if libc.mprotect(ctypes.c_void_p(start + page * PAGE), PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = PAGE + (pages * PAGE - x.nbytes if at_end else 0)
    y = np.frombuffer(memory, x.dtype, x.size, offset).reshape(x.shape)
    y[...] = x
    y = LAYOUTS[layout](y)
    if x.size == 0:  # as many of NumPy's own empty arrays have them
        y = np.lib.stride_tricks.as_strided(y, strides=(0,) * y.ndim)
    return y


def check(n: int, d: int, m: int, dtype: type, at_end: bool, layout: str) -> None:
    rng = np.random.default_rng(0)

    def make(*shape: int, dtype: type = dtype) -> np.ndarray:
        return guarded(rng.random(shape).astype(dtype), at_end, layout)

    wide = np.float64 if dtype is np.float64 else np.float32
    q, k, v, g, o = (make(2, n, x) for x in (d, d, m, m, m))
    beta = make(2, n)
    state = State(make(2, d, m, dtype=wide), make(2, d, dtype=wide))
    both = {"initial_state": state, "grad_state": state}
    linattn.causal(q, k, v, initial_state=state, return_state=True, out=o)
    linattn.noncausal(q, k, v, out=o)
    linattn.causal_backward(q, k, v, g, **both)
    linattn.noncausal_backward(q, k, v, g)
    linattn.delta(q, k, v, beta, out=o)
    linattn.delta(q, k, v, v, out=o)
    linattn.delta(q, k, v, v, initial_state=State(state.s), return_state=True)
    linattn.delta_backward(q, k, v, beta, g)
    linattn.delta_backward(q, k, v, v, g)
    for gate in (make(2, n, dtype=wide), make(2, n, d, dtype=wide)):
        for strength, erase in ((beta, None), (v, k)):
            operands = (q, k, v, -gate, strength)
            linattn.gated_delta(*operands, erase=erase, out=o)
            linattn.gated_delta_backward(*operands, g, erase=erase)
        linattn.dplr(q, k, v, -k, k, -gate, out=o)
        linattn.dplr_backward(q, k, v, -k, k, -gate, g)
    outputs = [make(2, n, x) for x in (d, d, m)]
    linattn.ufuncs.causal_backward_elu(q, k, v, g, 1.0, 1e-6, out=tuple(outputs))
    token = (make(2, d), make(2, d), make(2, m))
    linattn.step(*token, state, in_place=True)
    linattn.delta_step(*token, make(2), State(state.s), in_place=True)
    linattn.delta_step(*token, token[2], State(state.s), in_place=True)
    for gate in (make(2, dtype=wide), make(2, d, dtype=wide)):
        memory = State(state.s)
        linattn.gated_delta_step(*token, gate, make(2), memory, erase=token[0], in_place=True)
        linattn.dplr_step(*token, token[0], token[1], gate, memory, in_place=True)
    weight, inputs = make(m, 4), make(2, m, 3, dtype=wide)
    conv = {"initial_state": inputs, "activation": "silu"}
    linattn.causal_conv1d(v, weight, make(m), return_state=True, out=o, **conv)
    linattn.causal_conv1d_backward(v, weight, g, make(m), grad_state=inputs, **conv)
    linattn.causal_conv1d(v, make(m, 9), out=o)
    linattn.causal_conv1d_step(token[2], weight, inputs, in_place=True)
    linattn.causal_backward(q, k, v, g, feature_map="l2norm", normalize=False)
    linattn.log_decay(v, make(m), make(m))
    if wide is dtype:
        linattn.softmax_attention(q, k, v, causal=True)
        linattn.softmax_attention_backward(q, k, v, g, causal=True)
        feature_maps.DPFP(nu=1)(q)
        for phi in (feature_maps.Rebased(), feature_maps.Taylor()):
            phi.backward(q, make(2, n, phi.features(d)))
            phi(q)
        feature_maps.L2Norm().backward(q, feature_maps.L2Norm()(q))
        if d * m > 0:
            feature_maps.PositiveRandomFeatures(make(d, m))(q)
    for gates in (2, n), (2, n, d):
        gate, bonus = make(*gates, dtype=wide), make(2, d, dtype=wide)
        suffix = "_key_channels" if len(gates) > 2 else ""
        linattn.gated(q, k, v, -gate, out=o)
        linattn.gated(q, k, v, gate, bonus=bonus, initial_state=State(state.s), return_state=True)
        outputs = [*(make(2, n, x) for x in (d, d, m)), make(*gates, dtype=wide)]
        backward = getattr(linattn.ufuncs, f"gated{suffix}_bonus_backward_identity")
        last = make(2, d, dtype=wide)
        backward(q, k, v, gate, bonus, g, 1.0, out=(*outputs, last))
        linattn.gated_backward(q, k, v, gate, g, bonus=bonus, initial_state=State(state.s))
        for u in (None, bonus):
            one = gate[:, 0] if n else make(*gates[:1], *gates[2:], dtype=wide)
            linattn.gated_step(*token, one, State(state.s), bonus=u, in_place=True)


def main() -> None:
    for dtype in (np.float16, bfloat16, np.float32, np.float64):
        for at_end in (True, False):
            for n, d, m in SIZES + NARROW:
                check(n, d, m, dtype, at_end, "by rows")
            for layout in LAYOUTS:
                for n, d, m in SIZES[3:4] + NARROW[2::6]:
                    check(n, d, m, dtype, at_end, layout)
    print("within bounds")


if __name__ == "__main__":
    main()
