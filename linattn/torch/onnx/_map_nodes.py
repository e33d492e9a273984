"""Feature maps in ONNX's standard operators: phi(x) of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ... import feature_maps
from ...feature_maps._feature_map import Fused
from .._core import map_texts
from ._errors import unsupported
from ._graph_call import Call
from ._ops import END, Ops, Value


def described(text: str, omega: Value | None) -> Any:
    """The map of a text, whose directions, if any, are zeros."""
    zeros = None if omega is None else torch.zeros(tuple(omega.shape))
    return feature_maps.get(map_texts.restore(text, zeros))


def map_both(call: Call) -> bool:
    """Maps a call's queries and keys; whether q became its projections and k the logarithms of its
    features, which are rescaled as tokens come."""
    ops, x = call.ops, call.x
    phi = described(x.feature_map, call.named["omega"])
    if x.omega is None:
        x.q, x.k = (mapped(ops, call.name, phi, None, y, call.width("d")) for y in (x.q, x.k))
        return False
    if type(phi).__name__ != "PositiveRandomFeatures":
        raise unsupported(call.name, f"the feature map {type(phi).__name__}", "another map")
    call.sizes["f"] = phi.features(0)
    x.q, _ = logarithms(ops, phi, x.omega, x.q)
    _, x.k = logarithms(ops, phi, x.omega, x.k)
    return True


def logarithms(ops: Ops, phi: Any, omega: Value, x: Value) -> tuple[Value, Value]:
    """x omega, and log phi(x), of positive random features."""
    x = x * ops.number(phi.temperature**0.5)
    u = ops.op.MatMul(x, omega)
    if phi.hyperbolic:
        u = ops.op.Concat(u, ops.op.Neg(u), axis=-1)
    offset = ops.sum(x * x, keep=True) * ops.number(0.5)
    return u, u - offset - ops.number(np.log(phi.features(0)) / 2)


def mapped(ops: Ops, function: str, phi: Any, omega: Value | None, x: Value, d: int) -> Value:
    """phi(x) of a map and of rows of width d; random features have directions omega."""
    name = phi.name if isinstance(phi, Fused) else type(phi).__name__
    if name == "SumNormalized":
        return _over_sum(ops, mapped(ops, function, phi.feature_map, omega, x, d), phi.eps)
    if name in FUSED:
        return FUSED[name](ops, x)
    if name in OBJECTS:
        return OBJECTS[name](ops, phi, x, d if omega is None else omega)
    raise unsupported(function, f"the feature map {name}", "a function of tensors that computes it")


def _elu(ops: Ops, x: Value) -> Value:
    """elu(x) + 1, without losing the digits of small exponentials."""
    zero = ops.number(0)
    positive = ops.op.Greater(x, zero)
    return ops.op.Where(positive, x + ops.number(1), ops.op.Exp(ops.op.Min(x, zero)))


def _l2norm(ops: Ops, x: Value) -> Value:
    return x / ops.op.Sqrt(ops.sum(x * x, keep=True) + ops.number(1e-6))


def _over_sum(ops: Ops, y: Value, eps: float) -> Value:
    return y / (ops.sum(y, keep=True) + ops.number(eps))


def _dpfp(ops: Ops, phi: Any, x: Value, d: int) -> Value:
    r = ops.op.Relu(ops.op.Concat(x, ops.op.Neg(x), axis=-1))
    blocks = []
    for i in range(1, phi.nu + 1):  # rolled by i
        last = ops.cut(r, -i, END, -1)
        blocks.append(r * ops.op.Concat(last, ops.cut(r, 0, -i, -1), axis=-1))
    y = ops.op.Concat(*blocks, axis=-1)
    return _over_sum(ops, y, phi.eps) if phi.normalize else y


def _rebased(ops: Ops, phi: Any, x: Value, d: int) -> Value:
    """All products of two numbers."""
    i, j = np.triu_indices(d)
    rows = (ops.op.Gather(_scaled(ops, phi, x, d), ops.integers(*y), axis=-1) for y in (i, j))
    weights = np.where(i == j, 1.0, 2**0.5).astype(ops.dtype.numpy())
    return ops.constant(weights) * next(rows) * next(rows)


def _taylor(ops: Ops, phi: Any, x: Value, d: int) -> Value:
    """1, the numbers, and all products of two."""
    one = ops.cut(x, 0, 1, -1) * ops.number(0) + ops.number(1)
    pairs = _rebased(ops, phi, x, d) * ops.number(0.5**0.5)
    return ops.op.Concat(one, _scaled(ops, phi, x, d), pairs, axis=-1)


def _scaled(ops: Ops, phi: Any, x: Value, d: int) -> Value:
    return x * ops.number((d**-0.5 if phi.scale is None else phi.scale) ** 0.5)


def _fourier(ops: Ops, phi: Any, x: Value, omega: Value) -> Value:
    u = _projected(ops, phi, x, omega)
    return _mean(ops, phi, ops.op.Concat(ops.op.Sin(u), ops.op.Cos(u), axis=-1))


def _positive(ops: Ops, phi: Any, x: Value, omega: Value) -> Value:
    return ops.op.Exp(logarithms(ops, phi, omega, x)[1])


def _generalized(ops: Ops, phi: Any, x: Value, omega: Value) -> Value:
    return _mean(ops, phi, FUSED[phi.fn](ops, _projected(ops, phi, x, omega)))


def _projected(ops: Ops, phi: Any, x: Value, omega: Value) -> Value:
    return ops.op.MatMul(x * ops.number(phi.temperature**0.5), omega)


def _mean(ops: Ops, phi: Any, x: Value) -> Value:
    return x * ops.number(phi.omega.shape[-1] ** -0.5)


#: Maps that kernels know, by name.
FUSED: dict[str, Callable[[Ops, Value], Value]] = {
    "identity": lambda ops, x: x,
    "relu": lambda ops, x: ops.op.Relu(x),
    "elu": _elu,
    "softplus": lambda ops, x: ops.softplus(x),
    "exp": lambda ops, x: ops.op.Exp(x),
    "l2norm": _l2norm,
}
#: Maps with parameters, by class; functions of x and of its width, or of directions.
OBJECTS: dict[str, Callable[[Ops, Any, Value, Any], Value]] = {
    "DPFP": _dpfp,
    "Rebased": _rebased,
    "Taylor": _taylor,
    "RandomFourierFeatures": _fourier,
    "PositiveRandomFeatures": _positive,
    "GeneralizedRandomFeatures": _generalized,
}
