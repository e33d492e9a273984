"""Images pixel by pixel: Katharopoulos et al., section 4.2.

Throughput with random weights: images a second of the recurrent linear form, of softmax with a
cache of keys and values, and of softmax that reads all pixels anew for each.  Quality: digits of
8 x 8 pixels, 17 greys, or a file of images, in bits per dimension, with samples and completions
as a picture.
``python experiments/image_generation.py``.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from figures import curves, drawing
from torch import Tensor, nn
from tqdm import tqdm
from training import (
    arguments,
    clock,
    cosine,
    generator,
    kept,
    language_model,
    record,
    seeded,
    train,
    uninterrupted,
)

from linattn.torch import nn as layers

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "shapes": {"tiny": (12, 1, 2)}, "width": 16, "batches": (2,), "measured": 3, "batch": 4,
        "steps": 4, "every": 2, "model": {"width": 16, "heads": 2, "depth": 1, "feedforward": 32},
    },
    "small": {
        "shapes": {"MNIST": (784, 8, 8), "CIFAR-10": (3072, 16, 8)}, "width": 256,
        "batches": (1, 8), "measured": 9, "batch": 16, "steps": 600, "every": 60,
        "model": {"width": 64, "heads": 4, "depth": 2, "feedforward": 256},
    },
    "full": {
        "shapes": {"MNIST": (784, 8, 8), "CIFAR-10": (3072, 16, 8)}, "width": 256,
        "batches": (1, 8, 64), "measured": 25, "batch": 64, "steps": 20_000, "every": 500,
        "model": {"width": 256, "heads": 8, "depth": 6, "feedforward": 1024},
    },
}  # fmt: skip
#: Images a second of softmax from scratch and of linear attention, on a GPU (tables 1 and 2).
PUBLISHED = {"MNIST": (0.45, 142.8), "CIFAR-10": (0.004, 17.85)}
WAYS = ("linear, recurrent", "softmax, cached", "softmax, from scratch")


# --- files that the user has -----------------------------------------------------------


def read_idx(path: str | Path) -> np.ndarray:
    """An array from a file of MNIST's format, gzipped or not."""
    path = Path(path)
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: {error}; expected an idx file as MNIST's are") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != 8:
        raise ValueError(
            f"{path} begins with {data[:4]!r}; expected 00 00 08 and the number of axes, an idx "
            "file of bytes"
        )
    axes = data[3]
    if len(data) < 4 + 4 * axes:
        raise ValueError(f"{path} ends within its header; download it again")
    shape = struct.unpack(f">{axes}I", data[4 : 4 + 4 * axes])
    if len(data) - 4 - 4 * axes != math.prod(shape):
        raise ValueError(
            f"{path} holds {len(data) - 4 - 4 * axes} bytes; expected {math.prod(shape)} for its "
            f"shape {shape}: download it again"
        )
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def read_cifar(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 3, 32, 32) and labels from a file of CIFAR-10's binary version."""
    path = Path(path)
    try:
        data = np.fromfile(path, np.uint8)
    except OSError as error:
        raise ValueError(f"{path}: {error}; expected a file of CIFAR-10's binary version") from None
    if len(data) == 0 or len(data) % 3073 or data[::3073].max(initial=0) > 9:
        raise ValueError(
            f"{path} holds {len(data)} bytes; expected rows of 3,073, a label of 0 to 9 before "
            "each image: the binary version of CIFAR-10"
        )
    rows = data.reshape(-1, 3073)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


# --- throughput ---------------------------------------------------------------------------


def throughput(options: Any, size: dict[str, Any]) -> dict[str, Any]:
    """Seconds an image of each way at each batch, and how many times more images linear gives."""
    results: dict[str, Any] = {}
    facts = {x: size[x] for x in ("shapes", "width", "measured")}
    for name, (pixels, depth, heads) in size["shapes"].items():
        rows = []
        for batch in size["batches"]:
            measure = partial(_spent, options, size, pixels, depth, heads, batch)
            rows.append(kept("throughput", options, f"{name}, {batch}", measure, facts))
        results[name] = {"pixels": pixels, "layers": depth, "heads": heads,
                         "width": size["width"], "rows": rows}  # fmt: skip
        if name in PUBLISHED:
            softmax, linear = PUBLISHED[name]
            results[name]["published"] = {
                "images a second": {WAYS[0]: linear, WAYS[2]: softmax},
                "times softmax from scratch": linear / softmax,
            }
    return results


@torch.no_grad()
def _spent(
    options: Any, size: dict[str, Any], pixels: int, depth: int, heads: int, batch: int
) -> dict[str, Any]:
    """Each way's time for all pixels, by the trapezoid rule over some of them, interleaved."""
    seeded(options.seed)
    models = {
        kind: language_model(kind, 256, length=pixels + 1, width=size["width"], heads=heads,
                             depth=depth, feedforward=4 * size["width"]).eval()
        for kind in ("linear", "softmax")
    }  # fmt: skip
    at = np.linspace(1, pixels, size["measured"]).astype(int).tolist()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for n in tqdm(at, desc=f"{pixels} pixels, {batch} images", disable=options.size == "tiny"):
        tokens = torch.randint(256, (batch, n))
        for way in WAYS:
            model, scratch = models[way.partition(",")[0]], way == WAYS[2]
            state = None if scratch else _state_after(model, batch, n - 1)
            pixel = partial(model, tokens) if scratch else partial(model.step, tokens[:, 0], state)
            taken = []
            for _ in range(1 if scratch else 5):
                begin = clock()
                pixel()
                taken.append(clock() - begin)
            times[way].append(min(taken))
    whole = {way: float(np.trapezoid(x, at) + x[0]) / batch for way, x in times.items()}
    return {
        "batch": batch, "at": at, "seconds a pixel": times, "seconds an image": whole,
        "times softmax cached": whole[WAYS[1]] / whole[WAYS[0]],
        "times softmax from scratch": whole[WAYS[2]] / whole[WAYS[0]],
    }  # fmt: skip


def _state_after(model: layers.TransformerLM, batch: int, n: int) -> layers.ModelState:
    """The state after n tokens; what a cache holds is random."""
    blocks = []
    for state in model.init_state(batch).blocks:
        if isinstance(state, layers.Cache):
            shape = (*state.k.shape[:2], n, state.k.shape[3])
            state = layers.Cache(torch.randn(shape), torch.randn(shape))
        blocks.append(state)
    return layers.ModelState(tuple(blocks), torch.full((batch,), n))


# --- quality --------------------------------------------------------------------------------


def pictures(path: str | None) -> tuple[Tensor, tuple[int, ...], int]:
    """Images as rows of numbers, in a random order, their shape, and how many levels there are."""
    if path is None:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise SystemExit(
                "image_generation needs scikit-learn: pip install scikit-learn"
            ) from None
        images, levels = load_digits().images, 17
    else:
        try:
            images = read_cifar(path)[0] if path.endswith(".bin") else read_idx(path)
        except ValueError as error:
            raise SystemExit(f"--images: {error}") from None
        images, levels = images.transpose(0, 2, 3, 1) if images.ndim == 4 else images, 256
    if images.ndim < 3 or len(images) < 12:
        raise SystemExit(
            f"--images {path} has shape {images.shape}; expected a dozen images or more"
        )
    rows = torch.from_numpy(images.reshape(len(images), -1).astype(np.int64))
    return rows[torch.randperm(len(rows), generator=generator(0, 0))], images.shape[1:], levels


def quality(options: Any, size: dict[str, Any]) -> dict[str, Any]:
    rows, shape, levels = pictures(options.images)
    cut = len(rows) * 5 // 6
    training, judged = rows[:cut], rows[cut:][:500]
    pixels, start = rows.shape[1], levels  # a token before the first pixel
    steps = options.steps or size["steps"]
    runs, drawn = {}, {}
    for kind in options.kinds or ("softmax", "linear", "delta", "gated_delta"):
        seeded(options.seed)
        model = language_model(kind, levels + 1, length=pixels + 1, dropout=0.1, **size["model"])

        def bits(model: nn.Module, x: Tensor) -> Tensor:
            before = torch.cat([torch.full((len(x), 1), start), x[:, :-1]], 1)
            nats = nn.functional.cross_entropy(model(before).flatten(0, 1), x.flatten())
            return nats / math.log(2)

        def loss(model: nn.Module, g: torch.Generator) -> Tensor:
            return bits(
                model, training[torch.randint(len(training), (size["batch"],), generator=g)]
            )

        def evaluate(model: nn.Module) -> dict[str, float]:
            total = sum(bits(model, x).item() * len(x) for x in judged.split(100))
            return {"bits per dimension": total / len(judged)}

        def rate(step: int) -> float:
            return cosine(step, steps, warm_up=max(steps // 20, 1), peak=1e-3)

        runs[kind] = train(f"images_{kind}", model, loss, options, steps=steps, rate=rate,
                           evaluate=evaluate, every=size["every"], weight_decay=0.05,
                           facts={"images": options.images, **size})  # fmt: skip
        begun = torch.cat([torch.full((8, 1), start), judged[:8, : pixels // 2]], 1)
        g = generator(options.seed, 1)
        model.eval()
        drawn[f"{kind}:\nsamples"] = model.generate(begun[:, :1], pixels, generator=g)[:, 1:]
        rest = pixels - pixels // 2
        drawn[f"{kind}:\ncompletions"] = model.generate(begun, rest, generator=g)[:, 1:]
    _draw(options.out / "images.png", {"test": judged[:8], **drawn}, shape, levels)
    curves(options.out / "images_curves.png", runs, ["loss", "bits per dimension"])
    return runs


def _draw(path: Path, rows: dict[str, Tensor], shape: tuple[int, ...], levels: int) -> None:
    with drawing(path, len(rows), 8, figsize=(8, 1.0 * len(rows))) as axes:
        for line, (title, images) in zip(axes, rows.items(), strict=True):
            for panel, image in zip(line, images, strict=True):
                shown = image.clamp(0, levels - 1).view(shape).numpy() / (levels - 1)
                panel.imshow(shown, cmap="gray", vmin=0, vmax=1)
                panel.set(xticks=[], yticks=[])
            line[0].set_ylabel(title, rotation=0, ha="right", va="center", fontsize=8)


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(
        __doc__ or "", argv,
        part={"choices": ("throughput", "quality", "both"), "default": "both"},
        images={"help": "a file of MNIST's format, or CIFAR-10's .bin, instead of the digits"},
    )  # fmt: skip
    size = SIZES[options.size]
    result = {}
    if options.part != "quality":
        result["throughput"] = throughput(options, size)
    if options.part != "throughput":
        result["quality"] = quality(options, size)
    record("image_generation", options, result)
    return result


if __name__ == "__main__":
    result = uninterrupted(run)
    for name, shape in result.get("throughput", {}).items():
        for row in shape["rows"]:
            print(
                f"{name}, {row['batch']} at once: {row['times softmax from scratch']:.0f} times as "
                f"many images as softmax from scratch, {row['times softmax cached']:.1f} as cached"
            )
    for kind, rows in result.get("quality", {}).items():
        print(f"{kind:>12}: {rows[-1]['bits per dimension']:.3f} bits per dimension")
