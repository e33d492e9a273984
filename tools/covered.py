"""Lines and branches that were reached, by file, from what `llvm-cov show` prints: see coverage.sh.

Usage: covered.py FOLDER MISSING < LISTING, with MISSING a file for what was not reached.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from itertools import chain

LINE = re.compile(r" *(\d+)\| *([\d.]+[kMGTPE]?)\|")
BRANCH = re.compile(r"[ |]*Branch \((\d+):(\d+)\): \[True: ([^,]+), False: ([^\]]+)\]")


def is_some(count: str) -> bool:
    """18.4E is a number below zero: a child goes on where its parent was."""
    return count != "0" and not count.endswith("E")


def read(listing, folder: str) -> dict[str, tuple[dict, dict]]:
    """Of each file: whether a line was reached, and whether each way of a branch was."""
    files: dict = defaultdict(lambda: (defaultdict(bool), defaultdict(bool)))
    for text in listing:
        if text.startswith("/"):
            lines, branches = files[text.rstrip(":\n")]
        elif match := LINE.match(text):
            lines[int(match[1])] |= is_some(match[2])
        elif match := BRANCH.match(text):
            # A function that is compiled several times has its branches listed as often.
            for way, count in (("true", match[3]), ("false", match[4])):
                branches[int(match[1]), int(match[2]), way] |= is_some(count)
    return {name[name.index(folder) :]: x for name, x in files.items() if folder in name}


def missing(name: str, lines: dict, branches: dict):
    for line in (x for x, reached in lines.items() if not reached):
        yield f"{name}:{line}: not reached"
    for (line, column, way), reached in branches.items():
        if lines[line] and not reached:
            yield f"{name}:{line}:{column}: never {way}"


def share(reached) -> str:
    return f"{100 * sum(reached) / max(len(reached), 1):5.1f} % of {len(reached):4}"


def main(folder: str, report: str) -> None:
    files = sorted(read(sys.stdin, folder).items())
    rows = [(name, *(list(x.values()) for x in both)) for name, both in files]
    all_lines, all_branches = ([*chain(*x)] for x in [*zip(*rows, strict=True)][1:])
    for name, lines, branches in (*rows, (f"all of {folder}", all_lines, all_branches)):
        print(f"{name:32} lines {share(lines)}  branches {share(branches)}")
    with open(report, "w") as file:
        file.writelines(f"{x}\n" for name, both in files for x in missing(name, *both))


if __name__ == "__main__":
    main(*sys.argv[1:])
