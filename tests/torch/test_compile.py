"""torch.compile, in one graph, of functions that create maps and states."""

import pytest
import torch
from operands import STEPS
from slow import crossed, grid, slow
from torch_cases import one_token

import linattn
import linattn.torch as la
from linattn._core.gufuncs import internal_ufuncs
from linattn.torch import feature_maps as maps
from linattn.torch.fla import _lent

pytestmark = pytest.mark.usefixtures("forgotten")
OMEGA = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
WEIGHT = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(2))
OUTSIDE = maps.DPFP(2)
ARRAYS = linattn.feature_maps.DPFP(2)


def both(function, *args, **options):
    """What a function gives, and what it gives compiled."""
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", **options)
    return function(*args), compiled(*args)


def assert_same(pair):
    torch.testing.assert_close(*pair, rtol=0, atol=0)


MAPS = {
    "DPFP": lambda: maps.DPFP(2),
    "DPFP by name": lambda: maps.DPFP(nu=1, normalize=False),
    "Elementwise": lambda: maps.Elementwise("relu"),
    "L2Norm": lambda: maps.L2Norm(),
    "Rebased": lambda: maps.Rebased(),
    "Taylor": lambda: maps.Taylor(0.3),
    "SumNormalized": lambda: maps.SumNormalized(maps.DPFP()),
    "get": lambda: maps.get("dpfp"),
    "PositiveRandomFeatures": lambda: maps.PositiveRandomFeatures(OMEGA, hyperbolic=True),
    "RandomFourierFeatures": lambda: maps.RandomFourierFeatures(OMEGA, 2.0),
    "GeneralizedRandomFeatures": lambda: maps.GeneralizedRandomFeatures(OMEGA),
    "FeedforwardKernel": lambda: maps.FeedforwardKernel([(WEIGHT, WEIGHT), (WEIGHT,)]),
    "made outside": lambda: OUTSIDE,
    "of arrays": lambda: linattn.feature_maps.DPFP(2),
    "of arrays, normalised": lambda: linattn.feature_maps.DPFP(2).normalized(),
    "of arrays, made outside": lambda: ARRAYS,
}


@grid(lambda name: name.split()[0] in ("DPFP", "FeedforwardKernel", "of"), name=MAPS)
def test_maps_made_inside(name):
    make, x = MAPS[name], torch.randn(3, 5, 4)
    assert_same(both(lambda x: la.causal(x, x, x, feature_map=make()), x))
    if "arrays" not in name:
        assert_same(both(lambda x: make()(x), x))


def test_maps_by_name():
    def function(x):
        return [la.causal(x, x, x, feature_map=name) for name in maps.NAMES]

    assert_same(both(function, torch.randn(3, 5, 4)))


def test_directions_that_are_computed():
    def function(x, omega):
        return la.causal(x, x, x, feature_map=maps.PositiveRandomFeatures(omega * 2))

    assert_same(both(function, torch.randn(3, 5, 4), OMEGA))


def test_learned_maps():
    def loss(x, w):
        phi = maps.FeedforwardKernel([(w, w)])
        return la.causal(x, x, x, feature_map=phi).square().sum() + phi.orthogonality(0.1)

    x, weights = torch.randn(3, 5, 4), [WEIGHT.clone().requires_grad_() for _ in range(2)]
    loss(x, weights[0]).backward()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(x, weights[1]).backward()
    torch.testing.assert_close(weights[1].grad, weights[0].grad)


STATES = {
    "causal": {},
    "step": {"operator": "step"},
    "not normalised": {"normalize": False},
    "packed": {"cu_seqlens": [0, 2, 5]},
    "packed, tensor": {"cu_seqlens": torch.tensor([0, 2, 5])},
    "dpfp": {"feature_map": "dpfp"},
    "positive": {"feature_map": maps.PositiveRandomFeatures(OMEGA)},
    "function": {"feature_map": torch.square},
    "delta": {"operator": "delta"},
}


@grid(
    lambda name, dynamic: dynamic is None and name not in ("step", "dpfp", "function"),
    name=STATES,
    dynamic=[None, True],
)
def test_initial_states(name, dynamic):
    options, x = STATES[name], torch.randn(3, 5, 4)
    assert_same(both(lambda x: la.initial_state(x, x, x, **options), x, dynamic=dynamic))


def test_initial_states_follow_the_batch():
    compiled = torch.compile(
        lambda x: la.initial_state(x, x, x, x[..., 0], operator="gated").s, fullgraph=True,
        backend="aot_eager",
    )  # fmt: skip
    assert [compiled(torch.ones(n, 5, 4)).shape[0] for n in (2, 3, 7)] == [2, 3, 7]


def test_a_step_from_its_own_state():
    def function(x):
        state = la.initial_state(x, x, x, operator="step")
        return la.step(x, x, x, state, in_place=True)

    assert_same(both(function, torch.randn(3, 4)))


@pytest.mark.parametrize("name", ["PerformerAttention", "GatedDeltaNet", *slow(
    "FastWeightAttention", "LinearAttention", "FeedforwardKernelAttention")])  # fmt: skip
def test_layers_from_their_first_state(name):
    layer = getattr(la.nn, name)(8, 2)
    with torch.no_grad():
        found, expected = both(lambda x: layer.step(x, layer.init_state(2)), torch.randn(2, 8))
    torch.testing.assert_close(found, expected)


FEW_STEPS = ["causal", "gated_delta", *slow("delta", "gated", "dplr")]


@pytest.mark.parametrize("name", FEW_STEPS)
def test_steps_with_gradients(name):
    def loss(*args):
        o, state = getattr(la, STEPS[name])(*args[:-1], args[-1])
        return o.square().sum() + state.s.square().sum()

    operands, state = one_token(name)
    leaves = [x.detach().clone().requires_grad_() for x in operands]
    same = [x.detach().clone().requires_grad_() for x in operands]
    loss(*leaves, state).backward()
    torch.compile(loss, fullgraph=True, backend="aot_eager")(*same, state).backward()
    assert_same(([x.grad for x in leaves], [x.grad for x in same]))


def test_steps_are_seen_where_they_have_to_be():
    """By autograd, vmap and autocast: other calls take an operator that they do not know."""
    (q, k, v, beta), state = one_token("delta")

    def function(q):
        return la.delta_step(q, k, v, beta, state)[0]

    def cast(q):
        with torch.autocast("cpu", torch.bfloat16):
            return function(q)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert not compiled(q).requires_grad
    assert compiled(q.clone().requires_grad_()).requires_grad
    with torch.no_grad():
        assert_same(both(torch.func.vmap(function), torch.stack([q, k])))
        assert_same(both(cast, q))


@pytest.mark.parametrize("name", ["causal", *slow("gated_delta", "delta", "gated", "dplr")])
def test_a_step_in_place_copies_no_state(name):
    """The compiled code calls the operator on the state itself, and nothing else."""
    inductor = pytest.importorskip("torch._inductor.utils")
    operands, state = one_token(name)
    step = getattr(la, STEPS[name])
    compiled = torch.compile(
        lambda *args: step(*args, state, in_place=True)[0], fullgraph=True, dynamic=False
    )
    with torch.no_grad():
        _, (code,) = inductor.run_and_get_code(compiled, *operands)
    body = code[code.index("def call(") :]
    body = body[: body.index("return (")]
    assert f"linattn.{STEPS[name]}_.default(" in body
    for word in ("clone", "copy_", "empty_strided", "fused"):
        assert word not in body


@pytest.mark.parametrize("step", [False, True])
def test_few_guards(step):
    """What a compiled call checks each time, which takes longer than a step if it is a lot."""
    (q, k, v, g, beta), state = one_token("gated_delta")
    counts = []

    def count(guards):
        counts.append(len(guards))
        return [True] * len(guards)

    def function(q, k, v, g, beta, s):
        if step:
            return la.gated_delta_step(q, k, v, g, beta, la.State(s), in_place=True)[0]
        return la.gated_delta(q, k, v, g, beta)

    try:
        compiled = torch.compile(function, fullgraph=True, options={"guard_filter_fn": count})
        with torch.no_grad():
            compiled(q, k, v, g, beta, state.s)
    except RuntimeError as error:
        pytest.skip(f"this PyTorch does not show its guards: {error}")
    assert counts and sum(counts) < 80


def test_wrong_operands_raise_when_compiled():
    (q, k, v), state = one_token("causal")
    compiled = torch.compile(la.step, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match=r"k has shape|[Ss]hape|size"):
        compiled(q, k[:, :3], v, state)


@pytest.mark.parametrize(
    ("step", "dynamic"), crossed(lambda step, dynamic: step == dynamic, *2 * [[False, True]])
)
def test_indices_of_pools_are_checked(step, dynamic):
    """At each call, before a row is written."""
    operands = [torch.stack([x, x]) for x in one_token("delta")[0]]
    more = {} if step else {"return_state": True}
    if not step:
        operands = [x.unsqueeze(-1 if x.ndim == 2 else -2) for x in operands]
    function = la.delta_step if step else la.delta

    def on_rows(s, indices):
        pool = {"state" if step else "initial_state": la.State(s)}
        return function(*operands, **pool, state_indices=indices, **more)[1].s

    compiled = torch.compile(on_rows, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    start = torch.ones(5, 2, 4, 4)
    with torch.no_grad():
        given, same = start.clone(), start.clone()
        assert_same((on_rows(given, torch.tensor([3, 0])), compiled(same, torch.tensor([3, 0]))))
        assert_same((given, same))
        for wrong, words in {
            (3, 3): "3 twice", (0, 5): "values from 0 to 5", (-1, 2): "values from -1 to 2",
        }.items():  # fmt: skip
            with pytest.raises(ValueError, match=f"state_indices has {words}"):
                compiled(start, torch.tensor(wrong))
        assert (start == 1).all()


def _at_positions(q, state_at):
    o, states = la.delta(q, q, q, q[..., 0], return_state=True, state_at=state_at)
    return o, states.s


def test_positions_in_lengths_that_change():
    class Model(torch.nn.Module):
        def forward(self, q):
            return _at_positions(q, [4, 1])

    sizes = ({1: torch.export.Dim("n", min=6)},)
    program = torch.export.export(Model(), (torch.rand(3, 7, 4),), dynamic_shapes=sizes)
    for n in (7, 11):
        q = 0.5 * torch.randn(3, n, 4, generator=torch.Generator().manual_seed(n))
        assert_same((program.module()(q), _at_positions(q, [4, 1])))


def test_a_tensor_of_positions_breaks_the_graph():
    """Which does not see its values; with ``fullgraph`` an error says what does not break it."""
    q = torch.rand(3, 7, 4)
    compiled = torch.compile(_at_positions, backend="aot_eager")
    assert_same((compiled(q, torch.tensor([4, 1])), _at_positions(q, [4, 1])))
    torch._dynamo.reset()
    compiled = torch.compile(_at_positions, fullgraph=True, backend="aot_eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="state_at is a tensor; a list of int"):
        compiled(q, torch.tensor([4, 1]))


def test_states_are_told_from_shared_ones_whoever_watches_the_interpreter():
    """Dynamo does after a compilation that fails, and then a call keeps its arguments longer."""

    def held():
        alone, kept = [torch.zeros(2)], [torch.zeros(2)]
        also = kept[0]
        return _lent.is_held_once(alone, 0), _lent.is_held_once(kept, 0), also.sum() != 0

    def breaks(x):
        torch._dynamo.graph_break()
        return x

    expected = (_lent.EXACT, False, False)
    assert held() == expected
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(breaks, fullgraph=True, backend="eager")(torch.ones(2))
    assert held() == expected


def test_a_step_of_the_convolution_before_any_other():
    """Graphs cannot make its gufunc, which is made on first use."""
    x, weight, state = torch.randn(2, 6), torch.randn(6, 4), torch.randn(2, 6, 3)

    def step(state):
        return la.causal_conv1d_step(x, weight, state, in_place=True)[0]

    expected = step(state.clone())
    internal_ufuncs.pop("_causal_conv1d_step", None)
    assert_same((torch.compile(step, fullgraph=True, backend="aot_eager")(state), expected))
