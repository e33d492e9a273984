"""DPLR against its special cases, and its errors; other tests of it are in test_gated_delta*."""

import numpy as np
import pytest
from gated_calls import both, forward
from rules import DPLR, GATED_DELTA, compare, make

import linattn
from linattn.reference import gated_rules


@pytest.mark.parametrize("key_channels", [False, True])
def test_rwkv7(key_channels):
    """x070's loop: state (m, d), decay w, removal key kappa, replacement key, rate a."""
    case = DPLR[key_channels]._replace(n=30)
    arrays = make(case)
    r, k, v, kappa = (arrays[name] for name in ("q", "k", "v", "a"))
    kappa = -kappa
    w = np.exp(arrays["g"]) if key_channels else np.exp(arrays["g"])[:, None]
    state, out = np.zeros((case.m, case.d)), []
    for t in range(case.n):
        removed = state @ (-kappa[t][:, None]) @ arrays["b"][t][None, :]
        state = state * w[t] + removed + np.outer(v[t], k[t])
        out.append(0.5 * state @ r[t])
    compare(forward(linattn, case, arrays), {"o": np.array(out), "s": state.T})


@pytest.mark.parametrize("key_channels", [False, True])
def test_the_gated_delta_rule_is_one(key_channels):
    """exp(g) k is what the decayed memory is read with: a = exp(g) k, b = -beta k."""
    case = GATED_DELTA[4 * key_channels]._replace(n=50, lead=(2,))
    arrays = make(case)
    assert case.key_channels == key_channels
    g = arrays["g"] if key_channels else arrays["g"][..., None]
    beta = arrays["beta"][..., None]
    o, state = linattn.dplr(
        arrays["q"], beta * arrays["k"], arrays["v"], np.exp(g) * arrays["k"],
        -beta * arrays["k"], arrays["g"], scale=0.5, return_state=True,
    )  # fmt: skip
    compare({"o": o, "s": state.s}, forward(linattn, case, arrays))


def test_without_low_rank_it_is_gated():
    """a = b = 0 leaves gated linear attention."""
    for case in DPLR:
        arrays = make(case)
        arrays["a"] = arrays["b"] = np.zeros_like(arrays["a"])
        actual = both(linattn, case, arrays)
        q, k, v, g, h = (arrays[name] for name in ("q", "k", "v", "g", "grad_out"))
        o, state = linattn.gated(q, k, v, g, scale=0.5, return_state=True)
        dq, dk, dv, dg = linattn.gated_backward(q, k, v, g, h, scale=0.5)
        del actual["da"], actual["db"]
        compare(actual, {"o": o, "s": state.s, "dq": dq, "dk": dk, "dv": dv, "dg": dg})


def test_axes_of_lengths_say_nothing_of_the_gate():
    """Whether g is by channel is told by q, k and v, not by what key_lengths adds to them."""
    arrays = make(DPLR[0]._replace(n=6, lead=(), key_channels=True, dtype=np.float64))
    del arrays["grad_out"]
    arrays["g"] = arrays["g"][:, :1]
    operands, lengths = [arrays[x] for x in "qkvabg"], np.array([4, 6])
    wide = [np.broadcast_to(x, (2, *x.shape)) for x in operands]
    expected = linattn.dplr(*wide, key_lengths=lengths)
    operands[4] = wide[4]  # b, the one with an axis for them
    for module in (linattn, gated_rules):
        o = module.dplr(*operands, key_lengths=lengths)
        compare({"o": o}, {"o": expected})
