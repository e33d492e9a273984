"""Feature maps phi of tensors ``(..., n, d)``: those of `linattn.feature_maps`, differentiable.

Names and arguments are theirs; ``omega`` may be a tensor, and the weights of a
`FeedforwardKernel` are tensors that can be trained.  Objects of `linattn.feature_maps` are taken
as ``feature_map=`` as well, and any function of tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

from .. import feature_maps as _numpy
from .._bridges.bridge import documented
from .._bridges.rows import TORCH
from .._core.checks import shape_alone
from ..feature_maps import NAMES, draw
from ._core.conversions import check, work_dtype
from ._core.map_texts import TRAINABLE, TensorMap, described, resolve

__all__ = [
    "DPFP",
    "NAMES",
    "Elementwise",
    "FeedforwardKernel",
    "GeneralizedRandomFeatures",
    "L2Norm",
    "PositiveRandomFeatures",
    "RandomFourierFeatures",
    "Rebased",
    "SumNormalized",
    "Taylor",
    "TensorMap",
    "draw",
    "get",
]


def get(feature_map: Any) -> Any:
    """The map of a name, or the one given, as a callable on tensors.

    Parameters
    ----------
    feature_map : str, map, or callable
        As the operators take it.

    Returns
    -------
    callable

    Raises
    ------
    ValueError
        If the name is unknown.
    TypeError
        If it is neither a name nor callable.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import feature_maps
    >>> feature_maps.get("elu")(torch.tensor([[-1e9, 0.0, 2.0]]))
    tensor([[0., 1., 3.]])
    """
    phi = resolve("get", feature_map)
    return TensorMap(phi) if isinstance(phi, str) else phi


@documented(_numpy.Elementwise, TORCH)
def Elementwise(name: str) -> TensorMap:
    """`linattn.feature_maps.Elementwise` of tensors.

    Returns
    -------
    TensorMap

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import feature_maps
    >>> feature_maps.Elementwise("relu")(torch.tensor([[-1.0, 2.0]]))
    tensor([[0., 2.]])
    """
    return TensorMap(described("Elementwise", name))


@documented(_numpy.L2Norm, TORCH)
def L2Norm() -> TensorMap:
    """`linattn.feature_maps.L2Norm` of tensors.

    Returns
    -------
    TensorMap

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import feature_maps
    >>> feature_maps.L2Norm()(torch.tensor([[3.0, 4.0]]))
    tensor([[0.6000, 0.8000]])
    """
    return TensorMap(described("L2Norm"))


@documented(_numpy.DPFP, TORCH)
def DPFP(nu: int = 1, normalize: bool = True, eps: float = 1e-6) -> TensorMap:
    """`linattn.feature_maps.DPFP` of tensors.

    Returns
    -------
    TensorMap

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import feature_maps
    >>> feature_maps.DPFP(nu=1, normalize=False)(torch.tensor([[1.0, 2.0, -3.0]]))
    tensor([[3., 2., 0., 0., 0., 0.]])
    """
    return TensorMap(described("DPFP", nu, normalize, eps))


@documented(_numpy.Rebased, TORCH)
def Rebased(scale: float | None = None) -> TensorMap:
    """`linattn.feature_maps.Rebased` of tensors.

    Returns
    -------
    TensorMap

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import feature_maps
    >>> feature_maps.Rebased(scale=1.0)(torch.tensor([[3.0, 4.0]]))
    tensor([[ 9.0000, 16.9706, 16.0000]])
    """
    return TensorMap(described("Rebased", scale))


@documented(_numpy.Taylor, TORCH)
def Taylor(scale: float | None = None) -> TensorMap:
    """`linattn.feature_maps.Taylor` of tensors.

    Returns
    -------
    TensorMap

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import feature_maps
    >>> feature_maps.Taylor(scale=1.0)(torch.tensor([[3.0, 4.0]]))
    tensor([[ 1.0000,  3.0000,  4.0000,  6.3640, 12.0000, 11.3137]])
    """
    return TensorMap(described("Taylor", scale))


class SumNormalized:
    """Another map divided by the sum of its features, ``phi(x) / (sum phi(x) + eps)``.

    Parameters
    ----------
    feature_map : str, map, or callable
        A map without negative features, lest the sum vanish.
    eps : float, default 1e-6
        Added to the sum; where both are 0 the features are 0.

    Raises
    ------
    TypeError
        If ``feature_map`` is neither a name, a map, nor callable.
    ValueError
        If ``feature_map`` is the name of no map.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import feature_maps
    >>> feature_maps.SumNormalized("relu", eps=0.0)(torch.tensor([[1.0, 3.0, -1.0]]))
    tensor([[0.2500, 0.7500, 0.0000]])
    """

    def __init__(self, feature_map: Any, eps: float = 1e-6) -> None:
        self.feature_map, self.eps = get(feature_map), eps

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self.feature_map(x)
        total = y.sum(-1, keepdim=True) + self.eps
        return y / total.where(total != 0, 1.0)


class _RandomFeatures(TensorMap):
    """A map with directions ``omega``, which may be a tensor; ``kind`` is NumPy's class."""

    _kind: Any

    def __init_subclass__(cls, kind: Any = None) -> None:
        if kind is not None:
            cls._kind, cls.__signature__ = kind, inspect.signature(kind)  # type: ignore[attr-defined]
            documented(kind, TORCH)(cls)

    def __init__(self, omega: Any, *parameters: Any, **options: Any) -> None:
        if not isinstance(omega, Tensor):
            super().__init__(self._kind(omega, *parameters, **options))
            return
        kind = self._kind.__name__
        check(kind, "omega", omega)
        super().__init__(described(kind, *parameters, shape=tuple(omega.shape), **options), omega)

    @classmethod
    def sample(
        cls, dim: int, features: int, *, rng: Any = None, orthogonal: bool = True,
        norms: str = "chi", **options: Any,
    ) -> Self:  # fmt: skip
        """A map with ``omega`` (dim, features) as `draw` gives it; options as the class takes."""
        return cls(draw(dim, features, rng=rng, orthogonal=orthogonal, norms=norms), **options)


class RandomFourierFeatures(_RandomFeatures, kind=_numpy.RandomFourierFeatures):
    """`linattn.feature_maps.RandomFourierFeatures` of tensors.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import feature_maps
    >>> phi = feature_maps.RandomFourierFeatures.sample(4, 64, rng=1)
    >>> phi(torch.ones(10, 4)).shape
    torch.Size([10, 128])
    """


class PositiveRandomFeatures(_RandomFeatures, kind=_numpy.PositiveRandomFeatures):
    """`linattn.feature_maps.PositiveRandomFeatures` of tensors.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import feature_maps
    >>> phi = feature_maps.PositiveRandomFeatures.sample(4, 64, rng=1)
    >>> phi(torch.ones(10, 4)).shape
    torch.Size([10, 64])
    """


class GeneralizedRandomFeatures(_RandomFeatures, kind=_numpy.GeneralizedRandomFeatures):
    """`linattn.feature_maps.GeneralizedRandomFeatures` of tensors.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch import feature_maps
    >>> phi = feature_maps.GeneralizedRandomFeatures.sample(4, 64, rng=1)
    >>> phi(torch.ones(10, 4)).shape
    torch.Size([10, 64])
    """


def _weight(w: Any, name: str) -> Any:
    """An array of that shape."""
    check("FeedforwardKernel", name, w)
    return shape_alone(w)


class FeedforwardKernel:
    """A feedforward network without biases as a feature map, per head: f = n = d.

    A unit is ``(W,)``: ``f(x W)``; ``(W, G)``: ``f(x W) * sigmoid(x G)``; or ``(W, A, B)``:
    ``f(x W) * sigmoid((x A) B)``.  f is the identity, and softplus in the last unit.  Made of
    PyTorch's own operations, whose products are as good as any.

    Parameters
    ----------
    weights : sequence of units
        Each a sequence of tensors, W and G (heads, n, n) or (n, n), A (heads, n, r) and
        B (heads, r, n) or without heads, which broadcast with x (..., heads, tokens, n).

    Raises
    ------
    TypeError, ValueError
        As `linattn.feature_maps.FeedforwardKernel`.

    References
    ----------
    Yorsh and Kovalenko, "Linear self-attention approximation via trainable feedforward
    kernel", ICANN 2022, eq. 8-12

    Examples
    --------
    >>> import torch, linattn
    >>> from linattn.torch import feature_maps
    >>> phi = feature_maps.get(linattn.feature_maps.FeedforwardKernel.glu(8, 64, rng=0))
    >>> phi(torch.ones(8, 10, 64, dtype=torch.float64)).shape
    torch.Size([8, 10, 64])
    """

    def __init__(self, weights: Sequence[Sequence[Tensor]]) -> None:
        if not torch.compiler.is_compiling():  # whose products check shapes
            _numpy.FeedforwardKernel(
                [
                    tuple(_weight(w, f"weights[{i}][{j}]") for j, w in enumerate(unit))
                    for i, unit in enumerate(weights)
                ]
            )
        self.weights = [tuple(unit) for unit in weights]

    def __call__(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(work_dtype(dtype))  # gradients of weights are sums over batches
        for i, (w, *gates) in enumerate(self.weights):
            y = x @ w.to(x.dtype)
            if i == len(self.weights) - 1:
                y = torch.nn.functional.softplus(y)
            for gate in gates:
                x = x @ gate.to(x.dtype)
            x = y * torch.sigmoid(x) if gates else y
        return x.to(dtype)

    def orthogonality(self, weight: float) -> Tensor:
        """A penalty that keeps every W orthogonal, to be added to a loss.

        ``weight * sum over units of the mean over heads and entries of (W W^T - I)^2``.
        """
        offs = (
            w @ w.mT - torch.eye(w.shape[-1], dtype=w.dtype, device=w.device)
            for w, *_ in self.weights
        )
        return weight * torch.stack([(off**2).mean() for off in offs]).sum()


TRAINABLE[_numpy.FeedforwardKernel] = lambda phi: FeedforwardKernel(
    [[torch.from_numpy(w.copy()) for w in unit] for unit in phi.weights]
)
