"""The layer of Mamba-3 in the stand-in for mamba_ssm: weights, results, states, packed rows."""

import pytest
import torch
from mamba3_twin import heads, recurrence
from mamba_cases import agree, errors
from mamba_layers import BATCH, LAYERS, MAMBA3, OF_MAMBA3, WIDTH, N, generated, made, tokens

from linattn.torch.mamba_ssm import Mamba3
from linattn.torch.mamba_ssm.utils.generation import InferenceParams

EACH_LAYER = pytest.mark.parametrize("name", OF_MAMBA3)


def by_definition(layer, u, rank, norm, softplus):
    """The layer's result, of its parameters."""
    p, groups = dict(layer.named_parameters()), layer.num_bc_heads
    inner, count = layer.d_inner, layer.nheads
    sizes = [inner, inner, *2 * (8 * groups * rank,), *3 * (count,)]
    parts = (u @ p["in_proj.weight"].T).tensor_split(torch.tensor(sizes).cumsum(0), -1)
    z, x, B, C, dt, A, trap, rates = parts

    def rms(x, weight, eps=1e-5):
        return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight

    def keys(x, name):
        x = rms(x.unflatten(-1, (rank, groups, 8)), p[f"{name}_norm.weight"])
        return heads(x, p[f"{name}_bias"], 3)

    z, x = (y.unflatten(-1, (1, count, 8)) for y in (z, x))
    if layer.is_mimo:
        x, z = x * p["mimo_x"].transpose(0, 1), z * p["mimo_z"].transpose(0, 1)
    tail = torch.where(A > 0, 1 + A, 1 / (1 + A.abs()))
    rate = (A.exp() + 1).log() if softplus else tail
    rate = rate.maximum(torch.tensor(layer.A_floor))
    dt = (1 + (dt + p["dt_bias"]).exp()).log()
    rates = rates[:, :, None].expand(-1, -1, count, -1)
    y, _ = recurrence(
        keys(C, "C"), keys(B, "B"), x, -rate * dt, dt, trap, rates, p["D"],
        pairwise=not layer.is_mimo,
    )  # fmt: skip
    if norm:
        y = rms(y, p["norm.weight"].view(count, 8))
    y = y * z * z.sigmoid()
    y = y * p["mimo_o"].transpose(0, 1) if layer.is_mimo else y
    return y.sum(2).flatten(-2) @ p["out_proj.weight"].T


@EACH_LAYER
def test_the_layer_by_its_definition(name):
    layer, x = made(name), tokens().requires_grad_()
    options = LAYERS[name][1]
    rank = options.get("mimo_rank", 1)
    expected = by_definition(layer, x, rank, "norm" in name, "softplus" in name)
    assert agree(layer(x), expected, torch.float64)
    given = [x, *layer.parameters()]
    found = torch.autograd.grad(layer(x).square().sum(), given)
    known = torch.autograd.grad(expected.square().sum(), given)
    assert all(agree(g, k, torch.float64) for g, k in zip(found, known, strict=True))


@EACH_LAYER
def test_gradients_of_a_prompt_and_steps(name):
    """Through states that are written to."""
    layer, x = made(name), tokens(n=5).requires_grad_()
    given = [x, *layer.parameters()]
    found = torch.autograd.grad(generated(layer, x, 3).square().sum(), given)
    known = torch.autograd.grad(layer(x).square().sum(), given)
    assert all(agree(g, k, torch.float64) for g, k in zip(found, known, strict=True))


def test_an_allocated_cache():
    layer = made("MIMO", torch.bfloat16)
    angles, s, k, v = layer.allocate_inference_cache(5, N)
    assert angles.shape == (5, 4, 2) and s.shape == (5, 4, 8, 8)
    assert k.shape == (5, 3, 4, 8) and v.shape == (5, 4, 8)
    assert angles.dtype is s.dtype is torch.float32 and k.dtype is v.dtype is torch.bfloat16
    assert layer.allocate_inference_cache(5, N, dtype=torch.float32)[2].dtype is torch.float32


@pytest.mark.parametrize("name", ["SISO", "MIMO, norm"])
def test_bfloat16(name):
    """Near the results of float32, by what bfloat16 rounds in tokens and results."""
    layer, x = made(name, torch.bfloat16), tokens(torch.bfloat16)
    with torch.no_grad():
        y, expected = layer(x), made(name, torch.float32)
        expected.load_state_dict(layer.state_dict())
        expected = expected(x.float())
        error = (y - expected).abs().max() / expected.abs().max()
        assert y.dtype is torch.bfloat16 and error < 8 * torch.finfo(torch.bfloat16).eps
        steps = generated(layer, x, 1)
        assert (steps - expected).abs().max() < 16 * expected.abs().max() * 2**-7


@EACH_LAYER
def test_numbered_sequences_stay_apart(name):
    """``seq_idx``, and what follows the last sequence of each row."""
    layer, x = made(name), tokens()
    numbers = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2], [0] * 8 + [1]], dtype=torch.int32)
    bounds = torch.tensor([0, 3, 5, 9, 17, 18])
    state, new = InferenceParams(max_seqlen=N, max_batch_size=BATCH), tokens(n=1)
    with torch.no_grad():
        y = layer(x, seq_idx=numbers, inference_params=state)
        flat = layer(x.view(1, -1, WIDTH), cu_seqlens=bounds)
        assert torch.equal(y, layer(x, seq_idx=numbers)) and torch.equal(y, flat.view(x.shape))
        assert not agree(y, layer(x), torch.float32)
        state.seqlen_offset = N
        after = layer(new, inference_params=state)
        for i, begin in enumerate((5, 8)):
            alone = layer(torch.cat([x[i : i + 1, begin:], new[i : i + 1]], 1))
            assert agree(after[i : i + 1], alone[:, -1:], torch.float64)


def test_parameters_are_those_of_mamba_ssm():
    layer = Mamba3(64, d_state=16, headdim=32, ngroups=2, is_mimo=True, is_outproj_norm=True)
    shapes = {name: tuple(x.shape) for name, x in layer.state_dict().items()}
    assert shapes == {
        "dt_bias": (4,), "B_bias": (4, 4, 16), "C_bias": (4, 4, 16), "mimo_x": (4, 4, 32),
        "mimo_z": (4, 4, 32), "mimo_o": (4, 4, 32), "D": (4,),
        "in_proj.weight": (2 * 128 + 2 * 128 + 3 * 4 + 4, 64), "B_norm.weight": (16,),
        "C_norm.weight": (16,), "norm.weight": (128,), "out_proj.weight": (64, 128),
    }  # fmt: skip
    assert {*Mamba3(64, headdim=32).state_dict()} == shapes.keys() - {
        "mimo_x", "mimo_z", "mimo_o", "norm.weight",
    }  # fmt: skip


def test_new_parameters():
    layer = Mamba3(WIDTH, **MAMBA3, is_mimo=True, dt_min=0.01, dt_max=0.02, dtype=torch.bfloat16)
    dt = torch.nn.functional.softplus(layer.dt_bias)
    assert layer.dt_bias.dtype is torch.float32 and dt.min() > 0.0099 and dt.max() < 0.0201
    assert (layer.B_bias == 1).all() and (layer.C_bias == 1).all() and (layer.D == 1).all()
    assert (layer.mimo_x == 0.25).all() and (layer.mimo_z == 1).all()
    assert (layer.mimo_o == 0.25).all()
    assert layer.dt_bias._no_weight_decay and layer.D._no_weight_decay
    assert layer.in_proj.weight.dtype is torch.bfloat16 and layer.B_bias.dtype is torch.float32


ERRORS = {
    "Mamba3: expand * d_model is 32; expected a multiple of headdim, 5": (
        lambda: Mamba3(WIDTH, headdim=5)
    ),
    "the number of heads is 4; expected a multiple of ngroups, 3": (
        lambda: Mamba3(WIDTH, headdim=8, ngroups=3)
    ),
    "d_state is 7; expected a multiple of 2, 2": lambda: Mamba3(WIDTH, headdim=8, d_state=7),
    "rope_fraction is 0.7; expected one of (0.5, 1.0)": (
        lambda: Mamba3(WIDTH, headdim=8, rope_fraction=0.7)
    ),
    "A_activation is 'relu'": lambda: Mamba3(WIDTH, headdim=8, A_activation="relu"),
    "mimo_rank is 0": lambda: Mamba3(WIDTH, headdim=8, is_mimo=True, mimo_rank=0),
    "with 0 angles": lambda: Mamba3(WIDTH, headdim=8, d_state=2),
    "layer_idx is None": (
        lambda: Mamba3(WIDTH, headdim=8)(tokens(torch.float32), None, None, InferenceParams(9, 1))
    ),
    "hidden_states has shape (2, 9, 16)": (
        lambda: made("SISO")(tokens(), None, None, InferenceParams(9, 2, seqlen_offset=1))
    ),
    "cu_seqlens ends at 5, with batch 2 and seqlen 9": (
        lambda: made("SISO")(tokens(), cu_seqlens=torch.tensor([0, 5]))
    ),
}

test_errors = errors(ERRORS, ValueError)
