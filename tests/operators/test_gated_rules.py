"""What gated linear attention promises: threads, instruction sets, causality, numerics, errors."""

import numpy as np
import pytest
from bounds import close, roundings
from cases import DTYPES, MAPS
from gated_calls import both, forward, oracle, states
from gates import KINDS, ROUNDINGS, Case, check, compare, make
from isas import ISAS
from slow import slow

import linattn
from linattn import State
from linattn.reference import gated_attention as ref


@pytest.mark.parametrize(
    ("lead", "n", "d", "m"),
    [((), 3000, 64, 64), ((), 300, 8, 500), ((), 40, 300, 300), ((3,), 1001, 32, 48)],
)
@KINDS
def test_one_to_eight_threads(threads, channels, bonus, lead, n, d, m):
    for dtype in DTYPES:
        case = Case(n, d, m, lead, channels, bonus, dtype=dtype)
        arrays = make(case)
        threads(1)
        expected = both(linattn, case, arrays)
        for count in (2, 3, 5, 8):
            threads(count)
            for name, x in both(linattn, case, arrays).items():
                np.testing.assert_array_equal(x, expected[name], err_msg=f"{name}, {count}")


@pytest.mark.parametrize("name", ISAS)
@KINDS
def test_instruction_sets(isa, name, channels, bonus):
    isa(name)
    for feature_map in MAPS:
        for dtype in DTYPES:
            for n, d, m in [(1, 1, 1), (17, 5, 3), (33, 16, 31), (70, 65, 66)]:
                gates = "resets" if n % 2 else "weak"
                check(linattn, Case(n, d, m, (2,), channels, bonus, gates, feature_map, dtype))


POSITIONS = (0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 69)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@KINDS
def test_poison_stays(channels, bonus, value):
    """Where it leaves the twin's result as it was, it changes no bit; a NaN is never lost."""
    for dtype, d, m in [("float32", 5, 17), ("float64", 72, 8)]:
        case = Case(70, d, m, (), channels, bonus, dtype=dtype)
        arrays = make(case)
        clean, twin_clean = (both(f, case, arrays) for f in (linattn, ref))
        for which in ("q", "k", "v", "g", "grad_out"):
            for t in POSITIONS:
                bad = {name: x.copy() for name, x in arrays.items()}
                bad[which][t] = value
                kernel, twin = (both(f, case, bad) for f in (linattn, ref))
                for name, x in kernel.items():
                    what = f"{case}: {value} in {which} at {t}: {name}"
                    # A gate may say where chunks begin, which the bits after it depend on.
                    end = t if which == "g" else None
                    if end is None or name in ("o", "dq"):
                        unmoved = (twin[name] == twin_clean[name])[:end]
                        assert (x == clean[name])[:end][unmoved].all(), what
                    assert not np.isfinite(x[np.isnan(twin[name])]).any(), what


@pytest.mark.parametrize("value", [np.nan, -np.inf, -1e30, -60.0, 80.0])
@KINDS
def test_later_gates_change_no_bit(channels, bonus, value):
    for dtype, d in [("float32", 5), ("float32", 64), ("float64", 72), ("float32", 200)]:
        case = Case(140, d, 20, (), channels, bonus, dtype=dtype)
        arrays = make(case)
        clean = forward(linattn, case, arrays)["o"]
        for t in (*POSITIONS, 100, 127, 128, 139):
            bad = {**arrays, "g": arrays["g"].copy()}
            bad["g"][t:] = value
            o = forward(linattn, case, bad)["o"]
            # With a bonus o_t is of the memory before its gate, which may begin a chunk there.
            end = t + (bonus and not channels and value in (np.nan, -60))
            np.testing.assert_array_equal(o[:end], clean[:end], err_msg=str(t))


@KINDS
def test_a_nan_gate_passes_through(channels, bonus):
    """All that comes after it is NaN; of one channel's, what reads that channel."""
    case = Case(50, 6, 4, (), channels, bonus)
    arrays = make(case)
    arrays["g"][20] = np.nan
    result = forward(linattn, case, arrays)
    first = 20 + bonus
    assert np.isnan(result["o"][first:]).all() and np.isfinite(result["o"][:first]).all()
    assert np.isnan(result["s"]).all()


@KINDS
def test_a_reset_begins_anew(channels, bonus):
    """After a gate of -inf, or one that leaves nothing, only the tokens from there on count."""
    for dtype, value in [("float32", -np.inf), ("float32", -1e30), ("float64", -np.inf)]:
        case = Case(70, 17, 9, (), channels, bonus, dtype=dtype)
        arrays = make(case)
        for t in (0, 1, 5, 16, 33, 69):
            arrays["g"] = make(case)["g"]
            arrays["g"][t] = value
            after = {
                name: x if name == "bonus" else x[t:] for name, x in arrays.items()
            }  # fmt: skip
            first, _ = states(case)
            o = forward(linattn, case, arrays, initial_state=first)
            alone = forward(linattn, case, after)
            begin = bonus  # with a bonus the token still reads what was there before
            size = abs(alone["o"]).max(initial=0) + abs(alone["s"]).max()
            allowed = roundings(2 * ROUNDINGS["o"], np.array(size, dtype)) * case.d**0.5
            close(o["o"][t + begin :], alone["o"][begin:], atol=allowed)
            close(o["s"], alone["s"], atol=allowed)
            if t == case.n - 1:
                np.testing.assert_array_equal(o["s"], np.outer(arrays["k"][t], arrays["v"][t]))
            grads = both(linattn, case, arrays, initial_state=first)
            assert not grads["dg"][t].any()
            assert bonus or not (grads["ds"].any() and t == 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [False, True])
def test_no_decay_is_causal(dtype, channels):
    """With gates of 0 it is the sum, within the rounding of either."""
    for n, d, m in [(40, 5, 6), (700, 64, 16), (300, 70, 20)]:
        arrays = make(Case(n, d, m, (2,), channels, dtype=dtype))
        q, k, v, g, c = arrays.values()
        options = {"feature_map": "elu", "scale": 0.5}
        o, state = linattn.gated(q, k, v, 0 * g, **options, return_state=True)
        grads = linattn.gated_backward(q, k, v, 0 * g, c, **options)
        options["normalize"] = False
        plain, end = linattn.causal(q, k, v, **options, return_state=True)
        close(o, plain, atol=roundings(2 * ROUNDINGS["o"], plain) * n**0.5)
        close(state.s, end.s, atol=roundings(2 * ROUNDINGS["s"], end.s))
        for x, y in zip(grads, linattn.causal_backward(q, k, v, c, **options), strict=False):
            close(x, y, atol=roundings(2 * ROUNDINGS["gradients"], y) * n**0.5)


@pytest.mark.parametrize("decay", [-1e-4, *slow(-3e-3)])
@pytest.mark.parametrize("channels", [False, True])
def test_slow_decay_of_a_long_sequence(decay, channels):
    """Equal gates round alike in every chunk: the errors must not add up over thousands."""
    rng = np.random.default_rng(3)
    n, d, m = 30_000, 3, 2
    arrays = {name: rng.uniform(0.5, 1, (n, d)).astype("f4") for name in "qk"}
    arrays |= {name: rng.uniform(0.5, 1, (n, m)).astype("f4") for name in ("v", "grad_out")}
    arrays["g"] = np.full((n, d) if channels else n, decay, "f4")
    arrays = {name: arrays[name] for name in ("q", "k", "v", "g", "grad_out")}
    compare(case := Case(n, d, m, channels=channels), arrays, both(linattn, case, arrays))


@pytest.mark.parametrize("rule", ["gated", "gated_delta"])
def test_nothing_is_lost_across_fast_decay(rule):
    """After chunks that keep less than half, the state alone determines what follows.

    What slow decay lost to rounding before must not return.
    """
    slow, fast, d = 400, 32, 16  # whole chunks
    rng = np.random.default_rng(1)
    n, cut = 2 * slow + fast, slow + fast
    operands = [*rng.uniform(0.5, 1, (3, n, d)), np.full(n, -1e-3)]
    operands[1] /= d
    operands[3][slow:cut] = -0.2
    if rule == "gated_delta":
        operands.append(rng.uniform(0.5, 1, n))
    operands = [x.astype("f4") for x in operands]
    call = getattr(linattn, rule)
    whole, last = call(*operands, return_state=True)
    _, state = call(*(x[:cut] for x in operands), return_state=True)
    rest, end = call(*(x[cut:] for x in operands), initial_state=state, return_state=True)
    np.testing.assert_array_equal(whole[cut:], rest)
    np.testing.assert_array_equal(last.s, end.s)


def test_strong_gates_sum_to_hundreds():
    """Exponents far out of float32's range, in runs and from token to token."""
    for pattern in ([-60], [-60, 0, 0], [-300, -0.1], [-80, -20, -1, 0], [-1e30, 0], [30, -30]):
        for channels in (False, True):
            case = Case(100, 8, 4, channels=channels)
            arrays = make(case)
            g = np.resize(np.array(pattern, "f4"), case.n)
            arrays["g"] = np.stack([np.roll(g, i) for i in range(8)], -1) if channels else g
            compare(case, arrays, both(linattn, case, arrays))


def test_nothing_to_do():
    for n, d, m in [(0, 4, 3), (5, 0, 3), (5, 4, 0)]:
        for channels in (False, True):
            case = Case(n, d, m, (2,), channels, True)
            arrays = make(case)
            result = both(linattn, case, arrays)
            assert {name: x.shape for name, x in result.items()} == {
                name: x.shape for name, x in oracle(case, arrays).items()
            }
            assert not any(x.any() for name, x in result.items())


GOOD = {
    "q": np.ones((2, 5, 4)), "k": np.ones((2, 5, 4)), "v": np.ones((2, 5, 3)),
    "g": np.ones((2, 5)), "grad_out": np.ones((2, 5, 3)),
}  # fmt: skip


def refuse(operator, error, *words, **changed):
    """The call fails, and its message holds every word."""
    given = {**GOOD, **changed}
    if operator == "gated":
        del given["grad_out"]
    with pytest.raises(error) as caught:
        getattr(linattn, operator)(**given)
    for word in (f"{operator}: ", *words):
        assert word in str(caught.value), f"{word!r} is not in {str(caught.value)!r}"


@pytest.mark.parametrize("operator", ["gated", "gated_backward"])
def test_bad_input(operator):
    state = State(np.zeros((2, 4, 3)))
    for shape in [(), (2, 4), (2, 5, 3), (2, 5, 2), (5, 4), (2, 3)]:
        refuse(operator, ValueError, "g has", str(shape), "(..., 5)", "(..., 5, 4)",
               g=np.ones(shape))  # fmt: skip
    refuse(operator, ValueError, "g has", "(3, 5)", "(2,)", g=np.ones((3, 5)))
    refuse(operator, TypeError, "g has", "complex", g=np.ones((2, 5), complex))
    refuse(operator, TypeError, "g is", "masked", g=np.ma.ones((2, 5)))
    for shape in [(), (3,), (2, 3), (4, 1)]:
        refuse(operator, ValueError, "bonus", str(shape), "(..., 4)", bonus=np.ones(shape))
    refuse(operator, ValueError, "bonus", "(3, 4)", "(2,)", bonus=np.ones((3, 4)))
    refuse(operator, TypeError, "bonus", "complex", bonus=np.ones(4, complex))
    refuse(operator, ValueError, "k has", "(2, 5, 9)", k=np.ones((2, 5, 9)))
    refuse(operator, ValueError, "v has", "(2, 6, 3)", v=np.ones((2, 6, 3)))
    refuse(operator, ValueError, "feature_map", "elu", feature_map="tanh")
    refuse(operator, ValueError, "scale", scale=np.nan)
    refuse(operator, ValueError, "key_lengths", "6", key_lengths=6)
    refuse(operator, ValueError, "cu_seqlens", cu_seqlens=[0, 4])
    refuse(operator, ValueError, "initial_state.z", initial_state=state._replace(z=np.zeros(4)))
    refuse(operator, TypeError, "initial_state.s", "float32",
           initial_state=State(state.s.astype("f4")))  # fmt: skip
    wrong = State(np.zeros((2, 3, 3)))
    refuse(operator, ValueError, "initial_state.s", "(2, 3, 3)", "(2, 4, 3)", initial_state=wrong)
    if operator == "gated_backward":
        refuse(operator, ValueError, "grad_out", "(2, 5, 4)", grad_out=np.ones((2, 5, 4)))
        refuse(operator, ValueError, "grad_state.s", "(2, 3, 3)", grad_state=wrong)
    else:
        refuse(operator, ValueError, "out", "(2, 5, 4)", out=np.ones((2, 5, 4)))
        refuse(operator, TypeError, "out", "float32", out=np.ones((2, 5, 3), "f4"))


def test_bad_step():
    state = State(np.zeros((2, 4, 3)))
    good = {"q": np.ones((2, 4)), "k": np.ones((2, 4)), "v": np.ones((2, 3)), "g": np.ones(2)}
    for error, words, changed in [
        (ValueError, ("g has", "(2, 3)", "(..., 4)"), {"g": np.ones((2, 3))}),
        (ValueError, ("g has", "(5,)", "(2,)"), {"g": np.ones(5)}),
        (ValueError, ("bonus", "(3,)", "(..., 4)"), {"bonus": np.ones(3)}),
        (ValueError, ("k has", "(2, 3)"), {"k": np.ones((2, 3))}),
        (ValueError, ("state.s", "(2, 3, 4)"), {"state": State(np.zeros((2, 3, 4)))}),
        (ValueError, ("state.z",), {"state": state._replace(z=np.zeros((2, 4)))}),
    ]:
        with pytest.raises(error) as caught:
            linattn.gated_step(**{**good, "state": state, **changed})
        assert all(word in str(caught.value) for word in ("gated_step: ", *words)), caught.value
