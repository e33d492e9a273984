"""Gradients of gated linear attention: complex steps, memory; and wrong formulas."""

import sys

import numpy as np
import pytest
from bounds import close
from gated_calls import both, oracle
from gates import KINDS, Case, compare, make

import linattn
from linattn.reference import gated_attention as ref


def test_one_number_for_all_channels():
    """g (..., n, 1), and with leading axes that the others lack: in kernel and twin alike."""
    case = Case(7, 3, 4, (2,), feature_map="elu", dtype="float64")
    arrays = make(case)
    g = arrays["g"]
    for one in (g[..., None], np.stack([g, 2 * g])[..., None], g[:1, :, None]):
        c = np.broadcast_to(arrays["grad_out"], (*one.shape[:-3], 2, 7, 4))
        grads, expected = (
            both(module, case, {**arrays, "g": one, "grad_out": c}) for module in (linattn, ref)
        )
        for name, x in grads.items():
            y = expected[name]
            assert x.shape == y.shape
            close(x, y, atol=1e-13 * abs(y).max(), rtol=1e-12)


SCRIPT = """
import resource, sys
import linattn, numpy as np

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

n, d = 2**18, 64
q, v, c = (np.full((n, d), 0.125, "f4") for _ in range(3))
g = np.full((n, d), -0.5, "f4")
few = slice(3000)
linattn.gated_backward(q[few], q[few], v[few], g[few], c[few])
before = peak()
result = linattn.gated_backward(q, q, v, g, c)
print((peak() - before - sum(x.nbytes for x in result)) / 2**20)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs getrusage")
def test_memory(interpreter):
    """The square root of the chunks, not the states of all tokens, nor of all chunks (256 MiB)."""
    stdout, _ = interpreter(SCRIPT)
    assert float(stdout) <= 8


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
    result = oracle(case, without)
    own = (arrays["q"] * (u - 1) * b).sum(-1, keepdims=True) * arrays["v"]
    return {**oracle(case, arrays), "o": result["o"] + case.scale * own}


def _decays_after_its_write(case, arrays):
    """s_i = exp(g_i) (s_{i-1} + b_i v_i^T)."""
    g = arrays["g"] if case.channels else arrays["g"][:, None]
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
@pytest.mark.parametrize("channels", [False, True])
def test_a_wrong_formula_fails(name, channels):
    mutant = {**MUTANTS, **BONUS_MUTANTS}[name]
    case = Case(20, 4, 3, (), channels, name in BONUS_MUTANTS)
    arrays = make(case)
    compare(case, arrays, {key: x.astype("f4") for key, x in oracle(case, arrays).items()})
    with pytest.raises(AssertionError, match="is off by"):
        compare(case, arrays, {key: x.astype("f4") for key, x in mutant(case, arrays).items()})


@KINDS
def test_shorter_sequences_need_no_more_scratch(channels, bonus):
    """Packed ones share scratch that was measured for them in one; gates cut every token."""
    for n in range(1, 40):
        case = Case(n + 1, 12, 40, channels=channels, bonus=bonus, gates="strong")
        arrays = make(case)
        arrays["g"] = np.full_like(arrays["g"], -70.0)
        c = np.ones((n + 1, 40), arrays["v"].dtype)
        more = {"bonus": arrays["bonus"]} if bonus else {}
        operands = [arrays[name] for name in "qkvg"]
        packed = linattn.gated_backward(*operands, c, cu_seqlens=[0, n, n + 1], **more)
        for begin, end in ((0, n), (n, n + 1)):
            alone = linattn.gated_backward(*(x[begin:end] for x in operands), c[begin:end], **more)
            for x, y in zip(packed[:4], alone[:4], strict=True):
                np.testing.assert_array_equal(x[begin:end], y)
