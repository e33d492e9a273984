"""linattn.jax: the NumPy package's results on JAX's arrays."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax_cases import (
    BETA,
    LENGTHS,
    PHI,
    SEQUENCES,
    D,
    G,
    K,
    M,
    Q,
    V,
    compare,
    conjugate,
    draw,
    named,
    near,
    takes,
)
from slow import each, slow
from table import ALL

import linattn
import linattn.jax as la
from linattn import State

pytestmark = pytest.mark.usefixtures("wide")


FOURIER = {"feature_map": PHI, "normalize": False, "key_lengths": LENGTHS}
OTHERS = {  # operands that broadcast, and maps; what the table has not
    "causal": ("causal", (Q, K[:, :1], V[0]), {"scale": 0.5, "eps": 0.1}),
    "map": ("causal", (Q, K, V), {"feature_map": "dpfp", "normalize": False}),
    "object": ("causal", (Q, K, V), FOURIER),
    "mlstm": ("mlstm", (Q, K[:, :1], V[0], 2 * G, G), {"eps": 0.1}),
    "wkv": ("wkv", (2 * V, V[0], abs(V[0, 0, 0]), V[0, 0, 1]), {}),
    "factors": ("linear_scan", (V[0, 0, 0], V), {}),
    "turns": ("linear_scan", (V[..., :1] * 1j, V * 1j), {"log": True, "reverse": True}),
    "softmax": ("softmax_attention", (Q[..., :5, :], K[0], V), {"scale": 0.3}),
    "gates": ("log_decay", (G, draw(3, 1), draw(3, 1, seed=1)), {}),
    "bound": ("log_decay", (G, draw(3, 1), draw(3, 1, seed=1)), {"lower_bound": -5.0}),
}


QUICK = "causal", "factors", "gates", "bound", "map", "object"


@pytest.mark.parametrize("case", [*QUICK, *slow(*(x for x in OTHERS if x not in QUICK))])
def test_results_and_gradients(case):
    name, operands, options = OTHERS[case]
    o, back = jax.vjp(jax.jit(partial(getattr(la, name), **options)), *operands)
    near(o, [getattr(linattn, name)(*operands, **options)])
    grad, backward = draw(*o.shape), getattr(linattn, f"{name}_backward")
    found = conjugate(back(conjugate(grad.astype(o.dtype))))
    near(found, backward(*operands, grad.astype(o.dtype), **options))


def test_no_copy():
    """XLA gives its buffers to C as they are, those that are broadcast too, and adds none."""
    operands = Q, K[:, :1], V[:1]
    grad = jax.grad(lambda *x: la.causal(*x, normalize=False).sum())
    for run in (la.causal, partial(la.causal, return_state=True), grad):
        compiled = jax.jit(run).lower(*operands).compile()
        text = compiled.as_text()
        assert "custom-call" in text and " copy(" not in text and " transpose(" not in text
    compiled = jax.jit(la.causal).lower(*operands).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < Q.nbytes
    assert " broadcast(" not in compiled.as_text()


def test_without_64_bits():
    """JAX's default: indices are of 32 bits, and so is all else."""
    with jax.enable_x64(False):
        o = jax.jit(partial(la.causal, key_lengths=LENGTHS))(Q, K, V)
        assert o.dtype == jnp.float32
        expected = linattn.causal(*(x.astype(np.float32) for x in (Q, K, V)), key_lengths=LENGTHS)
        np.testing.assert_array_equal(np.asarray(o), expected)


def test_lists_of_what_is_traced():
    bounds = jax.jit(lambda x: la.causal(Q, K, V, cu_seqlens=[0, x, 8]))
    compare(bounds(3), la.causal(Q, K, V, cu_seqlens=[0, 3, 8]))
    lengths = jax.jit(lambda x: la.noncausal(Q, K, V, key_lengths=[x, 2, 8]))
    compare(lengths(3), la.noncausal(Q, K, V, key_lengths=[3, 2, 8]))
    start = jax.jit(lambda x: la.causal(Q, K, V, initial_state=State([[x] * M] * D, [x] * D)))
    filled = State(np.full((D, M), 2.0), np.full(D, 2.0))
    compare(start(2.0), la.causal(Q, K, V, initial_state=filled))


@pytest.fixture
def strict():
    """JAX told to refuse operands of fewer axes than another."""
    with jax.numpy_rank_promotion("raise"):
        yield


@each(ALL)
def test_no_axes_are_promoted(strict, case):
    """Also where an operand has fewer leading axes than the others."""
    names, run = named(case, case.operands((2,), 9)), partial(case.call, module=la)
    fewer = "v" if "v" in names else next(iter(names))
    for given in (names, names | {fewer: names[fewer][0]}):
        jax.eval_shape(jax.grad(lambda x: run(x).sum()), given)
        if takes(case, "key_lengths"):
            jax.eval_shape(partial(run, key_lengths=SEQUENCES["key_lengths"]), given)


def test_no_axes_of_states_are_promoted(strict):
    state = State(draw(3, D, M))
    given = {"key_lengths": LENGTHS, "cu_seqlens": [0, 3, 8]}
    jax.eval_shape(partial(la.delta, **given), Q, K, V, BETA)
    jax.eval_shape(partial(la.delta, initial_state=state), Q, K, V, BETA)
    mesh = jax.make_mesh((1,), ("t",), axis_types=(jax.sharding.AxisType.Auto,))
    local = partial(la.delta, initial_state=state, axis_name="t")
    whole = jax.sharding.PartitionSpec()
    run = jax.shard_map(local, mesh=mesh, in_specs=whole, out_specs=whole, check_vma=False)
    compare(jax.jit(run)(Q, K, V, BETA), la.delta(Q, K, V, BETA, initial_state=state), 1e-12)


def test_dtypes_of_functions_and_of_8_bits():
    o = la.causal(Q, K, V, feature_map=lambda x: jnp.exp(x).astype(jnp.bfloat16))
    compare(o, la.causal(Q, K, V, feature_map="exp"), 1e-2)
    with pytest.raises(TypeError, match="causal: q has dtype float8_e4m3fn; expected"):
        la.causal(jnp.asarray(Q, jnp.float8_e4m3fn), K, V)


def test_functions_of_arrays_are_maps():
    o = la.causal(Q, K, V, feature_map=jax.nn.relu)
    compare(o, la.causal(Q, K, V, feature_map="relu"))
