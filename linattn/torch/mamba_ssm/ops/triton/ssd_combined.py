"""The scan of Mamba-2, and its block from the first projection on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ....._core.checks import wrong_shape
from ...._core.conversions import work_dtype
from ...._core.seq_idx import Packing, at_first, numbered, packing
from ....causal_conv1d import causal_conv1d_fn
from ....fla._layout import check_axes, check_given, check_shape, check_tensor, run
from ....operators import ssd
from ..._time_steps import time_steps
from .layernorm_gated import rmsnorm_fn

__all__ = ["mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined"]

NO_LIMIT = (0.0, float("inf"))


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = NO_LIMIT,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    state_dtype: torch.dtype | None = None,
    *,
    cu_seq_lens_q: Tensor | None = None,
) -> Any:
    """The scan of Mamba-2: one rate and one time step per head.

    ``h_i = exp(dt_i A) h_{i-1} + dt_i x_i B_i^T``, ``y_i = h_i C_i + D x_i``, times
    ``silu(z_i)``.

    Parameters
    ----------
    x : Tensor, (batch, seqlen, nheads, headdim)
        Inputs.
    dt : Tensor, (batch, seqlen, nheads)
        Time steps.
    A : Tensor, (nheads,)
        The rates.
    B, C : Tensor, (batch, seqlen, ngroups, dstate)
        ngroups is a divisor of nheads.
    chunk_size : int
        Tunes GPU kernels; ignored here.
    D : Tensor, (nheads,) or (nheads, headdim), optional
        Multiplies x.
    z : Tensor, of the shape of x, optional
        The gate.
    dt_bias : Tensor, (nheads,), optional
        Added to dt.
    initial_states : Tensor, (batch, nheads, headdim, dstate), optional
        The states before the first token.  With ``seq_idx`` they belong to the first sequence of
        each row, whose number must be 0.
    seq_idx : Tensor of int32, (batch, seqlen), optional
        The sequence of each token, whose tokens follow one another.
    cu_seqlens : Tensor of int, (sequences + 1,), optional
        Bounds of the sequences of the only row, for ``return_varlen_states``.  They do not
        separate sequences: several need ``seq_idx`` as well.  Tokens after the last bound are
        padding, whose number in ``seq_idx`` is another than that of the last sequence.
    dt_softplus : bool
        Take softplus of dt + dt_bias.
    dt_limit : (float, float)
        The time steps are at least and at most these.
    return_final_states : bool
        Also return the states after the last token of each row.
    return_varlen_states : bool
        Also return the states after the last token of each sequence in cu_seqlens.
    state_dtype : torch.dtype, optional
        The dtype of varlen_states.  GPU kernels also store states between chunks in it, which are
        not rounded here.
    cu_seq_lens_q : Tensor of int, (sequences + 1,), optional
        In place of ``seq_idx``, the bounds of the sequences of a single row, as Transformers'
        models hand them on.

    Returns
    -------
    out : Tensor, (batch, seqlen, nheads, headdim)
        Of the dtype of x.
    final_states : Tensor, (batch, nheads, headdim, dstate)
        Only with ``return_final_states``; float32.
    varlen_states : Tensor, (sequences, nheads, headdim, dstate)
        Only with ``return_varlen_states``; of ``state_dtype``, by default the dtype of C.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes or options do not match.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
    >>> x, one = torch.tensor([[[[3.0]], [[0.0]]]]), torch.ones(1, 2, 1, 1)
    >>> y = mamba_chunk_scan_combined(x, one[..., 0], torch.tensor([0.5]).log(), one, one, 256)
    >>> y.flatten()
    tensor([3.0000, 1.5000])
    """
    name = "mamba_chunk_scan_combined"
    _check(name, x, dt, A, B, C, D, z, dt_bias, initial_states)
    if seq_idx is None and cu_seq_lens_q is not None:
        seq_idx = numbered(name, cu_seq_lens_q, *x.shape[:2])
    packed = _sequences(name, x, seq_idx, initial_states, cu_seqlens, return_varlen_states)
    work = work_dtype(x.dtype)
    inputs = x if z is None else x.to(work)  # so that a gated output is rounded once
    o, end = scan(
        name, inputs, dt, A, B, C, D, dt_bias, dt_softplus, dt_limit, packed, initial_states
    )
    o = (o if z is None else o * F.silu(z.to(work))).to(x.dtype).contiguous()
    results = [o]
    if return_final_states:
        results.append(end if packed is None else end[packed.last])
    if return_varlen_states:
        kind = C.dtype if state_dtype is None else state_dtype
        results.append(end[: len(cu_seqlens) - 1].to(kind))  # type: ignore[arg-type]
    return results[0] if len(results) == 1 else tuple(results)


def scan(
    name: str, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None,
    dt_bias: Tensor | None, softplus: bool, limit: tuple[float, float], packed: Packing | None,
    initial_states: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The scan without a gate, and the states after each sequence, float32 if x has 16 bits."""
    work = work_dtype(x.dtype)
    dt = time_steps(dt, dt_bias, softplus, work).clamp(*limit)
    tokens = [C, B, x, dt * A.to(work), dt]
    if packed is not None:  # in a single row
        tokens = [y.flatten(0, 1)[None] for y in tokens]
        if initial_states is not None:
            initial_states = at_first(initial_states, packed)
    q, k, v, g, strength = tokens
    given = {
        "q": q, "k": k, "v": v, "dtype": x.dtype, "scale": 1.0, "state_v_first": True,
        "output_final_state": True,
        "initial_state": None if initial_states is None else initial_states.to(work),
        "cu_seqlens": None if packed is None else packed.bounds,
    }  # fmt: skip
    skip = None if D is None else _of_heads(D, x, B)
    o, end = run(name, ssd, given, {"g": g, "strength": strength}, D=skip)
    return o.view(x.shape), end


def _of_heads(D: Tensor, x: Tensor, B: Tensor) -> Tensor:
    """D as (nheads, headdim) or, if groups share B and C, (ngroups, heads, headdim)."""
    heads, groups = x.shape[2], B.shape[2]
    D = (D[:, None] if D.ndim == 1 else D).expand(x.shape[2:])
    return D if heads == groups else D.unflatten(0, (groups, -1))


def _check(
    name: str, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any, z: Any, dt_bias: Any, initial: Any
) -> None:
    check_axes(name, "x", x, 4, "(batch, seqlen, nheads, headdim)")
    batch, n, heads, headdim = x.shape
    check_shape(name, "dt", dt, (batch, n, heads), "(batch, seqlen, nheads)")
    check_shape(name, "A", A, (heads,), "(nheads,)")
    check_tensor(name, "B", B)
    if B.ndim != 4 or B.shape[:2] != (batch, n) or not B.shape[2] or heads % B.shape[2]:
        raise ValueError(
            f"{name}: B has shape {tuple(B.shape)}; expected ({batch}, {n}, ngroups, dstate), "
            f"ngroups a divisor of {heads}, the number of heads"
        )
    check_shape(name, "C", C, B.shape, "the shape of B")
    check_given(name, x.shape, "the shape of x", z=z)
    check_given(name, (heads,), "(nheads,)", dt_bias=dt_bias)
    if D is not None and not (isinstance(D, Tensor) and D.shape == (heads, headdim)):
        check_shape(name, "D", D, (heads,), "(nheads,) or (nheads, headdim)")
    core = batch, heads, headdim, B.shape[3]
    check_given(name, core, "(batch, nheads, headdim, dstate)", initial_states=initial)


def _sequences(
    name: str, x: Tensor, seq_idx: Any, initial_states: Tensor | None, cu_seqlens: Any,
    varlen: bool,
) -> Packing | None:  # fmt: skip
    """The sequences in the rows; those of cu_seqlens where their states are asked for."""
    packed = None if seq_idx is None else packing(name, seq_idx, *x.shape[:2])
    if packed is not None and initial_states is not None and seq_idx[:, 0].any():
        raise ValueError(
            f"{name}: seq_idx begins with {seq_idx[:, 0].tolist()}; expected 0 in each row, as "
            "initial_states are given, which belong to sequence 0"
        )
    if seq_idx is None and cu_seqlens is not None and len(cu_seqlens) > 2:
        raise ValueError(
            f"{name}: cu_seqlens is {cu_seqlens.tolist()} and seq_idx is None; expected seq_idx, "
            "which separates sequences"
        )
    if not varlen:
        return packed
    if cu_seqlens is None or x.shape[0] != 1:
        raise ValueError(
            f"{name}: return_varlen_states is True, with {x.shape[0]} rows; expected cu_seqlens "
            "and one row"
        )
    bounds = cu_seqlens.long()
    known = bounds.new_tensor([0, x.shape[1]]) if packed is None else packed.bounds
    is_padding = known > bounds[-1]
    if not torch.equal(bounds.unique(), known[~is_padding]) or (packed is None and any(is_padding)):
        raise ValueError(
            f"{name}: cu_seqlens is {cu_seqlens.tolist()}; expected the bounds of the sequences in "
            f"seq_idx, {known.tolist()}, or the first of them, before padding"
        )
    bounds = torch.cat([bounds, known[is_padding]])
    full = bounds.diff().nonzero()[:, 0]  # seq_idx does not number empty sequences
    return Packing(bounds, full[:1], full[-1:])


def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = NO_LIMIT,
    return_final_states: bool = False,
    activation: str | None = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
    state_dtype: torch.dtype | None = None,
    *,
    cu_seq_lens_q: Tensor | None = None,
) -> Any:
    """The block of Mamba-2 after its first projection.

    Convolution, scan, gate or gated norm, and the last projection.

    Parameters
    ----------
    zxbcdt : Tensor, (batch, seqlen, 2 d_mlp + 2 dim + 2 ngroups dstate + nheads)
        The two halves of a gated MLP, if there is one, z, x, B, C and dt; dim is nheads headdim.
    conv1d_weight : Tensor, (dim + 2 ngroups dstate, width)
        The filters of x, B and C.
    conv1d_bias : Tensor, (dim + 2 ngroups dstate,), optional
        Their bias.
    dt_bias, A : Tensor, (nheads,)
        The time steps are softplus(dt + dt_bias); the rates.
    D : Tensor, (nheads,) or (nheads, headdim)
        Multiplies x.
    chunk_size : int
        Tunes GPU kernels; ignored here.
    initial_states, seq_idx, dt_limit, return_final_states
        As in `mamba_chunk_scan_combined`; the convolution keeps sequences apart as well.
    activation : {'silu', 'swish', None}
        Of the convolution.
    rmsnorm_weight : Tensor, (dim,), optional
        The weight of the norm, over each group.  Without it the gate follows the scan.
    rmsnorm_eps : float
        The eps of the norm.
    outproj_weight : Tensor, (out, d_mlp + dim), optional
        The last projection.
    outproj_bias : Tensor, (out,), optional
        Its bias.
    headdim : int, optional
        Required if D has one axis.
    ngroups : int
        The groups of B and C.
    norm_before_gate : bool
        ``norm(y) silu(z)`` if True, ``norm(y silu(z))`` if False.
    state_dtype : torch.dtype, optional
        Of states between chunks in GPU kernels; ignored here.
    cu_seq_lens_q : Tensor of int, (sequences + 1,), optional
        As in `mamba_chunk_scan_combined`.

    Returns
    -------
    out : Tensor, (batch, seqlen, d_mlp + dim) or (batch, seqlen, out)
    final_states : Tensor, (batch, nheads, headdim, dstate)
        Only with ``return_final_states``.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes or options do not match.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.ssd_combined import (
    ...     mamba_split_conv1d_scan_combined,
    ... )
    >>> zxbcdt, heads = torch.ones(1, 3, 2 * 8 + 2 * 5 + 2), torch.ones(2)
    >>> mamba_split_conv1d_scan_combined(
    ...     zxbcdt, torch.ones(18, 4), None, heads, -heads, heads, 256, headdim=4
    ... ).shape
    torch.Size([1, 3, 8])
    """
    name = "mamba_split_conv1d_scan_combined"
    heads, headdim, dstate, d_mlp = _sizes(name, zxbcdt, conv1d_weight, D, headdim, ngroups)
    dim, conv = heads * headdim, conv1d_weight.shape[0]
    if seq_idx is None and cu_seq_lens_q is not None:
        seq_idx = numbered(name, cu_seq_lens_q, *zxbcdt.shape[:2])
    mlp, z, xBC, dt = zxbcdt.split([2 * d_mlp, dim, conv, heads], -1)
    xBC = causal_conv1d_fn(
        xBC.mT, conv1d_weight, conv1d_bias, seq_idx=seq_idx, activation=activation
    ).mT
    x, B, C = xBC.split([dim, ngroups * dstate, ngroups * dstate], -1)
    z = z.unflatten(-1, (heads, headdim))
    y = mamba_chunk_scan_combined(
        x.unflatten(-1, (heads, headdim)), dt, A, B.unflatten(-1, (ngroups, dstate)),
        C.unflatten(-1, (ngroups, dstate)), chunk_size, D, z if rmsnorm_weight is None else None,
        dt_bias, initial_states, seq_idx, None, True, dt_limit, return_final_states,
    )  # fmt: skip
    y, end = y if return_final_states else (y, None)
    y = y.flatten(2)
    if rmsnorm_weight is not None:
        y = rmsnorm_fn(
            y, rmsnorm_weight, None, z.flatten(2), rmsnorm_eps, dim // ngroups, norm_before_gate
        )
    if d_mlp:
        gate, up = mlp.chunk(2, -1)
        y = torch.cat([F.silu(gate) * up, y], -1)
    if outproj_weight is not None:
        y = F.linear(y, outproj_weight, outproj_bias)
    elif outproj_bias is not None:
        raise ValueError(f"{name}: outproj_bias is given without outproj_weight")
    return (y, end) if return_final_states else y


def _sizes(
    name: str, zxbcdt: Any, weight: Any, D: Any, headdim: int | None, ngroups: int
) -> tuple[int, int, int, int]:
    """nheads, headdim, dstate and the width of the MLP, which shapes tell."""
    for argument, x in (("zxbcdt", zxbcdt), ("conv1d_weight", weight), ("D", D)):
        check_tensor(name, argument, x)
    heads = D.shape[0]
    if D.ndim == 2:
        headdim = D.shape[1]
    if headdim is None:
        raise ValueError(f"{name}: headdim is None; expected a number, as D has one axis")
    dim = heads * headdim
    dstate = (weight.shape[0] - dim) // (2 * ngroups)
    if dstate < 0 or weight.shape[0] != dim + 2 * ngroups * dstate:
        raise wrong_shape(name, "conv1d_weight", weight, f"({dim} + 2 * {ngroups} dstate, width)")
    rest = zxbcdt.shape[-1] - dim - weight.shape[0] - heads
    if zxbcdt.ndim != 3 or rest < 0 or rest % 2:
        raise wrong_shape(
            name, "zxbcdt", zxbcdt, f"(batch, seqlen, 2 d_mlp + {dim + weight.shape[0] + heads})"
        )
    return heads, headdim, dstate, rest // 2
