"""Character language models with equal budgets of processor time.

Softmax and linear attention with positions that begin as sinusoids, the delta rule, the gated
delta rule and Mamba without positions, each in the same transformer block.  A model's learning rate
is found in short runs on a validation part; the model is then trained with that rate for the whole
budget.  Its weights that were best on the validation part are judged on a test part, in bits per
character, beside an interpolated n-gram model that counts the whole training part.
``python experiments/language_models.py --budget 3600``.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fast_weights_lm import encoded, ngram_bits, text_of
from figures import drawing
from torch import Tensor, nn
from training import (
    arguments,
    attention,
    cosine,
    generator,
    kept,
    language_model,
    least_row,
    parameters,
    positive,
    record,
    seconds_of_pass,
    seeded,
    train,
    uninterrupted,
    waves,
)

from linattn.torch import nn as layers

MODELS = ("softmax", "linear", "delta", "gated_delta", "mamba")
WITH_POSITIONS = ("softmax", "linear")
BITS = "bits per character"  #: of the validation part
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "characters": 20_000, "length": 32, "batch": 4, "budget": 0, "share": 0.5, "rows": 4,
        "rates": (1e-3, 3e-3), "order": 3, "sample": 20, "judged": 4,
        "model": {"width": 16, "heads": 2, "depth": 1, "feedforward": 32},
    },
    "small": {
        "characters": 3_000_000, "length": 256, "batch": 8, "budget": 180, "share": 0.1,
        "rows": 12, "rates": (1e-3, 3e-3, 9e-3, 2.7e-2), "order": 6, "sample": 400, "judged": 200,
        "model": {"width": 128, "heads": 4, "depth": 2, "feedforward": 512},
    },
    "full": {
        "characters": 10_000_000, "length": 256, "batch": 16, "budget": 3600, "share": 0.04,
        "rows": 30, "rates": (7e-4, 2e-3, 6e-3, 1.8e-2), "order": 6, "sample": 400, "judged": 400,
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
    times = [seconds_of_pass(model, loss, generator(0, i)) for i in range(8)]
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


class Trials:
    """The runs of every kind of model on one text."""

    def __init__(self, options: argparse.Namespace, size: dict[str, Any], text: Text) -> None:
        self.options, self.size, self.text = options, size, text
        self.rates = options.rates or size["rates"]
        self.budget = options.budget or size["budget"]
        self.facts = {
            **size, "rates": self.rates, "dropout": options.dropout, "text": text.sha,
            "budget": self.budget,
        }  # fmt: skip

    def kept(self, part: str, compute: Callable[[], Any]) -> Any:
        return kept("language_models", self.options, part, compute, self.facts)

    def ngram(self) -> float:
        text = self.text
        return ngram_bits(text.training, text.test.flatten(), len(text.names), self.size["order"])

    def model(self, kind: str) -> layers.TransformerLM:
        seeded(self.options.seed)
        return model_of(
            kind, len(self.text.names), self.text.length, dropout=self.options.dropout,
            **self.size["model"],
        )  # fmt: skip

    def steps(self, kind: str) -> int:
        """How many steps fit the budget."""
        return max(int(self.budget / seconds_a_step(self.model(kind), self.text.loss)), 4)

    def trained(self, kind: str, name: str, steps: int, peak: float, rows: int) -> Any:
        """The best model on the validation part, and what was measured there, so many times."""

        def evaluate(model: nn.Module) -> dict[str, float]:
            return {BITS: self.text.judged(model, self.text.validation)}

        def rate(step: int) -> float:
            return cosine(step, steps, warm_up=max(steps // 20, 1), peak=peak, least=0.05)

        model = self.model(kind)
        curve = train(
            f"lm_{kind}_{name}", model, self.text.loss, self.options, steps=steps, rate=rate,
            evaluate=evaluate, every=-(-steps // rows), weight_decay=0.01, best=BITS,
            facts=self.facts,
        )  # fmt: skip
        return model.eval(), curve

    def results(self, kind: str) -> dict[str, Any]:
        """Those of a model: its rate by short runs, then the run of the whole budget."""
        steps = self.options.steps or self.kept(f"{kind}, steps", partial(self.steps, kind))
        search = self.search(kind, max(int(steps * self.size["share"]), 2))
        peak = min(self.rates, key=lambda x: search.get(str(x), 0))
        model, rows = self.trained(kind, "whole", steps, peak, self.size["rows"])
        return {
            "parameters": parameters(model), "steps": steps, "rate": peak, "search": search,
            "rows": rows, "best": least_row(rows, BITS)["step"],
            **self.kept(f"{kind}, ends", partial(self.ends, model)),
        }  # fmt: skip

    def search(self, kind: str, steps: int) -> dict[str, float]:
        """The bits at the end of a short run with each rate; of none where there is one rate."""
        rates = self.rates if len(self.rates) > 1 else ()
        return {str(x): self.trained(kind, f"{x}", steps, x, 2)[1][-1][BITS] for x in rates}

    @torch.no_grad()
    def ends(self, model: layers.TransformerLM) -> dict[str, Any]:
        """Bits per character of the test part, and a sample after some of its characters."""
        length, steps = min(64, self.text.length // 2), self.size["sample"]
        if model.max_length:
            steps = min(steps, self.text.length - length)
        drawn = model.generate(
            self.text.test[:1, :length], steps=steps, temperature=0.8,
            generator=generator(self.options.seed, 0),
        )  # fmt: skip
        return {
            "test": self.text.judged(model, self.text.test),
            "sample": "".join(self.text.names[i] for i in drawn[0].tolist()),
            "prompt": length,
        }


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(
        __doc__ or "", argv, MODELS,
        text={"help": "a file in the place of the library"},
        characters={"type": positive, "help": "of the text, instead of the size's own"},
        budget={"type": positive, "help": "seconds for each model, instead of the size's own"},
        dropout={"type": float, "default": 0.0, "help": "its probability in training"},
        rates={"type": float, "nargs": "+", "help": "to choose from, instead of the size's own"},
    )  # fmt: skip
    size = dict(SIZES[options.size])
    size["characters"] = options.characters or size["characters"]
    text = Text(options.text, size)
    trials = Trials(options, size, text)
    result: dict[str, Any] = {
        "budget": trials.budget, "dropout": options.dropout,
        "characters": len(text.training), "vocabulary": len(text.names), "order": size["order"],
        "ngram": trials.kept("ngram", trials.ngram), "models": {},
    }  # fmt: skip
    for kind in options.kinds or MODELS:
        result["models"][kind] = trials.results(kind)
        record("language_models", options, result)  # a model that is finished can be read
        figure(options.out / "language_models.png", result)
    return result


def figure(path: Path, result: dict[str, Any]) -> None:
    """Bits per character against processor time."""
    with drawing(path, 1, 1, figsize=(6.4, 4)) as panel:
        for kind, found in result["models"].items():
            rows = found["rows"]
            panel.plot([x["seconds"] for x in rows], [x[BITS] for x in rows], ".-",
                       label=kind)  # fmt: skip
        panel.axhline(result["ngram"], color="k", ls="--", lw=0.8,
                      label=f"{result['order']}-gram, on the test part")  # fmt: skip
        panel.set(xlabel="seconds of processor time", ylabel="bits per character",
                  title="validation, equal budgets")  # fmt: skip
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)


if __name__ == "__main__":
    result = uninterrupted(run)
    print(f"{result['order']}-gram: {result['ngram']:.3f} bits per character")
    for kind, found in result["models"].items():
        print(f"{kind:>12}: {found['test']:.3f}, rate {found['rate']}, "
              f"step {found['best']} of {found['steps']}")  # fmt: skip
