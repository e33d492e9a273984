"""Speech recognition with connectionist temporal classification: Katharopoulos et al., section 4.3.

Strings of digits instead of the Wall Street Journal, 40 mel filter banks every 10 ms as in the
paper, which the small size reads three at a time; no speaker of the test is one of the training.
Softmax and linear attention that see the whole utterance, and a bidirectional LSTM; the error is
the least number of digits to change, add or drop, over the number said.
``python experiments/speech.py``.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

import numpy as np
import torch
from encoder import Encoder
from figures import curves
from spoken_digits import BANDS, SOURCES, Utterance, source_of, utterances
from torch import Tensor, nn
from torch.nn.utils import rnn
from tqdm import tqdm
from training import (
    arguments,
    attention,
    cosine,
    generator,
    parameters,
    positive,
    record,
    seconds_of_pass,
    seeded,
    train,
    uninterrupted,
)

KINDS = ("softmax", "linear", "lstm")
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {
        "utterances": (12, 4), "digits": (1, 2), "batch": 4, "steps": 4, "every": 2, "rate": 1e-3,
        "warm_up": 2, "timed": 1, "frames": (100,),
        "model": {"stacked": 2, "width": 16, "heads": 2, "depth": 1, "feedforward": 32,
                  "hidden": 8},
    },
    "small": {
        "utterances": (3000, 300), "digits": (3, 7), "batch": 16, "steps": 1200, "every": 150,
        "rate": 2e-3, "warm_up": 100, "timed": 5, "frames": (200, 800, 2400),
        "model": {"stacked": 3, "width": 64, "heads": 4, "depth": 3, "feedforward": 256,
                  "hidden": 48},
    },
    "full": {
        "utterances": (10_000, 1000), "digits": (10, 40), "batch": 16, "steps": 100_000,
        "every": 2000, "rate": 1e-3, "warm_up": 4000, "timed": 2, "frames": (200, 800, 2400),
        "model": {"stacked": 1, "width": 192, "heads": 6, "depth": 9, "feedforward": 768,
                  "hidden": 320},
    },
}  # fmt: skip
LONGEST = 4000  #: frames
BLANK = 10
#: Phoneme error rate in % and seconds an epoch, on the Wall Street Journal and a GPU, table 3.
PUBLISHED = {"lstm": (10.94, 1047), "softmax": (5.12, 2711), "linear": (8.08, 824)}

Batch = tuple[Tensor, Tensor, Tensor, Tensor]


class Recognizer(nn.Module):
    """Features (batch, n, 40) to the logarithms of probabilities of digits and of none.

    The frames are read `stacked` at a time: there are (batch, n / stacked, 11), rounded up.
    """

    def __init__(
        self, kind: str, *, stacked: int, width: int, heads: int, depth: int, feedforward: int,
        hidden: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.recurrent, self.stacked = kind == "lstm", stacked
        if self.recurrent:
            self.body = nn.LSTM(BANDS * stacked, hidden, 3, batch_first=True, bidirectional=True)
            self.head = nn.Linear(2 * hidden, BLANK + 1)
        else:
            attentions = [attention(kind, width, heads, causal=False) for _ in range(depth)]
            self.project = nn.Linear(BANDS * stacked, width)
            self.body = Encoder(attentions, feedforward, LONGEST)
            self.head = nn.Linear(width, BLANK + 1)

    def forward(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """And how many of each utterance are no padding."""
        x, lengths = self._stack(features, frames)
        if self.recurrent:
            packed = rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
            x, _ = rnn.pad_packed_sequence(self.body(packed)[0], True)
        else:
            x = self.body(self.project(x), lengths)
        return self.head(x).log_softmax(-1), lengths

    def _stack(self, features: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Frames beside one another, 0 after the last one."""
        there = torch.arange(features.shape[1]) < frames[:, None]
        x = features.where(there[..., None], 0.0)
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % self.stacked))
        return x.unflatten(1, (-1, self.stacked)).flatten(2), -(-frames // self.stacked)


def batch_of(corpus: list[Utterance], rows: Any) -> Batch:
    """Features (batch, n, 40), how many frames each has, the digits, and how many of those."""
    chosen = [corpus[i] for i in rows]
    features = [torch.from_numpy(x.features) for x in chosen]
    digits = [torch.tensor(x.digits) for x in chosen]
    return (
        rnn.pad_sequence(features, True), torch.tensor([len(x) for x in features]),
        rnn.pad_sequence(digits, True), torch.tensor([len(x) for x in digits]),
    )  # fmt: skip


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    features, frames, digits, counts = batch
    found, lengths = model(features, frames)
    return nn.functional.ctc_loss(found.transpose(0, 1), digits, lengths, counts, BLANK)


def read(model: nn.Module, features: Tensor, frames: Tensor) -> list[list[int]]:
    """The likeliest of each frame, repetitions once, without blanks."""
    found, lengths = model(features, frames)
    return [
        [x for x, _ in groupby(row[:n].tolist()) if x != BLANK]
        for row, n in zip(found.argmax(-1), lengths.tolist(), strict=True)
    ]


def distance(x: list[int], y: list[int]) -> int:
    """How many must be changed, added or dropped to make y of x."""
    row = list(range(len(y) + 1))
    for i, a in enumerate(x, 1):
        corner, row[0] = row[0], i
        for j, b in enumerate(y, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (a != b))
    return row[-1]


def judge(model: nn.Module, corpus: list[Utterance]) -> dict[str, float]:
    """The loss, and the error rate in %."""
    order = sorted(range(len(corpus)), key=lambda i: len(corpus[i].features))
    wrong, said, losses = 0, 0, []
    for i in range(0, len(order), 20):
        rows = order[i : i + 20]
        batch = batch_of(corpus, rows)
        losses.append(loss_of(model, batch).item())
        for digits, row in zip(read(model, *batch[:2]), rows, strict=True):
            wrong += distance(digits, corpus[row].digits)
            said += len(corpus[row].digits)
    return {"test loss": float(np.mean(losses)), "digit error rate": 100 * wrong / said}


def made(source: str, count: int, title: str, options: Any, **more: Any) -> list[Utterance]:
    found = utterances(source, count, seed=options.seed, **more)
    return list(tqdm(found, title, count, disable=options.size == "tiny"))


def seconds(
    kinds: Any, batches: dict[str, Batch], model: dict[str, Any], times: int
) -> dict[str, dict[str, float]]:
    """Of a training step of each kind on each batch: medians, the kinds taken in turn."""
    models = {x: Recognizer(x, **model) for x in kinds}
    found: dict[str, dict[str, float]] = {x: {} for x in kinds}
    for name, batch in batches.items():
        runs: dict[str, list[float]] = {x: [] for x in kinds}
        for _ in range(times + 1):
            for kind in kinds:
                runs[kind].append(seconds_of_pass(models[kind], loss_of, batch))
        for kind in kinds:
            found[kind][name] = float(np.median(runs[kind][1:]))
    return found


def timed(
    kinds: Any, corpus: list[Utterance], size: dict[str, Any], options: Any
) -> dict[str, Any]:
    """Seconds an epoch, from batches of the corpus, and of a step on given numbers of frames."""
    g = generator(options.seed, 0)
    batches = {}
    for i in range(size["timed"]):
        rows = torch.randint(len(corpus), (size["batch"],), generator=g).tolist()
        batches[f"corpus {i}"] = batch_of(corpus, rows)
    for n in size["frames"]:
        features = torch.randn(size["batch"], n, BANDS, generator=g)
        digits = torch.randint(BLANK, (size["batch"], n // 40), generator=g)
        full = torch.full((size["batch"],), n)
        batches[f"{n} frames"] = (features, full, digits, torch.full_like(full, n // 40))
    steps = seconds(kinds, batches, size["model"], size["timed"])
    an_epoch = len(corpus) / size["batch"]
    return {
        kind: {
            "an epoch": an_epoch * np.mean([y for x, y in found.items() if x.startswith("corpus")]),
            **{x: y for x, y in found.items() if x.endswith("frames")},
        }
        for kind, found in steps.items()
    }


def run(argv: list[str] | None = None) -> dict[str, Any]:
    options = arguments(
        __doc__ or "", argv, KINDS,
        voices={"choices": ("auto", *SOURCES), "default": "auto",
                "help": "espeak-ng's, or formants where there is no espeak-ng"},
        utterances={"type": positive, "help": "fewer than the size's own number"},
    )  # fmt: skip
    size, source = SIZES[options.size], source_of(options.voices)
    steps, kinds = options.steps or size["steps"], options.kinds or KINDS
    counts = [min(x, options.utterances or x) for x in size["utterances"]]
    training, test = (
        made(source, count, title, options, held_out=held_out, digits=size["digits"])
        for count, title, held_out in zip(
            counts, ("speakers", "other speakers"), (False, True), strict=True
        )
    )
    frames = [len(x.features) for x in training]
    results: dict[str, Any] = {
        "voices": source,
        "speakers": [len({x.speaker for x in y}) for y in (training, test)],
        "utterances": counts,
        "frames": {"mean": float(np.mean(frames)), "most": max(frames)},
        "seconds": timed(kinds, training, size, options),
        "published, error rate and seconds an epoch": PUBLISHED,
        "parameters": {},
        "rows": {},
    }

    def loss(model: nn.Module, g: torch.Generator) -> Tensor:
        rows = torch.randint(len(training), (size["batch"],), generator=g).tolist()
        return loss_of(model, batch_of(training, rows))

    def evaluate(model: nn.Module) -> dict[str, float]:
        return judge(model, test)

    def rate(step: int) -> float:
        return cosine(step, steps, warm_up=size["warm_up"], peak=size["rate"])

    for kind in kinds:
        seeded(options.seed)
        model = Recognizer(kind, **size["model"])
        results["parameters"][kind] = parameters(model)
        results["rows"][kind] = train(
            f"speech_{source}_{kind}", model, loss, options, steps=steps, rate=rate,
            evaluate=evaluate, every=size["every"], facts={**size, "utterances": counts},
        )  # fmt: skip
        record("speech", options, results)  # what is finished can be read
        curves(options.out / "speech.png", results["rows"], ["test loss", "digit error rate"])
    return results


if __name__ == "__main__":
    results = uninterrupted(run)
    print(f"voices: {results['voices']}")
    for kind, rows in results["rows"].items():
        print(f"{kind:>8}: {rows[-1]['digit error rate']:.2f} % of the digits wrong, "
              f"{results['seconds'][kind]['an epoch']:.0f} s an epoch")  # fmt: skip
