"""Feature maps of layers: modules that own the tensors of a map."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import feature_maps as _numpy
from .. import feature_maps
from .._core.map_texts import TensorMap, resolve
from ._arguments import Factory


class RandomFeatures(nn.Module, TensorMap):
    """A map of random features whose directions, ``omega (d, m)``, are a buffer."""

    omega: Tensor

    def __init__(self, phi: TensorMap, **factory: Any) -> None:
        nn.Module.__init__(self)
        self.text = phi.text
        assert phi.omega is not None
        self.register_buffer("omega", phi.omega.clone().to(**factory))

    def forward(self, x: Tensor) -> Tensor:
        return TensorMap.__call__(self, x)

    def redraw(self, generator: torch.Generator | None = None, **options: Any) -> None:
        """Draw new directions in place, with options of `linattn.feature_maps.draw`."""
        drawn = feature_maps.draw(*self.omega.shape, rng=rng(generator), **options)
        self.omega.copy_(torch.from_numpy(drawn))

    def extra_repr(self) -> str:
        return f"{self.text}, omega={tuple(self.omega.shape)}"


class FeedforwardKernel(nn.Module, feature_maps.FeedforwardKernel):
    """A feedforward kernel whose weights are parameters."""

    def __init__(self, phi: feature_maps.FeedforwardKernel, **factory: Any) -> None:
        nn.Module.__init__(self)
        self.weights = nn.ModuleList(  # type: ignore[assignment]  # units of tensors as well
            nn.ParameterList(w.detach().clone().to(**factory) for w in unit) for unit in phi.weights
        )

    def forward(self, x: Tensor) -> Tensor:
        return feature_maps.FeedforwardKernel.__call__(self, x)


def owned(layer: str, feature_map: Any, given: Factory) -> Any:
    """The map that a layer keeps for a name or a map."""
    phi = resolve(layer, feature_map)
    device = given.get("device")
    factory = {
        "device": torch.get_default_device() if device is None else device,
        "dtype": given.get("dtype") or torch.get_default_dtype(),
    }
    if isinstance(phi, nn.Module):
        return phi
    if isinstance(phi, TensorMap) and phi.omega is not None:
        return RandomFeatures(phi, **factory)
    if isinstance(phi, feature_maps.FeedforwardKernel):
        return FeedforwardKernel(phi, **factory)
    return phi


def check(layer: str, phi: Any, heads: int, kv_heads: int, d: int) -> None:
    """Raise an error for a map whose tensors do not match the layer's heads."""
    if isinstance(phi, RandomFeatures) and phi.omega.shape[0] != d:
        raise ValueError(
            f"{layer}: feature_map has omega of shape {tuple(phi.omega.shape)}; expected "
            f"({d}, features), as heads have {d} numbers"
        )
    if isinstance(phi, FeedforwardKernel):
        shape = tuple(phi.weights[0][0].shape)
        shared = (d, d)
        if shape != shared and (shape != (heads, *shared) or kv_heads != heads):
            own = f" or ({heads}, {d}, {d})" if kv_heads == heads else ", as num_kv_heads differs"
            raise ValueError(
                f"{layer}: feature_map has weights of shape {shape}; expected {shared}{own}"
            )


def features(feature_map: Any, heads: int, d: int) -> int:
    """f, the number of features of d numbers."""
    if isinstance(feature_map, str):
        return d
    if isinstance(feature_map, TensorMap):
        return feature_map.features(d)
    parameters = feature_map.parameters() if isinstance(feature_map, nn.Module) else ()
    like = next(iter(parameters), torch.empty(0))
    with torch.no_grad():
        f: int = feature_map(like.new_zeros(heads, 1, d)).shape[-1]
    return f


def rng(generator: torch.Generator | None = None) -> np.random.Generator:
    """A NumPy generator seeded by PyTorch's."""
    return np.random.default_rng(int(torch.randint(2**62, (), generator=generator, device="cpu")))


def kernel(kind: str, heads: int, d: int, depth: int, rank: int | None) -> Any:
    """A `linattn.feature_maps.FeedforwardKernel`, drawn with PyTorch's seed."""
    options = {"rank": rank} if kind == "aoglu" else {}
    draw = getattr(_numpy.FeedforwardKernel, kind)
    return draw(heads, d, depth, rng=rng(), **options)
