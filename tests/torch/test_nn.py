"""Layers of linattn.torch.nn: their equations, states, maps and padding."""

import functools

import layer_cases as cases
import pytest
import torch
from bounds import close
from layer_cases import BATCH, EACH, EACH_CAUSAL, MASK, E, N, by_steps, made, tokens, within
from plain_layers import plain

import linattn
from linattn.torch import nn

pytestmark = pytest.mark.usefixtures("seeded")


@EACH
def test_outputs_and_gradients_are_those_of_the_equations(new):
    layer, x = made(new), tokens().requires_grad_()
    names, parameters = zip(*layer.named_parameters(), strict=True)
    y, expected = layer(x), plain(layer, x)
    within(y, expected)
    cotangent = torch.randn_like(y)
    actual = torch.autograd.grad((y * cotangent).sum(), (x, *parameters))
    exact = torch.autograd.grad((expected * cotangent).sum(), (x, *parameters))
    largest = max(float(g.abs().max()) for g in exact)
    for name, g, h in zip(("x", *names), actual, exact, strict=True):
        assert float(h.abs().max()) > 0, name
        close(g.numpy(), h.numpy(), atol=4000 * 2**-53 * largest)


@EACH_CAUSAL
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_steps_and_parts_are_the_whole(new, dtype):
    layer, x = made(new, dtype), tokens(dtype=dtype)
    y, end = layer(x, return_state=True)
    within(layer(x), y)
    stepped, after = by_steps(layer, x, layer.init_state(BATCH))
    within(stepped, y)
    for cut in (0, 2, 7, N):
        first, state = layer(x[:, :cut], return_state=True)
        rest, last = layer(x[:, cut:], state=state, return_state=True)
        within(torch.cat([first, rest], 1), y)
        within(by_steps(layer, x[:, cut:], state)[0] if cut < N else y[:, N:], y[:, cut:])
        next_token = tokens(n=1, dtype=dtype)[:, 0]
        results = [layer.step(next_token, s)[0] for s in (end, after, last)]
        within(results[1], results[0])
        within(results[2], results[0])


@EACH_CAUSAL
def test_gradients_flow_through_states(new):
    """Of parameters and tokens, in parts and step by step."""
    layer, x = made(new), tokens().requires_grad_()
    parameters = (x, *layer.parameters())
    cotangent = torch.randn(BATCH, N, E, dtype=x.dtype)
    first, state = layer(x[:, :4], return_state=True)
    parts = torch.cat([first, layer(x[:, 4:], state=state)], 1)
    stepped, _ = by_steps(layer, x, layer.init_state(BATCH))
    expected = torch.autograd.grad((layer(x) * cotangent).sum(), parameters)
    largest = max(float(g.abs().max()) for g in expected)
    for y in (parts, stepped):
        for g, h in zip(torch.autograd.grad((y * cotangent).sum(), parameters), expected,
                        strict=True):  # fmt: skip
            close(g.numpy(), h.numpy(), atol=4000 * 2**-53 * largest)


@EACH_CAUSAL
def test_no_output_depends_on_later_tokens(new):
    layer, x = made(new), tokens()
    y = layer(x)
    later = 1e9 if isinstance(layer, nn.SoftmaxAttention) else torch.nan  # which PyTorch's spreads
    x[:, 6:] = later
    torch.testing.assert_close(layer(x)[:, :6], y[:, :6], rtol=0, atol=0)


@cases.EACH_OTHER
def test_what_is_not_causal_has_no_states(new):
    layer, x = made(new), tokens()
    for call in (
        lambda: layer.step(x[:, 0], None),
        lambda: layer.init_state(2),
        lambda: layer(x, return_state=True),
        lambda: layer(x, state=linattn.State(x)),
    ):
        with pytest.raises(ValueError, match="the layer is not causal; expected a call on"):
            call()


def test_weights_of_one_form_serve_the_others():
    """Trained both ways, a layer goes on as a causal one, whose weights have the same names."""
    both = made(functools.partial(nn.LinearAttention, E, 4, causal=False))
    one = nn.LinearAttention(E, 4, dtype=torch.float64)
    exact = nn.SoftmaxAttention(E, 4, dtype=torch.float64)
    for layer in (one, exact):
        layer.load_state_dict(both.state_dict())
    x = tokens()
    within(by_steps(one, x, one.init_state(BATCH))[0][:, -1], both(x)[:, -1])
    within(exact(x), plain(exact, x))


def test_redraw():
    layer, x = nn.PerformerAttention(E, 2, 8), tokens(dtype=torch.float32)
    before, y = layer.omega.clone(), layer(x)
    layer.redraw(torch.Generator().manual_seed(1))
    assert layer.omega.shape == (6, 8) and not torch.equal(layer.omega, before)
    assert not torch.equal(layer(x), y)
    assert [name for name, _ in layer.named_buffers()] == ["feature_map.omega"]
    phi = linattn.torch.feature_maps.PositiveRandomFeatures.sample(6, 8)
    one, other = (
        nn.LinearAttention(E, 2, feature_map=phi, dtype=phi.omega.dtype) for _ in range(2)
    )
    before = phi.omega.clone()
    one.feature_map.redraw()  # a layer's own
    assert torch.equal(other.feature_map.omega, before) and torch.equal(phi.omega, before)
    again = nn.PerformerAttention(E, 2, 8)
    again.redraw(torch.Generator().manual_seed(1))
    assert torch.equal(again.omega, layer.omega)


def test_regulariser():
    layer = nn.FeedforwardKernelAttention(E, 3, kind="oglu", dtype=torch.float64)
    assert layer.orthogonality(1.0).item() < 1e-28  # they begin orthogonal
    w, gate = layer.feature_map.weights[0]
    with torch.no_grad():
        w.mul_(2)
    layer.orthogonality(0.5).backward()
    off = w.detach() @ w.detach().mT - torch.eye(4)
    close(w.grad.numpy(), (0.5 * 4 / off.numel() * off @ w.detach()).numpy(), atol=1e-14)
    assert gate.grad is None


def test_a_convolution_alone():
    conv, x = nn.ShortConvolution(E, 3, bias=True, activation=None), tokens(dtype=torch.float32)
    y, end = conv(x, return_state=True)
    state, outputs = conv.init_state(BATCH), []
    for i in range(N):
        o, state = conv.step(x[:, i], state)
        outputs.append(o)
    within(torch.stack(outputs, 1), y)
    assert torch.equal(state, end) and str(conv) == (
        "ShortConvolution(12, size=3, bias=True, activation=None)"
    )
    padded = x.clone()
    padded[0, 1:] = torch.nan
    _, short = conv(padded, key_lengths=torch.tensor([1, N, N]), return_state=True)
    assert torch.equal(short[1:], end[1:])
    assert torch.equal(short[0], torch.stack([torch.zeros(E), x[0, 0]], 1))
    with pytest.raises(ValueError, match="activation is 'relu'; expected None or 'silu'"):
        nn.ShortConvolution(E, activation="relu")


MAPS = [
    *linattn.feature_maps.NAMES,
    linattn.feature_maps.DPFP(nu=2),
    linattn.feature_maps.GeneralizedRandomFeatures.sample(3, 6, rng=1),
    linattn.feature_maps.PositiveRandomFeatures.sample(3, 6, rng=1).normalized(1e-3),
    linattn.feature_maps.FeedforwardKernel.glu(4, 3, rng=1),
    linattn.torch.feature_maps.RandomFourierFeatures.sample(3, 6, rng=1),
    linattn.torch.feature_maps.SumNormalized("softplus"),
    torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Softplus()).double(),
    lambda x: torch.cat([x, 2 * x], -1),
]


@pytest.mark.parametrize("feature_map", MAPS, ids=lambda x: type(x).__name__ + str(x)[:12])
def test_any_map(feature_map):
    layer = nn.LinearAttention(E, 4, feature_map=feature_map, normalize=False, dtype=torch.float64)
    x = tokens()
    y, state = layer(x, return_state=True)
    assert layer.init_state(BATCH).s.shape == state.s.shape
    within(by_steps(layer, x, layer.init_state(BATCH))[0], y, 2000)
    y.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())
    again = nn.LinearAttention(E, 4, feature_map=feature_map, normalize=False, dtype=torch.float64)
    again.load_state_dict(layer.state_dict())
    torch.testing.assert_close(again(x), y, rtol=0, atol=0)


@EACH
def test_padding_is_not_there(new):
    """Before, after or between tokens, NaN or not: rows are those of sequences without it."""
    layer = made(new)
    scattered = torch.rand(BATCH, N) < 0.4
    for mask in (MASK, scattered):
        x = tokens()
        x[mask] = torch.nan
        x.requires_grad_()
        y = layer(x, key_padding_mask=mask)
        y.sum().backward()
        assert (y[mask] == 0).all() and (x.grad[mask] == 0).all()
        assert all(p.grad.isfinite().all() for p in layer.parameters())
        for i in range(BATCH):
            there = ~mask[i]
            within(y[i, there], layer(x[i : i + 1, there].detach())[0])


@EACH
def test_key_lengths(new):
    """As a mask of what comes after; nobody there at all is no matter."""
    layer, x = made(new), tokens()
    lengths = torch.tensor([N, 0, 4])
    mask = torch.arange(N) >= lengths[:, None]
    y = layer(x, key_lengths=lengths)
    torch.testing.assert_close(layer(x, key_padding_mask=mask), y, rtol=0, atol=0)
    torch.testing.assert_close(layer(x, key_lengths=[N, 0, 4]), y, rtol=0, atol=0)


@EACH_CAUSAL
def test_states_are_those_after_the_last_token(new):
    """A padded batch is read in two parts and goes on step by step."""
    layer, x, more = made(new), tokens(), tokens(n=2)
    for mask in (MASK, torch.arange(N) >= torch.tensor([[N], [0], [2]])):
        _, middle = layer(x, key_padding_mask=mask, return_state=True)
        other = torch.tensor([[True, False], [False, True], [False, False]])
        first, state = layer(more, key_padding_mask=other, state=middle, return_state=True)
        last, _ = layer.step(x[:, 0], state)
        for i in range(BATCH):
            whole = torch.cat([x[i, ~mask[i]], more[i, ~other[i]], x[i, :1]])
            expected = layer(whole[None])[0]
            within(last[i], expected[-1])
            within(first[i, ~other[i]], expected[-1 - int((~other[i]).sum()) : -1])
