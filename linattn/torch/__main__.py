"""``python -m linattn.torch``: run a program with other libraries patched, without a change to it.

The variable LINATTN_PATCH names the libraries: ``transformers`` and ``xlstm`` are patched,
``mamba_ssm`` and ``causal_conv1d`` are stood in for where they cannot be imported, ``flashrnn`` and
``mlstm_kernels`` in any case, and ``fla`` is patched or, where it cannot be imported, stood in for.
"""

from __future__ import annotations

import functools
import os
import runpy
import sys
from collections.abc import Callable, Sequence

from . import install_as, patch_fla, patch_transformers, patch_xlstm


def _patch_or_stand_in() -> None:
    if not install_as("fla").names:
        patch_fla()


#: By name, what makes a program use linattn in a library's place.
LIBRARIES: dict[str, Callable[[], object]] = {
    "causal_conv1d": functools.partial(install_as, "causal_conv1d"),
    "mamba_ssm": functools.partial(install_as, "mamba_ssm"),
    "flashrnn": functools.partial(install_as, "flashrnn", replace=True),
    "mlstm_kernels": functools.partial(install_as, "mlstm_kernels", replace=True),
    # After those that they import.
    "fla": _patch_or_stand_in,
    "transformers": patch_transformers,
    "xlstm": patch_xlstm,
}
USAGE = "usage: LINATTN_PATCH=NAME,... python -m linattn.torch [-m MODULE | FILE] ARGUMENT ..."


def main(argv: Sequence[str]) -> None:
    if not argv or (argv[:1] == ["-m"] and len(argv) < 2):
        raise SystemExit(USAGE)
    for name in _names(os.environ.get("LINATTN_PATCH", "")):
        LIBRARIES[name]()
    if argv[0] == "-m":
        sys.argv[:] = argv[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = argv
        sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
        runpy.run_path(argv[0], run_name="__main__")


def _names(text: str) -> list[str]:
    """The libraries that the variable names, in the order in which they are patched."""
    given = {x.strip() for x in text.split(",")} - {""}
    unknown = sorted(given - LIBRARIES.keys())
    if unknown or not given:
        found = ", ".join(map(repr, unknown)) if unknown else "empty or not set"
        expected = ", ".join(LIBRARIES)
        raise SystemExit(f"{USAGE}\nLINATTN_PATCH is {found}; expected some of {expected}")
    return [x for x in LIBRARIES if x in given]


if __name__ == "__main__":
    main(sys.argv[1:])
