"""Copying: the synthetic task of Katharopoulos et al., figure 2.

A sequence is ``0 s 0 s``, zero padded, s of n symbols, n uniform in 32 to 62 where it is 128 long;
the loss is on the second s, which a model can only know from the first.
``python experiments/copy_task.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from figures import curves
from torch import Tensor, nn
from training import (
    KINDS,
    arguments,
    batches,
    cosine,
    language_model,
    positive,
    record,
    seeded,
    train,
    uninterrupted,
    waves,
)

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "length": 16, "batch": 4, "steps": 4, "every": 2, "warm_up": 2,
        "rate": dict.fromkeys(KINDS, 1e-3),
        "model": {"width": 16, "heads": 2, "depth": 1, "feedforward": 32},
    },
    "small": {
        "length": 32, "batch": 16, "steps": 2800, "every": 200, "warm_up": 200,
        "rate": {**dict.fromkeys(KINDS, 5e-3), "softmax": 1e-3},
        "model": {"width": 128, "heads": 4, "depth": 2, "feedforward": 256},
    },
    "medium": {
        "length": 128, "batch": 16, "steps": 3000, "every": 100, "warm_up": 200,
        "rate": {**dict.fromkeys(KINDS, 2e-3), "softmax": 1e-3},
        "model": {"width": 256, "heads": 8, "depth": 4, "feedforward": 256},
    },
    "full": {
        "length": 128, "batch": 64, "steps": 10_000, "every": 500, "warm_up": 500,
        "rate": dict.fromkeys(KINDS, 1e-3),
        "model": {"width": 256, "heads": 8, "depth": 4, "feedforward": 1024},
    },
}  # fmt: skip
SYMBOLS = 10
RECIPES = ("ours", "paper")


def draw(batch: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences (batch, length) of 0 and symbols 1 to 10, and where the second s stands."""
    least, most = length // 4, length // 2 - 2
    n = torch.randint(least, most + 1, (batch, 1), generator=generator)
    s = torch.randint(1, SYMBOLS + 1, (batch, length), generator=generator)
    at = torch.arange(length).expand(batch, length)
    first, second = (at > 0) & (at <= n), (at > n + 1) & (at <= 2 * n + 1)
    place = torch.where(second, at - n - 1, at)  # of the symbol in s
    return torch.where(first | second, s.gather(1, place), 0), second


def model_of(kind: str, length: int, positions: str = "waves", **options: Any) -> nn.Module:
    """A model that begins with waves as positions, as large as the symbols beside them, or noise.

    "n back" is a rotation of waves.  Where positions and symbols begin as small noise, linear
    attention learns faster on short sequences: RESULTS.md compares them.
    """
    model = language_model(kind, SYMBOLS + 1, length=length, **options)
    if positions == "noise":
        return model
    with torch.no_grad():
        model.positions.weight.copy_(waves(length, model.embed_dim))
        model.embedding.weight.normal_()
        model.norm.weight.fill_(model.embed_dim**-0.5)  # for logits of size 1
    return model


def loss_of(model: nn.Module, tokens: Tensor, copied: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss of the copied symbols, and how many of them are right."""
    logits = model(tokens[:, :-1])[copied[:, 1:]]
    goal = tokens[:, 1:][copied[:, 1:]]
    return nn.functional.cross_entropy(logits, goal), (logits.argmax(-1) == goal).float().mean()


def recipe(name: str, steps: int, warm_up: int, peak: float, cycles: int = 1) -> dict[str, Any]:
    """What `train` needs to know of the optimizer.

    Ours is AdamW with a cosine of the rate, or several one after another, each with half the peak
    of the one before.  That of the paper is RAdam with a rate of 1e-3, a tenth of it after 3,000
    of the 10,000 updates that the authors' program makes, without clipping.
    """
    if name == "paper":
        return {
            "rate": lambda step: 1e-3 if step < 0.3 * steps else 1e-4,
            "optimizer": torch.optim.RAdam, "clip": float("inf"), "weight_decay": 0.01,
        }  # fmt: skip

    def rate(step: int) -> float:
        length = -(-steps // cycles)
        cycle, place = divmod(step, length)
        return cosine(place, length, warm_up=warm_up, peak=peak / 2**cycle, least=0.01)

    return {"rate": rate}


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(
        __doc__ or "", argv, sizes=SIZES,
        length={"type": int, "help": "of sequences, instead of the size's own"},
        batch={"type": positive, "help": "sequences a step, instead of the size's own"},
        rate={"type": float, "help": "the highest learning rate, instead of the size's own"},
        recipe={"choices": RECIPES, "default": "ours", "help": "paper: RAdam, 1e-3, then 1e-4"},
        until={"type": float, "default": 1.0, "help": "end a training above this accuracy"},
        cycles={"type": positive, "default": 1, "help": "of the learning rate"},
        positions={"choices": ("waves", "noise"), "default": "waves", "help": "to begin with"},
    )  # fmt: skip
    size = dict(SIZES[options.size])
    if options.length is not None:
        size["length"] = options.length
    if size["length"] < 8:
        raise SystemExit(f"--length {options.length}: expected 8 or more")
    size["batch"] = options.batch or size["batch"]
    steps = options.steps or size["steps"]
    runs = {}
    for kind in options.kinds or ("softmax", "linear", "delta", "gated_delta"):
        peak = options.rate or size["rate"][kind]
        facts = {
            **size, "rate": peak, "recipe": options.recipe, "positions": options.positions,
            "cycles": options.cycles,
        }  # fmt: skip
        seeded(options.seed)
        model = model_of(kind, size["length"], options.positions, **size["model"])

        def loss(model: nn.Module, generator: torch.Generator) -> Tensor:
            return loss_of(model, *draw(size["batch"], size["length"], generator))[0]

        def evaluate(model: nn.Module) -> dict[str, float]:
            found = [
                loss_of(model, *draw(size["batch"], size["length"], g))
                for g in batches(16, options.seed)
            ]
            return {
                "test loss": torch.stack([x for x, _ in found]).mean().item(),
                "accuracy": torch.stack([x for _, x in found]).mean().item(),
            }

        runs[kind] = train(
            f"copy_{kind}", model, loss, options, steps=steps, evaluate=evaluate,
            every=size["every"], facts=facts,
            done=lambda rows: bool(rows) and rows[-1]["accuracy"] > options.until,
            **recipe(options.recipe, steps, size["warm_up"], peak, options.cycles),
        )  # fmt: skip
    record("copy_task", options, runs)
    curves(options.out / "copy_task.png", runs, ["test loss", "accuracy"])
    return runs


if __name__ == "__main__":
    for kind, rows in uninterrupted(run).items():
        print(f"{kind:>12}: accuracy {rows[-1]['accuracy']:.4f}, {rows[-1]['seconds']:.0f} s")
