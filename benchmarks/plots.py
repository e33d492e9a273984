"""Draw the figures of the documentation from the tables of RESULTS.md in this folder.

`python plots.py FOLDER` writes each figure as NAME-light.svg and NAME-dark.svg, with a transparent
background.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
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


class Panel(NamedTuple):
    """Bars of the rows of a section whose whole names match; a bar's name is the joined groups."""

    title: str
    section: str
    pattern: str
    inverse: bool = False  #: the ratios are the other way around
    chunk: bool = False  #: chunk lengths belong to the names

    def bars(self) -> list[Measured]:
        found = []
        for row in ratios(self.section):
            if match := re.fullmatch(self.pattern, row.what):
                what = "".join(match.groups()) + f", {row.chunk}" * self.chunk
                values = row[2:]
                if self.inverse:
                    values = 1 / row.median, 1 / row.high, 1 / row.low
                found.append(Measured(what, row.chunk, *values))
        if not found:
            raise ValueError(f"{RESULTS.name} has no row {self.pattern!r}")
        return found


class Bars(NamedTuple):
    """A figure of panels, one below the other."""

    size: tuple[float, float]
    panels: tuple[Panel, ...]
    label: str = "time relative to linattn (higher is slower)"
    log: bool = False
    share: bool = True  #: the panels have one scale

    def __call__(self, colors: Sequence[str]) -> Figure:
        figure = Figure(figsize=self.size, layout="constrained")
        rows = [panel.bars() for panel in self.panels]
        options = {"sharex": self.share, "height_ratios": [*map(len, rows)]}
        axes = figure.subplots(len(rows), 1, **options)
        for axis, panel, found, color in zip(axes, self.panels, rows, colors, strict=False):
            draw_bars(axis, found, panel.title, color, log=self.log)
        axes[-1].set_xlabel(self.label)
        return figure


def draw_bars(
    panel: Any, rows: Sequence[Measured], title: str, color: str, *, log: bool = False
) -> None:
    """Draw medians as bars, minimum and maximum as whiskers, and a line at a ratio of 1."""
    rows = rows[::-1]  # barh draws upwards, and the first row belongs on top
    names, _, values, low, high = zip(*rows, strict=True)
    whiskers = [[x - y for x, y in zip(values, low, strict=True)],
                [y - x for x, y in zip(values, high, strict=True)]]  # fmt: skip
    ink = panel.xaxis.label.get_color()
    panel.barh(names, values, xerr=whiskers, color=color, height=0.6, ecolor=ink,
               error_kw={"lw": 1, "capsize": 2})  # fmt: skip
    if log:
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:,g}")
    for i, value in enumerate(values):  # a column of their own keeps the numbers off the whiskers
        panel.annotate(f"{value:.3g}", (1, i), xycoords=panel.get_yaxis_transform(),
                       xytext=(6, 0), textcoords="offset points", va="center")  # fmt: skip
    other = panel.get_xlim()[1]  # of a panel that shares the axis
    panel.set_xlim(0.7 if log else 0, max(other, max(high) * (1.1 if log else 1.03)))
    panel.axvline(1, lw=1, ls="--", color=ink)
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
        rows = [[cell.replace(",", "") for cell in row] for row in rows]
        for color, marker, (i, name) in zip(colors, "osD", enumerate(names, 1), strict=True):
            points = [
                (int(row[0]), *map(float, row[i].removesuffix(" MiB").split(" ms ")))
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


GATED = "Gated recurrences"
MAPS = "Feature maps, Linformer and softmax attention"
MODELS = "Models of Transformers, 1 thread(s)"
#: Names of gated recurrences in Transformers without linattn's function, which is always the same.
SHAPE = r"(, forward(?: \+ backward)?), 8 heads, N = 4,096, d = 64(?:, fastest chunk)?"
FIGURES: dict[str, Callable[[Sequence[str]], Figure]] = {
    "scaling": scaling,
    "peers": Bars((8, 3.6), (
        Panel("forward", "Peers", r"(.*) / linattn, forward"),
        Panel("forward + backward", "Peers", r"(.*) / linattn, forward \+ backward"),
    )),
    "family": Bars((8, 5.2), (
        Panel("forward, relative to the operator without gates", GATED,
              r"((?:gated|gated_delta|dplr)(?: by channel)? / (?:causal|delta)), d = 64"),
        Panel("backward, relative to forward", GATED, r"(\w+_backward / .*), d = 64"),
    ), label="ratio of times, d = 64", share=False),
    "recurrences": Bars((8, 5.6), (
        Panel("delta rule in PyTorch", "Delta rule", r"((?:PyTorch|torch.c).*) / linattn(.*)"),
        Panel("gated recurrences in Transformers", GATED,
              rf"((?:mamba2|torch|chunk)_\w+) / [\w ]+{SHAPE}", chunk=True),
    ), log=True),
    "maps": Bars((8, 4), (
        Panel("feature maps in NumPy", MAPS, r"(.*) / NumPy", inverse=True),
        Panel("attention in PyTorch", MAPS, r"(.*) / PyTorch.*", inverse=True),
    )),
    "models": Bars((8, 7), (
        Panel("whole models", MODELS,
              r"(.*): library / linattn(.*(?:prefill|training|one token).*)"),
        Panel("operator alone", MODELS, r"(.*): library / linattn, operator(, .*)"),
    ), log=True),
}  # fmt: skip


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
