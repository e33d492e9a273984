"""Fixtures and comparisons of the tests of linattn.torch.transformers."""

import functools
import importlib
import importlib.util
import operator
import types

import pytest
import torch
from slow import crossed
from transformers_models import MODELS, module

from linattn.torch import patch_transformers
from linattn.torch.transformers import STAND_INS

FAMILIES = [
    family for family in MODELS if importlib.util.find_spec(f"transformers.models.{family}")
]
#: One of each kind of layer: delta rules by head and by channel, scans, gates, convolutions.
FEW = {
    "qwen3_next", "kimi_linear", "mamba2", "mamba", "xlstm", "rwkv", "recurrent_gemma", "lfm2",
    "minimax",
}  # fmt: skip
#: What is promised of float32: differences as a part of the largest entry.
PART = 1e-4


def each_of(families):
    """A test of each of these families, slow but for the `FEW`."""
    return pytest.mark.parametrize("family", crossed(lambda family: family in FEW, families))


def close(a, b, *, part=PART, more=0.0):
    torch.testing.assert_close(a, b, rtol=0, atol=part * b.abs().max().item() + more)


def same_gradients(found, expected):
    """Those of a model's parameters differ by no more than roundings."""
    assert found.keys() == expected.keys() and len(found) > 5
    # Of some parameters the library's own gradient is a small difference of large sums.
    roundings = 1e-6 * max(g.abs().max().item() for g in expected.values())
    for name, g in expected.items():
        close(found[name], g, more=roundings)


def cache_of(out):
    """The name of the cache in a model's output, which depends on the library's version."""
    return next(x for x in ("cache", "cache_params", "past_key_values") if x in out)


class Called(Exception):
    """Raised if the library's own function is called."""


def refuse(monkeypatch, family):
    """Make the library's own functions raise, so that no call can fall back to them."""
    for name in stand_ins(family):
        owner, _, attribute = name.rpartition(".")
        owner = operator.attrgetter(owner)(module(family)) if owner else module(family)

        @functools.wraps(getattr(owner, attribute))
        def raises(*args, **kwargs):
            raise Called

        monkeypatch.setattr(owner, attribute, raises)


def stand_ins(family):
    """The functions of a module, and the methods, that linattn replaces by name."""
    m = module(family)
    return [
        name
        for name, x in STAND_INS.items()
        if not x.sources and hasattr(m, name.partition(".")[0])
    ]


def functions_of(family):
    names = stand_ins(family)
    found = types.SimpleNamespace()
    for name in names:
        setattr(found, name, operator.attrgetter(name)(module(family)))
    return found


@functools.cache
def functions(family):
    """The library's functions of a module, and linattn's with the fallback disabled."""
    library = functions_of(family)
    with pytest.MonkeyPatch.context() as monkeypatch:
        refuse(monkeypatch, family)
        with patch_transformers():
            return library, functions_of(family)


def normal(*shape, dtype=torch.float32, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(dtype)


def gated_delta_operands(n, heads, values, *, channels=False, dtype=torch.float32):
    """q, k of 8 channels, v of 6, a gate and beta."""
    shape = (2, n, values, *([8] if channels else []))
    return [
        normal(2, n, heads, 8, seed=1, dtype=dtype), normal(2, n, heads, 8, seed=2, dtype=dtype),
        normal(2, n, values, 6, seed=3, dtype=dtype), -normal(*shape, seed=4).exp() / 4,
        normal(2, n, values, seed=5, dtype=dtype).sigmoid(),
    ]  # fmt: skip


def same(pair, name, *args, part=PART, **kwargs):
    """The results of a function and its stand-in, and the gradients of operands."""

    def call(owner):
        given = [
            x.clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point()
            else x for x in args
        ]  # fmt: skip
        out = getattr(owner, name)(*given, **kwargs)
        out = [x for x in (out if isinstance(out, tuple) else (out,)) if x is not None]
        loss = sum((x.float() * normal(*x.shape, seed=9)).sum() for x in out)
        inputs = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
        grads = torch.autograd.grad(loss, inputs, allow_unused=True)
        return [x.detach() for x in out], [x for x in grads if x is not None]

    (before, slopes), (after, ours) = map(call, pair)
    assert len(before) == len(after) and len(slopes) == len(ours)
    agree([before + slopes, after + ours], part=part)


def agree(found, *, part=PART):
    """The library's results, and linattn's."""
    for b, a in zip(*found, strict=True):
        assert a.shape == b.shape and a.dtype is b.dtype
        close(a, b, part=part)


def errs_no_more(owners, name, operands, *args, **kwargs):
    """linattn, the last owner, than the library, the second; the first's float64 is the truth."""
    given = [x.double() for x in operands], operands, operands
    found = [getattr(x, name)(*y, *args, **kwargs) for x, y in zip(owners, given, strict=True)]
    assert found[2][0].dtype is torch.bfloat16 and found[2][1].dtype is torch.float32
    for truth, theirs, mine in zip(*found, strict=True):
        assert (mine - truth).abs().max() <= 1.5 * (theirs.to(mine.dtype) - truth).abs().max()
