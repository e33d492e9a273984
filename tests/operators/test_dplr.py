"""DPLR alone; other tests of it are in test_gated_delta and test_gate_range."""

import numpy as np
from gates import DPLR, by_channel, compare_rules

import linattn
from linattn.reference import gated_rules


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
