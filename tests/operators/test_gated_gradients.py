"""Gradients of gated linear attention: complex steps, memory; and wrong formulas."""

import numpy as np
import pytest
from bounds import close
from gates import GATED, by_channel, compare, each_gated, oracle

from linattn import reference


def test_one_number_for_all_channels():
    """g (..., n, 1), and with leading axes that the others lack: in kernel and twin alike."""
    case = GATED[0]._replace(options={"scale": 0.5, "feature_map": "elu"})
    arrays = case.operands((2,), 7, d=3, m=4)
    g = arrays["g"]
    for one in (g[..., None], np.stack([g, 2 * g])[..., None], g[:1, :, None]):
        c = np.broadcast_to(arrays["grad_out"], (*one.shape[:-3], 2, 7, 4))
        given = {**arrays, "g": one, "grad_out": c}
        grads, expected = case.named(given), case.named(given, reference)
        for name, x in grads.items():
            y = expected[name]
            assert x.shape == y.shape
            close(x, y, atol=1e-13 * abs(y).max(), rtol=1e-12)


# --- the bound itself ----------------------------------------------------------------------------


def _with(change):
    """The oracle on operands that are not those of the case."""
    return lambda case, arrays: oracle(case, change({k: x.copy() for k, x in arrays.items()}))


def _next_gate(arrays):
    return {**arrays, "g": np.roll(arrays["g"], -1, 0)}


def _no_gate(arrays):
    return {**arrays, "g": 0 * arrays["g"]}


def _slightly_other_gates(arrays):
    return {**arrays, "g": arrays["g"] * (1 + 1e-4)}


def _bonus_of_one(arrays):
    return {**arrays, "bonus": 1 + 0 * arrays["bonus"]}


def _reads_after_its_write(case, arrays):
    """The bonus without its order: s_i, of which the token's own part counts u times."""
    u, b = arrays["bonus"], arrays["k"]
    without = {name: x for name, x in arrays.items() if name != "bonus"}
    letters = {name: x for name, x in case.letters.items() if name != "bonus"}
    result = oracle(case._replace(letters=letters), without)
    own = (arrays["q"] * (u - 1) * b).sum(-1, keepdims=True) * arrays["v"]
    return {**oracle(case, arrays), "o": result["o"] + case.options["scale"] * own}


def _decays_after_its_write(case, arrays):
    """s_i = exp(g_i) (s_{i-1} + b_i v_i^T)."""
    g = arrays["g"] if by_channel(case) else arrays["g"][:, None]
    return oracle(case, {**arrays, "k": arrays["k"] * np.exp(g)})


def _lost(name):
    def wrong(case, arrays):
        result = oracle(case, arrays)
        return {**result, name: 0 * result[name]}

    return wrong


def _slightly(case, arrays):
    return {name: x * (1 + 60 * 2.0**-24) for name, x in oracle(case, arrays).items()}


MUTANTS = {
    "the next gate": _with(_next_gate),
    "no gate": _with(_no_gate),
    "gates rounded to four digits": _with(_slightly_other_gates),
    "decays after its write": _decays_after_its_write,
    "rounded too often": _slightly,
    **{f"{name} lost": _lost(name) for name in ("dq", "dk", "dv", "dg")},
}
BONUS_MUTANTS = {
    "bonus of one": _with(_bonus_of_one),
    "reads after its write": _reads_after_its_write,
    "dbonus lost": _lost("dbonus"),
}


@pytest.mark.parametrize("name", [*MUTANTS, *BONUS_MUTANTS])
@pytest.mark.parametrize("which", [0, 2])
def test_a_wrong_formula_fails(name, which):
    mutant, case = {**MUTANTS, **BONUS_MUTANTS}[name], GATED[which + (name in BONUS_MUTANTS)]
    arrays = case.operands((), 20, m=3, dtype="float32")
    compare(case, arrays, {key: x.astype("f4") for key, x in oracle(case, arrays).items()})
    with pytest.raises(AssertionError, match="is off by"):
        compare(case, arrays, {key: x.astype("f4") for key, x in mutant(case, arrays).items()})


@each_gated
def test_shorter_sequences_need_no_more_scratch(case):
    """Packed ones share scratch that was measured for them in one; gates cut every token."""
    for n in range(1, 40):
        arrays = case.operands((), n + 1, d=12, m=40, dtype="float32")
        arrays["g"] = np.full_like(arrays["g"], -70.0)
        arrays["grad_out"] = np.ones_like(arrays["grad_out"])
        packed = case.backward(arrays, cu_seqlens=[0, n, n + 1])
        for begin, end in ((0, n), (n, n + 1)):
            alone = case.backward(case.rows(arrays, begin, end))
            for x, y in zip(packed[:4], alone[:4], strict=True):
                np.testing.assert_array_equal(x[begin:end], y)
