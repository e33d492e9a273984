"""linattn.jax on every row of the table of cases: the NumPy package's results and gradients."""

from functools import partial

import jax
import numpy as np
import pytest
from jax_cases import EACH_OPERATOR, SEQUENCES, conjugate, named, near, takes
from slow import crossed, each, grid
from states import flat
from table import ALL, BLOCKS, CASES, COMPLEX, covering, first_of

import linattn
import linattn.jax as la

pytestmark = pytest.mark.usefixtures("wide")
FIRST = first_of(ALL)
FEW = "causal", "noncausal", "selective_scan", "causal_conv1d"
#: Blocks that end after the last token.
HUGE = [x.having(block=2**40) for x in first_of(BLOCKS)]


def check(case, operands, start, last, traced=False, **options):
    """Results and gradients, those of states too, in jit; options that it knows, or is given."""
    method, states = (case.forward, {"initial_state": start}) if case.held else (case.call, {})
    names, known = named(case, operands), {} if traced else options
    run = jax.jit(lambda given, states, more: method(given, la, **states, **more, **known))
    given = options if traced else {}
    result, back = jax.vjp(lambda x, y: run(x, y, given), names, states)
    expected = method(operands, **states, **options)
    near(result, expected)
    cotangent = (operands["grad_out"], last) if case.held else operands["grad_out"]
    grads, dstates = conjugate(back(conjugate(cotangent)))
    more = states | ({"grad_state": last} if case.held else {})
    expected = list(case.backward(operands, **more, **options))
    near([*(grads[name] for name in case.letters), dstates], expected)


@each(ALL + BLOCKS + HUGE)
def test_results_and_gradients(case):
    operands = case.operands((2,), 9)
    names = named(case, operands)
    o, back = jax.vjp(jax.jit(lambda given: case.call(given, la)), names)
    near(o, [case.call(operands)])
    (grads,) = back(operands["grad_out"])
    near([grads[name] for name in case.letters], list(case.backward(operands)))


@grid(lambda case: case in [*covering(CASES), COMPLEX[0]], case=CASES + COMPLEX)
def test_states_and_steps(case):
    operands, (start, last) = case.operands((2,), 9), (case.state((2,), seed=x) for x in (1, 2))
    check(case, operands, start, last)
    step = jax.jit(partial(getattr(la, case.step), **case.step_options))
    result = step(**case.token(operands, 0), state=start)
    near(result, list(case.one_step(operands, 0, start)))
    given = [operands[x.name] for x in case.row.operands if not x.optional]
    first, expected = (x.initial_state(*given, operator=case.name) for x in (la, linattn))
    for x, y in zip(jax.tree.leaves(first), flat(expected), strict=True):
        np.testing.assert_array_equal(x, y)


#: Lengths that a trace is given are checked by it, whatever the operator.
TRACED = [EACH_OPERATOR[0], *first_of(BLOCKS)]


@pytest.mark.parametrize("option", SEQUENCES)
@pytest.mark.parametrize(
    ("case", "traced"),
    [*crossed(lambda case, traced: case.name in FEW, EACH_OPERATOR, [False]),
     *crossed(lambda case, traced: "block" in case.options, TRACED, [True])],
    ids=str,
)  # fmt: skip
def test_lengths(option, case, traced):
    """Of operands and of states, one for each sequence; NaN behind a length is not read."""
    if not takes(case, option):
        with pytest.raises(TypeError, match=option):
            case.call(case.operands((2,), 9), la, **{option: SEQUENCES[option]})
        return
    lead = (2, 3) if option == "cu_seqlens" else (2,)
    start, last = (case.state(lead, seed=x) if case.held else None for x in (1, 2))
    operands = case.operands((2,), 9)
    if option == "key_lengths" and "q" in case.letters:
        for name in case.letters.keys() - {"q", "bonus"}:
            operands[name][1, 3:] = np.nan
    check(case, operands, start, last, traced, **{option: SEQUENCES[option]})


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
        names = named(case, operands)
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
