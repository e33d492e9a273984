"""Check that gradients are the adjoint of the derivative, for any operator."""

import numpy as np
from states import flat

STEP = 1e-30  # nothing is subtracted, so that a complex step has no error but rounding


def check(forward, leaves, cotangents, gradients, rng) -> None:
    """<c, J t> = <J^T c, t> for a random direction t.

    `forward` is the twin as a function of the leaves; J t is a complex step through it.
    `gradients` are J^T c, as computed by the operator.
    """
    directions = [rng.standard_normal(x.shape) for x in leaves]
    moved = [x + 1j * STEP * t for x, t in zip(leaves, directions, strict=True)]
    with np.errstate(all="ignore"):
        results = flat(forward(*moved))
    left = [c * y.imag / STEP for c, y in zip(cotangents, results, strict=True)]
    right = [x * t for x, t in zip(flat(gradients), directions, strict=True)]
    size = sum(abs(x).sum() for x in left + right)
    assert abs(sum(x.sum() for x in left) - sum(x.sum() for x in right)) <= 1e-12 * size
