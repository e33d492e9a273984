"""What the experiments share: a command line, training that can be interrupted, results.

An experiment is a script: ``python experiments/copy_task.py --size small``.  A run writes its
checkpoint, its figures and its numbers into ``--out``; started again after Ctrl-C it goes on from
the checkpoint, bit for bit, as everything random comes from a step's own generator.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from linattn.torch import nn as layers

#: Attention by the names that experiments use.
KINDS = ("softmax", "linear", "delta", "gated_delta", "performer")
SIZES = ("tiny", "small", "full")
PRECISIONS = ("highest", "medium")
BETWEEN = 60.0  #: seconds, after which a checkpoint is due where nothing was measured yet


def arguments(
    description: str,
    argv: list[str] | None = None,
    kinds: Sequence[str] = KINDS,
    sizes: Iterable[str] = SIZES,
    **more: Any,
) -> argparse.Namespace:
    """The options of every experiment, and those of one: name to keywords of add_argument."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", choices=tuple(sizes), default="small", help="tiny is for tests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=positive, help="instead of the size's own number")
    parser.add_argument("--out", type=Path, default=Path("experiments/runs"))
    parser.add_argument("--kinds", nargs="+", choices=kinds, help="what to train")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default=PRECISIONS[0],
        help="of products in float32; medium: their operands as bfloat16, where the processor can",
    )  # fmt: skip
    for name, keywords in more.items():
        parser.add_argument(f"--{name}", **keywords)
    options = parser.parse_args(argv)
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision(options.precision)
    options.command = " ".join(["python", *sys.argv]) if argv is None else " ".join(argv)
    return options


def positive(text: str) -> int:
    """The number of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; expected a whole number from 1")
    return int(text)


def attention(kind: str, width: int, heads: int, **options: Any) -> layers.Attention:
    """A layer of that kind, causal unless ``causal=False``."""
    if kind == "softmax":
        return layers.SoftmaxAttention(width, heads, **options)
    if kind == "linear":
        return layers.LinearAttention(width, heads, **options)
    if kind == "delta":
        return layers.FastWeightAttention(width, heads, **options)
    if kind == "gated_delta":
        return layers.GatedDeltaNet(width, heads, **options)
    if kind == "performer":
        return layers.PerformerAttention(width, heads, **options)
    raise ValueError(f"attention: kind is {kind!r}; expected one of {KINDS}")


def language_model(
    kind: str | Callable[[int, int], layers.Attention], vocabulary: int, *, width: int,
    heads: int, depth: int, feedforward: int, length: int | None, dropout: float = 0.0,
) -> layers.TransformerLM:  # fmt: skip
    """A model of equal blocks, with attention of a kind, or as a function of width and heads."""
    make = partial(attention, kind) if isinstance(kind, str) else kind
    blocks = [
        layers.TransformerBlock(make(width, heads), dim_feedforward=feedforward, dropout=dropout)
        for _ in range(depth)
    ]
    return layers.TransformerLM(vocabulary, blocks, max_length=length, dropout=dropout)


def waves(length: int, width: int) -> Tensor:
    """The positions of Vaswani et al., section 3.5, (length, width)."""
    angle = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
    return torch.cat([angle.sin(), angle.cos()], 1)


def parameters(model: nn.Module) -> int:
    return sum(x.numel() for x in model.parameters())


def generator(seed: int, step: int) -> torch.Generator:
    """That of one step alone: a run that was interrupted draws what it would have drawn."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)


def clock() -> float:
    """Seconds; on one thread the processor's time, in which other programs have no part."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def seconds_of_pass(model: nn.Module, loss: Callable[..., Tensor], *given: Any) -> float:
    """Those of a pass forward and backward, for the loss of what is given."""
    model.zero_grad()
    begin = clock()
    loss(model, *given).backward()
    return clock() - begin


def uninterrupted(run: Callable[[], Any]) -> Any:
    """What the script's run gives; Ctrl-C ends the program without a traceback."""
    try:
        return run()
    except KeyboardInterrupt:
        sys.exit(130)


def seeded(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # libraries draw from it
    torch.manual_seed(seed)


def cosine(step: int, steps: int, *, warm_up: int, peak: float, least: float = 0.1) -> float:
    """A learning rate that rises over `warm_up` steps and falls to a share of its peak."""
    if step < warm_up:
        return peak * (step + 1) / warm_up
    part = min((step - warm_up) / max(steps - warm_up, 1), 1)
    return float(peak * (least + (1 - least) * (1 + np.cos(np.pi * part)) / 2))


def train(
    name: str,
    model: nn.Module,
    loss: Callable[[nn.Module, torch.Generator], Tensor],
    options: argparse.Namespace,
    *,
    steps: int,
    rate: Callable[[int], float],
    evaluate: Callable[[nn.Module], dict[str, float]],
    every: int,
    clip: float = 1.0,
    weight_decay: float = 0.0,
    optimizer: Any = torch.optim.AdamW,
    done: Callable[[list[dict[str, float]]], bool] = lambda rows: False,
    best: str = "",
    facts: Any = None,
) -> list[dict[str, float]]:
    """Trains with AdamW, or as asked; the rows of what was measured, one each `every` steps.

    Ctrl-C leaves a checkpoint of the last minute, from which the same command goes on.  Training
    ends early where `done` is true of the rows.  The model ends with the weights of the row in
    which the field `best` was least, or with the last ones.  `facts` are what else the run depends
    on: a checkpoint with others is refused.
    """
    descent = optimizer(model.parameters(), betas=(0.9, 0.98), weight_decay=weight_decay)
    path = options.out / f"{name}.pt"
    config = {"steps": steps, "name": name, "facts": facts, **conditions(options)}
    step, rows, seconds, (total, count), least = _restored(path, model, descent, config)
    bar = tqdm(initial=step, total=steps, desc=name, disable=options.size == "tiny")
    begin, kept, at = clock(), seconds, step
    try:
        while step < steps and not done(rows):
            for group in descent.param_groups:
                group["lr"] = rate(step)
            torch.manual_seed(options.seed * 1_000_003 + step)  # of dropout
            descent.zero_grad()
            value = loss(model, generator(options.seed, step))
            value.backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            descent.step()
            step += 1
            total, count = total + value.item(), count + 1
            bar.update()
            spent, measured = seconds + clock() - begin, step % every == 0 or step == steps
            if measured:
                row = {"step": step, "loss": total / count, "seconds": round(spent, 1)}
                rows.append(row | _evaluated(model, evaluate))
                total, count = 0.0, 0
                if best and least_row(rows, best) is rows[-1]:
                    least = {x: y.clone() for x, y in model.state_dict().items()}
                bar.set_postfix({x: f"{y:.4g}" for x, y in rows[-1].items() if x != "step"})
            if measured or spent - kept >= BETWEEN:
                _save(path, model, descent, config, step, rows, spent, (total, count), least)
                kept, at = spent, step
    except KeyboardInterrupt:
        print(f"\n{name}: interrupted; the same command goes on from step {at}")
        raise
    finally:
        bar.close()
    if least:
        model.load_state_dict(least)
    return rows


@torch.no_grad()
def _evaluated(model: nn.Module, evaluate: Callable[[nn.Module], dict[str, float]]) -> Any:
    model.eval()
    found = evaluate(model)
    model.train()
    return found


def least_row(rows: list[dict[str, float]], field: str) -> dict[str, float]:
    """The first of the rows in which a field is least."""
    return min(rows, key=lambda x: x[field])


def stalled(field: str, least: float, rows_without: int) -> Callable[[Any], bool]:
    """Whether a field of the last rows is not `least` below what it was in any row before them."""

    def done(rows: list[dict[str, float]]) -> bool:
        values = [x[field] for x in rows]
        before = values[:-rows_without]
        return bool(before) and min(values[-rows_without:]) > min(before) - least

    return done


def _save(
    path: Path, model: nn.Module, optimizer: Any, config: Any, step: int, rows: Any, seconds: float,
    losses: tuple[float, int], least: dict[str, Tensor],
) -> None:  # fmt: skip
    """In one move: an interrupted write leaves the checkpoint before."""
    part = path.with_suffix(".part")
    torch.save(
        {"config": config, "model": model.state_dict(), "optimizer": optimizer.state_dict(),
         "step": step, "rows": rows, "seconds": seconds, "losses": losses, "least": least}, part,
    )  # fmt: skip
    part.replace(path)


def _restored(path: Path, model: nn.Module, optimizer: Any, config: Any) -> Any:
    """Step, rows, seconds, sum and number of the losses since the last row, least row's weights."""
    if not path.exists():
        return 0, [], 0.0, (0.0, 0), {}
    try:
        saved = torch.load(path, weights_only=True)
    except Exception as error:
        raise SystemExit(f"{path} is no checkpoint ({error}); remove it to begin anew") from None
    if not isinstance(saved, dict) or "config" not in saved:
        raise SystemExit(f"{path} is no checkpoint of these experiments; remove it to begin anew")
    _same(path, saved["config"], config)
    try:
        model.load_state_dict(saved["model"])
    except RuntimeError:
        raise SystemExit(
            f"{path} is of a model with other weights: choose another --out, or remove it"
        ) from None
    optimizer.load_state_dict(saved["optimizer"])
    return tuple(saved[x] for x in ("step", "rows", "seconds", "losses", "least"))


def _same(path: Path, saved: Any, config: Any) -> None:
    if saved != config:
        raise SystemExit(
            f"{path} is of another configuration, {saved}; this run is {config}: "
            "choose another --out, or remove it"
        )


def kept(
    name: str,
    options: argparse.Namespace,
    part: str,
    compute: Callable[[], Any],
    facts: Any = None,
) -> Any:
    """What `compute` gives, a value of JSON; from a file, if a run before came so far.

    `facts` are what else it depends on, as those of `train`.
    """
    path = options.out / f"{name}.parts"
    config = {"steps": options.steps, "facts": facts, **conditions(options)}
    config = json.loads(json.dumps(config))
    saved = {"config": config, "parts": {}}
    if path.exists():
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            found, _ = saved["config"], saved["parts"]
        except (ValueError, KeyError, TypeError) as error:
            raise SystemExit(
                f"{path} holds no parts of a run ({error!r}); remove it to begin anew"
            ) from None
        _same(path, found, config)
    if part not in saved["parts"]:
        saved["parts"][part] = compute()
        new = path.with_suffix(".new")
        new.write_text(json.dumps(saved), encoding="utf-8")
        new.replace(path)
    return saved["parts"][part]


def record(name: str, options: argparse.Namespace, results: Any) -> Path:
    """Writes the numbers of a run, with the command and the machine, as JSON."""
    path: Path = options.out / f"{name}.json"
    facts = {
        "command": options.command,
        "machine": processor(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        **conditions(options),
        "results": results,
    }
    path.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return path


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    """The options that every number of a run depends on."""
    return {x: getattr(options, x) for x in ("precision", "seed", "size")}


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def batches(count: int, seed: int) -> Iterator[torch.Generator]:
    """Generators of batches that training never draws."""
    for i in range(count):
        yield generator(seed + 987_654_321, i)
