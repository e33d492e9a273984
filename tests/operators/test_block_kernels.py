"""``block`` in the kernels: blocks shorter and longer than chunks, cuts, heads, gufuncs."""

from itertools import pairwise

import numpy as np
import pytest
from slow import each, looped, slow
from states import assert_same, flat
from table import BLOCKS, first_of, same

from linattn import ufuncs

EACH = each(BLOCKS)
ONE = pytest.mark.parametrize("case", first_of(BLOCKS), ids=str)
#: A part of a chunk, not a divisor of one; a chunk; several and a part; more than there are tokens.
SOME = [2, 7, 16, 37, 1000]
LENGTHS = looped(block=SOME)
N = 75


@EACH
@LENGTHS
@pytest.mark.parametrize("value", [np.nan, *slow(np.inf, -np.inf)])
def test_later_blocks(case, block, value):
    """Whatever they hold, outputs before them have the same bits."""
    case, cut = case.having(block=block), 37 // min(block, 37) * min(block, 37)
    operands = case.operands((2,), N, d=20, m=18, dtype="float32")
    expected = case.call(operands)
    changed = {name: x.copy() for name, x in operands.items()}
    for x in case.tokens(changed, cut, N).values():
        x[...] = value
    if block > N:
        assert not same([case.call(changed)[:, :cut]], [expected[:, :cut]])
    else:
        assert_same([case.call(changed)[:, :cut]], [expected[:, :cut]])


@EACH
@pytest.mark.parametrize("block", [3, 16, 40])
def test_exact_states(case, block):
    """A sequence that is cut where blocks end has the bits of the uncut one."""
    case, n = case.having(block=block), 720
    operands = case.operands((2,), n, d=20, m=18, dtype="float32", gates="resets")
    expected, last = case.forward(operands, return_state="exact")
    state, outputs = None, []
    for begin, end in pairwise([0, 240, 480, n]):
        part = case.tokens(operands, begin, end)
        o, state = case.forward(part, initial_state=state, return_state="exact")
        outputs.append(o)
    assert_same([np.concatenate(outputs, 1)], [expected])
    assert_same([*flat(state), state.lost], [*flat(last), last.lost])


@ONE
def test_gufuncs(case):
    """They take the tokens of a block as an integer, one for each head."""
    operands = case.operands((4,), N, dtype="float32")
    given = [operands[x] for x in case.letters]
    scale = case.options.get("scale", 1.0)
    numbers = (scale, 1e-6) if case.name == "causal" else (scale,)
    end = "_elu" if case.name == "causal" else "_identity"
    call = getattr(ufuncs, f"{case.name}_block{end}")
    blocks = np.array([2, 20, 1, 0])
    o = call(*given, *numbers, blocks)
    for i, block in enumerate((2, 20, None, None)):
        options = {x: y for x, y in case.options.items() if x != "block"}
        expected = case._replace(options=options).call(operands, block=block)
        assert_same([o[i]], [expected[i]])
    backward = getattr(ufuncs, f"{case.name}_block_backward{end}")
    grads = backward(*given, operands["grad_out"], *numbers, blocks)
    one = backward(*(x[1] for x in given), operands["grad_out"][1], *numbers, 20)
    for x, y in zip(grads, one, strict=True):
        assert_same([x[1]], [y])


def test_no_gufunc_has_a_bonus():
    assert "gated_block_state_backward_identity" in ufuncs.__all__
    assert not [x for x in ufuncs.__all__ if "bonus" in x and "block" in x]
