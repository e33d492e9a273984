"""The stand-ins' functions with bounds by the name by which Transformers' models hand them on."""

import pytest
import torch

from linattn.torch.causal_conv1d import causal_conv1d_fn
from linattn.torch.mamba_ssm.ops.triton.ssd_combined import (
    mamba_chunk_scan_combined,
    mamba_split_conv1d_scan_combined,
)

BOUNDS, NUMBERS = torch.tensor([0, 2, 3, 7]), torch.tensor([[0, 0, 1, 2, 2, 2, 2]])
HEADS, HEADDIM, STATE = 2, 3, 4


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def conv(rows, **given):
    return causal_conv1d_fn(normal(rows, 5, 7), normal(5, 3), **given)


def scan(rows, **given):
    tokens = normal(rows, 7, HEADS, HEADDIM), normal(rows, 7, HEADS).exp()
    keys = normal(rows, 7, 1, STATE)
    return mamba_chunk_scan_combined(*tokens, -torch.ones(HEADS), keys, keys, 16, **given)


def block(rows, **given):
    wide, ones = HEADS * HEADDIM, torch.ones(HEADS)
    return mamba_split_conv1d_scan_combined(
        normal(rows, 7, 2 * wide + 2 * STATE + HEADS), normal(wide + 2 * STATE, 3), None, ones,
        -ones, ones, 16, headdim=HEADDIM, **given,
    )  # fmt: skip


@pytest.mark.parametrize("call", [conv, scan, block])
def test_bounds(call):
    """They separate sequences as their numbers do, which come first."""
    apart = call(1, seq_idx=NUMBERS)
    assert not torch.equal(apart, call(1))
    assert torch.equal(call(1, cu_seq_lens_q=BOUNDS), apart)
    assert torch.equal(call(1, cu_seq_lens_q=BOUNDS[[0, 3]]), call(1))
    assert torch.equal(call(1, cu_seq_lens_q=BOUNDS[[0, 3]], seq_idx=NUMBERS), apart)
    with pytest.raises(ValueError, match="cu_seq_lens_q is given for 2 rows; expected one row"):
        call(2, cu_seq_lens_q=BOUNDS)
