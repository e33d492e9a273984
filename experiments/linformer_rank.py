"""Whether attention is of low rank: Wang et al., figures 1 and 3.

A model that fills in masked characters is trained with softmax attention; its attention matrices'
singular values, and the error of matrices of lower rank in their place.  Then Linformer models of
several ranks, trained alike: perplexity against rank.  ``python experiments/linformer_rank.py``.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fast_weights_lm import encoded, text_of
from figures import drawing
from torch import Tensor, nn
from training import (
    arguments,
    batches,
    cosine,
    generator,
    kept,
    language_model,
    record,
    seeded,
    train,
    uninterrupted,
    waves,
)

from linattn.torch import linformer
from linattn.torch import nn as layers

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "characters": 20_000, "length": 32, "batch": 4, "steps": 4, "every": 2, "sequences": 2,
        "ranks": (4, 16), "model": {"width": 16, "heads": 2, "depth": 1, "feedforward": 32},
    },
    "small": {
        "characters": 2_000_000, "length": 128, "batch": 8, "steps": 600, "every": 60,
        "sequences": 8, "ranks": (8, 32, 128),
        "model": {"width": 64, "heads": 4, "depth": 2, "feedforward": 256},
    },
    "full": {
        "characters": 20_000_000, "length": 512, "batch": 64, "steps": 250_000, "every": 2000,
        "sequences": 100, "ranks": (64, 128, 256, 512),
        "model": {"width": 768, "heads": 12, "depth": 12, "feedforward": 3072},
    },
}  # fmt: skip
MASKED = 0.15  #: of the characters


def draw(
    text: Tensor, batch: int, length: int, mask: int, g: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Sequences (batch, length) with some characters masked, without, and where."""
    at = torch.randint(len(text) - length, (batch, 1), generator=g)
    whole = text[at + torch.arange(length)]
    where = torch.rand(whole.shape, generator=g) < MASKED
    return torch.where(where, mask, whole), whole, where


def nats(model: nn.Module, masked: Tensor, whole: Tensor, where: Tensor) -> Tensor:
    """The mean loss of the masked characters."""
    return nn.functional.cross_entropy(model(masked)[where], whole[where])


# --- matrices of a trained model -----------------------------------------------------------


def operands(model: layers.TransformerLM, tokens: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """q, k and v (batch, heads, n, d) of each layer."""
    inputs: list[Tensor] = []
    hooks = [
        block.attention.register_forward_pre_hook(lambda _, x: inputs.append(x[0]))
        for block in model.blocks
    ]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return [
        tuple(
            project(x).unflatten(-1, (block.attention.num_heads, -1)).transpose(1, 2)
            for project in (block.attention.q_proj, block.attention.k_proj, block.attention.v_proj)
        )
        for block, x in zip(model.blocks, inputs, strict=True)
    ]  # type: ignore[return-value]  # of three


@torch.no_grad()
def matrices(
    model: layers.TransformerLM,
    before: layers.TransformerLM,
    tokens: Tensor,
    ranks: list[int],
    g: torch.Generator,
) -> dict[str, Any]:
    """What the attention matrices of a model are like, and were before it was trained."""
    return {
        "ranks": ranks,
        "spectrum": spectra(model, tokens, ranks),
        "spectrum before training": spectra(before, tokens, ranks),
        "errors": errors(model, tokens, ranks, g),
        "weight of neighbours": neighbours(model, tokens),
    }


def spectra(
    model: layers.TransformerLM, tokens: Tensor, ranks: list[int]
) -> list[list[list[float]]]:
    """Which part of the sum of all singular values the first r are: layers, heads, ranks."""
    rows = []
    for q, k, _ in operands(model, tokens):
        values = torch.linalg.svdvals(_attention(q, k)).mean(0)
        parts = values.cumsum(-1) / values.sum(-1, keepdim=True)
        rows.append(parts[:, [r - 1 for r in ranks]].tolist())
    return rows


def neighbours(model: layers.TransformerLM, tokens: Tensor) -> list[list[float]]:
    """How much of its attention each head gives to a token and those beside it."""
    rows = []
    for q, k, _ in operands(model, tokens):
        p = _attention(q, k)
        near = p.tril(1).triu(-1).sum(-1)
        rows.append(near.mean((0, 2)).tolist())
    return rows


def errors(
    model: layers.TransformerLM, tokens: Tensor, ranks: list[int], g: torch.Generator
) -> dict[str, list[float]]:
    """Relative errors against rank, over all layers and heads, in the Frobenius norm.

    best: ||P - P_r|| / ||P||, P_r the nearest of rank r; best, output: ||(P - P_r) v|| / ||P v||;
    random: ||P v - (P R)(R^T v)|| / ||P v||, R (n, r) from N(0, 1/r) (theorem 1); eq. 7: the same
    of softmax(q (R^T k)^T / sqrt(d)) R^T v.
    """
    rows: dict[str, list[list[float]]] = {}
    for q, k, v in operands(model, tokens):
        p = _attention(q, k)
        o, (u, s, vh) = p @ v, torch.linalg.svd(p)
        for r in ranks:
            rest = (u[..., r:] * s[..., None, r:]) @ vh[..., r:, :]
            R = torch.randn(p.shape[-1], r, generator=g) / math.sqrt(r)
            for name, wrong, right in (
                ("best", rest, p),
                ("best, output", rest @ v, o),
                ("random, output", (p @ R) @ (R.mT @ v) - o, o),
                ("eq. 7, untrained, output", linformer(q, k, v, R, R) - o, o),
            ):
                error = wrong.norm(dim=(-2, -1)) / right.norm(dim=(-2, -1))
                rows.setdefault(f"{name}/{r}", []).append(error.mean().item())
    found: dict[str, list[float]] = {}
    for name, x in rows.items():
        found.setdefault(name.partition("/")[0], []).append(sum(x) / len(x))
    return found


def _attention(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)


# --- the runs --------------------------------------------------------------------------------


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__ or "", argv, text={"help": "a file in the place of the library"})
    size = SIZES[options.size]
    steps, length, batch = options.steps or size["steps"], size["length"], size["batch"]
    training, judged, names = encoded(text_of(options.text, size["characters"]))
    mask, facts = len(names), {"text": options.text, **size}

    def model_of(rank: int | None) -> layers.TransformerLM:
        def layer(width: int, heads: int) -> layers.Attention:
            if rank is None:
                return layers.SoftmaxAttention(width, heads, causal=False)
            return layers.LinformerAttention(width, heads, length, rank)

        seeded(options.seed)
        model = language_model(layer, mask + 1, length=length, **size["model"])
        with torch.no_grad():  # neighbours are found sooner from waves
            model.positions.weight.copy_(0.5 * waves(length, size["model"]["width"]))
            model.embedding.weight.mul_(10)
        return model

    def loss(model: nn.Module, g: torch.Generator) -> Tensor:
        return nats(model, *draw(training, batch, length, mask, g))

    def evaluate(model: nn.Module) -> dict[str, float]:
        found = [nats(model, *draw(judged, 32, length, mask, g)) for g in batches(4, options.seed)]
        return {"perplexity": torch.stack(found).mean().exp().item()}

    def rate(step: int) -> float:
        return cosine(step, steps, warm_up=max(steps // 20, 1), peak=3e-3)

    runs, found = {}, {}
    some = sorted({*size["ranks"], *(2**i for i in range(length.bit_length()) if 2**i <= length)})
    for rank in (None, *size["ranks"]):
        model = model_of(rank)
        name = "softmax" if rank is None else f"rank {rank}"
        runs[name] = train(
            f"linformer_{rank or 'softmax'}", model, loss, options, steps=steps, rate=rate,
            evaluate=evaluate, every=size["every"], facts=facts,
        )  # fmt: skip
        if rank is None:
            g = generator(options.seed, -1)
            tokens = draw(judged, size["sequences"], length, mask, g)[0]

            measure = partial(matrices, model.eval(), model_of(None).eval(), tokens, some, g)
            found = kept("linformer_rank", options, "matrices", measure, facts)
    result = {"length": length, "runs": runs, **found}
    record("linformer_rank", options, result)
    figure(options.out / "linformer_rank.png", result)
    return result


def figure(path: Path, result: dict[str, Any]) -> None:
    with drawing(path, 2, 2, figsize=(10, 7)) as axes:
        (spectrum, error), (steps, final) = axes
        layer_spectra = zip(result["spectrum"], result["spectrum before training"], strict=True)
        for i, (after, before) in enumerate(layer_spectra, 1):
            for rows, style, label in ((after, "-", "trained"), (before, ":", "before training")):
                mean = [sum(x) / len(x) for x in zip(*rows, strict=True)]
                spectrum.plot(
                    result["ranks"], mean, style, color=f"C{i}", label=f"layer {i}, {label}"
                )
        spectrum.set(xlabel="rank", title="part of the sum of singular values", ylim=(0, 1.02))
        for name, y in result["errors"].items():
            error.plot(result["ranks"], y, "o-", markersize=3, label=name)
        error.set(xlabel="rank", title="relative error", xscale="log", yscale="log")
        error.set_ylim(bottom=1e-3)
        for name, rows in result["runs"].items():
            steps.plot([x["step"] for x in rows], [x["perplexity"] for x in rows], label=name)
        steps.set(xlabel="steps", title="perplexity of masked characters")
        ranks = {int(x.split()[1]): y for x, y in result["runs"].items() if x != "softmax"}
        final.plot(
            list(ranks), [y[-1]["perplexity"] for y in ranks.values()], "o-", label="Linformer"
        )
        final.axhline(
            result["runs"]["softmax"][-1]["perplexity"], color="k", ls="--", label="softmax"
        )
        final.set(xlabel="rank", title="perplexity at the end", xscale="log")
        for panel in axes.flat:
            panel.grid(alpha=0.3)
            panel.legend(fontsize=7)


if __name__ == "__main__":
    result = uninterrupted(run)
    for name, rows in result["runs"].items():
        print(f"{name:>12}: perplexity {rows[-1]['perplexity']:.3f}, {rows[-1]['seconds']:.0f} s")
