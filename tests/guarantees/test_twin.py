"""Every operator against its float64 twin: sizes, maps, heads, numbers."""

import pytest
from bounds import check
from cases import BACKWARD, CROSS, FORWARD, SIZES, VARIANTS, WIDE_SIZES, Case
from slow import grid, slow

import linattn

pytestmark = pytest.mark.unsanitized


@pytest.mark.parametrize("operator", FORWARD + BACKWARD)
@grid(lambda x: x[1] != (x[2] == "float64"), variant=VARIANTS)
def test_sizes(operator, variant):
    feature_map, normalize, dtype = variant
    for n, d, m in SIZES:
        check(
            linattn,
            Case(operator, n, d, m, feature_map=feature_map, normalize=normalize, dtype=dtype),
        )


@pytest.mark.parametrize("operator", FORWARD + BACKWARD)
@pytest.mark.parametrize("normalize", [True, *slow(False)])
@pytest.mark.parametrize("dtype", ["float32", *slow("float64")])
def test_wide(operator, normalize, dtype):
    for n, d, m in WIDE_SIZES:
        check(linattn, Case(operator, n, d, m, normalize=normalize, dtype=dtype))


@pytest.mark.parametrize("operator", ["noncausal", "noncausal_backward"])
@pytest.mark.parametrize(("feature_map", "normalize", "dtype"), VARIANTS)
def test_cross_attention(operator, feature_map, normalize, dtype):
    for n, s in CROSS:
        check(
            linattn,
            Case(
                operator, n, 9, 17, s,
                feature_map=feature_map, normalize=normalize, dtype=dtype,
            ),
        )  # fmt: skip


@pytest.mark.parametrize("operator", FORWARD + BACKWARD)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_eps_and_scale(operator, dtype):
    for eps in (0.0, 1e-6, 0.3, 1e3):
        for scale in (1.0, 0.125, -0.7, 1e4, 1e-4):
            for feature_map in ("elu", "exp"):
                check(
                    linattn,
                    Case(
                        operator, 19, 5, 6,
                        feature_map=feature_map, eps=eps, scale=scale, dtype=dtype,
                    ),
                )  # fmt: skip
    check(linattn, Case(operator, 19, 5, 6, normalize=False, scale=-0.7, dtype=dtype))
    check(linattn, Case(operator, 19, 5, 6, normalize=False, scale=0.0, dtype=dtype))
