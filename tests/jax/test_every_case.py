"""linattn.jax on every row of the table of cases: the NumPy package's results and gradients."""

from functools import partial

import jax
import numpy as np
import pytest
from slow import each, grid
from states import flat
from table import ALL, BLOCKS, CASES, allowed, first_of

import linattn.jax as la

pytestmark = pytest.mark.usefixtures("wide")
FIRST = first_of(ALL)


def compare(result, expected):
    """Within roundings of the largest entry, as XLA may sum in another order."""
    arrays = [np.asarray(x) for x in jax.tree.leaves(result)]
    for x, y in zip(arrays, flat(expected), strict=True):
        assert x.shape == y.shape
        assert (abs(x - y) <= allowed(*flat(expected))).all()


@each(ALL + BLOCKS)
def test_results_and_gradients(case):
    operands = case.operands((2,), 9)
    grad = operands["grad_out"]

    def f(given):
        return case.call(given, la)

    names = {name: operands[name] for name in case.letters}
    o, back = jax.vjp(jax.jit(f), names)
    compare(o, [case.call(operands)])
    (grads,) = back(grad)
    compare([grads[name] for name in case.letters], list(case.backward(operands)))


@each(CASES)
def test_states_and_steps(case):
    """Gradients of states too."""
    operands, start = case.operands((2,), 9), case.state((2,))
    names = {name: operands[name] for name in case.letters}
    run = jax.jit(lambda x, y: case.forward(x, la, initial_state=y))
    result, back = jax.vjp(run, names, start)
    compare(result, list(case.forward(operands, initial_state=start)))
    last = case.state((2,), seed=2)
    grads, dstart = back((operands["grad_out"], last))
    expected = case.backward(operands, initial_state=start, grad_state=last)
    compare([*(grads[name] for name in case.letters), dstart], list(expected))
    step = jax.jit(partial(getattr(la, case.step), **case.step_options))
    result = step(**case.token(operands, 0), state=start)
    compare(result, list(case.one_step(operands, 0, start)))


@grid(
    lambda case, dtype: case in (FIRST if dtype == "bfloat16" else FIRST[:1]),
    case=[x for x in ALL + BLOCKS if x.name != "linformer"],
    dtype=["bfloat16", "float16", "float32"],
)
def test_dtypes(case, dtype):
    """The bits of NumPy's results and gradients, which JAX rounds to their operands' dtypes."""
    operands = case.operands((2,), 9, dtype=jax.numpy.dtype(dtype))
    rows = case.row.operands if case.held else ()
    wide = [x.name for x in rows if x.state_dtype and x.name in operands]
    for gates in {dtype, "float32"} if wide else {dtype}:
        operands |= {name: operands[name].astype(gates) for name in wide}
        names = {name: operands[name] for name in case.letters}
        o, back = jax.vjp(lambda given: case.call(given, la), names)
        (grads,) = back(jax.numpy.asarray(operands["grad_out"], o.dtype))
        found = [o, *(grads[name] for name in case.letters)]
        expected = [case.call(operands), *case.backward(operands)]
        if case.held:
            found.append(case.forward(operands, la)[1])
            expected.append(case.forward(operands)[1])
        arrays = map(np.asarray, jax.tree.leaves(found))
        for x, y in zip(arrays, flat(expected), strict=True):
            assert x.tobytes() == y.astype(x.dtype).tobytes()
        assert o.dtype == dtype
        assert all(x.dtype == names[name].dtype for name, x in grads.items())
        if case.held:
            assert {x.dtype for x in jax.tree.leaves(found[-1])} == {np.dtype("f4")}
