"""Random calls of sLSTM, and their error bounds: the twin's equations on `Rough` numbers."""

from __future__ import annotations

from importlib import import_module
from itertools import pairwise

import numpy as np
from draws import Lot, Trial
from draws_scans import row_of, sequence
from rough import Rough, bound, value

twin = import_module("linattn.reference.slstm")  # the function has its name

FAR = 1e-2  # errors of gates to which first order applies


def slstm(lot: Lot) -> Trial:
    return sequence(lot, {"slstm": ROW})


def _values(lot: Lot, name, operand: str, options, holes):
    """Gates of any size; recurrent weights whose products with outputs are small or not."""
    rng, size = lot.rng, lot.pick((0.1, 1.0, 1.0, 5.0, 50.0))
    if operand == "R":
        power = lot.pick((0.5, 1.0, 1.0))
        return lambda shape: min(size, 1) * rng.standard_normal(shape) / max(shape[-1], 1) ** power
    if operand == "x" and lot.chance(0.2):
        return lambda shape: np.where(rng.random(shape) < 0.02, -np.inf, rng.standard_normal(shape))
    return None if operand == "grad_out" else lambda shape: size * rng.standard_normal(shape)


def units(trial: Trial, expected) -> list:
    u, doubts = float(np.finfo(trial.work).eps) / 2, []
    model = _Model(trial, u, doubts)
    results = model.forward()
    if trial.name.endswith("_backward"):
        results = model.backward()
    if any(doubts) or not u * model.worst < FAR:
        return [np.full(x.shape, np.inf) for x in expected]
    return [
        np.where(np.isnan(e), np.inf, np.broadcast_to(e, x.shape))
        for e, x in zip(results, expected, strict=True)
    ]


class _Model:
    """The twin's loops, with errors."""

    def __init__(self, trial: Trial, u: float, doubts: list) -> None:
        self.trial = trial
        # Padding is not cleared: there is none.
        given = {x: y.astype(float) for x, y in zip(trial.names, trial.operands, strict=True)}
        options = trial.options
        self.is_step = trial.name.endswith("_step")
        self.cu = options.get("cu_seqlens")
        if self.is_step:
            given["x"] = given["x"][..., None, :, :, :]
        self.start = options.get("state", options.get("initial_state"))
        self.last = options.get("grad_state")
        self.given, self.operands = given, {x: given[x] for x in ("x", "R", "b")}
        grad = given.get("grad_out")
        self.x, self.R, self.b, self.fields, *more = twin._operands(
            *self.operands.values(),
            self.start,
            self.cu,
            *(() if grad is None else (grad, self.last)),
        )
        if more:
            self.grads, self.g = more
        self.n, self.worst, self.before = self.x.shape[-4], 0.0, {}
        self.rough = lambda x: Rough(x, 0.0, u, doubts)

    def tokens(self):
        edges = [0, self.n] if self.cu is None else self.cu
        return [(r, t) for r, (a, b) in enumerate(pairwise(edges)) for t in range(a, b)]

    def forward(self) -> list:
        r_count = self.fields[0].shape[-3]
        now = [[self.rough(y[..., r, :, :]) for y in self.fields] for r in range(r_count)]
        h = np.zeros((*self.fields[0].shape[:-3], self.n, *self.x.shape[-2:]))
        for r, t in self.tokens():
            self.before[t] = r, now[r]
            gates = twin._gates(self.x, self.R, self.b, now[r][0], t)
            self.worst = max(self.worst, float(np.max(gates.error, initial=0)))
            now[r] = twin._token(gates, *now[r][1:])[:4]
            h[..., t, :, :] = now[r][0].error
        wanted = self.trial.options.get("return_state", self.is_step)
        if not wanted:
            return [h]
        fields = [self.whole([bound(x[i]) for x in now], i) for i in range(4)]
        return [h[..., 0, :, :] if self.is_step else h, *fields]

    def backward(self) -> list:
        lead = self.fields[0].shape[:-3]
        dx, dR = (
            [np.zeros((*lead, *y.shape[-4:])) for _ in range(2)] for y in (self.x, self.R)
        )  # sizes and errors
        grads = [[self.rough(y[..., r, :, :]) for y in self.grads]
                 for r in range(self.fields[0].shape[-3])]  # fmt: skip
        for t in sorted(self.before, reverse=True):
            r, (h0, *cell) = self.before[t]
            gates = twin._gates(self.x, self.R, self.b, h0, t)
            dh, *rest = grads[r]
            dgates, *rest = twin._reverse(gates, cell, dh + self.g[..., t, :, :], *rest)
            term = dgates[..., None] * h0[..., None, :, None, :]
            for i, part in enumerate((value, bound)):
                dx[i][..., t, :, :, :] = abs(part(dgates))
                dR[i] += abs(part(term))
            back = (self.R.mT @ dgates[..., None])[..., 0]
            grads[r] = [back.sum(-3), *rest]
        db = [y.sum(-4) for y in dx]
        for y in (dR, db):  # in any order
            y[1] = y[1] + self.n * y[0]
        pairs = zip((dx, dR, db), self.operands.values(), strict=True)
        found = [_over_repeats(*y, operand) for y, operand in pairs]
        if self.start is None and self.last is None:
            return found
        fields = [[self.whole([part(x[i]) for x in grads], i) for part in (value, bound)]
                  for i in range(4)]  # fmt: skip
        if self.start is None:
            return [*found, *(error for _, error in fields)]
        return [*found, *(_over_repeats(*x, y) for x, y in zip(fields, self.start, strict=True))]

    def whole(self, rows: list, i: int) -> np.ndarray:
        """A field of the state, of each sequence where they are packed."""
        x = np.stack(rows, -3) if rows else self.fields[i]
        return x if self.cu is not None else x[..., 0, :, :]


def _over_repeats(x, error, operand):
    """Errors of sums over the axes along which an operand was broadcast."""
    total = error + 4 * abs(x)
    total = total.sum(tuple(range(total.ndim - operand.ndim)))
    axes = tuple(i for i, size in enumerate(operand.shape) if size == 1 != total.shape[i])
    return total.sum(axes, keepdims=True)


ROW = row_of(
    "slstm", units, positive=2, letters="nd", values=_values,
    sizes=lambda lot: {"g": 4, "h": lot.pick((1, 1, 2, 3))},
)  # fmt: skip
