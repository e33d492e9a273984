"""What programs here share: options, the table that they print as they run, fresh processes."""

from __future__ import annotations

import argparse
import datetime
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import linattn
from linattn._cli import info


@dataclass
class Figure:
    """One line of a report: a figure, perhaps with a goal, or the reason why there is none."""

    what: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    unit: str = "x"
    goal: float | None = None
    least: bool = False  # the goal is a floor, not a ceiling
    seconds: tuple[float, ...] = ()  # of both calls, medians
    errors: str = ""
    gradients: str = ""  # whether the peer has any
    threads: int | str = ""
    detail: str = ""
    skipped: str = ""

    @property
    def met(self) -> bool | None:
        if self.goal is None or self.value is None:
            return None
        return self.value >= self.goal if self.least else self.value <= self.goal

    def cells(self) -> list[str]:
        figure = "" if self.value is None else f"{self.value:.3g} {self.unit}"
        spread = "" if self.low is None else f"{self.low:.3g}-{self.high:.3g}"
        goal = "" if self.goal is None else f"{'>=' if self.least else '<='} {self.goal:g}"
        verdict = {True: "met", False: "missed", None: ""}[self.met]
        about = [self.errors, self.gradients, str(self.threads)]
        detail = f"skipped: {self.skipped}" if self.skipped else self.detail
        return [self.what, figure, spread, goal, verdict, *about, detail]


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
HEADINGS = ["measured", "median", "min-max", "goal", "", "errors", "gradients", "threads", "detail"]
WIDTHS = (62, 10, 13, 8, 6, 14, 9, 7)
#: Columns for those who work on the kernels; what is published gives the figures.
GOALS = (3, 4)


@dataclass
class Report:
    """Figures printed as they come, then written as JSON or Markdown where asked for."""

    title: str
    markdown: bool = False
    figures: list[Figure] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.say(f"\n{self.title}\n{machine()}\n{_line(HEADINGS)}")

    def say(self, text: str) -> None:
        """Print for a person: to stderr if stdout is for Markdown alone."""
        print(text, file=sys.stderr if self.markdown else sys.stdout, flush=True)

    def add(self, figure: Figure) -> None:
        self.figures.append(figure)
        self.say(_line(figure.cells()))

    def finish(self) -> None:
        if self.markdown:
            print(f"## {self.title}\n\n{machine()}, {datetime.date.today()}.\n")
            print(table(HEADINGS, [x.cells() for x in self.figures], without=GOALS))

    def data(self) -> dict[str, object]:
        rows = [asdict(x) | {"met": x.met} for x in self.figures]
        return {"title": self.title, "machine": machine(), "rows": rows}


def _line(cells: Sequence[str]) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=False)]
    return " ".join([*padded, cells[-1]]).rstrip()


def table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], without: Sequence[int] = ()
) -> str:
    """In Markdown, without the columns that are empty."""
    used = [i for i, _ in enumerate(headings) if i not in without and any(row[i] for row in rows)]
    lines = [[headings[i] for i in used], ["---"] * len(used)]
    lines += [[row[i].replace("|", r"\|") for i in used] for row in rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def options(description: str | None) -> argparse.ArgumentParser:
    """The options that every program has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table instead")
    return parser


def write(file: Path | None, data: object) -> None:
    if file:
        file.write_text(json.dumps(data, indent=2) + "\n")


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` in a new interpreter; a process the system kills is a MemoryError."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *args).result()
        except BrokenProcessPool:
            raise MemoryError("the process was killed") from None


def machine() -> str:
    """Processor, instruction set and versions, in one line."""
    versions = [f"linattn {linattn.__version__} ({linattn.get_isa()})", f"numpy {np.__version__}"]
    versions += [
        f"{name} {module.__version__}"
        for name in ("torch", "transformers", "jax", "onnxruntime")
        if (module := sys.modules.get(name))
    ]
    return f"{info.cpu()}, {CORES} cores; {', '.join(versions)}"
