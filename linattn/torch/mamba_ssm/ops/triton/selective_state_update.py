"""One token of the scans of Mamba and Mamba-2."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ....._core.checks import wrong_shape
from ....._states.state_arrays import State
from ...._core.conversions import promotion, work_dtype, writable
from ....fla._layout import check_shape, check_tensor
from ....operators import selective_scan_step, ssd_step
from ..._time_steps import time_steps

__all__ = ["selective_state_update"]


def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: Tensor | None = None,
) -> Tensor:
    """One token of the selective scan, which updates the state in place.

    Parameters
    ----------
    state : Tensor, (batch, dim, dstate) or (batch, nheads, dim, dstate)
        Updated in place.
    x, dt : Tensor, (batch, dim) or (batch, nheads, dim)
        The token and its time steps.
    A : Tensor, (dim, dstate) or (nheads, dim, dstate)
        The rates.
    B, C : Tensor, (batch, dstate) or (batch, ngroups, dstate)
        ngroups is a divisor of nheads.
    D : Tensor, (dim,) or (nheads, dim), optional
        Multiplies x.
    z : Tensor, of the shape of x, optional
        The gate.
    dt_bias : Tensor, (dim,) or (nheads, dim), optional
        Added to dt.
    dt_softplus : bool
        Take softplus of dt.
    state_batch_indices : Tensor of int32, (batch,), optional
        The rows of state, which may have any number, that belong to those of x.  The output of
        rows with a negative index, which are padding, is 0.

    Returns
    -------
    out : Tensor
        Of the shape and dtype of x.

    Raises
    ------
    TypeError
        If an operand is not a tensor, or not on the CPU.
    ValueError
        If shapes do not match.

    Notes
    -----
    A, dt and dt_bias that are expanded over a head (strides of 0, as in Mamba-2) take one
    exponential per head.  Without gradients a float32 state is not copied; otherwise gradients flow
    through it.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.triton.selective_state_update import (
    ...     selective_state_update,
    ... )
    >>> state, one = torch.full((1, 1, 1), 8.0), torch.ones(1, 1)
    >>> selective_state_update(state, one, one, torch.tensor([[0.5]]).log(), one, one), state
    (tensor([[5.]]), tensor([[[5.]]]))
    """
    name = "selective_state_update"
    check_tensor(name, "state", state)
    if state.ndim not in (3, 4):
        raise wrong_shape(
            name, "state", state, "(batch, dim, dstate) or (batch, nheads, dim, dstate)"
        )
    rows = None
    if state_batch_indices is not None:
        check_tensor(name, "x", x)
        check_shape(name, "state_batch_indices", state_batch_indices, x.shape[:1], "(batch,)")
        rows = state_batch_indices.long()
    s = state if rows is None else state[rows.clamp(min=0)]
    heads = s.unsqueeze(1) if s.ndim == 3 else s
    given = _operands(name, heads, x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias)
    o = update(heads, given, dt_softplus).view(x.shape)
    if rows is None:
        return o
    real = rows >= 0
    state[rows[real]] = s[real]
    return o.masked_fill(~real.view(-1, *(1 for _ in x.shape[1:])), 0)


def selective_state_update_ref(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
) -> Tensor:
    """`selective_state_update` in plain PyTorch, for tests."""
    heads = state.unsqueeze(1) if state.ndim == 3 else state
    name = "selective_state_update_ref"
    given = _operands(name, heads, x=x, dt=dt, A=A, B=B, C=C, D=D, z=z, dt_bias=dt_bias)
    work = work_dtype(x.dtype)
    given = {name: None if y is None else y.to(work) for name, y in given.items()}
    repeats = heads.shape[1] // given["B"].shape[1]
    B, C = (given[name].repeat_interleave(repeats, 1)[:, :, None] for name in ("B", "C"))
    dt = time_steps(given["dt"], given["dt_bias"], dt_softplus, work)[..., None]
    s = heads.clone() * torch.exp(dt * given["A"]) + dt * B * given["x"][..., None]
    heads.copy_(s)
    o = (s * C).sum(-1)
    o = o if D is None else o + given["D"] * given["x"]
    o = o if z is None else o * F.silu(given["z"])
    return o.to(x.dtype).view(x.shape)


#: The axes of operands: batch, heads, dim, dstate.  Those of Mamba lack heads.
_AXES = {
    "x": "bhp", "dt": "bhp", "A": "hpn", "B": "bhn", "C": "bhn", "D": "hp", "z": "bhp",
    "dt_bias": "hp",
}  # fmt: skip


def _operands(name: str, state: Tensor, **given: Any) -> dict[str, Any]:
    """The operands with an axis of heads, whose shapes fit the state's."""
    sizes = dict(zip("bhpn", state.shape, strict=True))
    for argument, x in given.items():
        if x is None and argument in ("D", "z", "dt_bias"):
            continue
        check_tensor(name, argument, x)
        axes = _AXES[argument]
        x = x.unsqueeze(axes.index("h")) if x.ndim == len(axes) - 1 else x
        if argument in ("B", "C"):
            _check_groups(name, argument, x, state)
        else:
            shape = tuple(sizes[axis] for axis in axes)
            check_shape(name, argument, x, shape, "with heads, of which Mamba has 1")
        given[argument] = x
    return given


def _check_groups(name: str, argument: str, x: Tensor, state: Tensor) -> None:
    batch, heads, _, dstate = state.shape
    groups = x.shape[1] if x.ndim == 3 else 0
    if x.shape != (batch, groups, dstate) or not groups or heads % groups:
        raise ValueError(
            f"{name}: {argument} has shape {tuple(x.shape)}; expected ({batch}, ngroups, {dstate}),"
            f" ngroups a divisor of {heads}, the number of heads"
        )


def update(state: Tensor, given: dict[str, Any], softplus: bool) -> Tensor:
    """`selective_state_update` of operands by name, without checks of shapes.

    Either all or none have an axis of heads.
    """
    x, groups = given["x"], given["B"].shape[1]
    operands = [y for y in given.values() if y is not None]
    dtype = work_dtype(promotion([y.dtype for y in operands]))
    in_place = state.dtype is dtype and writable(state, *operands)
    s = state if in_place else state.clone()  # gradients need the state from before
    grouped = x.ndim == 3 and 1 < groups < x.shape[1]  # otherwise B is broadcast
    if grouped:  # heads as groups and heads of a group; B and C have one a group
        s = s.unflatten(1, (groups, -1))
        given = {
            name: None if y is None else y.unflatten(_AXES[name].index("h"), (groups, -1))
            for name, y in given.items()
        }
    step: Any = _one_rate_a_head if _is_tied(given) else selective_scan_step
    o, (s, *_) = step(**given, state=State(s), softplus=softplus, in_place=in_place)
    if not in_place:
        state.copy_(s.flatten(1, 2) if grouped else s)
    return (o.flatten(1, 2) if grouped else o).to(x.dtype)


def _one_rate_a_head(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: State, D: Tensor | None,
    dt_bias: Tensor | None, z: Tensor | None, softplus: bool, in_place: bool,
) -> tuple[Tensor, State]:  # fmt: skip
    """Mamba-2: queries C, keys B, values x, strengths dt and gates dt A."""
    work = work_dtype(x.dtype)
    bias = None if dt_bias is None else dt_bias[..., 0]
    step = time_steps(dt[..., 0], bias, softplus, work)
    o, after = ssd_step(
        C, B, x if z is None else x.to(work), step * A[..., 0, 0], step, State(state.s.mT), D=D,
        in_place=in_place,
    )  # fmt: skip
    return o if z is None else o * F.silu(z.to(work)), State(after.s.mT)


def _is_tied(given: dict[str, Any]) -> bool:
    """Whether a head has a single rate and a single time step."""
    axes = ("dt", -1), ("A", -1), ("A", -2), ("dt_bias", -1)
    pairs = ((given[name], axis) for name, axis in axes)
    return all(x is None or x.shape[axis] == 1 or x.stride(axis) == 0 for x, axis in pairs)
