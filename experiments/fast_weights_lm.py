"""A character language model of fast weights: Schlag et al., section 6.3, on text that is at hand.

The text is Python's own standard library, or any file: ``--text shakespeare.txt``.  90 % of it
train, 10 % judge, in bits per character, beside an n-gram model with interpolated Kneser-Ney
smoothing.  ``python experiments/fast_weights_lm.py``.
"""

from __future__ import annotations

import hashlib
import math
import sysconfig
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from figures import curves
from torch import Tensor, nn
from training import (
    arguments,
    cosine,
    generator,
    language_model,
    parameters,
    record,
    seeded,
    train,
    uninterrupted,
)

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "characters": 20_000, "length": 32, "batch": 4, "steps": 4, "every": 2, "warm_up": 2,
        "order": 3, "model": {"width": 16, "heads": 2, "depth": 1, "feedforward": 32},
    },
    "small": {
        "characters": 1_000_000, "length": 128, "batch": 8, "steps": 1200, "every": 200,
        "warm_up": 100, "peak": 3e-3, "order": 6,
        "model": {"width": 128, "heads": 4, "depth": 2, "feedforward": 256},
    },
    "full": {
        "characters": 20_000_000, "length": 128, "batch": 16, "steps": 100_000, "every": 1000,
        "warm_up": 2000, "order": 6,
        "model": {"width": 512, "heads": 8, "depth": 6, "feedforward": 2048},
    },
}  # fmt: skip


def text_of(path: str | None, characters: int) -> str:
    """A file's text, or that of the standard library's modules, in the order of their names."""
    if path is not None:
        try:
            return Path(path).read_text(encoding="utf-8")[:characters]
        except (OSError, UnicodeDecodeError) as error:
            raise SystemExit(f"--text {path}: {error}; expected a text file in UTF-8") from None
    parts, size = [], 0
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        parts.append(file.read_text(encoding="utf-8", errors="replace"))
        size += len(parts[-1])
        if size >= characters:
            break
    return "".join(parts)[:characters]


def encoded(text: str) -> tuple[Tensor, Tensor, list[str]]:
    """Training and validation characters as numbers; those that are rare are one."""
    counts: dict[str, int] = defaultdict(int)
    for x in text:
        counts[x] += 1
    known = sorted(x for x, count in counts.items() if count >= 20)
    number = {x: i + 1 for i, x in enumerate(known)}
    tokens = torch.tensor([number.get(x, 0) for x in text])
    cut = len(tokens) * 9 // 10
    return tokens[:cut], tokens[cut:], ["\N{REPLACEMENT CHARACTER}", *known]


def ngram_bits(training: Tensor, judged: Tensor, vocabulary: int, order: int) -> float:
    """Bits per character of an n-gram model, interpolated with absolute discounting."""
    discount = 0.75
    counts: list[dict[Any, dict[int, int]]] = [defaultdict(dict) for _ in range(order)]
    row = training.tolist()
    for i, x in enumerate(row):
        for n in range(min(order, i + 1)):
            after = counts[n][tuple(row[i - n : i])]
            after[x] = after.get(x, 0) + 1
    totals = [{context: sum(x.values()) for context, x in level.items()} for level in counts]
    bits, row = 0.0, judged.tolist()
    for i, x in enumerate(row):
        p = 1 / vocabulary
        for n in range(min(order, i + 1)):
            context = tuple(row[i - n : i])
            total = totals[n].get(context)
            if total is None:
                break
            after = counts[n][context]
            p = (max(after.get(x, 0) - discount, 0) + discount * len(after) * p) / total
        bits -= math.log2(p)
    return bits / len(row)


def noam(step: int, width: int, warm_up: int) -> float:
    """The learning rate of Vaswani et al., section 5.3."""
    return float(width**-0.5 * min((step + 1) ** -0.5, (step + 1) * warm_up**-1.5))


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__ or "", argv, text={"help": "a file in the place of the library"})
    size = SIZES[options.size]
    steps, length = options.steps or size["steps"], size["length"]
    text = text_of(options.text, size["characters"])
    if len(text) < 10 * (length + 1):
        raise SystemExit(
            f"--text {options.text} has {len(text)} characters; expected {10 * (length + 1)} or "
            f"more: a tenth of them, {length + 1}, is what a model is judged on"
        )
    facts = {**size, "text": hashlib.sha256(text.encode()).hexdigest()}
    training, judged, names = encoded(text)
    judged = judged[: 400 * (length + 1)]
    baseline = ngram_bits(training, judged, len(names), size["order"])
    rows = judged[: len(judged) // (length + 1) * (length + 1)].view(-1, length + 1)
    runs, samples, counts = {}, {}, {}
    for kind in options.kinds or ("linear", "delta", "gated_delta", "softmax"):
        seeded(options.seed)
        model = language_model(kind, len(names), length=1024, **size["model"])
        counts[kind] = parameters(model)

        def loss(model: nn.Module, g: torch.Generator) -> Tensor:
            at = torch.randint(len(training) - length, (size["batch"], 1), generator=g)
            x = training[at + torch.arange(length + 1)]
            return nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

        def evaluate(model: nn.Module) -> dict[str, float]:
            total = 0.0
            for x in rows.split(32):
                logits = model(x[:, :-1]).flatten(0, 1)
                total += nn.functional.cross_entropy(
                    logits, x[:, 1:].flatten(), reduction="sum"
                ).item()
            return {"bits per character": total / (rows.numel() - len(rows)) / math.log(2)}

        def rate(step: int) -> float:
            if "peak" in size:  # Noam's rate falls too late for so few steps
                return cosine(step, steps, warm_up=size["warm_up"], peak=size["peak"])
            return noam(step, size["model"]["width"], size["warm_up"])

        runs[kind] = train(f"lm_{kind}", model, loss, options, steps=steps, rate=rate,
                           evaluate=evaluate, every=size["every"], facts=facts)  # fmt: skip
        drawn = model.eval().generate(
            training[None, :64], steps=20 if options.size == "tiny" else 400, temperature=0.8,
            generator=generator(options.seed, 0),
        )  # fmt: skip
        samples[kind] = "".join(names[i] for i in drawn[0].tolist())
    result = {"runs": runs, "ngram": baseline, "order": size["order"], "samples": samples,
              "parameters": counts, "vocabulary": len(names)}  # fmt: skip
    record("fast_weights_lm", options, result)
    curves(options.out / "fast_weights_lm.png", runs, ["loss", "bits per character"])
    return result


if __name__ == "__main__":
    result = uninterrupted(run)
    print(f"{result['order']}-gram: {result['ngram']:.3f} bits per character")
    for kind, rows in result["runs"].items():
        print(f"{kind:>12}: {rows[-1]['bits per character']:.3f}, {rows[-1]['seconds']:.0f} s")
