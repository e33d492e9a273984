"""The gated delta rule and DPLR against their twin, and wrong versions of them."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from bounds import close, roundings
from cases import MAPS
from gated_calls import backward, both, forward, same, states
from isas import ISAS
from layouts import LAYOUTS
from rules import (
    DPLR,
    DTYPES,
    GATED_DELTA,
    KINDS,
    ROUNDINGS,
    Case,
    check,
    compare,
    make,
    part,
)  # fmt: skip
from slow import slow

import linattn
from linattn import State
from linattn.reference import gated_rules as ref

SIZES = [
    *((n, 16, 24) for n in (0, 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33)),
    (37, 1, 3), (20, 3, 1), (5, 0, 3), (5, 4, 0), (40, 17, 15), (37, 33, 31), (70, 65, 66),
    (300, 8, 8), (70, 130, 20), (40, 200, 3),
]  # fmt: skip
STEP = 1e-30


@pytest.mark.parametrize("gates", ["strong", "resets", *slow("weak", "growing")])
@KINDS
def test_sizes(kind, gates):
    for n, d, m in SIZES:
        for dtype in DTYPES:
            case = kind._replace(n=n, d=d, m=m, lead=(2,), gates=gates, dtype=dtype)
            first, last = states(case)
            check(case)
            check(case, initial_state=first, grad_state=last)


@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("kind", GATED_DELTA)
def test_maps(kind, feature_map):
    for n, d, m in [(5, 3, 2), (37, 17, 33)]:
        for dtype in DTYPES:
            check(kind._replace(n=n, d=d, m=m, lead=(2,), feature_map=feature_map, dtype=dtype))


@pytest.mark.parametrize("kind", GATED_DELTA)
def test_map_objects(kind):
    """DPFP makes features outside: gates, erase keys and states then have their width."""
    phi = linattn.feature_maps.DPFP(nu=2)
    case = kind._replace(d=24, m=5, lead=(2,))
    arrays = make(case)
    arrays["q"], arrays["k"] = np.random.default_rng(0).standard_normal((2, 2, case.n, 6))
    arrays |= {"g": arrays["g"]}
    mapped = {**arrays, "q": phi(arrays["q"]), "k": phi(arrays["k"])}
    expected = both(ref, case, mapped)
    expected["dq"] = phi.input_gradient(arrays["q"], expected["dq"])
    expected["dk"] = phi.input_gradient(arrays["k"], expected["dk"])
    o, state = linattn.gated_delta(
        **{name: x for name, x in arrays.items() if name != "grad_out"},
        feature_map=phi, scale=0.5, return_state=True,
    )  # fmt: skip
    grads = linattn.gated_delta_backward(**arrays, feature_map=phi, scale=0.5)
    names = [f"d{name}" for name in arrays if name != "grad_out"]
    actual = {"o": o, "s": state.s, **dict(zip(names, grads, strict=True))}
    compare(actual, expected)


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


@KINDS
def test_every_entry_by_complex_step(kind):
    """Of every operand and of the initial state; the loss looks at the final state too."""
    case = kind._replace(n=6, d=3, m=2)
    if case.rule == "gated_delta":
        case = case._replace(feature_map="elu")
    arrays = make(case)
    first, last = states(case)
    grads = backward(linattn, case, arrays, initial_state=first, grad_state=last)
    given = {**arrays, "s": first.s}
    names = [name for name in given if name != "grad_out"]
    for name in names:
        for index in np.ndindex(given[name].shape):
            moved = {key: x.astype(complex) for key, x in given.items()}
            moved[name][index] += 1j * STEP
            start = State(moved.pop("s"), None)
            end = forward(ref, case, moved, initial_state=start)
            slope = ((arrays["grad_out"] * end["o"]).sum() + (last.s * end["s"]).sum()).imag / STEP
            close(grads[f"d{name}"][index], slope, atol=roundings(ROUNDINGS, *grads.values()))


@KINDS
def test_sixteen_bits(kind):
    """Computed in float32, rounded once; gates and their gradients stay float32."""
    case = kind._replace(n=70, d=16, m=24, lead=(2,), dtype="float32")
    arrays = make(case)
    half = {name: x if name == "g" else x.astype("f2") for name, x in arrays.items()}
    single = {name: x.astype("f4") for name, x in half.items()}
    actual, expected = (both(linattn, case, x) for x in (half, single))
    for name, x in actual.items():
        wide = name in ("s", "dg")
        assert x.dtype == ("f4" if wide else "f2"), name
        np.testing.assert_array_equal(x, expected[name].astype(x.dtype), err_msg=name)


@pytest.mark.parametrize("name", LAYOUTS)
@KINDS
def test_layouts(name, kind):
    """No bit depends on strides, alignment or byte order."""
    for dtype in DTYPES:
        case = kind._replace(n=37, d=17, m=21, lead=(2, 3), gates="strong", dtype=dtype)
        arrays = make(case)
        moved = {key: LAYOUTS[name](x) for key, x in arrays.items()}
        same(both(linattn, case, moved), both(linattn, case, arrays))


@pytest.mark.parametrize(
    ("lead", "n", "d", "m"), [((), 700, 64, 64), ((), 300, 8, 300), ((3,), 401, 32, 48)]
)
@KINDS
def test_threads(threads, kind, lead, n, d, m):
    for gates in ("weak", "resets"):
        case = kind._replace(lead=lead, n=n, d=d, m=m, gates=gates, dtype="float32")
        arrays = make(case)
        threads(1)
        expected = both(linattn, case, arrays)
        for count in (2, 3, 8):
            threads(count)
            same(both(linattn, case, arrays), expected, f"{count} threads")


@pytest.mark.parametrize("name", ISAS)
@KINDS
def test_instruction_sets(isa, name, kind):
    isa(name)
    for n, d, m in [(1, 1, 1), (17, 5, 3), (33, 16, 31), (70, 65, 66)]:
        for dtype in DTYPES:
            for gates in ("weak", "resets"):
                check(kind._replace(n=n, d=d, m=m, lead=(2,), gates=gates, dtype=dtype))


@pytest.fixture
def poisoned():
    linattn._linattn.poison_scratch(255)
    yield
    linattn._linattn.poison_scratch(0)


@KINDS
def test_scratch_is_written_before_it_is_read(poisoned, kind):
    for n, d, m in SIZES[::2]:
        for gates in ("weak", "resets"):
            case = kind._replace(n=n, d=d, m=m, gates=gates, dtype="float32")
            check(case, initial_state=states(case)[0], grad_state=states(case)[1])


POSITIONS = (0, 1, 3, 4, 15, 16, 17, 31, 33, 48, 63, 69)


@pytest.mark.parametrize("value", [np.nan, -np.inf, *slow(np.inf)])
@KINDS
def test_poison_stays(kind, value):
    """Where it leaves the twin's result as it was, it changes no bit; a NaN is never lost."""
    for dtype, d, m in [("float32", 5, 17), ("float64", 18, 4)]:
        case = kind._replace(n=70, d=d, m=m, gates="strong", dtype=dtype)
        arrays = make(case)
        clean, twin_clean = both(linattn, case, arrays), both(ref, case, arrays)
        for which in arrays:
            for t in POSITIONS:
                bad = {name: x.copy() for name, x in arrays.items()}
                bad[which][t] = value
                actual, twin = both(linattn, case, bad), both(ref, case, bad)
                for name, x in actual.items():
                    what = f"{case}: {value} in {which} at {t}, {name}"
                    if name in ("o", "dq"):  # others hang on all later tokens
                        end = t if which == "g" else None  # which says where chunks begin
                        unmoved = twin[name] == twin_clean[name]
                        assert (x == clean[name])[:end][unmoved[:end]].all(), what
                    if np.isnan(value):
                        assert not np.isfinite(x[np.isnan(twin[name])]).any(), what


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
