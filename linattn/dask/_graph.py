"""The tasks of one call, and the dask arrays that are made of their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask.array as da
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph


class Graph:
    """The tasks of a call, all in one layer: a layer each would take longer than most tasks.

    Keys are named after everything that the call depends on: the same call has the same keys, so
    that dask can replace a worker that dies.
    """

    def __init__(self, name: str, sources: Sequence[Any], *known: Any) -> None:
        self.sources = [x for x in sources if x is not None]
        self.name = f"linattn-{name}-{tokenize(*(x.name for x in self.sources), *known)}"
        self.tasks: dict[Any, Any] = {}

    def add(self, function: Callable[..., Any], *args: Any) -> Any:
        """The key of a task; pickle finds its function by name."""
        key = self.name, len(self.tasks)
        self.tasks[key] = function, *args
        return key

    def reduce(self, parts: list[Any], combine: Callable[..., Any]) -> Any:
        """The key that combines many, in pairs."""
        while len(parts) > 1:
            pairs = [self.add(combine, *parts[i : i + 2]) for i in range(0, len(parts) - 1, 2)]
            parts = pairs + parts[2 * len(pairs) :]
        return parts[0]

    def array(
        self, what: str, parts: dict[tuple[int, ...], Any], chunks: tuple[Any, ...], dtype: Any
    ) -> Any:
        """A dask array of blocks by position, after all tasks have been added."""
        name = f"{self.name}-{what}"
        blocks: dict[Any, Any] = {
            (name, *at, *(0 for _ in chunks[len(at) :])): key for at, key in parts.items()
        }
        tasks = HighLevelGraph.from_collections(self.name, self.tasks, self.sources)
        whole = HighLevelGraph(
            {**tasks.layers, name: blocks}, {**tasks.dependencies, name: {self.name}}
        )
        return da.Array(whole, name, chunks, dtype=dtype)
