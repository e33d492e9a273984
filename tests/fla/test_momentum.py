"""The delta rule with momentum in linattn.torch.fla."""

import importlib
from itertools import pairwise

import fla_package
import fla_twins as twins
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from fla_cases import CUTS, B, H, K, T, V, norm, rand  # noqa: E402
from fla_twins import near  # noqa: E402

import linattn.torch  # noqa: E402
from linattn.torch import fla  # noqa: E402

FORMS = "chunk", "fused_recurrent"
PLAIN = {"use_qk_l2norm_in_kernel": False, "use_p_times_alpha": False}
TOLERANCE = 1e-13


def make(batch=B):
    """Keys have norm 1, so that the memory stays bounded."""
    q, k, v = rand(batch, T, H, K), norm(rand(batch, T, H, K, seed=1)), rand(batch, T, H, V, seed=2)
    gates = {
        "log_alpha": -rand(batch, T, H, seed=3).abs(), "log_mu": -rand(batch, T, H, seed=4).abs(),
        "beta": rand(batch, T, H, seed=5).sigmoid(), "eta": rand(batch, T, H, seed=6).sigmoid(),
    }  # fmt: skip
    return {"q": q, "k": k, "v": v, "p": norm(rand(batch, T, H, K, seed=7))} | gates


def start(n=B):
    return rand(2, n, H, K, V, seed=8)


def call(x, form="chunk", **options):
    return getattr(fla, f"{form}_momentum_delta_rule")(**x, **options)


@pytest.mark.parametrize("form", FORMS)
def test_against_the_twin(form):
    x, first = {key: y.requires_grad_() for key, y in make().items()}, start().requires_grad_()
    want, last = twins.momentum(**x, start=first)
    o, end = call(x, form, initial_state=first, output_final_state=True, **PLAIN)
    assert o.is_contiguous()
    near(o, want, TOLERANCE)
    near(end, last, TOLERANCE)
    leaves = [*x.values(), first]
    expected = torch.autograd.grad(want.square().sum() + last.square().sum(), leaves)
    found = torch.autograd.grad(o.square().sum() + end.square().sum(), leaves)
    for y, z in zip(found, expected, strict=True):
        near(y, z, TOLERANCE)


def test_norms_and_decayed_reads():
    """fla's defaults: q, k and p have norm 1, and p reads the memory after its decay."""
    x = make()
    x |= {key: 3 * x[key] for key in "qkp"}
    same = x | {key: norm(x[key]) for key in "qkp"}
    same["p"] = x["log_alpha"].exp()[..., None] * same["p"]
    near(call(x)[0], twins.momentum(**same, start=0 * start())[0], TOLERANCE)


def test_what_is_left_out():
    """p is k, and beta and eta are 1; no state is returned."""
    x = make()
    few = {key: x[key] for key in ("q", "k", "v", "log_alpha", "log_mu")}
    one = torch.ones_like(x["beta"])
    o, end = call(few, scale=0.5, **PLAIN)
    assert end is None
    want, _ = call(few | {"p": x["k"], "beta": one, "eta": one}, scale=0.5, **PLAIN)
    assert torch.equal(o, want)


def test_packed():
    x, first = make(1), start(3)
    o, end = call(x, initial_state=first, output_final_state=True, cu_seqlens=list(CUTS), **PLAIN)
    for i, (begin, last) in enumerate(pairwise(CUTS)):
        own = first[:, i : i + 1]
        if begin == last:
            assert torch.equal(end[:, i : i + 1], own)
            continue
        part = {key: y[:, begin:last] for key, y in x.items()}
        want, state = twins.momentum(**part, start=own)
        near(o[:, begin:last], want, TOLERANCE)
        near(end[:, i : i + 1], state, TOLERANCE)


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


def test_16_bits():
    """As in fla the output has the dtype of q, k and v, and the state float32."""
    x = {key: y.bfloat16() if key in "qkvp" else y.float() for key, y in make().items()}
    o, end = call(x, output_final_state=True, **PLAIN)
    assert (o.dtype, end.dtype) == (torch.bfloat16, torch.float32)
    wide = {key: y.double() for key, y in x.items()}
    near(o.double(), twins.momentum(**wide, start=0 * start())[0], 2**-7)


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("p", lambda x: x["v"], r"p has shape .*; expected \(2, 11, 3, 4\), \[B, T, H, K\]"),
        ("log_mu", lambda x: x["q"], r"log_mu has shape .*; expected \(2, 11, 3\), \[B, T, H\]"),
        ("eta", lambda x: 1.0, "eta is a float; expected a tensor"),
        ("v", lambda x: torch.cat([x["v"]] * 2, 2), "v has shape"),
        ("initial_state", lambda x: start()[0], r"initial_state has shape .*\[2, N, H, K, V\]"),
    ],
)
def test_errors(argument, value, error):
    x = make()
    with pytest.raises((ValueError, TypeError), match=f"chunk_momentum_delta_rule: {error}"):
        call(x | {argument: value(x)})
