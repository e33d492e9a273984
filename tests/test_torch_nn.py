"""linattn.torch.nn: layers against their equations, one form against another, and what users of
torch.nn expect of a module."""

import copy
import functools
import pickle
import re

import pytest
from bounds import close, roundings

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from plain_layers import plain  # noqa: E402

import linattn  # noqa: E402
from linattn.torch import nn  # noqa: E402

BATCH, N, E = 3, 11, 12


def row(name, layer, *arguments, **options):
    return pytest.param(functools.partial(layer, E, *arguments, **options), id=name)


CAUSAL = [
    row("linear", nn.LinearAttention, 4),
    row("linear-plain", nn.LinearAttention, 2, feature_map="relu", normalize=False, scale=0.3),
    row("linear-groups", nn.LinearAttention, 4, num_kv_heads=2, feature_map="dpfp", bias=False),
    row("performer", nn.PerformerAttention, 2, 7, eps=0.0),
    row("performer-hyperbolic", nn.PerformerAttention, 2, hyperbolic=True, eps=0.0),
    row("glu", nn.FeedforwardKernelAttention, 3, kind="glu"),
    row("aoglu", nn.FeedforwardKernelAttention, 3, kind="aoglu", depth=2, rank=2),
    row("fast-weights", nn.FastWeightAttention, 2, nu=2),
    row("gated-delta-net", nn.GatedDeltaNet, 2),
    row("gated-delta-net-groups", nn.GatedDeltaNet, 2, num_v_heads=4, head_dim=3, head_v_dim=5,
        conv_size=3, allow_neg_eigval=True, bias=True),
    row("gated", nn.GatedAttention, 4, state_dim=5),
    row("gated-groups", nn.GatedAttention, 4, state_dim=5, num_groups=2, expand=1, bias=True),
    row("softmax", nn.SoftmaxAttention, 4),
    row("softmax-groups", nn.SoftmaxAttention, 4, num_kv_heads=2),
]  # fmt: skip
OTHERS = [
    row("linear-both-ways", nn.LinearAttention, 2, causal=False, feature_map="softplus"),
    row("performer-both-ways", nn.PerformerAttention, 2, causal=False, eps=0.0),
    row("linear-oglu-both-ways", nn.FeedforwardKernelAttention, 3, kind="oglu", causal=False),
    row("softmax-both-ways", nn.SoftmaxAttention, 2, causal=False),
    *(row(f"linformer-{sharing}", nn.LinformerAttention, 2, 16, 5, sharing=sharing)
      for sharing in nn.LinformerAttention.sharings),
]  # fmt: skip
EACH_CAUSAL = pytest.mark.parametrize("new", CAUSAL)
EACH_OTHER = pytest.mark.parametrize("new", OTHERS)
EACH = pytest.mark.parametrize("new", [*CAUSAL, *OTHERS])
#: One layer of each kind.
KINDS = [x for x in CAUSAL + OTHERS if re.fullmatch(r"[a-z-]+", x.id)
         and x.id in ("linear", "performer", "aoglu", "fast-weights", "gated-delta-net", "gated",
                      "softmax", "linear-both-ways", "linformer-heads")]  # fmt: skip


@pytest.fixture(autouse=True)
def _seeded():
    """And on one thread, as such small layers are slower on more."""
    torch.manual_seed(5)
    torch._dynamo.reset()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(new, dtype=torch.float64, **options):
    """A layer all of whose parameters matter, biases too."""
    layer = new(dtype=dtype, **options)
    with torch.no_grad():
        for x in layer.parameters():
            x += 0.2 * torch.randn_like(x)
    return layer


def tokens(batch=BATCH, n=N, dtype=torch.float64):
    return torch.randn(batch, n, E, dtype=dtype)


def within(actual, expected, count=200):
    """So many roundings of the largest entry: products of E, sums of N, and E again."""
    assert actual.dtype is expected.dtype
    expected = expected.detach().numpy()
    close(actual.detach().numpy(), expected, atol=roundings(count, expected))


def by_steps(layer, x, state):
    outputs = []
    for i in range(x.shape[1]):
        y, state = layer.step(x[:, i], state)
        outputs.append(y)
    return torch.stack(outputs, 1), state


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


# --- equations ----------------------------------------------------------------


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


@EACH_OTHER
def test_what_is_not_causal_has_no_states(new):
    layer, x = made(new), tokens()
    for call in (
        lambda: layer.step(x[:, 0], None),
        lambda: layer.init_state(2),
        lambda: layer(x, return_state=True),
        lambda: layer(x, state=linattn.State(x)),
    ):
        with pytest.raises(ValueError, match=r"the layer is not causal, and has no state and no"):
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


def test_performer_approximates_softmax():
    """Its error falls as the square root of the number of features."""
    exact = nn.SoftmaxAttention(E, 2, dtype=torch.float64)
    x = tokens() / 4
    errors = []
    for m in (16, 4096):
        layer = nn.PerformerAttention(E, 2, m, dtype=torch.float64)
        layer.load_state_dict(exact.state_dict(), strict=False)
        errors.append((layer(x) - exact(x)).square().mean().sqrt().item())
    assert errors[1] < errors[0] / 8


def test_redraw():
    layer, x = nn.PerformerAttention(E, 2, 8), tokens(dtype=torch.float32)
    before, y = layer.omega.clone(), layer(x)
    layer.redraw(torch.Generator().manual_seed(1))
    assert layer.omega.shape == (6, 8) and not torch.equal(layer.omega, before)
    assert not torch.equal(layer(x), y)
    assert [name for name, _ in layer.named_buffers()] == ["feature_map.omega"]
    again = nn.PerformerAttention(E, 2, 8)
    again.redraw(torch.Generator().manual_seed(1))
    assert torch.equal(again.omega, layer.omega)


def test_regulariser():
    layer = nn.FeedforwardKernelAttention(E, 3, kind="oglu", dtype=torch.float64)
    assert float(layer.orthogonality(1.0)) < 1e-28  # they begin orthogonal
    w, gate = layer.feature_map.weights[0]
    with torch.no_grad():
        w.mul_(2)
    layer.orthogonality(0.5).backward()
    off = w.detach() @ w.detach().mT - torch.eye(4)
    close(w.grad.numpy(), (0.5 * 4 / off.numel() * off @ w.detach()).numpy(), atol=1e-14)
    assert gate.grad is None


# --- maps ------------------------------------------------------------------------


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


# --- padding -----------------------------------------------------------------------


MASK = torch.tensor(
    [[0] * N, [1] * 4 + [0] * (N - 4), [0] * 2 + [1] * (N - 2)], dtype=torch.bool
)  # fmt: skip


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


# --- modules ---------------------------------------------------------------------------


@EACH
def test_dropout_only_in_training(new):
    layer, x = new(dropout=0.5), tokens(dtype=torch.float32)
    y = layer.eval()(x)
    assert torch.equal(layer(x), y)
    z = layer.train()(x)
    dropped = z == 0
    assert 0.3 < dropped.float().mean() < 0.7
    torch.testing.assert_close(z[~dropped], 2 * y[~dropped])


@EACH
def test_copies_and_saved_weights(new):
    layer, other, x = made(new), made(new), tokens()
    y = layer(x)
    assert not torch.equal(other(x), y)
    other.load_state_dict(layer.state_dict())
    for same in (other, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(same(x), y)
    assert str(layer) == str(other) and f"embed_dim={E}" in str(layer)
    layer.reset_parameters()
    assert not torch.equal(layer(x), y)
    assert torch.equal(other(x), y)


@EACH
def test_dtypes_and_devices(new):
    layer = new(device="meta", dtype=torch.bfloat16)
    tensors = [*layer.parameters(), *layer.buffers()]
    assert {(x.device.type, x.dtype) for x in tensors} == {("meta", torch.bfloat16)}
    y = layer(torch.empty(2, 5, E, device="meta", dtype=torch.bfloat16))
    assert y.shape == (2, 5, E) and y.is_meta and y.dtype is torch.bfloat16
    layer, x = new(), tokens(dtype=torch.float32)
    y = layer(x)
    narrow = copy.deepcopy(layer).to(torch.bfloat16)(x.bfloat16())
    assert narrow.dtype is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        cast = layer(x)
    for z in (narrow, cast):
        error = (z.float() - y).square().mean().sqrt() / y.square().mean().sqrt()
        assert error < 16 * 2**-8  # as many roundings of bfloat16


@pytest.mark.parametrize("new", [x for x in KINDS if x in CAUSAL])
def test_states_of_narrow_layers(new):
    """Hold what is computed in, and steps go on from them."""
    layer, x = new(dtype=torch.bfloat16), tokens(dtype=torch.bfloat16)
    y, state = layer(x, return_state=True)
    dtype = torch.bfloat16 if isinstance(layer, nn.SoftmaxAttention) else torch.float32
    for tree in (state, layer.init_state(BATCH)):
        assert {z.dtype for z in leaves(tree) if z is not None} == {dtype}
    stepped, _ = by_steps(layer, x, layer.init_state(BATCH))
    close(stepped.detach().float(), y.detach().float(), atol=2**-6 * float(y.abs().max()))


@pytest.mark.parametrize("new", KINDS)
def test_compile(new):
    """In one graph: a sequence, its state, a step, and gradients; padding as well."""
    layer, x = made(new), tokens()

    def run(x, mask):
        if not layer.causal:
            return (layer(x, key_padding_mask=mask).square().sum(),)
        y, state = layer(x, key_padding_mask=mask, return_state=True)
        z, _ = layer.step(x[:, 0], state)
        fields = [s for s in leaves(state) if s is not None and s.is_floating_point()]
        return y.square().sum() + z.square().sum(), *fields

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    grads = []
    for function in (run, compiled):
        loss, *state = function(x, MASK)
        grads.append([loss.detach(), *torch.autograd.grad(loss, layer.parameters()), *state])
    for a, b in zip(*grads, strict=True):
        within(a, b)


def test_export():
    layer, x = made(functools.partial(nn.GatedDeltaNet, E, 2)), tokens()
    program = torch.export.export(layer, (x,))
    within(program.module()(x), layer(x))


@EACH
def test_nothing_to_do(new):
    layer = new()
    assert layer(torch.ones(0, 5, E)).shape == (0, 5, E)
    assert layer(torch.ones(2, 0, E)).shape == (2, 0, E)


# --- what is refused ----------------------------------------------------------------


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


MADE = [
    (lambda: nn.LinearAttention(10, 4), "LinearAttention: embed_dim is 10; expected a multiple of "
     "num_heads, which is 4"),
    (lambda: nn.LinearAttention(12, 4, num_kv_heads=3), "num_heads is 4; expected a multiple of "
     "num_kv_heads, which is 3"),
    (lambda: nn.LinearAttention(12, 4, feature_map="nosuch"), "feature_map is 'nosuch'; expected"),
    (lambda: nn.LinearAttention(12, 4, dropout=1.5), "dropout is 1.5; expected a number from 0"),
    (lambda: nn.LinearAttention(12, 0), "num_heads is 0; expected at least 1"),
    (lambda: nn.LinearAttention(12, 4, feature_map=MAPS[0:0] or linattn.feature_maps
     .PositiveRandomFeatures.sample(4, 6)), r"omega of shape \(4, 6\); expected \(3, features\)"),
    (lambda: nn.LinearAttention(12, 4, feature_map=linattn.feature_maps.FeedforwardKernel.glu(
        2, 3)), r"weights of shape \(2, 3, 3\); expected \(3, 3\) or \(4, 3, 3\)"),
    (lambda: nn.LinearAttention(12, 4, num_kv_heads=2, feature_map=linattn.feature_maps
     .FeedforwardKernel.glu(4, 3)), r"weights of shape \(4, 3, 3\); expected \(3, 3\), as num_kv"),
    (lambda: nn.PerformerAttention(12, 4, 0), "num_features is 0; expected at least 1"),
    (lambda: nn.FeedforwardKernelAttention(12, 4, kind="x"), "kind is 'x'; expected one of"),
    (lambda: nn.FeedforwardKernelAttention(12, 4, kind="glu", rank=1), "rank is 1; expected None"),
    (lambda: nn.FastWeightAttention(12, 4, nu=0), "nu is 0; expected at least 1"),
    (lambda: nn.GatedDeltaNet(12, 4, num_v_heads=6), "num_v_heads is 6; expected a multiple of"),
    (lambda: nn.GatedDeltaNet(12, 4, norm_eps=-1.0), "norm_eps is -1.0; expected a number >= 0"),
    (lambda: nn.GatedAttention(10, 3), r"expand \* embed_dim is 20; expected a multiple of num_he"),
    (lambda: nn.GatedAttention(12, 4, num_groups=3), "num_heads is 4; expected a multiple of"),
    (lambda: nn.LinformerAttention(12, 4, 16, 4, sharing="x"), "sharing is 'x'; expected one of"),
    (lambda: nn.LinformerAttention(12, 4, 0, 4), "max_length is 0; expected at least 1"),
    (lambda: nn.SoftmaxAttention(10, 4), "embed_dim is 10; expected a multiple of num_heads"),
    (lambda: nn.TransformerLM(5, []), "blocks is empty; expected at least one TransformerBlock"),
    (lambda: nn.TransformerLM(5, [nn.TransformerBlock(nn.SoftmaxAttention(x, 1)) for x in (2, 3)]),
     r"blocks\[1\] has embed_dim 3; expected 2, as blocks\[0\]"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), MADE, ids=[x[1][:40] for x in MADE])
def test_what_cannot_be_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_wrong_types():
    with pytest.raises(TypeError, match="attention is a Linear; expected a layer of linattn"):
        nn.TransformerBlock(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"blocks\[0\] is a Linear; expected a TransformerBlock"):
        nn.TransformerLM(5, [torch.nn.Linear(2, 2)])
    with pytest.raises(TypeError, match=r"LinearAttention: num_heads is 2\.5; expected an integer"):
        nn.LinearAttention(12, 2.5)


@pytest.mark.parametrize("new", KINDS)
def test_wrong_calls(new):
    layer, x = new(), tokens(dtype=torch.float32)
    name = type(layer).__name__
    mask, lengths = torch.zeros(BATCH, N, dtype=torch.bool), torch.full((BATCH,), N)
    for options, error, message in (
        ({"x": x[..., 1:]}, ValueError, rf"x has shape \(3, 11, 11\); expected \(batch, tokens, {E}"),
        ({"x": x[0]}, ValueError, r"x has shape \(11, 12\); expected"),
        ({"x": x.numpy()}, TypeError, "x is a ndarray; expected a tensor"),
        ({"key_padding_mask": mask[:, 1:]}, ValueError,
         r"key_padding_mask has shape \(3, 10\); expected \(3, 11\)"),
        ({"key_padding_mask": mask.float()}, TypeError, "key_padding_mask has dtype torch.float32"),
        ({"key_lengths": lengths[1:]}, ValueError, r"key_lengths has shape \(2,\); expected \(3"),
        ({"key_lengths": lengths + 1}, ValueError, "values from 12 to 12; expected 0 to 11"),
        ({"key_lengths": lengths.float()}, TypeError, "key_lengths has dtype torch.float32"),
        ({"key_lengths": 5}, TypeError, "key_lengths is a int; expected a tensor"),
        ({"key_lengths": lengths, "key_padding_mask": mask}, ValueError, "are both given"),
    ):  # fmt: skip
        with pytest.raises(error, match=f"{name}: .*{message}"):
            layer(**{"x": x} | options)
    if isinstance(layer, nn.LinformerAttention):
        with pytest.raises(ValueError, match="expected at most max_length = 16 tokens"):
            layer(torch.ones(2, 17, E))
    if not layer.causal:
        return
    state = layer.init_state(BATCH)
    with pytest.raises(ValueError, match=rf"{name}.step: x has shape \(3, 11, 12\); expected"):
        layer.step(x, state)
    for call in (lambda: layer.step(x[:, 0], None), lambda: layer(x, state=x)):
        with pytest.raises(TypeError, match=rf"{name}.*: state is a \w+; expected a \w+, from"):
            call()
    with pytest.raises((ValueError, RuntimeError), match=r"state.*shape|[Ss]ize"):
        layer.step(x[:, 0], layer.init_state(BATCH + 1))
    with pytest.raises(ValueError, match="batch is -1; expected at least 0"):
        layer.init_state(-1)


# --- a language model -----------------------------------------------------------------


def model(new=None, dtype=torch.float64, **options):
    """Of two blocks, the second of another kind unless one is given."""
    kinds = (nn.LinearAttention, nn.GatedDeltaNet)
    layers = [kind(E, 2, dtype=dtype) for kind in kinds] if new is None else [new(dtype=dtype)]
    blocks = [nn.TransformerBlock(x, dim_feedforward=24, dtype=dtype) for x in layers]
    return nn.TransformerLM(7, blocks, dtype=dtype, **options)


def sentences(batch=BATCH, n=N):
    return torch.randint(7, (batch, n))


@pytest.mark.parametrize("new", [None, *(x for x in KINDS if x in CAUSAL)])
def test_a_model_in_three_forms(new):
    lm, x = model(new, max_length=2 * N), sentences()
    y, _ = lm(x, return_state=True)
    assert y.shape == (BATCH, N, 7)
    first, state = lm(x[:, :4], return_state=True)
    within(torch.cat([first, lm(x[:, 4:], state=state)], 1), y, 1000)
    within(by_steps(lm, x, lm.init_state(BATCH))[0], y, 1000)
    z = lm(x, key_padding_mask=MASK)
    for i in range(BATCH):
        there = ~MASK[i]
        within(z[i, there], lm(x[i : i + 1, there])[0], 1000)
    _, state = lm(x, key_padding_mask=MASK, return_state=True)
    assert state.position.tolist() == (~MASK).sum(1).tolist()


def test_a_block_is_its_equation():
    block = nn.TransformerBlock(nn.LinearAttention(E, 2, dtype=torch.float64), dtype=torch.float64)
    x = tokens()
    y = x + block.attention(block.norm1(x))
    inner = torch.nn.functional.gelu(block.linear1(block.norm2(y)))
    within(block(x), y + block.linear2(inner))
    dropped = copy.deepcopy(block)
    dropped.dropout.p = 0.5
    assert not torch.equal(dropped(x), block(x)) and torch.equal(dropped.eval()(x), block(x))


def test_a_model_learns():
    """0 is followed by 1, 2 and 3 in turn: what comes next is in the past, not in the token."""
    lm = nn.TransformerLM(
        4, [nn.TransformerBlock(layer(32, 2)) for layer in (nn.GatedDeltaNet, nn.LinearAttention)]
    )
    x = torch.tensor([0, 1, 0, 2, 0, 3] * 5)
    x = torch.stack([x[i : i + 24] for i in range(6)])
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-2)
    for _ in range(60):
        logits = lm(x[:, :-1])[:, 3:]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 4:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02
    lm.eval()
    assert lm.generate(x[:, :12], 12, temperature=0).tolist() == x.tolist()


@pytest.mark.parametrize("new", [None, *(x for x in KINDS if x in CAUSAL)])
@pytest.mark.parametrize("options", [{"temperature": 0}, {"top_k": 3}, {"temperature": 0.7}])
def test_generation_with_states_is_that_from_scratch(new, options):
    lm, x = model(new).eval(), sentences()
    lm.embedding.weight.data *= 50  # probabilities that differ
    found = lm.generate(x, 6, generator=torch.Generator().manual_seed(3), **options)
    generator = torch.Generator().manual_seed(3)
    for _ in range(6):
        logits = lm(x)[:, -1].detach().float()
        if options.get("temperature") == 0:
            drawn = logits.argmax(-1)
        else:
            logits = logits / options.get("temperature", 1)
            if "top_k" in options:
                kept = logits.topk(3).indices
                logits = torch.full_like(logits, -torch.inf).scatter(
                    1, kept, logits.gather(1, kept)
                )
            drawn = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        x = torch.cat([x, drawn[:, None]], 1)
    assert torch.equal(found, x)


def test_what_a_model_refuses():
    lm, x = model(max_length=N), sentences()
    assert torch.equal(lm.generate(x, 0), x)
    for call, error, message in (
        (lambda: lm(x[0]), ValueError, r"tokens has shape \(11,\); expected \(batch, tokens\)"),
        (lambda: lm(x.float()), TypeError, r"tokens has dtype torch\.float32; expected int64"),
        (lambda: lm(sentences(2, N + 1)), ValueError, "position 11; expected less than max_length"),
        (lambda: lm(x, key_padding_mask=MASK[1:]), ValueError, "key_padding_mask has shape"),
        (lambda: lm(x, state=()), TypeError, "state is a tuple; expected a ModelState"),
        (lambda: lm.step(x, lm.init_state(3)), ValueError, r"expected \(batch,\)"),
        (lambda: lm.generate(x[:, :0], 2), ValueError, r"prompt has shape \(3, 0\)"),
        (lambda: lm.generate(x, 2), ValueError, "position 11"),
        (lambda: lm.generate(x, -1), ValueError, "steps is -1"),
        (lambda: lm.generate(x, 2, top_k=8), ValueError, "top_k is 8; expected at most 7"),
        (lambda: lm.generate(x, 2, temperature=-1.0), ValueError, "temperature is -1.0"),
        (lambda: model(OTHERS[0].values[0]).generate(x, 2), ValueError, "is not causal"),
    ):
        with pytest.raises(error, match=message):
            call()
