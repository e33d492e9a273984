"""Bad input of every operator: an error names the function and the argument; nothing is written."""

from itertools import product

import numpy as np
import pytest
from states import flat
from table import ALL, CASES, apply

import linattn
from linattn import State

KINDS = ("", "_backward", "_step")  # the first is that of `forward`
CALLS = [(case, kind) for case, kind in product(ALL, KINDS) if case.held or kind != "_step"]
EACH = pytest.mark.parametrize(("case", "kind"), CALLS, ids=str)
WITH_STATES = pytest.mark.parametrize(("case", "kind"), [x for x in CALLS if x[0].held], ids=str)
N, D, M = 5, 4, 3


def good(case, kind, lead=()):
    """Operands by name, with grad_out or a state."""
    arrays = case.operands(lead, N, d=D, m=M)
    if kind == "_backward":
        return arrays
    if kind == "_step":
        return case.token(arrays, 0) | {"state": case.state(lead, d=D, m=M)}
    del arrays["grad_out"]
    return arrays


def letters_of(case, kind):
    """The axes of what a call takes."""
    more = {"grad_out": case.output} if kind == "_backward" else {}
    return {
        x: y.replace("n", "") if kind == "_step" else y for x, y in (case.letters | more).items()
    }


def output_of(case):
    """The shape of the output without leading axes."""
    return tuple({"n": N, "h": 2, "d": D, "m": M}[x] for x in case.output)


def refuse(case, kind, error, *words, lead=(), **changed):
    """The call fails, its message has the words, and what would be written to is as before."""
    given = good(case, kind, lead) | changed
    out = np.full((*lead, *output_of(case)), 7.0)
    if not kind:
        given.setdefault("out", out)
    fields = [x for x in _arrays(given.get("state")) if x.flags.writeable]
    before = [x.copy() for x in fields]
    name = case.step if kind == "_step" else case.name + kind
    options = case.step_options if kind == "_step" else case.options
    with pytest.raises(error) as caught:
        getattr(linattn, name)(**options | ({"in_place": True} if kind == "_step" else {}) | given)
    for word in (f"{name}: ", *words):
        assert word in str(caught.value), f"{word!r} is not in {str(caught.value)!r}"
    assert (out == 7).all()
    for x, y in zip(fields, before, strict=True):
        np.testing.assert_array_equal(x, y)


def _arrays(state):
    """Those of a state, whatever it is."""
    fields = state if isinstance(state, tuple) else [state]
    return [x for x in fields if isinstance(x, np.ndarray)]


@EACH
def test_an_axis_too_long(case, kind):
    letters = letters_of(case, kind)
    for name, own in letters.items():
        for axis, letter in enumerate(own):
            if sum(letter in x for x in letters.values()) < 2:
                continue  # of any length
            x = good(case, kind)[name]
            refuse(case, kind, ValueError, **{name: np.concatenate([x, x], axis)})


@EACH
def test_too_few_axes(case, kind):
    for name, own in letters_of(case, kind).items():
        of_channels = {x.name for x in case.row.operands if x.channels} if case.row else ()
        channels = kind == "_step" and name in of_channels  # one number for all is no error
        if own and not channels and case.name != "linear_scan":  # whose axes all broadcast
            refuse(case, kind, ValueError, name, "()", **{name: 1.0})


@EACH
def test_leading_axes_that_do_not_broadcast(case, kind):
    arrays = good(case, kind)
    first, second = list(arrays)[:2]
    lead = {first: np.stack([arrays[first]] * 2), second: np.stack([arrays[second]] * 3)}
    if case.name != "causal_conv1d":  # whose weight has no leading axes
        refuse(case, kind, ValueError, **lead)


@EACH
@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda x: x.astype(complex), "complex128"),
        (lambda x: x.astype(object), "object"),
        (lambda x: x.astype("U3"), "U3"),
        (lambda x: x.astype("M8[s]"), "datetime64"),
        (lambda x: np.ma.masked_array(x, x > 0.5), "masked array"),
    ],
)
def test_types(case, kind, make, word):
    for name in letters_of(case, kind):
        if case.name == "linear_scan" and word == "complex128":
            continue
        bad = make(good(case, kind)[name])
        refuse(case, kind, TypeError, f"{name} ", word, **{name: bad})


@EACH
def test_options(case, kind):
    flags = [] if case.row is None else case.row.flags["step" if kind == "_step" else "forward"]
    for option in (x for x in flags if x != "activation"):
        for bad in (1, 0.0, None, "yes"):
            refuse(case, kind, TypeError, f"{option} is {bad!r}", **{option: bad})
    if "scale" in case.options:
        refuse(case, kind, TypeError, "scale is 'x'", scale="x")
        for bad in (np.nan, np.inf, 10**400):
            refuse(case, kind, ValueError, "scale is ", scale=bad)
    if case.row is not None and case.row.mapped:
        refuse(case, kind, ValueError, "feature_map", "elu", feature_map="tanh")
        refuse(case, kind, TypeError, "feature_map", "elu", feature_map=[1])
    if "causal" in case.options or case.name == "softmax_attention":
        refuse(case, kind, TypeError, "causal is 1", causal=1)


@WITH_STATES
def test_lengths_and_packings(case, kind):
    if kind == "_step":
        return
    refuse(case, kind, ValueError, "cu_seqlens ends with 4", cu_seqlens=[0, 4])
    refuse(case, kind, TypeError, "cu_seqlens has dtype float64", cu_seqlens=[0.0, 5.0])
    refuse(case, kind, ValueError, "cu_seqlens is not an array", cu_seqlens=[[1, 2], [3]])
    if case.row.keys:
        refuse(case, kind, ValueError, "key_lengths has values", "0 to 5", key_lengths=6)
        refuse(case, kind, TypeError, "key_lengths has dtype float64", key_lengths=2.0)
        refuse(case, kind, ValueError, "key_lengths is not an array", key_lengths=[[1, 2], [3]])


@WITH_STATES
def test_states(case, kind):
    """A field of a wrong length, dtype or type, one that is missing, and no state at all."""
    state = case.state((), d=D, m=M)
    where = ["state"] if kind == "_step" else ["initial_state"]
    where += ["grad_state"] if kind == "_backward" else []
    for key in where:
        if isinstance(state, np.ndarray):
            for wrong in (np.stack([state] * 2, -1), state[..., :-1], state[0]):
                refuse(case, kind, ValueError, f"{key} ", **{key: wrong})
            for wrong in (state.astype("f4"), state.tolist(), State(state)):
                refuse(case, kind, TypeError, f"{key} ", **{key: wrong})
            continue
        for field, x in zip(state._fields, state, strict=True):
            if x is None:
                bad = state._replace(**{field: np.zeros(())})
                refuse(case, kind, ValueError, f"{key}.{field} ", **{key: bad})
                continue
            for wrong in (np.stack([x] * 2, -1), x.astype("f4"), x.tolist(), x.astype(">f8")):
                error = ValueError if getattr(wrong, "dtype", "") == np.dtype("=f8") else TypeError
                bad = state._replace(**{field: wrong})
                refuse(case, kind, error, f"{key}.{field} ", **{key: bad})
        refuse(case, kind, TypeError, f"{key} is a ndarray", **{key: state[0]})
    if kind == "_step":
        refuse(case, kind, TypeError, "state is ", state=None)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_states_that_cannot_be_updated(case):
    """Read-only ones, and ones that all heads share."""
    state = case.state((2,), d=D, m=M)
    for x in flat(state):
        x.flags.writeable = False
    refuse(case, "_step", ValueError, "state", "read-only", lead=(2,), state=state)
    shared = apply(lambda x: np.broadcast_to(x[:1], x.shape), case.state((2,), d=D, m=M))
    refuse(case, "_step", ValueError, "state", lead=(2,), state=shared)
    alone = case.state((), d=D, m=M)
    refuse(case, "_step", ValueError, "state", "has shape", lead=(2,), state=alone)


@pytest.mark.parametrize("case", ALL, ids=str)
def test_out(case):
    right = output_of(case)
    n, *rest, m = right
    for shape in ((n + 1, *rest, m), (n, *rest, m + 1), right[1:], (), (1, *right)):
        refuse(case, "", ValueError, "out has shape", str(shape), out=np.full(shape, 7.0))
    for dtype in ("i8", "c16", "f4"):
        refuse(case, "", TypeError, "out has dtype", out=np.full(right, 7, dtype))
    refuse(case, "", TypeError, "out is a list", out=np.full(right, 7.0).tolist())
    fixed = np.full(right, 7.0)
    fixed.flags.writeable = False
    refuse(case, "", ValueError, "out is read-only", out=fixed)
    twice = np.lib.stride_tricks.as_strided(np.full(25, 7.0), right, (8,) * len(right))
    refuse(case, "", ValueError, "out repeats its memory", out=twice)
