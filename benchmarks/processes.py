"""A function in a fresh process, and the best time of a call."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` in a new interpreter; a process the system kills is a MemoryError."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *args).result()
        except BrokenProcessPool:
            raise MemoryError("the process was killed") from None


def best(call: Callable[[], Any], budget: float) -> float:
    """Least seconds of a call over about ``budget`` seconds, two calls at least."""
    taken: list[float] = []
    while len(taken) < 2 or (sum(taken) < budget and len(taken) < 100):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)
