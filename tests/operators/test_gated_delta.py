"""The gated delta rule and DPLR against their twin, and wrong versions of them."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from bounds import close
from gated_calls import backward, both, forward, states
from rules import (
    DPLR,
    DTYPES,
    GATED_DELTA,
    KINDS,
    Case,
    check,
    compare,
    make,
    part,
)  # fmt: skip

import linattn
from linattn import State
from linattn.reference import gated_rules as ref

SIZES = [
    *((n, 16, 24) for n in (0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33)),
    (37, 1, 3), (20, 3, 1), (5, 0, 3), (5, 4, 0), (40, 17, 15), (37, 33, 31), (70, 65, 66),
    (300, 8, 8), (70, 130, 20), (40, 200, 3),
]  # fmt: skip


@pytest.mark.parametrize("kind", GATED_DELTA)
def test_no_gate_is_the_delta_rule(kind):
    """g = 0 and erase = phi(k): within rounding."""
    for dtype in DTYPES:
        case = kind._replace(n=70, d=17, m=20, dtype=dtype)
        arrays = make(case)
        arrays["g"] = np.zeros_like(arrays["g"])
        if case.erase:
            arrays["erase"] = arrays["k"]
        actual = both(linattn, case, arrays)
        q, k, v, beta, h = (arrays[name] for name in ("q", "k", "v", "beta", "grad_out"))
        o, state = linattn.delta(q, k, v, beta, scale=0.5, return_state=True)
        dq, dk, dv, dbeta = linattn.delta_backward(q, k, v, beta, h, scale=0.5)
        if case.erase:
            actual["dk"] = actual["dk"] + actual.pop("derase")
        del actual["dg"]
        expected = {"o": o, "s": state.s, "dq": dq, "dk": dk, "dv": dv, "dbeta": dbeta}
        compare(actual, expected)


@pytest.fixture
def poisoned():
    linattn._linattn.poison_scratch(255)
    yield
    linattn._linattn.poison_scratch(0)


POSITIONS = (0, 1, 3, 4, 15, 16, 17, 31, 33, 48, 63, 69)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1e30, -60, 5])
@KINDS
def test_gates_of_the_future(kind, value):
    """They change no bit of what lies before them."""
    case = kind._replace(n=70, d=18, m=7, gates="strong", dtype="float32")
    arrays = make(case)
    clean = forward(linattn, case, arrays)["o"]
    for t in POSITIONS:
        bad = {**arrays, "g": arrays["g"].copy()}
        bad["g"][t:] = value
        np.testing.assert_array_equal(forward(linattn, case, bad)["o"][:t], clean[:t])
        if np.isnan(value):
            assert np.isnan(forward(linattn, case, bad)["o"][t:]).all()


@pytest.mark.parametrize("kind", [*GATED_DELTA, *DPLR])
def test_resets(kind):
    """After a gate of -inf in all channels nothing is left: the rest is as if it were alone."""
    case = kind._replace(n=50, lead=(2,))
    arrays = make(case)
    start = states(case)[0]
    for t in (0, 1, 7, 16, 33, 49):
        cut = {**arrays, "g": arrays["g"].copy()}
        cut["g"][:, t] = -np.inf
        if case.rule == "dplr":  # which reads before the decay
            cut["a"] = arrays["a"].copy()
            cut["a"][:, t] = 0
        whole = forward(linattn, case, cut, initial_state=start)
        rest = forward(linattn, case, part(case, cut, t, case.n))
        compare({"o": whole["o"][:, t:], "s": whole["s"]}, rest)
        if t == case.n - 1:
            np.testing.assert_array_equal(whole["s"], rest["s"])
        grads = backward(linattn, case, cut, initial_state=start)
        assert not grads["dg"][:, t].any()
        if t > 0:
            late = {**cut, "grad_out": cut["grad_out"].copy()}
            late["grad_out"][:, :t] = 0
            assert not any(x[:, :t].any() for x in backward(linattn, case, late).values())


@KINDS
def test_long_runs_of_decay(kind):
    """Gates that keep almost all, for 20,000 tokens: float32 against float64."""
    case = kind._replace(n=20000, d=16, m=8, dtype="float32")
    arrays = make(case)
    arrays["g"] = arrays["g"] * np.float32(0.01)
    if case.erase:  # one that has nothing to do with the key makes the memory grow
        arrays["erase"] = arrays["k"] * np.float32(0.9)
    wide = {name: x.astype("f8") for name, x in arrays.items()}
    narrow, exact = both(linattn, case, arrays), both(linattn, case, wide)
    for names in (("o", "s"), tuple(name for name in exact if name.startswith("d"))):
        largest = max(abs(exact[name]).max() for name in names)
        for name in names:
            close(narrow[name], exact[name], atol=1e-4 * largest)


SCRIPT = """
import resource, sys
import linattn, numpy as np

def peak():
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

n, d = 2**18, 64
q, v, h = (np.full((n, d), 0.125, "f4") for _ in range(3))
g, beta = np.full(GATE, "f4"), np.full(n, 0.5, "f4")
few = slice(3000)
linattn.gated_delta_backward(q[few], q[few], v[few], g[few], beta[few], h[few])
before = peak()
result = linattn.gated_delta_backward(q, q, v, g, beta, h)
print((peak() - before - sum(x.nbytes for x in result)) / 2**20)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs getrusage")
@pytest.mark.parametrize(
    ("gate", "most"),
    [("n, -0.1", 8), ("n, -60.0", 8), ("n, -1e30", 20), ("(n, d), -0.1", 8), ("(n, d), -70.0", 28)],
)
def test_memory(interpreter, gate, most):
    """Some square roots of n states, with every token a chunk of its own too; never n (4 GiB)."""
    stdout, _ = interpreter(SCRIPT.replace("GATE", gate))
    assert float(stdout) <= most


def _shift(x, by):
    return np.roll(x, by, -1)


MUTANTS = {
    "gates forgotten": lambda x: {"g": 0 * x["g"]},
    "the next gate": lambda x: {"g": _shift(x["g"], -1)},
    "gates twice": lambda x: {"g": 2 * x["g"]},
    "the last gate": lambda x: {"g": _shift(x["g"], 1)},
    "gates off a little": lambda x: {"g": x["g"] * (1 + 1e-12)},
}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.parametrize("kind", [GATED_DELTA[0], DPLR[0]])
def test_mutants_fail(kind, name):
    """Wrong versions of the rules are beyond the bound."""
    case = kind._replace(n=40, gates="strong")

    def mutant(function):
        def run(**given):
            return function(**{**given, **MUTANTS[name](given)})

        return run

    names = (case.rule, f"{case.rule}_backward")
    module = SimpleNamespace(**{f: mutant(getattr(linattn, f)) for f in names})
    check(case)
    with pytest.raises(AssertionError):
        check(case, module)


@pytest.mark.parametrize("kind", [GATED_DELTA[0], GATED_DELTA[-1], *DPLR])
def test_mutants_of_gradients_fail(kind):
    case = kind._replace(gates="weak")
    arrays = make(case)
    right = backward(linattn, case, arrays)
    for name, x in right.items():
        for wrong in (np.roll(x, 1, 0), x * (1 + 1e-12), -x):
            with pytest.raises(AssertionError):
                compare({**right, name: wrong}, right, 2)


def test_grouped_heads_and_broadcasting():
    """q and k shared by groups of value heads; every gradient is summed back to its shape."""
    rng = np.random.default_rng(1)
    lead = {"q": (2, 1), "k": (2, 1), "v": (2, 3), "g": (3,), "beta": (2, 1), "erase": ()}
    inner = {"q": (20, 4), "k": (20, 4), "v": (20, 5), "g": (20,), "beta": (20,), "erase": (20, 4)}
    arrays = {name: 0.4 * rng.standard_normal((*lead[name], *inner[name])) for name in lead}
    arrays["g"] = -abs(arrays["g"])
    arrays["grad_out"] = rng.standard_normal((2, 3, 20, 5))
    case = Case(erase=True, n=20, d=4, m=5)
    actual = both(linattn, case, arrays)
    full = {
        name: np.broadcast_to(x, (2, 3, *inner.get(name, (20, 5)))) for name, x in arrays.items()
    }
    expected = both(ref, case, full)
    for name in lead:
        grad, axes = expected[f"d{name}"], []
        padded = (1,) * (2 - len(lead[name])) + lead[name]
        axes = tuple(i for i, size in enumerate(padded) if size == 1)
        expected[f"d{name}"] = grad.sum(axes).reshape(arrays[name].shape)
    compare(actual, expected)


@KINDS
def test_packed_chunks_of_one_token(kind):
    """The scratch of all tokens does for a part of them, whose square roots fall otherwise."""
    case = kind._replace(n=260, d=4, m=4, dtype="float32")
    arrays = make(case)
    arrays["g"] = np.full_like(arrays["g"], -100)
    packed = both(linattn, case, arrays, cu_seqlens=[0, 256, 260])
    alone = both(linattn, case, part(case, arrays, 0, 256))
    for name in alone.keys() - {"s"}:
        np.testing.assert_array_equal(packed[name][:256], alone[name], err_msg=name)


@pytest.mark.parametrize("name", ["gated_delta_step", "dplr_step"])
def test_steps_without_keys(name):
    """d = 0: a gate that forgets all has nowhere to be written to, and the output is 0."""
    empty, v, g = np.zeros((2, 0)), np.ones((2, 3)), np.full(2, -np.inf)
    extras = (g, np.ones(2)) if name == "gated_delta_step" else (empty, empty, g)
    o, _ = getattr(linattn, name)(empty, empty, v, *extras, State(np.zeros((2, 0, 3))))
    np.testing.assert_array_equal(o, np.zeros((2, 3)))
