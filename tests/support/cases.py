"""Cases of causal, noncausal, the delta rule and softmax attention, and their sizes.

A case is an operator, shapes and options.  `make` draws its operands, `call` runs it on the package
or on the twin, and `bounds.check` compares the two.  `table.py` has the cases of every
operator for what is promised of all; those here have tighter bounds.
"""

from itertools import product
from typing import Any, NamedTuple

import numpy as np
from operands import dims, shape, vanishes

from linattn import _linattn
from linattn._call.tables import MAPS

FORWARD = ("causal", "noncausal")
BACKWARD = ("causal_backward", "noncausal_backward")
DELTA = ("delta", "delta_backward")
SOFTMAX = ("softmax_attention", "softmax_attention_backward")
OPTIONS = {
    "causal": ("feature_map", "normalize", "eps", "scale"),
    "noncausal": ("feature_map", "normalize", "eps", "scale"),
    "delta": ("feature_map", "scale"),
    "softmax_attention": ("causal", "scale"),
}
#: Maps of either sign.  Where they are normalised, operands are such that features are positive.
SIGNED = tuple(name for name, row in _linattn.maps.items() if row["signed"])
#: Maps of one number.
ELEMENTWISE = tuple(name for name, row in _linattn.maps.items() if not row["rows"])
DTYPES = ("float32", "float64")


class Case(NamedTuple):
    """One call: q (*lead, n, d), k (*lead, s, d), v (*lead, s, m), s = n unless given.

    The delta rule's beta is (*lead, n) or, per channel, (*lead, n, m).
    """

    operator: str
    n: int
    d: int
    m: int
    s: int | None = None
    lead: tuple[int, ...] = ()
    feature_map: Any = "elu"  # a name or an object
    normalize: bool = True
    dtype: str = "float32"
    eps: float = 1e-6
    scale: float = 1.0
    channels: bool = False  # beta of the delta rule is per channel
    masked: bool = False  # softmax attention reads no later key

    @property
    def forward(self) -> str:
        """The forward operator."""
        return self.operator.removesuffix("_backward")

    @property
    def causal(self) -> bool:
        return self.forward == "causal" or self.masked

    @property
    def backward(self) -> bool:
        return self.operator.endswith("backward")

    @property
    def keys(self) -> int:
        return self.n if self.s is None else self.s

    @property
    def options(self) -> dict:
        return {name: getattr(self, name) for name in OPTIONS[self.forward]}

    @property
    def ufunc(self) -> str:
        """Name of the gufunc behind the call."""
        return f"{self.operator}_{self.feature_map}" + ("" if self.normalize else "_sum")

    @property
    def scalars(self) -> tuple[float, ...]:
        """What the gufunc takes after the arrays."""
        return (self.scale, self.eps) if self.normalize else (self.scale,)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        sizes = {"n": self.n, "s": self.keys, "d": self.d, "m": self.m}
        letters = list(dims(self.forward, "beta" * self.channels).values())
        return [shape(x, sizes, self.lead) for x in [*letters, *(["nm"] if self.backward else [])]]


def make(case: Case, seed: int = 0) -> list[np.ndarray]:
    """Operands q, k, v (and beta, and the cotangent) of a case, the same in every run."""
    rng = np.random.default_rng([seed, case.n, case.keys, case.d, case.m])
    arrays = [rng.standard_normal(shape) for shape in case.shapes]
    if case.forward == "delta":
        arrays[1] = _short(arrays[1], case.feature_map)
        arrays[3] = rng.uniform(0, 2, arrays[3].shape)
    elif case.feature_map in SIGNED and case.normalize:
        arrays[:2] = map(abs, arrays[:2])  # signed weights may sum to 0, and then nothing is exact
    return [x.astype(case.dtype) for x in arrays]


def _short(k, feature_map):
    """Keys whose features have norm 1 at most, as the delta rule needs."""
    if vanishes(feature_map):
        return k / (np.linalg.norm(k, axis=-1, keepdims=True) + 1e-30)
    return k - 0.5 * np.log(max(k.shape[-1], 1)) - 2  # about exp(k), and so of norm 0.2


def delta_case(n, d, m, lead=(), channels=False, feature_map="identity", dtype="float32") -> Case:
    """The gradient of the delta rule, whose operands but the last are the rule's own."""
    return Case(
        "delta_backward", n, d, m,
        lead=lead, channels=channels, feature_map=feature_map, dtype=dtype, scale=0.5,
    )  # fmt: skip


def call(module, case: Case, operands):
    """Run the case on `module`, the package or its twin."""
    return getattr(module, case.operator)(*operands, **case.options)


# Around every edge of a tile, a vector and a chunk.
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129)
WIDTHS = (0, 1, 3, 4, 5, 15, 16, 17, 31, 33, 64, 65, 100, 129)

VARIANTS = tuple(product(MAPS, (True, False), DTYPES))  # feature_map, normalize, dtype


def _sizes() -> list[tuple[int, int, int]]:
    """(n, d, m): every length, at a round and at a ragged width; every pair of neighbour widths."""
    w = len(WIDTHS)
    ragged = [(n, WIDTHS[(5 * i + 1) % w], WIDTHS[(3 * i + 2) % w]) for i, n in enumerate(LENGTHS)]
    widths = [(37, d, WIDTHS[(i + 1) % w]) for i, d in enumerate(WIDTHS)]
    return [*((n, 16, 32) for n in LENGTHS), *ragged, *widths]


SIZES = _sizes()
WIDE_SIZES = [  # longer chunks, and columns for several panels
    *((n, 72, 69) for n in (31, 32, 33, 64, 97)),
    *((n, 196, 200) for n in (63, 64, 65, 129)),
    *((n, 500, 500) for n in (1, 19)),
    (35, 3, 500),
    (35, 500, 3),
    (70, 65, 129),
    (70, 128, 128),
    (20, 512, 512),  # rows of 2 KiB and a multiple of it, in either dtype
    (20, 250, 505),
]

# Keys and queries of different number, for the non-causal operators: (n, s).
CROSS = [(0, 5), (5, 0), (1, 64), (64, 1), (7, 33), (33, 7), (65, 129), (130, 31)]
