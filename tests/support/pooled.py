"""Every recurrence with a state, as one table of calls: for pools of states and states at
positions."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from recurrences import RULES, make, step_of
from states import flat

import linattn
from linattn import State
from linattn._call.recurrence import RECURRENCES
from linattn.reference import conv, rwkv, xlstm


class Case(NamedTuple):
    """A recurrence; letters are the axes of its operands: n tokens, and widths."""

    name: str
    step: str
    letters: dict[str, str]
    options: dict
    step_options: dict
    twin: Any
    rule: Any = None

    def __str__(self) -> str:
        return str(self.rule or self.name)

    def operands(self, lead, n, *, dtype="float64", seed=0, d=4, m=5) -> dict[str, np.ndarray]:
        """The operands by name, and grad_out, with these leading axes."""
        if self.rule is not None:
            return make(self.rule, n, d, m, seed=seed, dtype=dtype, lead=lead)
        rng = np.random.default_rng([seed, n])
        sizes = {"n": n, "d": d, "m": m, "c": m, "w": 4}
        arrays = {}
        for name, letters in self.letters.items():
            shared = name in ("weight", "bias")  # filters of all entries
            shape = *(() if shared else lead), *map(sizes.get, letters)
            arrays[name] = 0.5 * rng.standard_normal(shape)
        arrays["grad_out"] = rng.standard_normal((*lead, n, m))
        return {name: x.astype(dtype) for name, x in arrays.items()}

    def pool(self, lead, *, dtype="float64", seed=1, **widths) -> Any:
        """States with these leading axes."""
        _, state = self.forward(self.operands(lead, 6, dtype=dtype, seed=seed, **widths))
        return state

    def forward(self, operands, module=linattn, **more) -> Any:
        given = {name: x for name, x in operands.items() if name != "grad_out"}
        with np.errstate(all="ignore"):
            return getattr(module, self.name)(
                **given, **self.options, **{"return_state": True} | more
            )

    def backward(self, operands, module=linattn, **more) -> Any:
        with np.errstate(all="ignore"):
            return getattr(module, f"{self.name}_backward")(**operands, **self.options, **more)

    def one_step(self, operands, t, state, **more) -> Any:
        """Token t."""
        now = {
            name: x.take(t, x.ndim - len(letters)) if letters[0] == "n" else x
            for name, letters in self.letters.items()
            for x in (operands[name],)
        }
        return getattr(linattn, self.step)(**now, state=state, **self.step_options, **more)

    def tokens(self, operands, begin, end) -> dict[str, np.ndarray]:
        """The operands of tokens [begin, end), counted from the last one in reverse."""
        n = operands["grad_out"].shape[-2]
        rows = slice(n - end, n - begin) if self.options.get("reverse") else slice(begin, end)
        cut = {}
        for name, x in operands.items():
            letters = self.letters.get(name, "nm")
            own = (rows, *(slice(None) for _ in letters[1:]))
            cut[name] = x[(..., *own)] if letters[0] == "n" else x
        return cut


def _cases() -> list[Case]:
    cases = []
    for rule in RULES:
        name, options = step_of(rule)
        cases.append(Case(rule.name, name, rule.letters, rule.options, options, rule.twin, rule))
    for name, letters, twin in (
        ("mlstm", {"q": "nd", "k": "nd", "v": "nm", "i": "n", "f": "n"}, xlstm),
        ("wkv", {"k": "nm", "v": "nm", "w": "m", "u": "m"}, rwkv),
        ("causal_conv1d", {"x": "nc", "weight": "cw", "bias": "c"}, conv),
    ):
        cases.append(Case(name, f"{name}_step", letters, {}, {}, twin))
    mlstm = next(x for x in cases if x.name == "mlstm")
    return [*cases, mlstm._replace(options={"normalize": False}, step_options={"normalize": False})]


#: Every kind of call.
CASES = _cases()
#: One of each recurrence.
FIRST = [next(x for x in CASES if x.name == name) for name in dict.fromkeys(c.name for c in CASES)]
assert {*RECURRENCES} - {x.name for x in FIRST} == {"noncausal"}


def apply(f, state) -> Any:
    """A state of f of each of its arrays."""
    if isinstance(state, np.ndarray):
        return f(state)
    return State(*(None if x is None else f(x) for x in state))


def rows(state, indices, axis=0) -> Any:
    """Rows of a pool."""
    return apply(lambda x: x.take(indices, axis), state)


def same(x, y) -> bool:
    """Whether all arrays of two results have the same bits."""
    pairs = zip(flat(x), flat(y), strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)
