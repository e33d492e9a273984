"""What gated delta rules do alone: long decays, short chunks, steps without keys."""

import numpy as np
import pytest
from bounds import close
from gates import DPLR, GATED_DELTA, compare_rules, each_rule

import linattn
from linattn import State


@pytest.mark.unsanitized
@each_rule
def test_long_runs_of_decay(case):
    """Gates that keep almost all, for 20,000 tokens: float32 against float64."""
    arrays = case.operands((), 20000, d=16, m=8, dtype="float32")
    arrays["g"] = arrays["g"] * np.float32(0.01)
    if "erase" in case.letters:  # one that has nothing to do with the key makes the memory grow
        arrays["erase"] = arrays["k"] * np.float32(0.9)
    wide = {name: x.astype("f8") for name, x in arrays.items()}
    narrow, exact = case.named(arrays), case.named(wide)
    for names in (("o", "s"), tuple(name for name in exact if name.startswith("d"))):
        largest = max(abs(exact[name]).max() for name in names)
        for name in names:
            close(narrow[name], exact[name], atol=1e-4 * largest)


@each_rule
def test_packed_chunks_of_one_token(case):
    """The scratch of all tokens does for a part of them, whose square roots fall otherwise."""
    arrays = case.operands((), 260, d=4, m=4, dtype="float32")
    arrays["g"] = np.full_like(arrays["g"], -100)
    packed = case.results(arrays, cu_seqlens=[0, 256, 260])
    for x, y in zip(packed, case.results(case.rows(arrays, 0, 256)), strict=True):
        if len(x) == 260:
            np.testing.assert_array_equal(x[:256], y)


@pytest.mark.parametrize("name", ["gated_delta_step", "dplr_step"])
def test_steps_without_keys(name):
    """d = 0: a gate that forgets all has nowhere to be written to, and the output is 0."""
    empty, v, g = np.zeros((2, 0)), np.ones((2, 3)), np.full(2, -np.inf)
    extras = (g, np.ones(2)) if name == "gated_delta_step" else (empty, empty, g)
    o, _ = getattr(linattn, name)(empty, empty, v, *extras, State(np.zeros((2, 0, 3))))
    np.testing.assert_array_equal(o, np.zeros((2, 3)))


@pytest.mark.parametrize("case", [GATED_DELTA[0], GATED_DELTA[-1], *DPLR], ids=str)
def test_wrong_results_are_found(case):
    """By the comparison of results of these rules."""
    right = case.named(case.operands((), 40, d=6))
    for name, x in right.items():
        for wrong in (np.roll(x, 1, 0), x * (1 + 1e-12), -x):
            with pytest.raises(AssertionError):
                compare_rules({**right, name: wrong}, right, 2)
