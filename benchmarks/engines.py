"""Adapters of the CPU kernels of inference engines: calls on the tensors that linattn is given.

Tokens are (1, n, heads, d), states (1, heads, d, m).  Operands are put into an engine's own layout
beforehand: its scale, exponentials of gates, transposed states.  Most kernels have no gradients.
docs/howto/benchmarking.md says how to install them.
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np

import linattn
from linattn._cli.peers import Call, Peer

Tensor = Any
Operands = dict[str, Tensor]


class Engine(Peer):
    """``gated_delta(x, s)`` and the like make the call of an operator on operands and a state."""

    gradients = False

    @staticmethod
    def ints(*values: int) -> Tensor:
        torch = importlib.import_module("torch")
        return torch.tensor(values, dtype=torch.int32)


class VLLM(Engine):
    name, packages = "vLLM", ("vllm", "torch")

    @staticmethod
    def op(name: str) -> Any:
        importlib.import_module("vllm._C")
        try:
            return getattr(importlib.import_module("torch").ops._C, name).default
        except AttributeError:
            raise ImportError(f"this version of vLLM has no {name}") from None

    @classmethod
    def gated_delta(cls, x: Operands, s: Tensor) -> Call:
        run, pool = cls.op("chunk_gated_delta_rule_cpu"), s.clone()
        packed, rows = cls.ints(0, x["q"].shape[1]), cls.ints(0)
        if all(y.name != "initial_state_indices" for y in run._schema.arguments):  # before 0.32
            return lambda: run(*x.values(), s, True, packed, False, False)[0]

        def call() -> Tensor:
            pool.copy_(s)  # to which the last state was written
            return run(*x.values(), pool, True, packed, False, False, rows)[0]

        return call


class Zentorch(Engine):
    name, packages = "zentorch", ("zentorch", "torch")
    CHUNK = 64

    @classmethod
    def gated_delta(cls, x: Operands, s: Tensor) -> Call:
        importlib.import_module("zentorch")
        torch, n, d = importlib.import_module("torch"), x["q"].shape[1], x["q"].shape[-1]
        run = torch.ops.zentorch.gdn_chunk_gated_delta_rule_fwd
        index = torch.arange(n // cls.CHUNK, dtype=torch.int32)
        chunks = torch.stack([torch.zeros_like(index), index], 1)
        packed = cls.ints(0, n), chunks, cls.ints(0, n // cls.CHUNK)
        return lambda: run(*x.values(), d**-0.5, s.mT.contiguous(), True, cls.CHUNK, *packed)[0]


class ExecuTorch(Engine):
    name, packages = "ExecuTorch", ("executorch", "torch")

    @classmethod
    def gated_delta(cls, x: Operands, s: Tensor) -> Call:
        """It takes exp(g) and (1, heads, n, d), and has no scale."""
        importlib.import_module("executorch.extension.llm.custom_ops.custom_ops")
        run = importlib.import_module("torch").ops.llama.gated_delta_rule
        q, k, v, g, beta = (y.transpose(1, 2).contiguous() for y in scaled(x).values())
        return lambda: run(q, k, v, g, beta, s)[0].transpose(1, 2)


class MLX(Engine):
    name, packages, gradients = "MLX", ("mlx", "torch"), True

    @classmethod
    def gated_delta(cls, x: Operands, s: Tensor) -> Call:
        """It takes exp(g) and transposed states, and has no scale."""
        mlx = importlib.import_module("mlx.core")
        given = [mlx.array(y.numpy()) for y in (*scaled(x).values(), s.mT)]
        run = mlx.fast.gated_delta_update

        def call() -> np.ndarray:
            results = run(*given)
            mlx.eval(results)
            return np.asarray(results[0])

        return call


class GGML(Engine):
    """Its graphs have an operator each, its tensors the reversed shapes of arrays."""

    name, packages = "ggml", ("ggml", "torch")

    @staticmethod
    def call(name: str, arrays: list[Tensor], result: Tensor, *options: float) -> Call:
        ggml = importlib.import_module("ggml")
        arrays = [np.ascontiguousarray(x) for x in arrays]
        room = sum(x.nbytes + 1024 for x in arrays) + 4 * (result.numel() + arrays[0].size * 2)
        size = room + arrays[-1].nbytes + ggml.ggml_graph_overhead() + 2**22
        context = ggml.ggml_init(ggml.ggml_init_params(mem_size=size, mem_buffer=None))
        tensors = []
        for x in arrays:
            kind = ggml.GGML_TYPE_I32 if x.dtype == np.int32 else ggml.GGML_TYPE_F32
            shape = (*x.shape[::-1], *[1] * (4 - x.ndim))
            tensors.append(ggml.ggml_new_tensor_4d(context, kind, *shape))
            ctypes.memmove(ggml.ggml_get_data(tensors[-1]), x.ctypes.data, x.nbytes)
        out = getattr(ggml, name)(context, *tensors, *options)
        graph = ggml.ggml_new_graph(context)
        ggml.ggml_build_forward_expand(graph, out)
        threads = linattn.get_num_threads()
        pool = ggml.ggml_threadpool_new(ggml.ggml_threadpool_params_default(threads))
        plan = ggml.ggml_graph_plan(graph, threads, pool)
        work = (ctypes.c_uint8 * max(1, plan.work_size))()
        plan.work_data = ctypes.cast(work, ctypes.POINTER(ctypes.c_uint8))
        memory = ctypes.cast(ggml.ggml_get_data(out), ctypes.POINTER(ctypes.c_float))
        view = np.ctypeslib.as_array(memory, (result.numel(),)).reshape(result.shape)
        return lambda: ggml.ggml_graph_compute(graph, plan) or view

    @classmethod
    def gated_delta(cls, x: Operands, s: Tensor) -> Call:
        """It takes transposed states."""
        q, k, v, g, beta = x.values()
        arrays = [q, k, v, g[..., None], beta[..., None], s.mT]
        return cls.call("ggml_gated_delta_net", arrays, v, 1)

    @classmethod
    def gated(cls, x: Operands, s: Tensor) -> Call:
        """It takes exp(g), per channel."""
        q, k, v, g = x.values()
        arrays = [k, v, q, g.exp(), s.reshape(1, -1)]
        return cls.call("ggml_gated_linear_attn", arrays, v, q.shape[-1] ** -0.5)

    @classmethod
    def dplr(cls, x: Operands, s: Tensor) -> Call:
        """RWKV-7's: it takes exp(g), per channel, and transposed states, and has no scale."""
        q, k, v, a, b, g = scaled(x).values()
        return cls.call("ggml_rwkv_wkv7", [q, g, k, v, a, b, s.mT.reshape(1, -1)], v)

    @classmethod
    def scan(cls, x: Operands, s: Tensor) -> Call:
        """Mamba's, with a softplus of dt: x (1, n, heads, headdim), A (heads, 1 or r)."""
        return cls.call("ggml_ssm_scan", [s, *x.values(), cls.ints(0)], x["x"])


def scaled(x: Operands) -> Operands:
    """Operands of a kernel without a scale, which takes factors in place of their logarithms."""
    return x | {"q": x["q"] * x["q"].shape[-1] ** -0.5, "g": x["g"].exp()}
