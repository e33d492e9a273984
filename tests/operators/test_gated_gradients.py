"""Gradients of gated linear attention: wrong formulas and scratch."""

import numpy as np
import pytest
from gates import GATED, by_channel, compare, each_gated, oracle


def wrong_results(case, arrays):
    """What is wrong, and the results of it."""
    right, g = oracle(case, arrays), arrays["g"]
    decay = np.exp(g if by_channel(case) else g[:, None])
    changes = {
        "the next gate": {"g": np.roll(g, -1, 0)},
        "no gate": {"g": 0 * g},
        "gates rounded to four digits": {"g": g * (1 + 1e-4)},
        "decays after its write": {"k": arrays["k"] * decay},
    }
    if "bonus" in arrays:
        u, bonus = arrays["bonus"], {"bonus": np.ones_like(arrays["bonus"])}
        changes["bonus of one"] = bonus
        own = (arrays["q"] * (u - 1) * arrays["k"]).sum(-1, keepdims=True) * arrays["v"]
        plain = case._replace(letters={x: y for x, y in case.letters.items() if x != "bonus"})
        after = oracle(plain, {x: y for x, y in arrays.items() if x != "bonus"})["o"]
        yield "reads after its write", right | {"o": after + case.options["scale"] * own}
    for what, change in changes.items():
        yield what, oracle(case, arrays | change)
    for name, x in right.items():
        yield f"{name} lost", right | {name: 0 * x}
    yield "rounded too often", {name: x * (1 + 60 * 2.0**-24) for name, x in right.items()}


@pytest.mark.parametrize("case", GATED, ids=str)
def test_a_wrong_formula_fails(case):
    arrays = case.operands((), 20, m=3, dtype="float32")
    compare(case, arrays, {key: x.astype("f4") for key, x in oracle(case, arrays).items()})
    for what, results in wrong_results(case, arrays):
        with pytest.raises(AssertionError, match="is off by"):
            compare(case, arrays, {key: x.astype("f4") for key, x in results.items()})
            pytest.fail(f"{what}, and nothing was found")


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
