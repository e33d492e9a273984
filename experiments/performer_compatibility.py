"""Softmax attention replaced in a trained model: Choromanski et al., figure 5.

A character model is trained with softmax attention; its weights go into Performers of m positive
random features, orthogonal or not.  Loss before fine-tuning, after a short one, each of several
draws, and after one that goes on until it stops improving, with directions that stay or are
redrawn at each step.  ``python experiments/performer_compatibility.py``.
"""

from __future__ import annotations

import math
import statistics
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from fast_weights_lm import encoded, text_of
from figures import drawing
from torch import Tensor, nn
from training import (
    arguments,
    cosine,
    generator,
    kept,
    language_model,
    record,
    seeded,
    stalled,
    train,
    uninterrupted,
)

from linattn.torch import nn as layers

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "characters": 20_000, "length": 32, "batch": 4, "steps": 4, "every": 2, "tuning": 4,
        "tuning_every": 2, "short": 2, "features": (8, 16), "short_features": (8,), "draws": 2,
        "judged": 8,
        "model": {"width": 16, "heads": 2, "depth": 1, "feedforward": 32},
    },
    "small": {
        "characters": 2_000_000, "length": 128, "batch": 8, "steps": 4000, "every": 500,
        "tuning": 10_000, "tuning_every": 100, "short": 100, "features": (32, 128, 512),
        "short_features": (32, 128), "draws": 10, "judged": 80,
        "model": {"width": 64, "heads": 2, "depth": 2, "feedforward": 256},
    },
    "full": {
        "characters": 20_000_000, "length": 512, "batch": 16, "steps": 100_000, "every": 1000,
        "tuning": 50_000, "tuning_every": 1000, "short": 5000,
        "features": (32, 64, 128, 256, 512), "short_features": (32, 128), "draws": 10,
        "judged": 400,
        "model": {"width": 512, "heads": 8, "depth": 6, "feedforward": 2048},
    },
}  # fmt: skip

TUNING_RATE = 5e-4
PROGRESS, ROWS_WITHOUT = 0.005, 10  #: bits that so many measurements without end a fine-tuning


def replaced(
    model: layers.TransformerLM, features: int, orthogonal: bool, make: Any
) -> layers.TransformerLM:
    """A Performer with the weights of a model of softmax attention."""

    def layer(width: int, heads: int) -> layers.Attention:
        return layers.PerformerAttention(width, heads, features, orthogonal=orthogonal)

    performer: layers.TransformerLM = make(layer)
    missing = performer.load_state_dict(model.state_dict(), strict=False).missing_keys
    assert all(name.endswith("omega") for name in missing), missing
    return performer


def redraw(model: nn.Module, g: torch.Generator) -> None:
    for module in model.modules():
        if isinstance(module, layers.PerformerAttention):
            module.redraw(g)


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__ or "", argv, text={"help": "a file in the place of the library"})
    size = SIZES[options.size]
    steps, length = options.steps or size["steps"], size["length"]
    training, judged, names = encoded(text_of(options.text, size["characters"]))
    facts = {"text": options.text, **size}
    rows = judged[: size["judged"] * (length + 1)].view(-1, length + 1)

    def make(kind: Any) -> layers.TransformerLM:
        seeded(options.seed)
        return language_model(kind, len(names), length=length, **size["model"])

    def bits(model: nn.Module, x: Tensor) -> Tensor:
        logits = model(x[:, :-1]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, x[:, 1:].flatten()) / math.log(2)

    def loss(model: nn.Module, g: torch.Generator, redrawn: bool = False) -> Tensor:
        at = torch.randint(len(training) - length, (size["batch"], 1), generator=g)
        if redrawn:
            redraw(model, g)
        return bits(model, training[at + torch.arange(length + 1)])

    def evaluate(model: nn.Module) -> dict[str, float]:
        found = torch.stack([bits(model, x) for x in rows.split(20)])
        return {"bits per character": found.mean().item()}

    def tuned(
        name: str, model: nn.Module, redrawn: bool = False, **until: Any
    ) -> list[dict[str, float]]:
        """Training that begins where softmax attention's ended, at a constant rate."""
        return train(f"performer_{name}", model, partial(loss, redrawn=redrawn), options,
                     rate=lambda step: TUNING_RATE * min((step + 1) / 20, 1), evaluate=evaluate,
                     every=size["tuning_every"], facts=facts, **until)  # fmt: skip

    whole = {
        "steps": size["tuning"],
        "done": stalled("bits per character", PROGRESS, ROWS_WITHOUT),
    }

    def rate(step: int) -> float:
        return cosine(step, steps, warm_up=max(steps // 20, 1), peak=2e-3)

    softmax = make("softmax")
    curve = train("performer_softmax", softmax, loss, options, steps=steps, rate=rate,
                  evaluate=evaluate, every=size["every"], facts=facts)  # fmt: skip

    @torch.no_grad()
    def before(features: int, orthogonal: bool) -> list[float]:
        """Bits per character of several draws, without any training."""
        model, found = replaced(softmax, features, orthogonal, make).eval(), []
        for i in range(size["draws"]):
            redraw(model, generator(options.seed, -1 - i))
            found.append(evaluate(model)["bits per character"])
        return found

    def briefly(features: int, orthogonal: bool, draw: int) -> float:
        """Bits per character of that draw after a short training with its directions."""
        model = replaced(softmax, features, orthogonal, make)
        redraw(model, generator(options.seed, -1 - draw))
        name = f"{features}_{orthogonal}_{draw}"
        return tuned(name, model, steps=size["short"])[-1]["bits per character"]

    table = []
    for features, orthogonal in product(size["features"], (True, False)):
        kind = f"{features}, {'orthogonal' if orthogonal else 'independent'}"
        measure = partial(before, features, orthogonal)
        values = kept("performer_compatibility", options, kind, measure, facts)
        after = {}
        for redrawn in (False, True):
            word = "redrawn" if redrawn else "fixed"
            model = replaced(softmax, features, orthogonal, make)
            after[word] = tuned(f"{kind}, {word}".replace(", ", "_"), model, redrawn, **whole)
        row = {"features": features, "orthogonal": orthogonal, "before": values, "after": after}
        if features in size["short_features"]:
            row["briefly"] = [briefly(features, orthogonal, i) for i in range(size["draws"])]
        table.append(row)
    control = make("softmax")
    control.load_state_dict(softmax.state_dict())
    result = {
        "softmax": curve,
        "softmax, tuned as well": tuned("softmax_tuned", control, **whole),
        "performers": table,
        "d": size["model"]["width"] // size["model"]["heads"],
    }
    record("performer_compatibility", options, result)
    figure(options.out / "performer_compatibility.png", result)
    return result


def least(rows: list[dict[str, float]]) -> float:
    """Of all evaluations of a fine-tuning, which ends long after it."""
    return min(x["bits per character"] for x in rows)


def figure(path: Path, result: dict[str, Any]) -> None:
    with drawing(path, 1, 3, figsize=(14, 4)) as (before, after, steps):
        softmax = result["softmax"][-1]["bits per character"]
        tuned = least(result["softmax, tuned as well"])
        for orthogonal, style in ((True, "-"), (False, ":")):
            rows = [x for x in result["performers"] if x["orthogonal"] == orthogonal]
            m = [x["features"] for x in rows]
            name = "orthogonal" if orthogonal else "independent"
            before.errorbar(
                m, [statistics.mean(x["before"]) for x in rows],
                [statistics.stdev(x["before"]) for x in rows],
                fmt=f"o{style}", capsize=3, label=name,
            )  # fmt: skip
            for word, color in (("fixed", "C0"), ("redrawn", "C1")):
                ends = [least(x["after"][word]) for x in rows]
                after.plot(m, ends, f"o{style}", color=color, label=f"{name}, {word}")
            for i, x in enumerate(rows):
                if orthogonal:
                    curve = [(0, x["before"][0])]
                    curve += [(y["step"], y["bits per character"]) for y in x["after"]["fixed"]]
                    steps.plot(
                        *zip(*curve, strict=True), color=f"C{i}", label=f"m = {x['features']}"
                    )
        before.set(title="before fine-tuning", xlabel="m")
        after.set(title="after fine-tuning", xlabel="m")
        steps.set(title="fine-tuning, orthogonal, fixed", xlabel="steps")
        before.axhline(softmax, color="k", ls="--", label="softmax")
        after.axhline(tuned, color="k", ls="--", label="softmax, tuned as well")
        steps.axhline(tuned, color="k", ls="--", label="softmax, tuned as well")
        for panel in (before, after, steps):
            panel.set(ylabel="bits per character")
            panel.grid(alpha=0.3)
            panel.legend(fontsize=7)
        for panel in (before, after):
            panel.set_xscale("log", base=2)


if __name__ == "__main__":
    result = uninterrupted(run)
    print(f"softmax: {result['softmax'][-1]['bits per character']:.3f} bits per character")
    for row in result["performers"]:
        ends = [f"{x} {least(y):.3f}" for x, y in row["after"].items()]
        kind = "orthogonal" if row["orthogonal"] else "independent"
        print(f"m = {row['features']}, {kind}: before {statistics.mean(row['before']):.3f}, "
              f"after {', '.join(ends)}")  # fmt: skip
