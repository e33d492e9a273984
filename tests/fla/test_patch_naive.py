"""fla's recurrences with `patch_fla` against fla's own naive references."""

from __future__ import annotations

import importlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ml_dtypes")
pytest.importorskip("triton", reason="fla imports triton")
pytest.importorskip("fla", reason="flash-linear-attention is not installed")

from fla_naive import REFERENCES, operands  # noqa: E402

from linattn.torch import patch_fla  # noqa: E402


def results(function, case, **own):
    """Outputs, states, and gradients of their squares."""
    given = operands(case.operands)
    found = function(*given, **case.given, **own)
    found = [found] if isinstance(found, torch.Tensor) else [x for x in found if x is not None]
    loss = sum(x.float().square().sum() for x in found)
    return [x.detach() for x in (*found, *torch.autograd.grad(loss, given))]


@pytest.mark.parametrize("case", REFERENCES, ids=lambda x: f"{x.function}-{x.naive}")
def test_against_naive_references(case):
    package = importlib.import_module(f"fla.ops.{case.package}")
    naive = getattr(importlib.import_module(f"{package.__name__}.naive"), case.naive)
    theirs = results(naive, case)
    with patch_fla():
        ours = results(getattr(package, case.function), case, **case.own)
    for a, b in zip(ours, theirs, strict=True):
        # float32 in another order, over 128 tokens
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5 * b.abs().max().item())
