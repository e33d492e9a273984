"""``python -m linattn``: ``info``, ``selftest`` and ``timing``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import linattn
from linattn import _selftest, _timing


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m linattn", description="Linear attention.")
    parser.add_argument("--version", action="version", version=f"linattn {linattn.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    info = commands.add_parser("info", help="version, instruction set, threads and compiler")
    info.set_defaults(run=_info)

    selftest = commands.add_parser("selftest", help="check every operator on this machine")
    _selftest.add_arguments(selftest)
    selftest.set_defaults(run=_selftest.run)

    timing = commands.add_parser("timing", help="(Q K^T) V against Q (K^T V), timed")
    _timing.add_arguments(timing)
    timing.set_defaults(run=_timing.run)

    args = parser.parse_args(argv)
    try:
        return args.run(args)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def _info(args: argparse.Namespace) -> int:
    linattn.show_config()
    return 0


if __name__ == "__main__":
    sys.exit(main())
