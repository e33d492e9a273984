"""The command ``linattn``, also ``python -m linattn``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import linattn
from linattn._cli import bench, info, selftest, timing
from linattn._core import settings

#: By name: the module and its purpose.
COMMANDS = {
    "info": (info, "describe this build and this machine, for bug reports"),
    "selftest": (selftest, "check every operator on this machine"),
    "timing": (timing, "compare with code written by hand, and (Q K^T) V with Q (K^T V)"),
    "bench": (bench, "compare with the libraries that are installed here"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of a command; that of SIGPIPE if the reader of its output has closed it."""
    if sys.stdout is None:
        print("error: standard output is closed", file=sys.stderr)
        return 1
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for Python's flush at exit
        if isinstance(error, BrokenPipeError):
            return 128 + 13
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="linattn", description="Linear attention.")
    parser.add_argument("--version", action="version", version=f"linattn {linattn.__version__}")
    parser.set_defaults(run=None, command=parser)
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, (module, what) in COMMANDS.items():
        command = commands.add_parser(name, help=what, description=what)
        module.add_arguments(command)
        command.set_defaults(run=module.run, command=command)

    args, unknown = parser.parse_known_args(argv)
    if unknown:  # argparse would print the usage of all commands
        args.command.error(f"unrecognized arguments: {' '.join(unknown)}")
    if args.run is None:
        parser.print_help()
        return 0
    if settings.problems and args.run is not info.run:  # which prints them itself
        print(*(f"error: {problem}" for problem in settings.problems), sep="\n", file=sys.stderr)
        return 1
    try:
        return args.run(args)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
