"""The one table of cases: a row for each way to call an operator.

The operands, their axes and whether they may be left out are read from the package's registry, so
a new recurrence needs no row.  `OPTIONS` adds the options worth a row of their own.

Keys and removal keys have norm at most 1 behind their map, and strengths and decays are at most 1,
so no memory grows: two results may differ by some roundings of their largest entry (`allowed`).
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import operands as table
from bounds import roundings
from states import flat

import linattn
from linattn import State, feature_maps
from linattn._core.layout import Operand
from linattn.operators.registry import RECURRENCES
from linattn.reference import maps

#: A result may be off by this many roundings of the largest entry of the call (`bounds`).
ROUNDINGS = 32
#: Options to call an operator with, if not only its defaults.
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "causal": [
        {"feature_map": "elu", "normalize": True},
        {"feature_map": "identity", "normalize": False},
        {"feature_map": "l2norm", "normalize": False},
    ],
    "noncausal": [{"feature_map": "elu"}, {"feature_map": "identity", "normalize": False}],
    "delta": [{"feature_map": "identity"}, {"feature_map": "l2norm"}],
    "linear_scan": [{}, {"log": True}, {"reverse": True}],
    "selective_scan": [{"softplus": True}, {}],
    "causal_conv1d": [{}, {"activation": "silu"}],
    "mlstm": [{}, {"normalize": False}, {"eps": 0.25}],
    "softmax_attention": [{}, {"causal": True}],
}


def _resets(rng, shape):
    """A mix of resets, near resets, runs of -60, and gates of 0."""
    g = -0.1 * rng.exponential(size=shape)
    for value, share in ((-np.inf, 0.05), (-1e30, 0.05), (-60, 0.3), (0, 0.1), (-300, 0.05)):
        g[rng.random(shape) < share] = value
    return g


#: Logarithms of decays; growing ones are of both signs, and the memory stays within e^3 or so.
GATES = {
    "weak": table.weak,
    "strong": lambda rng, shape: -5 * rng.exponential(size=shape),
    "growing": lambda rng, shape: rng.uniform(-0.3, 0.2, shape),
    "resets": _resets,
}
#: Operands that hold one array for all leading axes.
SHARED = {"weight", "bias", "E", "F"}


@cache
def _positive(d: int) -> Any:
    return feature_maps.PositiveRandomFeatures.sample(d, 9, rng=2)


#: States that `Case.state` has computed, by all that they depend on.
_STATES: dict[tuple, Any] = {}
MOST_STATES = 100

#: Maps that are objects, of so many channels, by what options call them.
OBJECTS = {"positive": _positive, "DPFP": cache(lambda d: feature_maps.DPFP(nu=2))}


class Case(NamedTuple):
    """A call; `letters` are the axes of its operands: n tokens, s keys, d key and m value
    channels, f states of a channel or taps of a filter."""

    name: str
    letters: dict[str, str]
    options: dict[str, Any]
    complex: bool = False  # numbers

    def __str__(self) -> str:
        own = ["complex"] * self.complex
        own += [f"{x}({y})" for x, y in self.letters.items() if x not in ("q", "k", "v")]
        return "-".join([self.name, *own, *(f"{x}={y}" for x, y in self.options.items())])

    @property
    def row(self):
        """The recurrence, or None."""
        return RECURRENCES.get(self.name)

    @property
    def output(self) -> str:
        """The axes of the output."""
        return "nm" if self.row is None else self.row.layout.output

    def at(self, tokens) -> tuple:
        """The index of some tokens of the output."""
        return (..., tokens, *(slice(None),) * (len(self.output) - 1))

    @property
    def held(self) -> bool:
        """Whether there is a state."""
        return self.row is not None and not self.row.cross

    def having(self, **options: Any) -> Case:
        """The same with these options as well."""
        return self._replace(options=self.options | options)

    @property
    def reverse(self) -> bool:
        return bool(self.options.get("reverse"))

    @property
    def step(self) -> str:
        return self.row.names["step"]

    @property
    def step_options(self) -> dict[str, Any]:
        lacking = {*self.row.flags["forward"]} - {*self.row.flags["step"]} | {"block"}
        return {x: y for x, y in self.options.items() if x not in lacking}

    def core(self, d: int, m: int) -> tuple[int, ...]:
        """The shape of the array of a state."""
        return tuple({"d": d, "m": m, "f": d, "h": 2}[x] for x in self.row.layout.state)

    def operands(
        self, lead=(), n=7, *, d=4, m=5, s=None, dtype="float64", seed=0, gates="weak"
    ) -> dict[str, np.ndarray]:
        """The operands by name, and grad_out; more keys than queries where that is allowed."""
        rng = np.random.default_rng([seed, n, d, m])
        s = s if s is not None else n if self.options.get("causal") else n + 3
        taps = max(d, 1) if "weight" in self.letters else d  # a filter has one at least
        sizes = {"n": n, "s": s, "d": d, "m": m, "f": taps, "r": 3, "g": 4, "h": 2}
        arrays = {}
        for name, letters in self.letters.items():
            shape = *(() if name in SHARED else lead), *(sizes[x] for x in letters)
            log = self.options.get("log", False)
            arrays[name] = table.draw(name, shape, rng, arrays, GATES[gates], log=log)
        arrays["grad_out"] = rng.standard_normal((*lead, *(sizes[x] for x in self.output)))
        if self.complex:
            arrays = {name: self._turned(name, x, rng) for name, x in arrays.items()}
            dtype = np.result_type(dtype, np.complex64)
        return {name: x.astype(dtype) for name, x in arrays.items()}

    def _turned(self, name, x, rng) -> np.ndarray:
        """Complex numbers of the same magnitudes, or with the same real parts of logarithms."""
        phases = 1j * rng.uniform(-3, 3, x.shape)
        return x + phases if name == "a" and self.options.get("log") else x * np.exp(phases)

    def rows(self, operands, begin: int, end: int) -> dict[str, np.ndarray]:
        """The operands of tokens [begin, end)."""
        rows = slice(begin, end)
        return {
            x: table.tokens(self.letters.get(x, self.output), y, rows) for x, y in operands.items()
        }

    def tokens(self, operands, begin: int, end: int) -> dict[str, np.ndarray]:
        """The same in the order of computation, which in reverse begins with the last token."""
        n = operands["grad_out"].shape[-len(self.output)]
        return self.rows(operands, *((n - end, n - begin) if self.reverse else (begin, end)))

    def token(self, operands, t: int) -> dict[str, np.ndarray]:
        """The operands of token t, as the step takes them."""
        return {x: table.tokens(y, operands[x], t) for x, y in self.letters.items()}

    def state(self, lead, *, dtype="float64", seed=1, **widths) -> Any:
        """The state after some tokens, with these leading axes: a copy of one that is kept."""
        own = str(self), *self.letters.items(), *sorted(widths.items())
        key = (*own, tuple(lead), np.dtype(dtype), seed, linattn.get_isa())
        if key not in _STATES:
            if len(_STATES) == MOST_STATES:
                _STATES.clear()
            operands = self.operands(lead, 6, dtype=dtype, seed=seed, **widths)
            _STATES[key] = self.forward(operands)[1]
        return deepcopy(_STATES[key])

    def call(self, operands, module=linattn, **more) -> Any:
        """The function's result: the output, and the final state if it is requested."""
        given = {name: x for name, x in operands.items() if name != "grad_out"}
        return self._of(module, self.name, given, more)

    def forward(self, operands, module=linattn, **more) -> Any:
        """(o, state)"""
        return self.call(operands, module, **{"return_state": True} | more)

    def backward(self, operands, module=linattn, **more) -> tuple[Any, ...]:
        """Gradients in the order of the operands, then that of the initial state if given."""
        return self._of(module, f"{self.name}_backward", operands, more)

    def results(self, operands, module=linattn, **more) -> list[np.ndarray]:
        """All arrays of forward and backward, including those of states."""
        o = (self.forward if self.held else self.call)(operands, module, **_forward_only(more))
        return [*flat(list(o) if isinstance(o, tuple) else [o]),
                *flat(list(self.backward(operands, module, **more)))]  # fmt: skip

    def named(self, operands, module=linattn, **more) -> dict[str, np.ndarray]:
        """Output o, the array s of the state, and gradients dq, ds and so on, by name."""
        o, state = self.forward(operands, module, **_forward_only(more))
        grads = [getattr(x, "s", x) for x in self.backward(operands, module, **more)]
        names = [f"d{x}" for x in (*self.letters, "s")]
        return {"o": o, "s": state.s} | dict(zip(names, grads, strict=False))

    def one_step(self, operands, t, state, **more) -> Any:
        """Run the step on token t."""
        with np.errstate(all="ignore"):
            f = getattr(linattn, self.step)
            options = with_objects(self.step_options, operands)
            return f(**self.token(operands, t), state=state, **options, **more)

    def _of(self, module, name, operands, more) -> Any:
        with np.errstate(all="ignore"):
            options = with_objects(self.options, operands, module)
            return getattr(module, name)(**operands, **options, **more)


def with_objects(options: dict[str, Any], operands, module=linattn) -> dict[str, Any]:
    """The options, with the map that `OBJECTS` calls so, or its twin."""
    phi = options.get("feature_map")
    if not (isinstance(phi, str) and phi in OBJECTS):
        return options
    phi = OBJECTS[phi](operands["q"].shape[-1])
    return options | {"feature_map": phi if module is linattn else maps.twin(phi)}


def _forward_only(more: dict[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in more.items() if name != "grad_state"}


def _ways(x: Operand) -> list[str]:
    """The axes that an operand may have; "" leaves it out."""
    return [*([""] if x.optional else []), x.dims, *([x.dims + x.channels] if x.channels else [])]


def _cases() -> list[Case]:
    """Cases that use each way to give an operator's operands, and each of its options."""
    cases = []
    for name in (x for x in table.OPERANDS if x != "log_decay"):  # of numbers, not of tokens
        given = table.OPERANDS[name]
        ways, options = [*product(*map(_ways, given))], OPTIONS.get(name, [{}])
        scale = {"scale": 0.5} if name in RECURRENCES and RECURRENCES[name].scaled else {}
        for i in range(max(len(ways), len(options))):
            pairs = zip(given, ways[i % len(ways)], strict=True)
            letters = {x.name: dims for x, dims in pairs if dims or not x.optional}
            cases.append(Case(name, letters, options[i % len(options)] | scale))
    return cases


def first_of(cases) -> list[Case]:
    """One case of each operator."""
    names = dict.fromkeys(x.name for x in cases)
    return [next(x for x in cases if x.name == name) for name in names]


def covering(cases) -> list[Case]:
    """Those with an operand, axes of it or an option that no earlier case of the operator has."""
    seen, found = set(), []
    for case in cases:
        uses = {(case.name, *x) for x in (*case.letters.items(), *case.options.items())}
        found += [case] if uses - seen else []
        seen |= uses
    return found


#: Every kind of call of every operator.
ALL = _cases()
#: Those that have a state, and one of each.
CASES = [x for x in ALL if x.held]
FIRST = first_of(CASES)
#: Those that lose something to rounding, which an `ExactState` carries.
CARRIED = [x for x in FIRST if x.row.compensated]
#: Those whose states are plain sums, not relative to a log scale; and of these the ones that take
#: queries, keys and values, where the others scan channels.
RULES = [x for x in CASES if x.row.decay is None and x.row.holder is State and not x.row.one_array]
ATTENTION = [x for x in RULES if "v" in x.letters]
#: Rows whose tokens are in blocks that read one state.
BLOCKS = [
    x.having(block=3)
    for x in RULES
    if x.row.blocks and all(letters[0] == "n" for letters in x.letters.values())
]
#: The same with a part of a chunk, one, more than one, and more tokens than there are.
OTHER_BLOCKS = [x.having(block=n) for n in (7, 16, 37, 1000) for x in first_of(BLOCKS)]
#: Rows whose map is an object: one that rescales as it goes, and features of several numbers.
MAPPED = [
    x.having(feature_map=phi, **more)
    for phi, more in (("positive", {"eps": 0.0}), ("DPFP", {}))
    for x in FIRST
    if x.name == "causal" or (x.name == "delta" and phi == "DPFP")
]
#: Scans of complex numbers.
COMPLEX = [x._replace(complex=True) for x in CASES if x.name == "linear_scan"]
#: Those beside `ALL` that have a state.
MORE = MAPPED + COMPLEX
assert {*RECURRENCES} - {x.name for x in FIRST} == {"noncausal"}


def apply(f, state) -> Any:
    """Apply f to each array of a state."""
    if not isinstance(state, tuple):
        return f(state)
    return type(state)(*(None if x is None else f(x) for x in state))


def wide(x) -> Any:
    """Arrays in float64, or those of float64 in long double; those of states too."""
    if isinstance(x, dict):
        return {name: wide(y) for name, y in x.items()}
    if isinstance(x, tuple):
        return type(x)(*(None if y is None else wide(y) for y in x))
    if not isinstance(x, np.ndarray) or x.dtype.kind in "biu":
        return x
    if x.dtype.kind == "c":
        return x.astype(np.clongdouble if x.dtype == np.complex128 else np.complex128)
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def normal_like(rng, x) -> np.ndarray:
    """Normally distributed numbers of the shape and the kind of x."""
    y = rng.standard_normal(x.shape)
    return y + 1j * rng.standard_normal(x.shape) if x.dtype.kind == "c" else y


def rows(state, indices, axis=0) -> Any:
    """Rows of a pool."""
    return apply(lambda x: x.take(indices, axis), state)


def same(x, y) -> bool:
    """Whether all arrays of two results have the same bits."""
    pairs = zip(flat(x), flat(y), strict=True)
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def allowed(*results, sides=2) -> float:
    """How far results may differ if each of them is off by `ROUNDINGS`."""
    return roundings(sides * ROUNDINGS, *flat(list(results)))
