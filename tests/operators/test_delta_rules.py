"""What the delta rule promises: threads, instruction sets, causality, numerics, clear errors."""

import numpy as np
import pytest
from bounds import DELTA_ROUNDINGS, check_delta, close, roundings
from cases import MAPS, delta_case, make
from isas import ISAS

import linattn
from linattn.reference import delta_rule as ref

CHANNELS = pytest.mark.parametrize("channels", [False, True])


def both(case, arrays):
    """The output and the gradients."""
    *operands, g = arrays
    with np.errstate(all="ignore"):
        o = linattn.delta(*operands, **case.options)
        return [o, *linattn.delta_backward(*operands, g, **case.options)]


@pytest.mark.parametrize(
    ("lead", "n", "d", "m"),
    [((), 3000, 64, 64), ((), 300, 8, 500), ((), 40, 500, 500), ((3,), 1001, 32, 48)],
)
@CHANNELS
def test_one_to_eight_threads(threads, channels, lead, n, d, m):
    for dtype in ("float32", "float64"):
        case = delta_case(n, d, m, lead, channels, dtype=dtype)
        arrays = make(case)
        threads(1)
        expected = both(case, arrays)
        for count in range(2, 9):
            threads(count)
            for x, y in zip(both(case, arrays), expected, strict=True):
                np.testing.assert_array_equal(x, y, err_msg=f"{count} threads")


@pytest.mark.parametrize("name", ISAS)
def test_instruction_sets(isa, name):
    isa(name)
    for feature_map in MAPS:
        for dtype in ("float32", "float64"):
            for n, d, m in [(1, 1, 1), (17, 5, 3), (33, 16, 31), (70, 65, 66)]:
                check_delta(linattn, delta_case(n, d, m, (2,), n % 2 == 0, feature_map, dtype))


POSITIONS = (0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 63, 64, 69)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@CHANNELS
def test_poison_stays(channels, value):
    """Where it leaves the twin's result as it was, it changes no bit; a NaN is never lost."""
    for dtype, d, m in [("float32", 5, 17), ("float64", 72, 8)]:
        case = delta_case(70, d, m, (), channels, dtype=dtype)
        arrays = make(case)
        clean, twin_clean = both(case, arrays), twin(case, arrays)
        for which in range(5):
            for t in POSITIONS:
                bad = [x.copy() for x in arrays]
                bad[which][t] = value
                pairs = zip(both(case, bad), clean, twin(case, bad), twin_clean, strict=True)
                for x, x0, y, y0 in pairs:
                    what = f"{case}: {value} in operand {which} at {t}"
                    assert (x == x0)[y == y0].all(), what
                    assert not np.isfinite(x[np.isnan(y)]).any(), what


def twin(case, arrays):
    *operands, g = arrays
    with np.errstate(all="ignore"):
        o = ref.delta(*operands, **case.options)
        return [o, *ref.delta_backward(*operands, g, **case.options)]


def test_one_channel_keeps_to_itself():
    """Columns of the values never meet."""
    case = delta_case(70, 16, 40, (), True)
    q, k, v, beta, _ = make(case)
    clean = linattn.delta(q, k, v, beta)
    v[20, 3] = beta[33, 17] = np.nan
    o = linattn.delta(q, k, v, beta)
    rest = [i for i in range(40) if i not in (3, 17)]
    np.testing.assert_array_equal(o[:, rest], clean[:, rest])
    assert np.isnan(o[20:, 3]).all() and np.isnan(o[33:, 17]).all()


def test_divergence_is_causal():
    """Keys of norm 30 blow the memory up: inf or NaN, from some token on, and no hang."""
    case = delta_case(400, 16, 8, dtype="float32")
    q, k, v, beta, g = make(case)
    calm = linattn.delta(q, k, v, beta)
    k[100:] *= 30
    with np.errstate(all="ignore"):
        o = linattn.delta(q, k, v, beta + 1)
        mixed = linattn.delta(q, k, v, beta)
        grads = linattn.delta_backward(q, k, v, beta, g)
    np.testing.assert_array_equal(mixed[:100], calm[:100])
    assert not np.isfinite(mixed[-1]).any() and not np.isfinite(o[-1]).any()
    assert np.isfinite(grads[0][:100]).all()  # the past's queries read the past


def test_long_sequence_stays_bounded():
    """65,536 unit keys in float32, against float64, within 1e-4 of the largest entry."""
    rng = np.random.default_rng(4)
    n, d, m = 65536, 32, 16
    q, k = rng.standard_normal((2, n, d)).astype("f4")
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, beta = rng.standard_normal((n, m)).astype("f4"), rng.uniform(0, 1, n).astype("f4")
    o, state = linattn.delta(q, k, v, beta, return_state=True)
    wide, end = linattn.delta(*(x.astype("f8") for x in (q, k, v, beta)), return_state=True)
    few = slice(0, 2000)
    exact = ref.delta(q[few], k[few], v[few], beta[few])
    close(wide[few], exact, atol=roundings(2 * DELTA_ROUNDINGS, exact))
    assert abs(o - wide).max() <= 1e-4 * abs(wide).max()
    assert abs(state.s - end.s).max() <= 1e-4 * abs(end.s).max()


GOOD = {
    "q": np.ones((2, 5, 4)), "k": np.ones((2, 5, 4)), "v": np.ones((2, 5, 3)),
    "beta": np.ones((2, 5)), "grad_out": np.ones((2, 5, 3)),
}  # fmt: skip


def refuse(operator, error, *words, **changed):
    """The call fails, and its message holds every word."""
    given = {**GOOD, **changed}
    if operator == "delta":
        del given["grad_out"]
    with pytest.raises(error) as caught:
        getattr(linattn, operator)(**given)
    for word in (f"{operator}: ", *words):
        assert word in str(caught.value), f"{word!r} is not in {str(caught.value)!r}"


@pytest.mark.parametrize("operator", ["delta", "delta_backward"])
def test_bad_input(operator):
    state = linattn.State(np.zeros((2, 4, 3)))
    for shape in [(), (2, 4), (2, 5, 4), (2, 5, 2), (5, 3), (2, 3)]:
        refuse(operator, ValueError, "beta", str(shape), "(..., 5)", "(..., 5, 3)",
               beta=np.ones(shape))  # fmt: skip
    refuse(operator, ValueError, "beta", "(3, 5)", "(2,)", beta=np.ones((3, 5)))
    refuse(operator, TypeError, "beta", "complex", beta=np.ones((2, 5), complex))
    refuse(operator, TypeError, "beta", "masked", beta=np.ma.ones((2, 5)))
    refuse(operator, ValueError, "k has", "(2, 5, 9)", k=np.ones((2, 5, 9)))
    refuse(operator, ValueError, "v has", "(2, 6, 3)", v=np.ones((2, 6, 3)))
    refuse(operator, ValueError, "feature_map", "elu", feature_map="tanh")
    refuse(operator, TypeError, "feature_map", "elu", feature_map=[1])
    refuse(operator, ValueError, "scale", scale=np.nan)
    refuse(operator, ValueError, "key_lengths", "6", key_lengths=6)
    refuse(operator, ValueError, "cu_seqlens", cu_seqlens=[0, 4])
    refuse(operator, ValueError, "initial_state.z", initial_state=state._replace(z=np.zeros(4)))
    refuse(operator, TypeError, "initial_state.s", "float32",
           initial_state=linattn.State(state.s.astype("f4")))  # fmt: skip
    wrong = linattn.State(np.zeros((2, 3, 3)))
    refuse(operator, ValueError, "initial_state.s", "(2, 3, 3)", "(2, 4, 3)", initial_state=wrong)
    if operator == "delta_backward":
        refuse(operator, ValueError, "grad_out", "(2, 5, 4)", grad_out=np.ones((2, 5, 4)))
        refuse(operator, ValueError, "grad_state.s", "(2, 3, 3)", grad_state=wrong)
    else:
        refuse(operator, ValueError, "out", "(2, 5, 4)", out=np.ones((2, 5, 4)))
        refuse(operator, TypeError, "out", "float32", out=np.ones((2, 5, 3), "f4"))


def test_bad_step():
    state = linattn.State(np.zeros((2, 4, 3)))
    good = {"q": np.ones((2, 4)), "k": np.ones((2, 4)), "v": np.ones((2, 3)), "beta": np.ones(2)}
    for error, words, changed in [
        (ValueError, ("beta", "(2, 4)", "(..., 3)"), {"beta": np.ones((2, 4))}),
        (ValueError, ("beta", "(5,)", "(2,)"), {"beta": np.ones(5)}),
        (ValueError, ("k has", "(2, 3)"), {"k": np.ones((2, 3))}),
        (ValueError, ("state.s", "(2, 3, 4)"), {"state": linattn.State(np.zeros((2, 3, 4)))}),
        (ValueError, ("state.z",), {"state": state._replace(z=np.zeros((2, 4)))}),
        (ValueError, ("state.s", "leading axes"),
         {"state": linattn.State(np.zeros((4, 3))), "in_place": True}),
    ]:  # fmt: skip
        with pytest.raises(error) as caught:
            linattn.delta_step(**{**good, "state": state, **changed})
        assert all(word in str(caught.value) for word in ("delta_step: ", *words)), caught.value
