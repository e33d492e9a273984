"""One token of Mamba-3, after the rotation of its query and key."""

from __future__ import annotations

from torch import Tensor

from ....._core.conversions import kept, work_dtype, writable
from ...._axes import check_letters
from ...._mamba3 import gate, token

__all__ = ["mamba3_step_fn"]


def mamba3_step_fn(
    state: Tensor,
    Bstate: Tensor,
    Xstate: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    x: Tensor,
    dt: Tensor,
    trap: Tensor,
    xproj: Tensor,
    outproj: Tensor | None = None,
    state_out: Tensor | None = None,
    out: Tensor | None = None,
    z: Tensor | None = None,
    zproj: Tensor | None = None,
    tile_D: int = 64,
    num_warps: int = 2,
) -> None:
    """One token of Mamba-3, which writes the state and ``out``.

    Parameters
    ----------
    state : Tensor, (batch, nheads, headdim_v, headdim_qk)
        Updated in place, unless state_out is given.
    Bstate : Tensor, (batch, mimo_rank, nheads, headdim_qk)
        The rotated keys of the token before.
    Xstate : Tensor, (batch, nheads, headdim_v)
        Its value.
    A : Tensor, (batch, nheads)
        The rate.
    B, C : Tensor, (batch, mimo_rank, nheads, headdim_qk)
        Rotated keys and queries.
    D : Tensor, (nheads,)
        Multiplies x.
    x : Tensor, (batch, nheads, headdim_v)
        The value.
    dt, trap : Tensor, (batch, nheads)
        The time step, and the weight of the token's own key, after its sigmoid.
    xproj : Tensor, (mimo_rank, nheads, headdim_v)
        Multiplies values.
    outproj : Tensor, (mimo_rank, nheads, headdim_v), optional
        The weights of a sum over the ranks.
    state_out : Tensor, of the shape of state, optional
        Takes the state after the token.
    out : Tensor, (batch, nheads, headdim_v)
        Takes the result; (batch, mimo_rank, nheads, headdim_v) without outproj.
    z : Tensor, (batch, nheads, headdim_v), optional
        The gate.
    zproj : Tensor, (mimo_rank, nheads, headdim_v), optional
        Multiplies z.
    tile_D, num_warps : int
        Tune GPU kernels; ignored here.

    Returns
    -------
    None
        The results are in ``out`` and the state.

    Raises
    ------
    TypeError
        If an operand is not a tensor.
    ValueError
        If shapes do not match.

    Examples
    --------
    >>> import torch
    >>> from linattn.torch.mamba_ssm.ops.cute.mamba3.mamba3_step_fn import mamba3_step_fn
    >>> state, key, x = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1)
    >>> rate, half, out = torch.zeros(1, 1), torch.full((1, 1), 0.5), torch.empty(1, 1, 1)
    >>> D, one = torch.zeros(1), torch.ones(1, 1)
    >>> mamba3_step_fn(state, key, x, rate, key, key, D, x, one, half, x, x, out=out)
    >>> out, state
    (tensor([[[1.]]]), tensor([[[[1.]]]]))
    """
    given = {
        "state": state, "Bstate": Bstate, "Xstate": Xstate, "A": A, "B": B, "C": C, "D": D, "x": x,
        "dt": dt, "trap": trap, "xproj": xproj, "outproj": outproj, "state_out": state_out,
        "out": out, "z": z, "zproj": zproj,
    }  # fmt: skip
    axes = AXES | {"out": "brhp" if outproj is None else "bhp"}
    check_letters("mamba3_step_fn", axes, given, OPTIONAL)
    work, after = work_dtype(x.dtype), state if state_out is None else state_out
    operands = [y for key, y in given.items() if key not in ("out", "state_out")]
    in_place = after is state is state.to(work) and state.is_contiguous() and writable(*operands)
    s, k0, x0 = (state, Bstate, Xstate) if in_place else kept((state, Bstate, Xstate), *operands)
    weight, step = xproj.to(work), dt.to(work)
    v0, v = (y.to(work).unsqueeze(1) * weight for y in (x0, x))
    y, s = token(
        s if in_place else s.to(work), k0.to(work), v0, C.to(work), B.to(work), v,
        A.to(work) * step, step, trap.to(work), D.to(work), in_place,
    )  # fmt: skip
    out.copy_(gate(y, z, zproj, outproj))  # type: ignore[union-attr]
    if not in_place:
        after.copy_(s)


AXES = {
    "state": "bhpn", "Bstate": "brhn", "Xstate": "bhp", "A": "bh", "B": "brhn", "C": "brhn",
    "D": "h", "x": "bhp", "dt": "bh", "trap": "bh", "xproj": "rhp", "outproj": "rhp",
    "state_out": "bhpn", "z": "bhp", "zproj": "rhp",
}  # fmt: skip
OPTIONAL = ("outproj", "state_out", "z", "zproj")
