"""linattn.torch: results and gradients are those of the NumPy package."""

import numpy as np
import pytest
import torch
import torch_cases as cases
from bounds import close
from torch_cases import EACH, RECURRENT, ROWS, assert_same, call, leaves, make

import linattn
import linattn.torch as la

pytestmark = pytest.mark.usefixtures("forgotten")


@pytest.mark.parametrize("row", cases.OWN, ids=str)
def test_results_and_states(row):
    """Those of arrays, as `test_every_case` has it of the table's cases."""
    for dtype in (torch.float32, torch.float64, torch.float16):
        operands = make(row, dtype)
        o = call(la, row, operands)
        assert o.dtype is dtype and o.is_contiguous()
        assert_same(o, call(linattn, row, cases.arrays(operands)))
    if row.held:
        operands, start, more = make(row), cases.state(row), {"return_state": True}
        own = {"initial_state": cases.pack(row, start)} | more
        arrays = {"initial_state": cases.pack(row, cases.arrays(start))} | more
        expected = call(linattn, row, cases.arrays(operands), **arrays)
        assert_same(call(la, row, operands, **own), expected)


@pytest.mark.parametrize("row", cases.OWN, ids=str)
def test_gradients(row):
    """From a state and through it; `test_every_case` has those of the table's cases."""
    operands, start = leaves(make(row)), leaves(cases.state(row)) if row.held else {}

    def function(*values):
        given = dict(zip(operands, values, strict=False))
        if not start:
            return call(la, row, given)
        state = cases.pack(row, dict(zip(start, values[len(given) :], strict=True)))
        return tuple(cases.outputs(call(la, row, given, initial_state=state, return_state=True)))

    tensors = (*operands.values(), *start.values())
    assert torch.autograd.gradcheck(function, tensors, fast_mode=True)


@EACH
def test_bfloat16(row):
    """As float32, rounded once; states and gates of 32 bits."""
    operands = make(row, torch.bfloat16)
    wide = {name: x.float() for name, x in operands.items()}
    o = call(la, row, operands)
    assert o.dtype is torch.bfloat16
    expected = call(la, row, wide)
    close(o.float(), expected, atol=2**-8 * float(expected.abs().max()), rtol=2**-8)
    given = leaves(operands)
    call(la, row, given).float().sum().backward()
    for name, x in given.items():
        assert x.grad.dtype is torch.bfloat16 and x.grad.isfinite().all(), name


@cases.EACH_STEP
def test_steps(row):
    operands, state = make(row), cases.pack(row, cases.state(row))
    array_state = cases.pack(row, cases.arrays(cases.state(row)))
    for i in range(3):
        given = cases.token(row, operands, i)
        o, after = call(la, row, given, step=True, state=state)
        expected, array_state = call(
            linattn, row, cases.arrays(given), step=True, state=array_state
        )
        assert_same((o, after), (expected, array_state))
        again, same = call(la, row, given, step=True, state=state, in_place=True)
        assert same is state
        assert_same((again, same), (o, after))


@cases.EACH_KIND_OF_STEP
def test_steps_in_place_are_seen_by_backward(row):
    """As those of PyTorch's own operators: what a gradient needs and is no more is an error."""
    operands, start = leaves(make(row)), cases.state(row)
    given = cases.token(row, make(row), 0)
    o = call(la, row, operands, initial_state=cases.pack(row, start))
    with torch.no_grad():
        call(la, row, given, step=True, state=cases.pack(row, start), in_place=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()
    versions = [x._version for x in start.values()]

    def again():
        return call(la, row, given, step=True, state=cases.pack(row, start), in_place=True)

    def dispatched():
        with torch.autograd.profiler.profile():
            return again()

    for run in (again, dispatched, torch.compile(again, fullgraph=True, backend="aot_eager")):
        run()
        after = [x._version for x in start.values()]
        assert all(x < y for x, y in zip(versions, after, strict=True)), run
        versions = after


@cases.EACH_STEP
def test_steps_in_place_in_inference_mode(row):
    """Of tensors made there, which count no versions, and of others, which do."""
    given, other = cases.token(row, make(row), 0), cases.state(row)
    expected = call(la, row, given, step=True, state=cases.pack(row, other))
    with torch.inference_mode():
        for state in ({name: x.clone() for name, x in other.items()}, other):
            state = cases.pack(row, state)
            assert_same(call(la, row, given, step=True, state=state, in_place=True), expected)
    assert all(x._version == 1 for x in other.values())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_steps_of_16_bits_take_a_number(dtype):
    """Which does not widen the result."""
    q, state = torch.ones(3, dtype=dtype), la.State(torch.zeros(3, 3))
    assert la.delta_step(q, q, q, 0.1, state)[0].dtype is dtype
    assert la.gated_delta_step(q, q, q, -0.1, 1, state)[0].dtype is dtype
    with pytest.raises(ValueError, match="delta_step: beta is too large for a float"):
        la.delta_step(q, q, q, 10**400, state)
    compiled = torch.compile(
        lambda q, s: la.gated_delta_step(q, q, q, -0.1, 1, s)[0],
        fullgraph=True, backend="aot_eager",
    )  # fmt: skip
    assert torch.equal(compiled(q, state), la.gated_delta_step(q, q, q, -0.1, 1, state)[0])


@EACH
def test_layouts_and_expanded_operands(row):
    """Views of any strides, and of none."""
    operands = make(row)
    turned = {
        name: x.transpose(0, -1).contiguous().transpose(0, -1) for name, x in operands.items()
    }
    assert_same(call(la, row, turned), call(la, row, operands))
    given, plain = leaves(turned), leaves(operands)
    for tensors, expand in ((given, True), (plain, False)):
        o = call(la, row, tensors)
        grad = torch.ones(()).expand(o.shape) if expand else torch.ones(o.shape)
        o.backward(grad.to(o.dtype))
    for name, x in given.items():
        assert_same(x.grad, plain[name].grad)


def test_the_layout_of_heads_side_by_side():
    """(batch, tokens, heads, d) turned to (batch, heads, tokens, d) is turned back for nothing."""
    for row in RECURRENT:
        plain = make(row)
        if "q" not in plain or row.options.get("feature_map") == "dpfp":
            continue  # dpfp is an operator of its own
        operands = {
            name: x.transpose(1, 2).contiguous().requires_grad_() if x.ndim > 3 else x
            for name, x in plain.items()
        }
        turned = {x: y.transpose(1, 2) if y.ndim > 3 else y for x, y in operands.items()}
        o = call(la, row, turned).transpose(1, 2)
        assert o.is_contiguous()
        wanted = [x for x in turned.values() if x.requires_grad]
        for x in torch.autograd.grad(o, wanted, torch.ones(o.shape, dtype=o.dtype)):
            assert x.transpose(1, 2).is_contiguous()


@EACH
def test_some_operands_require_grad(row):
    full = leaves(make(row))
    call(la, row, full).sum().backward()
    for name in row.letters:
        operands = make(row)
        operands[name].requires_grad_()
        call(la, row, operands).sum().backward()
        assert_same(operands[name].grad, full[name].grad)


@EACH
def test_second_derivatives_are_refused(row):
    operands = leaves(make(row))
    x = next(iter(operands.values()))
    outputs = [call(la, row, operands)]
    if row in RECURRENT:
        outputs.append(call(la, row, operands, return_state=True)[0])
    refused = rf"gradients of gradients of ({row.name}|feature_map) are not "
    for o in outputs:
        (grad,) = torch.autograd.grad(o.square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match=refused):
            grad.sum().backward()


MAPS = [
    *linattn.feature_maps.NAMES,
    linattn.feature_maps.DPFP(nu=2, normalize=False),
    linattn.feature_maps.Rebased(),
    linattn.feature_maps.Taylor(scale=0.3),
    linattn.feature_maps.get("relu").normalized(),
    linattn.feature_maps.RandomFourierFeatures.sample(4, 6, rng=1),
    linattn.feature_maps.PositiveRandomFeatures.sample(4, 6, rng=1, hyperbolic=True),
    linattn.feature_maps.PositiveRandomFeatures.sample(4, 6, rng=1).normalized(1e-3),
    linattn.feature_maps.GeneralizedRandomFeatures.sample(4, 6, rng=1),
    linattn.feature_maps.FeedforwardKernel.oglu(3, 4, rng=1),
    linattn.feature_maps.FeedforwardKernel.aoglu(3, 4, depth=2, rng=1),
]


@pytest.mark.parametrize("feature_map", MAPS, ids=str)
def test_maps(feature_map):
    """phi(x) and its gradient, alone and as the map of an operator."""
    operands = make(ROWS[0])
    phi = la.feature_maps.get(feature_map)
    x = operands["q"].requires_grad_()
    expected = linattn.feature_maps.get(feature_map)(x.detach().numpy())
    close(phi(x).detach(), expected, atol=1e-15, rtol=1e-14)
    assert torch.autograd.gradcheck(phi, (x,), fast_mode=True)
    o = la.delta(**operands, beta=torch.full(x.shape[:-1], 0.5).double(), feature_map=feature_map,
                 scale=0.1)  # fmt: skip
    expected = linattn.delta(
        *cases.arrays(operands).values(), np.full(x.shape[:-1], 0.5), feature_map=feature_map,
        scale=0.1,
    )  # fmt: skip
    close(o.detach(), expected, atol=1e-12 * abs(expected).max())
    o.sum().backward()
    assert x.grad.isfinite().all()


def test_learned_maps_are_trained():
    """Weights and their penalty have gradients; a module may be a map."""
    numpy_map = linattn.feature_maps.FeedforwardKernel.glu(3, 4, rng=1)
    weights = [[torch.tensor(w, requires_grad=True) for w in unit] for unit in numpy_map.weights]
    phi = la.feature_maps.FeedforwardKernel(weights)
    operands = make(ROWS[0])
    la.causal(**operands, feature_map=phi).sum().backward()
    assert all(w.grad.abs().sum() > 0 for unit in weights for w in unit)
    penalty = phi.orthogonality(0.5)
    expected, grads = numpy_map.orthogonality(0.5)
    close(penalty.detach(), expected, atol=1e-15)
    weights[0][0].grad = None
    penalty.backward()
    close(weights[0][0].grad, grads[0][0], atol=1e-15)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Softplus()).double()
    la.causal(**operands, feature_map=layer).sum().backward()
    assert layer[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("feature_map", MAPS, ids=str)
def test_maps_of_one_token(feature_map):
    """As in a sequence: weights by head find their heads, and not a batch as large."""
    whole = [x[:1].repeat(3, 1, 1, 1) for x in make(ROWS[0]).values()]  # as many as heads
    normalize = isinstance(feature_map, linattn.feature_maps.PositiveRandomFeatures)
    options = {"feature_map": feature_map, "normalize": normalize}
    o, state = la.causal(*whole, **options, return_state=True)
    _, middle = la.causal(*(x[..., :-1, :] for x in whole), **options, return_state=True)
    last, after = la.step(*(x[..., -1, :] for x in whole), middle, **options)
    for x, y in ((last, o[..., -1, :]), (after.s, state.s)):
        close(x, y, atol=1e-13 * float(y.abs().max()), rtol=0)


def test_padding_is_not_mapped():
    """NaN behind key_lengths reaches neither results nor gradients, whatever the map."""
    operands = leaves(make(ROWS[0]))
    with torch.no_grad():
        operands["k"][..., 5:, :] = torch.nan
        operands["v"][..., 5:, :] = torch.nan
    for feature_map in MAPS:
        o = la.causal(**operands, feature_map=feature_map, normalize=False,
                      key_lengths=torch.tensor(5))  # fmt: skip
        grads = torch.autograd.grad(o.sum(), list(operands.values()))
        assert o.isfinite().all() and all(x.isfinite().all() for x in grads), feature_map
