"""The scan of Mamba, and its block from the first projection on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ...._core.checks import wrong_shape
from ..._core.conversions import work_dtype
from ...causal_conv1d import causal_conv1d_fn
from ...fla._layout import check_axes, check_given, check_shape, check_tensor
from ...operators import linear_scan, selective_scan
from .._groups import channels_first, in_groups, token_major
from .._time_steps import time_steps

__all__ = ["mamba_inner_fn", "selective_scan_fn", "selective_scan_ref"]


def selective_scan_fn(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """The selective scan of Mamba, channels first.

    ``h_i = exp(delta_i A) h_{i-1} + delta_i B_i u_i``, ``y_i = C_i h_i + D u_i``, times
    ``silu(z_i)``; with a complex A, ``y_i = 2 Re(C_i h_i) + D u_i``.

    Parameters
    ----------
    u, delta : Tensor, (batch, dim, seqlen)
        Inputs and time steps.
    A : Tensor, (dim, dstate)
        The rates, real or complex.
    B, C : Tensor
        Of shape (dim, dstate), the same at all tokens and of the dtype of A;
        (batch, dstate, seqlen); or (batch, ngroups, dstate, seqlen), ngroups a divisor of dim.
        With a complex A the last axis is 2 seqlen: real and imaginary parts in turns.
    D : Tensor, (dim,), optional
        Multiplies u.
    z : Tensor, (batch, dim, seqlen), optional
        The gate.
    delta_bias : Tensor, (dim,), optional
        Added to delta.
    delta_softplus : bool
        Take softplus of delta.
    return_last_state : bool
        Also return the state after the last token.

    Returns
    -------
    out : Tensor, (batch, dim, seqlen)
        Of the dtype of u.
    last_state : Tensor, (batch, dim, dstate)
        Only with ``return_last_state``; float32, or of A's dtype if that is complex.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match.

    Notes
    -----
    All operands have gradients, also through the last state, which mamba_ssm leaves out.  A complex
    A takes memory for 6 dim dstate numbers per token; a B or C that is the same at all tokens makes
    each channel a group of its own; both are slower.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm import selective_scan_fn
    >>> u, one = torch.tensor([[[3.0, 0.0]]]), torch.ones(1, 1, 2)
    >>> selective_scan_fn(u, one, torch.tensor([[0.5]]).log(), one, one)
    tensor([[[3.0000, 1.5000]]])
    """
    name = "selective_scan_fn"
    _check(name, u, delta, A, B, C, D, z, delta_bias)
    last: Tensor | None
    if A.is_complex():
        y, last = _by_states(_states, u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    else:
        y, last = _scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)
    y = y.to(u.dtype).contiguous()
    return (y, last) if return_last_state else y


def _scan(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None,
    delta_bias: Tensor | None, softplus: bool, return_state: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(batch, dim, seqlen), and the state where it is asked for."""
    groups, (B, C) = token_major(u.shape, B, C)
    optional = {"D": D, "z": z, "dt_bias": delta_bias}
    given: dict[str, Any] = {
        name: None if x is None else _by_channel(x, groups) for name, x in optional.items()
    }
    x, dt, A = (_by_channel(x, groups) for x in (u, delta, A))
    y: Any = selective_scan(x, dt, A, B, C, **given, softplus=softplus, return_state=return_state)
    if not return_state:
        return channels_first(y), None
    y, state = y
    return channels_first(y), state.s.flatten(1, 2)


def _by_channel(x: Tensor, groups: int) -> Tensor:
    """(batch, dim, seqlen) token-major, (dim, dstate) or (dim,), with an axis of groups."""
    return in_groups(x.mT, groups) if x.ndim == 3 else x.unflatten(0, (groups, -1))


def _check(
    name: str, u: Any, delta: Any, A: Any, B: Any, C: Any, D: Any, z: Any, delta_bias: Any
) -> None:
    check_axes(name, "u", u, 3, "three axes, (batch, dim, seqlen)")
    dim = u.shape[1]
    check_tensor(name, "A", A)
    if A.ndim != 2 or A.shape[0] != dim:
        raise wrong_shape(name, "A", A, f"({dim}, dstate), (dim, dstate)")
    check_shape(name, "delta", delta, u.shape, "(batch, dim, seqlen)")
    check_given(name, u.shape, "(batch, dim, seqlen)", z=z)
    check_given(name, (dim,), "(dim,)", D=D, delta_bias=delta_bias)
    for argument, x in (("B", B), ("C", C)):
        _check_variable(name, argument, x, u.shape, A)


def _check_variable(name: str, argument: str, x: Any, shape: torch.Size, A: Tensor) -> None:
    """Raise an error unless B or C has one of the shapes that mamba_ssm takes."""
    check_tensor(name, argument, x)
    (batch, dim, n), dstate = shape, A.shape[1]
    if x.ndim == 2:
        check_shape(name, argument, x, (dim, dstate), "(dim, dstate)")
        if x.is_complex() != A.is_complex():
            raise TypeError(
                f"{name}: {argument} has dtype {x.dtype}; expected that of A, {A.dtype}"
            )
        return
    length = 2 * n if A.is_complex() else n
    groups = x.shape[1] if x.ndim == 4 else 1
    core = (dstate, length) if x.ndim == 3 else (groups, dstate, length)
    if x.shape != (batch, *core) or not groups or dim % groups:
        raise ValueError(
            f"{name}: {argument} has shape {tuple(x.shape)}; expected {(dim, dstate)}, "
            f"{(batch, dstate, length)} or ({batch}, ngroups, {dstate}, {length}), ngroups a "
            f"divisor of {dim}"
        )


def selective_scan_ref(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
) -> Any:
    """`selective_scan_fn` in plain PyTorch, one token after another.

    Parameters
    ----------
    u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state
        As in `selective_scan_fn`.

    Returns
    -------
    out, last_state : Tensor
        As in `selective_scan_fn`.

    Raises
    ------
    TypeError, ValueError
        As `selective_scan_fn`.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.selective_scan_interface import selective_scan_ref
    >>> u, one = torch.tensor([[[3.0, 0.0]]]), torch.ones(1, 1, 2)
    >>> selective_scan_ref(u, one, torch.tensor([[0.5]]).log(), one, one)
    tensor([[[3.0000, 1.5000]]])
    """
    _check("selective_scan_ref", u, delta, A, B, C, D, z, delta_bias)
    y, last = _by_states(_loop, u, delta, A, B, C, D, z, delta_bias, delta_softplus)
    y = y.to(u.dtype)
    return (y, last) if return_last_state else y


def _by_states(
    scan: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], u: Tensor, delta: Tensor, A: Tensor,
    B: Tensor, C: Tensor, D: Tensor | None, z: Tensor | None, delta_bias: Tensor | None,
    softplus: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The output (batch, dim, seqlen) and the last state, by the states after all tokens."""
    work = work_dtype(u.dtype)
    x, bias = u.to(work), None if delta_bias is None else delta_bias[:, None]
    dt = time_steps(delta, bias, softplus, work)
    B, C = (_by_token(y, u.shape, A) for y in (B, C))  # (batch or 1, dim, seqlen or 1, dstate)
    h, last = scan(torch.exp(dt[..., None] * A[:, None]), (dt * x)[..., None] * B)
    y = (h * C).sum(-1)
    y = 2 * y.real if A.is_complex() else y
    y = y if D is None else y + D[:, None] * x
    return y if z is None else y * F.silu(z.to(work)), last


def _states(decay: Tensor, written: Tensor) -> tuple[Tensor, Tensor]:
    """The states after all tokens, (..., seqlen, dstate), and after the last one."""
    h, state = linear_scan(decay, written, return_state=True)
    return h, state.s


def _loop(decay: Tensor, written: Tensor) -> tuple[Tensor, Tensor]:
    """`_states`, one token after another."""
    h, states = written.new_zeros(written.shape[:-2] + written.shape[-1:]), []
    for a, b in zip(decay.unbind(-2), written.unbind(-2), strict=True):
        h = a * h + b
        states.append(h)
    return torch.stack(states, -2) if states else torch.zeros_like(written), h


def _by_token(x: Tensor, shape: torch.Size, A: Tensor) -> Tensor:
    """B or C of any shape as (batch or 1, dim, seqlen or 1, dstate), of the dtype of A."""
    dim, n = shape[1:]
    if x.ndim == 2:
        return x[None, :, None]
    if A.is_complex():
        x = torch.view_as_complex(x.to(A.real.dtype).unflatten(-1, (n, 2)).contiguous())
    x = x if x.ndim == 4 else x[:, None]
    return x.to(A.dtype).repeat_interleave(dim // x.shape[1], 1).mT


def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:
    """The block of Mamba after its first projection: convolution, scan, gate and last projection.

    Parameters
    ----------
    xz : Tensor, (batch, 2 dim, seqlen)
        The inputs of the convolution, and the gate.
    conv1d_weight : Tensor, (dim, 1, width)
        The filters, followed by silu.
    conv1d_bias : Tensor, (dim,), optional
        Their bias.
    x_proj_weight : Tensor, (dt_rank + 2 dstate, dim)
        The projection to what the time steps are made of, to B and to C; 4 dstate if A is complex.
        The first dt_rank rows are of the time steps, those of B follow, and the last are of C;
        the rows of B or C may be left out if it is given.
    delta_proj_weight : Tensor, (dim, dt_rank)
        The projection to the time steps.
    out_proj_weight : Tensor, (out, dim)
        The last projection.
    out_proj_bias : Tensor, (out,), optional
        Its bias.
    A, B, C, D, delta_bias
        As in `selective_scan_fn`; B and C are projected if they are None.
    B_proj_bias, C_proj_bias : Tensor, (dstate,), optional
        Added to projected B and C.
    delta_softplus : bool
        As in `selective_scan_fn`.
    checkpoint_lvl : int
        Ignored: no intermediate result of the scan is ever stored.
    b_rms_weight, c_rms_weight, dt_rms_weight : Tensor, optional
        The weights of root mean square norms of B, C and the time steps.
    b_c_dt_rms_eps : float
        The eps of these norms.

    Returns
    -------
    out : Tensor, (batch, seqlen, out)

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match.

    Notes
    -----
    The weights of the three norms have gradients, which mamba_ssm leaves out.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm import mamba_inner_fn
    >>> xz, A = torch.ones(1, 4, 3), -torch.ones(2, 5)
    >>> weights = [torch.ones(x) for x in ((2, 1, 4), (2,), (11, 2), (2, 1), (6, 2))]
    >>> mamba_inner_fn(xz, *weights, None, A).shape
    torch.Size([1, 3, 6])
    """
    name = "mamba_inner_fn"
    check_tensor(name, "xz", xz)
    check_tensor(name, "A", A)
    if xz.ndim != 3 or xz.shape[1] % 2:
        raise wrong_shape(name, "xz", xz, "(batch, 2 dim, seqlen)")
    rank, dstate = delta_proj_weight.shape[1], A.shape[1] * (2 if A.is_complex() else 1)
    _check_rows(name, x_proj_weight, rank, dstate, B, C)
    x, z = xz.chunk(2, 1)
    x = causal_conv1d_fn(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu")
    parts = F.linear(x.mT, x_proj_weight)
    delta = F.linear(parts[..., :rank], delta_proj_weight)
    delta = _normed(delta, dt_rms_weight, b_c_dt_rms_eps)
    if B is None:
        b = parts[..., rank : rank + dstate]
        B = _projected(b, B_proj_bias, b_rms_weight, b_c_dt_rms_eps, A)
    if C is None:
        c = parts[..., len(x_proj_weight) - dstate :]
        C = _projected(c, C_proj_bias, c_rms_weight, b_c_dt_rms_eps, A)
    y = selective_scan_fn(x, delta.mT, A, B, C, D, z, delta_bias, delta_softplus)
    return F.linear(y.mT, out_proj_weight, out_proj_bias)


def mamba_inner_ref(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
) -> Tensor:
    """`mamba_inner_fn` without norms.

    As in mamba_ssm it calls `causal_conv1d_fn` and `selective_scan_fn`.  So does `mamba_inner_fn`,
    as linattn has no fused form of the block.
    """
    return mamba_inner_fn(
        xz, conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight,
        out_proj_bias, A, B, C, D, delta_bias, B_proj_bias, C_proj_bias, delta_softplus,
    )  # fmt: skip


def _check_rows(
    name: str, weight: Any, rank: int, dstate: int, B: Tensor | None, C: Tensor | None
) -> None:
    """Raise ValueError if the projection has not the rows of the time steps, and of B and C."""
    check_tensor(name, "x_proj_weight", weight)
    rows = rank + dstate * [B, C].count(None)
    if weight.ndim != 2 or len(weight) < rows:
        b, c = ("None" if x is None else "given" for x in (B, C))
        raise wrong_shape(
            name, "x_proj_weight", weight, f"at least {rows} rows, as B is {b} and C is {c}"
        )


def _projected(
    x: Tensor, bias: Tensor | None, weight: Tensor | None, eps: float, A: Tensor
) -> Tensor:
    """Projected B or C, (batch, seqlen, dstate), as the scan takes it."""
    x = _normed(x if bias is None else x + bias.to(x.dtype), weight, eps)
    return x.unflatten(-1, (-1, 2)).transpose(1, 2).flatten(2) if A.is_complex() else x.mT


def _normed(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    return x if weight is None else F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps)
