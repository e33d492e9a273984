"""The layers of the stand-in for mamba_ssm, by name, and how they are called."""

import torch

from linattn.torch.mamba_ssm import Mamba, Mamba2, Mamba3
from linattn.torch.mamba_ssm.utils.generation import InferenceParams

WIDTH, BATCH, N = 16, 2, 9
MAMBA2, MAMBA3 = {"headdim": 8, "d_state": 5}, {"headdim": 8, "d_state": 8}
#: Options that change parameters or equations.
LAYERS = {
    "Mamba": (Mamba, {}),
    "Mamba, others": (
        Mamba, {"d_state": 3, "d_conv": 2, "expand": 1.5, "dt_rank": 3, "bias": True,
                "conv_bias": False, "dt_init": "constant"},
    ),
    "Mamba2": (Mamba2, MAMBA2),
    "Mamba2, others": (
        Mamba2, MAMBA2 | {"ngroups": 2, "D_has_hdim": True, "norm_before_gate": True,
                          "dt_limit": (0.01, 0.05), "bias": True, "conv_init": 0.5},
    ),
    "Mamba2, MLP": (Mamba2, MAMBA2 | {"d_ssm": 24, "rmsnorm": False, "conv_bias": False}),
    "SISO": (Mamba3, MAMBA3),
    "SISO, norm": (Mamba3, MAMBA3 | {"is_outproj_norm": True, "ngroups": 2, "rope_fraction": 1.0}),
    "SISO, softplus": (
        Mamba3, MAMBA3 | {"A_activation": "softplus", "expand": 1.5, "A_floor": 0.5},
    ),
    "MIMO": (Mamba3, MAMBA3 | {"is_mimo": True, "mimo_rank": 3}),
    "MIMO, norm": (
        Mamba3, MAMBA3 | {"is_mimo": True, "mimo_rank": 2, "is_outproj_norm": True, "ngroups": 4,
                          "rope_fraction": 1.0, "fuse_pregate_headwise_norm": False},
    ),
}  # fmt: skip
OF_MAMBA3 = [x for x, (kind, _) in LAYERS.items() if kind is Mamba3]
FIRST_TWO = [x for x in LAYERS if x not in OF_MAMBA3]


def made(name, dtype=torch.float64, **options):
    """A layer whose parameters have no special values."""
    torch.manual_seed(0)
    kind, own = LAYERS[name]
    return moved(kind(WIDTH, layer_idx=0, **own, **options).to(dtype))


def moved(layer):
    with torch.no_grad():
        for x in layer.parameters():
            x += 0.1 * torch.randn_like(x)
    return layer


def tokens(dtype=torch.float64, batch=BATCH, n=N):
    torch.manual_seed(1)
    return torch.randn(batch, n, WIDTH, dtype=dtype)


def generated(layer, x, prompt):
    """A prompt of so many tokens, and those after it one by one."""
    state = InferenceParams(max_seqlen=N, max_batch_size=BATCH)
    parts = [layer(x[:, :prompt], inference_params=state)]
    for i in range(prompt, x.shape[1]):
        state.seqlen_offset = i
        parts.append(layer(x[:, i : i + 1], inference_params=state))
    return torch.cat(parts, 1)
