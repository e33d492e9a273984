"""What the options of commands may be: numbers of threads, files to write."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from linattn._core import settings

FIGURES = (".png", ".svg", ".pdf")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def threads(text: str) -> int:
    _needs("threadpoolctl", "needs threadpoolctl to limit NumPy as well")
    if (number := positive(text)) > settings.MAX_THREADS:
        raise argparse.ArgumentTypeError(f"expected 1 to {settings.MAX_THREADS}, got {text!r}")
    return number


def writable(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write a file at {text!r}")
    return path


def figure(text: str) -> Path:
    _needs("matplotlib", "needs matplotlib")
    if (path := writable(text)).suffix not in FIGURES:
        raise argparse.ArgumentTypeError(f"expected a name in {', '.join(FIGURES)}, got {text!r}")
    return path


def _needs(package: str, problem: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise argparse.ArgumentTypeError(f"{problem}: pip install {package}")
