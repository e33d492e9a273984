"""Time and memory against length: Katharopoulos et al., figure 1.

Forward and backward of one attention layer's operator, 8 heads of 64, batch shrinking as N grows;
per sample.  ``python experiments/scaling.py``.
"""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from figures import drawing
from torch import Tensor
from tqdm import tqdm
from training import arguments, clock, kept, record, uninterrupted

import linattn.torch as la

#: An operator of which a pass would take longer than `patience` seconds is left out from there on.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"powers": range(7, 9), "tokens": 2**7, "heads": 2, "d": 8, "repeats": 1,
             "patience": 60},
    "small": {"powers": range(5, 17), "tokens": 2**13, "heads": 8, "d": 64, "repeats": 2,
              "patience": 60},
    "full": {"powers": range(5, 17), "tokens": 2**16, "heads": 8, "d": 64, "repeats": 6,
             "patience": 3600},
}  # fmt: skip
RANK = 128  #: of Linformer's projections, and features of Performer
LONG = 10  #: seconds of a pass that is made once


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
    begin = clock()
    function(q, k, v).sum().backward()
    return (clock() - begin) / batch


def alone(name: str, n: int, size: dict[str, Any], threads: int, queue: Any) -> None:
    """Puts the seconds of one sample and the MiB at the peak, less what was there before.

    In a process of its own, whose peak nothing else has raised.
    """
    torch.set_num_threads(threads)
    once(name, 1, 16, size | {"heads": 1})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    taken = once(name, 1, n, size)
    queue.put((taken, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024))


def measured(n: int, names: list[str], long: set[str], size: dict[str, Any]) -> dict[str, Any]:
    """The least seconds and the MiB a sample of each at one length."""
    batch = max(size["tokens"] // n, 1)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(size["repeats"]):
        for name in names:  # interleaved: a noisy machine disturbs all alike
            if name not in long:
                taken[name].append(once(name, batch, n, size))
    peaks = {}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "linattn.torch"])
    for name in names:
        queue = context.Queue()
        process = context.Process(
            target=alone, args=(name, n, size, torch.get_num_threads(), queue)
        )
        process.start()
        spent, peaks[name] = queue.get(timeout=10 * size["patience"])
        process.join()
        taken[name].append(spent)
    return {"seconds": {name: min(x) for name, x in taken.items()}, "MiB": peaks}


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__ or "", argv)
    size = SIZES[options.size]
    torch.manual_seed(options.seed)
    times: dict[str, dict[int, float]] = {name: {} for name in operators(16, size["d"])}
    peaks: dict[str, dict[int, float]] = {name: {} for name in times}
    expected = dict.fromkeys(times, 0.0)  # seconds of a pass, at most
    facts = {x: size[x] for x in ("tokens", "heads", "d", "repeats")}
    bar = tqdm(size["powers"], disable=options.size == "tiny")
    for power in bar:
        n = 2**power
        names = [name for name, x in expected.items() if x <= size["patience"]]
        long = {name for name in names if expected[name] > LONG}
        bar.set_postfix_str(f"N = {n}")
        row = kept("scaling", options, str(n), partial(measured, n, names, long, size), facts)
        for name in names:
            times[name][n], peaks[name][n] = row["seconds"][name], row["MiB"][name]
            expected[name] = 4 * times[name][n] * max(size["tokens"] // (2 * n), 1)
    result = {"seconds": times, "MiB": peaks, "crossover": crossovers(times), "heads":
              size["heads"], "d": size["d"], "features": RANK, "rank": RANK}  # fmt: skip
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
    with drawing(path, 1, 2, figsize=(10, 3.6)) as axes:
        for panel, title, values in zip(
            axes, ("seconds a sample", "MiB a sample"), (times, peaks), strict=True
        ):
            for name, y in values.items():
                panel.plot(list(y), list(y.values()), "o-", label=name, markersize=3)
            panel.set(xlabel="N", title=title)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log", nonpositive="mask")  # of a short sample no memory is seen
            panel.grid(alpha=0.3)
        axes[0].legend(fontsize=8)


if __name__ == "__main__":
    result = uninterrupted(run)
    for name, n in result["crossover"].items():
        print(f"{name:>12}: faster than softmax attention from N = {n} on")
