"""Figures of the experiments, as files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def drawing(path: Path, rows: int, columns: int, **options: Any) -> Iterator[Any]:
    """Axes (rows, columns), or their row or one where there is one; written to `path` at the end.

    matplotlib is imported here, as runs without a figure do without it.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(rows, columns, **options)
    try:
        yield axes
        figure.tight_layout()
        figure.savefig(path, dpi=110)
    finally:
        plt.close(figure)


def curves(path: Path, runs: dict[str, list[dict[str, float]]], fields: list[str]) -> None:
    """What was measured against steps, a panel a field."""
    size = (4.5 * len(fields), 3.2)
    with drawing(path, 1, len(fields), figsize=size, squeeze=False) as axes:
        for panel, field in zip(axes[0], fields, strict=True):
            for name, rows in runs.items():
                panel.plot([x["step"] for x in rows], [x[field] for x in rows], label=name)
            panel.set(xlabel="steps", title=field)
            panel.grid(alpha=0.3)
        axes[0][0].legend()
