"""Images pixel by pixel: Katharopoulos et al., section 4.2.

Throughput with random weights: images a second of the recurrent linear form, of softmax with a
cache of keys and values, and of softmax that reads all pixels anew for each.  Quality: digits of
8 x 8 pixels, 17 greys, in bits per dimension, with samples and completions as a picture.
``python experiments/image_generation.py``.
"""

from __future__ import annotations

import gzip
import math
import struct
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm
from training import arguments, cosine, generator, language_model, record, seeded, train

SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "shapes": {"tiny": (12, 1, 2)}, "width": 16, "batch": 2, "measured": 3, "steps": 4,
        "every": 2, "model": {"width": 16, "heads": 2, "depth": 1, "feedforward": 32},
    },
    "small": {
        "shapes": {"MNIST": (784, 8, 8), "CIFAR-10": (3072, 16, 8)}, "width": 256, "batch": 8,
        "measured": 24, "steps": 1500, "every": 150,
        "model": {"width": 64, "heads": 4, "depth": 3, "feedforward": 256},
    },
    "full": {
        "shapes": {"MNIST": (784, 8, 8), "CIFAR-10": (3072, 16, 8)}, "width": 256, "batch": 8,
        "measured": 64, "steps": 20_000, "every": 500,
        "model": {"width": 256, "heads": 8, "depth": 6, "feedforward": 1024},
    },
}  # fmt: skip
PUBLISHED = {"MNIST": 317, "CIFAR-10": 4462}  #: linear against softmax from scratch, on a GPU
GREYS = 17  # of the digits


# --- files that the user has -----------------------------------------------------------


def read_idx(path: str | Path) -> np.ndarray:
    """An array from a file of MNIST's format, gzipped or not."""
    path = Path(path)
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except OSError as error:
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
    """Images a second of each way, from a few pixels measured where all would take too long."""
    results: dict[str, Any] = {}
    for name, (pixels, depth, heads) in size["shapes"].items():
        shape = {"width": size["width"], "heads": heads, "depth": depth,
                 "feedforward": 4 * size["width"]}  # fmt: skip
        rows = {}
        for way in ("linear, recurrent", "softmax, cached", "softmax, from scratch"):
            seeded(options.seed)
            kind = "linear" if way[0] == "l" else "softmax"
            model = language_model(kind, 256, length=pixels + 1, **shape).eval()
            with torch.no_grad():
                rows[way] = _seconds(model, way, pixels, size, f"{name}, {way}", options)
        results[name] = {
            "pixels": pixels, "layers": depth, "heads": heads, "width": size["width"],
            "batch": size["batch"], "images a second": {x: size["batch"] / y for x, y in
                                                        rows.items()},
            "linear over softmax, cached": rows["softmax, cached"] / rows["linear, recurrent"],
            "linear over softmax, from scratch":
                rows["softmax, from scratch"] / rows["linear, recurrent"],
            "published, from scratch": PUBLISHED.get(name),
        }  # fmt: skip
    return results


def _seconds(
    model: Any, way: str, pixels: int, size: dict[str, Any], title: str, options: Any
) -> float:
    """Seconds for a batch of images: the sum over pixels, by the trapezoid rule over some."""
    batch, count = size["batch"], size["measured"]
    scratch, recurrent = way.endswith("scratch"), way.startswith("linear")
    if scratch:
        count = max(count // 4, 2)
    at = sorted({round(x) for x in np.linspace(1, pixels, count)})
    tokens = torch.randint(256, (batch, pixels))
    times = []
    for n in tqdm(at, desc=title, disable=options.size == "tiny"):
        if scratch:
            begin = time.perf_counter()
            model(tokens[:, :n])
        else:
            _, state = model(tokens[:, :n], return_state=True)
            model.step(tokens[:, 0], state)
            begin = time.perf_counter()
            model.step(tokens[:, 0], state)
        times.append(time.perf_counter() - begin)
    if recurrent:  # the same work at every pixel
        return float(np.median(times)) * pixels
    return float(np.trapezoid(times, at))


# --- quality --------------------------------------------------------------------------------


def digits() -> tuple[Tensor, Tensor]:
    """Training and test images as rows of 64 greys."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("image_generation needs scikit-learn: pip install scikit-learn") from None
    images = torch.from_numpy(load_digits().data).long()
    images = images[torch.randperm(len(images), generator=generator(0, 0))]
    return images[:1500], images[1500:]


def quality(options: Any, size: dict[str, Any]) -> dict[str, Any]:
    training, judged = digits()
    start = GREYS  # a token before the first pixel
    steps = options.steps or size["steps"]
    runs, pictures = {}, {}
    for kind in options.kinds or ("linear", "softmax"):
        seeded(options.seed)
        model = language_model(kind, GREYS + 1, length=65, dropout=0.1, **size["model"])

        def nats(model: nn.Module, x: Tensor) -> Tensor:
            before = torch.cat([torch.full((len(x), 1), start), x[:, :-1]], 1)
            return nn.functional.cross_entropy(model(before).flatten(0, 1), x.flatten())

        def loss(model: nn.Module, g: torch.Generator) -> Tensor:
            return nats(model, training[torch.randint(len(training), (64,), generator=g)])

        def evaluate(model: nn.Module) -> dict[str, float]:
            return {"bits per dimension": nats(model, judged).item() / math.log(2)}

        def rate(step: int) -> float:
            return cosine(step, steps, warm_up=max(steps // 20, 1), peak=1e-3)

        runs[kind] = train(f"digits_{kind}", model, loss, options, steps=steps, rate=rate,
                           evaluate=evaluate, every=size["every"], weight_decay=0.05)  # fmt: skip
        half = torch.cat([torch.full((8, 1), start), judged[:8, :32]], 1)
        with torch.no_grad():
            drawn = model.eval().generate(torch.full((8, 1), start), 64, top_k=8,
                                          generator=generator(options.seed, 1))[:, 1:]  # fmt: skip
            completed = model.generate(half, 32, top_k=8, generator=generator(options.seed, 2))
        pictures[kind] = (drawn, completed[:, 1:])
    _picture(options.out / "digits.png", judged[:8], pictures)
    return runs


def _picture(path: Path, truth: Tensor, pictures: dict[str, tuple[Tensor, Tensor]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [("test", truth)]
    for kind, (drawn, completed) in pictures.items():
        rows += [(f"{kind}: samples", drawn), (f"{kind}: completions", completed)]
    figure, axes = plt.subplots(len(rows), 8, figsize=(8, 1.1 * len(rows)))
    for line, (title, images) in zip(axes, rows, strict=True):
        for panel, image in zip(line, images, strict=True):
            panel.imshow(image.clamp(0, 16).view(8, 8).numpy(), cmap="gray_r", vmin=0, vmax=16)
            panel.set(xticks=[], yticks=[])
        line[0].set_ylabel(title, rotation=0, ha="right", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(__doc__ or "", argv, part={"choices": ("throughput", "quality", "both"),
                                                   "default": "both"})  # fmt: skip
    size = SIZES[options.size]
    result = {}
    if options.part != "quality":
        result["throughput"] = throughput(options, size)
    if options.part != "throughput":
        result["quality"] = quality(options, size)
    record(f"image_generation_{options.part}", options, result)
    return result


if __name__ == "__main__":
    try:
        result = run()
    except KeyboardInterrupt:
        sys.exit(130)
    for name, row in result.get("throughput", {}).items():
        print(name, {x: round(y, 4) for x, y in row["images a second"].items()},
              f"x {row['linear over softmax, from scratch']:.0f}")  # fmt: skip
    for kind, rows in result.get("quality", {}).items():
        print(f"{kind:>12}: {rows[-1]['bits per dimension']:.3f} bits per dimension")
