"""What every operator takes, and random operands to call it with.

The operands of a recurrence are those of the package's registry, so a new one needs no row.
Dimensions are letters: n tokens, s keys, d the width of q and k, m that of v, f a channel's states
or the taps of its filter, r the rows of Linformer.
"""

from __future__ import annotations

import sys
from itertools import product
from types import ModuleType

import numpy as np

from linattn import reference
from linattn._call.tables import MAPS
from linattn._core.layout import ALL_KEYS, Operand
from linattn._linattn import operators
from linattn.operators.linformer import LAYOUT
from linattn.operators.registry import RECURRENCES
from linattn.reference import maps

#: Recurrences in the order of operators.def, which no import changes.
REGISTRY = {name: RECURRENCES[name] for name in operators if name in RECURRENCES}
#: Operands by operator, in the order of the call.
OPERANDS = {name: tuple(r.operands) for name, r in REGISTRY.items()} | {
    "softmax_attention": ALL_KEYS.operands,
    "linformer": LAYOUT.operands,
    "log_decay": (Operand("x", "n"), Operand("A_log", ""), Operand("dt_bias", "")),
}
#: The name of the function for one token, by recurrence with a state.
STEPS = {name: r.names["step"] for name, r in REGISTRY.items() if not r.cross}


def dims(name: str, more: str = "") -> dict[str, str]:
    """Dimensions by operand, in order.

    `more` names the operands that have channels, and those given that may be left out.
    """
    chosen = more.split()
    return {
        x.name: x.dims + (x.channels if x.name in chosen else "")
        for x in OPERANDS[name]
        if not x.optional or x.name in chosen
    }


def kinds(name: str) -> list[str]:
    """Every `more` that `dims` takes for an operator."""
    choices = [x.name for x in OPERANDS[name] if x.channels or x.optional]
    return [
        " ".join(x for x, chosen in zip(choices, flags, strict=True) if chosen)
        for flags in product((False, True), repeat=len(choices))
    ]


def twin(name: str) -> ModuleType:
    """The module that holds the NumPy twin of an operator."""
    return sys.modules[getattr(reference, name).__module__]


def shape(letters: str, sizes: dict[str, int], lead: tuple[int, ...] = ()) -> tuple[int, ...]:
    return (*lead, *(sizes[x] for x in letters))


def make(
    operands: dict[str, str],
    sizes: dict[str, int],
    rng: np.random.Generator,
    *,
    lead: tuple[int, ...] = (),
    leads: dict[str, tuple[int, ...]] | None = None,
    gates=None,
    feature_map="identity",
) -> dict[str, np.ndarray]:
    """Operands in float64.

    Keys of all kinds have norm 1 at most, that of k behind its map, and strengths are at most 1, so
    that a memory that the operator erases from does not grow.  `gates` draws gates of a shape; by
    default they are weak.  `leads` has the leading axes of operands that have others than `lead`.
    """
    arrays: dict[str, np.ndarray] = {}
    sizes = {"f": sizes.get("d", 1), "g": 4, "h": 2} | sizes
    for name, letters in operands.items():
        own = shape(letters, sizes, (leads or {}).get(name, lead))
        arrays[name] = draw(name, own, rng, arrays, gates or weak)
    if "k" in arrays and not vanishes(feature_map):
        arrays["k"] -= 0.5 * np.log(max(sizes["d"], 1)) + 2  # about exp(k), and so of norm 0.2
    return arrays


def weak(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Logarithms of decays that keep most."""
    return -0.1 * rng.exponential(size=shape)


def draw(name: str, shape, rng, arrays: dict, gates, *, log=False) -> np.ndarray:
    """An operand of this shape after others, such that a memory stays bounded.

    `log` says that the decays of a scan are logarithms.
    """
    if name in ("a", "A") and "q" not in arrays:
        decay = -np.exp(rng.standard_normal(shape))
        return decay if name == "A" or log else np.sin(decay)
    if name in ("dt", "dt_bias"):
        return 0.2 * rng.random(shape)
    if name in ("k", "erase", "a") and "q" in arrays:
        return unit(rng.standard_normal(shape))
    if name == "R":
        return rng.standard_normal(shape) / (2 * max(shape[-1], 1) ** 0.5)
    if name in ("b", "p") and {"a", "q"} & arrays.keys():
        of = -arrays["a"] if name == "b" else arrays["k"]
        return of * rng.random(shape[:-1])[..., None]
    if name in ("beta", "eta"):
        return rng.random(shape)
    if name in ("g", "mu"):
        return gates(rng, shape)
    return rng.exponential(size=shape) if name == "w" else rng.standard_normal(shape)


def given(name: str, arrays: dict) -> tuple[tuple, dict]:
    """Arrays as a call takes them: required operands by position, optional ones by name."""
    optional = [x.name for x in OPERANDS[name] if x.optional and x.name in arrays]
    return (
        tuple(x for y, x in arrays.items() if y not in optional),
        {x: arrays[x] for x in optional},
    )


def unit(x: np.ndarray) -> np.ndarray:
    """Rows of norm 1 at most."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1)


def vanishes(feature_map) -> bool:
    """Whether the map is fused and maps zeros to zeros.

    Features of the other maps are small for large negative inputs, like those of exp.
    """
    return feature_map in MAPS and not maps.get(feature_map)(np.zeros(1)).any()


def tokens(letters: str, x, at):
    """An operand at some tokens, an index or a slice; whole if it has no tokens."""
    if "n" not in letters:
        return x
    rows = len(letters) - letters.index("n") - 1
    return x[(..., at, *(slice(None),) * rows)]
