"""A gufunc and its gradient as one differentiable function of JAX, whatever its operands are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._core.dtypes import work_dtype
from .._core.gradient_sums import repeats
from .._types import Shape
from ._arrays import is_complex, like, summed, total, with_lead
from ._custom_calls import call


class Kernel(NamedTuple):
    """The gufunc of a call and that of its gradient, with all that is known when it is traced.

    Dimensions are letters, a string for each array: n tokens, p packed sequences, and others by
    which the sizes of the output are found.  `run` takes operands, indices and fields of a state,
    in this order.
    """

    forward: str
    backward: str
    numbers: tuple[float, ...]
    operands: tuple[str, ...]
    output: str
    indices: tuple[str, ...] = ()
    state: tuple[str, ...] = ()

    def padded(self, given: Sequence[Any]) -> tuple[list[Any], Shape]:
        """All arrays with the same number of leading axes, and the lengths of these axes."""
        ranks = [len(dims) for dims in (*self.operands, *self.indices, *self.state)]
        pairs = list(zip(given, ranks, strict=True))
        lead: Shape = jnp.broadcast_shapes(*(x.shape[: x.ndim - rank] for x, rank in pairs))
        return [with_lead(x, rank, len(lead)) for x, rank in pairs], lead

    def sizes(self, arrays: Sequence[Any]) -> dict[str, int]:
        """The size of each dimension of operands, and of indices if given, by its letter."""
        return {
            letter: size
            for dims, x in zip((*self.operands, *self.indices), arrays, strict=False)
            for letter, size in zip(dims, x.shape[x.ndim - len(dims) :], strict=True)
        }


def differentiable(gradient: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Gives a function its gradient, in reverse mode.

    For ``function(static, *operands)``, ``gradient(static, operands, grad)`` is a sequence with
    the gradient of each operand, which may still have axes that the operand was broadcast to, and
    None for an operand of integers.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        run = jax.custom_vjp(function, nondiff_argnums=(0,))

        def forward(static: Any, *operands: Any) -> Any:
            return run(static, *operands), operands

        def backward(static: Any, operands: Any, grad: Any) -> Any:
            return tuple(
                np.zeros(y.shape, jax.dtypes.float0) if x is None else summed(x, y.shape, y.dtype)
                for x, y in zip(gradient(static, operands, grad), operands, strict=True)
            )

        run.defvjp(forward, backward)
        return run

    return decorate


def _conjugate(x: Any) -> Any:
    """A gradient as JAX has it, dL/dRe - i dL/dIm, from the kernels', or back."""
    return x.conj() if is_complex(x.dtype) else x


def gradients(kernel: Kernel, given: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    """Those of all that `run` takes, from those of the output and of the final state."""
    arrays, lead = kernel.padded(given)
    sizes = kernel.sizes(arrays)
    count = len(kernel.operands)
    operands, rest = arrays[:count], arrays[count:]
    # The gradient of an operand without tokens is a sum over the tokens of each sequence, and
    # what is summed is not rounded to 16 bits before.
    by_sequence = [bool(kernel.state) and "n" not in dims for dims in kernel.operands]
    outputs = []
    for x, dims, each, y in zip(operands, kernel.operands, by_sequence, given, strict=False):
        own = x.shape[len(lead) :]
        shape = (*lead, sizes["p"], *own) if each else (*lead, *own)
        is_whole = "n" in dims and shape == y.shape
        outputs.append(like(shape, x.dtype if is_whole else work_dtype(x.dtype)))
    states = rest[len(kernel.indices) :]
    outputs += [like((*lead, *x.shape[len(lead) :]), x.dtype) for x in states]
    grad_out, *grad_state = map(_conjugate, grads)
    inputs = (*operands, grad_out.astype(operands[0].dtype), *rest, *grad_state)
    found = call(kernel.backward, inputs, kernel.numbers, count + 1, outputs)
    found = [*map(_conjugate, found)]
    first = [
        total(x, len(lead)).squeeze(len(lead)) if each else x
        for x, each in zip(found, by_sequence, strict=False)
    ]
    return [*first, *(None for _ in kernel.indices), *found[count:]]


@differentiable(gradients)
def run(kernel: Kernel, *given: Any) -> Any:
    """The output, and the fields of the state after the last token, as a list."""
    arrays, lead = kernel.padded(given)
    sizes = kernel.sizes(arrays)
    count = len(kernel.operands)
    outputs = [like((*lead, *(sizes[letter] for letter in kernel.output)), arrays[0].dtype)]
    states = arrays[count + len(kernel.indices) :]
    outputs += [like((*lead, *x.shape[len(lead) :]), x.dtype) for x in states]
    return call(kernel.forward, arrays, kernel.numbers, count, outputs)


def _exact_gradients(kernel: Kernel, given: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
    """Those of `run`: what a state has lost is a constant."""
    count = len(kernel.state)
    found = gradients(kernel, given[:-count], grads[:-count])
    return [*found, *map(jnp.zeros_like, given[-count:])]


@differentiable(_exact_gradients)
def run_exact(kernel: Kernel, *given: Any) -> list[Any]:
    """As `run`; what the fields of the state have lost, in their shapes, follows these on the way
    in and out.  The gufunc takes it as twice as many sequences (`_call.exact`)."""
    count = len(kernel.state)
    *arrays, begin, end, keys = given[: -2 * count]
    axes = [-len(dims) for dims in kernel.state]
    pairs = zip(given[-2 * count : -count], given[-count:], axes, strict=True)
    both = [jnp.concatenate(jnp.broadcast_arrays(x, lost), axis) for x, lost, axis in pairs]
    second = jnp.full_like(begin, jnp.iinfo(begin.dtype).min)
    indices = (jnp.concatenate((x, y), -1) for x, y in (
        (begin, second), (end, jnp.zeros_like(end)), (keys, jnp.zeros_like(keys))
    ))  # fmt: skip
    o, *after = run(kernel, *arrays, *indices, *both)
    halves = [jnp.split(x, 2, axis) for x, axis in zip(after, axes, strict=True)]
    return [o, *(x for x, _ in halves), *(x for _, x in halves)]


def _spread_gradient(shape: Shape, given: Any, grad: Any) -> Any:
    (x,) = given
    for axis in reversed(repeats(shape, x.shape)):
        grad = total(grad, axis)
    return (grad,)


@differentiable(_spread_gradient)
def spread(shape: Shape, x: Any) -> Any:
    """x broadcast to that shape."""
    return jnp.broadcast_to(with_lead(x, 0, len(shape)), shape)
