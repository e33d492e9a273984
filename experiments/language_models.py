"""Character language models with equal budgets of processor time.

Softmax and linear attention with positions that begin as sinusoids, the delta rule, the gated
delta rule and Mamba without positions, each in the same transformer block.  A model's learning rate
is found in short runs on a validation part; the model is then trained with that rate for the whole
budget, and judged on a test part, in bits per character, beside an interpolated n-gram model that
counts the whole training part.  ``python experiments/language_models.py --budget 3600``.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fast_weights_lm import encoded, ngram_bits, text_of
from torch import Tensor, nn
from training import (
    arguments,
    attention,
    clock,
    cosine,
    generator,
    kept,
    language_model,
    parameters,
    positive,
    record,
    seeded,
    train,
    waves,
)

from linattn.torch import nn as layers

MODELS = ("softmax", "linear", "delta", "gated_delta", "mamba")
WITH_POSITIONS = ("softmax", "linear")
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "characters": 20_000, "length": 32, "batch": 4, "budget": 0, "share": 0.5, "rows": 4,
        "rates": (1e-3, 3e-3), "order": 3, "sample": 20, "judged": 4,
        "model": {"width": 16, "heads": 2, "depth": 1, "feedforward": 32},
    },
    "small": {
        "characters": 3_000_000, "length": 256, "batch": 8, "budget": 180, "share": 0.1,
        "rows": 12, "rates": (1e-3, 3e-3, 9e-3), "order": 6, "sample": 400, "judged": 200,
        "model": {"width": 128, "heads": 4, "depth": 2, "feedforward": 512},
    },
    "full": {
        "characters": 10_000_000, "length": 256, "batch": 16, "budget": 3600, "share": 0.05,
        "rows": 30, "rates": (5e-4, 1e-3, 2e-3, 4e-3), "order": 6, "sample": 400, "judged": 400,
        "model": {"width": 256, "heads": 8, "depth": 4, "feedforward": 1024},
    },
}  # fmt: skip


def model_of(kind: str, vocabulary: int, length: int, **options: Any) -> layers.TransformerLM:
    """A model whose positions, if it has any, begin as sinusoids as large as the symbols."""

    def layer(width: int, heads: int) -> layers.Attention:
        return layers.Mamba(width) if kind == "mamba" else attention(kind, width, heads)

    places = length if kind in WITH_POSITIONS else None
    model = language_model(layer, vocabulary, length=places, **options)
    with torch.no_grad():
        if places:
            model.positions.weight.copy_(waves(places, model.embed_dim))
        model.embedding.weight.normal_()
        model.norm.weight.fill_(model.embed_dim**-0.5)  # for logits of size 1
    return model


def bits(model: nn.Module, x: Tensor) -> Tensor:
    """Mean bits per character of rows (batch, n + 1), each read from its first character."""
    logits = model(x[:, :-1]).flatten(0, 1)
    return nn.functional.cross_entropy(logits, x[:, 1:].flatten()) / math.log(2)


def seconds_a_step(model: nn.Module, loss: Callable[..., Tensor]) -> float:
    """The median over a few steps, without the optimizer's own part."""
    times = []
    for i in range(8):
        begin = clock()
        model.zero_grad()
        loss(model, generator(0, i)).backward()
        times.append(clock() - begin)
    return statistics.median(times[2:])


class Text:
    """Parts for training, validation and testing, and rows of the last two."""

    def __init__(self, path: str | None, size: dict[str, Any]) -> None:
        text = text_of(path, size["characters"])
        self.sha = hashlib.sha256(text.encode()).hexdigest()
        self.training, rest, self.names = encoded(text)
        self.length, self.batch = size["length"], size["batch"]
        n = self.length + 1
        count = min(size["judged"], len(rest) // (2 * n))
        if count < 1:
            raise SystemExit(f"--text {path} has {len(text)} characters; expected {20 * n} or more")
        half = len(rest) // 2
        self.validation, self.test = (
            x[: len(x) // n * n].view(-1, n)[:: max(len(x) // n // count, 1)][:count]
            for x in (rest[:half], rest[half:])
        )

    def loss(self, model: nn.Module, g: torch.Generator) -> Tensor:
        at = torch.randint(len(self.training) - self.length, (self.batch, 1), generator=g)
        return bits(model, self.training[at + torch.arange(self.length + 1)])

    def judged(self, model: nn.Module, rows: Tensor) -> float:
        found = [bits(model, x).item() * len(x) for x in rows.split(self.batch)]
        return sum(found) / len(rows)


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(
        __doc__ or "", argv, MODELS,
        text={"help": "a file in the place of the library"},
        budget={"type": positive, "help": "seconds for each model, instead of the size's own"},
    )  # fmt: skip
    size = SIZES[options.size]
    budget = options.budget or size["budget"]
    text = Text(options.text, size)
    facts = {**size, "text": text.sha, "budget": budget}
    keep = partial(kept, "language_models", options, facts=json_of(facts))

    def baseline() -> float:
        return ngram_bits(text.training, text.test.flatten(), len(text.names), size["order"])

    result: dict[str, Any] = {
        "budget": budget, "characters": len(text.training), "vocabulary": len(text.names),
        "order": size["order"], "ngram": keep("ngram", baseline), "models": {},
    }  # fmt: skip

    def trained(kind: str, name: str, steps: int, peak: float, rows: int) -> Any:
        seeded(options.seed)
        model = model_of(kind, len(text.names), text.length, **size["model"])

        def evaluate(model: nn.Module) -> dict[str, float]:
            return {"bits per character": text.judged(model, text.validation)}

        def rate(step: int) -> float:
            return cosine(step, steps, warm_up=max(steps // 20, 1), peak=peak, least=0.05)

        curve = train(f"lm_{kind}_{name}", model, text.loss, options, steps=steps, rate=rate,
                      evaluate=evaluate, every=-(-steps // rows), weight_decay=0.01,
                      facts=facts)  # fmt: skip
        return model.eval(), curve

    def steps_of(kind: str) -> int:
        """How many steps fit the budget."""
        model = model_of(kind, len(text.names), text.length, **size["model"])
        return max(int(budget / seconds_a_step(model, text.loss)), 4)

    for kind in options.kinds or MODELS:
        steps = options.steps or keep(f"{kind}, steps", partial(steps_of, kind))
        search = {
            str(x): trained(kind, f"{x}", max(int(steps * size["share"]), 2), x, 2)[1]
            for x in size["rates"]
        }
        peak = min(size["rates"], key=lambda x: search[str(x)][-1]["bits per character"])
        model, curve = trained(kind, "whole", steps, peak, size["rows"])
        result["models"][kind] = {
            "parameters": parameters(model), "steps": steps, "rate": peak, "search": search,
            "rows": curve, **keep(f"{kind}, ends", partial(ends, model, text, size, options)),
        }  # fmt: skip
        record("language_models", options, result)  # a model that is finished can be read
        figure(options.out / "language_models.png", result)
    return result


def json_of(facts: dict[str, Any]) -> dict[str, Any]:
    """With lists for tuples, as a file of JSON gives them back."""
    return {x: list(y) if isinstance(y, tuple) else y for x, y in facts.items()}


@torch.no_grad()
def ends(
    model: layers.TransformerLM, text: Text, size: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """Bits per character of the test part, and a sample after 64 of its characters."""
    count = min(size["sample"], text.length - 64) if model.max_length else size["sample"]
    prompt = text.test[:1, : min(64, text.length // 2)]
    drawn = model.generate(
        prompt, steps=max(count, 1), temperature=0.8, generator=generator(options.seed, 0)
    )
    return {
        "test": text.judged(model, text.test),
        "sample": "".join(text.names[i] for i in drawn[0].tolist()),
        "prompt": prompt.shape[1],
    }


def figure(path: Path, result: dict[str, Any]) -> None:
    """Bits per character against processor time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawing, panel = plt.subplots(figsize=(6.4, 4))
    for kind, found in result["models"].items():
        rows = found["rows"]
        panel.plot([x["seconds"] for x in rows], [x["bits per character"] for x in rows], ".-",
                   label=kind)  # fmt: skip
    panel.axhline(result["ngram"], color="k", ls="--", lw=0.8,
                  label=f"{result['order']}-gram, on the test part")  # fmt: skip
    panel.set(xlabel="seconds of processor time", ylabel="bits per character",
              title="validation, equal budgets")  # fmt: skip
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    drawing.tight_layout()
    drawing.savefig(path, dpi=110)
    plt.close(drawing)


if __name__ == "__main__":
    try:
        result = run()
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"{result['order']}-gram: {result['ngram']:.3f} bits per character")
    for kind, found in result["models"].items():
        print(f"{kind:>12}: {found['test']:.3f}, rate {found['rate']}, {found['steps']} steps")
