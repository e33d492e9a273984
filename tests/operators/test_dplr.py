"""DPLR against its special cases; other tests of it are in test_gated_delta and test_gate_range."""

import numpy as np
import pytest
from gates import DPLR, GATED_DELTA, by_channel, compare_rules

import linattn
from linattn.reference import gated_rules

EACH = pytest.mark.parametrize("case", DPLR, ids=str)


@pytest.mark.parametrize("case", [x for x in GATED_DELTA if x.letters["beta"] == "n"], ids=str)
def test_the_gated_delta_rule_is_one(case):
    """exp(g) k is what the decayed memory is read with: a = exp(g) k, b = -beta k."""
    if "erase" in case.letters:
        return
    arrays = case.operands((2,), 50, d=6, m=5)
    g = arrays["g"] if by_channel(case) else arrays["g"][..., None]
    beta = arrays["beta"][..., None]
    o, state = linattn.dplr(
        arrays["q"], beta * arrays["k"], arrays["v"], np.exp(g) * arrays["k"],
        -beta * arrays["k"], arrays["g"], scale=0.5, return_state=True,
    )  # fmt: skip
    expected, end = case.forward(arrays)
    compare_rules({"o": o, "s": state.s}, {"o": expected, "s": end.s})


@EACH
def test_without_low_rank_it_is_gated(case):
    """a = b = 0 leaves gated linear attention."""
    arrays = case.operands((), 40, d=6, m=5)
    arrays["a"] = arrays["b"] = np.zeros_like(arrays["a"])
    actual = case.named(arrays)
    q, k, v, g, h = (arrays[name] for name in ("q", "k", "v", "g", "grad_out"))
    o, state = linattn.gated(q, k, v, g, scale=0.5, return_state=True)
    dq, dk, dv, dg = linattn.gated_backward(q, k, v, g, h, scale=0.5)
    del actual["da"], actual["db"]
    compare_rules(actual, {"o": o, "s": state.s, "dq": dq, "dk": dk, "dv": dv, "dg": dg})


def test_axes_of_lengths_say_nothing_of_the_gate():
    """Whether g is by channel is told by q, k and v, not by what key_lengths adds to them."""
    arrays = next(x for x in DPLR if by_channel(x)).operands((), 6, d=6, m=5)
    arrays["g"] = arrays["g"][:, :1]
    operands, lengths = [arrays[x] for x in "qkvabg"], np.array([4, 6])
    wide = [np.broadcast_to(x, (2, *x.shape)) for x in operands]
    expected = linattn.dplr(*wide, key_lengths=lengths)
    operands[4] = wide[4]  # b, the one with an axis for them
    for module in (linattn, gated_rules):
        o = module.dplr(*operands, key_lengths=lengths)
        compare_rules({"o": o}, {"o": expected})
