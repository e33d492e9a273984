"""``block`` of tensors: what the tests of every row leave to maps and errors."""

import numpy as np
import pytest
import torch
from table import BLOCKS, first_of

import linattn
import linattn.torch as lt
from linattn import feature_maps

N = 11
EACH = pytest.mark.parametrize("case", first_of(BLOCKS), ids=str)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_maps(dtype):
    q, k, v = torch.randn(3, 2, N, 4, dtype=torch.float64).to(dtype).requires_grad_()
    for phi in ("dpfp", feature_maps.Taylor(), lambda x: torch.exp(x) + 1):
        options = {"feature_map": phi, "key_lengths": [4, N]}
        o = lt.causal(q, k, v, **options, block=N)
        assert o.dtype is dtype
        expected = lt.noncausal(q, k, v, **options)
        tolerance = 2**-6 if dtype is torch.bfloat16 else 1e-12
        torch.testing.assert_close(o, expected, rtol=tolerance, atol=tolerance)
        assert torch.autograd.grad(o.sum(), v)[0].isfinite().all()
    phi = feature_maps.PositiveRandomFeatures.sample(4, 6, rng=0)
    with pytest.raises(ValueError, match=r"^causal: feature_map is .*expected another map"):
        lt.causal(q, k, v, feature_map=phi, block=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_denominators_of_zero_within_a_block(dtype):
    q, k, v = (x.abs().to(dtype) for x in torch.randn(3, N, 4))
    k[:2] = 0
    for x in (q, k, v):
        x.requires_grad_()
    lt.causal(q, k, v, feature_map="relu", eps=0.0, block=3).sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))


@EACH
@pytest.mark.parametrize("gradient", [False, True])
def test_errors(case, gradient):
    """They are those of arrays."""
    operands = case.operands((2,), N)
    wrong = [
        {"block": 2.5}, {"block": 0}, {"key_lengths": [1, N + 1]}, {"cu_seqlens": [0, 4]},
        {"state_at": [N + 1], "return_state": True}, {"v": operands["v"][:, :3]},
    ]  # fmt: skip
    wrong += [{"eps": x} for x in (-1.0, np.nan)] if case.name == "causal" else []
    wrong += [{"bonus": np.ones(4)}] if case.name == "gated" else []
    options = {x: y for x, y in case.options.items() if x != "block"}
    for more in wrong:
        arrays = operands | {"block": 3} | more | options
        del arrays["grad_out"]
        with pytest.raises((TypeError, ValueError)) as expected:
            getattr(linattn, case.name)(**arrays)
        tensors = {
            name: torch.tensor(x, requires_grad=gradient) if name in case.letters else x
            for name, x in arrays.items()
        }
        with pytest.raises(expected.type) as found:
            getattr(lt, case.name)(**tensors)
        assert str(found.value) == str(expected.value)
