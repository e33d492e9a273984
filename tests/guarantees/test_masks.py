"""Masks of padded batches become key_lengths; those that are no prefixes are refused."""

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
    assert np.array_equal(linattn.lengths_from_mask([[], []]), [0, 0])  # without a dtype


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
        (np.zeros((2, 0)), TypeError, "float64; expected bool"),
        (np.ma.masked_array([True, True]), TypeError, "masked array"),
        (True, ValueError, r"shape \(\)"),
    ],
)
def test_other_masks_are_refused(mask, error, words):
    with pytest.raises(error, match=words):
        linattn.lengths_from_mask(mask)


def test_a_mask_is_an_unexpected_keyword():
    x = np.ones((3, 4))
    with pytest.raises(TypeError, match="unexpected keyword argument 'mask'"):
        linattn.causal(x, x, x, mask=np.ones((3, 3), bool))
