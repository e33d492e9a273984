"""Bad states, lengths and packings: an error that names the argument; nothing is written."""

import numpy as np
import pytest
from states import state, tokens

import linattn
from linattn import State

N, D, M = 5, 4, 3


def refuse(name, error, *words, lead=(), **options):
    """The call fails, its message holds the function and every word; nothing has been written."""
    operands = tokens((*lead, N, D, M), dtype="float64", cotangent=name.endswith("backward"))
    out = np.full((*lead, N, M), 7.0)
    if name in ("causal", "noncausal"):
        options["out"] = out
    with pytest.raises(error) as caught:
        getattr(linattn, name)(*operands, **options)
    assert type(caught.value) in ((error,) if isinstance(error, type) else error)
    for word in (f"{name}: ", *words):
        assert word in str(caught.value), f"{word!r} is not in {str(caught.value)!r}"
    assert (out == 7).all()


def good(lead=(), dtype="float64"):
    return state((*lead, D, M), dtype=dtype)


def bad_states(lead, packed=False):
    """(error, field or word, state) for every way to be wrong."""
    s, z, _ = good(lead)
    other = good((*lead[:-1], lead[-1] + 1)) if lead else good((2,))
    yield from [
        (ValueError, ".s", State(s[..., :-1], z)),
        (ValueError, ".s", State(s[..., :-1, :], z)),
        (ValueError, ".s", State(s.swapaxes(-1, -2), z)),
        (ValueError, ".s", State(s[..., 0], z)),
        (ValueError, ".z", State(s, z[..., :-1])),
        (ValueError, ".z", State(s, s)),
        (ValueError, ".s", State(other.s, z)),
        (ValueError, ".z", State(s, other.z)),
        (ValueError, ".s", State(s[None, None], z)),
        (ValueError, ".z", State(s, None)),
        (ValueError, ".log_scale", State(s, z, z)),
        (TypeError, ".s", State(s.astype("f4"), z)),
        (TypeError, ".z", State(s, z.astype("f4"))),
        (TypeError, ".s", State(s.astype("c16"), z)),
        (TypeError, ".s", State(s.astype(">f8"), z)),
        (TypeError, ".s", State(s.tolist(), z)),
        (TypeError, ".z", State(s, z.tolist())),
        (TypeError, ".s", State(None, z)),
        (TypeError, ".s", State(np.ma.masked_array(s, s > 0), z)),
        (TypeError, "", s),
        (TypeError, "", 3),
        (TypeError, "", (s,)),
    ]


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("causal", "initial_state"),
        ("causal_backward", "initial_state"),
        ("causal_backward", "grad_state"),
    ],
)
def test_states(name, argument):
    for lead in [(), (3,)]:
        for error, field, bad in bad_states(lead):
            refuse(name, error, argument + field, lead=lead, **{argument: bad})
        refuse(
            name, ValueError, f"{argument}.z", "None",
            lead=lead, normalize=False, **{argument: good(lead)},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("causal", "initial_state"),
        ("causal_backward", "initial_state"),
        ("causal_backward", "grad_state"),
    ],
)
def test_states_of_another_number_of_sequences(name, argument):
    """r belongs to the state's own shape: neither missing nor broadcast."""
    options = {"cu_seqlens": [0, 2, 2, 5]}
    for lead in [(), (2,)]:
        for own in [(), (1,), (2,), (4,), (*lead, 1), (*lead, 2), (*lead, 4), lead]:
            refuse(
                name, ValueError, f"{argument}.s", f"{(*lead, 3, D, M)}",
                lead=lead, **options, **{argument: good(own)},
            )  # fmt: skip
        bad = State(good((*lead, 3)).s, good((*lead, 1)).z)
        refuse(name, ValueError, f"{argument}.z", lead=lead, **options, **{argument: bad})
    refuse(name, ValueError, f"{argument}.s", **{argument: good((3,))})


KEYED = ["causal", "noncausal", "causal_backward", "noncausal_backward"]


@pytest.mark.parametrize("name", KEYED)
def test_key_lengths(name):
    for bad in (-1, 6, [-1], [6], 2**40, np.uint64(2**64 - 1), [3, 6, 0], [0, -(2**40), 0]):
        refuse(name, ValueError, "key_lengths", "0 to 5", lead=(3,), key_lengths=bad)
    for bad in ([1, 2], [[1], [2]], [[1, 2, 3]], np.zeros((2, 3), int), np.zeros((3, 1), int)):
        refuse(name, ValueError, "key_lengths", "(3,)", lead=(3,), key_lengths=bad)
    for bad in (1.0, [1.0, 2.0, 3.0], True, "3", [None], 1j, [np.nan], object()):
        refuse(name, TypeError, "key_lengths", lead=(3,), key_lengths=bad)
    refuse(name, ValueError, "key_lengths", key_lengths=[3])


@pytest.mark.parametrize("name", ["causal", "causal_backward"])
def test_cu_seqlens(name):
    for bad, word in [
        ([1, 5], "0"),
        ([-1, 5], "0"),
        ([0, 4], "5"),
        ([0, 6], "5"),
        ([0], "5"),
        ([5], "0"),
        ([0, 3, 2, 5], "decreases"),
        ([0, 7, 5], "decreases"),
        ([0, -1, 5], "decreases"),
        ([], "(sequences + 1,)"),
        (5, "(sequences + 1,)"),
        ([[0, 5]], "(sequences + 1,)"),
    ]:
        bad = np.array(bad, int)
        refuse(name, ValueError, "cu_seqlens", word, cu_seqlens=bad)
        refuse(name, ValueError, "cu_seqlens", word, lead=(2,), cu_seqlens=bad)
    for bad in ([0.0, 5.0], "05", [0, None], [False, True], object(), [0, 5j]):
        refuse(name, TypeError, "cu_seqlens", cu_seqlens=bad)


def test_step_states():
    for in_place in (True, False):
        for lead in [(), (3,)]:
            q, k, v = (x[..., 0, :] for x in tokens((*lead, 1, D, M), dtype="float64"))
            for error, field, bad in bad_states(lead):
                with pytest.raises(error) as caught:
                    linattn.step(q, k, v, bad, in_place=in_place)
                assert f"step: state{field}" in str(caught.value)
            with pytest.raises(ValueError, match=r"step: state\.z"):
                linattn.step(q, k, v, good(lead), normalize=False, in_place=in_place)


def test_step_operands():
    q, k, v = (x[..., 0, :] for x in tokens((3, 1, D, M), dtype="float64"))
    for bad, word in [
        ((q, k[:, :-1], v), "k"),
        ((q[:2], k, v), "q"),
        ((q, k, v[:2]), "v"),
        ((1.0, k, v), "q"),
        ((q, k.astype(complex), v), "k"),
        ((q, np.ma.masked_array(k), v), "k"),
    ]:
        with pytest.raises((ValueError, TypeError), match=rf"step: .*{word}"):
            linattn.step(*bad, good((3,)))
    for name in ("eps", "scale"):
        with pytest.raises(ValueError, match=name):
            linattn.step(q, k, v, good((3,)), **{name: np.nan})


def test_step_in_place():
    """A state that cannot hold the new one: read-only, broadcast, or overlapping itself."""
    q, k, v = (x[..., 0, :] for x in tokens((3, 1, D, M), dtype="float64"))

    def expect(bad, field):
        before = [np.array(x) for x in bad[:2]]
        with pytest.raises(ValueError, match=rf"step: state\.{field}"):
            linattn.step(q, k, v, bad, in_place=True)
        for x, y in zip(bad, before, strict=False):
            np.testing.assert_array_equal(x, y)

    for field in ("s", "z"):
        bad = good((3,))
        getattr(bad, field).flags.writeable = False
        expect(bad, field)
        for own in [(), (1,)]:
            expect(good((3,))._replace(**{field: getattr(good(own), field)}), field)
        one = getattr(good(), field)
        expect(good((3,))._replace(**{field: np.broadcast_to(one, (3, *one.shape))}), field)
        strides = (0, *one.strides)
        twice = np.lib.stride_tricks.as_strided(one, (3, *one.shape), strides, writeable=True)
        expect(good((3,))._replace(**{field: twice}), field)
        room = np.zeros(one.size + 2)
        window = np.lib.stride_tricks.as_strided(room, (3, *one.shape), (8, *one.strides))
        expect(good((3,))._replace(**{field: window}), field)


def test_outputs_are_not_written_before_the_checks():
    """The last check of all fails: `out` keeps what it held."""
    refuse("causal", ValueError, "initial_state.z", initial_state=State(good().s, good().z[:-1]))
    refuse(
        "causal", ValueError, "initial_state.s", "(2, 4, 3)",
        cu_seqlens=[0, 1, 5], key_lengths=3, initial_state=good((3,)),
    )  # fmt: skip


def test_stream_takes_the_options_of_one_chunk():
    """Lengths and packings count along a whole sequence, not along a chunk."""
    chunks = [tokens((N, D, M))]
    for bad in (
        {"key_lengths": 3},
        {"cu_seqlens": [0, N]},
        {"return_state": True},
        {"nonsense": 1},
    ):
        with pytest.raises(TypeError):
            list(linattn.stream(chunks, **bad))
