"""Results of a small model of Transformers, whose functions are the library's or linattn's.

``python transformers_door.py FOLDER FAMILY ...`` saves those with the packages that linattn stands
in for, in an interpreter that has neither Triton nor these packages.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
from typing import Any

import torch
import transformers_models
from transformers_models import VOCABULARY, build, module

PACKAGES = ("causal_conv1d", "fla", "mamba_ssm")
#: Bounds of the packed sequences.
ENDS = (0, 4, 5, 21)
#: Softmax attention over keys that an indexer pools mixes sequences.
ALL_LINEAR = {"glm5_next": {"text_config": {"layer_types": ["linear_attention"] * 2}}}
#: The scan of these is told nothing of sequences, as in Mamba.
SCAN_MIXES = ("mamba", "falcon_mamba", "jamba", "zamba")


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, shape, generator=torch.Generator().manual_seed(1))


def results(family: str) -> dict[str, Any]:
    """Logits of two rows, one of them padded, of generated tokens, and gradients."""
    model, ids = build(family), tokens(2, 21)
    mask = torch.ones(2, 21, dtype=torch.long)
    mask[1, :5] = 0
    with torch.no_grad():
        padded = model(ids, attention_mask=mask).logits[mask == 1]
        found = {"logits": model(ids).logits, "padded": padded}
    text = model.generate(
        tokens(2, 5), max_new_tokens=6, do_sample=False, output_logits=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    found |= {"text": text.sequences, "steps": torch.stack(text.logits)}
    model.train()(ids, labels=ids, use_cache=False).loss.backward()
    grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {"gradients": grads}


def packed_row() -> tuple[torch.Tensor, list[int], *tuple[dict[str, torch.Tensor], ...]]:
    """Tokens, the lengths of their sequences, and three ways to say where these are."""
    lengths = [b - a for a, b in itertools.pairwise(ENDS)]
    bounds = torch.tensor(ENDS, dtype=torch.int32)
    index = torch.repeat_interleave(torch.arange(3), bounds.diff())[None].int()
    return (
        tokens(1, ENDS[-1]), lengths, {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds},
        {"seq_idx": index}, {"position_ids": torch.cat([torch.arange(n) for n in lengths])[None]},
    )  # fmt: skip


def packed_results(family: str) -> dict[str, Any]:
    """Logits of packed sequences, told apart in each of the ways that the library has."""
    model = build(family, **ALL_LINEAR.get(family, {}))
    ids, _, bounds, index, places = packed_row()
    packed = bounds | index | ({} if family == "mamba2" else places)
    found = {}
    with torch.no_grad():
        for left_out in ((), ("seq_idx",), ("cu_seq_lens_q", "cu_seq_lens_k")):
            given = {x: y for x, y in packed.items() if x not in left_out}
            name = " without ".join(["packed", *left_out[:1]])
            found[name] = model(ids, use_cache=False, **given)[0]
    return found


def implementations(family: str) -> dict[str, Any]:
    """By name, what the functions call for which the library asks those packages."""
    functions = {name: getattr(x, "forward", x) for name, x in vars(module(family)).items()}
    wrapped = {
        name: inspect.getclosurevars(x).nonlocals
        for name, x in functions.items()
        if inspect.isfunction(x) and hasattr(x, "__wrapped__")
    }
    return {name: x["implementation"] for name, x in wrapped.items() if "implementation" in x}


def main(folder: str, *families: str) -> None:
    for name in (*PACKAGES, "triton"):
        sys.modules[name] = None  # type: ignore[assignment]
    transformers_models.fla_hidden = contextlib.nullcontext  # type: ignore[assignment]
    from linattn.torch import install_as

    torch.set_num_threads(1)
    assert install_as(*PACKAGES).names == PACKAGES
    for family in families:
        found = results(family)
        if family not in SCAN_MIXES:
            found["packed"] = packed_results(family)
        called = implementations(family)
        found["implementations"] = {name: x.__module__ for name, x in called.items()}
        torch.save(found, f"{folder}/{family}")


if __name__ == "__main__":
    main(*sys.argv[1:])
