"""fla's recurrences with `patch_fla` against fla's own naive references and its kernels."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from fla_models import build, enlarged, tokens
from processes import output

from linattn.torch import patch_fla


class Reference(NamedTuple):
    """A function of a package of fla.ops, and one of that package's module ``naive``."""

    package: str
    naive: str
    function: str
    operands: str  #: letters of `operands`
    given: Mapping[str, bool]
    alone: Mapping[str, bool] = MappingProxyType({})  #: options of the function alone


_STATES = {"output_final_state": True}
_AS_IS = {"use_qk_l2norm_in_kernel": False}
REFERENCES = (
    Reference("gla", "naive_recurrent_gla", "chunk_gla", "qkvG", _STATES),
    Reference("gla", "naive_recurrent_gla", "fused_recurrent_gla", "qkvG", _STATES),
    Reference("linear_attn", "naive_recurrent_linear_attn", "chunk_linear_attn", "qkv",
              {"normalize": False} | _STATES),
    Reference("simple_gla", "naive_chunk_simple_gla", "chunk_simple_gla", "qkvg", _STATES),
    Reference("gated_delta_rule", "naive_chunk_gated_delta_rule", "chunk_gated_delta_rule",
              "qkvgb", _STATES),
    Reference("kda", "naive_chunk_kda", "chunk_kda", "qkvGb", _STATES),
    Reference("kda", "naive_recurrent_kda", "fused_recurrent_kda", "qkvGb", _STATES),
    Reference("momentum_delta_rule", "recurrent_momentum_delta_rule_ref",
              "fused_recurrent_momentum_delta_rule", "qkvggkbb", _STATES,
              {"use_qk_l2norm_in_kernel": False, "use_p_times_alpha": False}),
    Reference("gsa", "naive_recurrent_gsa", "chunk_gsa", "qkvSG", _STATES),
    Reference("gsa", "naive_recurrent_gsa", "fused_recurrent_gsa", "qkvSG", _STATES),
    Reference("precond_kda", "naive_recurrent_precond_kda", "chunk_precond_kda", "qkvGgbb",
              _STATES, _AS_IS),
    Reference("precond_kda", "naive_recurrent_precond_kda", "fused_recurrent_precond_kda",
              "qkvGgbb", _STATES, _AS_IS),
    Reference("hgrn", "naive_recurrent_hgrn", "fused_recurrent_hgrn", "xy", _STATES),
    Reference("hgrn", "naive_recurrent_hgrn", "chunk_hgrn", "xy", _STATES),
)  # fmt: skip


def operands(letters, batch=2, n=128, heads=2, width=16):
    """By letter: q, k of norm 1, v, log decays of tokens g and channels G, strengths b, slots S."""
    source = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(batch, n, *shape, generator=source)

    made = {
        "q": lambda: F.normalize(normal(heads, width), dim=-1),
        "k": lambda: F.normalize(normal(heads, width), dim=-1),
        "v": lambda: normal(heads, width),
        "g": lambda: F.logsigmoid(normal(heads)),
        "G": lambda: F.logsigmoid(normal(heads, width)),
        "b": lambda: normal(heads).sigmoid(),
        "S": lambda: normal(heads, width).softmax(-1),
        "x": lambda: normal(heads * width),
        "y": lambda: F.logsigmoid(normal(heads * width)),
    }
    return [made[x]().requires_grad_() for x in letters]


def results(function, case, **alone):
    """Outputs, states, and gradients of their squares."""
    given = operands(case.operands)
    found = function(*given, **case.given, **alone)
    found = [x for x in torch.utils._pytree.tree_leaves(found) if x is not None]
    loss = sum(x.float().square().sum() for x in found)
    return [x.detach() for x in (*found, *torch.autograd.grad(loss, given))]


@pytest.mark.parametrize("case", REFERENCES, ids=lambda x: f"{x.function}-{x.naive}")
def test_against_naive_references(case):
    package = importlib.import_module(f"fla.ops.{case.package}")
    naive = getattr(importlib.import_module(f"{package.__name__}.naive"), case.naive)
    theirs = results(naive, case)
    with patch_fla():
        ours = results(getattr(package, case.function), case, **case.alone)
    for a, b in zip(ours, theirs, strict=True):
        # float32 in another order, over 128 tokens
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * b.abs().max().item())


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


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_against_the_kernels_of_fla(name):
    """Triton's interpreter runs these."""
    found, logits, gradients = output(PROGRAM, name).split()
    assert found == name
    # float32 over two layers; kernels of chunks round differently
    assert float(logits) < 1e-5 and float(gradients) < 1e-4
