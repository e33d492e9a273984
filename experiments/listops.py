"""ListOps with trainable feedforward kernels: Yorsh and Kovalenko 2022.

The value of a nested expression, one of ten digits, is read where its first operator stands.
Softmax against kernels of 1 to 3 linear units, with gates (GLU), gates and a penalty that keeps
their weights orthogonal (OGLU), and the same with gates of low rank (AOGLU).
``python experiments/listops.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from encoder import Encoder
from expressions import MIN, TOKENS, Trees, distinct
from figures import drawing
from torch import Tensor, nn
from training import (
    arguments,
    attention,
    cosine,
    kept,
    parameters,
    positive,
    record,
    seconds_of_pass,
    seeded,
    train,
    uninterrupted,
)

from linattn.torch import nn as layers

KERNELS = tuple(f"{x}{y}" for x in layers.FeedforwardKernelAttention.kinds for y in (1, 2, 3))
KINDS = ("softmax", *KERNELS)
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "trees": (40, 10, 10), "lengths": (3, 40), "batch": 4, "steps": 4, "every": 2,
        "rate": 1e-3, "warm_up": 2, "seeds": 2, "orthogonality": 1e-2,
        "model": {"width": 16, "heads": 2, "depth": 1, "feedforward": 32},
    },
    "small": {
        "trees": (30_000, 1000, 2000), "lengths": (10, 60), "batch": 32, "steps": 800,
        "every": 200, "rate": 1e-3, "warm_up": 100, "seeds": 3, "orthogonality": 1e-2,
        "model": {"width": 64, "heads": 4, "depth": 2, "feedforward": 128},
    },
    "medium": {
        "trees": (20_000, 200, 2000), "lengths": (500, 2000), "batch": 8, "steps": 800,
        "every": 200, "rate": 1e-3, "warm_up": 100, "seeds": 3, "orthogonality": 1e-2,
        "model": {"width": 64, "heads": 4, "depth": 2, "feedforward": 128},
    },
    "full": {
        "trees": (96_000, 2000, 2000), "lengths": (500, 2000), "batch": 32, "steps": 5000,
        "every": 500, "rate": 5e-4, "warm_up": 1000, "seeds": 3, "orthogonality": 1e-2,
        "model": {"width": 512, "heads": 8, "depth": 6, "feedforward": 2048},
    },
}  # fmt: skip


class Reader(nn.Module):
    """The value of expressions (batch, n): logits (batch, 10)."""

    def __init__(
        self, kind: str, longest: int, *, width: int, heads: int, depth: int, feedforward: int
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(TOKENS), width)
        self.encoder = Encoder(
            [layer(kind, width, heads) for _ in range(depth)], feedforward, longest
        )
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens), lengths)[:, 0])

    def penalty(self, weight: float) -> Tensor:
        """What the regulariser adds to the loss, where the kernel has one."""
        total = torch.zeros(())
        for x in self.modules():
            if isinstance(x, layers.FeedforwardKernelAttention) and x.kind in ("oglu", "aoglu"):
                total = total + x.orthogonality(weight)
        return total


def layer(kind: str, width: int, heads: int) -> layers.Attention:
    if kind in KERNELS:
        return layers.FeedforwardKernelAttention(
            width, heads, kind=kind[:-1], depth=int(kind[-1]), causal=False
        )
    return attention(kind, width, heads, causal=False)


def padded(trees: Trees, rows: Any) -> tuple[Tensor, Tensor]:
    """Those trees as tokens (batch, n), and how many each has."""
    chosen = [torch.from_numpy(trees[i].astype(np.int64)) for i in rows]
    return nn.utils.rnn.pad_sequence(chosen, True), torch.tensor([len(x) for x in chosen])


def alike(trees: Trees, batch: int, generator: torch.Generator) -> list[int]:
    """A batch of like lengths, one of eight drawn together: half as much padding."""
    rows = torch.randint(len(trees), (8 * batch,), generator=generator).tolist()
    begin = int(torch.randint(8, (), generator=generator)) * batch
    return sorted(rows, key=lambda i: len(trees[i]))[begin : begin + batch]


def right(model: nn.Module, trees: Trees, values: np.ndarray) -> np.ndarray:
    """Whether each tree's value is found, in batches of like lengths."""
    order = sorted(range(len(trees)), key=lambda i: len(trees[i]))
    found = np.zeros(len(trees), bool)
    for i in range(0, len(order), 50):
        rows = order[i : i + 50]
        found[rows] = model(*padded(trees, rows)).argmax(-1).numpy() == values[rows]
    return found


def by_length(found: np.ndarray, trees: Trees, shortest: int, longest: int) -> dict[str, float]:
    """The accuracy of three ranges of lengths."""
    lengths = np.array([len(x) for x in trees])
    edges = np.linspace(shortest, longest, 4).astype(int)
    return {
        f"{low} to {high}": float(found[(lengths >= low) & (lengths < high)].mean())
        for low, high in pairwise(edges)
        if ((lengths >= low) & (lengths < high)).any()
    }


def seconds_a_step(
    model: nn.Module, loss: Callable[..., Tensor], trees: Trees, size: dict[str, Any]
) -> dict[str, float]:
    """Those of a pass forward and backward, the fastest of three, on trees of about that length."""
    found = {}
    for length in np.linspace(*size["lengths"], 4).astype(int).tolist():
        rows = sorted(range(len(trees)), key=lambda i: abs(len(trees[i]) - length))[: size["batch"]]
        found[f"{length} tokens"] = min(seconds_of_pass(model, loss, rows) for _ in range(3))
    return found


def guesses(trees: Trees, values: np.ndarray, test: Trees, goals: np.ndarray) -> dict[str, float]:
    """The accuracy of the commonest value, and of the commonest of the first operator."""
    first, asked = (np.array([x[0] for x in y]) for y in (trees, test))
    by_first = np.zeros(len(TOKENS), np.int64)
    for token in range(MIN, len(TOKENS)):
        by_first[token] = np.bincount(values[first == token], minlength=10).argmax()
    return {
        "commonest value": float((goals == np.bincount(values).argmax()).mean()),
        "commonest value of the first operator": float((goals == by_first[asked]).mean()),
    }


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(
        __doc__ or "", argv, KINDS, SIZES,
        seeds={"type": positive, "help": "how many, from --seed on"},
        trees={"type": positive, "help": "fewer than the size's own numbers"},
    )  # fmt: skip
    size = SIZES[options.size]
    steps = options.steps or size["steps"]
    seeds = options.seeds or size["seeds"]
    shortest, longest = size["lengths"]
    counts = [min(x, options.trees or x) for x in size["trees"]]
    trees, values = distinct(sum(counts), 0, shortest=shortest, longest=longest)
    cuts = np.cumsum(counts)[:2]
    (training, judged, test), goals = (
        (x[: cuts[0]], x[cuts[0] : cuts[1]], x[cuts[1] :]) for x in (trees, values)
    )
    kinds = options.kinds or (
        "softmax", "linear1", "linear2", "linear3", "glu1", "glu2", "oglu1", "aoglu1",
    )  # fmt: skip
    runs: dict[str, Any] = {x: {"test accuracy": [], "by length": [], "rows": []} for x in kinds}
    runs["guesses"] = guesses(training, goals[0], test, goals[2])

    def loss_on(model: nn.Module, rows: list[int]) -> Tensor:
        logits = model(*padded(training, rows))
        goal = torch.from_numpy(goals[0][rows])
        return nn.functional.cross_entropy(logits, goal) + model.penalty(size["orthogonality"])

    def loss(model: nn.Module, g: torch.Generator) -> Tensor:
        return loss_on(model, alike(training, size["batch"], g))

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"accuracy": float(right(model, judged, goals[1]).mean())}

    def rate(step: int) -> float:
        return cosine(step, steps, warm_up=size["warm_up"], peak=size["rate"])

    for seed in range(options.seed, options.seed + seeds):
        own = argparse.Namespace(**{**vars(options), "seed": seed})
        for kind in kinds:
            seeded(seed)
            model = Reader(kind, longest, **size["model"])
            rows = train(
                f"listops_{kind}_{seed}", model, loss, own, steps=steps, rate=rate,
                evaluate=evaluate, every=size["every"], facts={**size, "trees": counts},
            )  # fmt: skip
            model.eval()
            with torch.no_grad():
                found = right(model, test, goals[2])
            runs[kind]["test accuracy"].append(float(found.mean()))
            runs[kind]["by length"].append(by_length(found, test, shortest, longest))
            runs[kind]["rows"].append(rows)
            if seed == options.seed:
                measure = partial(seconds_a_step, model, loss_on, training, size)
                times = kept("listops", options, kind, measure, {**size, "trees": counts})
                runs[kind] |= {"parameters": parameters(model), "seconds a step": times}
        record("listops", options, runs)  # a seed that is finished can be read
        _picture(options.out / "listops.png", runs)
    return runs


def _picture(path: Any, runs: dict[str, Any]) -> None:
    """Accuracy against time, the means over seeds, and on the test trees a point a seed."""
    with drawing(path, 1, 2, figsize=(10, 3.6)) as (left, right):
        kinds = [x for x in runs if x != "guesses"]
        for place, kind in enumerate(kinds):
            found = np.array([[x["accuracy"] for x in rows] for rows in runs[kind]["rows"]])
            seconds = np.array([[x["seconds"] for x in rows] for rows in runs[kind]["rows"]])
            left.plot(seconds.mean(0) / 60, found.mean(0), label=kind)
            points = runs[kind]["test accuracy"]
            right.plot(points, [place] * len(points), "o", alpha=0.6)
        for name, style in (
            ("commonest value", ":"),
            ("commonest value of the first operator", "--"),
        ):
            for panel, line in ((left, left.axhline), (right, right.axvline)):
                line(runs["guesses"][name], color="black", lw=0.8, ls=style, label=name)
                panel.grid(alpha=0.3)
        left.set(
            xlabel="minutes of processor time",
            title="accuracy on validation trees, mean over seeds",
        )
        right.set(title="accuracy on test trees, a point a seed", yticks=range(len(kinds)))
        right.set_yticklabels(kinds)
        right.invert_yaxis()
        left.legend(fontsize=7, ncol=2)


if __name__ == "__main__":
    for kind, found in uninterrupted(run).items():
        if kind != "guesses":
            points = np.array(found["test accuracy"])
            print(f"{kind:>8}: {points.mean():.4f}, {points.min():.4f} to {points.max():.4f}")
