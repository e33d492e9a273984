"""Table of the measured errors of every operator, at up to 65,536 tokens.

    python tools/error_table.py --markdown
    python tools/error_table.py --markdown --states
    python tools/error_table.py --markdown --products

The reference is the NumPy twin in long double.  Each figure is the largest error of any entry of
any result, divided by u M.  u is the unit roundoff of the dtype of the computation (float32 for
16-bit operands).  M is one of

    sum      the same sum with every term made positive: |phi(q)| |phi(k)|^T |v| and so on,
             divided by the denominator if there is one
    largest  the largest entry of the results, for operators in which a token subtracts what its key
             reads from the memory, and for gradients of those with a running maximum
    allowed  what the random calls of the tests allow for these operands, in units of u

Operands come from three distributions (`KINDS`): rounding errors that cancel when numbers are
centred add up when they are not.  The first distribution has the bound for random operands, the
others have the bound for all operands (`bounds`).

`--states` measures single tokens instead, on states of 16 bits (`half_states`), and `--products`
bfloat16 operands with products of float32 and of bfloat16, in units of u M, u that of bfloat16.

For 16-bit dtypes the figure is a fraction of the allowed error, which is the bound plus one
rounding of the result.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_dtypes import bfloat16, finfo

import linattn
from linattn import reference
from linattn._linattn import operators
from linattn.reference import conv as ref_conv
from linattn.reference import softmax as ref_softmax

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import draws_scans
import half_states
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
from draws import Lot, call_of, wide_operands, working
from gates import ROUNDINGS as GATED
from states import flat
from table import ATTENTION
from table import Case as TableCase

LENGTHS = (1024, 65536)
DTYPES = ("float32", "float64", "float16", "bfloat16")
#: Recurrences that erase nothing, whose results are sums.
SUMS = "gated", "ssd"
WIDTH = 16
Show = Callable[[list[str]], None]  # prints the cells of a line
TINY = float(np.finfo(np.float32).tiny)
#: Distributions of operands, and how the table describes them.
KINDS = {
    "normal": "N(0, 1)",
    "shifted": "v ~ N(3, 1/2)",
    "nearly equal": "q, k within 1e-3, v in [1, 2]",
}


class Row(NamedTuple):
    """An operator.  `run(dtype, n)` returns the results, the exact results, and M of each."""

    name: str
    kind: str
    measure: str
    bound: int
    run: Callable


def draw(rng, operand: str, shape, kind: str) -> np.ndarray:
    """Draw an operand; the distribution depends on its name."""
    x = rng.standard_normal(shape)
    if kind == "shifted" and operand in ("v", "grad_out"):
        return 3 + x / 2
    if kind == "nearly equal":
        return rng.uniform(1, 2, shape) if operand in ("v", "grad_out") else 1.12353 + x / 1000
    return x


def run_linear(case: Case, kind: str) -> Callable:
    def run(dtype, n):
        here = case._replace(n=n)
        operands = draw_operands(here.shapes, dtype, kind)
        wide = [x.astype(working(dtype)) for x in operands]
        result = getattr(linattn, case.operator)(*operands, **case.options)
        exact = evaluate(here, wide, np.longdouble)
        return flat(result), exact, evaluate(here, wide, np.float64, magnitude=True)

    return run


def run_recurrence(rule: TableCase, gradient: bool, kind: str) -> Callable:
    def call(module, arrays):
        if gradient:
            return flat(rule.backward(arrays, module))
        return flat(rule.forward(arrays, module))

    def run(dtype, n):
        arrays = rule.operands((), n, d=WIDTH, m=WIDTH)
        rng = np.random.default_rng(0)
        for name in arrays if kind != "normal" else ():
            if name not in ("b", "beta", "g", "p", "mu", "eta", "strength", "D"):
                x = draw(rng, name, arrays[name].shape, kind)
                short = name in ("k", "a", "erase")
                size = np.linalg.norm(x, axis=-1, keepdims=True) if short else 1
                arrays[name] = x / np.maximum(size, 1)
        if "b" in arrays:
            arrays["b"] = -arrays["a"] * rng.random((n, 1))
        if "p" in arrays:
            arrays["p"] = arrays["k"] * rng.random((n, 1))
        arrays = {name: x.astype(dtype) for name, x in arrays.items()}
        for name in {"g", "mu", "bonus", "strength", "D"} & {*arrays}:
            arrays[name] = arrays[name].astype(working(dtype))
        exact = call(reference, {x: y.astype(np.longdouble) for x, y in arrays.items()})
        if rule.name in SUMS:
            magnitudes = {x: y if x == "g" else abs(y) for x, y in arrays.items()}
            magnitudes = {x: y.astype(float) for x, y in magnitudes.items()}
            if kind != "normal":
                magnitudes["g"] /= 2
            magnitudes = call(reference, magnitudes)
        else:
            largest = max(float(abs(x).max()) for x in exact)
            magnitudes = [np.full(x.shape, largest) for x in exact]
        return call(linattn, arrays), exact, magnitudes

    return run


def run_softmax(name: str, bound: int, kind: str) -> Callable:
    def run(dtype, n):
        """With 64 queries."""
        shapes = [(64, WIDTH), (n, WIDTH), (n, WIDTH)]
        shapes += [(64, WIDTH)] if name.endswith("backward") else []
        operands = draw_operands(shapes, dtype, kind)
        exact = flat(getattr(ref_softmax, name)(*(x.astype(np.longdouble) for x in operands)))
        units = softmax_units(operands, False, None, any_operands=kind != "normal")
        magnitudes = [x / bound for x in units]
        return flat(getattr(linattn, name)(*operands)), exact, magnitudes

    return run


def run_scan(name: str, end: str, kind: str) -> Callable:
    def run(dtype, n):
        row, rng = draws_scans.ROWS[name], np.random.default_rng(0)
        sizes = {"n": n, "d": WIDTH, "m": WIDTH, "f": WIDTH}
        dims = row.operands | ({"grad_out": "nm"} if end else {})
        arrays = {}
        for operand, letters in dims.items():
            x = scan_operand(rng, name, operand, [sizes[y] for y in letters], kind)
            wide = operand in wide_operands(name)
            arrays[operand] = x.astype(working(dtype) if wide else dtype)
        options = dict.fromkeys(row.flags, False)
        options |= {"scale": None, "normalize": True, "eps": 0.0} if name == "mlstm" else {}
        trial = call_of(Lot(0, 0), name + end, row.bound, arrays, {}, options, dtype)
        exact = flat(trial.twin(*(x.astype(np.longdouble) for x in trial.operands), **options))
        if is_normwise(name, end):
            largest = max(float(abs(x).max()) for x in exact)
            magnitudes = [np.full(x.shape, largest) for x in exact]
        else:
            magnitudes = trial.units(exact)
        return flat(trial.f(*trial.operands, **options)), exact, magnitudes

    return run


def is_normwise(name: str, end: str) -> bool:
    """Whether the errors are relative to the largest gradient: denominators may be near a switch,
    and the bound is far above the errors."""
    return name in ("mlstm", "wkv") and end == "_backward"


def scan_operand(rng, name: str, operand: str, shape, kind: str) -> np.ndarray:
    """Draw an operand of a scan: factors are 1 at most, so that no memory grows."""
    if name == "linear_scan" and operand == "a":
        return rng.uniform(0, 1, shape)
    if operand in ("dt", "dt_bias"):
        return rng.uniform(0, 0.5, shape)
    if operand in ("A", "w"):
        x = np.exp(rng.standard_normal(shape))
        return -x if operand == "A" else x
    if operand in ("i", "f", "u") or (name == "wkv" and operand == "k"):
        return rng.standard_normal(shape)
    return draw(rng, "v" if operand == "x" else operand, shape, kind)


def run_convolution(name: str, kind: str) -> Callable:
    def run(dtype, n):
        shapes = {"v": (n, WIDTH), "weight": (WIDTH, 4)}
        shapes |= {"grad_out": (n, WIDTH)} if name.endswith("backward") else {}
        rng = np.random.default_rng(0)
        operands = [draw(rng, x, shape, kind).astype(dtype) for x, shape in shapes.items()]
        twin = getattr(ref_conv, name)
        exact = flat(twin(*(x.astype(np.longdouble) for x in operands)))
        magnitudes = flat(twin(*(abs(x.astype(float)) for x in operands)))
        return flat(getattr(linattn, name)(*operands)), exact, magnitudes

    return run


def draw_operands(shapes, dtype, kind: str) -> list[np.ndarray]:
    """Draw q, k, v and grad_out, or as many of them as there are shapes."""
    rng, names = np.random.default_rng(0), ("q", "k", "v", "grad_out")
    pairs = zip(names, shapes, strict=False)
    return [draw(rng, name, shape, kind).astype(dtype) for name, shape in pairs]


def is_listed(rule: TableCase) -> bool:
    """Whether the table has this variant.

    It has those with one number a token for every operand, and those with one a channel for every
    operand; the latter have erase keys, and those of ssd a skip.
    """
    letters = rule.letters
    axes = {len(letters[x]) for x in ("g", "beta") if x in letters}
    plain = "bonus" not in letters and len(axes) == 1
    if rule.name == "ssd":
        return "D" in letters
    return plain and (rule.name != "gated_delta" or ("erase" in letters) == (axes == {2}))


def rows() -> Iterator[Row]:
    for kind in KINDS:
        yield from rows_for(kind)


def rows_for(kind: str) -> Iterator[Row]:
    normal = kind == "normal"
    for name in ("causal", "noncausal"):
        for end, of_sum, of_mean in (
            ("", FORWARD_SUM, 2 * FORWARD_MEAN),
            ("_backward", BACKWARD_SUM, 2 * BACKWARD_MEAN),
        ):
            case = Case(name + end, 0, WIDTH, WIDTH)
            bound = of_mean if normal else int(worst(case))
            yield Row(f"{name}{end}, elu, normalised", kind, "sum", bound, run_linear(case, kind))
            case = case._replace(feature_map="identity", normalize=False)
            bound = of_sum if normal else int(worst(case))
            yield Row(f"{name}{end}, identity", kind, "sum", bound, run_linear(case, kind))
    for rule in filter(is_listed, ATTENTION):
        own = ", ".join(f"{x} a {'token' if y == 'n' else 'channel'}"
                        for x, y in rule.letters.items() if x in ("g", "beta"))  # fmt: skip
        own += "".join(f", {x}" for x in ("erase", "D") if x in rule.letters)
        gated = rule.name in SUMS
        for gradient, end in ((False, ""), (True, "_backward")):
            bound = GATED["gradients" if gradient else "o"] if gated else DELTA_ROUNDINGS
            if not normal:
                of = "gated" if gated else "delta backward" if gradient else "delta"
                bound = int(WORST[of] * links(WIDTH))
            measure = "sum" if gated else "largest"
            run = run_recurrence(rule, gradient, kind)
            yield Row(f"{rule.name}{end}, {own}", kind, measure, bound, run)
    for end, bound in (("", FORWARD_SUM), ("_backward", BACKWARD_SUM)):
        name = "softmax_attention" + end
        bound = bound if normal else int(32 + links(64))
        yield Row(f"{name}, 64 queries", kind, "sum", bound, run_softmax(name, bound, kind))
    for name in draws_scans.ROWS:
        for end in ("", "_backward"):
            measure, bound = ("largest", 128) if is_normwise(name, end) else ("allowed", 1)
            yield Row(name + end, kind, measure, bound, run_scan(name, end, kind))
    for end, bound in (("", 12), ("_backward", 48)):
        name = "causal_conv1d" + end
        yield Row(f"{name}, 4 taps", kind, "sum", bound, run_convolution(name, kind))


def largest_error(row: Row, dtype: np.dtype, n: int) -> float:
    """In units of u M, or for 16-bit dtypes as a fraction of the allowed error."""
    results, exact, magnitudes = row.run(dtype, n)
    unit, worst = float(np.finfo(working(dtype)).eps) / 2, 0.0
    for x, y, magnitude in zip(results, exact, magnitudes, strict=False):
        difference = abs(x.astype(np.longdouble) - y)
        allowed = unit * magnitude + np.finfo(working(dtype)).tiny
        if dtype.itemsize == 2:
            allowed = row.bound * allowed
        if x.dtype.itemsize == 2:
            half = finfo(x.dtype)
            allowed = allowed + float(half.eps) / 2 * abs(y) + float(half.smallest_subnormal)
        worst = max(worst, float((difference / allowed).max()))
    return worst


def begin(show: Show, markdown: bool, names: Sequence[str], figures: Sequence[str]) -> None:
    """The head of a table."""
    show([*names, *figures])
    if markdown:
        show([*("---" for _ in names), *("---:" for _ in figures)])


def product_error(row: Row, products: str, n: int) -> float:
    """Of bfloat16 operands, in units of u M, where u is that of bfloat16."""
    with linattn.products(products):
        results, exact, magnitudes = row.run(np.dtype(bfloat16), n)
    unit = float(finfo(bfloat16).eps) / 2
    return max(
        float((abs(x.astype(np.longdouble) - y) / (unit * magnitude + TINY)).max())
        for x, y, magnitude in zip(results, exact, magnitudes, strict=False)
    )


def show_products(show: Show, markdown: bool, lengths: Sequence[int]) -> None:
    columns = [(products, n) for products in ("float32", "bfloat16") for n in lengths]
    figures = [f"{products} n = {n:,}" for products, n in columns]
    begin(show, markdown, ["operator", "operands", "M"], figures)
    for row in rows():
        if operators.get(row.name.split(",")[0], {}).get("products"):
            errors = [f"{product_error(row, *column):.2g}" for column in columns]
            show([row.name, KINDS[row.kind], row.measure, *errors])


def show_states(show: Show, markdown: bool) -> None:
    """The errors of steps on states of each dtype, relative to the largest output so far."""
    dtypes, counts = [np.dtype(x) for x in (np.float32, np.float16, bfloat16)], (64, 512, 4096)
    begin(show, markdown, ["step"], [f"{dtype} n = {n:,}" for dtype in dtypes for n in counts])
    for name in half_states.RULES:
        found = [half_states.growth(name, dtype) for dtype in dtypes]
        show([name, *(f"{x.error(n):.1e}" for x in found for n in counts)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--only", default="", help="only operators whose name starts with this")
    parser.add_argument("--states", action="store_true", help="steps on states of 16 bits instead")
    parser.add_argument("--products", action="store_true", help="products of bfloat16 instead")
    args = parser.parse_args()
    template = "| {} |" if args.markdown else "{}"
    show = lambda cells: print(  # noqa: E731
        template.format((" | " if args.markdown else "  ").join(cells)), flush=True
    )
    if args.states:
        show_states(show, args.markdown)
        return
    if args.products:
        show_products(show, args.markdown, args.lengths)
        return
    dtypes = [np.dtype(bfloat16 if x == "bfloat16" else x) for x in args.dtypes]
    columns = [(dtype, n) for dtype in dtypes for n in args.lengths]
    figures = ["bound", *(f"{dtype} n = {n:,}" for dtype, n in columns)]
    begin(show, args.markdown, ["operator", "operands", "M"], figures)
    for row in rows():
        if row.name.startswith(args.only):
            errors = [f"{largest_error(row, *column):.2g}" for column in columns]
            show([row.name, KINDS[row.kind], row.measure, str(row.bound), *errors])


if __name__ == "__main__":
    main()
