"""How far results are from the truth, in long double, up to 65,536 tokens: a table.

    python tools/error_table.py --markdown

Numbers are the largest error of any entry of any result, in units of u of M, u being the unit
roundoff of the dtype that is computed in (float32 for those of 16 bits) and M

    sum      the same sum with every term made positive: |phi(q)| |phi(k)|^T |v| and the like,
             divided by the denominator where there is one
    largest  the largest entry of the results, where a token takes from the memory what a key reads

Operands are drawn in three ways (`KINDS`), for rounding errors that cancel where numbers are
centred add up where they are not.  The bound is that of drawn operands for the first kind, and for
the others that of all operands (`bounds`).

For 16 bits it is the share of what is allowed, one rounding of the result beside the bound.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_dtypes import bfloat16, finfo

import linattn
from linattn import _reference_conv as ref_conv
from linattn import _reference_softmax as ref_softmax

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import recurrences
from bounds import (
    BACKWARD_MEAN,
    BACKWARD_SUM,
    DELTA_ROUNDINGS,
    FORWARD_MEAN,
    FORWARD_SUM,
    WORST,
    evaluate,
    links,
    softmax_units,
    worst,
)
from cases import Case
from draws import working
from gates import ROUNDINGS as GATED
from states import flat

LENGTHS = (1024, 65536)
DTYPES = ("float32", "float64", "float16", "bfloat16")
WIDTH = 16
#: What operands are like, and how to say so.
KINDS = {
    "normal": "N(0, 1)",
    "off centre": "v ~ N(3, 1/2)",
    "alike": "q, k within 1e-3, v in [1, 2]",
}


class Row(NamedTuple):
    """An operator: `run(dtype, n)` gives results, the truth, and M of each."""

    name: str
    kind: str
    measure: str
    bound: int
    run: Callable


def drawn(rng, operand: str, shape, kind: str) -> np.ndarray:
    """An operand by its name."""
    x = rng.standard_normal(shape)
    if kind == "off centre" and operand in ("v", "grad_out"):
        return 3 + x / 2
    if kind == "alike":
        return rng.uniform(1, 2, shape) if operand in ("v", "grad_out") else 1.12353 + x / 1000
    return x


def linear(case: Case, kind: str) -> Callable:
    def run(dtype, n):
        here = case._replace(n=n)
        operands = operands_of(here.shapes, dtype, kind)
        wide = [x.astype(working(dtype)) for x in operands]
        result = getattr(linattn, case.operator)(*operands, **case.options)
        exact = evaluate(here, wide, np.longdouble)
        return flat(result), exact, evaluate(here, wide, np.float64, magnitude=True)

    return run


def recurrence(rule: recurrences.Rule, gradient: bool, kind: str) -> Callable:
    def call(module, rule, arrays):
        if gradient:
            return flat(recurrences.backward(module, rule, arrays))
        return flat(recurrences.forward(module, rule, arrays))

    def run(dtype, n):
        arrays = recurrences.make(rule, n, WIDTH, WIDTH)
        rng = np.random.default_rng(0)
        for name in arrays if kind != "normal" else ():
            if name not in ("b", "beta", "g"):
                x = drawn(rng, name, arrays[name].shape, kind)
                short = name in ("k", "a", "erase")
                size = np.linalg.norm(x, axis=-1, keepdims=True) if short else 1
                arrays[name] = x / np.maximum(size, 1)
        if "b" in arrays:
            arrays["b"] = -arrays["a"] * rng.random((n, 1))
        arrays = {name: x.astype(dtype) for name, x in arrays.items()}
        for name in {"g", "bonus"} & {*arrays}:
            arrays[name] = arrays[name].astype(working(dtype))
        exact = call(rule.twin, rule, {x: y.astype(np.longdouble) for x, y in arrays.items()})
        if rule.name == "gated":
            sizes = {x: y if x == "g" else abs(y) for x, y in arrays.items()}
            sizes = {x: y.astype(float) for x, y in sizes.items()}
            if kind != "normal":
                sizes["g"] /= 2
            sizes = call(rule.twin, rule, sizes)
        else:
            most = max(float(abs(x).max()) for x in exact)
            sizes = [np.full(x.shape, most) for x in exact]
        return call(linattn, rule, arrays), exact, sizes

    return run


def softmax(name: str, bound: int, kind: str) -> Callable:
    def run(dtype, n):
        """64 queries."""
        shapes = [(64, WIDTH), (n, WIDTH), (n, WIDTH)]
        shapes += [(64, WIDTH)] if name.endswith("backward") else []
        operands = operands_of(shapes, dtype, kind)
        exact = flat(getattr(ref_softmax, name)(*(x.astype(np.longdouble) for x in operands)))
        units = softmax_units(operands, False, None, any_operands=kind != "normal")
        sizes = [x / bound for x in units]
        return flat(getattr(linattn, name)(*operands)), exact, sizes

    return run


def convolution(name: str, kind: str) -> Callable:
    def run(dtype, n):
        shapes = {"v": (n, WIDTH), "weight": (WIDTH, 4)}
        shapes |= {"grad_out": (n, WIDTH)} if name.endswith("backward") else {}
        rng = np.random.default_rng(0)
        operands = [drawn(rng, x, shape, kind).astype(dtype) for x, shape in shapes.items()]
        twin = getattr(ref_conv, name)
        exact = flat(twin(*(x.astype(np.longdouble) for x in operands)))
        sizes = flat(twin(*(abs(x.astype(float)) for x in operands)))
        return flat(getattr(linattn, name)(*operands)), exact, sizes

    return run


def operands_of(shapes, dtype, kind: str) -> list[np.ndarray]:
    """q, k, v and grad_out, as many of them as there are shapes."""
    rng, names = np.random.default_rng(0), ("q", "k", "v", "grad_out")
    pairs = zip(names, shapes, strict=False)
    return [drawn(rng, name, shape, kind).astype(dtype) for name, shape in pairs]


def chosen(rule: recurrences.Rule) -> bool:
    """Numbers a token all over, or a channel all over, then with erase keys."""
    letters = rule.letters
    axes = {len(letters[x]) for x in ("g", "beta") if x in letters}
    plain = "bonus" not in letters and len(axes) == 1
    return plain and (rule.name != "gated_delta" or ("erase" in letters) == (axes == {2}))


def rows() -> Iterator[Row]:
    for kind in KINDS:
        yield from rows_of(kind)


def rows_of(kind: str) -> Iterator[Row]:
    normal = kind == "normal"
    for name in ("causal", "noncausal"):
        for end, of_sum, of_mean in (
            ("", FORWARD_SUM, 2 * FORWARD_MEAN),
            ("_backward", BACKWARD_SUM, 2 * BACKWARD_MEAN),
        ):
            case = Case(name + end, 0, WIDTH, WIDTH)
            bound = of_mean if normal else int(worst(case))
            yield Row(f"{name}{end}, elu, normalised", kind, "sum", bound, linear(case, kind))
            case = case._replace(feature_map="identity", normalize=False)
            bound = of_sum if normal else int(worst(case))
            yield Row(f"{name}{end}, identity", kind, "sum", bound, linear(case, kind))
    for rule in filter(chosen, recurrences.RULES):
        own = ", ".join(f"{x} a {'token' if y == 'n' else 'channel'}"
                        for x, y in rule.letters.items() if x in ("g", "beta"))  # fmt: skip
        own += ", erase" if "erase" in rule.letters else ""
        gated = rule.name == "gated"
        for gradient, end in ((False, ""), (True, "_backward")):
            bound = GATED["gradients" if gradient else "o"] if gated else DELTA_ROUNDINGS
            if not normal:
                of = "gated" if gated else "delta backward" if gradient else "delta"
                bound = int(WORST[of] * links(WIDTH))
            measure = "sum" if gated else "largest"
            run = recurrence(rule, gradient, kind)
            yield Row(f"{rule.name}{end}, {own}", kind, measure, bound, run)
    for end, bound in (("", FORWARD_SUM), ("_backward", BACKWARD_SUM)):
        name = "softmax_attention" + end
        bound = bound if normal else int(32 + links(64))
        yield Row(f"{name}, 64 queries", kind, "sum", bound, softmax(name, bound, kind))
    for end, bound in (("", 12), ("_backward", 48)):
        name = "causal_conv1d" + end
        yield Row(f"{name}, 4 taps", kind, "sum", bound, convolution(name, kind))


def error(row: Row, dtype: np.dtype, n: int) -> float:
    """In units of u of M, or, for 16 bits, of what is allowed."""
    results, exact, sizes = row.run(dtype, n)
    unit, worst = float(np.finfo(working(dtype)).eps) / 2, 0.0
    for x, y, size in zip(results, exact, sizes, strict=False):
        off = abs(x.astype(np.longdouble) - y)
        allowed = unit * size + np.finfo(working(dtype)).tiny
        if dtype.itemsize == 2:
            allowed = row.bound * allowed
        if x.dtype.itemsize == 2:
            half = finfo(x.dtype)
            allowed = allowed + float(half.eps) / 2 * abs(y) + float(half.smallest_subnormal)
        worst = max(worst, float((off / allowed).max()))
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--markdown", action="store_true", help="with |s")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--only", default="", help="operators whose name begins so")
    chosen = parser.parse_args()
    dtypes = [np.dtype(bfloat16 if x == "bfloat16" else x) for x in chosen.dtypes]
    columns = [(dtype, n) for dtype in dtypes for n in chosen.lengths]
    head = ["operator", "operands", "M", "bound", *(f"{dtype} n = {n:,}" for dtype, n in columns)]
    line = "| {} |" if chosen.markdown else "{}"
    show = lambda cells: print(  # noqa: E731
        line.format((" | " if chosen.markdown else "  ").join(cells)), flush=True
    )
    show(head)
    if chosen.markdown:
        show(["---", "---", "---", *("---:" for _ in head[3:])])
    for row in rows():
        if row.name.startswith(chosen.only):
            errors = [f"{error(row, *column):.2g}" for column in columns]
            show([row.name, KINDS[row.kind], row.measure, str(row.bound), *errors])


if __name__ == "__main__":
    main()
