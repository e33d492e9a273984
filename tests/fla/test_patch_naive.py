"""Models of fla with `patch_fla` against fla's own naive recurrences and its kernels."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
import torch
from fla_models import build, enlarged, tokens
from processes import output

from linattn.torch import patch_fla

#: By model, the module of its layer and the family of that layer's recurrence.
LAYERS = {
    "PrecondGatedDeltaNet": ("precond_gated_deltanet", "precond_gated_delta_rule"),
    "PrecondKDA": ("precond_kda", "precond_kda"),
    "Raven": ("raven", "gsa"),
    "Rodimus": ("rodimus", "gla"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_models_with_naive_recurrences(name, monkeypatch):
    """Logits and gradients of a model whose layers call linattn's functions, or fla's naive one."""
    layer, family = LAYERS[name]
    naive = importlib.import_module(f"fla.ops.{family}.naive")
    model, ids, called = enlarged(build(name)).eval(), tokens(2, 24), []
    module = importlib.import_module(f"fla.layers.{layer}")
    with patch_fla():
        ours = logits_and_gradients(model, ids)
        for form in ("chunk", "fused_recurrent"):
            function = by_keyword(getattr(naive, f"naive_recurrent_{family}"), called)
            monkeypatch.setattr(module, f"{form}_{family}", function)
        theirs = logits_and_gradients(model, ids)
    assert called == [f"naive_recurrent_{family}"] * 2  # layers
    for a, b, factor in zip(ours, theirs, (1, 10), strict=True):
        # float32 in another order, over two layers, and there and back
        torch.testing.assert_close(a, b, rtol=0, atol=factor * 2e-5 * b.abs().max().item())


def logits_and_gradients(model, ids):
    logits = model(ids, use_cache=False).logits
    gradients = torch.autograd.grad(
        logits.square().mean(), list(model.parameters()), allow_unused=True, materialize_grads=True
    )
    return logits.detach(), torch.cat([x.flatten() for x in gradients])


def by_keyword(naive, called):
    """A naive function with the keywords of the one that a layer calls."""
    known = inspect.signature(naive).parameters

    def run(**given):
        called.append(naive.__name__)
        assert given.get("cu_seqlens") is None
        if given.get("use_qk_l2norm_in_kernel"):
            for x in "qk":
                given[x] = given[x] * (given[x].square().sum(-1, keepdim=True) + 1e-6).rsqrt()
        if "gk" in known:
            given["gk"] = given.get("gk", given.get("g"))
            assert "scale" not in given
        return naive(**{x: y for x, y in given.items() if x in known})

    return run


PROGRAM = Path(__file__).parents[1] / "support" / "fla_interpreter.py"
#: Those whose kernels take float32 and run in the interpreter.
KERNELS = ("Comba", "GLA", "GatedDeltaNet", "HGRN2", "KDA", "LinearAttention", "RWKV7", "RetNet")


@pytest.mark.parametrize("names", [KERNELS[::2], KERNELS[1::2]], ids=" ".join)
def test_against_the_kernels_of_fla(names):
    """Triton's interpreter runs these."""
    rows = [line.split() for line in output(PROGRAM, *names).splitlines()]
    assert [row[0] for row in rows] == [*names]
    # float32; kernels of chunks round differently
    wrong = [row for row in rows if not (float(row[1]) < 1e-5 and float(row[2]) < 1e-4)]
    assert wrong == []
