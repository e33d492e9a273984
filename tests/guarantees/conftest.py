"""Fixtures of the guarantees."""

import numpy as np
import pytest
from stages import forced
from states import assert_same


@pytest.fixture
def stages(threads):
    """compute(call, ...): the results of one thread, compared with those of stages."""

    def compute(f, *operands, counts=((2, 1), (3, 4), (8, 3), (8, 50)), **options):
        threads(1)
        with np.errstate(all="ignore"):
            expected = f(*operands, **options)
            for count, chunks in counts:
                threads(count)
                with forced(chunks):
                    found = f(*operands, **options)
                assert_same(found, expected, f"{count} threads, groups of {chunks} chunks")
        return expected

    return compute
