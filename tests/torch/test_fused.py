"""Fused steps of tensors: against NumPy's, with gradients, compiled, by plans; layers."""

import numpy as np
import pytest
import torch
from bounds import close
from fused_cases import Layer, bound, make, wide
from torch.nn.utils import prune

import linattn
import linattn.torch
from linattn.torch import nn
from linattn.torch._core import fused_steps

KINDS = "fused_gated_delta_step", "fused_gated_step"
LAYERS = Layer(2, 6, 5, 7), Layer(2, 4, 6, 5, taps=2, by_channel=True)
CALLS = [(KINDS[0], LAYERS[0]), (KINDS[0], LAYERS[1]), (KINDS[1], LAYERS[0])]


@pytest.fixture
def steps(monkeypatch):
    """A list with an item for each fused step."""
    calls, run = [], fused_steps._run
    monkeypatch.setattr(
        fused_steps, "_run", lambda *args, **kwargs: calls.append(1) or run(*args, **kwargs)
    )
    return calls


def tensors(operands, state, options, dtype=None):
    """The operands as tensors; tokens in a dtype that NumPy lacks."""
    kinds = {"A_log", "dt_bias", "D"}

    def of(x, token=True):
        return torch.from_numpy(x).to(dtype) if dtype and token else torch.from_numpy(x)

    return (
        [of(x) for x in operands],
        linattn.FusedState(*(of(x, token=False) for x in state)),
        {key: of(x, token=key not in kinds) for key, x in options.items()},
    )


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("kind", "layer"), CALLS)
def test_as_numpy(kind, layer, in_place):
    numpy = make(kind, layer, dtype=np.float32)
    operands, state, options = tensors(*numpy)
    expected, after = getattr(linattn, kind)(*numpy[0], numpy[1], **numpy[2])
    versions = [x._version for x in state]
    with torch.no_grad():
        o, new = getattr(linattn.torch, kind)(*operands, state, **options, in_place=in_place)
    np.testing.assert_array_equal(o.numpy(), expected)
    for x, y, before, version in zip(new, after, state, versions, strict=True):
        np.testing.assert_array_equal(x.numpy(), y)
        assert (x is before) == in_place
        assert (before._version > version) == in_place


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("kind", "layer"), CALLS)
def test_16_bits(kind, layer, dtype):
    """Rounded once: nearer to the exact result than the operators one after another."""
    numpy = make(kind, layer, dtype=np.float32)
    operands, state, options = tensors(*numpy, dtype=dtype)
    o, new = getattr(linattn.torch, kind)(*operands, state, **options)
    assert o.dtype is dtype and new.s.dtype is new.conv.dtype is torch.float32
    exact = {key: wide(x.float().numpy()) for key, x in options.items()}
    whole = linattn.FusedState(*(wide(x.numpy()) for x in state))
    arrays = [wide(x.float().numpy()) for x in operands]
    p, _ = getattr(linattn, kind)(*arrays, whole, **exact)
    tolerance = bound(p, np.float32) | {"rtol": torch.finfo(dtype).eps / 2}
    close(o.double().numpy(), p, **tolerance)


@pytest.mark.parametrize(("kind", "layer"), CALLS)
def test_gradients(kind, layer):
    """By finite differences, of every operand and of the state."""
    operands, state, options = tensors(*make(kind, layer, lead=(1,)))
    keys = [*options]

    def function(*args):
        given = dict(zip(keys, args[len(operands) + 2 :], strict=True))
        before = linattn.FusedState(*args[len(operands) : len(operands) + 2])
        o, after = getattr(linattn.torch, kind)(*args[: len(operands)], before, **given)
        return o, after.conv, after.s

    args = [x.requires_grad_() for x in (*operands, *state, *options.values())]
    assert torch.autograd.gradcheck(function, args, fast_mode=True)
    for x, y in zip(function(*args), function(*(x.detach() for x in args)), strict=True):
        close(x.detach().numpy(), y.numpy(), **bound(y.numpy(), np.float64))


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind):
    operands, state, options = tensors(*make(kind, LAYERS[0], dtype=np.float32))
    function = getattr(linattn.torch, kind)
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    o, after = function(*operands, state, **options)
    p, end = compiled(*operands, state, **options)
    for x, y in zip((o, *after), (p, *end), strict=True):
        close(y.numpy(), x.numpy(), **bound(x.numpy(), np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_more_columns_with_gradients(kind):
    operands, state, options = tensors(*make(kind, LAYERS[0]))
    longer = state._replace(conv=torch.cat((torch.ones_like(state.conv[..., :2]), state.conv), -1))
    o, after = getattr(linattn.torch, kind)(*operands, longer, **options)
    options["A_log"].requires_grad_()
    p, end = getattr(linattn.torch, kind)(*operands, longer, **options)
    close(p.detach().numpy(), o.numpy(), **bound(o.numpy(), np.float64))
    torch.testing.assert_close(end.conv, after.conv, rtol=0, atol=0)


def test_errors():
    operands, state, options = tensors(*make(KINDS[0], LAYERS[0]))
    function = linattn.torch.fused_gated_delta_step
    with pytest.raises(TypeError, match="fused_gated_delta_step: x is a ndarray; expected a "):
        function(operands[0].numpy(), *operands[1:], state, **options)
    with pytest.raises(TypeError, match=r"state is a int; expected a linattn\.FusedState"):
        function(*operands, 3, **options)
    with pytest.raises(ValueError, match=r"b has shape \(2, 5\); expected \(\.\.\., 6\)"):
        function(*operands[:2], torch.zeros(2, 5, dtype=torch.float64), state, **options)
    options["A_log"].requires_grad_()
    with pytest.raises(ValueError, match=r"b has shape \(2, 5\); expected \(\.\.\., 6\)"):
        function(*operands[:2], torch.zeros(2, 5, dtype=torch.float64), state, **options)
    with pytest.raises(RuntimeError, match="in_place is True and an operand requires grad"):
        function(*operands, state, **options, in_place=True)


@pytest.mark.parametrize("kind", KINDS)
def test_integers(kind):
    """In the dtype that PyTorch's rules give: NumPy's give float64 for int64 and float32."""
    operands, state, options = tensors(*make(kind, LAYERS[0], dtype=np.float32))
    x, gate, *others = operands
    o, _ = getattr(linattn.torch, kind)(x, gate.long(), *others, state, **options)
    expected, _ = getattr(linattn.torch, kind)(x, gate.long().float(), *others, state, **options)
    torch.testing.assert_close(o, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [nn.GatedDeltaNet, nn.GatedAttention])
def test_steps_of_layers(kind, dtype, steps):
    """Without a gradient a layer's step is one call; with one it is the same in many."""
    torch.manual_seed(0)
    layer = kind(32, num_heads=4, dtype=dtype)
    x, state = torch.randn(3, 32, dtype=dtype), layer.init_state(3)
    slow, fast = state, state
    for _ in range(3):
        y, slow = layer.step(x, slow)
        assert y.requires_grad and not steps
    with torch.no_grad():
        for _ in range(3):
            z, fast = layer.step(x, fast)
    assert len(steps) == 3 and fast.memory.s.shape == slow.memory.s.shape
    # Rounding to 16 bits between the operators; all numbers are of order 1 or below.
    tolerance = 64 * torch.finfo(dtype).eps
    torch.testing.assert_close(z, y, rtol=0, atol=tolerance)
    torch.testing.assert_close(fast.memory.s, slow.memory.s.detach(), rtol=0, atol=tolerance)


def test_layers_with_hooks_keep_calling_their_norm():
    layer, seen = nn.GatedDeltaNet(32, num_heads=4), []
    layer.norm.register_forward_hook(lambda *args: seen.append(1))
    with torch.no_grad():
        layer.step(torch.randn(1, 32), layer.init_state(1))
    assert seen


@pytest.mark.parametrize(
    ("kind", "child", "name"),
    [(x, *y) for x in (nn.GatedDeltaNet, nn.GatedAttention)
     for y in (("conv", "weight"), ("norm", "weight"))] + [(nn.GatedAttention, "conv", "bias")],
)  # fmt: skip
def test_pruned_layers(kind, child, name, steps):
    """Their weights are computed from parameters of other names."""
    torch.manual_seed(0)
    layer = kind(32, num_heads=4)
    prune.l1_unstructured(getattr(layer, child), name, 0.5)
    x, state = torch.randn(3, 32), layer.init_state(3)
    expected, _ = layer.step(x, state)
    with torch.no_grad():
        torch.testing.assert_close(layer.step(x, state)[0], expected)
    assert not steps


def test_layers_with_weight_norm():
    layer = nn.GatedDeltaNet(32, num_heads=4)
    with pytest.warns(FutureWarning, match="weight_norm"):
        torch.nn.utils.weight_norm(layer.conv)
    x, state = torch.randn(3, 32), layer.init_state(3)
    expected, _ = layer.step(x, state)
    with torch.no_grad():
        torch.testing.assert_close(layer.step(x, state)[0], expected)


@pytest.mark.parametrize("family", ["qwen3_next", "qwen3_5", "kimi_linear", "mamba2", "bamba"])
def test_models_of_transformers_decode_by_fused_steps(family, steps, by_plan):
    """One call for each token after the first, of each layer that has such a step."""
    pytest.importorskip("transformers")
    from transformers_models import build

    model = build(family)
    tokens = torch.arange(1, 12)[None]
    expected = model.generate(tokens, max_new_tokens=6, do_sample=False)
    assert not steps + by_plan
    with linattn.torch.patch_transformers():
        o = model.generate(tokens, max_new_tokens=6, do_sample=False)
    assert torch.equal(o, expected)
    assert len(steps + by_plan) == 5 * (2 if family == "mamba2" else 1)


# --- updates of a state: the second call goes to the kernel by the first one's plan ---------------


def forget(kind):
    fused_steps.STEPS[kind]._plans.clear()
    fused_steps.STEPS[kind]._noted.clear()


def warm(kind, operands, state, options):
    """Leaves a plan of this call, whose state it copies."""
    forget(kind)
    copy = linattn.FusedState(*(x.clone() for x in state))
    getattr(linattn.torch, kind)(*operands, copy, **options, in_place=True)


@pytest.fixture
def by_plan(monkeypatch):
    """How many calls went by a plan."""
    calls = []

    def planned(*args, run=fused_steps.planned):
        o = run(*args)
        calls.extend([o] * (o is not NotImplemented))
        return o

    monkeypatch.setattr(fused_steps, "planned", planned)
    with torch.no_grad():
        yield calls


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(("kind", "layer"), CALLS)
def test_as_numpy_by_a_plan(kind, layer, pooled, by_plan):
    numpy = make(kind, layer, dtype=np.float32)
    operands, state, options = tensors(*numpy)
    warm(kind, operands, state, options)
    place = {"in_place": True}
    if pooled:
        place = {"state_indices": torch.arange(len(state.s)) + 1}
        state = linattn.FusedState(*(torch.cat([x[:1], x]) for x in state))
    versions = [x._version for x in state]
    expected, after = getattr(linattn, kind)(*numpy[0], numpy[1], **numpy[2])
    o, new = getattr(linattn.torch, kind)(*operands, state, **options, **place)
    assert len(by_plan) == 1 and new.s is state.s and new.conv is state.conv
    np.testing.assert_array_equal(o.numpy(), expected)
    for x, y, version in zip(new, after, versions, strict=True):
        np.testing.assert_array_equal(x.numpy()[pooled:], y)
        assert x._version > version


WRONG = {
    "a parameter with leading axes": lambda s: {"A_log": torch.zeros(3, s.s.shape[1])},
    "True for a number": lambda s: {"scale": True},
    "text for a number": lambda s: {"scale": "1"},
    "a longer norm": lambda s: {"norm_weight": torch.ones(7 * s.s.numel())},
    "no filters": lambda s: {"weight": None, "bias": None},
    "another dtype": lambda s: {"A_log": torch.zeros(s.s.shape[1], dtype=torch.int32)},
    "a shared state": lambda s: {
        "state": linattn.FusedState(s.conv, s.s[:1].expand(s.s.shape))
    },
    "a wide state": lambda s: {"state": linattn.FusedState(s.conv, s.s.double())},
    "states that overlap": lambda s: {"state": linattn.FusedState(s.s, s.s)},
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_accepts_no_more(kind, what, by_plan):
    operands, state, options = tensors(*make(kind, LAYERS[0], dtype=np.float32))
    given = options | WRONG[what](state)

    def outcome():
        copy = given | {"state": given.get("state", state)}
        try:
            o, new = getattr(linattn.torch, kind)(*operands, **copy, in_place=True)
        except (TypeError, ValueError, RuntimeError) as error:
            return type(error), str(error)
        return o.shape, o.dtype, new.s.dtype

    forget(kind)
    first = outcome()
    warm(kind, operands, state, options)
    assert outcome() == first


def test_groups_that_do_not_divide_other_heads(by_plan):
    kind = KINDS[1]
    for heads in (6, 4):
        operands, state, options = tensors(*make(kind, Layer(2, heads, 5, 7), dtype=np.float32))
        if heads == 6:
            warm(kind, operands, state, options | {"norm_groups": 3})
    with pytest.raises(ValueError, match="norm_groups"):
        getattr(linattn.torch, kind)(
            *operands, state, **options | {"norm_groups": 3}, in_place=True
        )


def test_gates_per_channel_where_all_sizes_are_alike(by_plan):
    """A gate per channel (n, n, n) and one per head (n, n) differ in their axes alone."""
    n, kind = 8, KINDS[0]
    x, rate = torch.randn(n, 3 * n * n), torch.randn(n)
    gates = {True: torch.randn(n, n, n), False: torch.randn(n, n)}
    start, b = torch.randn(n, n, n, n), torch.randn(n, n)

    def call(channels):
        bias = torch.zeros(n, n) if channels else torch.zeros(n)
        state = linattn.FusedState(None, start.clone())
        run = getattr(linattn.torch, kind)
        return run(x, gates[channels], b, state, A_log=rate, dt_bias=bias, in_place=True)[0]

    forget(kind)
    expected = {channels: call(channels) for channels in (True, False)}
    for channels in (True, False, True):
        assert torch.equal(call(channels), expected[channels])
    assert len(by_plan) == 3
