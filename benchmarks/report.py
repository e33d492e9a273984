"""The table that a benchmark prints as it runs, and writes as JSON or Markdown on request."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

import linattn


@dataclass
class Row:
    """One line of a report: a figure, perhaps with a target, or the reason why there is none."""

    what: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "x"
    target: float | None = None
    at_least: bool = False  # the target is a floor, not a ceiling
    error: float | None = None
    detail: str = ""
    skipped: str = ""

    @property
    def met(self) -> bool | None:
        if self.target is None or self.value is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def cells(self) -> list[str]:
        figure, spread, target, verdict, error = "", "", "", "", ""
        if self.value is not None:
            figure = f"{self.value:.3g} {self.unit}"
        if self.low is not None and self.high is not None:
            spread = f"{self.low:.3g}-{self.high:.3g}"
        if self.target is not None:
            target = f"{'>=' if self.at_least else '<='} {self.target:g}"
            verdict = {True: "met", False: "missed", None: "-"}[self.met]
        if self.error is not None:
            error = f"{self.error:.0e}"
        detail = f"skipped: {self.skipped}" if self.skipped else self.detail
        return [self.what, figure, spread, target, verdict, error, detail]


HEADINGS = ["measured", "median", "min-max", "target", "", "error", "detail"]
#: Columns for those who work on the kernels; what is published gives the figures.
TARGET = (3, 4)


@dataclass
class Report:
    """Rows printed as they come, then written as JSON or Markdown where asked for."""

    title: str
    args: argparse.Namespace
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        say(self.args, f"{self.title}\n{machine()}\n" + self._line(HEADINGS))

    def add(self, row: Row) -> None:
        self.rows.append(row)
        say(self.args, self._line(row.cells()))

    def finish(self) -> int:
        """Write the files and return 0, since a missed target is a finding and no failure."""
        if self.args.markdown:
            print(f"## {self.title}\n\n{machine()}, {datetime.date.today()}.\n")
            print(markdown(HEADINGS, [row.cells() for row in self.rows], without=TARGET))
        if self.args.json:
            rows = [asdict(row) | {"met": row.met} for row in self.rows]
            data = {"title": self.title, "machine": machine(), "rows": rows}
            self.args.json.write_text(json.dumps(data, indent=2) + "\n")
        return 0

    @staticmethod
    def _line(cells: Sequence[str]) -> str:
        widths = (62, 10, 12, 8, 6, 6)
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)]
        return " ".join([*padded, cells[-1]]).rstrip()


def say(args: argparse.Namespace, text: str) -> None:
    """Print for a person: to stderr if stdout is for Markdown alone."""
    print(text, file=sys.stderr if args.markdown else sys.stdout, flush=True)


def markdown(
    headings: Sequence[str], rows: Sequence[Sequence[str]], without: Sequence[int] = ()
) -> str:
    used = [i for i, _ in enumerate(headings) if i not in without and any(row[i] for row in rows)]
    lines = [[headings[i] for i in used], ["---"] * len(used)]
    lines += [[row[i].replace("|", r"\|") for i in used] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def options(description: str | None) -> argparse.ArgumentParser:
    """The options every script has."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table instead")
    return parser


def machine() -> str:
    """Processor, instruction set and versions, in one line."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else processor
    versions = [f"linattn {linattn.__version__} ({linattn.get_isa()})", f"numpy {np.__version__}"]
    versions += [
        f"{name} {module.__version__}"
        for name in ("torch", "transformers", "jax", "onnxruntime")
        if (module := sys.modules.get(name))
    ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{processor}, {cores} cores; {', '.join(versions)}"
