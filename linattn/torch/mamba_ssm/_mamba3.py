"""The recurrence of Mamba-3, as one call of the scan of Mamba-2.

Of a head with log decays g, time steps d, mixtures l in [0, 1] and R keys a token (SISO: R = 1)

    theta_t = theta_{t-1} + pi d_t tanh(a_t);  q_t, k_t (R, N) are rotated by theta_t
    s_t     = e^{g_t} (s_{t-1} + (1 - l_t) d_t v_{t-1}^T k_{t-1}) + l_t d_t v_t^T k_t
    y_t     = q_t s_t^T + D v_t

Lahoti et al., Mamba-3, 2026, arXiv 2603.15569: the exponential-trapezoidal rule.  A token's key is
written twice, now and with the next token.  Both happen at once in S_t = s_t + c_t v_t^T k_t:

    c_t = (1 - l_{t+1}) d_{t+1}, 0 after the last token;  w_t = l_t d_t + c_t
    S_t = e^{g_t} S_{t-1} + w_t v_t^T k_t;   y_t = q_t S_t^T - c_t q_t k_t^T v_t + D v_t

The R keys of a token are R tokens of `linattn.ssd`, of which only the first decays the state.
Query i has then read the keys up to i; it lacks w_t (q_i . k_j) v_j of the others.

Sequences are laid one after another, T tokens in all: operands are (H, T, ...), states (H, r, ...).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..._states.state_arrays import State
from .._core.conversions import work_dtype
from ..operators import ssd


class Memory(NamedTuple):
    """What r sequences start from, or end with."""

    angles: Tensor  #: (r, H, S)
    s: Tensor  #: (r, H, P, N)
    k: Tensor  #: (r, R, H, N), rotated
    v: Tensor  #: (r, R, H, P)


class Rows:
    """Sequences of a row, by their bounds (r + 1,)."""

    def __init__(self, batch: int, n: int, cu_seqlens: Tensor | None) -> None:
        bounds = torch.arange(batch + 1) * n if cu_seqlens is None else cu_seqlens
        self.bounds = bounds.long()
        self.lengths = self.bounds.diff()
        self._full = self.lengths > 0

    def first(self, x: Tensor) -> Tensor:
        """The first token of each sequence of x (H, T, ...), as (r, H, ...); 0 of empty ones."""
        found = self._tokens(x, self.bounds[:-1])
        return torch.where(self._of(found), found, 0)

    def last(self, x: Tensor, start: Tensor | None = None) -> Tensor:
        """The last token of each sequence, as (r, H, ...); ``start``, or 0, of empty ones."""
        found = self._tokens(x, self.bounds[1:] - 1)
        return torch.where(self._of(found), found, 0 if start is None else start)

    def following(self, x: Tensor) -> Tensor:
        """The token after each one of x (H, T), 0 after the last one of a sequence."""
        n = x.shape[1]
        ends = torch.where(self._full, self.bounds[1:] - 1, n)
        return F.pad(x[:, 1:], (0, 2)).index_fill(1, ends, 0)[:, :n]

    @staticmethod
    def _tokens(x: Tensor, places: Tensor) -> Tensor:
        """The tokens of x (H, T, ...) nearest to places (r,), as (r, H, ...); 0 if T is 0."""
        if not x.shape[1]:
            x = x.new_zeros(x.shape[0], 1, *x.shape[2:])
        return x[:, places.clamp(0, x.shape[1] - 1)].transpose(0, 1)

    def _of(self, like: Tensor) -> Tensor:
        return self._full.view(-1, *(1 for _ in like.shape[1:]))


def whole(
    Q: Tensor, K: Tensor, V: Tensor, ADT: Tensor, DT: Tensor, Trap: Tensor, Q_bias: Tensor,
    K_bias: Tensor, Angles: Tensor, D: Tensor | None, start: Memory | None, rows: Rows,
    pairwise: bool,
) -> tuple[Tensor, Memory]:  # fmt: skip
    """The recurrence from the inputs of mamba_ssm's functions on.

    Q, K (B, T, R, G, N), V (B, T, R, H, P), biases (H, R, N), Angles (B, T, H, S), the others
    (B, H, T).  The result is y (B, T, R, H, P) and what follows, in the dtype of computations.
    """
    work, shape = work_dtype(V.dtype), V.shape[:2]
    if not pairwise:
        Q, K, Q_bias, K_bias = (to_pairs(x) for x in (Q, K, Q_bias, K_bias))
    if start is not None:
        angles, s, k, v = (x.to(work) for x in start)
        start = Memory(angles, s, k, v) if pairwise else Memory(angles, to_pairs(s), to_pairs(k), v)
    g, dt, trap = (x.to(work).transpose(0, 1).flatten(1) for x in (ADT, DT, Trap))
    angles = accumulated(Angles.flatten(0, 1), dt, start, rows)
    turn = torch.complex(angles.cos(), angles.sin()).unsqueeze(2)
    q, k = (
        rotated(biased(x.flatten(0, 1).to(work), bias), turn)
        for x, bias in ((Q, Q_bias), (K, K_bias))
    )
    v = V.flatten(0, 1).to(work).movedim(2, 0)
    y, s = scan(q, k, v, g, dt, trap.sigmoid(), D, start, rows)
    k0, v0 = (None, None) if start is None else (x.transpose(1, 2) for x in (start.k, start.v))
    k, v = (rows.last(x, x0).transpose(1, 2) for x, x0 in ((k, k0), (v, v0)))
    if not pairwise:
        s, k = to_halves(s), to_halves(k)
    y = y.movedim(0, 2).unflatten(0, shape)
    return y, Memory(rows.last(angles, None if start is None else start.angles), s, k, v)


def scan(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, dt: Tensor, mix: Tensor, D: Tensor | None,
    start: Memory | None, rows: Rows,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The recurrence of rotated q, k (H, T, R, N), v (H, T, R, P) and g, dt, mix (H, T).

    The result is y (H, T, R, P), and s (r, H, P, N) after each sequence.
    """
    rank = k.shape[2]
    late = dt - mix * dt  # what the token before is written with
    c = rows.following(late)
    w = mix * dt + c
    initial = None
    if start is not None:
        v0 = start.v * rows.first(late)[:, None, :, None]
        s0 = start.s + torch.einsum("rjhp,rjhn->rhpn", v0, start.k)
        initial = State(s0.mT.transpose(0, 1))
    y, after = ssd(
        q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2),
        F.pad(g[..., None], (0, rank - 1)).flatten(1), w.repeat_interleave(rank, -1),
        cu_seqlens=rows.bounds * rank, initial_state=initial, return_state=True,
    )  # fmt: skip
    lacks = torch.ones(rank, rank, dtype=y.dtype).triu(1) * w[..., None, None]
    scores = torch.einsum("htin,htjn->htij", q, k) * (lacks - c[..., None, None])
    if D is not None:
        scores = scores + torch.eye(rank, dtype=y.dtype) * D.to(y.dtype)[:, None, None, None]
    own = scores[..., :1] * v[:, :, :1]
    for j in range(1, rank):
        own.addcmul_(scores[..., j : j + 1], v[:, :, j : j + 1])
    return own.add_(y.unflatten(1, (-1, rank))), after.s.transpose(0, 1).mT


# --- angles ---------------------------------------------------------------------------------------


def accumulated(rates: Tensor, dt: Tensor, start: Memory | None, rows: Rows) -> Tensor:
    """The angles theta (H, T, S), at least 0 and less than 2 pi, of rates (T, H, S) and dt (H, T).

    Summed in turns and in float64, as they grow with the number of tokens.
    """
    if not rates.stride(1):  # expanded over heads
        rates = rates[:, :1]
    steps = rates.permute(1, 2, 0).to(dt.dtype).contiguous().tanh() * (dt / 2).unsqueeze(1)
    turns = steps.cumsum(-1, dtype=torch.float64).mT
    if len(rows.lengths) > 1 or start is not None:
        before = rows.first(turns) - rows.first(steps.mT)
        if start is not None:
            before = before - start.angles / (2 * math.pi)
        before = before.transpose(0, 1)
        turns = turns - before.repeat_interleave(rows.lengths, 1, output_size=turns.shape[1])
    return (turns - turns.floor()).to(dt.dtype).contiguous() * (2 * math.pi)


def next_angles(angles: Tensor, rates: Tensor, dt: Tensor) -> Tensor:
    """The angles after one more token: (B, H, S), with dt (B, H)."""
    turns = angles / (2 * math.pi) + rates.tanh() * (dt / 2).unsqueeze(-1)
    return (turns - turns.floor()) * (2 * math.pi)


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """x (..., N) with its first S pairs of neighbours rotated by turn (..., S), in place."""
    pairs = x.unflatten(-1, (-1, 2))[..., : turn.shape[-1], :]
    torch.view_as_complex(pairs).mul_(turn)
    return x


def biased(x: Tensor, bias: Tensor) -> Tensor:
    """x (T, R, G, N) of groups of heads as (H, T, R, N), plus bias (H, R, N)."""
    groups = x.shape[2]
    by_group = bias.to(x.dtype).unflatten(0, (groups, -1))
    return (x.movedim(2, 0).unsqueeze(1) + by_group.unsqueeze(2)).flatten(0, 1)


def to_pairs(x: Tensor) -> Tensor:
    """Channels i and i + N / 2 of x (..., N) as neighbours."""
    return x.unflatten(-1, (2, -1)).mT.flatten(-2)


def to_halves(x: Tensor) -> Tensor:
    """The inverse of `to_pairs`."""
    return x.unflatten(-1, (-1, 2)).mT.flatten(-2)


# --- one token, and the gate ----------------------------------------------------------------------


def token(
    s: Tensor, k0: Tensor, v0: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, dt: Tensor,
    mix: Tensor, D: Tensor, in_place: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """A token (B, R, H, ...) after s (B, H, P, N) and a token k0, v0; g, dt, mix are (B, H).

    The result is y (B, R, H, P), and the state, which is s itself if it is ``in_place``.
    """
    decay = g.exp()
    now, late = (x[:, None, :, None] for x in (mix * dt, (1 - mix) * dt * decay))
    values = torch.cat([v0 * late, v * now], 1).permute(0, 2, 3, 1).flatten(0, 1)
    keys, queries = (x.transpose(1, 2).flatten(0, 1) for x in (torch.cat([k0, k], 1), q))
    decay = decay[..., None, None]
    decayed = (s.mul_(decay) if in_place else s * decay).flatten(0, 1)
    after = (decayed.baddbmm_ if in_place else decayed.baddbmm)(values, keys)
    y = torch.bmm(queries, after.mT).unflatten(0, g.shape).transpose(1, 2)
    return y + D[:, None] * v, s if in_place else after.unflatten(0, g.shape)


def gate(
    y: Tensor, z: Tensor | None, z_weight: Tensor | None = None, out_weight: Tensor | None = None
) -> Tensor:
    """y (..., R, H, P) times silu(z_weight z), and its sum over R with out_weight (R, H, P)."""
    if z is not None:
        gates = z.to(y.dtype).unsqueeze(-3)
        y = y * F.silu(gates if z_weight is None else gates * z_weight.to(y.dtype))
    return y if out_weight is None else (y * out_weight.to(y.dtype)).sum(-3)
