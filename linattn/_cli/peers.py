"""Other libraries' linear attention: an adapter each, with calls on (heads, n, d) arrays.

An adapter's functions return calls without arguments, whose results are tuples of arrays: the
output and, with gradients, the gradient of each operand but the last, the cotangent.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

import linattn

EPS = 1e-6
CHUNK = 64
Call = Callable[[], Any]
Array = Any  #: of any of the libraries
Form = Callable[..., Array]


class Peer:
    """A library, and the packages that it needs."""

    name: str
    packages: tuple[str, ...] = ()
    gradients: ClassVar[bool | None] = None  #: whether it has any; None if a row says so itself

    @classmethod
    def missing(cls) -> str:
        """The packages that are not installed."""
        return ", ".join(x for x in cls.packages if importlib.util.find_spec(x) is None)

    @classmethod
    def available(cls) -> bool:
        return not cls.missing()


class Library(Peer):
    """One that computes forms written by hand; NumPy, which has no gradients."""

    @classmethod
    def call(cls, form: Form, operands: Sequence[np.ndarray], backward: bool = False) -> Call:
        """A call of a form, which takes the library's module and the operands."""
        return lambda: (form(np, *operands[:-1]),)


class NumPy(Library):
    name = "NumPy"


class PyTorch(Library):
    name, packages = "PyTorch", ("torch",)

    @classmethod
    def call(cls, form: Form, operands: Sequence[np.ndarray], backward: bool = False) -> Call:
        torch = importlib.import_module("torch")
        *inputs, grad_out = map(torch.from_numpy, operands)
        inputs = [x.requires_grad_(backward) for x in inputs]

        def call() -> tuple[Array, ...]:
            with torch.set_grad_enabled(backward):
                o = form(torch, *inputs)
                return o.detach(), *(torch.autograd.grad(o, inputs, grad_out) if backward else ())

        return call


class ONNXRuntime(Peer):
    """Its operator LinearAttention: identity map, no normaliser, no gradient."""

    name, packages, gradients = "ONNX Runtime", ("onnx", "onnxruntime"), False
    #: By the operands besides queries, keys and values.
    RULES: ClassVar = {
        (): "linear", ("beta",): "delta", ("decay",): "gated", ("decay", "beta"): "gated_delta"
    }  # fmt: skip
    MODEL = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        attention ({inputs}) => (float[b, n, width] output) {{
            output, state = com.microsoft.LinearAttention <update_rule = "{rule}",
                q_num_heads = {heads}, kv_num_heads = {heads}, scale = 1.0>
                (query, key, value, , {more})
        }}"""

    @classmethod
    def call(cls, q: Array, k: Array, v: Array, **more: Array) -> Call:
        """Operands and result are bound to a session once, as (1, n, heads d), as it takes them."""
        runtime = importlib.import_module("onnxruntime")
        heads, n, m = v.shape
        given = {"query": q, "key": k, "value": v} | more
        text = cls.MODEL.format(
            heads=heads, rule=cls.RULES[*more],
            inputs=", ".join(f"float[b, n, {x}_width] {x}" for x in given),
            more=", ".join(x if x in more else "" for x in ("decay", "beta")),
        )  # fmt: skip
        model = importlib.import_module("onnx").parser.parse_model(text).SerializeToString()
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = linattn.get_num_threads(), 1
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for name, x in given.items():
            packed = np.ascontiguousarray(x.swapaxes(0, 1)).reshape(1, n, -1)
            binding.bind_cpu_input(name, packed)
        out = np.empty((1, n, heads * m), np.float32)
        binding.bind_output("output", "cpu", 0, out.dtype, out.shape, out.ctypes.data)
        result = out.reshape(n, heads, m).swapaxes(0, 1)
        return lambda: session.run_with_iobinding(binding) or result


# Causal attention with elu(x) + 1 and its normaliser, as users write it by hand.


def scan(xp: Any, q: Array, k: Array, v: Array, chunk: int = CHUNK) -> Array:
    """Chunk by chunk, carrying the state from chunk to chunk."""
    heads, _, m = v.shape
    q, k, v = (x.reshape(heads, -1, chunk, x.shape[-1]) for x in (elu1(xp, q), elu1(xp, k), v))
    s, z = (xp.zeros((heads, q.shape[-1], width), dtype=v.dtype) for width in (m, 1))
    rows = []
    for a, b, c in zip(*(x.swapaxes(0, 1) for x in (q, k, v)), strict=True):
        weights = xp.tril(a @ b.mT)
        den = weights.sum(-1)[..., None] + a @ z + EPS
        rows.append((weights @ c + a @ s) / den)
        s, z = s + b.mT @ c, z + b.sum(-2)[..., None]
    return xp.concatenate(rows, -2)


def elu1(xp: Any, x: Array) -> Array:
    if hasattr(xp, "nn"):  # PyTorch's own is one pass
        return xp.nn.functional.elu(x) + 1
    return xp.where(x > 0, x + 1, xp.exp(x.clip(max=0)))


def softmax(torch: Any, q: Array, k: Array, v: Array) -> Array:
    """Softmax attention, with which linear attention is compared."""
    four = (x[None] for x in (q, k, v))  # of three axes PyTorch takes its slow form
    return torch.nn.functional.scaled_dot_product_attention(*four, is_causal=True)[0]
