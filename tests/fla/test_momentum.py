"""The delta rule with momentum in linattn.torch.fla."""

import importlib

import fla_package
import fla_twins as twins
import pytest
import torch
from fla_cases import B, norm
from fla_families import FAMILIES
from fla_twins import near

import linattn.torch
from linattn.torch import fla

FAMILY = FAMILIES["momentum_delta_rule"]


def make():
    return FAMILY.make(B)


def test_norms_and_decayed_reads():
    """fla's defaults: q, k and p have norm 1, and p reads the memory after its decay."""
    x = make()
    x |= {key: 3 * x[key] for key in "qkp"}
    same = x | {key: norm(x[key]) for key in "qkp"}
    same["p"] = x["log_alpha"].exp()[..., None] * same["p"]
    o, _ = fla.chunk_momentum_delta_rule(**x)
    near(o, twins.momentum(**same, start=0 * FAMILY.starts(B))[0], 1e-13)


def test_what_is_left_out():
    """p is k, and beta and eta are 1; no state is returned."""
    x = make()
    few = {key: x[key] for key in ("q", "k", "v", "log_alpha", "log_mu")}
    one = torch.ones_like(x["beta"])
    o, end = FAMILY.run("chunk", few, scale=0.5)
    assert end is None
    whole = few | {"p": x["k"], "beta": one, "eta": one}
    want, _ = FAMILY.run("chunk", whole, scale=0.5)
    assert torch.equal(o, want)


@fla_package.NEEDED
def test_layer_of_fla():
    """fla's own layer with `patch_fla`: in both modes, and in pieces with its cache."""
    torch.manual_seed(0)
    modeling, x = importlib.import_module("fla.layers.momentum_deltanet"), torch.randn(2, 20, 64)
    cache = importlib.import_module("fla.models.utils").Cache()
    with linattn.torch.patch_fla(), torch.no_grad():
        layer = modeling.MomentumDeltaNet(hidden_size=64, num_heads=2, head_dim=32, layer_idx=0)
        whole, *_ = layer.eval()(x)
        layer.mode = "fused_recurrent"
        assert torch.equal(layer(x)[0], whole)
        out = []
        for piece in x.split([12, *[1] * 8], 1):
            o, _, cache = layer(piece, past_key_values=cache, use_cache=True)
            out.append(o)
    near(torch.cat(out, 1), whole, 1e-5)


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("p", lambda x: x["v"], r"p has shape .*; expected \(2, 11, 3, 4\), \[B, T, H, K\]"),
        ("log_mu", lambda x: x["q"], r"log_mu has shape .*; expected \(2, 11, 3\), \[B, T, H\]"),
        ("eta", lambda x: 1.0, "eta is a float; expected a tensor"),
        ("v", lambda x: torch.cat([x["v"]] * 2, 2), "v has shape"),
        ("initial_state", lambda x: FAMILY.starts(B)[0],
         r"initial_state has shape .*\[2, N, H, K, V\]"),
    ],
)  # fmt: skip
def test_errors(argument, value, error):
    x = make()
    with pytest.raises((ValueError, TypeError), match=f"chunk_momentum_delta_rule: {error}"):
        fla.chunk_momentum_delta_rule(**x | {argument: value(x)})
