"""Linear attention layers: with any feature map, with random features, with learned features."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from ... import feature_maps as _numpy
from ..._states.state_arrays import State
from . import _arguments, _map_modules
from ._attention_layer import HeadAttention


class LinearAttention(HeadAttention):
    """Multi-head linear attention: ``softmax(q.k)`` becomes ``phi(q).phi(k)``, O(n).

    ``o_i = phi(q_i)^T s_i / (phi(q_i).z_i + eps)``, ``s_i = sum_j phi(k_j) v_j^T``,
    ``z_i = sum_j phi(k_j)``, sums over j <= i if causal and over all j if not, for each head.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        The number of query heads, each of embed_dim / num_heads numbers.
    causal : bool, default True
        Whether tokens attend only to themselves and earlier tokens.
    feature_map : str, map, or callable, default 'elu'
        As in `linattn.torch.causal`.  The layer owns its tensors: directions of random features
        as a buffer, weights as parameters.  Modules are trained with the layer.
    num_kv_heads : int, optional
        The number of key and value heads, a divisor of num_heads, which is the default.
    normalize : bool, default True
        Divide by the sum of the weights.
    eps : float, default 1e-6
        Added to that sum.
    scale : float, default 1.0
        Multiplies phi(q).
    bias, dropout, device, dtype
        As in `Attention`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range, a number of heads is not a multiple
        as above, or the map is unknown or for heads of another width or number.

    Notes
    -----
    Time and memory O(n), and O(1) per token for `step`.  A state is a `linattn.State`: s (batch,
    num_heads, f, d), z (batch, num_heads, f); with num_kv_heads, num_heads becomes two axes,
    (num_kv_heads, num_heads / num_kv_heads).

    References
    ----------
    Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 5-6 (not causal), 9-12, 16-20
    (step)

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import LinearAttention
    >>> layer, x = LinearAttention(64, num_heads=4), torch.ones(2, 10, 64)
    >>> layer(x).shape
    torch.Size([2, 10, 64])
    >>> y, state = layer.step(x[:, 0], layer.init_state(2))
    >>> state.s.shape
    torch.Size([2, 4, 16, 16])
    """

    _shown = ("embed_dim", "num_heads", "num_kv_heads", "causal", "normalize", "eps", "scale")

    @_arguments.keywords
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        causal: bool = True,
        feature_map: Any = "elu",
        num_kv_heads: int | None = None,
        normalize: bool = True,
        eps: float = 1e-6,
        scale: float = 1.0,
        bias: bool = True,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        super().__init__(embed_dim, num_heads, num_kv_heads, bias, dropout, **factory)
        self._operator = "causal" if causal else "noncausal"
        self.causal, self.normalize, self.eps, self.scale = causal, normalize, eps, scale
        self.feature_map = _map_modules.owned(self._name, feature_map, factory)
        _map_modules.check(
            self._name, self.feature_map, num_heads, self.num_kv_heads, self.head_dim
        )
        self._add_projections(bias, **factory)
        if self.num_kv_heads != num_heads:
            self._heads = (self.num_kv_heads, num_heads // self.num_kv_heads)
            self._kv_heads = (self.num_kv_heads, 1)
        self.reset_parameters()

    def extra_repr(self) -> str:
        shown = super().extra_repr()
        if isinstance(self.feature_map, nn.Module):  # shown among the submodules
            return shown
        return f"{shown}, feature_map={self.feature_map!r}"

    @property
    def _options(self) -> dict[str, Any]:  # type: ignore[override]
        return {
            "feature_map": self.feature_map, "normalize": self.normalize, "eps": self.eps,
            "scale": self.scale,
        }  # fmt: skip

    def _first(self, batch: int) -> State:
        f = _map_modules.features(self.feature_map, self.num_heads, self.head_dim)
        s = self._zeros(batch, *self._heads, f, self.head_dim)
        return State(s, self._zeros(*s.shape[:-1]) if self.normalize else None)


class PerformerAttention(LinearAttention):
    """Linear attention with positive random features, which approximates softmax attention.

    ``phi(x) = exp(x' omega - |x'|^2 / 2) / sqrt(m)``, ``x' = x / d^(1/4)``, so that
    ``E phi(q).phi(k) = exp(q.k / sqrt(d))``.  The directions omega (d, m) are a buffer, saved
    with the layer but not trained.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        The number of query heads, each of d = embed_dim / num_heads numbers.
    num_features : int, optional
        m, the number of directions; d log d, rounded, by default.
    hyperbolic : bool, default False
        Use two features per direction, which lowers the variance.
    orthogonal : bool, default True
        Draw orthogonal directions in blocks of d, which lowers the variance.
    causal, num_kv_heads
        As in `LinearAttention`.
    eps : float, default 1e-6
        Added to the sum of the weights, relative to its largest term.
    bias, dropout, device, dtype
        As in `Attention`.

    Raises
    ------
    TypeError, ValueError
        As in `LinearAttention`, or if num_features is not a positive integer.

    Notes
    -----
    As `LinearAttention` with f = m features, 2 m if hyperbolic.  Inputs of any size do not
    overflow, and causality is exact.  PyTorch's generator draws omega.

    References
    ----------
    Choromanski et al., "Rethinking Attention with Performers", ICLR 2021, eq. 5-7 and
    section 4 (redrawing)

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import PerformerAttention
    >>> layer = PerformerAttention(64, num_heads=4, num_features=32, causal=False)
    >>> layer.redraw(torch.Generator().manual_seed(1))
    >>> layer(torch.ones(2, 10, 64)).shape, layer.omega.shape
    (torch.Size([2, 10, 64]), torch.Size([16, 32]))
    """

    feature_map: _map_modules.RandomFeatures

    @_arguments.keywords
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_features: int | None = None,
        *,
        hyperbolic: bool = False,
        orthogonal: bool = True,
        causal: bool = True,
        num_kv_heads: int | None = None,
        eps: float = 1e-6,
        bias: bool = True,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        d = _arguments.multiple(self._name, ("embed_dim", embed_dim), ("num_heads", num_heads))
        if num_features is None:
            num_features = max(1, round(d * math.log(d)))
        phi = _numpy.PositiveRandomFeatures(np.ones((d, num_features)), hyperbolic)
        self.orthogonal = orthogonal
        super().__init__(
            embed_dim, num_heads, causal=causal, feature_map=phi, num_kv_heads=num_kv_heads,
            eps=eps, bias=bias, dropout=dropout, **factory,
        )  # fmt: skip

    @property
    def omega(self) -> Tensor:
        """The directions (d, m)."""
        return self.feature_map.omega

    def reset_parameters(self) -> None:
        """Draw new weights and directions."""
        super().reset_parameters()
        self.redraw()

    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draw new directions, as for training; earlier states are invalid after it."""
        self.feature_map.redraw(generator, orthogonal=self.orthogonal)


class FeedforwardKernelAttention(LinearAttention):
    """Linear attention whose feature map is a feedforward network, trained with the layer.

    By head, ``phi(x) = softplus(x W) * sigmoid(x G)``, with ``'aoglu'`` G = A B of low rank.  Of
    several units only the last has the softplus.

    Parameters
    ----------
    embed_dim : int
        The width of a token.
    num_heads : int
        The number of heads, each of d = embed_dim / num_heads numbers and as many features.
    kind : {'linear', 'glu', 'oglu', 'aoglu'}, default 'aoglu'
        Units without gates, with gates, or with gates of low rank; ``'oglu'`` is ``'glu'`` for
        training with `orthogonality`.
    depth : int, default 1
        The number of units.
    rank : int, optional
        Of the gates of ``'aoglu'``; d / 4 by default.
    causal, eps
        As in `LinearAttention`.
    bias, dropout, device, dtype
        As in `Attention`.

    Raises
    ------
    TypeError, ValueError
        As in `LinearAttention`, if kind is unknown, or if it has no rank and one is given.

    Notes
    -----
    As `LinearAttention`, plus 2 d^2 floating-point operations for W and G each per token and head.

    References
    ----------
    Yorsh and Kovalenko, "Linear self-attention approximation via trainable feedforward
    kernel", ICANN 2022, eq. 8-12

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.nn import FeedforwardKernelAttention
    >>> layer = FeedforwardKernelAttention(64, num_heads=4, kind="oglu")
    >>> loss = layer(torch.ones(2, 10, 64)).mean() + layer.orthogonality(1e-2)
    >>> loss.backward()
    """

    feature_map: _map_modules.FeedforwardKernel
    kinds = ("linear", "glu", "oglu", "aoglu")

    @_arguments.keywords
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        kind: str = "aoglu",
        depth: int = 1,
        rank: int | None = None,
        causal: bool = True,
        eps: float = 1e-6,
        bias: bool = True,
        dropout: float = 0.0,
        **factory: Unpack[_arguments.Factory],
    ) -> None:
        name = self._name
        if kind not in self.kinds:
            raise ValueError(f"{name}: kind is {kind!r}; expected one of {self.kinds}")
        if rank is not None and kind != "aoglu":
            raise ValueError(f"{name}: rank is {rank}; expected None, as kind is {kind!r}")
        d = _arguments.multiple(name, ("embed_dim", embed_dim), ("num_heads", num_heads))
        self._drawn = kind, num_heads, d, depth, rank
        super().__init__(
            embed_dim, num_heads, causal=causal, feature_map=_map_modules.kernel(*self._drawn),
            eps=eps, bias=bias, dropout=dropout, **factory,
        )  # fmt: skip
        self.kind, self.depth = kind, depth

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, kind={self.kind!r}, depth={self.depth}"

    def reset_parameters(self) -> None:
        """Draw new weights; those of the map are W orthogonal, gates from N(0, 2 / fan in)."""
        super().reset_parameters()
        drawn = _map_modules.kernel(*self._drawn).weights
        with torch.no_grad():
            for unit, arrays in zip(self.feature_map.weights, drawn, strict=True):
                for weight, array in zip(unit, arrays, strict=True):
                    weight.copy_(torch.from_numpy(array.copy()))

    def orthogonality(self, weight: float) -> Tensor:
        """The regulariser of ``'oglu'`` and ``'aoglu'``, to add to a loss.

        ``weight * sum over units of the mean over heads and entries of (W W^T - I)^2``.
        """
        return self.feature_map.orthogonality(weight)
