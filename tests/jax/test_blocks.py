"""``block`` of JAX's arrays: what `test_every_case` leaves to maps, errors and transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from bounds import close
from jax_cases import named
from table import BLOCKS, allowed, first_of

import linattn
import linattn.jax as la

pytestmark = pytest.mark.usefixtures("wide")
N = 11
EACH = pytest.mark.parametrize("case", first_of(BLOCKS), ids=str)
PHI = linattn.feature_maps.get("dpfp")


@EACH
@pytest.mark.parametrize("feature_map", [PHI, jnp.exp], ids=["object", "function"])
def test_maps(case, feature_map):
    """Keys that write nothing have no features, whatever the map makes of 0; 16 bits stay."""
    known = PHI if feature_map is PHI else "exp"
    for dtype in ("float64", "float16"):
        operands = case.operands((2,), N, dtype=dtype)
        o = case.having(feature_map=feature_map).call(operands, la)
        expected = case.having(feature_map=known).call(operands)
        assert o.dtype == dtype
        close(np.asarray(o, float), expected.astype(float), atol=allowed(expected))


@EACH
def test_vmap_and_one_token(case):
    operands = case.operands((2,), N)
    names = named(case, operands)
    whole = case.call(names, la)
    np.testing.assert_array_equal(jax.vmap(lambda x: case.call(x, la))(names), whole)
    single, without = (case.having(block=x).call(names, la) for x in (1, None))
    np.testing.assert_array_equal(single, without)
    assert case.call({name: x[:, :0] for name, x in names.items()}, la).shape[-2] == 0


def test_errors():
    x = jnp.ones((N, 4))
    for block, kind, text in (
        (0, ValueError, "block is 0; expected at least 1"),
        (2.0, TypeError, "block is 2.0"),
    ):
        with pytest.raises(kind, match=rf"^causal: {text}"):
            la.causal(x, x, x, block=block)
    with pytest.raises(ValueError, match=r"^gated: block is 2 and bonus is given"):
        la.gated(x, x, x, -x[:, 0], bonus=x[0], block=2)
    with pytest.raises(ValueError, match=r"^causal: key_lengths, cu_seqlens or block is given"):
        la.causal(x, x, x, block=2, axis_name="tokens")
    with pytest.raises(ValueError, match=r"^causal: cu_seqlens ends with 3; expected n = 11"):
        la.causal(x, x, x, block=2, cu_seqlens=np.array([0, 3]))
    assert "block" not in linattn.jax.noncausal.__doc__
