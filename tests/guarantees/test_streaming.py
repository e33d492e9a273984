"""Sequences in chunks give the results of the whole, in constant memory."""

import builtins
import itertools
import re
import sys
import types

import numpy as np
import pytest
from bounds import close
from states import assert_same, bound, compare, flat, oracle, state, tokens

import linattn


def join(pairs):
    """The outputs put together, and the last state."""
    parts = list(pairs)
    return [np.concatenate([o for o, _ in parts], -2), *flat(parts[-1][1])]


@pytest.mark.parametrize("normalize", [True, False])
def test_stream_equals_causal(normalize):
    """In chunks of one length, or of any."""
    options = {"normalize": normalize, "scale": 0.4, "eps": 0.01, "feature_map": "softplus"}
    ends = list(itertools.pairwise([0, 0, 1, 40, 40, 99, 100, 100]))
    for lead in [(), (2, 3)]:
        operands = tokens((*lead, 100, 6, 19))
        start = state((*lead, 6, 19), normalize=normalize)
        parts = [tuple(x[..., i:j, :] for x in operands) for i, j in ends]
        for given in ({}, {"initial_state": start}):
            expected = oracle("causal", operands, return_state=True, **options, **given)
            allowed = bound("causal", operands, return_state=True, **options, **given)
            sizes = (1, 7, 16, 50, 99, 100, 101)
            for chunks in (iter(parts), *(linattn.blocks(size, *operands) for size in sizes)):
                compare(join(linattn.stream(chunks, **options, **given)), expected, allowed)
    assert list(linattn.stream([])) == []


def test_each_chunk_is_taken_when_asked_for():
    """A generator of chunks is never ahead of its reader."""
    taken = []

    def chunks():
        for i in range(5):
            taken.append(i)
            yield tokens((10, 6, 19), seed=i)

    for i, (o, end) in enumerate(linattn.stream(chunks())):
        assert taken == list(range(i + 1))
        assert o.shape == (10, 19) and end.s.shape == (6, 19)


def test_an_error_comes_at_its_chunk():
    good, bad = tokens((10, 6, 19)), tokens((10, 6, 19))
    bad[1] = bad[1][:5]
    stream = linattn.stream([good, bad])
    o, _ = next(stream)
    assert_same(o, linattn.causal(*good))
    with pytest.raises(ValueError, match=r"k has shape \(5, 6\)"):
        next(stream)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (1, TypeError, "is a int; expected (q, k, v)"),
        (None, TypeError, "is a NoneType; expected (q, k, v)"),
        ((1, 2), ValueError, "has length 2; expected 3, (q, k, v)"),
        (np.ones((5, 4)), ValueError, "has length 5; expected 3, (q, k, v)"),
    ],
)
def test_a_chunk_that_is_not_q_k_v(bad, error, message):
    """The error says which item of the iterable it is."""
    stream = linattn.stream([tokens((10, 6, 19)), bad])
    next(stream)
    with pytest.raises(error, match="^" + re.escape(f"stream: item 1 of chunks {message}")):
        next(stream)


def test_chunks_that_cannot_be_iterated():
    """Refused at once, not with the first chunk."""
    with pytest.raises(TypeError, match=r"^stream: chunks is a int; expected an iterable of \(q,"):
        linattn.stream(1)


def test_a_stream_takes_the_options_of_one_chunk():
    """Lengths and packings count along a whole sequence, not along a chunk."""
    for bad in ({"key_lengths": 3}, {"cu_seqlens": [0, 5]}, {"return_state": True}, {"no": 1}):
        with pytest.raises(TypeError):
            list(linattn.stream([tokens((5, 4, 3))], **bad))


def test_blocks():
    x, y = np.arange(20.0).reshape(10, 2), np.arange(60.0).reshape(3, 10, 2)
    for size in (1, 3, 5, 10, 11, np.int64(4)):
        parts = list(linattn.blocks(size, x, y))
        assert len(parts) == -(-10 // size)
        assert all(np.shares_memory(a, x) and np.shares_memory(b, y) for a, b in parts)
        np.testing.assert_array_equal(np.concatenate([a for a, _ in parts]), x)
        np.testing.assert_array_equal(np.concatenate([b for _, b in parts], -2), y)
    assert list(linattn.blocks(4, np.zeros((0, 2)))) == []
    assert list(linattn.blocks(4)) == []


def test_blocks_of_lists():
    assert [a.shape for (a,) in linattn.blocks(2, [[1.0, 2.0]] * 3)] == [(2, 2), (1, 2)]


def test_blocks_refuses():
    x = np.zeros((10, 2))
    for bad in (0, -1):
        with pytest.raises(ValueError, match=rf"blocks: size is {bad}"):
            linattn.blocks(bad, x)
    for bad in (2.0, "2", None):
        with pytest.raises(TypeError, match="blocks: size is"):
            linattn.blocks(bad, x)
    with pytest.raises(ValueError, match=r"\(10, 2\), \(9, 2\)"):
        linattn.blocks(2, x, x[:9])
    with pytest.raises(ValueError, match=r"blocks: arrays\[0\] has shape \(10,\)"):
        linattn.blocks(2, x[:, 0])
    with pytest.raises(ValueError, match=r"blocks: arrays\[1\] is not an array"):
        linattn.blocks(2, x, [[1.0, 2.0], [3.0]])


def test_memory_map(tmp_path):
    """A file is read block by block; the result is that of the array."""
    q, k, v = tokens((1000, 6, 6))
    maps = []
    for i, x in enumerate((q, k, v)):
        x.tofile(tmp_path / str(i))
        maps.append(np.memmap(tmp_path / str(i), "f4", "r", shape=x.shape))
    whole = linattn.causal(q, k, v)
    out = np.memmap(tmp_path / "out", "f4", "w+", shape=v.shape)
    start = 0
    for o, _ in linattn.stream(linattn.blocks(128, *maps)):
        assert type(o) is np.ndarray
        out[start : start + len(o)] = o
        start += len(o)
    close(out, whole, rtol=1e-5, atol=1e-6)


class Bar:
    """What stands in for tqdm."""

    def __init__(self, **options):
        self.options, self.count, self.closed = options, 0, False
        bars.append(self)

    def update(self, n):
        self.count += n

    def close(self):
        self.closed = True


bars: list[Bar] = []


@pytest.fixture
def fake_tqdm(monkeypatch):
    bars.clear()
    module = types.ModuleType("tqdm.auto")
    module.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", module)


def test_progress(fake_tqdm):
    chunks = linattn.blocks(30, *tokens((100, 6, 19)))
    assert len(list(linattn.stream(chunks, progress=True, total=100))) == 4
    (bar,) = bars
    assert bar.options["total"] == 100
    assert bar.count == 100 and bar.closed


def test_progress_ends_with_the_reader(fake_tqdm):
    """A stream that is left, or fails, closes its bar."""
    stream = linattn.stream(linattn.blocks(30, *tokens((100, 6, 19))), progress=True)
    next(stream)
    stream.close()
    assert bars[0].closed
    stream = linattn.stream([(1, 2, 3)], progress=True)
    with pytest.raises(ValueError):
        next(stream)
    assert bars[1].closed


def test_progress_is_a_flag():
    with pytest.raises(TypeError, match=r"^stream: progress is 1; expected True or False"):
        linattn.stream([], progress=1)


def test_progress_without_tqdm(monkeypatch):
    genuine = builtins.__import__

    def without(name, *args, **options):
        if name.startswith("tqdm"):
            raise ImportError(name)
        return genuine(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="needs tqdm"):
        linattn.stream([], progress=True)
