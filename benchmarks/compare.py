"""Times and instructions of every operator at several commits: does a change make anything slower?

    make compare BASE=COMMIT            # the current commit against BASE
    python compare.py BASE [COMMIT ...] # each against BASE
    make history COMMITS=A..B           # each commit of a range against its first

Each commit is unpacked and built once, under build/compare, for the best instruction set of this
machine.  A folder with a built linattn can take the place of a commit.  The calls are those of this
file's own commit.

Two processes, one for each commit, take turns of a few milliseconds on one core (A B B A) and
measure processor time, which excludes other programs.  The figure of such a pair is the median of
the ratios of neighbours.  The placement of memory differs from pair to pair and may change times by
some per cent, so there are several pairs, and the interval is over their figures.  An operator
counts as slower, with exit status 1, if its whole interval is above 1.05.  With a load of 15 to 20
on two cores, a build against itself has all intervals within 3.3 %; a tenth more work in three
kernels was found in these (1.08 to 1.15) and in Linformer, which calls one of them, alone.

If Valgrind is installed, instructions are counted as well (instructions.py).  They have no noise,
but are those of x86-64-v3, and measure work instead of time.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import instructions
from instructions import NAMES, calls
from report import table

import linattn
from linattn._cli.progress import Bar
from linattn._core.settings import available_isas

ROOT = Path(__file__).resolve().parent.parent
BUILDS = ROOT / "build" / "compare"
TURN = 3e-3  #: seconds that a turn takes at least
LIMIT = 1.05
CONFIDENCE = 0.95


class Ratio(NamedTuple):
    """The second time over the first, with the interval of the median."""

    seconds: float  #: a call of the first
    middle: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.low > LIMIT:
            return "slower"
        if self.high < 1 / LIMIT:
            return "faster"
        return "" if self.low < 1 / LIMIT or self.high > LIMIT else "same"


class Side:
    """A process with one linattn, which times calls on request."""

    def __init__(self, tree: Path, n: int, heads: int, cpu: int | None) -> None:
        pinned = [] if cpu is None else ["--cpu", str(cpu)]
        self.process = subprocess.Popen(
            [sys.executable, __file__, tree, "--serve", "-n", str(n), "--heads", str(heads),
             *pinned],
            env={**os.environ, **instructions.environment(tree)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def __call__(self, name: str, count: int) -> float:
        """Seconds a call, of so many."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{name} {count}\n")
        if not (answer := self.process.stdout.readline()):
            sys.exit(f"compare.py: the process of {self.process.args[2]} ended")
        return float(answer)

    def close(self) -> None:
        self.process.communicate()


def serve(tree: Path, n: int, heads: int) -> int:
    """Answer each line "NAME COUNT" with the seconds of a call, until the input ends."""
    if tree.resolve() not in Path(linattn.__file__).parents:
        sys.exit(f"compare.py: {linattn.__file__} is imported, which is not of {tree}")
    table = calls(n, heads)
    gc.collect()
    gc.disable()
    for line in sys.stdin:
        name, count = line.split()
        run = table[name].run
        run()  # the other side's turn was before
        start = time.thread_time()
        for _ in range(int(count)):
            run()
        print((time.thread_time() - start) / int(count), flush=True)
    return 0


def figures(sides: tuple[Side, Side], name: str, pairs: int) -> tuple[float, float]:
    """Seconds a call of the first, and the median ratio of the second to the first, in turns."""
    a, b = sides
    count = max(1, math.ceil(TURN / max(min(a(name, 1), b(name, 1)), 1e-7)))
    times = []
    for i in range(pairs):
        if i % 2:
            times.append((a(name, count), b(name, count)))
        else:
            times.append((b(name, count), a(name, count))[::-1])
    return statistics.median(x for x, _ in times), statistics.median(y / x for x, y in times)


def ratios(
    trees: tuple[Path, Path], names: Sequence[str], *, n: int, heads: int, starts: int, pairs: int
) -> dict[str, Ratio]:
    """The ratio of each operator."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    bar = Bar(sys.stderr, starts * len(names))
    for start in range(starts):
        cpu = cpus[start % len(cpus)]
        order = slice(None, None, -1 if start % 2 else 1)  # which process is begun first
        sides = tuple(Side(tree, n, heads, cpu) for tree in trees[order])[order]
        for name in names:
            bar.step(f"{start + 1} of {starts}: {name}")
            found[name].append(figures(sides, name, pairs))
        for side in sides:
            side.close()
    bar.clear()
    return {name: interval(given) for name, given in found.items()}


def interval(given: Sequence[tuple[float, float]]) -> Ratio:
    """The median, and the narrowest pair of order statistics that contains it with CONFIDENCE."""
    seconds, values = zip(*given, strict=True)
    ordered, size = sorted(values), len(values)
    out, missed = 0, 2 / 2**size  # so many are left out at each end, and what that misses
    while missed + 2 * math.comb(size, out + 1) / 2**size <= 1 - CONFIDENCE:
        out += 1
        missed += 2 * math.comb(size, out) / 2**size
    return Ratio(statistics.median(seconds), statistics.median(values), ordered[out],
                 ordered[-1 - out])  # fmt: skip


def tree_of(given: str) -> Path:
    """The folder of a built linattn, from a commit or a folder."""
    if (Path(given) / "linattn").is_dir():
        return Path(given).resolve()
    commit = git("rev-parse", "--verify", f"{given}^{{commit}}").strip()
    tree = BUILDS / commit[:12]
    if not list(tree.glob("linattn/_linattn*.so")):
        print(f"building {given} in {tree}", file=sys.stderr)
        shutil.rmtree(tree, ignore_errors=True)
        tree.mkdir(parents=True)
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
        isas = {available_isas()[0]} | ({"x86-64-v3"} & {*available_isas()})
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=tree, env={"LINATTN_ISAS": " ".join(isas), **os.environ}, check=True,
        )  # fmt: skip
    return tree


def rows(times: dict[str, Ratio], counts: tuple[dict[str, float], dict[str, float]] | None) -> str:
    """The table, as Markdown."""
    found = []
    for name, x in times.items():
        a, b = (side[name] for side in counts) if counts else (0, 0)
        found.append([
            f"`{name}`", f"{x.seconds * 1e6:.4g}", f"{x.middle:.3f}", f"{x.low:.3f}-{x.high:.3f}",
            x.verdict or "-", *([f"{a:,.0f}", f"{b / a:.3f}"] if counts else ["", ""]),
        ])  # fmt: skip
    head = ["operator", "us per call", "time", "interval", "verdict", "instructions per token",
            "instructions"]  # fmt: skip
    return table(head, found)


def commits(given: Sequence[str]) -> list[str]:
    """Commits and folders, with ranges A..B written out; HEAD follows a single one."""
    found: list[str] = []
    for text in given:
        if ".." in text and not Path(text).is_dir():
            lines = git("rev-list", "--reverse", text).split()
            found += [git("rev-parse", "--short", text.partition("..")[0]).strip()]
            found += [line[:12] for line in lines]
        else:
            found.append(text)
    return found if len(found) > 1 else [*found, "HEAD"]


def git(*arguments: str) -> str:
    run = ["git", *arguments]
    return subprocess.run(run, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "commits", nargs="+", metavar="COMMIT",
        help="commits, ranges A..B, or folders of a built linattn: the first is the base",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=NAMES, default=NAMES)
    parser.add_argument("-n", type=int, default=512, help="tokens")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--starts", type=int, default=9, help="pairs of processes")
    parser.add_argument("--pairs", type=int, default=30, help="pairs of turns in each")
    parser.add_argument("--no-counts", action="store_true", help="times alone")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--cpu", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        if args.cpu is not None:
            os.sched_setaffinity(0, {args.cpu})
        return serve(Path(args.commits[0]), args.n, args.heads)
    base, *others = commits(args.commits)
    slower = []
    for other in others:
        if len(others) > 1:
            print(f"\n{other} against {base}:\n")
        slower += against(args, tree_of(base), tree_of(other))
    return 1 if slower else 0


def against(args: argparse.Namespace, *trees: Path) -> list[str]:
    """Print the table of two folders, and return what is slower."""
    times = ratios((trees[0], trees[1]), args.only, n=args.n, heads=args.heads,
                   starts=args.starts, pairs=args.pairs)  # fmt: skip
    counts = None
    if not args.no_counts and instructions.possible():
        first, second = (instructions.per_token(args.only, tree) for tree in trees)
        counts = first, second
    print(rows(times, counts))
    slower = [name for name, x in times.items() if x.verdict == "slower"]
    print(f"slower: {', '.join(slower) or 'none'}")
    if counts:
        more = [name for name in args.only if counts[1][name] > LIMIT * counts[0][name]]
        print(f"more instructions: {', '.join(more) or 'none'}")
    return slower


if __name__ == "__main__":
    sys.exit(main())
