"""Time and memory against length: Katharopoulos et al., figure 1.

Forward and backward of one attention layer's operator, 8 heads of 64, batch shrinking as N grows;
per sample.  ``python experiments/scaling.py``.
"""

from __future__ import annotations

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm
from training import arguments, record

import linattn.torch as la

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"powers": range(5, 7), "tokens": 2**7, "heads": 2, "d": 8, "repeats": 1},
    "small": {"powers": range(9, 15), "tokens": 2**14, "heads": 8, "d": 64, "repeats": 3},
    "full": {"powers": range(9, 17), "tokens": 2**16, "heads": 8, "d": 64, "repeats": 5},
}
RANK = 128  #: of Linformer's projections, and features of Performer


def operators(n: int, d: int) -> dict[str, Callable[..., Tensor]]:
    """By name, of (q, k, v) alone."""
    phi = la.feature_maps.PositiveRandomFeatures.sample(d, min(RANK, 2 * d), rng=0)
    E = torch.randn(n, min(RANK, n)) / n**0.5
    softmax = torch.nn.functional.scaled_dot_product_attention
    return {
        "softmax": lambda q, k, v: softmax(q, k, v, is_causal=True),
        "linear": la.causal,
        "delta": lambda q, k, v: la.delta(q, k, v, torch.full(q.shape[:-1], 0.5),
                                          feature_map="l2norm"),
        "gated delta": lambda q, k, v: la.gated_delta(
            q, k, v, torch.full(q.shape[:-1], -0.1), torch.full(q.shape[:-1], 0.5),
            feature_map="l2norm",
        ),
        "Performer": lambda q, k, v: la.causal(q, k, v, feature_map=phi),
        "Linformer": lambda q, k, v: la.linformer(q, k, v, E, E),
    }  # fmt: skip


def once(name: str, batch: int, n: int, size: dict[str, Any]) -> float:
    """Seconds a sample, forward and backward."""
    shape = (batch, size["heads"], n, size["d"])
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    function = operators(n, size["d"])[name]
    begin = time.perf_counter()
    function(q, k, v).sum().backward()
    return (time.perf_counter() - begin) / batch


def memory(name: str, n: int, size: dict[str, Any], threads: int, queue: Any) -> None:
    """Puts the peak of a process of its own, of one sample, less what was there before."""
    torch.set_num_threads(threads)
    small = size | {"heads": 1}
    once(name, 1, 16, small)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    once(name, 1, n, size)
    queue.put((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__ or "", argv)
    size = SIZES[options.size]
    torch.manual_seed(options.seed)
    context = multiprocessing.get_context("spawn")
    times: dict[str, dict[int, float]] = {}
    peaks: dict[str, dict[int, float]] = {}
    names = list(operators(16, size["d"]))
    bar = tqdm(size["powers"], disable=options.size == "tiny")
    for power in bar:
        n = 2**power
        batch = max(size["tokens"] // n, 1)
        taken: dict[str, list[float]] = {name: [] for name in names}
        for repeat in range(size["repeats"] + 1):  # the first of them warms up
            for name in names:  # interleaved: a noisy machine disturbs all alike
                bar.set_postfix_str(f"N = {n}, {name}")
                spent = once(name, batch, n, size)
                if repeat:
                    taken[name].append(spent)
        for name in names:
            times.setdefault(name, {})[n] = statistics.median(taken[name])
            if options.size != "tiny":
                queue = context.Queue()
                process = context.Process(
                    target=memory, args=(name, n, size, torch.get_num_threads(), queue)
                )
                process.start()
                peaks.setdefault(name, {})[n] = queue.get(timeout=600)
                process.join()
    result = {"seconds": times, "MiB": peaks, "crossover": crossovers(times)}
    record("scaling", options, result)
    figure(options.out / "scaling.png", times, peaks)
    return result


def crossovers(times: dict[str, dict[int, float]]) -> dict[str, int | None]:
    """The least length measured from which each is faster than softmax attention."""
    softmax = times["softmax"]
    return {
        name: next((n for n in softmax if all(y[m] < softmax[m] for m in softmax if m >= n)), None)
        for name, y in times.items()
        if name != "softmax"
    }


def figure(path: Any, times: dict[str, Any], peaks: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = [("seconds a sample", times), ("MiB a sample", peaks)][: 2 if peaks else 1]
    drawing, axes = plt.subplots(1, len(panels), figsize=(5 * len(panels), 3.6), squeeze=False)
    for panel, (title, values) in zip(axes[0], panels, strict=True):
        for name, y in values.items():
            panel.plot(list(y), [max(x, 1e-3 if title[0] == "M" else 0) for x in y.values()],
                       "o-", label=name, markersize=3)  # fmt: skip
        panel.set(xscale="log", yscale="log", xlabel="N", title=title)
        panel.set_xscale("log", base=2)
        panel.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    drawing.tight_layout()
    drawing.savefig(path, dpi=110)
    plt.close(drawing)


if __name__ == "__main__":
    try:
        result = run()
    except KeyboardInterrupt:
        sys.exit(130)
    for name, n in result["crossover"].items():
        print(f"{name:>12}: faster than softmax attention from N = {n} on")
