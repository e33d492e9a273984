"""Masks that are prefixes become key_lengths; other masks, and mask= itself, are refused."""

import inspect
from itertools import product

import numpy as np
import pytest

import linattn


@pytest.mark.parametrize("shape", [(), (4,), (2, 1, 3)])
def test_prefixes(shape):
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 6, shape)
    mask = np.arange(5) < lengths[..., None]
    got = linattn.lengths_from_mask(mask)
    assert got.dtype == np.intp and np.array_equal(got, lengths)
    assert np.array_equal(linattn.lengths_from_mask(mask.tolist()), lengths)


def test_no_tokens():
    assert np.array_equal(linattn.lengths_from_mask(np.ones((2, 0), bool)), [0, 0])
    assert linattn.lengths_from_mask(np.ones((0, 4), bool)).shape == (0,)


@pytest.mark.parametrize("name", ["causal", "noncausal"])
def test_lengths_say_what_the_mask_says(name):
    x = np.random.default_rng(0).standard_normal((3, 2, 6, 4))
    lengths = np.array([6, 2, 0])
    mask = np.arange(6) < lengths[:, None]
    f = getattr(linattn, name)
    got = f(x, x, x, key_lengths=linattn.lengths_from_mask(mask)[:, None])
    assert np.array_equal(got, f(x, x, x, key_lengths=lengths[:, None]))


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([[1, 1, 0], [0, 1, 1], [0, 0, 1]], ("mask[1] ", "False at token 0", "True at token 1")),
        ([[[1, 1, 1], [1, 0, 1]]], ("mask[0, 1] ", "False at token 1", "True at token 2")),
        ([1, 0, 0, 1], ("mask is", "False at token 1", "True at token 3", "cu_seqlens")),
    ],
)
def test_the_first_row_that_is_no_prefix_is_named(mask, words):
    with pytest.raises(ValueError, match="lengths_from_mask: ") as caught:
        linattn.lengths_from_mask(np.array(mask, bool))
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("mask", "error", "words"),
    [
        (np.ones((2, 3), int), TypeError, "int64; expected bool.* mask != 0"),
        (np.zeros((2, 3)), TypeError, "float64; expected bool.* mask == 0"),
        (np.ma.masked_array([True, True]), TypeError, "masked array"),
        (True, ValueError, r"shape \(\)"),
    ],
)
def test_other_masks_are_refused(mask, error, words):
    with pytest.raises(error, match=words):
        linattn.lengths_from_mask(mask)


#: Those of one token, which has no padding, and for which a wrapper would be a tenth of the time.
PLAIN = ("step", "log_decay")


def functions(module):
    """Those of a library that take all tokens, of which some may be padding."""
    return sorted(
        name
        for name in module.__all__
        if inspect.isfunction(f := getattr(module, name))
        and {"q", "x", "chunks"} & set(inspect.signature(f).parameters)
        and not any(part in name for part in PLAIN)
    )


#: How many functions each has.
LIBRARIES = {
    "linattn": 20,
    "linattn.torch": 10,
    "linattn.torch.distributed": 6,
    "linattn.jax": 10,
    "linattn.dask": 12,
    "linattn.mpi": 12,
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_mask_is_an_error_that_names_what_to_pass(library):
    module = pytest.importorskip(library, reason=f"{library} needs more", exc_type=ImportError)
    names = functions(module)
    assert len(names) == LIBRARIES[library], names
    x = np.ones((3, 4))
    for name, option in product(names, ("mask", "attn_mask", "key_padding_mask")):
        f = getattr(module, name)
        count = sum(p.default is p.empty for p in inspect.signature(f).parameters.values())
        with pytest.raises(TypeError) as caught:
            f(*[x] * count, **{option: np.ones((3, 3), bool)})
        assert str(caught.value).startswith(f"{name}: there is no {option}")
        assert "key_lengths" in str(caught.value) and "lengths_from_mask" in str(caught.value)


def test_other_keywords_are_pythons_errors():
    x = np.ones((3, 4))
    with pytest.raises(TypeError, match="unexpected keyword argument 'masks'"):
        linattn.causal(x, x, x, masks=None)


def test_signatures_are_the_functions_own():
    assert list(inspect.signature(linattn.step).parameters)[:4] == ["q", "k", "v", "state"]
