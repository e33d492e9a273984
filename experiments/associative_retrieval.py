"""Associative retrieval: Schlag et al., figures 2 and 3, with learned keys.

Pairs of a key and a value are written into a memory, and every key is then asked for its value.
Figure 2 stores S different pairs, each once, and compares feature maps of the sum rule.  Figure 3
draws 2 S pairs, whose keys repeat: the last value counts, so a memory has to replace.  It compares
update rules.  A value is a unit vector of S numbers; keys, queries, write strengths and gates
are linear in learned embeddings.  ``python experiments/associative_retrieval.py``.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from figures import drawing
from torch import Tensor, nn
from training import arguments, clock, cosine, generator, kept, record, seeded, uninterrupted

import linattn.torch as la
from linattn.torch import feature_maps

WIDTH = 64  #: of keys and queries before their map
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"steps": 3, "every": 2, "rate": 3e-3, "queries": 8,
             "once": (4, 6), "repeated": (4, 6), "random": 4},
    "small": {"steps": 1000, "every": 50, "rate": 3e-3, "queries": 200,
              "once": (20, 60, 100, 140, 200, 260, 300, 400, 600),
              "repeated": (20, 40, 60, 80, 100, 120, 160, 200), "random": 300},
    "full": {"steps": 10_000, "every": 100, "rate": 1e-3, "queries": 1000,
             "once": tuple(range(20, 601, 20)), "repeated": tuple(range(20, 201, 20)),
             "random": 600},
}  # fmt: skip
SOLVED = 1e-3  #: a loss below which a run ends, as in the paper
PATIENCE = 10  #: evaluations without progress, 1 % of the loss, after which it ends
#: Update rule, feature map and its number, by the names of the figures' curves.
ONCE = {
    "softmax": ("softmax", "", 0), "linear (elu)": ("sum", "elu", 0),
    "DPFP-1": ("sum", "dpfp", 1), "DPFP-2": ("sum", "dpfp", 2), "DPFP-3": ("sum", "dpfp", 3),
    "FAVOR+, 64": ("sum", "favor", 64), "FAVOR+, 128": ("sum", "favor", 128),
    "FAVOR+, 512": ("sum", "favor", 512),
}  # fmt: skip
REPEATED = {
    "sum, DPFP-1": ("sum", "dpfp", 1), "delta, elu": ("delta", "elu", 0),
    "delta, DPFP-1": ("delta", "dpfp", 1), "delta, DPFP-2": ("delta", "dpfp", 2),
    "delta, FAVOR+, 64": ("delta", "favor", 64), "delta, unit keys": ("delta", "l2norm", 0),
    "gated delta, DPFP-1": ("gated_delta", "dpfp", 1),
    "gated delta, unit keys": ("gated_delta", "l2norm", 0),
}  # fmt: skip


def map_of(rule: str, name: str, number: int, seed: int) -> Any:
    """The feature map; the delta rules divide features by their sum, as in the paper."""
    if name == "favor":
        phi = feature_maps.PositiveRandomFeatures.sample(WIDTH, number, rng=seed, hyperbolic=True)
        return phi if rule == "sum" else feature_maps.SumNormalized(phi)
    if name == "dpfp":
        return feature_maps.DPFP(number)
    return feature_maps.SumNormalized("elu") if name == "elu" and rule != "sum" else name


class Memory(nn.Module):
    """Answers (batch, queries, S) to queries after pairs have been written."""

    def __init__(self, pairs: int, rule: str, short_keys: bool = False) -> None:
        super().__init__()
        self.pairs, self.rule = pairs, rule
        width = int(2.2 * pairs)
        self.embedding = nn.Embedding(pairs, width)
        self.k, self.q = nn.Linear(width + pairs, WIDTH), nn.Linear(width, WIDTH)
        self.beta, self.gate = nn.Linear(width + pairs, 1), nn.Linear(width + pairs, 1)
        bound = WIDTH**-0.5
        for layer in (self.k, self.q):  # as in the authors' program, but for random features
            if short_keys:
                nn.init.xavier_uniform_(layer.weight)
            else:
                nn.init.uniform_(layer.weight, -bound, bound)

    def forward(self, keys: Tensor, values: Tensor, queries: Tensor, phi: Any) -> Tensor:
        v = nn.functional.one_hot(values, self.pairs).to(torch.float32)
        x = torch.cat([v, self.embedding(keys)], -1)
        k, q = self.k(x), self.q(self.embedding(queries))
        if self.rule == "softmax":
            return la.softmax_attention(q, k, v)
        if self.rule == "sum":
            return la.noncausal(q, k, v, feature_map=phi)
        beta = torch.sigmoid(self.beta(x))[..., 0]
        write = la.delta
        if self.rule == "gated_delta":
            gate = nn.functional.logsigmoid(self.gate(x)[..., 0] + 5)  # begins near no decay
            write = partial(la.gated_delta, g=gate)
        _, state = write(k, k, v, beta=beta, feature_map=phi, return_state=True)
        return mapped(phi, q) @ state.s


def mapped(phi: Any, q: Tensor) -> Tensor:
    """phi(q), of a map or its name."""
    return feature_maps.get(phi)(q) if isinstance(phi, str) else phi(q)


def draw(pairs: int, batch: int, repeated: bool, g: torch.Generator) -> tuple[Tensor, ...]:
    """Keys and values (batch, n), queries (batch, S), and the values that are right.

    Where keys repeat, one that does not occur is asked for as well; its value is -1.
    """
    if not repeated:
        keys, values = (
            torch.stack([torch.randperm(pairs, generator=g) for _ in range(batch)]) for _ in "kv"
        )
    else:
        keys, values = (torch.randint(pairs, (batch, 2 * pairs), generator=g) for _ in "kv")
    right = torch.full((batch, pairs), -1)
    for i in range(keys.shape[1]):  # a later value replaces an earlier one
        right.scatter_(1, keys[:, i : i + 1], values[:, i : i + 1])
    return keys, values, torch.arange(pairs).expand(batch, pairs), right


def loss_of(model: Memory, drawn: tuple[Tensor, ...], phi: Any) -> Tensor:
    """Half the squared error of an answer, the paper's loss; 0.5 is that of an answer of zeros."""
    *tokens, right = drawn
    asked = right >= 0
    goal = nn.functional.one_hot(right[asked], model.pairs)
    return (model(*tokens, phi)[asked] - goal).square().sum(-1).mean() / 2


def stalled(losses: list[float]) -> bool:
    before = losses[:-PATIENCE]
    return bool(before) and min(losses[-PATIENCE:]) > 0.99 * min(before)


def learned(
    pairs: int, kind: tuple[str, str, int], repeated: bool, size: dict[str, Any], seed: int,
    steps: int,
) -> dict[str, Any]:  # fmt: skip
    """Trains a memory; the least loss on sequences that it has not seen, and how it got there."""
    seeded(seed)
    model, begin = Memory(pairs, kind[0], kind[0] == "softmax" or kind[1] == "favor"), clock()
    descent = torch.optim.Adam(model.parameters())
    batch = max(size["queries"] // pairs, 1)
    losses: list[float] = []

    def drawn(step: int, batch: int) -> tuple[Tensor, ...]:
        return draw(pairs, batch, repeated, generator(seed, step))

    for step in range(1, steps + 1):
        for group in descent.param_groups:
            group["lr"] = cosine(step, steps, warm_up=1, peak=size["rate"], least=0.1)
        descent.zero_grad()
        loss_of(model, drawn(step, batch), map_of(*kind, seed=step)).backward()
        descent.step()
        if step % size["every"] == 0 or step == steps:
            with torch.no_grad():
                phi = map_of(*kind, seed=-step % 2**31)
                losses.append(loss_of(model, drawn(-step, 8), phi).item())
            if losses[-1] < SOLVED or stalled(losses):
                break
    return {"loss": min(losses), "steps": step, "seconds": round(clock() - begin, 1),
            "losses": losses}  # fmt: skip


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__ or "", argv, (*ONCE, *REPEATED))
    size = SIZES[options.size]
    steps = options.steps or size["steps"]
    result: dict[str, Any] = {}
    for setting, kinds in (("once", ONCE), ("repeated", REPEATED)):
        found: dict[str, Any] = {x: {} for x in kinds if x in (options.kinds or kinds)}
        for name in found:
            most = size["random"] if kinds[name][1] == "favor" else size[setting][-1]
            for pairs in (x for x in size[setting] if x <= most):
                compute = partial(
                    learned, pairs, kinds[name], setting == "repeated", size, options.seed, steps
                )
                part = f"{setting}, {name}, {pairs}"
                found[name][pairs] = kept("associative_retrieval", options, part, compute, size)
        result[setting] = found
    record("associative_retrieval", options, result)
    figure(options.out / "associative_retrieval.png", result)
    return result


def figure(path: Path, result: dict[str, Any]) -> None:
    """The loss against the number of pairs, a panel a setting."""
    with drawing(path, 1, 2, figsize=(10, 4)) as panels:
        titles = {"once": "every key once", "repeated": "keys repeat, the last value counts"}
        for panel, (setting, title) in zip(panels, titles.items(), strict=True):
            for name, points in result[setting].items():
                style = "k--" if name == "softmax" else "x:" if "FAVOR" in name else ".-"
                panel.plot(
                    [int(x) for x in points],
                    [x["loss"] for x in points.values()],
                    style,
                    label=name,
                )
            panel.set(xlabel="pairs stored, S", ylabel="loss", title=title, ylim=(-0.02, 0.8))
            panel.grid(alpha=0.3)
            panel.legend(fontsize=7, ncol=2, loc="upper left")


if __name__ == "__main__":
    for setting, kinds in uninterrupted(run).items():
        for name, points in kinds.items():
            ends = ", ".join(f"{n}: {x['loss']:.3f}" for n, x in points.items())
            print(f"{setting}, {name}: {ends}")
