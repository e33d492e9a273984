"""A progress bar with the time left, for commands."""

from __future__ import annotations

import time
from typing import Any


class Bar:
    """A progress bar, shown only on a terminal.

    ``total`` is the cost of all steps, in any unit roughly proportional to time.
    """

    WIDTH = 30

    def __init__(self, stream: Any, total: float = 1.0) -> None:
        self.stream = stream if stream is not None and stream.isatty() else None
        self.total, self.done, self._now = total, 0.0, 0.0
        self._began = time.perf_counter()

    def step(self, what: str, cost: float = 1.0) -> None:
        """Show the step that starts now, which has the given cost."""
        self.done += self._now
        self._now = cost
        if self.stream:
            full = min(self.WIDTH, int(self.WIDTH * self.done / self.total))
            text = f"[{'#' * full}{'.' * (self.WIDTH - full)}] {what}{self._left()}"
            self.stream.write(f"\r{text}\x1b[K")
            self.stream.flush()

    def _left(self) -> str:
        """The time left, once enough is done for an estimate."""
        if self.done < 0.02 * self.total:
            return ""
        taken = time.perf_counter() - self._began
        seconds = taken * max(0.0, self.total - self.done) / self.done
        minutes = f"{seconds // 60:.0f} min " if seconds >= 60 else ""
        return f", {minutes}{seconds % 60:.0f} s left"

    def clear(self) -> None:
        """Remove the bar."""
        if self.stream:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
