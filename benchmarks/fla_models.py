"""fla's recurrences on CPUs: its naive references, and linattn in place of its kernels.

Float32, one sequence of 1,024 tokens, 4 heads of 64, forward and with gradients.  Without linattn
these references are all of fla's recurrences that run without a GPU.  Times of one thread are
those that the processor spent on it.
"""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from harness import interleave, threads
from report import Report, Row, options, say

SHAPE = {"batch": 1, "n": 1024, "heads": 4, "width": 64}


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="1 by default")
    args = parser.parse_args()
    report = Report(f"Recurrences of fla, {args.threads} thread(s)", args)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a machine without a GPU
            importlib.import_module("fla.ops")
        from fla_naive import REFERENCES

        from linattn.torch import patch_fla
    except ImportError as error:
        say(args, f"skipped: {error}")
        return 0
    clock = time.process_time if args.threads == 1 else time.perf_counter
    with threads(args.threads), patch_fla():
        for case in REFERENCES:
            for backward in (False, True):
                pair = interleave(
                    _call(case, case.naive, backward), _call(case, case.function, backward),
                    2 if args.quick else 5, clock=clock,
                )  # fmt: skip
                form = "forward + backward" if backward else "forward"
                report.add(Row(
                    f"{case.function}: {case.naive} / linattn, {form}", pair.ratio, pair.low,
                    pair.high, target=1, at_least=True,
                    detail=f"{1e3 * pair.a:.3g} against {1e3 * pair.b:.3g} ms",
                ))  # fmt: skip
    return report.finish()


def _call(case: Any, name: str, backward: bool) -> Callable[[], None]:
    from fla_naive import operands

    module = f"fla.ops.{case.package}{'.naive' if name == case.naive else ''}"
    function = getattr(importlib.import_module(module), name)
    given = operands(case.operands, **SHAPE)
    for x in given:
        x.requires_grad_(backward)

    def call() -> None:
        o = function(*given, **case.given)
        if backward:
            o[0].sum().backward()

    return call


if __name__ == "__main__":
    sys.exit(main())
