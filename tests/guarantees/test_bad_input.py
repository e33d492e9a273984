"""Bad input of every operator: an error names the function and the argument; nothing is written."""

import inspect
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from slow import each
from states import assert_same, flat
from table import ALL, BLOCKS, MAPPED, apply, first_of, with_objects

import linattn
from linattn import State

pytestmark = pytest.mark.any_isa

KINDS = ("", "_backward", "_step")  # the first is that of `forward`
EVERY = ALL + MAPPED + first_of(BLOCKS)
HELD = [x for x in EVERY if x.held]
N, D, M = 5, 4, 3


def each_call(cases, *axes):
    """A test of each case, which runs every kind of call with each of the values of the axes."""

    def decorate(test):
        def run(case):
            for kind, *values in product(KINDS, *axes):
                if kind != "_step" or (case.held and "block" not in case.options):
                    test(case, kind, *values)

        return each(cases)(run)

    return decorate


DRAWN = {}


def good(case, kind, lead=()):
    """Operands by name, with grad_out or a state: copies, drawn once for many calls."""
    key = str(case), kind, lead
    if key not in DRAWN:
        DRAWN[key] = drawn(case, kind, lead)
    return {x: apply(np.copy, y) for x, y in DRAWN[key].items()}


def drawn(case, kind, lead):
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


def name_of(case, kind):
    return case.step if kind == "_step" else case.name + kind


def call(case, kind, given, **more):
    options = case.step_options if kind == "_step" else case.options
    options = with_objects(options, {"q": np.empty(D)})
    return getattr(linattn, name_of(case, kind))(**options | given | more)


def refuse(case, kind, error, *words, lead=(), **changed):
    """The call fails, its message has the words, and what would be written to is as before.

    A step fails in place and otherwise.
    """
    given = good(case, kind, lead) | changed
    out = np.full((*lead, *output_of(case)), 7.0)
    if not kind:
        given.setdefault("out", out)
    fields = [x for x in _arrays(given.get("state")) if x.flags.writeable]
    before = [x.copy() for x in fields]
    for way in ({"in_place": True}, {"in_place": False}) if kind == "_step" else ({},):
        with pytest.raises(error) as caught:
            call(case, kind, given, **way | changed)
        for word in (f"{name_of(case, kind)}: ", *words):
            assert word in str(caught.value), f"{word!r} is not in {str(caught.value)!r}"
    assert (out == 7).all()
    assert_same(fields, before)


def _arrays(state):
    """Those of a state, whatever it is."""
    fields = state if isinstance(state, tuple) else [state]
    return [x for x in fields if isinstance(x, np.ndarray)]


@each_call(EVERY)
def test_an_axis_too_long(case, kind):
    letters = letters_of(case, kind)
    for name, own in letters.items():
        for axis, letter in enumerate(own):
            if sum(letter in x for x in letters.values()) < 2:
                continue  # of any length
            x = good(case, kind)[name]
            refuse(case, kind, ValueError, **{name: np.concatenate([x, x], axis)})


@each_call(EVERY)
def test_too_few_axes(case, kind):
    for name, own in letters_of(case, kind).items():
        of_channels = {x.name for x in case.row.operands if x.channels} if case.row else ()
        channels = kind == "_step" and name in of_channels  # one number for all is no error
        if own and not channels and case.name != "linear_scan":  # whose axes all broadcast
            refuse(case, kind, ValueError, name, "()", **{name: 1.0})


@each_call(EVERY)
def test_leading_axes_that_do_not_broadcast(case, kind):
    arrays = good(case, kind)
    first, second = list(arrays)[:2]
    lead = {first: np.stack([arrays[first]] * 2), second: np.stack([arrays[second]] * 3)}
    if case.name != "causal_conv1d":  # whose weight has no leading axes
        refuse(case, kind, ValueError, **lead)


#: What makes an array of another type, and a word of the error.
TYPES = [
    (lambda x: x.astype(complex), "complex128"),
    (lambda x: x.astype(object), "object"),
    (lambda x: x.astype("U3"), "U3"),
    (lambda x: x.astype("S3"), "S3"),
    (lambda x: x.astype("longdouble"), np.dtype("longdouble").name),
    (lambda x: x.astype("M8[s]"), "datetime64"),
    (lambda x: np.ma.masked_array(x, x > 0.5), "masked array"),
]
if np.finfo(np.longdouble).nmant == np.finfo(float).nmant:  # then it is one that is taken
    TYPES = [x for x in TYPES if x[1] != np.dtype("longdouble").name]


@each_call(EVERY)
def test_types(case, kind):
    for (make, word), name in product(TYPES, letters_of(case, kind)):
        if case.name == "linear_scan" and word == "complex128":
            continue
        bad = make(good(case, kind)[name])
        refuse(case, kind, TypeError, f"{name} ", word, **{name: bad})


@each_call(EVERY)
def test_masked_operands(case, kind):
    """The error proposes key_lengths where the function takes them."""
    takes = "key_lengths" in inspect.signature(getattr(linattn, name_of(case, kind))).parameters
    way = "(fill it first, or use key_lengths)" if takes else "(fill it first)"
    name, first = next(iter(good(case, kind).items()))
    refuse(case, kind, TypeError, f"{name} is a masked array", way, **{name: np.ma.array(first)})


@each_call(EVERY)
def test_ragged_lists(case, kind):
    for name, own in letters_of(case, kind).items():
        if len(own) > 1:
            refuse(case, kind, ValueError, name, "inhomogeneous", **{name: [[1.0, 2.0], [3.0]]})


@each(EVERY)
def test_a_cotangent_of_another_shape(case):
    """It does not broadcast, unlike operands."""
    right = good(case, "_backward")["grad_out"].shape
    for shape in ((1, *right[1:]), (*right[:-1], 1), right[1:], (2, *right)):
        bad = np.ones(shape)
        refuse(case, "_backward", ValueError, "grad_out has shape", str(shape), grad_out=bad)


#: Classes of maps, and the map that an error proposes in place of one.
CLASSES = [
    ("taylor", "such as Taylor()"),
    (linattn.feature_maps.Taylor, "such as Taylor()"),
    ("PositiveRandomFeatures", "such as PositiveRandomFeatures.sample(...)"),
    (linattn.feature_maps.FeedforwardKernel, "such as FeedforwardKernel(...)"),
]


@pytest.mark.parametrize(("given", "hint"), CLASSES, ids=str)
def test_a_class_of_maps(given, hint):
    error = ValueError if isinstance(given, str) else TypeError
    with pytest.raises(error, match="^get: feature_map is .*" + hint.partition("(")[0]):
        linattn.feature_maps.get(given)


@each_call(EVERY)
def test_options(case, kind):
    flags = [] if case.row is None else case.row.flags["step" if kind == "_step" else "forward"]
    for option in (x for x in flags if x != "activation"):
        for bad in (1, 0.0, None, "yes"):
            refuse(case, kind, TypeError, f"{option} is {bad!r}", **{option: bad})
    if "block" in case.options and kind != "_step":
        for bad in (2.0, True, "3", [3], np.array([3])):
            refuse(case, kind, TypeError, "block is ", "expected an integer", block=bad)
        for bad in (-1, 0):
            refuse(case, kind, ValueError, f"block is {bad}; expected at least 1", block=bad)
    if case.row is not None and case.row.mapped:
        refuse(case, kind, ValueError, "feature_map", "elu", feature_map="tanh")
        for bad in ([1], None, 3, np.tanh):
            known = *linattn.feature_maps.NAMES, "or an object of linattn.feature_maps"
            refuse(case, kind, TypeError, "feature_map", *known, feature_map=bad)
        for bad, hint in CLASSES:  # by name or as such
            error = ValueError if isinstance(bad, str) else TypeError
            refuse(case, kind, error, "feature_map", hint, feature_map=bad)
    if "causal" in case.options or case.name == "softmax_attention":
        refuse(case, kind, TypeError, "causal is 1", causal=1)


NO_NUMBERS = ("x", "1e-6", np.array("2"), bytearray(b"2"), np.datetime64(1, "s"), None, 1j,
              np.complex64(1 + 2j), [1.0, 2.0], [[1.0], []], np.ones(3))  # fmt: skip


def scalars(case):
    """Names of the real numbers that a call takes."""
    normalizer = case.row is not None and case.row.normalizer
    return ["scale"] * ("scale" in case.options) + ["eps"] * normalizer


@each_call(EVERY)
def test_scalars(case, kind):
    for name in scalars(case):
        for bad in (x for x in NO_NUMBERS if x is not None or case.name != "mlstm"):
            refuse(case, kind, (TypeError, ValueError), f" {name} ", **{name: bad})
        for bad, word in ((np.nan, "nan"), (np.inf, "inf"), (-np.inf, "inf")):
            refuse(case, kind, ValueError, f" {name} ", word, **{name: bad})
        for bad in (10**400, -(10**400), 10**5000, Fraction(10**400)):  # and no warning comes first
            refuse(case, kind, ValueError, f" {name} ", "finite", **{name: bad})
    if "eps" in scalars(case):
        for bad in (-1.0, -1e-300, -1, np.float32(-1)):
            refuse(case, kind, ValueError, "eps is -", "number >= 0", eps=bad)
        call(case, kind, good(case, kind), eps=-0.0)


@each_call(EVERY, ["f2", "f4", "f8"])
def test_scalars_beyond_the_range(case, kind, dtype):
    """Of the type that the operands are computed in."""
    wide = "f4" if dtype == "f2" else dtype
    given = {name: x.astype(dtype) for name, x in good(case, kind).items() if name != "state"}
    if kind == "_step":
        given["state"] = apply(lambda x: x.astype(wide), case.state((), d=D, m=M))
    for name in scalars(case):
        for bad in (1e300, -1e39, np.float64(1e300), 10**300) if dtype != "f8" else ():
            with pytest.raises(ValueError, match=rf"{name} is .*finite in float32"):
                call(case, kind, given, **{name: bad})
        with np.errstate(all="ignore"):
            call(case, kind, given, **{name: 3.4e38 if dtype != "f8" else 1e300})


@each_call(EVERY)
def test_options_are_keywords(case, kind):
    given = good(case, kind)
    with pytest.raises(TypeError, match="epsilon"):
        call(case, kind, given, epsilon=1e-6)
    with pytest.raises(TypeError):
        getattr(linattn, name_of(case, kind))(*given.values(), "elu")


CU_SEQLENS = [  # and what the error says
    ([1, 5], "begins with 1"), ([-1, 5], "begins with -1"), ([5], "begins with 5"),
    ([0, 4], "ends with 4"), ([0, 6], "ends with 6"), ([0], "ends with 0"),
    ([0, 3, 2, 5], "decreases"), ([0, 7, 5], "decreases"), ([0, -1, 5], "decreases"),
    ([], "(sequences + 1,)"), (5, "(sequences + 1,)"), ([[0, 5]], "(sequences + 1,)"),
]  # fmt: skip
NO_INTEGERS = ([0.0, 5.0], "05", [0, None], [False, True], object(), [0, 5j])


@each_call(HELD, [(), (3,)])
def test_cu_seqlens(case, kind, lead):
    if kind == "_step":
        return
    for bad, word in CU_SEQLENS:
        bad = np.array(bad, int)
        refuse(case, kind, ValueError, "cu_seqlens", word, lead=lead, cu_seqlens=bad)
    for bad in NO_INTEGERS:
        refuse(case, kind, TypeError, "cu_seqlens", lead=lead, cu_seqlens=bad)
    ragged = [[1, 2], [3]]
    refuse(case, kind, ValueError, "cu_seqlens is not an array", lead=lead, cu_seqlens=ragged)


@each_call([x for x in EVERY if x.row and x.row.keys])
def test_key_lengths(case, kind):
    if kind == "_step":
        return
    wild = (-1, 6, [-1], [6], 2**40, np.uint64(2**64 - 1), [3, 6, 0], [0, -(2**40), 0])
    for bad in wild:
        words = "key_lengths has values", f"0 to {8 if case.row.cross else 5}"
        bad = 9 if case.row.cross and bad == 6 else bad
        if not (case.row.cross and np.isin(6, bad)):
            refuse(case, kind, ValueError, *words, lead=(3,), key_lengths=bad)
    for bad in ([1, 2], [[1], [2]], [[1, 2, 3]], np.zeros((2, 3), int), np.zeros((3, 1), int)):
        refuse(case, kind, ValueError, "key_lengths", "(3,)", lead=(3,), key_lengths=bad)
    for bad in (1.0, [1.0, 2.0, 3.0], True, "3", [None], 1j, [np.nan], object()):
        refuse(case, kind, TypeError, "key_lengths", lead=(3,), key_lengths=bad)
    refuse(case, kind, ValueError, "key_lengths", key_lengths=[3])
    refuse(case, kind, ValueError, "key_lengths is not an array", key_lengths=[[1, 2], [3]])


def wrong_fields(x, lead):
    """What no field of a state can be in place of x, and the error."""
    yield from ((ValueError, np.stack([x] * 2, -1)), (ValueError, x[None, None]))
    if x.ndim > len(lead):
        yield from ((ValueError, x[..., :-1]), (ValueError, x[..., 0]))
    if x.ndim > len(lead) + 1 and x.shape[-1] != x.shape[-2]:
        yield ValueError, x.swapaxes(-1, -2)
    if lead:
        yield ValueError, np.concatenate([x, x])
    for other in (x.astype("f4"), x.astype("c16"), x.tolist(), np.ma.masked_array(x, x > 0)):
        yield TypeError, other


def states_of(kind):
    return {"_step": ["state"], "": ["initial_state"]}.get(kind, ["initial_state", "grad_state"])


@each_call(HELD, [(), (2,)])
def test_states(case, kind, lead):
    """A field of a wrong length, dtype or type, one that is missing, and no state at all."""
    state = case.state(lead, d=D, m=M)
    for key in states_of(kind):
        if isinstance(state, np.ndarray):
            for error, wrong in wrong_fields(state, lead):
                refuse(case, kind, error, f"{key} ", lead=lead, **{key: wrong})
            refuse(case, kind, TypeError, f"{key} ", lead=lead, **{key: State(state)})
            continue
        for field, x in zip(state._fields, state, strict=True):
            if x is None:
                wrong = [(ValueError, np.zeros(lead))]
            else:
                wrong = [*wrong_fields(x, lead), (TypeError, x.astype(">f8"))]
                if field != "log_scale" or case.row.decay:  # else sums as they are
                    wrong.append(((TypeError, ValueError), None))
            for error, y in wrong:
                bad = state._replace(**{field: y})
                refuse(case, kind, error, f"{key}.{field} ", lead=lead, **{key: bad})
        for bad in (state[0], 3, (state[0],)):
            refuse(case, kind, TypeError, f"{key} is a ", lead=lead, **{key: bad})
    if kind == "_step":
        refuse(case, kind, TypeError, "state is ", state=None)


@each_call(HELD, [(), (2,)])
def test_states_of_another_number_of_sequences(case, kind, lead):
    """Their axis belongs to the state's own shape: neither missing nor broadcast."""
    for key in states_of(kind) if kind != "_step" else ():
        for own in ((), (1,), (2,), (4,), (*lead, 1), (*lead, 2), (*lead, 4), lead):
            bad = case.state(own, d=D, m=M)
            refuse(case, kind, ValueError, key, lead=lead, cu_seqlens=[0, 2, 2, N], **{key: bad})
        refuse(case, kind, ValueError, key, **{key: case.state((3,), d=D, m=M)})


@each(HELD)
def test_states_that_cannot_be_updated(case):
    """Read-only ones, ones that all heads share, and ones that overlap themselves."""
    state = case.state((2,), d=D, m=M)
    for x in flat(state):
        x.flags.writeable = False
    here = {"lead": (2,), "in_place": True}
    refuse(case, "_step", ValueError, "state", "read-only", state=state, **here)
    strided, alone = np.lib.stride_tricks.as_strided, case.state((), d=D, m=M)
    for make in (
        lambda x: np.broadcast_to(x, (2, *x.shape)),
        lambda x: strided(x, (2, *x.shape), (0, *x.strides), writeable=True),
        lambda x: strided(np.zeros(x.size + 1), (2, *x.shape), (8, *x.strides)),
    ):
        if all(x.size > 1 for x in flat(alone)):
            refuse(case, "_step", ValueError, "state", state=apply(make, alone), **here)
    refuse(case, "_step", ValueError, "state", "has shape", state=alone, **here)


@each(EVERY)
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
