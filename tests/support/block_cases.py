"""The calls that dask and MPI split into blocks: the table's cases, lengths and broadcasts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from table import ALL, COMPLEX, Case, first_of

import linattn
from linattn.operators.registry import RECURRENCES

B, H, N, D, M = 2, 3, 20, 4, 5
LENGTHS = np.array([[3, 20, 0], [9, 14, 8]])


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


class Call(NamedTuple):
    """A call; its operands have all leading axes and N tokens unless they broadcast."""

    name: str
    operands: dict[str, np.ndarray]
    options: dict[str, Any]
    grad: np.ndarray
    state: Any = None  #: one of the shape of its states, if it has any

    def __str__(self) -> str:
        shapes = [f"{x}{y.shape}" for x, y in self.operands.items()]
        return "-".join([self.name, *self.options, *shapes])

    @property
    def for_ranks(self) -> bool:
        """Whether ranks take it: over all keys, with as many queries and no broadcasts."""
        leads = {x.shape[:2] for x in self.operands.values()}
        cross = RECURRENCES[self.name].cross
        return not cross or (leads == {(B, H)} and self.grad.shape[2] == N)

    def run(self, module, of=lambda x: x, **more) -> Any:
        """The results; ``of`` is applied to operands, and to options that are arrays."""
        return self._call(module, self.name, self.operands, of, more)

    def gradients(self, module, of=lambda x: x, **more) -> Any:
        operands = self.operands | {"grad_out": self.grad}
        return self._call(module, f"{self.name}_backward", operands, of, more)

    def _call(self, module, name, operands, of, more) -> Any:
        options = {x: of(y) if np.ndim(y) > 2 else y for x, y in self.options.items()}
        given = {x: of(y) for x, y in operands.items()}
        return getattr(module, name)(**given, **options, **more)


def of(case: Case, **more: Any) -> Call:
    """A call of the table."""
    operands = case.operands((B, H), N, d=D, m=M, s=N)
    grad = operands.pop("grad_out")
    state = case.state((B, H), d=D, m=M) if case.held else None
    return Call(case.name, operands, case.options | more, grad, state)


_CUT = [
    x
    for x in ALL + COMPLEX
    if x.row is not None
    and x.row.transition is not None
    and x.letters.get("beta") != "nm"
    and all("n" not in y or y.startswith(("n", "s")) for y in x.letters.values())
]
_FIRST = {x.name: of(x) for x in first_of(_CUT)}
CAUSAL, NONCAUSAL, MLSTM, WKV = (_FIRST[x] for x in ("causal", "noncausal", "mlstm", "wkv"))
Q, K, V = CAUSAL.operands.values()
_NAMED = _FIRST["gated_delta"].operands
G, BETA, C = _NAMED["g"], _NAMED["beta"], CAUSAL.grad


def broadcast(call: Call, options=None, **operands: np.ndarray) -> Call:
    return call._replace(operands=call.operands | operands, options=options or {})


_SUMS = {"normalize": False, "scale": 0.5}
CASES = [
    *map(of, _CUT),
    broadcast(NONCAUSAL, {"key_lengths": LENGTHS, "feature_map": "dpfp"}),
    *(of(x, key_lengths=LENGTHS) for x in first_of(_CUT) if x.row.keys),
    broadcast(CAUSAL, {"normalize": False, "feature_map": "dpfp"})._replace(state=None),
    broadcast(CAUSAL, _SUMS, k=K[0])._replace(state=linattn.State(CAUSAL.state.s)),
    broadcast(CAUSAL, k=K[:, :1], v=V[:1]),
    broadcast(CAUSAL, {"scale": 0.5, "eps": 0.1}, k=K[0]),
    broadcast(NONCAUSAL, _SUMS, q=Q[..., :5, :], k=K[:1])._replace(grad=C[..., :5, :]),
    broadcast(MLSTM, {"eps": 0.1, "key_lengths": LENGTHS}, k=K[:, :1]),
    broadcast(MLSTM, i=3 * MLSTM.operands["i"], f=3 * MLSTM.operands["f"]),
    broadcast(WKV, k=3 * WKV.operands["k"]),
]
