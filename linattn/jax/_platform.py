"""The processor that a call runs on, which has to be a CPU: known when it is lowered, or run."""

from __future__ import annotations

from typing import Any, NoReturn

import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir


def on_cpu(x: Any) -> Any:
    """x, as it is; an error where it is lowered for, or lies on, anything but a CPU."""
    return _ON_CPU.bind(x)


def _there(x: Any) -> Any:
    x = jnp.asarray(x)  # those of NumPy go where JAX puts them
    for device in x.devices():
        if device.platform != "cpu":
            _refused(device.platform)
    return x


def _elsewhere(ctx: Any, x: Any) -> NoReturn:
    _refused((ctx.platforms or ctx.module_context.platforms)[0])


def _refused(platform: str) -> NoReturn:
    raise ValueError(
        f"linattn.jax: the arrays are on platform {platform!r}; expected 'cpu': move them with "
        "jax.device_put(x, jax.devices('cpu')[0]), or make and use them under "
        "jax.default_device(jax.devices('cpu')[0])"
    )


_ON_CPU = Primitive("linattn_on_cpu")
_ON_CPU.def_impl(_there)
_ON_CPU.def_abstract_eval(lambda x: x)
batching.defvectorized(_ON_CPU)
mlir.register_lowering(_ON_CPU, _elsewhere)
mlir.register_lowering(_ON_CPU, lambda ctx, x: [x], platform="cpu")
