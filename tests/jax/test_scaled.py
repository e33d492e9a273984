"""linattn.jax: mlstm, wkv and complex scans: states and steps."""

from functools import partial

import jax
import numpy as np
import pytest
from jax.test_util import check_grads
from jax_cases import GATES, LENGTHS, SCALED, TURNS, K, Q, U, V, W, compare
from slow import first_of_each, only, slow

import linattn
import linattn.jax as la
from linattn import State

pytestmark = pytest.mark.usefixtures("wide")

IDS = [f"{name}-{'-'.join(options)}" for name, _, options, _ in SCALED]
EACH = pytest.mark.parametrize(
    ("name", "operands", "options", "state"),
    only(["linear_scan-"], first_of_each(SCALED, IDS)),  # `test_every_case` has the others
)


def packed(state, count):
    return jax.tree.map(lambda x: np.stack([x * (1 - i / 10) for i in range(count)], 2), state)


@EACH
@pytest.mark.parametrize("bounds", [None, *slow([0, 3, 3, 8])])
def test_states(name, operands, options, state, bounds):
    """Given and returned, and their gradients, as those of NumPy."""
    if bounds:
        options = options | {"cu_seqlens": np.array(bounds)}
        state = packed(state, 3)
    run = partial(getattr(la, name), **options, return_state=True)
    expected = getattr(linattn, name)(*operands, **options, initial_state=state, return_state=True)
    compare(jax.jit(run)(*operands, initial_state=state), expected)
    check_grads(
        lambda state, *x: run(*x, initial_state=state), (state, *operands), order=1,
        modes=["rev"], eps=1e-6, rtol=1e-5, atol=1e-5,
    )  # fmt: skip


@EACH
def test_steps(name, operands, options, state):
    """Tokens one by one, from the state before all."""
    static = {x: y for x, y in options.items() if x != "reverse"}
    step, one = jax.jit(partial(getattr(la, f"{name}_step"), **static)), f"{name}_step"
    token = [x if x.ndim == 1 else x[..., 0] if x.ndim == 3 else x[..., 0, :] for x in operands]
    expected = getattr(linattn, one)(*token, state=state, **static)
    compare(step(*token, state=state), expected, 1e-12)
    normalize = {"normalize": options["normalize"]} if "normalize" in options else {}
    for given, operator in (operands, name), (token, one):
        compare(la.initial_state(*given, operator=operator, **normalize),
                linattn.initial_state(*given, operator=operator, **normalize))  # fmt: skip


@pytest.mark.slow
def test_transforms():
    """vmap, and a gradient behind padding that holds NaN."""
    for name, operands, options, _ in SCALED[:1] + SCALED[3:5]:
        run = partial(getattr(la, name), **options)
        axes = [None if x.ndim == 1 else 0 for x in operands]
        compare(jax.vmap(run, axes)(*operands), run(*operands), 1e-14)
    lengths = LENGTHS[..., None, None]
    there = np.arange(Q.shape[-2])[:, None] < lengths
    q, k, v = Q, *(np.where(there, x, np.nan) for x in (K, V))
    gates = [np.where(there[..., 0], x, np.nan) for x in GATES]
    f = lambda *x: la.mlstm(*x, key_lengths=LENGTHS, eps=0.1).sum()  # noqa: E731
    grads = jax.grad(f, (0, 1, 2, 3, 4))(q, k, v, *gates)
    ones = np.ones_like(V)
    compare(grads, linattn.mlstm_backward(q, k, v, *gates, ones, key_lengths=LENGTHS, eps=0.1))


@pytest.mark.parametrize(
    ("call", "what"),
    [(lambda: la.mlstm(Q, K, V, *GATES, scale="a"), "mlstm: scale is 'a'"),
     (lambda: la.mlstm(Q, K, V, *GATES, normalize=1), "mlstm: normalize is 1"),
     (lambda: la.mlstm(Q, K, V, GATES[0], Q), "mlstm: f has shape"),
     (lambda: la.mlstm(Q, K, V * 1j, *GATES), "mlstm: v has dtype complex"),
     (lambda: la.mlstm(Q, K, V, *GATES, initial_state=State(V)), "initial_state is a tuple|s"),
     (lambda: la.wkv(V, V, W[1:], U), "wkv: w has shape"),
     (lambda: la.wkv_step(V, V, W, U, None), "wkv_step: state is None; .*initial_state"),
     (lambda: la.linear_scan(TURNS[..., :2], V), "linear_scan: a has shape"),
     (lambda: la.linear_scan(TURNS, V, log=1), "linear_scan: log is 1"),
     (lambda: la.linear_scan(TURNS, V, initial_state=State(V)), "initial_state.s has shape")],
)  # fmt: skip
def test_wrong_input(call, what):
    with pytest.raises((TypeError, ValueError), match=what):
        call()
