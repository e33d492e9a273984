"""Draw the figures of the documentation from the tables of RESULTS.md in this folder.

`python plots.py FOLDER` writes each figure as NAME-light.svg and NAME-dark.svg, with a transparent
background.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

RESULTS = Path(__file__).resolve().parent / "RESULTS.md"

#: The colour of lines and text, and colours of Okabe and Ito that are visible on the page.
THEMES = {
    "light": {"ink": "#222832", "colors": ("#0072b2", "#d55e00", "#737373")},
    "dark": {"ink": "#ced6dd", "colors": ("#56b4e9", "#e69f00", "#a0a0a0")},
}


class Measured(NamedTuple):
    """A row of a table: its name, the chunk length if there is one, median, minimum and maximum."""

    what: str
    chunk: str
    median: float
    low: float
    high: float


def section(title: str) -> str:
    """Return the text below a heading of RESULTS.md."""
    found = re.search(rf"^## {re.escape(title)}.*?\n(.*?)(?=^## |\Z)", TEXT, flags=re.M | re.S)
    if found is None:
        raise ValueError(f"{RESULTS.name} has no section {title!r}")
    return found[1]


def table(text: str) -> list[list[str]]:
    """Return the cells of a Markdown table, its header row first."""
    head, _, *rows = (line for line in text.splitlines() if line.startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (head, *rows)]


def ratios(title: str) -> list[Measured]:
    """Return the rows of a section that hold ratios."""
    rows = []
    for what, median, spread, *_, detail in table(section(title))[1:]:
        if median.endswith(" x") and spread:
            chunk = re.match(r"chunk \d+", detail)
            numbers = (float(x) for x in (median[:-2], *spread.split("-")))
            rows.append(Measured(what, chunk[0] if chunk else "", *numbers))
    return rows


def pick(rows: Iterable[Measured], pattern: str, without: str = "") -> list[Measured]:
    """Return the rows whose whole name matches; the pattern's group becomes the new name."""
    found = [(re.fullmatch(pattern, row.what), row) for row in rows]
    picked = [row._replace(what=match[1].replace(without, "")) for match, row in found if match]
    if not picked:
        raise ValueError(f"{RESULTS.name} has no row {pattern!r}")
    return picked


def bars(
    panel: Any, rows: Sequence[Measured], title: str, color: str, *, log: bool = False
) -> None:
    """Draw medians as bars, minimum and maximum as whiskers, and a line at a ratio of 1."""
    rows = rows[::-1]  # barh draws upwards, and the first row belongs on top
    names = [row.what for row in rows]
    values = [row.median for row in rows]
    whiskers = [
        [row.median - row.low for row in rows],
        [row.high - row.median for row in rows],
    ]
    panel.barh(names, values, xerr=whiskers, color=color, height=0.6,
               ecolor=panel.xaxis.label.get_color(), error_kw={"lw": 1, "capsize": 2})  # fmt: skip
    if log:
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:,g}")
    for i, row in enumerate(rows):  # a column of their own keeps the numbers off the whiskers
        panel.annotate(f"{row.median:.3g}", (1, i), xycoords=panel.get_yaxis_transform(),
                       xytext=(6, 0), textcoords="offset points", va="center")  # fmt: skip
    right = max(row.high for row in rows) * (1.1 if log else 1.03)
    other = panel.get_xlim()[1]  # of a panel that shares the axis
    panel.set_xlim(0.7 if log else 0, max(other, right))
    panel.axvline(1, lw=1, ls="--", color=panel.xaxis.label.get_color())
    panel.set_title(title, fontsize="medium")
    panel.grid(axis="x", alpha=0.25)
    panel.spines[["top", "right"]].set_visible(False)


def scaling(colors: Sequence[str]) -> Figure:
    """Plot time and memory against N."""
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row")
    text = section("Scaling")
    for column, mode in enumerate(("Forward", "Forward + backward")):
        _, _, rest = text.partition(f"\n{mode}:\n")
        (_, *names), *rows = table(rest.strip().split("\n\n")[0])
        for color, marker, (i, name) in zip(colors, "osD", enumerate(names, 1), strict=True):
            points = [
                (int(row[0].replace(",", "")), *map(_number, row[i].split(" ms, ")))
                for row in rows if row[i] != "-"
            ]  # fmt: skip
            n, time, memory = zip(*points, strict=True)
            label = name.replace("K^T", "K$^T$")
            panels[0, column].plot(n, time, marker, ls="-", ms=4, color=color, label=label)
            panels[1, column].plot(n, memory, marker, ls="-", ms=4, color=color)
        panels[0, column].set_title(mode.lower(), fontsize="medium")
        panels[1, column].set_xlabel("N (tokens)")
    for panel in panels.flat:
        panel.set(xscale="log", yscale="log")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylabel("milliseconds")
    panels[1, 0].set_ylabel("MiB beyond the operands")
    handles = panels[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _number(text: str) -> float:
    return float(text.removesuffix(" MiB").replace(",", ""))


def peers(colors: Sequence[str]) -> Figure:
    """Plot the time of other causal operators relative to linattn's."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, height_ratios=(5, 3))
    for panel, mode, color in zip(panels, ("forward", "forward + backward"), colors, strict=False):
        bars(panel, pick(ratios("Peers"), rf"(.*) / linattn, {re.escape(mode)}"), mode, color)
    panels[1].set_xlabel("time relative to linattn (higher is slower)")
    return figure


def family(colors: Sequence[str]) -> Figure:
    """Plot the cost of gates, of low-rank terms and of gradients."""
    rows = ratios("Gated recurrences")
    figure = Figure(figsize=(8, 5.2), layout="constrained")
    upper, lower = figure.subplots(2, 1)
    forward = pick(rows, r"((?:gated|gated_delta|dplr)(?: by channel)? / (?:causal|delta)), d = 64")
    backward = pick(rows, r"(\w+_backward / .*), d = 64")
    bars(upper, forward, "forward, relative to the operator without gates", colors[0])
    bars(lower, backward, "backward, relative to forward", colors[1])
    lower.set_xlabel("ratio of times, d = 64")
    return figure


def recurrences(colors: Sequence[str]) -> Figure:
    """Plot the time of other delta rules and gated recurrences relative to linattn's."""
    figure = Figure(figsize=(8, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(6, 8))
    delta = pick(ratios("Delta rule"), r"((?:PyTorch|torch.compile).*)", " / linattn")
    gated = pick(
        ratios("Gated recurrences"),
        r"((?:mamba2|torch|chunk)_.*), 8 heads, N = 4,096, d = 64(?:, fastest chunk)?",
    )
    gated = [  # linattn's function, after the slash, is the same for all
        row._replace(what=f"{re.sub(' / [^,]*', '', row.what)}, {row.chunk}") for row in gated
    ]
    bars(upper, delta, "delta rule in PyTorch", colors[0], log=True)
    bars(lower, gated, "gated recurrences in Transformers", colors[1], log=True)
    lower.set_xlabel("time relative to linattn (higher is slower)")
    return figure


def inverse(rows: Iterable[Measured]) -> list[Measured]:
    """Return the reciprocal of every ratio."""
    return [row._replace(median=1 / row.median, low=1 / row.high, high=1 / row.low) for row in rows]


def maps(colors: Sequence[str]) -> Figure:
    """Plot the time of other maps, softmax attention and Linformer relative to linattn's."""
    rows = ratios("Feature maps, Linformer and softmax attention")
    figure = Figure(figsize=(8, 4), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(7, 4))
    bars(upper, inverse(pick(rows, r"(.*) / NumPy")), "feature maps in NumPy", colors[0])
    bars(lower, inverse(pick(rows, r"(.*) / PyTorch.*")), "attention in PyTorch", colors[1])
    lower.set_xlabel("time relative to linattn (higher is slower)")
    return figure


def models(colors: Sequence[str]) -> Figure:
    """Plot the time of models of Transformers without linattn relative to the time with it."""
    rows = ratios("Models of Transformers, 1 thread(s)")
    figure = Figure(figsize=(8, 7), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    whole = pick(rows, r"(.*(?:prefill|training|one token).*)", ": library / linattn")
    parts = pick(rows, r"(.*linattn, operator, .*)", ": library / linattn, operator")
    bars(panels[0], whole, "whole models", colors[0], log=True)
    bars(panels[1], parts, "operator alone", colors[1], log=True)
    panels[1].set_xlabel("time relative to linattn (higher is slower)")
    return figure


FIGURES: dict[str, Callable[[Sequence[str]], Figure]] = {
    f.__name__: f for f in (scaling, peers, family, recurrences, maps, models)
}


def draw_all(folder: Path) -> None:
    """Draw every figure in both themes."""
    for theme, look in THEMES.items():
        ink = look["ink"]
        style = {
            "axes.edgecolor": ink, "axes.labelcolor": ink, "text.color": ink, "xtick.color": ink,
            "ytick.color": ink, "grid.color": ink, "svg.fonttype": "none", "svg.hashsalt": "1",
            "font.size": 9.5,
        }  # fmt: skip
        with rc_context(style):
            for name, draw in FIGURES.items():
                file = folder / f"{name}-{theme}.svg"
                draw(look["colors"]).savefig(file, transparent=True, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    draw_all(folder)
    return 0


TEXT = RESULTS.read_text(encoding="utf-8")

if __name__ == "__main__":
    sys.exit(main())
