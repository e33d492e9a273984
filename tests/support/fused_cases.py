"""Operands of the fused steps, and the comparison with their twins."""

from typing import Any, NamedTuple

import numpy as np
from bounds import close, roundings

import linattn
from linattn.reference import fused as ref


class Layer(NamedTuple):
    """The sizes of a layer; heads of keys and of values, taps of the convolution."""

    keys: int
    heads: int
    d: int
    m: int
    taps: int = 4
    by_channel: bool = False


#: Odd sizes, several heads per key head, more heads than a thread takes at a time.
LAYERS = (
    Layer(1, 1, 4, 4),
    Layer(2, 6, 5, 7),
    Layer(3, 3, 16, 33, taps=2),
    Layer(12, 24, 8, 8),
    Layer(1, 20, 3, 17, taps=1),
    Layer(2, 4, 64, 64, by_channel=True),
    Layer(3, 3, 7, 5, taps=9, by_channel=True),
)

#: Roundings of the largest result: those of a step of the delta rule, twice for the norm and the
#: convolution before it.
ROUNDINGS = 48


def make(kind: str, layer: Layer, lead=(2,), dtype=np.float64, seed=0) -> tuple[Any, ...]:
    """The operands of a function, its state and its options."""
    rng = np.random.default_rng(seed)
    wide = np.float64 if dtype == np.float64 else np.float32
    n, d, m = layer.heads, layer.d, layer.m
    c = 2 * layer.keys * d + n * m

    def draw(*shape, kind=dtype, by=1.0):
        return (by * rng.standard_normal(shape)).astype(kind)

    channels = (n, d) if layer.by_channel else (n,)
    conv, s = draw(*lead, c, layer.taps - 1, kind=wide), draw(*lead, n, d, m, kind=wide)
    options = {
        "A_log": draw(n, kind=wide), "weight": draw(c, layer.taps), "bias": draw(c),
        "z": draw(*lead, n * m),
    }  # fmt: skip
    if kind == "fused_gated_step":
        options |= {
            "dt_bias": draw(n, kind=wide), "D": draw(n, kind=wide), "norm_weight": draw(n * m),
        }  # fmt: skip
        operands = draw(*lead, c), draw(*lead, n)
    else:
        options |= {"dt_bias": draw(*channels, kind=wide), "norm_weight": draw(m)}
        operands = draw(*lead, c), draw(*lead, *channels), draw(*lead, n)
    return operands, linattn.FusedState(conv, s), options


def wide(x):
    return np.asarray(x, np.float64) if isinstance(x, np.ndarray) else x


def expected(kind, operands, state, options):
    """The twin's result for the same operands."""
    twin = getattr(ref, kind)
    options = {key: wide(x) for key, x in options.items()}
    return twin(*map(wide, operands), tuple(map(wide, state)), **options)


def bound(o, dtype) -> dict[str, float]:
    """The tolerances of a result whose exact value is o."""
    kind = np.float64 if np.dtype(dtype) == np.float64 else np.float32
    tolerance = {"atol": roundings(ROUNDINGS, o, dtype=kind)}
    if np.dtype(dtype).itemsize == 2:
        tolerance["rtol"] = 2.0**-8 if np.dtype(dtype).name == "bfloat16" else 2.0**-11
    return tolerance


def check(kind, operands, state, options, dtype, in_place=False):
    """Compare a call with its twin."""
    o, (conv, s) = expected(kind, operands, state, options)
    ours, after = getattr(linattn, kind)(*operands, state, **options, in_place=in_place)
    assert ours.dtype == dtype and ours.shape == o.shape
    close(wide(ours), o, **bound(o, dtype))
    wider = np.float64 if dtype == np.float64 else np.float32
    assert after.s.dtype == wider
    close(wide(after.s), s, **bound(s, wider))
    if conv is None:
        assert after.conv is None
    else:
        close(wide(after.conv), conv, atol=0)
    return ours, after
