"""linattn.jax under JAX's transforms: vmap, shard_map, symbolic sizes, several devices."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cases import (
    BETA,
    EACH_OPERATOR,
    PHI,
    SEQUENCES,
    D,
    K,
    Q,
    V,
    X,
    compare,
    draw,
    named,
    takes,
)
from processes import output
from slow import grid, slow
from table import BLOCKS, CASES, COMPLEX, covering, first_of

import linattn.jax as la
from linattn import State
from linattn.jax import _custom_calls

pytestmark = pytest.mark.usefixtures("wide")
FEW = "gated_delta", "selective_scan", "mlstm", "softmax_attention"


@grid(
    lambda case, option: case.name in FEW and not option,
    case=EACH_OPERATOR,
    option=["", "key_lengths"],
)
def test_vmap(case, option):
    """Over all operands, and over one alone; gradients by sample."""
    if option and not takes(case, option):
        return
    names = named(case, case.operands((2,), 9))
    stacked = {name: np.stack([x, 0.5 * x]) for name, x in names.items()}
    rows = [{name: x[i] for name, x in stacked.items()} for i in range(2)]

    def run(given):
        return case.call(given, la, **{option: SEQUENCES[option]} if option else {})

    def each(f, rows):
        return jax.tree.map(lambda *x: jnp.stack(x), *map(f, rows))

    compare(jax.vmap(run)(stacked), each(run, rows), 1e-12)
    first, *_ = names
    mixed = [names | {first: x} for x in stacked[first]]
    axes = {name: 0 if name == first else None for name in names}
    found = jax.vmap(run, (axes,))(names | {first: stacked[first]})
    compare(found, each(run, mixed), 1e-12)
    grad = jax.grad(lambda given: run(given).sum().real)
    compare(jax.jit(jax.vmap(grad))(stacked), each(grad, rows), 1e-11)


#: Those that may be cut along the tokens, on each device with a gate a token.
SHARDED = [
    x
    for x in covering(CASES) + COMPLEX
    if x.row.transition
    and x.letters.get("beta") != "nm"
    and all(y.startswith("n") for y in x.letters.values() if "n" in y)
]


@pytest.mark.slow
@pytest.mark.skipif(jax.device_count() < 4, reason="XLA was started with fewer host devices")
@pytest.mark.parametrize("case", SHARDED, ids=str)
def test_shard_map_over_the_sequence(case):
    """On four host devices: outputs, states and gradients, from a state or from none."""
    mesh = jax.make_mesh((4,), ("seq",), axis_types=(jax.sharding.AxisType.Auto,))
    tokens, shared = jax.sharding.PartitionSpec(None, "seq"), jax.sharding.PartitionSpec()
    names = named(case, case.operands((2,), 8))
    parts = {name: tokens if "n" in case.letters[name] else shared for name in names}
    for states in {}, {"initial_state": case.state((2,))}:

        def call(names, states, **axis):
            return case.forward(names, la, **states, **axis)

        def loss(f, *given):
            o, end = f(*given)
            return (abs(o) ** 2).sum() + sum((abs(x) ** 2).sum() for x in jax.tree.leaves(end))

        over = jax.jit(jax.shard_map(
            partial(call, axis_name="seq"), mesh=mesh, in_specs=(parts, shared),
            out_specs=(tokens, shared), check_vma=False,
        ))  # fmt: skip
        compare(over(names, states), call(names, states), 1e-12)
        compare(*(jax.grad(partial(loss, f), (0, 1))(names, states) for f in (over, call)), 1e-11)


@pytest.mark.parametrize(
    "state",
    [State(np.ones((4, 1)), np.ones(4)), *slow(State(np.ones((4, 5))), np.ones((4, 5)))],
    ids=["s", "z", "array"],
)
def test_shard_map_refuses_states(state):
    def call(q, k, v):
        return la.causal(q, k, v, axis_name="t", initial_state=state)

    mesh = jax.make_mesh((1,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    tokens = jax.sharding.PartitionSpec(None, None, "t")
    whole = jax.shard_map(
        call, mesh=mesh, in_specs=(tokens,) * 3, out_specs=tokens, check_vma=False
    )
    with pytest.raises((TypeError, ValueError), match="causal: initial_state"):
        whole(Q, K, V)


@grid(
    lambda case: "block" in case.options,
    case=EACH_OPERATOR + first_of(BLOCKS),
)
def test_sizes_that_are_symbols(case):
    """As exports have them: of heads, and of tokens; with states, and a gradient."""
    heads, n = jax.export.symbolic_shape("h, n")
    names = named(case, case.operands((2,), 9, s=9))
    given = {}
    for name, x in names.items():
        lead = x.shape[: x.ndim - len(case.letters[name])]
        own = zip(case.letters[name], x.shape[len(lead) :], strict=True)
        sizes = *(heads for _ in lead), *(n if y in "ns" else size for y, size in own)
        given[name] = jax.ShapeDtypeStruct(sizes, x.dtype)

    def run(names):
        return (case.forward if case.held else case.call)(names, la)

    checks = [jax.export.DisabledSafetyCheck.custom_call("linattn")]
    grad = jax.grad(lambda names: case.call(names, la).sum())
    for f in (run, grad)[: 1 + (case.name == "causal")]:
        whole = jax.export.export(jax.jit(f), disabled_checks=checks)(given)
        compare(whole.call(names), f(names))


@pytest.mark.slow
@pytest.mark.parametrize("option", [{"key_lengths": 3}, {"cu_seqlens": [0, 1, 4]}], ids=str)
def test_lengths_of_symbols(option):
    (n,) = jax.export.symbolic_shape("n")
    shape, x = jax.ShapeDtypeStruct((2, n, D), X.dtype), abs(draw(2, 4, D))
    checks = [jax.export.DisabledSafetyCheck.custom_call("linattn")]
    run = jax.jit(lambda x: la.causal(x, x, x, feature_map="dpfp", return_state=True, **option))
    whole = jax.export.export(run, disabled_checks=checks)(shape)
    compare(whole.call(x), run(x))


def test_a_state_of_symbols_is_refused():
    (heads,) = jax.export.symbolic_shape("h")
    x = jax.ShapeDtypeStruct((heads, 4, D), X.dtype)
    with pytest.raises(TypeError, match=r"^initial_state: q has shape \(h, 4, 4\); expected sizes"):
        jax.export.export(jax.jit(lambda x: la.initial_state(x, x, x)))(x)


def test_an_object_is_of_its_process():
    """A map that another process exported: an error, and no other map."""
    o = jax.ffi.ffi_call("linattn", jax.ShapeDtypeStruct(X.shape, X.dtype))
    with pytest.raises(jax.errors.JaxRuntimeError, match="object of the process that exported"):
        np.asarray(o(X, function=np.int64(1)))
    with pytest.raises(jax.errors.JaxRuntimeError, match="takes and returns float32 or float64"):
        np.asarray(o(X.astype(int), function=np.int64(1)))


@pytest.mark.skipif(jax.device_count() < 4, reason="XLA was started with fewer host devices")
def test_maps_on_several_devices():
    """None waits for another, as callbacks of JAX did with arrays of this size."""
    x = jnp.asarray(draw(2, 4000, D).repeat(8, 0), jnp.float32)
    mesh = jax.make_mesh((4,), ("heads",), axis_types=(jax.sharding.AxisType.Auto,))
    heads = jax.sharding.PartitionSpec("heads")
    run = partial(la.causal, feature_map=PHI, normalize=False)
    over = jax.jit(jax.shard_map(run, mesh=mesh, in_specs=(heads,) * 3, out_specs=heads,
                                 check_vma=False))  # fmt: skip
    expected = run(x, x, x)
    compare(over(x, x, x), expected)
    placed = jax.device_put(x, jax.sharding.NamedSharding(mesh, heads))
    compare(jax.jit(run)(placed, placed, placed), expected)


ENDS = """
import jax, linattn, linattn.jax
phi = linattn.feature_maps.RandomFourierFeatures.sample(64, 64, rng=0)
x = jax.numpy.ones((8, 2000, 64))
mesh = jax.make_mesh((4,), ("heads",), axis_types=(jax.sharding.AxisType.Auto,))
heads = jax.sharding.PartitionSpec("heads")
run = jax.jit(jax.shard_map(
    lambda x: linattn.jax.causal(x, x, x, feature_map=phi, normalize=False),
    mesh=mesh, in_specs=heads, out_specs=heads, check_vma=False,
))
kept = run(x)
run(x)
"""


@pytest.mark.slow
def test_python_may_end_while_maps_run():
    output("-c", ENDS, timeout=60, XLA_FLAGS="--xla_force_host_platform_device_count=4")


def test_states_are_printed_by_shape_and_dtype():
    state = la.causal(Q, K, V, return_state=True)[1]
    shown = {str(state)}
    jax.jit(lambda x: shown.add(str(x)))(state)
    jax.vmap(lambda x: shown.add(str(x)))(jax.tree.map(lambda x: x[None], state))
    dtype, (*lead, d, m) = state.s.dtype, state.s.shape
    s, z = (" x ".join(map(str, shape)) for shape in ((*lead, d, m), (*lead, d)))
    assert shown == {f"State(s=<{s} {dtype}>, z=<{z} {dtype}>, log_scale=None)"}


def test_without_the_handler(monkeypatch):
    """A warning, callbacks on one device, and an error where there are several."""

    def refuse(*args, **options):
        raise RuntimeError("no room for handlers")

    assert la.IN_C
    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    with pytest.warns(RuntimeWarning, match=r"^linattn.jax: .*no room for handlers"):
        assert not _custom_calls._register()
    expected = [la.causal(Q, K, V), la.delta(Q, K, V, BETA), la.causal_conv1d(Q, draw(D, 3))]
    maps = partial(la.causal, feature_map=PHI, normalize=False)
    gradient = jax.grad(lambda *x: maps(*x).sum(), (0, 1, 2))
    expected += [la.causal(Q, K, V, return_state=True), maps(Q, K, V), gradient(Q, K, V)]
    monkeypatch.setattr(_custom_calls, "IN_C", False)
    monkeypatch.setattr(jax, "local_device_count", lambda backend: 2)
    for call in (la.causal, maps):
        with pytest.raises(RuntimeError, match=r"^linattn.jax: .*has 2 devices on CPUs"):
            call(Q, K, V)
    monkeypatch.setattr(jax, "local_device_count", lambda backend: 1)
    found = [la.causal(Q, K, V), la.delta(Q, K, V, BETA), la.causal_conv1d(Q, draw(D, 3))]
    found += [la.causal(Q, K, V, return_state=True), maps(Q, K, V), gradient(Q, K, V)]
    compare(found, expected)
