"""Trainable feedforward kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from .._core import checks
from .._core.gradient_sums import summed
from .._core.gufuncs import internal_ufuncs
from .._core.products import product, transposed_product
from ._feature_map import FeatureMap, parameter
from .random_features import generator, orthogonal_matrix

Unit = tuple[np.ndarray, ...]


class FeedforwardKernel(FeatureMap):
    """A feedforward network without biases as a feature map, per head: f = n = d.

    A unit is ``(W,)``: ``f(x W)``; ``(W, G)``: ``f(x W) * sigmoid(x G)``; or ``(W, A, B)``:
    ``f(x W) * sigmoid((x A) B)``.  f is the identity, except for softplus in the last unit.

    Parameters
    ----------
    weights : sequence of units
        Each is a tuple of arrays: W and G of shape (heads, n, n) or (n, n), A (heads, n, r)
        and B (heads, r, n), or the same without heads.  x is then (..., heads, tokens, n).

    Raises
    ------
    TypeError
        If ``weights`` is not a sequence of sequences of real arrays.
    ValueError
        If there is no unit, or a weight does not fit.

    Notes
    -----
    2 n^2 floating-point operations per row for each of W and G, 4 n r for A and B; three times
    that backward.

    References
    ----------
    Yorsh and Kovalenko, "Linear self-attention approximation via trainable feedforward
    kernel", ICANN 2022, eq. 8-12

    Examples
    --------
    >>> import numpy as np
    >>> from linattn import feature_maps
    >>> phi = feature_maps.FeedforwardKernel.aoglu(8, 64, rng=0)
    >>> phi(np.ones((8, 10, 64))).shape, phi.parameters
    ((8, 10, 64), 49152)
    """

    _parameters = ("weights",)

    def __init__(self, weights: Sequence[Sequence[Any]]) -> None:
        if not isinstance(weights, (list, tuple)) or not all(
            isinstance(unit, (list, tuple)) for unit in weights
        ):
            raise TypeError(
                "FeedforwardKernel: weights is not a list of units; expected tuples of arrays, "
                "(W,), (W, G) or (W, A, B)"
            )
        if not weights:
            raise ValueError("FeedforwardKernel: weights is empty; expected at least one unit")
        self.weights: tuple[Unit, ...] = tuple(
            tuple(
                parameter("FeedforwardKernel", f"weights[{i}][{j}]", x) for j, x in enumerate(unit)
            )
            for i, unit in enumerate(weights)
        )
        self._check_shapes()

    def _check_shapes(self) -> None:
        first = self.weights[0][0] if self.weights[0] else np.empty((0, 0))
        n, lead = first.shape[-1], first.shape[:-2]
        for i, unit in enumerate(self.weights):
            if not 1 <= len(unit) <= 3:
                raise ValueError(
                    f"FeedforwardKernel: weights[{i}] has {len(unit)} arrays; expected 1 to 3"
                )
            r = unit[1].shape[-1] if len(unit) == 3 else n
            cores = [(n, n), (n, r), (r, n)][: len(unit)]
            for j, (x, core) in enumerate(zip(unit, cores, strict=True)):
                if x.shape != (*lead, *core) or n == 0:
                    raise checks.wrong_shape(
                        "FeedforwardKernel", f"weights[{i}][{j}]", x, (*lead, *core)
                    )

    @classmethod
    def linear(cls, heads: int, dim: int, depth: int = 1, *, rng: Any = None) -> Self:
        """Units (W,), W orthogonal per head."""
        return cls._draw(heads, dim, depth, rng, ())

    @classmethod
    def glu(cls, heads: int, dim: int, depth: int = 1, *, rng: Any = None) -> Self:
        """Units (W, G), W orthogonal per head, G from N(0, 2 / dim)."""
        return cls._draw(heads, dim, depth, rng, (dim,))

    @classmethod
    def oglu(cls, heads: int, dim: int, depth: int = 1, *, rng: Any = None) -> Self:
        """`glu`, for training with `orthogonality` added to the loss."""
        return cls.glu(heads, dim, depth, rng=rng)

    @classmethod
    def aoglu(
        cls, heads: int, dim: int, depth: int = 1, rank: int | None = None, *, rng: Any = None
    ) -> Self:
        """Units (W, A, B), W orthogonal per head, gates of ``rank`` (dim / 4 by default)."""
        dim = checks.integer("FeedforwardKernel", "dim", dim)
        rank = max(1, dim // 4) if rank is None else rank
        rank = checks.integer("FeedforwardKernel", "rank", rank)
        return cls._draw(heads, dim, depth, rng, (dim, rank))

    @classmethod
    def _draw(cls, heads: int, dim: int, depth: int, rng: Any, fans: tuple[int, ...]) -> Self:
        """Units of W and gates.  The fan-in of a gate is its number of rows."""
        for name, x in (("heads", heads), ("dim", dim), ("depth", depth)):
            checks.integer("FeedforwardKernel", name, x)
        rng = generator("FeedforwardKernel", rng)
        units = []
        for _ in range(depth):
            unit = [np.stack([orthogonal_matrix(dim, rng) for _ in range(heads)])]
            for fan_in, fan_out in zip(fans, (*fans[1:], dim), strict=False):
                gate = rng.standard_normal((heads, fan_in, fan_out))
                unit.append(gate * math.sqrt(2 / fan_in))
            units.append(tuple(unit))
        return cls(units)

    @property
    def parameters(self) -> int:
        """The total number of weights."""
        return sum(x.size for unit in self.weights for x in unit)

    def __call__(self, x: Any) -> np.ndarray:
        x = self._rows(x)
        for i, unit in enumerate(self._cast(x)):
            x = self._unit(i, unit, x)[-1]
        return x

    def backward(self, x: Any, grad: Any) -> tuple[np.ndarray, list[Unit]]:
        """``(dx, gradients)``, with respect to x and to each array of each unit."""
        inputs = self._rows(x)
        grad, lead = self._gradient(inputs, grad), inputs.shape[:-2]
        weights, tape, y = self._cast(inputs), [], inputs
        for i, unit in enumerate(weights):
            tape.append((y, *self._unit(i, unit, y)))
            y = tape[-1][-1]
        gradients: list[Unit] = []
        for i in reversed(range(len(weights))):
            grad, of_unit = self._unit_backward(i, weights[i], tape[i], grad)
            gradients.insert(0, of_unit)
        return grad.reshape(*lead, *inputs.shape[-2:]), gradients

    def input_gradient(self, x: Any, grad: Any) -> np.ndarray:
        return self.backward(x, grad)[0]

    def features(self, d: int) -> int:
        return self.weights[0][0].shape[-1]

    def orthogonality(self, weight: float) -> tuple[float, list[Unit]]:
        """A penalty that keeps every W orthogonal, and its gradient.

        ``weight * sum over units of the mean over heads and entries of (W W^T - I)^2``;
        the gradients have the structure of ``weights``, zeros for gates.
        """
        total, gradients = 0.0, []
        for w, *gates in self.weights:
            off = w @ w.mT - np.eye(w.shape[-1], dtype=w.dtype)
            total += float(np.mean(off**2))
            of_w = (4 * weight / off.size) * (off @ w)
            gradients.append((of_w, *(np.zeros_like(x) for x in gates)))
        return weight * total, gradients

    def _rows(self, x: Any) -> np.ndarray:
        """x as an array, whose leading axes must contain those of the weights."""
        w = self.weights[0][0]
        x = self._input(x, w.shape[-1])
        lead = w.shape[:-2]
        try:
            fits = np.broadcast_shapes(x.shape[:-2], lead) == x.shape[:-2]
        except ValueError:
            fits = False
        if x.ndim < 2 or not fits:
            raise ValueError(
                f"FeedforwardKernel: x has shape {x.shape}; expected "
                f"(..., {', '.join(map(str, (*lead, 'tokens', w.shape[-1])))})"
            )
        return x

    def _cast(self, x: np.ndarray) -> list[Unit]:
        return [tuple(w.astype(x.dtype, copy=False) for w in unit) for unit in self.weights]

    def _unit(self, i: int, unit: Unit, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """x W, the gate's products, and the unit's output, last."""
        last = i == len(self.weights) - 1
        a = product(x, unit[0])
        if len(unit) == 1:
            return (a, internal_ufuncs["softplus"](a)) if last else (a,)
        inner: Unit = (product(x, unit[1]),)
        if len(unit) == 3:
            inner = (*inner, product(inner[0], unit[2]))
        return a, *inner, internal_ufuncs["softplus_gate" if last else "gate"](a, inner[-1])

    def _unit_backward(
        self, i: int, unit: Unit, tape: tuple[np.ndarray, ...], grad: np.ndarray
    ) -> tuple[np.ndarray, Unit]:
        """The gradients of a unit's input and arrays; tape is (x, *what `_unit` returned)."""
        last = i == len(self.weights) - 1
        x, a = tape[:2]
        if len(unit) == 1:
            da = internal_ufuncs["softplus_backward"](a, grad) if last else grad
            return product(da, unit[0].mT), (_outer(x, da, unit[0]),)
        da, db = internal_ufuncs["softplus_gate_backward" if last else "gate_backward"](
            a, tape[-2], grad
        )
        dx = product(da, unit[0].mT)
        of_w = _outer(x, da, unit[0])
        if len(unit) == 2:
            dx += product(db, unit[1].mT)
            return dx, (of_w, _outer(x, db, unit[1]))
        low = product(db, unit[2].mT)
        dx += product(low, unit[1].mT)
        return dx, (of_w, _outer(x, low, unit[1]), _outer(tape[2], db, unit[2]))


def _outer(x: np.ndarray, grad: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The gradient of a weight: x^T grad, summed over the axes that the weight lacks."""
    outer = transposed_product(x, grad)
    return np.asarray(summed(outer, weight.shape, outer.dtype))
