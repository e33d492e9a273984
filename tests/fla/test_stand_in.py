"""linattn's stand-in for fla: its modules, layers and functions, beside an installed fla's."""

import importlib
import importlib.util
import inspect
import sys
import warnings
from pathlib import Path

import fla_package
import pytest
import torch
from processes import output

import linattn.torch.fla.ops
from linattn.torch import fla, install_as, patch_fla
from linattn.torch.fla import modules

#: Modules that fla itself fails to import.
BROKEN = {"fla.ops.delta_rule.parallel"}


@pytest.fixture
def stand_in():
    """The modules under fla's names."""
    with install_as("fla", replace=True):
        yield _loaded()


def _loaded():
    return {x: y for x, y in sys.modules.items() if x.partition(".")[0] == "fla"}


def theirs(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a machine without a GPU
        return importlib.import_module(name)


def parameters(f):
    """The positional parameters with their defaults."""
    found = inspect.signature(f).parameters.values()
    return [
        str(x.replace(annotation=x.empty)) for x in found
        if x.kind is x.POSITIONAL_OR_KEYWORD and x.name != "self"
    ]  # fmt: skip


def test_what_scripts_import(stand_in):
    """The imports of published models' code, which is loaded with their weights."""
    from fla.layers.utils import get_unpad_data, index_first_axis, pad_input  # noqa: F401
    from fla.modules import FusedRMSNormGated, RMSNorm, ShortConvolution  # noqa: F401
    from fla.modules.convolution import causal_conv1d
    from fla.modules.fused_norm_gate import rms_norm_gated  # noqa: F401
    from fla.modules.l2norm import l2_norm  # noqa: F401
    from fla.ops import chunk_gla
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # noqa: F401
    from fla.ops.kda import chunk_kda, fused_recurrent_kda  # noqa: F401
    from fla.ops.kda.gate import fused_kda_gate  # noqa: F401
    from fla.ops.rwkv7.fused_addcmul import fused_addcmul_rwkv7  # noqa: F401
    from fla.ops.simple_gla.fused_recurrent import fused_recurrent_simple_gla  # noqa: F401
    from fla.ops.utils.index import prepare_cu_seqlens_from_mask  # noqa: F401
    from fla.utils import tensor_cache  # noqa: F401

    assert chunk_gla is fla.chunk_gla and causal_conv1d is fla.causal_conv1d
    import fla.ops.gla.chunk as chunk

    assert chunk.chunk_gla is chunk_gla and importlib.util.find_spec("fla.ops.gla.chunk")
    assert sys.modules["fla"].__version__.endswith("+linattn")
    with pytest.raises(ImportError, match="GatedDeltaNet"):
        from fla.layers import GatedDeltaNet  # noqa: F401
    with pytest.raises(ImportError, match=r"fla\.models"):
        importlib.import_module("fla.models")


def test_nothing_of_linattn_alone_takes_a_name(stand_in):
    assert not [x for x in stand_in if "._" in x or x == "fla.delta"]
    assert {x.partition(".")[0] for x in (y.removeprefix("fla.") for y in stand_in)} == {
        "fla", "layers", "modules", "ops", "utils",
    }  # fmt: skip


def test_every_function_has_a_place(stand_in):
    """In a file of its family, in that family's folder, and in fla.ops."""
    of_modules = {"LogLinearAttentionState", "ShortConvolution", "causal_conv1d",
                  "causal_conv1d_update"}  # fmt: skip
    for name in {*fla.__all__} - of_modules:
        places = [x for x, y in stand_in.items() if vars(y).get(name) is getattr(fla, name)]
        depths = {x.count(".") for x in places if x.startswith("fla.ops")}
        assert {1, 2, 3} <= depths, name


@fla_package.needed
def test_places_are_those_of_fla():
    """Every file has what fla's file of that name has; folders may have more."""
    with install_as("fla", replace=True):
        ours = _loaded()
    assert ours.keys() >= BROKEN
    for name in ours.keys() - {"fla", *BROKEN}:
        missing = [x for x in ours[name].__all__ if not hasattr(theirs(name), x)]
        is_folder = name.startswith("fla.ops") and any(x.startswith(f"{name}.") for x in ours)
        assert is_folder or not missing, (name, missing)


@fla_package.needed
def test_functions_are_where_fla_exports_them():
    """What fla's folders list and linattn has is in linattn's."""
    for name in ("ops", *(f"ops.{x}" for x in fla_package.families()), "modules.norm"):
        listed = {*getattr(theirs(f"fla.{name}"), "__all__", ())} & {*fla.__all__, *modules.__all__}
        if listed:
            ours = importlib.import_module(f"linattn.torch.fla.{name}")
            assert listed <= {*ours.__all__}, name


@fla_package.needed
def test_signatures_of_modules():
    for name in [x for x in sys.modules if x.startswith("linattn.torch.fla.modules.")]:
        if "._" in name or name.endswith(("activations", "activations.ops")):
            continue  # fla's activations have autograd's signatures
        for attribute in sys.modules[name].__all__:
            a, b = (getattr(x, attribute) for x in (sys.modules[name], theirs(name[14:])))
            if isinstance(a, type):
                assert parameters(a.__init__) == parameters(b.__init__), attribute
                assert parameters(a.forward) == parameters(b.forward), attribute
            else:
                known = parameters(b)
                assert parameters(a)[: len(known)] == known, attribute


X, G = (torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
LINEAR = torch.randn(7, 12, generator=torch.Generator().manual_seed(2))
HEADS = X.unflatten(-1, (3, 4))
#: By layer: what it is built of, and what it is called with.
LAYERS = {
    "GroupNorm": ((3, 12, True, True), (X, G)),
    "GroupNormLinear": ((3, 12, True, True, 1e-5, True), (X, LINEAR, None, G)),
    "LayerNorm": ((12, True, True), (X, G)),
    "LayerNormLinear": ((12,), (X, LINEAR, None)),
    "RMSNorm": ((12,), (X, G, True)),
    "RMSNormLinear": ((12,), (X, LINEAR, None)),
    "FusedLayerNormGated": ((12, True, True, "sigmoid"), (X, G)),
    "FusedRMSNormGated": ((12, True, 1e-3, "sigmoid"), (X, G, X, True)),
    "FusedLayerNormSwishGate": ((12, False), (X, G)),
    "FusedRMSNormSwishGate": ((12,), (X, G)),
    "FusedLayerNormSwishGateLinear": ((12,), (X, G, LINEAR)),
    "FusedRMSNormSwishGateLinear": ((12,), (X, G, LINEAR, None, X)),
    "norm.LayerNormGated": ((12, 1e-5, 4), (X, G)),
    "norm.RMSNormGated": ((12, 1e-5, 4), (X, G)),
    "norm.FusedRMSNormGatedLinear": ((12,), (X, G, LINEAR)),
    "L2Norm": ((), (X,)),
    "RotaryEmbedding": ((4,), (HEADS, HEADS, 3)),
    "RotaryEmbedding of pairs": ((4, 100.0, None, True), (HEADS, HEADS)),
    "RotaryEmbedding that scales": ((4, 100.0, 512.0), (HEADS, HEADS, 0, None, 9)),
    "GatedMLP": ((12, 4, None, "swish"), (X,)),
    "GatedMLP of powers": ((12, None, 8, "powlu", False), (X,)),
    "ShortConvolution": ((12, 4), (X,)),
}  # fmt: skip


@fla_package.needed
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    """With fla's parameters, buffers and results."""
    (kind, _, _), (made_of, given) = name.partition(" "), LAYERS[name]
    path, _, kind = f"modules.{kind}".rpartition(".")
    ours = getattr(importlib.import_module(f"linattn.torch.fla.{path}"), kind)(*made_of)
    with patch_fla(), torch.no_grad():
        other = getattr(theirs(f"fla.{path}"), kind)(*made_of)
        for p in other.parameters():
            p.normal_(generator=torch.Generator().manual_seed(3))
        assert ours.state_dict().keys() == other.state_dict().keys()
        assert not ours.load_state_dict(other.state_dict()).missing_keys
        found, expected = ours(*given), other(*given)
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    for a, b in zip(found, expected, strict=True):
        # the same operations in PyTorch, but for the angles' factors in another order
        torch.testing.assert_close(a, b, rtol=0, atol=4e-7 * (0 if b is None else b.abs().max()))


@fla_package.needed
def test_the_tests_of_modules():
    """Those of fla's patched modules, of values and gradients, with the stand-in's."""
    program = (
        "import contextlib, sys, pytest, linattn.torch as la\n"
        "assert la.install_as('fla', replace=True).names\n"
        "la.patch_fla = contextlib.nullcontext\n"
        "options = ['-q', '-n', '0', '-m', 'slow', '-p', 'no:cacheprovider']\n"
        "sys.exit(pytest.main([*options, sys.argv[1]]))\n"
    )
    file = Path(__file__).with_name("test_patch_modules.py")
    assert " passed" in output("-c", program, file)


def test_gates():
    g, A, bias = X.unflatten(-1, (3, 4)), torch.tensor([0.5, 1.0, -1.0]), LINEAR[0]
    from linattn.torch.fla.ops.gated_delta_rule.gate import fused_gdn_gate
    from linattn.torch.fla.ops.kda.gate import fused_kda_gate

    soft = torch.nn.functional.softplus
    rate, at = A.exp()[:, None], g + bias.view(3, 4)
    torch.testing.assert_close(fused_kda_gate(g, A, bias), -rate * soft(at))
    bounded = fused_kda_gate(g, A, bias, -5.0, torch.float64)
    assert bounded.dtype is torch.float64
    torch.testing.assert_close(bounded.float(), -5 * (rate * at).sigmoid())
    torch.testing.assert_close(fused_kda_gate(g, None, None, -5.0), -5 * g.sigmoid())
    heads = g[..., 0]
    torch.testing.assert_close(fused_gdn_gate(heads, A, A), -A.exp() * soft(heads + A))


def test_sequences():
    """What becomes of a mask, and tokens without padding back in rows."""
    from linattn.torch.fla.ops.utils import index

    from linattn.torch.fla.layers import utils

    mask = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 1]])
    places, bounds, longest = utils.get_unpad_data(mask)
    assert bounds.tolist() == [0, 2, 5, 5, 6] and longest == 3
    assert torch.equal(bounds, index.prepare_cu_seqlens_from_mask(mask))
    assert index.prepare_lens(bounds).tolist() == [2, 3, 0, 1]
    assert index.prepare_position_ids(bounds).tolist() == [0, 1, 0, 1, 2, 0]
    assert index.prepare_sequence_ids(bounds).tolist() == [0, 0, 1, 1, 1, 2]
    assert index.prepare_token_indices(bounds)[-1].tolist() == [2, 0]
    x = torch.arange(12.0).view(12, 1)
    rows = utils.pad_input(utils.index_first_axis(x, places), places, 4, 3)
    assert torch.equal(rows[..., 0], x.view(4, 3) * mask)


@fla_package.needed
def test_sequences_are_those_of_fla():
    from linattn.torch.fla import _sequences

    mask = torch.tensor([[0, 1, 1], [1, 1, 1], [0, 0, 0], [0, 0, 1]])
    bounds = torch.tensor([0, 2, 5, 5, 6], dtype=torch.int32)
    for name in _sequences.OF_INDEX:
        other = getattr(theirs("fla.ops.utils.index"), name)
        given = mask if name.endswith("mask") else bounds
        a, b = getattr(_sequences, name)(given), other(given)
        assert torch.equal(a, b) and a.dtype is b.dtype, name


@pytest.mark.parametrize("form", ["chunk", "fused_recurrent"])
@pytest.mark.parametrize("family", ["gated_delta_rule", "kda"])
def test_names_of_bounds(form, family):
    """Transformers' models hand bounds on by other names than fla's functions have."""
    x = HEADS[:1]
    gate = -x.exp() if family == "kda" else -x[..., 0].exp()
    given = {"g": gate, "beta": x[..., 1].sigmoid(), "use_qk_l2norm_in_kernel": True,
             "output_final_state": True}  # fmt: skip
    bounds, rule = torch.tensor([0, 2, 5]), getattr(fla, f"{form}_{family}")
    o, states = rule(x, x, x, cu_seqlens=bounds, **given)
    assert not torch.equal(o, rule(x, x, x, **given)[0])
    for other in (
        {"cu_seq_lens_q": bounds},
        {"seq_idx": torch.tensor([[4, 4, 7, 7, 7]])},
        {"cu_seq_lens_q": bounds, "seq_idx": torch.zeros(1, 5)},
    ):
        found = rule(x, x, x, **given, **other)
        assert torch.equal(found[0], o) and torch.equal(found[1], states)
    with pytest.raises(ValueError, match="batch of 2; expected 1"):
        rule(HEADS, HEADS, HEADS, g=gate.expand(2, *gate.shape[1:]), beta=HEADS[..., 1],
             cu_seq_lens_q=bounds)  # fmt: skip


def test_no_patch_of_the_stand_in(stand_in):
    with pytest.raises(ImportError, match="undo install_as first"):
        patch_fla()
    assert linattn.torch.patched() == []


@pytest.mark.slow
def test_programs_without_fla(tmp_path):
    """LINATTN_PATCH=fla stands in for a package that is not there."""
    script = tmp_path / "script.py"
    script.write_text("import fla\nprint(fla.__version__)\n")
    program = (
        "import os, sys\nsys.modules['fla'] = None\nos.environ['LINATTN_PATCH'] = 'fla'\n"
        "from linattn.torch.__main__ import main\nmain(sys.argv[1:])\n"
    )
    assert output("-c", program, script) == f"{fla.__version__}\n"


def test_errors():
    with pytest.raises(ValueError, match="FusedRMSNormGated: activation is 'gelu'"):
        modules.FusedRMSNormGated(4, activation="gelu")
    with pytest.raises(ValueError, match="GroupNorm: hidden_size is 5; expected a multiple"):
        modules.GroupNorm(2, 5)
    with pytest.raises(ValueError, match="RotaryEmbedding: dim is 3; expected an even number"):
        modules.RotaryEmbedding(3)
    with pytest.raises(ValueError, match="GatedMLP: hidden_act is 'gelu'"):
        modules.GatedMLP(4, hidden_act="gelu")
    with pytest.raises(ValueError, match="weight is None; expected the projection's"):
        modules.FusedRMSNormSwishGateLinear(12)(X, G)
    for kind in (modules.FusedKLDivLoss, modules.FusedLinearCrossEntropyLoss):
        with pytest.raises(ValueError, match="reduction is 'none'; expected one of"):
            kind(reduction="none")
